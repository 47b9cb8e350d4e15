//! The thread that keeps a worker's lease: it applies what the daemon directs, acknowledges what the worker really
//! has, and reports what was done. The heartbeats themselves are the client library's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_client::{DirectiveKind, GuardEvent, GuardState, LeaseGuard, LossReason, Vector};

use crate::meter::Meter;

/// Time between reports: a window of 0.3 s has several.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// A worker that has nothing to report says so this often: it waits, and is not stalled.
const WAITS_EVERY: Duration = Duration::from_secs(60);

/// What a lease's share means to a worker.
pub trait Shares {
    /// Takes a new share and the batch size that goes with it up, live, and says what the worker really has now. No
    /// batch size: the stage has none, or it does not change. A smaller one is to be taken up before the share is, a
    /// larger one after it: the memory that it needs comes with the share.
    ///
    /// # Errors
    /// Why it could not; the worker then keeps what it had, and nothing is acknowledged.
    fn apply(&self, target: &Vector, batch: Option<u32>) -> Result<Vector, String>;
}

/// Why a lease is not held any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// It is over.
    #[error("the lease is lost: {0}")]
    Lost(LossReason),
    /// A share could not be taken up.
    #[error("cannot take up generation {generation} of the lease: {why}")]
    Apply {
        /// The directive's generation.
        generation: u64,
        /// What was wrong.
        why: String,
    },
    /// The daemon wants a restart, which this worker does not support.
    #[error("the daemon wants a restart, but this worker changes its share while it runs")]
    Restart,
}

/// Keeps the lease until `stop` is set or the daemon asks for it back; then gives it back.
///
/// # Errors
/// When the lease is lost or a directive cannot be followed; it is given back then, too, as far as that is possible.
pub fn hold(
    guard: LeaseGuard,
    shares: &dyn Shares,
    meter: &Meter,
    stop: &AtomicBool,
) -> Result<(), HoldError> {
    let mut directives = 0_u64;
    let mut reported = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        let event = guard.wait_event(REPORT_EVERY);
        let drained = meter.drain();
        let nothing = drained.busy.is_empty() && drained.steps.is_empty();
        if !nothing || reported.elapsed() >= WAITS_EVERY {
            reported = Instant::now();
            guard.report(drained.lanes, &drained.busy, &drained.steps);
        }
        match event {
            None => {}
            Some(GuardEvent::State(GuardState::Lost(reason))) => {
                return Err(HoldError::Lost(reason));
            }
            Some(GuardEvent::State(_)) => {}
            Some(GuardEvent::Directive(directive)) => match directive.kind {
                DirectiveKind::Target => {
                    let generation = directive.generation;
                    let effective = shares
                        .apply(&directive.target, directive.batch)
                        .map_err(|why| HoldError::Apply { generation, why })?;
                    directives += 1;
                    tracing::debug!(generation, directives, "took a new share up");
                    guard.acknowledge(generation, effective);
                }
                DirectiveKind::Restart => return Err(HoldError::Restart),
                DirectiveKind::Release | DirectiveKind::Drain => break,
                DirectiveKind::ReclaimMemory => {}
            },
        }
    }
    // Best effort: without a word the lease ends at its TTL.
    if let Err(error) = guard.release_within(Duration::from_secs(1)) {
        tracing::debug!(%error, "the lease was not given back");
    }
    Ok(())
}
