//! From what should be and what is to what has to be done: steps for the backends, directives for the workers.
//! Level-triggered: the same difference gives the same steps, however often it is looked at.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::cpuset::CpuSet;
use crate::grant::{Ask, Resize, Vector};
use crate::id::{Fence, Generation, GpuId, LeaseId};
use crate::job::ShrinkFallback;
use crate::lease::{Holder, Lease, Phase};
use crate::node::Node;
use crate::state::Durable;
use crate::unit::{Millis, Sms, Time};
use crate::volatile::Volatile;

/// How hard a quarantined tree is pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Push {
    /// It may still end by itself.
    Wait,
    /// Its GPU contexts are ended and it is told to end (SIGTERM).
    Terminate,
    /// It is ended (SIGKILL).
    Kill,
}

/// What is wanted of a process tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Runs on these CPUs (none: the shared set).
    Bound(CpuSet),
    /// Given back: moves to the shared set.
    Shared,
    /// Ends.
    Gone(Push),
}

/// What should be, for one lease with a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The lease.
    pub lease: LeaseId,
    /// Its fence: what is seen is reported with it.
    pub fence: Fence,
    /// The target's generation: what is seen is reported with it, too.
    pub generation: Generation,
    /// The tree's root.
    pub holder: Holder,
    /// What is wanted of the tree.
    pub want: Want,
    /// SM caps by GPU.
    pub caps: BTreeMap<GpuId, Sms>,
    /// GPUs that the pool counts a share of for the lease, wanted or not: the tree is gone only when each of them has
    /// answered and does not list it.
    pub gpus: BTreeSet<GpuId>,
}

/// Everything that should be.
pub fn target(d: &Durable, v: &Volatile, now: Time) -> Vec<Target> {
    d.leases()
        .values()
        .filter_map(|l| target_of(d, v, now, l))
        .collect()
}

/// What should be, for one lease; none without a holder.
pub fn target_of(d: &Durable, v: &Volatile, now: Time, l: &Lease) -> Option<Target> {
    let holder = l.phase.holder()?.clone();
    let want = match &l.phase {
        Phase::Draining(_) => Want::Shared,
        Phase::Quarantined { .. } => Want::Gone(push(v, now, l.id)),
        _ => Want::Bound(d.node().cpus_of(&l.target.cores)),
    };
    let caps = l.target.gpus.iter().map(|(id, s)| (*id, s.cap)).collect();
    Some(Target {
        lease: l.id,
        fence: l.fence,
        generation: l.generation,
        holder,
        want,
        caps,
        gpus: l.counted().gpus.into_keys().collect(),
    })
}

fn push(v: &Volatile, now: Time, id: LeaseId) -> Push {
    let since = v.quarantined.get(&id).copied().unwrap_or(now);
    let term = since.after(v.settings.quarantine_kill);
    if now < term {
        Push::Wait
    } else if now < term.after(v.settings.kill_after_term) {
        Push::Terminate
    } else {
        Push::Kill
    }
}

/// A GPU context of a tree, as a device's client list shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The GPU.
    pub gpu: GpuId,
    /// The device's number for it.
    pub client: u64,
    /// Its process.
    pub pid: u32,
}

/// What is, for one lease's tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Live processes of the tree.
    pub pids: Vec<u32>,
    /// CPUs that every one of its threads is bound to; none: its threads differ.
    pub cpus: Option<CpuSet>,
    /// Its GPU contexts.
    pub clients: Vec<Client>,
}

/// One thing to do. Leaves no choice to whoever does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bind every thread of the tree to these CPUs.
    Bind {
        /// The lease.
        lease: LeaseId,
        /// The tree.
        holder: Holder,
        /// The CPUs.
        cpus: CpuSet,
    },
    /// End a GPU context.
    TerminateClient {
        /// The lease.
        lease: LeaseId,
        /// The context.
        client: Client,
    },
    /// Tell the tree's processes to end.
    Terminate {
        /// The lease.
        lease: LeaseId,
        /// The tree.
        holder: Holder,
    },
    /// End the tree's processes.
    Kill {
        /// The lease.
        lease: LeaseId,
        /// The tree.
        holder: Holder,
    },
}

/// What has to be done so that `observed` becomes `target`. GPU contexts go before processes.
pub fn steps(node: &Node, target: &[Target], observed: &BTreeMap<LeaseId, Tree>) -> Vec<Step> {
    let shared = node.shared_cpus();
    let mut steps = Vec::new();
    for t in target {
        // A context can outlive its process for a moment, or in a process that its socket was passed to.
        let lives = |tree: &&Tree| !(tree.pids.is_empty() && tree.clients.is_empty());
        let Some(tree) = observed.get(&t.lease).filter(lives) else {
            continue;
        };
        let (lease, holder) = (t.lease, t.holder.clone());
        match &t.want {
            Want::Bound(_) | Want::Shared => {
                let cpus = match &t.want {
                    Want::Bound(cpus) if !cpus.is_empty() => cpus,
                    _ => &shared,
                };
                if !tree.pids.is_empty() && tree.cpus.as_ref() != Some(cpus) {
                    steps.push(Step::Bind {
                        lease,
                        holder,
                        cpus: cpus.clone(),
                    });
                }
            }
            Want::Gone(Push::Wait) => {}
            Want::Gone(push) => {
                steps.extend(
                    tree.clients
                        .iter()
                        .map(|c| Step::TerminateClient { lease, client: *c }),
                );
                steps.push(match push {
                    Push::Kill => Step::Kill { lease, holder },
                    _ => Step::Terminate { lease, holder },
                });
            }
        }
    }
    steps
}

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The lease.
    pub lease: LeaseId,
    /// Its fence.
    pub fence: Fence,
    /// What to do.
    pub order: Order,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Apply the target and acknowledge the generation.
    Target {
        /// Rises with each new target.
        generation: Generation,
        /// What to have.
        target: Vector,
        /// Batch size the plan chose; 1 where the stage has none.
        batch: u32,
    },
    /// Checkpoint at the next step boundary and start again with the target.
    Restart {
        /// Rises with each new target.
        generation: Generation,
        /// What to have.
        target: Vector,
        /// Batch size the plan chose; 1 where the stage has none.
        batch: u32,
    },
    /// Give the lease back: it is lost already, or its job is over and it will be revoked after a grace.
    Release,
    /// Finish what runs and give the lease back: the node is being drained.
    Drain,
}

/// What the holder of a lease has to be told now, if anything. Sent again until it is acknowledged.
pub fn directive(d: &Durable, v: &Volatile, now: Time, lease: &Lease) -> Option<Directive> {
    let order = match &lease.phase {
        Phase::Quarantined { .. } => Order::Release,
        p if !p.is_usable() => return None,
        _ if d.outlives_its_job(lease) => Order::Release,
        _ if v.acknowledged.get(&lease.id) != Some(&lease.generation) && lease.generation.0 > 1 => {
            resize_order(d, v, now, lease)
        }
        _ if d.draining() => Order::Drain,
        _ => return None,
    };
    Some(Directive {
        lease: lease.id,
        fence: lease.fence,
        order,
    })
}

fn resize_order(d: &Durable, v: &Volatile, now: Time, lease: &Lease) -> Order {
    let (generation, target) = (lease.generation, lease.target.clone());
    let job = match lease.ask {
        Ask::Stage(m) => d.jobs().get(&m.job),
        Ask::Alone { .. } => None,
    };
    let batch = lease.batch;
    let overdue = job.is_some_and(|j| {
        let rules = &j.spec.rebalance;
        let since = v.moving.get(&lease.id).copied().unwrap_or(now);
        rules.fallback == ShrinkFallback::Escalate && since.after(rules.shrink_timeout) <= now
    });
    let gpu_changes = lease.held.gpus != lease.target.gpus;
    if gpu_changes && (lease.resize == Resize::Restart || overdue) {
        Order::Restart {
            generation,
            target,
            batch,
        }
    } else {
        Order::Target {
            generation,
            target,
            batch,
        }
    }
}

/// Something about a lease that a person should know. Nothing is done about it here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What it is, in snake case.
    pub name: &'static str,
    /// The lease.
    pub lease: LeaseId,
    /// What is wrong, and what can be done.
    pub text: String,
}

/// What is wrong with leases now. Looks only at those that could have a trouble.
pub fn troubles(d: &Durable, v: &Volatile, now: Time) -> Vec<Trouble> {
    let overdue = v.draining.iter().filter_map(|(id, since)| {
        let lease = late(d, v.settings.drain, *id, *since, now)?;
        let text = format!(
            "{id} was given back more than {} s ago and its process {} still has {}, which stays counted; end the process, or \
             revoke the lease",
            v.settings.drain.0 / 1000,
            lease.phase.holder()?.pid,
            what_is_left(lease),
        );
        Some(trouble("drain_overdue", *id, text))
    });
    let silent = v.heard.iter().filter_map(|(id, at)| {
        let lease = late(d, v.settings.worker_stall, *id, *at, now)?;
        let Ask::Stage(member) = lease.ask else {
            return None;
        };
        let job = d.jobs().get(&member.job)?;
        let text = format!(
            "{} of stage {} of job {} ({id}) has reported nothing for more than {} s, not even that it waits; look at \
             process {}",
            member.worker,
            job.spec.stages.get(usize::from(member.stage.0))?.name,
            job.spec.name,
            v.settings.worker_stall.0 / 1000,
            lease.phase.holder()?.pid,
        );
        Some(trouble("worker_stalled", *id, text))
    });
    let wide = v.wide.iter().filter_map(|(id, (gpu, seen))| {
        let lease = d.leases().get(id)?;
        let share = lease.target.gpus.get(gpu).copied().unwrap_or_default();
        let text = format!(
            "process {} of {id} can use {} and {} of {gpu}, and was given {} and {}: its limits do not hold; restart \
             it with the lease's environment, or revoke the lease",
            lease.phase.holder()?.pid,
            seen.cap,
            seen.memory,
            share.cap,
            share.memory,
        );
        Some(trouble("limits_exceeded", *id, text))
    });
    overdue.chain(silent).chain(wide).collect()
}

const fn trouble(name: &'static str, lease: LeaseId, text: String) -> Trouble {
    Trouble { name, lease, text }
}

/// The lease, if the limit has passed since.
fn late(d: &Durable, limit: Millis, id: LeaseId, since: Time, now: Time) -> Option<&Lease> {
    (since.after(limit) <= now).then(|| d.leases().get(&id))?
}

/// What a lease that drains still counts, for a person.
fn what_is_left(lease: &Lease) -> String {
    let counted = lease.counted();
    let mut all: Vec<String> = Vec::new();
    if !counted.cores.is_empty() {
        all.push(format!("cores {}", counted.cores));
    }
    for (gpu, share) in &counted.gpus {
        all.push(format!("{} and {} of {gpu}", share.guarantee, share.memory));
    }
    all.join(", ")
}
