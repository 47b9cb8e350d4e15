//! The peers: what is measured side by side, each a real server of its own that this program starts. All do the same
//! work: a grant takes a core, SMs and memory from a pool whose counters never go below zero, durably before it is
//! answered; a release gives them back; a renewal puts off the end of a lease.
mod etcd;
mod evenkeel;
mod postgres;
mod redis;

pub use evenkeel::POOL;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::server::Server;

/// What each grant takes.
pub const CORES: u32 = 1;
/// SMs of one GPU.
pub const SMS: u32 = 8;
/// Bytes of that GPU's memory.
pub const BYTES: u64 = 1 << 30;
/// What each pool has: enough for all leases that are ever live here, so that nobody is refused.
const POOL_CORES: u64 = 16_384;
const POOL_SMS: u64 = 131_072;
const POOL_BYTES: u64 = 256 << 40;
/// Life of a lease without a renewal: longer than any one run, so that none expires by the way.
const TTL: Duration = Duration::from_secs(600);
/// Pools of those peers that are measured on disjoint keys, too: one for each of 64 clients.
const POOLS: usize = 64;

/// A lease that was granted, as its server names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub id: u64,
    /// What else is needed to give it back: a fence; the number of its pool.
    pub key: u64,
}

/// A connection of its own, as another process would have.
#[tonic::async_trait]
pub trait Client: Send {
    /// A lease, durable when this returns.
    async fn grant(&mut self) -> anyhow::Result<Held>;
    /// Gives it back, durably.
    async fn release(&mut self, lease: Held) -> anyhow::Result<()>;
    /// Tries beyond the first, so far.
    fn retries(&self) -> u64 {
        0
    }
}

/// A connection that renews.
#[tonic::async_trait]
pub trait Renewer: Send {
    /// Sends one message that renews these.
    async fn send(&mut self, leases: &[Held]) -> anyhow::Result<()>;
    /// The answer to the oldest message that has none; how many of its renewals counted.
    async fn answered(&mut self) -> anyhow::Result<u64>;
}

/// A server that serves.
#[tonic::async_trait]
pub trait Peer: Send + Sync {
    /// Its process.
    fn server(&mut self) -> &mut Server;
    /// A client; those of different numbers may use different pools.
    async fn client(&self, number: usize) -> anyhow::Result<Box<dyn Client>>;
    /// A connection that renews.
    async fn renewer(&self) -> anyhow::Result<Box<dyn Renewer>>;
    /// How many of these leases it still has.
    async fn present(&self, leases: &[Held]) -> anyhow::Result<usize>;
}

/// What is measured.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The daemon on its Unix socket.
    EvenkeelUnix,
    /// The daemon over plain TCP.
    EvenkeelTcp,
    /// The daemon over TCP with mutual TLS.
    EvenkeelTls,
    /// The daemon's own parts with a ledger that writes nothing, on a Unix socket.
    EvenkeelOff,
    /// The same wire with nothing behind it, on a Unix socket.
    EvenkeelBare,
    /// etcd, all clients on one pool.
    EtcdOne,
    /// etcd, each client on a pool of its own.
    EtcdDisjoint,
    /// Redis.
    Redis,
    /// Redis that syncs its log once a second: for renewals, of which nothing has to be on the disk.
    RedisEverysec,
    /// PostgreSQL, all clients on one pool.
    PostgresOne,
    /// PostgreSQL, 64 pools, the first that is not locked.
    PostgresSkip,
}

impl Kind {
    /// All, in the table's order.
    pub const ALL: [Self; 11] = [
        Self::EvenkeelUnix,
        Self::EvenkeelTcp,
        Self::EvenkeelTls,
        Self::EvenkeelOff,
        Self::EvenkeelBare,
        Self::EtcdOne,
        Self::EtcdDisjoint,
        Self::Redis,
        Self::RedisEverysec,
        Self::PostgresOne,
        Self::PostgresSkip,
    ];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EvenkeelUnix => "Evenkeel, Unix socket",
            Self::EvenkeelTcp => "Evenkeel, TCP",
            Self::EvenkeelTls => "Evenkeel, TCP with mutual TLS",
            Self::EvenkeelOff => "Evenkeel, ledger off",
            Self::EvenkeelBare => "the wire alone",
            Self::EtcdOne => "etcd, one key",
            Self::EtcdDisjoint => "etcd, disjoint keys",
            Self::Redis => "Redis",
            Self::RedisEverysec => "Redis, synced each second",
            Self::PostgresOne => "PostgreSQL, one row",
            Self::PostgresSkip => "PostgreSQL, SKIP LOCKED",
        }
    }

    /// Whether renewals and recovery are measured of it. Where the same server is measured with two sets of keys, one of
    /// them is enough.
    pub const fn is_whole(self) -> bool {
        !matches!(self, Self::EtcdOne | Self::PostgresOne)
    }

    /// Whether it keeps all that it acknowledged through a crash.
    pub const fn is_durable(self) -> bool {
        !matches!(
            self,
            Self::EvenkeelOff | Self::EvenkeelBare | Self::RedisEverysec
        )
    }

    /// Whether it is there for its renewals alone: its grants are not the work that is asked for.
    pub const fn renews_only(self) -> bool {
        matches!(self, Self::RedisEverysec)
    }

    /// What it does less than the daemon, or differently.
    pub const fn less(self) -> &'static str {
        match self {
            Self::EvenkeelUnix => {
                "the measure: which cores and which GPU, fences, idempotent requests, an audit trail, expiry that gives back; renewals \
                 stay in memory (ADR 0004)"
            }
            Self::EvenkeelTcp => "the same; the caller is not known by its user",
            Self::EvenkeelTls => "the same; both sides show certificates",
            Self::EvenkeelOff => {
                "the same build, of which nothing is on the disk: what durability costs"
            }
            Self::EvenkeelBare => {
                "remembers nothing and decides nothing: the ceiling of wire and libraries"
            }
            Self::EtcdOne | Self::EtcdDisjoint => {
                "counters only: no core is named, no GPU is chosen; a lease that expires takes its key with it and gives \
                 nothing back to the counters; no fence, no idempotent request, no audit trail. Two writes an operation; \
                 renewals stay in memory, as ours do"
            }
            Self::Redis => {
                "counters only: no core is named, no GPU is chosen; a key that expires gives nothing back to the counters; \
                 no fence, no idempotent request, no audit trail; one operation is one script on one thread. Each renewal \
                 is on the disk before it is answered, where ours stay in memory (ADR 0004)"
            }
            Self::RedisEverysec => {
                "renewals only: its log is synced once a second, so that none waits for the disk, as ours do not"
            }
            Self::PostgresOne | Self::PostgresSkip => {
                "counters only: no core is named, no GPU is chosen; nothing expires by itself; no fence, no idempotent \
                 request, no audit trail. Each renewal is on the disk before it is answered, where ours stay in memory \
                 (ADR 0004)"
            }
        }
    }
}

/// A started peer, or why there is none.
pub enum Started {
    /// It serves; and what it says of its version.
    Up(Box<dyn Peer>, String),
    /// It is not here, and the reason in words.
    Skipped(String),
}

/// Starts a peer in a new folder under `base`, and waits until it serves.
///
/// # Errors
/// When it is installed and does not start.
pub async fn start(kind: Kind, base: &Path) -> anyhow::Result<Started> {
    match kind {
        Kind::EvenkeelUnix => evenkeel::start(evenkeel::Door::Unix, base).await,
        Kind::EvenkeelTcp => evenkeel::start(evenkeel::Door::Tcp, base).await,
        Kind::EvenkeelTls => evenkeel::start(evenkeel::Door::Tls, base).await,
        Kind::EvenkeelOff => evenkeel::start_off(base).await,
        Kind::EvenkeelBare => evenkeel::start_bare(base).await,
        Kind::EtcdOne => etcd::start(1, base).await,
        Kind::EtcdDisjoint => etcd::start(POOLS, base).await,
        Kind::Redis => redis::start("always", base).await,
        Kind::RedisEverysec => redis::start("everysec", base).await,
        Kind::PostgresOne => postgres::start(1, base).await,
        Kind::PostgresSkip => postgres::start(POOLS, base).await,
    }
}

/// Tries until it works, while the server lives.
///
/// # Errors
/// When the server ends, or does not serve in time.
pub async fn serving<T, F, Fut>(server: &mut Server, mut attempt: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    let start = std::time::Instant::now();
    loop {
        // A server that accepts and then says nothing must not hold the benchmark.
        let tried = tokio::time::timeout(Duration::from_secs(5), attempt()).await;
        let error = match tried {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("no answer within 5 s"),
        };
        server.check()?;
        if start.elapsed() > crate::server::START_LIMIT {
            return Err(error.context(format!("it does not serve: {}", server.log_tail())));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
