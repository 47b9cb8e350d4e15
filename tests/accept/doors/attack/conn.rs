//! Connections of an attacker: to each of the daemon's doors, in whatever tongue.
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::net::{TcpSocket, UnixStream};

use super::frames::{self, HEAD, Kind, PREFACE};

/// A server that serves says its settings within this time; one that refuses closes.
const GREETS_WITHIN: Duration = Duration::from_secs(10);
/// A receive buffer as small as the kernel allows: who reads nothing should not have it read by the kernel.
const SMALL_BUFFER: u32 = 4 << 10;

/// Where the daemon listens.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doors {
    /// gRPC for local users.
    #[arg(long)]
    pub(super) socket: PathBuf,
    /// gRPC for anybody.
    #[arg(long)]
    pub(super) tcp: SocketAddr,
    /// REST.
    #[arg(long)]
    pub(super) rest: SocketAddr,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Unix,
    Tcp,
    Rest,
}

/// What an attack did. Nothing: it was none.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Connections that the daemon took: in HTTP/2, that it greeted.
    pub(super) connected: AtomicU64,
    /// Connections that it refused, or that could not be made.
    pub(super) refused: AtomicU64,
    /// Connections that it ended.
    pub(super) ended: AtomicU64,
    /// GOAWAY frames that it sent.
    pub(super) goaways: AtomicU64,
    /// Streams that it reset.
    pub(super) resets: AtomicU64,
    /// Messages that it read in full before it refused them.
    pub(super) taken_in: AtomicU64,
    /// What the attack consists of: frames, requests, bytes; the attack says which.
    pub(super) sent: AtomicU64,
    /// Who knocks, where the attack is to do so many times at once.
    pub(super) seats: Mutex<Seats>,
    /// Answers that are under way and that nobody reads.
    pub(super) unread: Gauge,
}

/// Those who want to be connected all the time: each has a connection, or was refused when it last asked for one.
#[derive(Debug, Default)]
pub(super) struct Seats {
    open: BTreeSet<usize>,
    refused: BTreeSet<usize>,
    /// The most that were open at once.
    pub(super) most_open: usize,
    /// The most that were open or refused at once.
    pub(super) most_at_once: usize,
}

impl Seats {
    pub(super) fn opened(&mut self, seat: usize) {
        self.refused.remove(&seat);
        self.open.insert(seat);
        self.look();
    }
    pub(super) fn refused(&mut self, seat: usize) {
        self.refused.insert(seat);
        self.look();
    }
    pub(super) fn closed(&mut self, seat: usize) {
        self.open.remove(&seat);
    }
    fn look(&mut self) {
        self.most_open = self.most_open.max(self.open.len());
        self.most_at_once = self.most_at_once.max(self.open.len() + self.refused.len());
    }
}

/// How many there are, and the most that there were at once.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    now: AtomicU64,
    pub(super) most: AtomicU64,
}

impl Gauge {
    /// One who adds to it; nothing yet.
    pub(super) fn part(&self) -> Part<'_> {
        Part { of: self, n: 0 }
    }
}

/// What one adds to a gauge, until it is dropped.
pub(super) struct Part<'a> {
    of: &'a Gauge,
    n: u64,
}

impl Part<'_> {
    pub(super) fn set(&mut self, n: u64) {
        self.of.now.fetch_add(n, Ordering::Relaxed);
        let now = self.of.now.fetch_sub(self.n, Ordering::Relaxed) - self.n;
        self.of.most.fetch_max(now, Ordering::Relaxed);
        self.n = n;
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Tally {
    pub(super) fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn add(to: &AtomicU64, n: u64) {
    to.fetch_add(n, Ordering::Relaxed);
}

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

pub(super) type Reader = ReadHalf<Box<dyn Io>>;
pub(super) type Writer = WriteHalf<Box<dyn Io>>;

impl Doors {
    /// A connection on which nothing has been said.
    pub(super) async fn open(&self, door: Door) -> std::io::Result<Box<dyn Io>> {
        let address = match door {
            Door::Unix => return Ok(Box::new(UnixStream::connect(&self.socket).await?)),
            Door::Tcp => self.tcp,
            Door::Rest => self.rest,
        };
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
        Ok(Box::new(socket.connect(address).await?))
    }

    /// An HTTP/2 connection that the daemon has greeted; none: it was not served, and that is counted.
    pub(super) async fn greet(
        &self,
        door: Door,
        settings: &[(u16, u32)],
        tally: &Tally,
    ) -> Option<(Reader, Writer)> {
        let greeting = async {
            let io = self.open(door).await?;
            let (mut reader, mut writer) = tokio::io::split(io);
            let mut hello = PREFACE.to_vec();
            hello.extend(frames::settings(settings));
            writer.write_all(&hello).await?;
            let mut head = [0; HEAD];
            reader.read_exact(&mut head).await?;
            let (_, len) = kind(&head);
            let mut payload = vec![0; len];
            reader.read_exact(&mut payload).await?;
            Ok::<_, std::io::Error>((reader, writer))
        };
        match tokio::time::timeout(GREETS_WITHIN, greeting).await {
            Ok(Ok(connection)) => {
                add(&tally.connected, 1);
                Some(connection)
            }
            _ => {
                add(&tally.refused, 1);
                None
            }
        }
    }
}

/// Kind and length of a frame.
fn kind(head: &[u8; HEAD]) -> (u8, usize) {
    let [a, b, c, kind, ..] = *head;
    (kind, u32::from_be_bytes([0, a, b, c]) as usize)
}

/// Whether the other side has ended the connection, and how many of its streams it has answered or reset.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended(Arc<(AtomicBool, AtomicU64)>);

impl Ended {
    pub(super) fn is(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }
    pub(super) fn streams(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

/// Reads whatever the daemon sends, and counts how it defends itself.
pub(super) fn listen(mut reader: Reader, tally: &Arc<Tally>) -> Ended {
    let (ended, tally) = (Ended::default(), tally.clone());
    let told = ended.clone();
    tokio::spawn(async move {
        let mut payload = Vec::new();
        let mut head = [0; HEAD];
        while reader.read_exact(&mut head).await.is_ok() {
            let (of, len) = kind(&head);
            payload.resize(len, 0);
            if reader.read_exact(&mut payload).await.is_err() {
                break;
            }
            if of == Kind::GoAway as u8 {
                add(&tally.goaways, 1);
                told.0.0.store(true, Ordering::Relaxed);
            }
            if of == Kind::Reset as u8 {
                add(&tally.resets, 1);
            }
            let may_end = of == Kind::Data as u8 || of == Kind::Headers as u8;
            if of == Kind::Reset as u8 || may_end && head[4] & frames::END_STREAM != 0 {
                add(&told.0.1, 1);
            }
        }
        told.0.0.store(true, Ordering::Relaxed);
        add(&tally.ended, 1);
    });
    ended
}
