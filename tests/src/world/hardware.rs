//! The machine as it really is: process trees, the CPUs they are bound to, their GPU contexts; devices that hang.
//!
//! Knows nothing of leases. The reconciler looks at it and acts on it; the truth compares it with the books.
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::command::Seen;
use evenkeel_core::converge::{Client, Step};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::grant::GpuShare;
use evenkeel_core::id::GpuId;
use evenkeel_core::lease::Holder;
use evenkeel_core::unit::Sms;
use evenkeeld::backend::Sight;
use evenkeeld::proc_tree::Process;

/// A GPU context with the limits that its process had in its environment when it was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The device's number for it.
    pub id: u64,
    /// Its GPU.
    pub gpu: GpuId,
    /// Its limits.
    pub share: GpuShare,
    /// More SMs than its limit, which it has taken for itself.
    pub wide: Option<Sms>,
}

/// One process tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Its root.
    pub holder: Holder,
    /// CPUs that all its threads are bound to.
    pub cpus: CpuSet,
    /// Its GPU contexts.
    pub contexts: Vec<Context>,
    /// SIGSTOP: it does nothing, and SIGTERM waits.
    pub stopped: bool,
    /// Ignores SIGTERM.
    pub stubborn: bool,
    /// In an uninterruptible wait: even SIGKILL waits.
    pub stuck: bool,
    /// Told to be killed while it was stuck.
    doomed: bool,
}

/// All trees, and the CPUs that they start on.
#[derive(Clone, Debug)]
pub struct Hardware {
    trees: BTreeMap<u32, Tree>,
    /// Where trees without leased cores run.
    pub shared: CpuSet,
    next_pid: u32,
    next_context: u64,
    ticks: u64,
    /// Devices that hang: they answer nobody, and do not notice that a process ends.
    silent: BTreeSet<GpuId>,
    /// Contexts on such devices whose process has ended: its pid and start time.
    orphans: Vec<((u32, u64), Context)>,
}

impl Hardware {
    /// A machine on which nothing runs.
    pub const fn new(shared: CpuSet) -> Self {
        Self {
            silent: BTreeSet::new(),
            orphans: Vec::new(),
            trees: BTreeMap::new(),
            shared,
            next_pid: 100,
            next_context: 1,
            ticks: 0,
        }
    }
    /// Starts a process tree.
    pub fn spawn(&mut self, uid: u32) -> Holder {
        self.ticks += 1;
        // Process ids come round again soon; the start time tells two trees apart.
        self.next_pid = 100 + (self.next_pid - 99) % 4000;
        while self.trees.contains_key(&self.next_pid) {
            self.next_pid = 100 + (self.next_pid - 99) % 4000;
        }
        let holder = Holder {
            pid: self.next_pid,
            start_time: self.ticks,
            uid,
        };
        let tree = Tree {
            holder: holder.clone(),
            cpus: self.shared.clone(),
            contexts: Vec::new(),
            stopped: false,
            stubborn: false,
            stuck: false,
            doomed: false,
        };
        self.trees.insert(holder.pid, tree);
        holder
    }
    /// The tree, while it lives.
    pub fn tree(&self, holder: &Holder) -> Option<&Tree> {
        self.trees.get(&holder.pid).filter(|t| t.holder == *holder)
    }
    /// The tree, while it lives.
    pub fn tree_mut(&mut self, holder: &Holder) -> Option<&mut Tree> {
        self.trees
            .get_mut(&holder.pid)
            .filter(|t| t.holder == *holder)
    }
    /// All living trees.
    pub fn trees(&self) -> impl Iterator<Item = &Tree> {
        self.trees.values()
    }
    /// The tree ends, and its contexts with it.
    pub fn kill(&mut self, holder: &Holder) {
        if let Some(tree) = self.tree_mut(holder) {
            tree.doomed = true;
            if tree.stuck {
                return;
            }
            let ended = self.trees.remove(&holder.pid);
            let contexts = ended.into_iter().flat_map(|t| t.contexts);
            let left = contexts.filter(|c| self.silent.contains(&c.gpu));
            let key = (holder.pid, holder.start_time);
            self.orphans.extend(left.map(|c| (key, c)));
        }
    }
    /// Everything ends: the machine restarts, and its process ids and start times begin anew.
    pub fn reboot(&mut self) {
        self.trees.clear();
        (self.silent, self.orphans) = Default::default();
        (self.ticks, self.next_pid) = (0, 100);
    }
    /// A device hangs.
    pub fn silence(&mut self, gpu: GpuId) {
        self.silent.insert(gpu);
    }
    /// It answers again, and has noticed which processes have ended.
    pub fn answer(&mut self, gpu: GpuId) {
        self.silent.remove(&gpu);
        self.orphans.retain(|(_, c)| c.gpu != gpu);
    }
    /// Contexts that are still there although their process has ended.
    pub fn left_of(&self, holder: &Holder) -> usize {
        let key = (holder.pid, holder.start_time);
        self.orphans.iter().filter(|(of, _)| *of == key).count()
    }
    /// Faults stop: what was stopped runs on, what was stuck is stuck no more.
    pub fn calm(&mut self) {
        for tree in self.trees.values_mut() {
            (tree.stopped, tree.stuck, tree.stubborn) = (false, false, false);
            tree.contexts.iter_mut().for_each(|c| c.wide = None);
        }
        self.trees.retain(|_, t| !t.doomed);
        (self.silent, self.orphans) = Default::default();
    }
    /// Creates a context.
    pub fn open(&mut self, holder: &Holder, gpu: GpuId, share: GpuShare) {
        let id = self.next_context;
        self.next_context += 1;
        if let Some(tree) = self.tree_mut(holder) {
            tree.contexts.push(Context {
                id,
                gpu,
                share,
                wide: None,
            });
        }
    }

    /// What a reconciler sees of a tree: no processes if it is gone. Of these GPUs, those that hang say nothing.
    pub fn sight(&self, holder: &Holder, gpus: impl Iterator<Item = GpuId>) -> Sight {
        let mut sight = Sight {
            thorough: true,
            ..Sight::default()
        };
        for gpu in gpus.filter(|gpu| !self.silent.contains(gpu)) {
            sight.seen.insert(gpu, Seen::default());
        }
        let Some(tree) = self.tree(holder) else {
            return sight;
        };
        sight.processes.push(Process {
            pid: holder.pid,
            start_time: holder.start_time,
        });
        (sight.cpus, sight.spread) = (Some(tree.cpus.clone()), tree.cpus.clone());
        for c in &tree.contexts {
            let Some(seen) = sight.seen.get_mut(&c.gpu) else {
                continue;
            };
            seen.clients += 1;
            seen.cap = seen.cap.max(c.wide.unwrap_or(c.share.cap));
            seen.memory += c.share.memory;
            sight.clients.push(Client {
                gpu: c.gpu,
                client: c.id,
                pid: holder.pid,
            });
        }
        sight
    }

    /// Does one step of the reconciler.
    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Bind { holder, cpus, .. } => {
                if let Some(tree) = self.tree_mut(holder) {
                    tree.cpus.clone_from(cpus);
                }
            }
            Step::TerminateClient { client, .. } if self.silent.contains(&client.gpu) => {}
            Step::TerminateClient { client, .. } => {
                if let Some(tree) = self.trees.get_mut(&client.pid) {
                    tree.contexts.retain(|c| c.id != client.client);
                }
            }
            Step::Terminate { holder, .. } => {
                if self.tree(holder).is_some_and(|t| !t.stopped && !t.stubborn) {
                    self.kill(holder);
                }
            }
            Step::Kill { holder, .. } => self.kill(holder),
        }
    }
}
