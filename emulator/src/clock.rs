//! The clock of the device and of its clients: CLOCK_BOOTTIME, which no one can set and which counts suspension.
//! The model never reads it.

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine booted.
///
/// # Errors
/// When the kernel has no such clock (before Linux 2.6.39).
pub fn boottime_ns() -> Result<u64, Errno> {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    Ok(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
