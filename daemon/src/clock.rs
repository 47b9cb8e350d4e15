//! The daemon's only clock: milliseconds of CLOCK_BOOTTIME, which nobody can set and which runs on in suspend.
//!
//! Wall-clock time exists only in logs. The core never reads a clock; whoever drives it asks here.

use evenkeel_core::unit::Time;
use nix::time::{ClockId, clock_gettime};

/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why there is no clock.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// CLOCK_BOOTTIME.
    #[error("cannot read CLOCK_BOOTTIME; Linux has it since 2.6.39")]
    Boottime(#[source] nix::errno::Errno),
    /// The boot id.
    #[error("cannot read {BOOT_ID}; is /proc mounted?")]
    BootId(#[source] std::io::Error),
    /// The boot id is empty.
    #[error("{BOOT_ID} is empty: leases of this boot could not be told from an earlier one's")]
    NoBootId,
}

/// The clock, and which boot it counts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    boot_id: String,
}

impl Clock {
    /// Reads both once, so that later calls cannot fail.
    ///
    /// # Errors
    /// When the kernel has no such clock or no boot id.
    pub fn open() -> Result<Self, ClockError> {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(ClockError::Boottime)?;
        let boot_id = std::fs::read_to_string(BOOT_ID).map_err(ClockError::BootId)?;
        let boot_id = boot_id.trim().to_owned();
        if boot_id.is_empty() {
            return Err(ClockError::NoBootId);
        }
        Ok(Self { boot_id })
    }

    /// Now.
    pub fn now(&self) -> Time {
        now()
    }

    /// Which boot of the machine this is: a UUID. Times of another boot mean nothing.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }
}

/// Now, in milliseconds since boot, suspension included.
pub fn now() -> Time {
    // [`Clock::open`] has seen that it works. If it ever did not, nobody would expire: the safe side.
    let Ok(time) = clock_gettime(ClockId::CLOCK_BOOTTIME) else {
        return Time(0);
    };
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    Time(seconds.saturating_mul(1_000) + nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_rises_and_the_boot_has_a_name() {
        let clock = Clock::open().unwrap();
        let first = clock.now();
        assert!(first > Time(0));
        assert!(clock.now() >= first);
        assert_eq!(clock.boot_id().len(), 36, "a UUID: {}", clock.boot_id());
    }
}
