//! Binding threads to cores, and the clocks that busy intervals are counted on. Thin calls to the kernel.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, gettid};

/// Why a thread was not bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot bind thread {thread} to CPUs {cpus:?}: {reason}")]
pub struct BindError {
    thread: i32,
    cpus: Vec<u32>,
    reason: nix::errno::Errno,
}

/// A thread of this process, to be bound by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread(Pid);

impl Thread {
    /// The calling thread.
    pub fn current() -> Self {
        Self(gettid())
    }

    /// Binds the thread to these CPUs, at once.
    ///
    /// # Errors
    /// When a CPU does not exist or may not be used.
    pub fn bind(self, cpus: &[u32]) -> Result<(), BindError> {
        let failed = |reason| BindError {
            thread: self.0.as_raw(),
            cpus: cpus.to_vec(),
            reason,
        };
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(*cpu as usize).map_err(failed)?;
        }
        sched_setaffinity(self.0, &set).map_err(failed)
    }

    /// The CPUs that the thread may use; empty if it is gone.
    pub fn cpus(self) -> Vec<u32> {
        let Ok(set) = sched_getaffinity(self.0) else {
            return Vec::new();
        };
        (0..CpuSet::count())
            .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
            .map(|cpu| cpu as u32)
            .collect()
    }
}

/// CLOCK_BOOTTIME in nanoseconds: what the emulated GPU and the client library count on as well.
pub fn boottime_ns() -> u64 {
    read(ClockId::CLOCK_BOOTTIME)
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: ClockId) -> u64 {
    // Neither clock can fail on a Linux that runs this.
    clock_gettime(clock).map_or(0, |t| {
        let part = |value: i64| u64::try_from(value).unwrap_or(0);
        part(t.tv_sec()) * 1_000_000_000 + part(t.tv_nsec())
    })
}
