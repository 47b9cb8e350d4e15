//! Cores, in the plain form: `sched_setaffinity` on every thread of every process of a tree, read back, and repaired
//! when it drifts. Also the signals that end a quarantined tree.
//!
//! A process can undo its affinity by itself (only a cpuset could forbid it): the next look sees it and binds it
//! again. Works without privileges on processes of the daemon's own user. Called by `reconcile`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use evenkeel_core::converge::Step;
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::LeaseId;
use evenkeel_core::node::{Node, PoolKind};
use nix::errno::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Backend, BackendError, Sight, View, affinity};
use crate::proc_tree::{self, Forest, Group, Process};
use crate::reconcile::Targets;

/// How often the threads of a tree are listed until none is elsewhere. A thread made meanwhile inherits the binding
/// of its maker, so two rounds are the rule.
const ROUNDS_MAX: u32 = 16;
/// Which CPUs are online.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Binds and ends process trees.
#[derive(Debug)]
pub struct CpuBackend {
    forest: Forest,
    /// Where each tree was bound to and read back: another affinity later is drift.
    settled: BTreeMap<LeaseId, CpuSet>,
    online: PathBuf,
}

impl CpuBackend {
    /// For the leases of the daemon that listens at `socket`.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            forest: Forest::new(socket),
            settled: BTreeMap::new(),
            online: ONLINE.into(),
        }
    }

    fn trees(
        &mut self,
        targets: &Targets,
    ) -> Result<BTreeMap<LeaseId, proc_tree::Found>, BackendError> {
        let group = |t: &evenkeel_core::converge::Target| Group {
            lease: t.lease,
            root: (&t.holder).into(),
            uid: t.holder.uid,
        };
        let groups: Vec<Group> = targets.targets.iter().map(group).collect();
        Ok(self.forest.look(&groups)?)
    }

    fn processes(
        &mut self,
        targets: &Targets,
        lease: LeaseId,
    ) -> Result<BTreeSet<Process>, BackendError> {
        let found = self.trees(targets)?.remove(&lease);
        Ok(found.map(|f| f.processes).unwrap_or_default())
    }

    /// Binds until a round finds every thread of every process in its place.
    fn bind(
        &mut self,
        targets: &Targets,
        lease: LeaseId,
        cpus: &CpuSet,
    ) -> Result<(), BackendError> {
        if self.settled.remove(&lease).as_ref() == Some(cpus) {
            tracing::warn!(lease = lease.0, %cpus, "a process of the tree changed its own affinity; binding it again");
            metrics::counter!("evenkeel_affinity_drifts_total").increment(1);
        }
        for _ in 0..ROUNDS_MAX {
            let mut moved = 0;
            for process in self.processes(targets, lease)? {
                match bind_process(process, cpus)? {
                    Bound::Whole { threads } => moved += threads,
                    Bound::Partly(got) => {
                        let wanted = cpus.clone();
                        return Err(BackendError::Partly { lease, wanted, got });
                    }
                }
            }
            if moved == 0 {
                self.settled.insert(lease, cpus.clone());
                return Ok(());
            }
        }
        Err(BackendError::Unstable {
            lease,
            rounds: ROUNDS_MAX,
        })
    }

    fn signal(
        &mut self,
        targets: &Targets,
        lease: LeaseId,
        signal: Signal,
    ) -> Result<(), BackendError> {
        let mut failed = None;
        for process in self.processes(targets, lease)? {
            if let Err(error) = send(process, signal) {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn observe(&mut self, targets: &Targets, view: &mut View) -> Result<(), BackendError> {
        view.offline = offline(targets, &self.online);
        let trees = self.trees(targets)?;
        self.settled.retain(|lease, _| trees.contains_key(lease));
        for (lease, found) in trees {
            let sight = view.trees.entry(lease).or_default();
            look(&found.processes, sight);
            sight.processes = found.processes.into_iter().collect();
            sight.thorough = found.thorough;
        }
        Ok(())
    }

    fn apply(&mut self, targets: &Targets, step: &Step) -> Result<bool, BackendError> {
        match step {
            Step::Bind { lease, cpus, .. } => self.bind(targets, *lease, cpus)?,
            Step::Terminate { lease, .. } => self.signal(targets, *lease, Signal::TERM)?,
            Step::Kill { lease, .. } => self.signal(targets, *lease, Signal::KILL)?,
            Step::TerminateClient { .. } => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads back where the threads of a tree may run.
fn look(processes: &BTreeSet<Process>, sight: &mut Sight) {
    let mut common: Option<CpuSet> = None;
    let mut differ = false;
    for process in processes {
        for tid in proc_tree::threads(process.pid) {
            let Ok(Some(cpus)) = affinity::read(tid) else {
                continue;
            };
            sight.spread = sight.spread.union(&cpus);
            differ |= common.as_ref().is_some_and(|c| *c != cpus);
            common = Some(cpus);
        }
    }
    sight.cpus = common.filter(|_| !differ);
}

/// Binds the daemon's own threads to the shared set, so that it does not run on cores that it leases. Called before
/// the runtime starts: threads inherit it. A failure costs nothing but that.
pub fn bind_daemon(node: &Node) {
    if node.kind == PoolKind::Synthetic {
        return;
    }
    let shared = node.shared_cpus();
    for tid in proc_tree::threads(std::process::id()) {
        if let Err(error) = affinity::bind(tid, &shared) {
            tracing::warn!(%error, %shared, "cannot bind the daemon to the shared set; it runs where it may");
        }
    }
}

/// What came of binding a process.
enum Bound {
    /// Every thread is in its place; so many were not before.
    Whole { threads: u32 },
    /// The kernel took CPUs away without a word: they are offline, or outside of the process's cpuset.
    Partly(CpuSet),
}

/// Binds the threads of a process that are elsewhere.
fn bind_process(process: Process, cpus: &CpuSet) -> Result<Bound, BackendError> {
    let mut moved = 0;
    for tid in proc_tree::threads(process.pid) {
        let failed = |errno| BackendError::Bind {
            pid: process.pid,
            tid,
            cpus: cpus.clone(),
            errno,
        };
        let before = affinity::read(tid).map_err(failed)?;
        if before.is_none_or(|before| before == *cpus) {
            continue;
        }
        // For a stranger to be bound, the pid would have to be freed and used again right here: the kernel hands out
        // all other pids first.
        if !proc_tree::is_alive(process) {
            break;
        }
        match affinity::bind(tid, cpus) {
            Ok(true) => moved += 1,
            Ok(false) => continue,
            // A thread that is just ending may be refused in other ways than by its absence.
            Err(_) if !proc_tree::is_alive(process) => break,
            Err(errno) => return Err(failed(errno)),
        }
        match affinity::read(tid).map_err(failed)? {
            Some(after) if after != *cpus => return Ok(Bound::Partly(after)),
            _ => {}
        }
    }
    Ok(Bound::Whole { threads: moved })
}

/// Signals this very process, or nobody: the handle is taken first, then it is compared with who was meant.
fn send(process: Process, signal: Signal) -> Result<(), BackendError> {
    let failed = |errno: rustix::io::Errno| BackendError::Signal {
        pid: process.pid,
        signal: if signal == Signal::KILL {
            "SIGKILL"
        } else {
            "SIGTERM"
        },
        errno: Errno::from_raw(errno.raw_os_error()),
    };
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else {
        return Ok(());
    };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    if !proc_tree::is_alive(process) {
        return Ok(());
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {
            metrics::counter!("evenkeel_signals_total").increment(1);
            Ok(())
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// Cores of the node that have a CPU offline now. Unreadable: none, since the start has seen them all.
fn offline(targets: &Targets, online: &std::path::Path) -> CpuSet {
    let text = std::fs::read_to_string(online).unwrap_or_default();
    match text.parse::<CpuSet>() {
        Ok(online) if !online.is_empty() => targets
            .node
            .cores
            .iter()
            .filter(|core| !core.cpus.is_subset(&online))
            .map(|core| core.id)
            .collect(),
        _ => CpuSet::new(),
    }
}
