//! Backends speak to reality: they look, and do one step at a time. No choices: those are `core::converge`'s.
//!
//! A backend may block; `reconcile` calls it off the async threads, one look after the other. A backend remembers
//! nothing that it can look at, so a new daemon adopts what the last one left.

pub mod affinity;
pub mod cpu;
pub mod emulated;

use std::collections::BTreeMap;

use evenkeel_core::command::Seen;
use evenkeel_core::converge::{Client, Step, Tree};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{GpuId, LeaseId};
use evenkeel_core::node::Gpu;
use evenkeel_core::unit::{Bytes, Sms};

use crate::proc_tree::{self, Process};
use crate::reconcile::Targets;

/// Why a backend could not look or act. The reconciler logs it and looks again; nobody's share changes by it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// /proc.
    #[error("cannot walk the process trees: {0}")]
    Proc(#[from] proc_tree::ProcError),
    /// A thread cannot be bound.
    #[error(
        "cannot bind thread {tid} of process {pid} to CPUs {cpus}: {errno}; the daemon needs the same user as the \
         process, or CAP_SYS_NICE"
    )]
    Bind {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Where to.
        cpus: CpuSet,
        /// What the system said.
        errno: nix::errno::Errno,
    },
    /// The kernel gave fewer CPUs than it was asked for.
    #[error(
        "process tree of {lease} was to run on CPUs {wanted} and got {got}: the others are offline or outside of its \
         cpuset; bring them online, or widen the cpuset"
    )]
    Partly {
        /// The lease.
        lease: LeaseId,
        /// What was asked.
        wanted: CpuSet,
        /// What is.
        got: CpuSet,
    },
    /// The tree makes threads faster than they can be bound.
    #[error(
        "process tree of {lease} still had threads elsewhere after {rounds} rounds; it is tried again"
    )]
    Unstable {
        /// The lease.
        lease: LeaseId,
        /// How often its threads were listed.
        rounds: u32,
    },
    /// A signal.
    #[error(
        "cannot send {signal} to process {pid}: {errno}; the daemon needs the same user, or CAP_KILL"
    )]
    Signal {
        /// Process.
        pid: u32,
        /// Which signal.
        signal: &'static str,
        /// What the system said.
        errno: nix::errno::Errno,
    },
    /// A GPU's device.
    #[error("{gpu}: {what}")]
    Gpu {
        /// Which GPU.
        gpu: GpuId,
        /// What was tried and what was wrong.
        what: String,
    },
}

/// Speaks to one kind of hardware.
pub trait Backend: Send {
    /// For logs and metrics.
    fn name(&self) -> &'static str;

    /// Adds what it sees to the view. Backends that come later see what earlier ones added.
    ///
    /// # Errors
    /// When nothing could be seen; a part that could not is left out of the view.
    fn observe(&mut self, targets: &Targets, view: &mut View) -> Result<(), BackendError>;

    /// Does a step if it is its own to do; says whether it was.
    ///
    /// # Errors
    /// When the step could not be done, or not wholly. It comes again with the next look.
    fn apply(&mut self, targets: &Targets, step: &Step) -> Result<bool, BackendError>;
}

/// What all backends saw in one look.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// By lease. A lease that is absent was not looked at.
    pub trees: BTreeMap<LeaseId, Sight>,
    /// Cores that have gone offline.
    pub offline: CpuSet,
    /// By GPU. A GPU that is absent was not looked at.
    pub gpus: BTreeMap<GpuId, GpuSight>,
}

/// What was seen of one lease's tree.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// Its live processes.
    pub processes: Vec<Process>,
    /// Whether everywhere was searched where processes of the tree can hide.
    pub thorough: bool,
    /// CPUs that every one of its threads is bound to; none: they differ, or there are none.
    pub cpus: Option<CpuSet>,
    /// CPUs that any of its threads may run on.
    pub spread: CpuSet,
    /// Its GPU contexts.
    pub clients: Vec<Client>,
    /// What each GPU's client list says of it; absent GPUs did not answer.
    pub seen: BTreeMap<GpuId, Seen>,
}

impl Sight {
    /// In the core's words.
    pub fn tree(&self) -> Tree {
        Tree {
            pids: self.processes.iter().map(|p| p.pid).collect(),
            cpus: self.cpus.clone(),
            clients: self.clients.clone(),
        }
    }
}

/// What was seen of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSight {
    /// What it is, if it answered.
    pub gpu: Option<Gpu>,
    /// What cannot be leased of it: all if it is lost, else what neighbours take.
    pub unavailable: (Sms, Bytes),
    /// What is wrong with it, for a person.
    pub trouble: Option<String>,
}

impl View {
    /// The leases whose trees a process is in: as seen, or because one of its ancestors is. A process that was found
    /// only now is added to the trees. More than one where a process holds several leases.
    pub fn owners_of(&mut self, pid: u32) -> Vec<LeaseId> {
        let mut chain: Vec<Process> = Vec::new();
        let mut next = pid;
        // Pid 1 is nobody's descendant; parents are older than their children, so this ends.
        while next > 1 && chain.len() < proc_tree::DEPTH_MAX {
            let Some(status) = proc_tree::status(next) else {
                return Vec::new();
            };
            let process = status.process;
            let holds = |(lease, sight): (&LeaseId, &mut Sight)| {
                let found = sight.processes.contains(&process);
                if found {
                    sight.processes.extend(chain.iter().copied());
                }
                found.then_some(*lease)
            };
            let owners: Vec<LeaseId> = self.trees.iter_mut().filter_map(holds).collect();
            if !owners.is_empty() {
                return owners;
            }
            chain.push(process);
            next = status.parent;
        }
        Vec::new()
    }
}
