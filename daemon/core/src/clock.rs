//! The deadline of a lease: one atomic word that renewals move without the disk and without the controller.
//!
//! The word packs the deadline (milliseconds of BOOTTIME, 40 bits: 34 years), the low bits of the fence
//! (22 bits), a bit that says that somebody has renewed it, and a closing bit. A renewal is one compare-and-swap. Before the controller commits an expiry it
//! sets `closing` and reads the deadline again: a renewal that came before wins, one that comes after has to
//! wait for the verdict.
use core::sync::atomic::{AtomicU64, Ordering};

use crate::id::Fence;
use crate::unit::{Millis, Time};

const CLOSING: u64 = 1 << 63;
/// Somebody has renewed it since it was made or reset. The deadline does not tell: a stall's credit moves it, too.
const RENEWED: u64 = 1 << 62;
const DEADLINE_BITS: u32 = 40;
const DEADLINE_MASK: u64 = (1 << DEADLINE_BITS) - 1;
const FENCE_MASK: u64 = (1 << 22) - 1;

/// The word. See the module's text.
#[derive(Debug)]
pub struct LeaseClock(AtomicU64);

/// What came of an attempt to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The deadline moved (or was later already).
    Renewed,
    /// The fence is not the lease's fence: the caller's right has ended or gone to another.
    Fenced,
    /// An expiry is being decided; ask the controller.
    Closing,
}

const fn pack(fence: Fence, deadline: Time) -> u64 {
    let at = if deadline.0 > DEADLINE_MASK {
        DEADLINE_MASK
    } else {
        deadline.0
    };
    at | (fence.0 & FENCE_MASK) << DEADLINE_BITS
}

impl LeaseClock {
    /// A clock that runs out at `deadline`.
    pub const fn new(fence: Fence, deadline: Time) -> Self {
        Self(AtomicU64::new(pack(fence, deadline)))
    }
    /// When it runs out.
    pub fn deadline(&self) -> Time {
        Time(self.0.load(Ordering::Acquire) & DEADLINE_MASK)
    }
    /// Whether anybody has renewed it since it was made or reset.
    pub fn is_renewed(&self) -> bool {
        self.0.load(Ordering::Acquire) & RENEWED != 0
    }
    /// Whether an expiry is being decided.
    pub fn is_closing(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSING != 0
    }
    /// Moves the deadline to `deadline` unless it is later already, if `fence` is right and nobody is closing it.
    pub fn renew(&self, fence: Fence, deadline: Time) -> Renewal {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            if (seen >> DEADLINE_BITS) & FENCE_MASK != fence.0 & FENCE_MASK {
                return Renewal::Fenced;
            }
            if seen & CLOSING != 0 {
                return Renewal::Closing;
            }
            let later = deadline.0.max(seen & DEADLINE_MASK);
            let next = pack(fence, Time(later)) | RENEWED;
            if next == seen {
                return Renewal::Renewed;
            }
            match self
                .0
                .compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Renewal::Renewed,
                Err(now) => seen = now,
            }
        }
    }
    /// Closes the clock if its deadline is at or before `limit`; says whether it did. Only the controller calls this.
    pub fn close_if_due(&self, limit: Time) -> bool {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            if seen & CLOSING == 0 && seen & DEADLINE_MASK > limit.0 {
                return false;
            }
            match self.0.compare_exchange_weak(
                seen,
                seen | CLOSING,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
    /// Opens a closed clock again: the expiry was not committed.
    pub fn reopen(&self) {
        self.0.fetch_and(!CLOSING, Ordering::AcqRel);
    }
    /// Moves the deadline by a stall of the daemon, to `most` at the latest (one TTL from now): nobody loses time
    /// that the daemon lost, and who renews before the daemon has noticed its stall does not get it on top.
    pub fn extend(&self, by: Millis, most: Time) {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let deadline = seen & DEADLINE_MASK;
            let later = deadline
                .saturating_add(by.0)
                .min(most.0.max(deadline))
                .min(DEADLINE_MASK);
            let next = seen & !DEADLINE_MASK | later;
            match self
                .0
                .compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
    /// Sets fence and deadline anew (attach, restart, quarantine). Only the controller calls this.
    pub fn reset(&self, fence: Fence, deadline: Time) {
        self.0.store(pack(fence, deadline), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_before_closing_wins_and_one_after_waits() {
        let clock = LeaseClock::new(Fence(1), Time(100));
        assert_eq!(clock.renew(Fence(1), Time(200)), Renewal::Renewed);
        assert!(!clock.close_if_due(Time(150)), "renewed in time");
        assert_eq!(clock.renew(Fence(2), Time(300)), Renewal::Fenced);
        assert!(clock.close_if_due(Time(200)));
        assert_eq!(clock.renew(Fence(1), Time(300)), Renewal::Closing);
        clock.reopen();
        assert_eq!(clock.renew(Fence(1), Time(300)), Renewal::Renewed);
        assert_eq!(clock.deadline(), Time(300));
        clock.reset(Fence(2), Time(400));
        assert_eq!(clock.renew(Fence(1), Time(500)), Renewal::Fenced);
        assert_eq!(
            clock.renew(Fence(2), Time(350)),
            Renewal::Renewed,
            "never moves a deadline back"
        );
        assert_eq!(clock.deadline(), Time(400));
    }

    #[test]
    fn a_stall_s_credit_ends_one_ttl_from_now() {
        for (deadline, by, most, expect) in [
            (100, 50, 1_000, 150),
            (100, 5_000, 1_000, 1_000),
            (1_000, 5_000, 1_000, 1_000),
            (1_200, 5_000, 1_000, 1_200), // never back
        ] {
            let clock = LeaseClock::new(Fence(1), Time(deadline));
            clock.extend(Millis(by), Time(most));
            assert_eq!(clock.deadline(), Time(expect), "{deadline} by {by}");
        }
    }
}
