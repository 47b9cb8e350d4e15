//! The token bucket: so many of something a second, over a burst after a quiet time. For whatever has to be bounded by
//! how often it happens; whose bucket is whose is the caller's (`api::rate`, `audit::pace`).
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// So many a second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    per_second: NonZeroU32,
    burst: NonZeroU32,
}

impl RateLimit {
    /// None: no limit. `burst` 0 stands for two seconds' worth.
    pub fn new(per_second: u32, burst: u32) -> Option<Self> {
        let per_second = NonZeroU32::new(per_second)?;
        let burst = NonZeroU32::new(burst).unwrap_or_else(|| per_second.saturating_mul(TWO));
        Some(Self { per_second, burst })
    }

    /// A fixed one. Zeros stand for one.
    pub(crate) const fn fixed(per_second: u32, burst: u32) -> Self {
        let one = NonZeroU32::MIN;
        Self {
            per_second: one.saturating_add(per_second.saturating_sub(1)),
            burst: one.saturating_add(burst.saturating_sub(1)),
        }
    }

    /// So many at once.
    pub const fn burst(self) -> u32 {
        self.burst.get()
    }

    /// How long a token takes to come.
    fn gap(self) -> Duration {
        Duration::from_secs(1) / self.per_second.get()
    }
}

const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// A bucket, as the time at which it is full again (GCRA: one number, and nothing to refill).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes a token; if there is none, says when there will be one.
    pub(crate) fn take(&mut self, limit: RateLimit, now: Instant) -> Result<(), Duration> {
        let full_at = self.full_at.map_or(now, |at| at.max(now));
        let after = full_at + limit.gap();
        let room = limit.gap() * limit.burst.get();
        match after.checked_duration_since(now + room) {
            Some(early) if !early.is_zero() => Err(early),
            _ => {
                self.full_at = Some(after);
                Ok(())
            }
        }
    }

    /// Whether it has all its tokens: then it says nothing that a new one would not.
    pub(crate) fn is_full(self, now: Instant) -> bool {
        self.full_at.is_none_or(|at| at <= now)
    }
}
