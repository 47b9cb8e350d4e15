//! Leases: what is asked for, and what there is.
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::amount::Vector;
use crate::clock::BootTime;

/// Where a lease is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeasePhase {
    /// The daemon said something that this client does not know.
    #[default]
    Unknown,
    /// Waits for room; holds nothing.
    Queued,
    /// Capacity is reserved; nobody has attached yet.
    Pending,
    /// The worker's process tree is known.
    Attached,
    /// Cores are read back and the GPU environment is handed over.
    Active,
    /// Given back; SMs and bytes stay counted until the tree is off the GPU.
    Draining,
    /// Past its deadline, or revoked; counted until the tree is proved gone.
    Quarantined,
    /// Over.
    Ended,
}

impl LeasePhase {
    /// The name in lower case, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Queued => "queued",
            Self::Pending => "pending",
            Self::Attached => "attached",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Quarantined => "quarantined",
            Self::Ended => "ended",
        }
    }
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// Given back by its holder.
    Released,
    /// Its deadline passed.
    Expired,
    /// Taken back.
    Revoked,
    /// Its process tree ended without giving it back, or the machine restarted.
    Failed,
    /// Nobody waited for it in the queue any more.
    Abandoned,
}

impl LeaseEnd {
    /// The name in lower case, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// How a lease's GPU share can change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeMode {
    /// While the worker runs; it applies the new share and acknowledges.
    Live,
    /// By a restart of the worker's process at a step boundary, under the same lease.
    #[default]
    Restart,
    /// Never.
    Fixed,
}

/// A worker's place in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The job's name.
    pub job: String,
    /// The stage's name.
    pub stage: String,
    /// The worker's index in the stage, from 0.
    pub worker: u32,
}

/// A lease and the right to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseRef {
    /// The lease's number.
    pub lease_id: u64,
    /// Its fence: an old one is refused.
    pub fence: u64,
}

/// A lease as its owner (or an admin) sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number; never reused.
    pub id: u64,
    /// Whose it is.
    pub tenant: String,
    /// The request that asked for it.
    pub request_id: String,
    /// Rises when the right to use the lease changes hands or ends.
    pub fence: u64,
    /// Rises with each new target.
    pub generation: u64,
    /// Where it is in its life.
    pub phase: LeasePhase,
    /// How it ended, if it did.
    pub end: Option<LeaseEnd>,
    /// What its holder has, as observed.
    pub held: Vector,
    /// What it is to have.
    pub target: Vector,
    /// Time without a renewal after which the right to use it ends, in milliseconds.
    pub ttl_ms: u64,
    /// Time left until then, in milliseconds, counted from when the answer was sent.
    pub remaining_ms: u64,
    /// The job, stage and worker it is for.
    pub member: Option<Member>,
    /// Process id of the root of the worker's tree; 0 if nobody is attached.
    pub pid: u32,
    /// False on synthetic pools: the ledger counts it and nobody enforces it.
    pub enforced: bool,
    /// What the GPU share is: `reserved`, `capped`, `co-operative`, `unverified` or `none`.
    pub share_kind: String,
    /// How its GPU share can change.
    pub resize: ResizeMode,
    /// Past the deadline by less than the grace: a renewal still saves it.
    pub suspect: bool,
    /// Batch size that its worker is to run at, by the plan of its job; 1 where the stage has none; none outside any
    /// job.
    pub batch: Option<u32>,
    /// Until when the answer allows its use, on this machine's clock: when it was asked for, plus the time left.
    #[serde(skip)]
    pub deadline: BootTime,
}

impl Lease {
    /// The lease and the right to it, for renewals and the like.
    pub fn handle(&self) -> LeaseRef {
        LeaseRef {
            lease_id: self.id,
            fence: self.fence,
        }
    }
    /// [`ttl_ms`](Self::ttl_ms) as a duration.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
    /// [`remaining_ms`](Self::remaining_ms) as a duration.
    pub fn remaining(&self) -> Duration {
        Duration::from_millis(self.remaining_ms)
    }
}

/// How many SMs are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmAsk {
    /// So many, rounded up to the next count that the GPU's backend can enforce.
    Count(u32),
    /// A percentage of the GPU's SMs, 1 to 100, rounded up likewise.
    Percent(u32),
}

/// A share of one GPU, as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuAsk {
    /// Place of the GPU on its node; none: any.
    pub gpu: Option<u32>,
    /// Its SMs.
    pub sms: SmAsk,
    /// GPU memory in bytes, over all processes of the worker.
    pub memory_bytes: u64,
}

/// What a lease is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The share that a job's plan has for one of its workers.
    Worker(Member),
    /// Amounts, outside any job.
    Amounts {
        /// How many cores.
        cores: u32,
        /// GPU shares; at most 16.
        gpus: Vec<GpuAsk>,
    },
}

/// One logical request for a lease: made once, and the same however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The key of idempotence, a time-ordered UUID: the same request gives the same lease.
    pub request_id: Uuid,
    /// What is asked for.
    pub ask: Ask,
    /// Time without a renewal after which it ends; none: the daemon's default.
    pub ttl: Option<Duration>,
    /// How long to wait in the queue; zero: not at all.
    pub wait: Duration,
    /// How its GPU share can change; none: as the stage declares it; outside a job, by a restart.
    pub resize: Option<ResizeMode>,
    /// Processes of the worker that share its GPU memory, at least 1; none: as the stage declares it; outside a job, 1.
    pub processes: Option<u32>,
    /// Higher goes first in the queue.
    pub priority: i32,
    /// Asks for a lease that nobody enforces; only on a synthetic pool.
    pub unenforced: bool,
}

impl LeaseRequest {
    /// A request with a fresh id and the defaults: no wait, the daemon's TTL, the stage's declarations (outside a job:
    /// one process, resized by a restart).
    pub fn new(ask: Ask) -> Self {
        Self {
            request_id: Uuid::now_v7(),
            ask,
            ttl: None,
            wait: Duration::ZERO,
            resize: None,
            processes: None,
            priority: 0,
            unenforced: false,
        }
    }
    /// For a worker of a job: what the plan has for it.
    pub fn worker(job: impl Into<String>, stage: impl Into<String>, worker: u32) -> Self {
        Self::new(Ask::Worker(Member {
            job: job.into(),
            stage: stage.into(),
            worker,
        }))
    }
    /// Cores and GPU shares, outside any job.
    pub fn amounts(cores: u32, gpus: Vec<GpuAsk>) -> Self {
        Self::new(Ask::Amounts { cores, gpus })
    }
    /// With another time to live.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }
    /// Waiting so long in the queue.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
    /// With another way to change its GPU share.
    #[must_use]
    pub fn resize(mut self, resize: ResizeMode) -> Self {
        self.resize = Some(resize);
        self
    }
}

/// A lease whose holder is known, and what its processes need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attached {
    /// With its new fence.
    pub lease: Lease,
    /// Environment variables that the worker's processes need before they create a GPU context.
    pub environment: BTreeMap<String, String>,
}

/// Whether one renewal counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalStatus {
    /// The deadline moved.
    Renewed,
    /// The fence is old: the right to use the lease has ended or gone to another process.
    Fenced,
    /// There is no such lease of the caller's any more. Stop using it.
    Lost,
}

/// The result of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The lease.
    pub lease_id: u64,
    /// Whether it counted.
    pub status: RenewalStatus,
    /// Time left, counted from when the answer was sent.
    pub remaining: Duration,
}
