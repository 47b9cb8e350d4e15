//! CPU affinity of threads: read it, set it. One thread at a time, as the kernel has it; trees are `cpu`'s.

use evenkeel_core::cpuset::CpuSet;
use nix::errno::Errno;
use nix::sched::{self, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// CPUs that a thread may run on; none if there is no such thread (any more).
///
/// # Errors
/// What the system says, such as EINVAL on a machine with more than 1,024 CPUs.
pub fn read(tid: u32) -> Result<Option<CpuSet>, Errno> {
    match sched_getaffinity(thread(tid)) {
        Ok(set) => Ok(Some(from_kernel(&set))),
        Err(Errno::ESRCH) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Binds a thread; says whether there was one.
///
/// # Errors
/// EPERM for another user's thread; EINVAL where none of the CPUs may be used.
pub fn bind(tid: u32, cpus: &CpuSet) -> Result<bool, Errno> {
    let mut set = sched::CpuSet::new();
    for cpu in cpus.iter() {
        // The kernel drops CPUs that do not exist, so those that its set cannot hold are no loss; read back anyway.
        let _ = set.set(cpu as usize);
    }
    match sched_setaffinity(thread(tid), &set) {
        Ok(()) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn thread(tid: u32) -> Pid {
    // Pids are at most 2^22; 0 would be the caller itself, and no thread in /proc has it.
    Pid::from_raw(i32::try_from(tid).unwrap_or(i32::MAX))
}

fn from_kernel(set: &sched::CpuSet) -> CpuSet {
    (0..sched::CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect()
}
