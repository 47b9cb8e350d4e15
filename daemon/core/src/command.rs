//! What may be asked of the controller, what it answers, and how it refuses. Closed lists.
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::balance::Report;
use crate::cpuset::CpuSet;
use crate::curve::{Point, Profile, ProfileKey};
use crate::grant::{Ask, Resize, Vector};
use crate::id::{BodyHash, Fence, Generation, GpuId, JobId, LeaseId, Name, RequestId};
use crate::job::{JobSpec, Policy, RebalanceSpec};
use crate::lease::{Holder, Lease, PhaseName};
use crate::node::{Node, Unavailable};
use crate::unit::{Bytes, Millis, Sms};

mod caller;

pub use caller::Caller;

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Whose lease it will be.
    pub tenant: Name,
    /// Key of idempotence.
    pub request: RequestId,
    /// Digest of the body.
    pub body: BodyHash,
    /// What is asked.
    pub ask: Ask,
    /// False: only counted.
    pub enforced: bool,
    /// How the GPU share can change. None: as the stage declares it; outside a job, by a restart.
    pub resize: Option<Resize>,
    /// Processes that share the GPU memory. None: as the stage declares it; outside a job, 1.
    pub processes: Option<u32>,
    /// Life without a renewal.
    pub ttl: Millis,
    /// Wait in the queue if it does not fit now.
    pub wait: bool,
    /// Higher goes first in the queue.
    pub priority: i32,
}

/// What a reconciler saw of one lease's process tree and GPU contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The lease.
    pub lease: LeaseId,
    /// Fence at the time of looking: an old look is ignored.
    pub fence: Fence,
    /// Generation of the target that was looked for: a look from before a new target proves nothing about it.
    pub generation: Generation,
    /// The tree is proved gone (and off every GPU).
    pub gone: bool,
    /// Core ids that all threads of the tree are bound to; none if nobody looked.
    pub cores: Option<CpuSet>,
    /// What each GPU's client list says of the tree; absent GPUs were not looked at.
    pub gpus: BTreeMap<GpuId, Seen>,
}

/// What a GPU's client list says of one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Contexts.
    pub clients: u32,
    /// The largest SM cap among them.
    pub cap: Sms,
    /// Sum of their memory limits in bytes.
    pub memory: Bytes,
}

/// What may be asked.
#[derive(Clone, Debug)]
pub enum Command {
    /// A share, please.
    Acquire(Box<Acquire>),
    /// This tree holds the lease.
    Attach {
        /// Who asks.
        caller: Caller,
        /// The lease.
        lease: LeaseId,
        /// Its fence.
        fence: Fence,
        /// The tree's root, from the kernel.
        holder: Holder,
    },
    /// A renewal that found its clock closing: what is the verdict?
    Renew {
        /// Who asks.
        caller: Caller,
        /// The lease.
        lease: LeaseId,
        /// Its fence.
        fence: Fence,
    },
    /// The share goes back.
    Release {
        /// Who asks.
        caller: Caller,
        /// The lease.
        lease: LeaseId,
        /// Its fence.
        fence: Fence,
    },
    /// The share is taken back.
    Revoke {
        /// Who asks.
        caller: Caller,
        /// The lease.
        lease: LeaseId,
    },
    /// An admin's word that a quarantined holder is gone.
    Clear {
        /// Who asks.
        caller: Caller,
        /// The lease.
        lease: LeaseId,
        /// Why the admin is sure.
        reason: String,
    },
    /// Nobody waits for this queue entry any more.
    Abandon {
        /// The entry.
        lease: LeaseId,
    },
    /// The worker has applied a directive.
    Acknowledge {
        /// Who asks.
        caller: Caller,
        /// The lease.
        lease: LeaseId,
        /// Its fence.
        fence: Fence,
        /// The directive's.
        generation: Generation,
        /// What the worker says that it has.
        effective: Vector,
    },
    /// What a worker did.
    Report {
        /// Who asks.
        caller: Caller,
        /// The lease.
        lease: LeaseId,
        /// Its fence.
        fence: Fence,
        /// Busy intervals and steps.
        report: Box<Report>,
    },
    /// What a reconciler saw.
    Observe(Box<Observation>),
    /// A job, please.
    Submit {
        /// Who asks.
        caller: Caller,
        /// Key of idempotence.
        request: RequestId,
        /// Digest of the body.
        body: BodyHash,
        /// The job.
        spec: Box<JobSpec>,
    },
    /// Other rules, or a new plan.
    Update {
        /// Who asks.
        caller: Caller,
        /// The job's name.
        job: Name,
        /// New rules.
        rebalance: Option<RebalanceSpec>,
        /// New planner.
        policy: Option<Policy>,
        /// Plan anew.
        replan: bool,
    },
    /// The job is over: its workers are told to give their leases back, and have a grace to do so.
    Cancel {
        /// Who asks.
        caller: Caller,
        /// The job's name.
        job: Name,
    },
    /// A measurement.
    Trial {
        /// The profile.
        key: ProfileKey,
        /// The measurement.
        point: Box<Point>,
        /// In the place of what was measured before at the same place; false: beside it.
        replaces: bool,
    },
    /// A whole profile.
    Import {
        /// Replaces what is there.
        profile: Box<Profile>,
    },
    /// Stop or resume grants.
    Drain {
        /// Who asks.
        caller: Caller,
        /// Stop.
        draining: bool,
    },
    /// What the scanners found.
    Discovered {
        /// Installed.
        node: Box<Node>,
        /// Not available now.
        unavailable: Box<Unavailable>,
    },
    /// The machine has restarted since the ledger was last written: no local process tree is left.
    Rebooted,
    /// Time has passed.
    Tick,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The lease as it is after the command.
    Lease(Box<Lease>),
    /// The request waits in the queue as this lease.
    Waiting(LeaseId),
    /// The job's number.
    Job(JobId),
    /// The job is over.
    Cancelled {
        /// The job's number.
        job: JobId,
        /// Leases whose holders are told to give them back; those without a holder have ended.
        told: Vec<LeaseId>,
    },
    /// Points that the profile has now.
    Points(u32),
    /// Done (or seen already).
    Done,
}

/// A resource that can be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Cores.
    Cores,
    /// SMs of a GPU (or of the best one).
    Sms(Option<GpuId>),
    /// Bytes of a GPU (or of the best one).
    Memory(Option<GpuId>),
    /// GPUs.
    Gpus,
}

impl core::fmt::Display for Resource {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Cores => f.write_str("cores"),
            Self::Sms(Some(g)) => write!(f, "SMs of {g}"),
            Self::Sms(None) => f.write_str("SMs of any GPU"),
            Self::Memory(Some(g)) => write!(f, "memory of {g}"),
            Self::Memory(None) => f.write_str("memory of any GPU"),
            Self::Gpus => f.write_str("GPUs"),
        }
    }
}

/// Why a command is refused. Changes nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// It does not fit now.
    #[error(
        "{} needed than {} free ({} asked, {} free){}", More(*.resource, *.short_by),
        More(*.resource, *.short_by).verb(), Amount(*.resource, *.asked), Amount(*.resource, *.free), Held(.holder)
    )]
    Short {
        /// What is short.
        resource: Resource,
        /// How much was asked.
        asked: u64,
        /// How much is free.
        free: u64,
        /// The difference.
        short_by: u64,
        /// Who holds the most of it, for a person.
        holder: Option<String>,
    },
    /// It can never fit on this node.
    #[error(
        "{} asked and this node has {} to lease: it can never fit",
        Asked(*.resource, *.asked), Amount(*.resource, *.has)
    )]
    Never {
        /// What is short.
        resource: Resource,
        /// How much was asked.
        asked: u64,
        /// How much there is.
        has: u64,
    },
    /// There is no such thing of the caller's.
    #[error("{0} does not exist, or is not yours")]
    NotFound(String),
    /// The lease is over; the caller's right with it.
    #[error("{id} is lost: {how}; stop using its share and ask for a new lease")]
    Lost {
        /// The lease.
        id: LeaseId,
        /// How it ended.
        how: &'static str,
    },
    /// The fence is old.
    // What the fence is now is not told: with it, whoever lost the right could go on with it.
    #[error(
        "the fence of {id} is not {given}: another process has it, or it is ending; stop using its share"
    )]
    Fenced {
        /// The lease.
        id: LeaseId,
        /// What was given.
        given: Fence,
    },
    /// Not possible in this phase.
    #[error("{id} is {}; {wanted}", .phase.as_str())]
    WrongPhase {
        /// The lease.
        id: LeaseId,
        /// Where it is.
        phase: PhaseName,
        /// What would be needed.
        wanted: &'static str,
    },
    /// The same request id with another body.
    #[error("request {0} was made before with another body; a new request needs a new id")]
    OtherBody(RequestId),
    /// The node grants nothing.
    #[error("this node is being drained and grants nothing new")]
    Draining,
    /// A limit.
    #[error("{what} are limited to {limit}")]
    Limit {
        /// What.
        what: &'static str,
        /// How many.
        limit: u64,
    },
    /// Something in the request makes no sense.
    #[error("{field}: {why}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The worker's place is taken.
    #[error("worker {worker} of stage {stage} already has {lease}")]
    SlotTaken {
        /// The stage's name.
        stage: Name,
        /// The worker's index.
        worker: u32,
        /// Who has it.
        lease: LeaseId,
    },
    /// A live job of the tenant has this name.
    #[error("a live job named {0} exists; cancel it or choose another name")]
    NameTaken(Name),
    /// The job waits for room itself.
    #[error("job {0} waits for room; its workers can wait with it, if they say for how long")]
    JobQueued(Name),
    /// Only admins may.
    #[error("only an admin of this node may do that")]
    NotAdmin,
    /// The pre-commit check found an invariant broken. A bug of ours.
    #[error("the ledger refused a change that would have broken {0}; this is a bug of the daemon")]
    Invariant(&'static str),
}

/// Prints an amount for a person: bytes in their unit, all else as a number. (`ErrorInfo` has the exact numbers.)
struct Amount(Resource, u64);
impl core::fmt::Display for Amount {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Resource::Memory(_) => Bytes(self.1).fmt(f),
            _ => self.1.fmt(f),
        }
    }
}

/// Prints what was asked: `9 cores were`, `1 core was`, `100 GiB of memory of gpu 0 were`.
struct Asked(Resource, u64);
impl core::fmt::Display for Asked {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let of = match self.0 {
            Resource::Memory(_) => "of ",
            _ => "",
        };
        let verb = if self.1 == 1 { "was" } else { "were" };
        write!(
            f,
            "{} {of}{} {verb}",
            Amount(self.0, self.1),
            Counted(self.0, self.1)
        )
    }
}

/// Prints what is missing: `9 more cores are`, `1 more core is`, `2 GiB more memory of gpu 0 is`.
struct More(Resource, u64);
impl More {
    const fn verb(&self) -> &'static str {
        match (self.0, self.1) {
            (Resource::Memory(_), _) | (_, 1) => "is",
            _ => "are",
        }
    }
}
impl core::fmt::Display for More {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (amount, what) = (Amount(self.0, self.1), Counted(self.0, self.1));
        write!(f, "{amount} more {what} {}", self.verb())
    }
}

/// Prints a resource of which there are so many.
struct Counted(Resource, u64);
impl core::fmt::Display for Counted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.1 != 1 {
            return self.0.fmt(f);
        }
        match self.0 {
            Resource::Cores => f.write_str("core"),
            Resource::Sms(Some(g)) => write!(f, "SM of {g}"),
            Resource::Sms(None) => f.write_str("SM of any GPU"),
            Resource::Gpus => f.write_str("GPU"),
            memory @ Resource::Memory(_) => memory.fmt(f),
        }
    }
}

/// Prints who holds what is short.
struct Held<'a>(&'a Option<String>);
impl core::fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0
            .as_ref()
            .map_or(Ok(()), |h| write!(f, "; held by {h}"))
    }
}

impl Rejection {
    /// A stable name in upper snake case: `ErrorInfo.reason`.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Short { .. } => "SHORT",
            Self::Never { .. } => "NEVER_FITS",
            Self::NotFound(_) => "NOT_FOUND",
            Self::Lost { .. } => "LEASE_LOST",
            Self::Fenced { .. } => "FENCED",
            Self::WrongPhase { .. } => "WRONG_PHASE",
            Self::OtherBody(_) => "OTHER_BODY",
            Self::Draining => "DRAINING",
            Self::Limit { .. } => "LIMIT",
            Self::Invalid { .. } => "INVALID",
            Self::SlotTaken { .. } => "SLOT_TAKEN",
            Self::NameTaken(_) => "NAME_TAKEN",
            Self::JobQueued(_) => "JOB_QUEUED",
            Self::NotAdmin => "NOT_ADMIN",
            Self::Invariant(_) => "INVARIANT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_refusal_says_amounts_as_a_person_would() {
        let (asked, free, has) = (Bytes::gib(100), Bytes::mib(1536), Bytes::mib(81_408));
        let short = |resource| Rejection::Short {
            resource,
            asked: asked.0,
            free: free.0,
            short_by: (asked - free).0,
            holder: Some("lease 1 of alice (78.5 GiB)".into()),
        };
        let never = |resource, asked, has| Rejection::Never {
            resource,
            asked,
            has,
        };
        for (rejection, expect) in [
            (
                short(Resource::Memory(Some(GpuId(1)))),
                "98.5 GiB more memory of gpu 1 is needed than is free (100 GiB asked, 1536 MiB free); held by lease 1 of alice (78.5 GiB)",
            ),
            (
                never(Resource::Memory(None), asked.0, has.0),
                "100 GiB of memory of any GPU were asked and this node has 79.5 GiB to lease: it can never fit",
            ),
            (
                never(Resource::Sms(Some(GpuId(0))), 133, 132),
                "133 SMs of gpu 0 were asked and this node has 132 to lease: it can never fit",
            ),
            (
                never(Resource::Gpus, 1, 0),
                "1 GPU was asked and this node has 0 to lease: it can never fit",
            ),
            (
                Rejection::Short {
                    resource: Resource::Cores,
                    asked: 1,
                    free: 0,
                    short_by: 1,
                    holder: None,
                },
                "1 more core is needed than is free (1 asked, 0 free)",
            ),
        ] {
            assert_eq!(rejection.to_string(), expect);
        }
    }
}
