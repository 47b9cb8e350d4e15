//! The listeners: own accept loops, because tonic's and axum's defaults are unlimited and wait for ever at the end.
//!
//! Stopping revokes nothing: health says NOT_SERVING, nothing new is accepted, streams are told to come back, and
//! what is under way has a few seconds. After [`STOP_DEADLINE`] the servers are gone, whatever hangs.
mod connection;
mod connections;
mod dispatch;
mod frames;
mod health;
mod line;
mod loopback;
mod process;
mod seats;
mod shown;
mod socket;
mod stream;
mod tcp;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::caller::{Door as By, Peer, UNIX, Visitor};
use super::config::Config;
use super::context::Context;
use super::grpc;
use super::limits::{
    CONNECTIONS_FOR_ADMINS, FIRST_BYTE, HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX, STOP_DEADLINE,
};
use super::rest;
use crate::handle::{Failure, Handle};
use connection::{serve_grpc, serve_rest};
pub use connections::Connections;
use dispatch::Dispatch;
use frames::PREFACE;
use seats::{Seat, Seats, Who};
use shown::Shown;
use socket::Door;
use tcp::TcpDoor;
pub use tls::{TlsError, TlsFiles};

/// Between two tries when the kernel has no descriptor for a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How often it is looked whether the Unix socket is still found by its path.
const SOCKET_CHECK: Duration = Duration::from_secs(1);

/// Why the API does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another daemon listens there.
    #[error("another process listens at {}; stop it, or set another listen.socket", .0.display())]
    Taken(PathBuf),
    /// The socket's path.
    #[error("cannot {what} {}", .path.display())]
    Socket {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A TCP address.
    #[error("cannot listen on {address}; is another program there? Set another {key}")]
    Address {
        /// Which key.
        key: &'static str,
        /// Which address.
        address: SocketAddr,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The files of mutual TLS.
    #[error("listen.tcp cannot be opened with mutual TLS")]
    Tls(#[source] TlsError),
    /// REST shows everything, so it stays on this machine.
    #[error("listen.rest is {0}, which others could reach; use an address of 127.0.0.0/8 or ::1")]
    NotLoopback(SocketAddr),
    /// The descriptors in this binary are broken.
    #[error("the service descriptors cannot be read; this is a bug of the daemon")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The controller is gone.
    #[error("the controller does not answer")]
    Controller(#[source] Failure),
}

/// The API, not yet started.
pub struct Api {
    /// Where and for whom.
    pub config: Config,
    /// The door to the controller.
    pub handle: Handle,
}

/// The API, running.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub socket: PathBuf,
    /// Where it listens for plain TCP.
    pub tcp: Option<SocketAddr>,
    /// Where it listens for REST.
    pub rest: Option<SocketAddr>,
    whole: JoinHandle<()>,
}

impl Running {
    /// Waits until it has stopped; it does so soon after its token is cancelled.
    pub async fn stopped(self) {
        if let Err(error) = self.whole.await {
            tracing::error!(%error, "the API ended by a panic");
        }
    }
}

/// The listening sockets.
struct Doors {
    unix: Door,
    tcp: Option<(TcpListener, TcpDoor)>,
    rest: Option<TcpListener>,
}

impl Api {
    /// Binds every listener, then serves until `stop`.
    ///
    /// # Errors
    /// When one of the listeners cannot be bound; then nothing is served.
    pub async fn spawn(self, stop: CancellationToken) -> Result<Running, ServeError> {
        let Self { config, handle } = self;
        let doors = bind(&config).await?;
        let local = |listener: &TcpListener| listener.local_addr().ok();
        let tcp = doors.tcp.as_ref().and_then(|(l, _)| local(l));
        let rest = doors.rest.as_ref().and_then(local);
        let socket = config.socket.clone();
        let connections = config.connections;
        let ctx = Context::new(handle, config, stop.clone()).await;
        let ctx = Arc::new(ctx.map_err(ServeError::Controller)?);
        if doors.rest.is_some() {
            rest::record(&ctx);
        }
        let (routes, reporter) = grpc::routes(&ctx)?;
        let health = tokio::spawn(health::follow(ctx.clone(), reporter));
        let server = Arc::new(Server {
            dispatch: Dispatch::new(grpc::leases(&ctx), routes, &ctx),
            seats: Seats::new(
                connections.grpc,
                connections.per_user,
                CONNECTIONS_FOR_ADMINS.min(connections.grpc / 4),
            ),
            handshakes: Seats::new(HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX, 0),
            ctx,
        });
        let whole = tokio::spawn(serve(server, doors, health));
        Ok(Running {
            socket,
            tcp,
            rest,
            whole,
        })
    }
}

async fn bind(config: &Config) -> Result<Doors, ServeError> {
    let listen = async |key, address: SocketAddr| {
        TcpListener::bind(address)
            .await
            .map_err(|source| ServeError::Address {
                key,
                address,
                source,
            })
    };
    let tcp = match &config.tcp {
        None => None,
        Some((address, who)) => {
            let door = TcpDoor::open(who).map_err(ServeError::Tls)?;
            Some((listen("listen.tcp", *address).await?, door))
        }
    };
    let rest = match config.rest {
        None => None,
        Some(address) if !address.ip().is_loopback() => {
            return Err(ServeError::NotLoopback(address));
        }
        Some(address) => Some(listen("listen.rest", address).await?),
    };
    // Last: once its path is there, clients come.
    let unix = Door::bind(&config.socket, config.socket_mode).await?;
    Ok(Doors { unix, tcp, rest })
}

/// What every accept loop shares.
struct Server {
    ctx: Arc<Context>,
    dispatch: Dispatch,
    seats: Seats,
    /// Connections over TCP that have not said yet who they are.
    handshakes: Seats,
}

async fn serve(server: Arc<Server>, doors: Doors, health: JoinHandle<()>) {
    let mut loops = tokio::task::JoinSet::new();
    loops.spawn(unix_loop(server.clone(), doors.unix));
    if let Some((listener, door)) = doors.tcp {
        loops.spawn(tcp::tcp_loop(server.clone(), listener, door));
    }
    if let Some(listener) = doors.rest {
        loops.spawn(rest_loop(server.clone(), listener));
    }
    // Each ends when the daemon stops.
    while loops.join_next().await.is_some() {}
    let tasks = &server.ctx.tasks;
    tasks.close();
    if tokio::time::timeout(STOP_DEADLINE, tasks.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            left = tasks.len(),
            "connections were cut off at the end; leases are not affected"
        );
    }
    health.abort();
}

/// The next connection; none: the daemon stops.
async fn next<T, A>(stop: &CancellationToken, accept: impl Fn() -> A) -> Option<T>
where
    A: Future<Output = std::io::Result<T>>,
{
    loop {
        tokio::select! {
            () = stop.cancelled() => return None,
            accepted = accept() => match accepted {
                Ok(stream) => return Some(stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
        }
    }
}

async fn unix_loop(server: Arc<Server>, mut door: Door) {
    let stop = server.ctx.stop.clone();
    let mut look = tokio::time::interval(SOCKET_CHECK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = next(&stop, || door.accept()) => match accepted {
                Some(stream) => server.unix(stream),
                None => break,
            },
            _ = look.tick() => server.look_at(&mut door),
        }
    }
    door.remove();
}

async fn rest_loop(server: Arc<Server>, listener: TcpListener) {
    let ctx = server.ctx.clone();
    let most = ctx.config.connections.rest;
    // One user cannot keep the others, a scraper say, from looking.
    let seats = Seats::new(most, most / 2, 0);
    let places = Arc::new(Semaphore::new(most));
    // One look at a time: the table may be long.
    let looks = Arc::new(Mutex::new(()));
    let router = rest::router(&ctx);
    while let Some((stream, address)) = next(&ctx.stop, || listener.accept()).await {
        // First of all: who it is costs a look at all connections of the machine.
        let Ok(place) = places.clone().try_acquire_owned() else {
            refused_connection("rest");
            continue;
        };
        let _ = stream.set_nodelay(true); // a hint
        let shown = Shown::new(router.clone(), ctx.budget.clone());
        let (stop, seats, looks) = (ctx.stop.clone(), seats.clone(), looks.clone());
        ctx.tasks.spawn(async move {
            let _place = place;
            let look = looks.lock().await;
            let looked = tokio::task::spawn_blocking(move || {
                let uid = loopback::user_of(&stream, address);
                (stream, uid)
            });
            let Ok((stream, uid)) = looked.await else {
                return;
            };
            drop(look);
            let Some(_seat) = seats.take(uid.map_or(Who::Anybody, Who::User)) else {
                return refused_connection("rest");
            };
            let from = rest::From { address, uid };
            serve_rest(stream, from, shown, stop).await;
        });
    }
}

/// A client met a limit that ends its request, its stream or its connection.
fn met(limit: &'static str) {
    metrics::counter!("evenkeel_limits_met_total", "limit" => limit).increment(1);
}

fn refused_connection(listener: &'static str) {
    metrics::counter!("evenkeel_connections_refused_total", "listener" => listener).increment(1);
}

impl Server {
    /// Whether clients still find the socket, and all that is told if they do not.
    fn look_at(self: &Arc<Self>, door: &mut Door) {
        let trouble = match door.mend() {
            Ok(None) => None,
            Ok(Some(before)) => {
                tracing::warn!("somebody deleted the daemon's socket; it is there again");
                while let Some(Ok(stream)) = before.accept().now_or_never() {
                    self.unix(stream);
                }
                None
            }
            Err(astray) => Some(astray.to_string()),
        };
        let told = self.ctx.astray.swap(trouble.clone().map(Arc::new));
        if let Some(trouble) = trouble.filter(|trouble| told.as_deref() != Some(trouble)) {
            tracing::error!("ALARM: {trouble}");
            metrics::counter!("evenkeel_alarms_total", "alarm" => "socket_astray").increment(1);
        }
    }

    fn unix(self: &Arc<Self>, stream: UnixStream) {
        let Ok(cred) = stream.peer_cred() else {
            return; // gone already
        };
        let by = By {
            name: UNIX,
            from: format!("uid {}", cred.uid()),
        };
        let found = self.ctx.config.tenants.by_uid(cred.uid());
        let who = match &found {
            Ok(caller) if caller.admin => Who::Admin(cred.uid()),
            _ => Who::User(cred.uid()),
        };
        let closing = self.ctx.stop.child_token();
        let visitor = match found {
            Ok(caller) => {
                let process = process::of(&stream, &cred);
                Visitor::Peer(Arc::new(Peer::local(caller, by, process, closing)))
            }
            Err(stranger) => Visitor::Stranger(by.into(), stranger.into()),
        };
        let Some(seat) = self.seats.take(who) else {
            return refused_connection("unix");
        };
        let server = self.clone();
        self.ctx.tasks.spawn(async move {
            let (reader, writer) = stream.into_split();
            if let Some(stream) = greeted(reader, writer).await {
                server.grpc(stream, visitor, seat).await;
            }
        });
    }

    async fn grpc<I>(&self, stream: I, visitor: Visitor, _seat: Seat)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let dispatch = self.dispatch.with(visitor);
        serve_grpc(stream, dispatch, &self.ctx.stop).await;
    }
}

/// The whole connection, once its client has said in time that it speaks HTTP/2 (RFC 9113, section 3.4). Until it has,
/// nothing is sent and nothing is kept for it but its seat: who connects and is silent does not hold that for long.
async fn greeted<R, W>(mut reader: R, writer: W) -> Option<impl AsyncRead + AsyncWrite + Unpin>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut said = [0; PREFACE.len()];
    let mut heard = 0;
    let greeting = async {
        while heard < said.len() {
            let more = reader.read(&mut said[heard..]).await.ok()?;
            heard += more;
            // Another tongue is known by its first word.
            if more == 0 || said[..heard] != PREFACE[..heard] {
                return None;
            }
        }
        Some(())
    };
    tokio::time::timeout(FIRST_BYTE, greeting).await.ok()??;
    let whole = std::io::Cursor::new(said).chain(reader);
    Some(tokio::io::join(whole, writer))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// What becomes of a connection whose client sends this and then nothing, and when.
    async fn after(said: &[u8]) -> (bool, Duration) {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(said).await.unwrap();
        let (reader, writer) = tokio::io::split(server);
        let start = tokio::time::Instant::now();
        let stream = greeted(reader, writer).await;
        if let Some(mut stream) = stream {
            let mut whole = vec![0; said.len()];
            stream.read_exact(&mut whole).await.unwrap();
            assert_eq!(whole, said, "nothing of it is lost");
            return (true, start.elapsed());
        }
        (false, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_greet_in_time_is_not_served() {
        let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        assert_eq!(after(b"").await, (false, FIRST_BYTE), "silent");
        assert_eq!(after(&greeting[..3]).await, (false, FIRST_BYTE), "halfway");
        let other = b"GET / HTTP/1.1\r\n\r\n";
        assert_eq!(
            after(other).await,
            (false, Duration::ZERO),
            "another tongue"
        );
        let more = [&greeting[..], b"and more"].concat();
        assert_eq!(after(&more).await, (true, Duration::ZERO));
    }
}
