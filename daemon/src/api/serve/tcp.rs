//! gRPC over TCP: mutual TLS, or plain where that is allowed by name.
//!
//! A connection sits among the handshakes until it has said who it is, and among its tenant's from then on: strangers
//! cannot keep those out who have a certificate.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_core::command::Caller;
use evenkeel_core::id::Name;
use tokio::net::{TcpListener, TcpStream};

use super::seats::Who;
use super::tls::{Tls, TlsError, shown};
use super::{Server, greeted, next, refused_connection};
use crate::api::caller::{Door, Peer, Visitor};
use crate::api::config::Tcp;
use crate::api::identity::{self, Nameless};
use crate::api::limits::FIRST_BYTE;
use crate::api::tenants::Stranger;

/// How often it is looked whether a certificate's file has changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A handshake that fails, for machines.
const HANDSHAKE: &str = "TLS_HANDSHAKE";

/// Who is let in.
pub(super) enum TcpDoor {
    /// Whoever reaches the port, as this tenant.
    Plain(Name),
    /// Whoever has a certificate.
    Tls(Arc<Tls>),
}

impl TcpDoor {
    /// Reads what it takes to tell who comes.
    pub(super) fn open(who: &Tcp) -> Result<Self, TlsError> {
        Ok(match who {
            Tcp::Plain(tenant) => Self::Plain(tenant.clone()),
            Tcp::Tls(files) => Self::Tls(Arc::new(Tls::open(files.clone())?)),
        })
    }
}

pub(super) async fn tcp_loop(server: Arc<Server>, listener: TcpListener, door: TcpDoor) {
    let stop = server.ctx.stop.clone();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = next(&stop, || listener.accept()) => match (accepted, &door) {
                (None, _) => break,
                (Some((stream, from)), TcpDoor::Plain(tenant)) => server.plain(stream, from, tenant.clone()),
                (Some((stream, from)), TcpDoor::Tls(tls)) => server.tls(stream, from, tls.clone()),
            },
            _ = look.tick() => if let TcpDoor::Tls(tls) = &door {
                server.look_at_files(tls);
            },
        }
    }
}

impl Server {
    /// Takes in new certificates, and tells what is wrong with them.
    fn look_at_files(&self, tls: &Tls) {
        let trouble = match tls.refresh() {
            Ok(true) => {
                tracing::info!("the certificates were read again");
                None
            }
            Ok(false)
                if self
                    .ctx
                    .certificates
                    .load()
                    .as_ref()
                    .is_some_and(|t| t.sticks) =>
            {
                return;
            }
            Ok(false) => None,
            Err(error) => {
                let why = anyhow::Error::new(error);
                Some(format!(
                    "new certificates cannot be used, the old ones are in force: {why:#}"
                ))
            }
        };
        let trouble = match trouble {
            Some(text) => Some(CertificateTrouble { text, sticks: true }),
            None => tls
                .trouble(SystemTime::now())
                .map(|text| CertificateTrouble {
                    text,
                    sticks: false,
                }),
        };
        let told = self.ctx.certificates.load_full();
        let is_new = trouble.as_ref().map(|t| &t.text) != told.as_ref().map(|t| &t.text);
        if let Some(trouble) = trouble.as_ref().filter(|_| is_new) {
            tracing::error!("ALARM: {}", trouble.text);
            metrics::counter!("evenkeel_alarms_total", "alarm" => "certificates").increment(1);
        }
        if is_new {
            self.ctx.certificates.store(trouble.map(Arc::new));
        }
    }

    fn plain(self: &Arc<Self>, stream: TcpStream, from: SocketAddr, tenant: Name) {
        let Some(seat) = self.seats.take(Who::Anybody) else {
            return refused_connection("tcp");
        };
        let _ = stream.set_nodelay(true); // a hint
        let by = Door {
            name: "tcp",
            from: from.to_string(),
        };
        let peer = Peer::remote(Caller::user(tenant), by, None, self.ctx.stop.child_token());
        let server = self.clone();
        self.ctx.tasks.spawn(async move {
            let (reader, writer) = stream.into_split();
            if let Some(stream) = greeted(reader, writer).await {
                server
                    .grpc(stream, Visitor::Peer(Arc::new(peer)), seat)
                    .await;
            }
        });
    }

    fn tls(self: &Arc<Self>, stream: TcpStream, from: SocketAddr, tls: Arc<Tls>) {
        let Some(handshake) = self.handshakes.take(Who::Address(from.ip())) else {
            return refused_connection("tls");
        };
        let _ = stream.set_nodelay(true); // a hint
        let by = Door {
            name: "tls",
            from: from.to_string(),
        };
        let server = self.clone();
        self.ctx.tasks.spawn(async move {
            let audit = &server.ctx.config.audit;
            let stream = match tokio::time::timeout(FIRST_BYTE, tls.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    return audit.refused(by.refusal(HANDSHAKE, &error.to_string()));
                }
                Err(_) => return audit.refused(by.refusal(HANDSHAKE, "it took too long")),
            };
            let visitor = server.visitor(shown(&stream), by, tls.trust_domain());
            let (reader, writer) = tokio::io::split(stream);
            let Some(stream) = greeted(reader, writer).await else {
                return;
            };
            let who = match &visitor {
                Visitor::Peer(peer) => Who::Tenant(peer.caller.tenant.clone()),
                Visitor::Stranger(..) => Who::Anybody,
            };
            let Some(seat) = server.seats.take(who) else {
                return refused_connection("tls");
            };
            drop(handshake);
            server.grpc(stream, visitor, seat).await;
        });
    }

    /// Who the holder of a certificate is.
    fn visitor(&self, certificate: Option<&[u8]>, by: Door, trust_domain: &str) -> Visitor {
        let identity = certificate
            .ok_or(Nameless::Unreadable)
            .and_then(|der| identity::of(der, trust_domain));
        let found = match &identity {
            Ok(identity) => self.ctx.config.tenants.by_certificate(identity),
            Err(nameless) => Err(Stranger::Certificate(nameless.clone())),
        };
        match found {
            Ok(caller) => {
                let ends = identity.ok().map(|i| i.ends);
                let closing = self.ctx.stop.child_token();
                Visitor::Peer(Arc::new(Peer::remote(caller, by, ends, closing)))
            }
            Err(stranger) => Visitor::Stranger(by.into(), stranger.into()),
        }
    }
}

/// What is wrong with the daemon's certificates.
pub(in crate::api) struct CertificateTrouble {
    /// In words.
    pub(in crate::api) text: String,
    /// True until the files change again.
    sticks: bool,
}
