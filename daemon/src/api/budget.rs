//! How much of what may be under way. Renewals and releases have a budget of their own, so that a flood of other
//! calls cannot keep anybody from keeping or giving back what they have.
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::error;
use super::limits::{CALLS_MAX, STREAMS_MAX, URGENT_CALLS_MAX, WAITS_MAX};

/// What a call draws on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Most calls.
    Call,
    /// Renewals, releases, and what takes back.
    Urgent,
    /// Waits in the queue for a lease.
    Wait,
    /// A session or a watcher.
    Stream,
}

/// A place that is given back when dropped.
pub(super) type Place = OwnedSemaphorePermit;

/// The budgets.
#[derive(Debug)]
pub(super) struct Budget {
    calls: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for Budget {
    fn default() -> Self {
        let of = |n| Arc::new(Semaphore::new(n));
        Self {
            calls: of(CALLS_MAX),
            urgent: of(URGENT_CALLS_MAX),
            waits: of(WAITS_MAX),
            streams: of(STREAMS_MAX),
        }
    }
}

impl Budget {
    /// A place, or the answer that there is none.
    pub(super) fn take(&self, kind: Kind) -> Result<Place, Status> {
        let from = match kind {
            Kind::Call => &self.calls,
            Kind::Urgent => &self.urgent,
            Kind::Wait => &self.waits,
            Kind::Stream => &self.streams,
        };
        from.clone()
            .try_acquire_owned()
            .map_err(|_| error::overloaded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_calls_leaves_renewals_their_places() {
        let budget = Budget::default();
        let flood: Vec<_> = (0..CALLS_MAX)
            .map(|_| budget.take(Kind::Call).unwrap())
            .collect();
        let refused = budget.take(Kind::Call).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(budget.take(Kind::Urgent).is_ok());
        drop(flood);
        assert!(budget.take(Kind::Call).is_ok());
    }
}
