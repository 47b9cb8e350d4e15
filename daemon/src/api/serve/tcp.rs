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
use tokio::time::{Instant, timeout_at};

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
    /// Takes in new certificates, and tells all that is wrong with them.
    fn look_at_files(&self, tls: &Tls) {
        let looked = tls.refresh();
        if looked.read {
            tracing::info!("the certificates were read again");
        }
        let unusable = looked.failed.map(|why| {
            format!("new certificates cannot be used, the old ones are in force: {why}")
        });
        let ending = tls.trouble(SystemTime::now());
        let troubles: Vec<String> = unusable.into_iter().chain(ending).collect();
        let told = self.ctx.certificates.load_full();
        for trouble in troubles.iter().filter(|trouble| !told.contains(trouble)) {
            tracing::error!("ALARM: {trouble}");
            metrics::counter!("evenkeel_alarms_total", "alarm" => "certificates").increment(1);
        }
        if *told != troubles {
            self.ctx.certificates.store(Arc::new(troubles));
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
        let Some(handshake) = self.handshakes.take(Who::at(from.ip())) else {
            return refused_connection("tls");
        };
        let _ = stream.set_nodelay(true); // a hint
        let by = Door {
            name: "tls",
            from: from.to_string(),
        };
        let server = self.clone();
        self.ctx.tasks.spawn(async move {
            // One deadline over all that a stranger may keep us waiting with.
            let deadline = Instant::now() + FIRST_BYTE;
            let audit = &server.ctx.config.audit;
            let stream = match timeout_at(deadline, tls.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    return audit.refused(by.refusal(HANDSHAKE, &error.to_string()));
                }
                Err(_) => return audit.refused(by.refusal(HANDSHAKE, "it took too long")),
            };
            let visitor = server.visitor(shown(&stream), by, tls.trust_domain());
            let (reader, writer) = tokio::io::split(stream);
            let greeting = timeout_at(deadline, greeted(reader, writer));
            let Ok(Some(stream)) = greeting.await else {
                return;
            };
            let who = match &visitor {
                Visitor::Peer(peer) if peer.caller.admin => {
                    Who::AdminOf(peer.caller.tenant.clone())
                }
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
