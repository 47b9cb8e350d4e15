//! All policies on all nodes. Nodes are independent: threads take one after the other, and what they come to is added up
//! in the nodes' order, so that the result does not depend on the number of threads.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::policy::Policy;
use super::run::run;
use super::scenario::{Fidelity, Scenario};
use super::tally::Tally;
use super::world::World;
use crate::fail::Failure;

/// What is to be simulated.
#[derive(Clone, Debug)]
pub(super) struct Order<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) policies: &'a [Policy],
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) fidelity: Fidelity,
    /// Threads; none: as many as there are CPUs.
    pub(super) threads: Option<usize>,
}

/// What each policy came to over all nodes; a reason where it is not possible.
pub(super) type Outcomes = Vec<(Policy, Result<Tally, String>)>;

/// A node's results: by policy.
type NodeResults = Vec<Result<Tally, String>>;

/// What threads share.
struct Shared {
    next: AtomicU32,
    failed: AtomicBool,
    sums: Mutex<Sums>,
}

/// Results in the order of nodes: those that came early wait.
#[derive(Default)]
struct Sums {
    total: Option<NodeResults>,
    added: u32,
    early: BTreeMap<u32, NodeResults>,
    failure: Option<Failure>,
}

/// Runs everything; `tick` is called after each policy of each node.
pub(super) fn simulate(order: &Order<'_>, tick: &(dyn Fn() + Sync)) -> Result<Outcomes, Failure> {
    let shared = Shared {
        next: AtomicU32::new(0),
        failed: AtomicBool::new(false),
        sums: Mutex::new(Sums::default()),
    };
    let count = order.scenario.nodes.count;
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = order.threads.unwrap_or(cpus).clamp(1, count as usize);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(order, &shared, tick));
        }
    });
    let sums = match shared.sums.into_inner() {
        Ok(sums) => sums,
        Err(poisoned) => poisoned.into_inner(),
    };
    if let Some(failure) = sums.failure {
        return Err(failure);
    }
    let total = sums.total.unwrap_or_default();
    Ok(order.policies.iter().copied().zip(total).collect())
}

fn work(order: &Order<'_>, shared: &Shared, tick: &(dyn Fn() + Sync)) {
    while !shared.failed.load(Ordering::Relaxed) {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if index >= order.scenario.nodes.count {
            return;
        }
        let result = node(order, index, tick);
        let mut sums = match shared.sums.lock() {
            Ok(sums) => sums,
            Err(poisoned) => poisoned.into_inner(),
        };
        match result {
            Ok(results) => sums.add(index, results),
            Err(failure) => {
                sums.failure = Some(failure);
                shared.failed.store(true, Ordering::Relaxed);
            }
        }
    }
}

fn node(order: &Order<'_>, index: u32, tick: &(dyn Fn() + Sync)) -> Result<NodeResults, Failure> {
    let world = World::new(order.scenario, order.seed, index)?;
    let results = order.policies.iter().map(|policy| {
        let result = run(&world, *policy, order.fidelity, order.seconds);
        tick();
        result
    });
    Ok(results.collect())
}

impl Sums {
    fn add(&mut self, index: u32, results: NodeResults) {
        self.early.insert(index, results);
        while let Some(results) = self.early.remove(&self.added) {
            self.added += 1;
            match &mut self.total {
                None => self.total = Some(results),
                Some(total) => total.iter_mut().zip(results).for_each(add),
            }
        }
    }
}

/// A policy that is not possible on one node is not possible.
fn add((total, more): (&mut Result<Tally, String>, Result<Tally, String>)) {
    match (total.as_mut(), more) {
        (Ok(sum), Ok(more)) => sum.add(&more),
        (Ok(_), Err(why)) => *total = Err(why),
        (Err(_), _) => {}
    }
}
