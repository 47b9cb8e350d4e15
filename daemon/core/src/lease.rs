//! A lease: a worker's right to a grant until a deadline, and the one table of its legal transitions.
use serde::{Deserialize, Serialize};

use crate::grant::{Ask, Resize, Vector};
use crate::id::{BodyHash, Fence, Generation, LeaseId, Name, RequestId};
use crate::unit::Millis;

/// The root of a worker's process tree, as the kernel told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id in the daemon's namespace.
    pub pid: u32,
    /// The process's start time, in clock ticks since boot (field 22 of `/proc/pid/stat`).
    pub start_time: u64,
    /// User id of the process.
    pub uid: u32,
}

/// Why a lease is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its deadline and the grace have passed.
    Expired,
    /// An admin or the daemon took it back.
    Revoked,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Its holder gave it back.
    Released,
    /// Its deadline passed.
    Expired,
    /// It was taken back.
    Revoked,
    /// Its process tree ended without giving it back, or the machine restarted.
    Failed,
    /// It waited in the queue and nobody waits for it any more.
    Abandoned,
}

impl End {
    /// The name in lower case, as in the ledger.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
    /// What happened to the lease, in words.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Released => "it was released",
            Self::Expired => "it expired",
            Self::Revoked => "it was revoked",
            Self::Failed => "its process tree ended, or the machine restarted",
            Self::Abandoned => "nobody waited for it in the queue",
        }
    }
}

impl Cause {
    /// How a lease ends that is quarantined for it.
    pub const fn end(self) -> End {
        match self {
            Self::Expired => End::Expired,
            Self::Revoked => End::Revoked,
        }
    }
}

/// Where a lease is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits for room; holds nothing.
    Queued,
    /// Capacity is reserved; there is no holder; ends at its TTL without proof.
    Pending,
    /// The process tree is known; from here an end needs proof that it is gone.
    Attached(Holder),
    /// Cores are read back and the GPU environment is handed over.
    Active {
        /// The tree; none for unenforced leases.
        holder: Option<Holder>,
        /// Whether the worker's GPU context was seen with the right limits.
        verified: bool,
    },
    /// Given back; SMs and bytes stay counted until the tree is off the GPU.
    Draining(Holder),
    /// Past its deadline, or revoked; counted until the tree is proved gone.
    Quarantined {
        /// The tree.
        holder: Holder,
        /// Why.
        cause: Cause,
    },
    /// Over; holds nothing.
    Ended(End),
}

/// The names of the phases, for tables, labels and the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseName {
    /// See [`Phase::Queued`].
    Queued,
    /// See [`Phase::Pending`].
    Pending,
    /// See [`Phase::Attached`].
    Attached,
    /// See [`Phase::Active`].
    Active,
    /// See [`Phase::Draining`].
    Draining,
    /// See [`Phase::Quarantined`].
    Quarantined,
    /// See [`Phase::Ended`].
    Ended,
}

impl PhaseName {
    /// The name in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Pending => "pending",
            Self::Attached => "attached",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Quarantined => "quarantined",
            Self::Ended => "ended",
        }
    }
    /// The one table of legal transitions.
    pub const fn may_become(self, next: Self) -> bool {
        use PhaseName::{Active, Attached, Draining, Ended, Pending, Quarantined, Queued};
        matches!(
            (self, next),
            // Granted from the queue; or given up.
            (Queued, Pending | Active | Ended)
            // A holder comes; an unenforced lease needs none; or nobody came.
            | (Pending, Attached | Active | Ended)
            // Confirmed; given back; expired or revoked; or the tree is gone.
            | (Attached, Active | Attached | Draining | Quarantined | Ended)
            // Another process takes it over (attach again); unenforced leases end at once.
            | (Active, Attached | Draining | Quarantined | Ended)
            // A draining tree may have to be revoked.
            | (Draining, Quarantined | Ended)
            // Proved gone.
            | (Quarantined, Ended)
        )
    }
}

impl Phase {
    /// Its name.
    pub const fn name(&self) -> PhaseName {
        match self {
            Self::Queued => PhaseName::Queued,
            Self::Pending => PhaseName::Pending,
            Self::Attached(_) => PhaseName::Attached,
            Self::Active { .. } => PhaseName::Active,
            Self::Draining(_) => PhaseName::Draining,
            Self::Quarantined { .. } => PhaseName::Quarantined,
            Self::Ended(_) => PhaseName::Ended,
        }
    }
    /// The process tree, if there is one.
    pub const fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Attached(h) | Self::Draining(h) | Self::Quarantined { holder: h, .. } => Some(h),
            Self::Active { holder, .. } => holder.as_ref(),
            _ => None,
        }
    }
    /// Whether a holder may renew and use it.
    pub const fn is_usable(&self) -> bool {
        matches!(
            self,
            Self::Pending | Self::Attached(_) | Self::Active { .. }
        )
    }
}

/// A lease in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number.
    pub id: LeaseId,
    /// Whose it is.
    pub tenant: Name,
    /// The request that asked for it.
    pub request: RequestId,
    /// Digest of that request.
    pub body: BodyHash,
    /// What was asked.
    pub ask: Ask,
    /// Whether the daemon enforces it (unenforced leases exist on synthetic pools only).
    pub enforced: bool,
    /// How its GPU share can change.
    pub resize: Resize,
    /// Processes of the worker that share its GPU memory.
    pub processes: u32,
    /// How long it lives without a renewal.
    pub ttl: Millis,
    /// Who may wait for it in the queue: higher goes first.
    pub priority: i32,
    /// Rises when the right to use it changes hands or ends.
    pub fence: Fence,
    /// Rises with each new target.
    pub generation: Generation,
    /// What its holder has, as observed.
    pub held: Vector,
    /// What it is to have.
    pub target: Vector,
    /// The batch size that its worker is to run at, with that target; 1 where its stage has none.
    pub batch: u32,
    /// Where it is in its life.
    pub phase: Phase,
}

impl Lease {
    /// What the pool counts for it: the larger of held and target, resource by resource.
    pub fn counted(&self) -> Vector {
        self.held.max(&self.target)
    }
    /// Whether its GPU share and its batch size stay as they are: they can never change, and somebody may use them.
    pub fn is_pinned(&self) -> bool {
        self.resize == Resize::Fixed && self.phase != Phase::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::PhaseName::{self, *};

    #[test]
    fn the_table_of_transitions_has_no_way_back_from_the_end() {
        const ALL: [PhaseName; 7] = [
            Queued,
            Pending,
            Attached,
            Active,
            Draining,
            Quarantined,
            Ended,
        ];
        for p in ALL {
            assert!(!Ended.may_become(p));
            assert_eq!(
                p.may_become(Ended),
                p != Ended,
                "everything can end: {}",
                p.as_str()
            );
            assert!(!p.may_become(Queued));
        }
        assert!(!Quarantined.may_become(Active) && !Draining.may_become(Active));
    }
}
