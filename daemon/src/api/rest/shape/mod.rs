//! The objects of the wire as JSON: the same names, units in them; enumerations as words in lower case; 64-bit
//! numbers as numbers; an absent message as `null`. The types here are the schema that `/openapi.json` shows.
mod event;
mod job;
mod lease;
mod node;
mod plan;
mod pool;
mod profile;
mod spec;
mod topology;
mod vector;

use std::collections::BTreeMap;

use evenkeel_proto::v1 as pb;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub(super) use event::{DecisionPage, DecisionRecord, Event, EventPage};
pub(super) use job::{Job, JobPage, Stages};
pub(super) use lease::{Lease, LeasePage};
pub(super) use node::{Health, Node};
pub(super) use plan::{Explanation, PlanOfJob};
pub(super) use pool::Pools;
pub(super) use profile::{FittedProfile, ProfilePage};
pub(super) use topology::Topology;

/// An enumeration of the wire as words; what is not said is no word.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident of $wire:path { $($(#[$says:meta])* $word:ident,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub(super) enum $name {
            $($(#[$says])* $word,)+
        }

        impl $name {
            fn of(wire: $wire) -> Option<Self> {
                use $wire as Wire;
                match wire {
                    Wire::Unspecified => None,
                    $(Wire::$word => Some(Self::$word),)+
                }
            }
        }
    )+};
}

words! {
    /// Where a lease is in its life.
    LeasePhase of pb::LeasePhase {
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
    /// How a lease ended.
    LeaseEnd of pb::LeaseEnd {
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
    /// How a GPU share can change.
    ResizeMode of pb::ResizeMode {
        /// While the worker runs.
        Live,
        /// By a restart of the worker's process at a step boundary.
        Restart,
        /// Never.
        Fixed,
    }
    /// What a stage does.
    StageRole of pb::StageRole {
        /// Steps environments.
        Simulation,
        /// Turns observations into actions, or prompts into tokens.
        Generation,
        /// Updates the policy.
        Training,
        /// Log-probabilities and the like.
        Inference,
        /// Anything else; does not take part in the balance.
        Other,
    }
    /// Where a job is in its life.
    JobPhase of pb::JobPhase {
        /// Waits for room.
        Queued,
        /// Its quotas count in the ledger.
        Admitted,
        /// Over.
        Ended,
    }
}

/// The body of a request that has nothing more to say: `{}`.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, try_from = "BTreeMap<String, IgnoredAny>")]
pub(super) struct Nothing {}

/// By way of a map: a struct of serde's would take `[]` as well.
impl TryFrom<BTreeMap<String, IgnoredAny>> for Nothing {
    type Error = String;

    fn try_from(fields: BTreeMap<String, IgnoredAny>) -> Result<Self, String> {
        match fields.keys().next() {
            None => Ok(Self {}),
            Some(_) => Err("it has fields; nothing is asked for but {}".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_wire() {
        for phase in [pb::LeasePhase::Queued, pb::LeasePhase::Quarantined] {
            let word = serde_json::to_value(LeasePhase::of(phase)).unwrap();
            let wire = phase.as_str_name().replace("LEASE_PHASE_", "");
            assert_eq!(word, wire.to_lowercase());
        }
        assert_eq!(LeasePhase::of(pb::LeasePhase::Unspecified), None);
    }
}
