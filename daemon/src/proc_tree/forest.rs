//! The process trees of leases: which live processes belong to which lease.
//!
//! A process belongs to a lease if it is its root, descends from it, was seen to belong to it before (a child whose
//! parent has ended hangs below init), or carries the lease's mark in its environment (a child that nobody saw while
//! its parents lived). The nearest root wins: a lease inside another's tree has its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use evenkeel_core::id::LeaseId;
use evenkeel_core::unit::{Millis, Time};

use super::{DEPTH_MAX, ProcError, Process, read, status};
use crate::clock;

/// All environments are searched so often, and whenever a tree looks empty.
const SEARCH_EVERY: Millis = Millis::secs(1);
/// Processes of one tree. Beyond it the tree is a fork bomb, and the pids of a machine are as good as used up.
const TREE_MAX: usize = 100_000;

/// A lease's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The lease.
    pub lease: LeaseId,
    /// The root of its tree.
    pub root: Process,
    /// Its user: marks of other users' processes are not believed.
    pub uid: u32,
}

/// What was found of one lease's tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its live processes, ascending by pid.
    pub processes: BTreeSet<Process>,
    /// Whether all environments were searched in this look.
    pub thorough: bool,
}

/// Remembers who was seen to belong to whom: that cannot be looked up once a parent has ended.
#[derive(Debug)]
pub struct Forest {
    socket: PathBuf,
    known: BTreeMap<LeaseId, BTreeSet<Process>>,
    /// Processes whose environment carries no mark of ours. A new program in the same process is looked at again
    /// only while it is young: a fork that waits for its exec.
    unmarked: BTreeSet<Process>,
    searched: Option<Time>,
}

/// Parents and children as /proc shows them now.
enum Kin {
    /// Ask for each process.
    Listed,
    /// The kernel does not list children: everybody's parent was read.
    Scanned(BTreeMap<u32, Vec<u32>>),
}

impl Kin {
    fn now() -> Result<Self, ProcError> {
        if read::lists_children() {
            return Ok(Self::Listed);
        }
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for pid in read::pids().map_err(ProcError::List)? {
            if let Some(status) = status(pid) {
                children.entry(status.parent).or_default().push(pid);
            }
        }
        Ok(Self::Scanned(children))
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        match self {
            Self::Listed => read::children(pid),
            Self::Scanned(children) => children.get(&pid).cloned().unwrap_or_default(),
        }
    }
}

impl Forest {
    /// For the leases of the daemon that listens at `socket`.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            known: BTreeMap::new(),
            unmarked: BTreeSet::new(),
            searched: None,
        }
    }

    /// Looks at the trees of all leases at once; the answer has an entry for each.
    ///
    /// # Errors
    /// When /proc cannot be listed.
    pub fn look(&mut self, groups: &[Group]) -> Result<BTreeMap<LeaseId, Found>, ProcError> {
        self.known
            .retain(|lease, _| groups.iter().any(|g| g.lease == *lease));
        if groups.is_empty() {
            return Ok(BTreeMap::new());
        }
        let kin = Kin::now()?;
        let roots: BTreeSet<Process> = groups.iter().map(|g| g.root).collect();
        let mut trees: BTreeMap<LeaseId, BTreeSet<Process>> = BTreeMap::new();
        for group in groups {
            let tree = trees.entry(group.lease).or_default();
            descend(&kin, [group.root], group.root, &roots, tree);
        }
        self.recall(&kin, groups, &roots, &mut trees);
        let now = clock::now();
        let due = self.searched.is_none_or(|at| at.after(SEARCH_EVERY) <= now);
        let thorough = due || trees.values().any(BTreeSet::is_empty);
        if thorough {
            self.searched = Some(now);
            self.search(&kin, groups, &roots, &mut trees)?;
        }
        self.known.clone_from(&trees);
        let found = |(lease, processes)| {
            let found = Found {
                processes,
                thorough,
            };
            (lease, found)
        };
        Ok(trees.into_iter().map(found).collect())
    }

    /// Adds those that were seen to belong to a lease before, but not what hangs below another's root by now.
    fn recall(
        &self,
        kin: &Kin,
        groups: &[Group],
        roots: &BTreeSet<Process>,
        trees: &mut BTreeMap<LeaseId, BTreeSet<Process>>,
    ) {
        let placed: BTreeMap<Process, Process> = groups
            .iter()
            .flat_map(|g| trees[&g.lease].iter().map(|p| (*p, g.root)))
            .collect();
        for group in groups {
            let above = ancestors(group.root);
            let known = self.known.get(&group.lease).into_iter().flatten().copied();
            let lost = known
                .filter(|p| !above.contains(p))
                .filter(|p| placed.get(p).is_none_or(|root| *root == group.root));
            let tree = trees.entry(group.lease).or_default();
            let lost: Vec<Process> = lost.filter(|p| !tree.contains(p)).collect();
            descend(kin, lost, group.root, roots, tree);
        }
    }

    /// Finds marked processes that hang below somebody else.
    fn search(
        &mut self,
        kin: &Kin,
        groups: &[Group],
        roots: &BTreeSet<Process>,
        trees: &mut BTreeMap<LeaseId, BTreeSet<Process>>,
    ) -> Result<(), ProcError> {
        let mut placed: BTreeSet<Process> = trees.values().flatten().copied().collect();
        let mut unmarked = BTreeSet::new();
        for pid in read::pids().map_err(ProcError::List)? {
            let Some(process) = read::uid(pid)
                .filter(|uid| groups.iter().any(|g| g.uid == *uid))
                .and_then(|_| status(pid))
                .map(|s| s.process)
            else {
                continue;
            };
            if placed.contains(&process) {
                continue;
            }
            if self.unmarked.contains(&process) && !is_young(process) {
                unmarked.insert(process);
                continue;
            }
            let Some(lease) = read::mark(pid, &self.socket) else {
                unmarked.insert(process);
                continue;
            };
            let group = groups.iter().find(|g| g.lease == lease);
            let Some(group) = group
                .filter(|g| read::uid(pid) == Some(g.uid) && !ancestors(g.root).contains(&process))
            else {
                continue;
            };
            let tree = trees.entry(lease).or_default();
            descend(kin, [process], group.root, roots, tree);
            placed.extend(tree.iter().copied());
        }
        self.unmarked = unmarked;
        Ok(())
    }
}

/// Adds `starts` and their descendants to `tree`, but not the roots of other leases with what is below them.
fn descend(
    kin: &Kin,
    starts: impl IntoIterator<Item = Process>,
    own: Process,
    roots: &BTreeSet<Process>,
    tree: &mut BTreeSet<Process>,
) {
    let foreign = |p: &Process| *p != own && roots.contains(p);
    let mut open: Vec<Process> = starts
        .into_iter()
        .filter(|p| !foreign(p) && super::is_alive(*p))
        .collect();
    while let Some(process) = open.pop() {
        if tree.len() >= TREE_MAX || !tree.insert(process) {
            continue;
        }
        let below = kin.children(process.pid).into_iter();
        open.extend(
            below
                .filter_map(|pid| Some(status(pid)?.process))
                .filter(|p| !foreign(p)),
        );
    }
}

/// The processes above one. None of them belongs to its tree, even if it held the lease before or is marked.
fn ancestors(process: Process) -> BTreeSet<Process> {
    let mut above = BTreeSet::new();
    let mut next = status(process.pid)
        .filter(|s| s.process == process)
        .map(|s| s.parent);
    while let Some(status) = next.filter(|pid| *pid > 0).and_then(status) {
        if above.len() >= DEPTH_MAX || !above.insert(status.process) {
            break;
        }
        next = Some(status.parent);
    }
    above
}

/// Whether a process may still be between fork and exec.
fn is_young(process: Process) -> bool {
    const YOUNG: Millis = Millis::secs(10);
    // USER_HZ is 100 on every architecture that we build for.
    let started = Time(process.start_time.saturating_mul(10));
    started.after(YOUNG) > clock::now()
}
