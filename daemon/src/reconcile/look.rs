//! One look: see, do what is to be done, see again, and say what was seen. Blocking; `reconcile` calls it.

use std::collections::BTreeMap;

use evenkeel_core::command::{Command, Observation};
use evenkeel_core::converge::{self, Step, Target, Tree, Want};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::LeaseId;
use evenkeel_core::node::{Node, Unavailable};
use evenkeel_core::unit::{Millis, Time};

use super::{Targets, group};
use crate::backend::{Backend, Sight, View};
use crate::clock;

/// The same observation is told again after so long: whatever was lost on the way is repaired by it.
const TELL_AGAIN: Millis = Millis::secs(1);
/// A failure that lasts is logged so often.
const LOG_AGAIN: Millis = Millis::secs(30);

/// Looks at the machine through its backends.
pub struct Looker {
    backends: Vec<Box<dyn Backend>>,
    installed: Node,
    lost: Unavailable,
    told: BTreeMap<LeaseId, (Time, Observation)>,
    told_hardware: (Time, Node, Unavailable),
    logged: BTreeMap<String, Time>,
    troubles: Vec<String>,
}

impl std::fmt::Debug for Looker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.backends.iter().map(|b| b.name()).collect();
        f.debug_struct("Looker")
            .field("backends", &names)
            .finish_non_exhaustive()
    }
}

impl Looker {
    /// `found`: what discovery installed, and what of it is not available.
    pub fn new(found: (Node, Unavailable), backends: Vec<Box<dyn Backend>>) -> Self {
        let (installed, lost) = found;
        Self {
            backends,
            told_hardware: (clock::now(), installed.clone(), lost.clone()),
            installed,
            lost,
            told: BTreeMap::new(),
            logged: BTreeMap::new(),
            troubles: Vec::new(),
        }
    }

    /// What was wrong in the last look, for a person.
    pub fn troubles(&self) -> &[String] {
        &self.troubles
    }

    /// Looks once and converges. `asked`: everything is told, even what has not changed.
    pub fn look(&mut self, targets: &Targets, asked: bool) -> Vec<Command> {
        let started = std::time::Instant::now();
        self.troubles.clear();
        let mut view = self.observe(targets);
        let wanted = group::joined(&targets.targets);
        let steps = converge::steps(&targets.node, &wanted, &trees(&view));
        let mut acted = false;
        for step in &steps {
            acted |= self.apply(targets, step);
        }
        if acted {
            // Only what is read back counts.
            view = self.observe(targets);
        }
        for trouble in view.gpus.values().filter_map(|gpu| gpu.trouble.clone()) {
            self.trouble("gpu", trouble);
        }
        if !view.offline.is_empty() {
            self.trouble("cpu", format!("cores {} are offline", view.offline));
        }
        let mut commands = self.hardware(targets, &view);
        self.tell(targets, &view, asked, &mut commands);
        metrics::histogram!("evenkeel_reconcile_seconds").record(started.elapsed());
        commands
    }

    fn observe(&mut self, targets: &Targets) -> View {
        let mut view = View::default();
        let mut backends = std::mem::take(&mut self.backends);
        for backend in &mut backends {
            if let Err(error) = backend.observe(targets, &mut view) {
                self.trouble(backend.name(), error.to_string());
            }
        }
        self.backends = backends;
        view
    }

    fn apply(&mut self, targets: &Targets, step: &Step) -> bool {
        tracing::debug!(?step, "converging");
        let mut done = false;
        let mut failures = Vec::new();
        for backend in &mut self.backends {
            match backend.apply(targets, step) {
                Ok(was_ours) => done |= was_ours,
                Err(error) => {
                    // It may have been done in part.
                    done = true;
                    failures.push((backend.name(), error.to_string()));
                }
            }
        }
        for (backend, failure) in failures {
            metrics::counter!("evenkeel_reconcile_failures_total", "backend" => backend)
                .increment(1);
            self.trouble(backend, failure);
        }
        done
    }

    /// Something is wrong. What lasts would fill the log.
    fn trouble(&mut self, source: &'static str, what: String) {
        let now = clock::now();
        self.logged.retain(|_, at| at.after(LOG_AGAIN) > now);
        if !self.logged.contains_key(&what) {
            self.logged.insert(what.clone(), now);
            tracing::warn!(source, what, "wrong on this machine; it is looked at again");
        }
        if !self.troubles.contains(&what) {
            self.troubles.push(what);
        }
    }

    /// What has changed of the hardware. What the ledger does not say, although it was told, was refused or lost on
    /// the way (a full disk, say): it is told again.
    fn hardware(&mut self, targets: &Targets, view: &View) -> Vec<Command> {
        let mut node = self.installed.clone();
        let mut unavailable = self.lost.clone();
        for core in view.offline.iter() {
            unavailable.cores.insert(core);
        }
        for gpu in &mut node.gpus {
            let Some(sight) = view.gpus.get(&gpu.id) else {
                continue;
            };
            if let Some(found) = &sight.gpu {
                *gpu = found.clone();
            }
            // It answered or it did not; what start-up said of it is old.
            unavailable.gpus.remove(&gpu.id);
            if sight.unavailable != Default::default() {
                unavailable.gpus.insert(gpu.id, sight.unavailable);
            }
        }
        self.installed = node.clone();
        let now = clock::now();
        let (at, told, told_lost) = &self.told_hardware;
        let is_told = *told == node && *told_lost == unavailable;
        let is_known = targets.node == node && targets.unavailable == unavailable;
        if is_told && (is_known || at.after(TELL_AGAIN) > now) {
            return Vec::new();
        }
        self.told_hardware = (now, node.clone(), unavailable.clone());
        vec![Command::Discovered {
            node: node.into(),
            unavailable: unavailable.into(),
        }]
    }

    fn tell(&mut self, targets: &Targets, view: &View, asked: bool, commands: &mut Vec<Command>) {
        let now = clock::now();
        self.told
            .retain(|lease, _| targets.targets.iter().any(|t| t.lease == *lease));
        for target in &targets.targets {
            let Some(sight) = view.trees.get(&target.lease) else {
                continue;
            };
            let others = group::others(&targets.targets, target);
            let seen = observation(&targets.node, target, sight, &others);
            let known = self
                .told
                .get(&target.lease)
                .is_some_and(|(at, old)| *old == seen && at.after(TELL_AGAIN) > now);
            if asked || !known {
                self.told.insert(target.lease, (now, seen.clone()));
                commands.push(Command::Observe(seen.into()));
            }
        }
    }
}

fn trees(view: &View) -> BTreeMap<LeaseId, Tree> {
    let tree = |(lease, sight): (&LeaseId, &Sight)| (*lease, sight.tree());
    view.trees.iter().map(tree).collect()
}

/// What was seen, in the core's words. `others`: CPUs that the same tree has through other leases. Pure: the simulated
/// world says with it what it sees, too.
pub fn observation(node: &Node, target: &Target, sight: &Sight, others: &CpuSet) -> Observation {
    // Gone is a proof: nobody is left, it was looked everywhere, and every GPU that a share is counted of for the lease
    // (also one that it is to have no more) has answered and does not list the tree.
    let off_gpus =
        sight.clients.is_empty() && target.gpus.iter().all(|gpu| sight.seen.contains_key(gpu));
    let gone = sight.processes.is_empty() && sight.thorough && off_gpus;
    let looked = !sight.processes.is_empty() && !sight.spread.is_empty();
    Observation {
        lease: target.lease,
        fence: target.fence,
        generation: target.generation,
        gone,
        cores: looked.then(|| cores_seen(node, target, sight, others)),
        gpus: sight.seen.clone(),
    }
}

/// The cores that a tree may run on; none for a tree that has no cores of its own and is on exactly the shared set.
fn cores_seen(node: &Node, target: &Target, sight: &Sight, others: &CpuSet) -> CpuSet {
    let wants_own = matches!(&target.want, Want::Bound(cpus) if !cpus.is_empty());
    if !wants_own && sight.cpus.as_ref() == Some(&node.shared_cpus()) {
        return CpuSet::new();
    }
    let spread = sight.spread.difference(others);
    node.cores
        .iter()
        .filter(|core| !core.cpus.is_disjoint(&spread))
        .map(|core| core.id)
        .collect()
}
