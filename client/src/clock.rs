//! CLOCK_BOOTTIME: the only clock that deadlines and busy intervals are counted on.
//!
//! It runs on while the machine sleeps, and nobody can set it. `Instant` stops in suspend, so a
//! deadline kept on it would be believed for too long.
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// A point in time on CLOCK_BOOTTIME, in microseconds since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(u64);

impl BootTime {
    /// Now.
    pub fn now() -> Self {
        // The call cannot fail with a clock that every Linux since 2.6.39 has; if it did, time zero
        // would make deadlines count as passed, which is the safe side.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Self(0), |t| {
            let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
            let nanos = u64::try_from(t.tv_nsec()).unwrap_or(0);
            Self(seconds * 1_000_000 + nanos / 1_000)
        })
    }
    /// The time at which `instant` was now, supposing that the machine has not slept since.
    pub fn of(instant: Instant) -> Self {
        let now = Self::now();
        Self(now.0.saturating_sub(micros(instant.elapsed())))
    }
    /// From microseconds since the machine started.
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }
    /// Microseconds since the machine started.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
    /// The time `d` later.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(micros(d)))
    }
    /// How long after `earlier` this is; zero if it is before.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Whole microseconds of a duration; the far end of time if there are too many.
pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Whole milliseconds of a duration; the far end of time if there are too many.
pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
