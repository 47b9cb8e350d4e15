//! The machine as it really is: process trees, the CPUs they are bound to, their GPU contexts.
//!
//! Knows nothing of leases. The reconciler looks at it and acts on it; the truth compares it with the books.
use std::collections::BTreeMap;

use evenkeel_core::command::Seen;
use evenkeel_core::converge::{Client, Step, Tree as Observed};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::grant::GpuShare;
use evenkeel_core::id::GpuId;
use evenkeel_core::lease::Holder;

/// A GPU context with the limits that its process had in its environment when it was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The device's number for it.
    pub id: u64,
    /// Its GPU.
    pub gpu: GpuId,
    /// Its limits.
    pub share: GpuShare,
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
}

impl Hardware {
    /// A machine on which nothing runs.
    pub const fn new(shared: CpuSet) -> Self {
        Self {
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
            if !tree.stuck {
                self.trees.remove(&holder.pid);
            }
        }
    }
    /// Everything ends: the machine restarts, and its process ids and start times begin anew.
    pub fn reboot(&mut self) {
        self.trees.clear();
        (self.ticks, self.next_pid) = (0, 100);
    }
    /// Faults stop: what was stopped runs on, what was stuck is stuck no more.
    pub fn calm(&mut self) {
        for tree in self.trees.values_mut() {
            (tree.stopped, tree.stuck, tree.stubborn) = (false, false, false);
        }
        self.trees.retain(|_, t| !t.doomed);
    }
    /// Creates a context.
    pub fn open(&mut self, holder: &Holder, gpu: GpuId, share: GpuShare) {
        let id = self.next_context;
        self.next_context += 1;
        if let Some(tree) = self.tree_mut(holder) {
            tree.contexts.push(Context { id, gpu, share });
        }
    }

    /// What a reconciler sees of a tree: no processes if it is gone.
    pub fn observe(&self, holder: &Holder) -> Observed {
        let Some(tree) = self.tree(holder) else {
            return Observed::default();
        };
        let client = |c: &Context| Client {
            gpu: c.gpu,
            client: c.id,
            pid: holder.pid,
        };
        Observed {
            pids: vec![holder.pid],
            cpus: Some(tree.cpus.clone()),
            clients: tree.contexts.iter().map(client).collect(),
        }
    }
    /// What the client lists of these GPUs say of a tree.
    pub fn seen(
        &self,
        holder: &Holder,
        gpus: impl Iterator<Item = GpuId>,
    ) -> BTreeMap<GpuId, Seen> {
        let of = |gpu: GpuId| {
            let mut seen = Seen::default();
            let tree = self.tree(holder);
            for c in tree
                .iter()
                .flat_map(|t| &t.contexts)
                .filter(|c| c.gpu == gpu)
            {
                seen.clients += 1;
                seen.cap = seen.cap.max(c.share.cap);
                seen.memory += c.share.memory;
            }
            (gpu, seen)
        };
        gpus.map(of).collect()
    }

    /// Does one step of the reconciler.
    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Bind { holder, cpus, .. } => {
                if let Some(tree) = self.tree_mut(holder) {
                    tree.cpus.clone_from(cpus);
                }
            }
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
