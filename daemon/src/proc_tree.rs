//! Process identity and process trees, from /proc: who a pid is (it and its start time), and who descends from whom.
//!
//! Nobody is touched here. Used by the backends (which processes a lease's tree has) and by the API (who holds a
//! lease: the peer of a socket). A pid alone is never trusted: pids are reused, pid and start time are not.

mod forest;
mod read;
#[cfg(test)]
mod tests;

use evenkeel_core::lease::Holder;

pub use forest::{Forest, Found, Group};
pub use read::{LEASE_MARK, SOCKET_MARK, Status, children, status, threads};

/// The longest chain of parents that is followed. Deeper trees do not exist outside of fork bombs.
pub const DEPTH_MAX: usize = 1_024;

/// A process, for as long as it lives: pids are reused, pairs of pid and start time are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Its id in the daemon's pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_time: u64,
}

/// Why /proc does not say.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// There is no such process (any more).
    #[error(
        "process {0} does not exist (any more); name a process that runs, in the daemon's pid namespace"
    )]
    NoProcess(u32),
    /// /proc itself.
    #[error("cannot list /proc: {0}; is it mounted, and not with hidepid?")]
    List(#[source] std::io::Error),
}

impl From<&Holder> for Process {
    fn from(holder: &Holder) -> Self {
        Self {
            pid: holder.pid,
            start_time: holder.start_time,
        }
    }
}

/// A process as the holder of a lease.
///
/// # Errors
/// When it does not exist.
pub fn holder(pid: u32) -> Result<Holder, ProcError> {
    let status = status(pid).ok_or(ProcError::NoProcess(pid))?;
    Ok(Holder {
        pid,
        start_time: status.process.start_time,
        uid: read::uid(pid).ok_or(ProcError::NoProcess(pid))?,
    })
}

/// Whether a process is this very one, and lives.
pub fn is_alive(process: Process) -> bool {
    status(process.pid).is_some_and(|s| s.process == process)
}

/// Whether `pid` is `ancestor` or descends from it.
pub fn descends_from(pid: u32, ancestor: Process) -> bool {
    std::iter::successors(status(pid), |s| status(s.parent).filter(|_| s.parent > 0))
        .take(DEPTH_MAX)
        .any(|s| s.process == ancestor)
}
