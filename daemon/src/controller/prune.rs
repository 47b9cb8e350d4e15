//! When old events leave the audit trail: in slices, soon after each other while there are old ones, so that it keeps
//! up with any rate of commits and none of them waits long. What is old is the ledger's to say.

use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Ledger;

/// How often the trail is looked at when nothing more in it was old.
const LOOK: Duration = Duration::from_secs(10);
/// Events that leave at once: two to three milliseconds, for which commits wait.
const SLICE: u32 = 500;
/// A slice is followed by a pause of so many times what it took, so that commits have four fifths of the time. With
/// a slice in 3 ms that is 33,000 events a second; on a disk that takes 5 ms more it is 12,000.
const PAUSE: u32 = 4;
/// And by this one at least.
const PAUSE_LEAST: Duration = Duration::from_millis(2);

/// The next slice's time.
#[derive(Debug)]
pub(super) struct Pruning {
    due: Instant,
}

impl Pruning {
    /// Due at once: what the last life left may have become old.
    pub(super) fn new() -> Self {
        Self {
            due: Instant::now(),
        }
    }

    /// How long until the next slice.
    pub(super) fn wait(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Takes out what is older than `before_unix_ms`, one slice of it.
    pub(super) async fn slice(&mut self, ledger: &mut Ledger, before_unix_ms: u64) {
        let start = Instant::now();
        let pause = match ledger.prune(before_unix_ms, SLICE).await {
            Ok(gone) => {
                metrics::counter!("evenkeel_events_pruned_total").increment(gone);
                pause(gone, start.elapsed())
            }
            Err(error) => {
                tracing::warn!(%error, "old events could not be taken out of the audit trail");
                LOOK
            }
        };
        self.due = Instant::now() + pause;
    }

    /// Not now: the disk is full.
    pub(super) fn put_off(&mut self) {
        self.due = Instant::now() + LOOK;
    }
}

/// After a slice of so many events that took so long.
fn pause(gone: u64, took: Duration) -> Duration {
    if gone < u64::from(SLICE) {
        LOOK
    } else {
        (took * PAUSE).clamp(PAUSE_LEAST, LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_follow_each_other_while_there_is_something_and_leave_room_for_commits() {
        let ms = Duration::from_millis;
        let check = |gone: u64, took: Duration, expect: Duration| {
            assert_eq!(pause(gone, took), expect, "{gone} in {took:?}")
        };
        check(0, ms(0), LOOK);
        check(499, ms(3), LOOK);
        check(500, ms(3), ms(12));
        check(500, ms(8), ms(32));
        check(500, Duration::from_micros(10), PAUSE_LEAST);
        check(500, Duration::from_secs(60), LOOK);
        // Ten thousand operations a second, an event each, on a disk that takes 5 ms.
        let slices_per_s = Duration::from_secs(1).div_duration_f64(ms(8) + pause(500, ms(8)));
        assert!(slices_per_s * f64::from(SLICE) > 10_000.0);
    }
}
