//! What happened: the closed list of durable changes. Decisions make them, `State::evolve` applies them,
//! the ledger writes them, nothing else changes durable state.
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::allocate::Outlook;
use crate::curve::{Point, Profile, ProfileKey};
use crate::grant::{Member, Vector};
use crate::id::{Fence, Generation, JobId, LeaseId, Name, RequestId};
use crate::job::{Job, Plan, Policy, RebalanceSpec};
use crate::lease::{Cause, End, Holder, Lease};
use crate::node::{Node, Unavailable};

/// A durable change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "a whole job or lease comes once in its life; boxes would stand in everybody's way"
)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// The hardware was seen for the first time, or it changed.
    NodeInstalled {
        /// What there is now.
        node: Node,
    },
    /// Losses and neighbours changed.
    UnavailableChanged {
        /// What cannot be leased now.
        unavailable: Unavailable,
    },
    /// Grants stopped, or go on.
    NodeDrained {
        /// Stopped.
        draining: bool,
    },
    /// A request waits for room.
    LeaseQueued {
        /// Phase `Queued`, empty vectors.
        lease: Lease,
    },
    /// A share is given: a new lease, or one from the queue.
    LeaseGranted {
        /// Phase `Pending`, or `Active` for an unenforced lease.
        lease: Lease,
    },
    /// A process tree holds the lease.
    LeaseAttached {
        /// The lease.
        id: LeaseId,
        /// The tree's root.
        holder: Holder,
        /// The new fence.
        fence: Fence,
    },
    /// The cores are read back and the environment is handed over.
    LeaseActivated {
        /// The lease.
        id: LeaseId,
    },
    /// The worker's GPU contexts were seen with the right limits.
    LeaseVerified {
        /// The lease.
        id: LeaseId,
    },
    /// The worker's GPU contexts were seen with more than the lease counts: from here on nothing is taken for granted.
    LeaseUnverified {
        /// The lease.
        id: LeaseId,
    },
    /// The lease is to have something else.
    LeaseRetargeted {
        /// The lease.
        id: LeaseId,
        /// The new generation.
        generation: Generation,
        /// The new target.
        target: Vector,
        /// The batch size that goes with it.
        batch: u32,
    },
    /// The holder was observed to have something else.
    LeaseHeld {
        /// The lease.
        id: LeaseId,
        /// What it has.
        held: Vector,
    },
    /// Given back by its holder; the tree is still there.
    LeaseDraining {
        /// The lease.
        id: LeaseId,
        /// The new fence: renewing is over.
        fence: Fence,
    },
    /// The right to use it ended; the tree is not proved gone.
    LeaseQuarantined {
        /// The lease.
        id: LeaseId,
        /// The new fence.
        fence: Fence,
        /// Why.
        cause: Cause,
    },
    /// Over; its share is free.
    LeaseEnded {
        /// The lease.
        id: LeaseId,
        /// The last fence.
        fence: Fence,
        /// How.
        how: End,
        /// An admin's reason, where one gave it.
        reason: Option<String>,
    },
    /// Answers that are no longer remembered.
    RequestsForgotten {
        /// Tenant and request.
        requests: Vec<(Name, RequestId)>,
    },
    /// A job is known.
    JobSubmitted {
        /// Phase `Queued`, without a plan.
        job: Job,
    },
    /// The job's quotas count from now on.
    JobAdmitted {
        /// The job.
        id: JobId,
        /// Its first plan; each worker's vector is kept for it.
        plan: Plan,
        /// Others have to give up a part of it first: it is kept piece by piece, as it comes.
        #[serde(default)]
        promised: bool,
    },
    /// The job's plan changed; leases follow by targets.
    JobReplanned {
        /// The job.
        id: JobId,
        /// The new plan.
        plan: Plan,
        /// Measured or asked, and why it pays.
        reason: String,
    },
    /// The balance fired and the shares stay.
    JobStayed {
        /// The job.
        id: JobId,
        /// Why.
        reason: String,
    },
    /// Curves were refitted from co-running rates.
    JobRefitted {
        /// The job.
        id: JobId,
        /// New factors measured/predicted, by stage.
        scale: Vec<f64>,
        /// Points that joined, by stage.
        learned: Vec<Vec<Point>>,
        /// What the stages cost each other, as far as it is known.
        #[serde(default)]
        kappa: Vec<Vec<f64>>,
        /// What the plan in force is expected to do now.
        #[serde(default)]
        outlook: Option<Outlook>,
    },
    /// Rules of the job changed.
    JobUpdated {
        /// The job.
        id: JobId,
        /// When its shares move.
        rebalance: RebalanceSpec,
        /// Who plans it.
        policy: Policy,
    },
    /// What is kept for a worker that has no lease changed.
    SlotReserved {
        /// The worker's place.
        member: Member,
        /// What is kept for it.
        unclaimed: Vector,
    },
    /// Nobody used the job for so long that its quotas are free again; its next Acquire queues.
    JobParked {
        /// The job.
        id: JobId,
    },
    /// The job is over.
    JobEnded {
        /// The job.
        id: JobId,
    },
    /// One measurement joined a profile.
    TrialReported {
        /// The profile.
        key: ProfileKey,
        /// The measurement.
        point: Point,
    },
    /// A profile was replaced.
    ProfileImported {
        /// All of it.
        profile: Profile,
    },
}

impl Event {
    /// Its name in snake case, as in the audit trail.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NodeInstalled { .. } => "node_installed",
            Self::UnavailableChanged { .. } => "unavailable_changed",
            Self::NodeDrained { .. } => "node_drained",
            Self::LeaseQueued { .. } => "lease_queued",
            Self::LeaseGranted { .. } => "lease_granted",
            Self::LeaseAttached { .. } => "lease_attached",
            Self::LeaseActivated { .. } => "lease_activated",
            Self::LeaseVerified { .. } => "lease_verified",
            Self::LeaseUnverified { .. } => "lease_unverified",
            Self::LeaseRetargeted { .. } => "lease_retargeted",
            Self::LeaseHeld { .. } => "lease_held",
            Self::LeaseDraining { .. } => "lease_draining",
            Self::LeaseQuarantined { .. } => "lease_quarantined",
            Self::LeaseEnded { .. } => "lease_ended",
            Self::RequestsForgotten { .. } => "requests_forgotten",
            Self::JobSubmitted { .. } => "job_submitted",
            Self::JobAdmitted { .. } => "job_admitted",
            Self::JobReplanned { .. } => "job_replanned",
            Self::JobStayed { .. } => "job_stayed",
            Self::JobRefitted { .. } => "job_refitted",
            Self::JobUpdated { .. } => "job_updated",
            Self::SlotReserved { .. } => "slot_reserved",
            Self::JobParked { .. } => "job_parked",
            Self::JobEnded { .. } => "job_ended",
            Self::TrialReported { .. } => "trial_reported",
            Self::ProfileImported { .. } => "profile_imported",
        }
    }
    /// The lease concerned.
    pub const fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::LeaseQueued { lease } | Self::LeaseGranted { lease } => Some(lease.id),
            Self::LeaseAttached { id, .. }
            | Self::LeaseActivated { id }
            | Self::LeaseVerified { id }
            | Self::LeaseUnverified { id }
            | Self::LeaseRetargeted { id, .. }
            | Self::LeaseHeld { id, .. }
            | Self::LeaseDraining { id, .. }
            | Self::LeaseQuarantined { id, .. }
            | Self::LeaseEnded { id, .. } => Some(*id),
            _ => None,
        }
    }
    /// The job concerned.
    pub const fn job(&self) -> Option<JobId> {
        match self {
            Self::JobSubmitted { job } => Some(job.id),
            Self::JobAdmitted { id, .. }
            | Self::JobReplanned { id, .. }
            | Self::JobStayed { id, .. }
            | Self::JobRefitted { id, .. }
            | Self::JobUpdated { id, .. }
            | Self::JobParked { id }
            | Self::JobEnded { id } => Some(*id),
            Self::SlotReserved { member, .. } => Some(member.job),
            _ => None,
        }
    }
}
