//! The reconciler and its backends against real processes: affinity on every thread and descendant, drift, children
//! that hide, pids that were reused, trees that are ended, and contexts on an emulated GPU.
//!
//! Needs no privileges. On a machine with one CPU bindings cannot be told apart, and those checks say so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests, and helpers that only tests call"
)]

#[path = "reconcile/cores.rs"]
mod cores;
#[path = "reconcile/gpus.rs"]
mod gpus;
#[path = "reconcile/helper.rs"]
mod helper;
#[path = "reconcile/trees.rs"]
mod trees;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use evenkeel_core::command::{Command, Observation};
use evenkeel_core::converge::{Target, Want};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{Fence, Generation, LeaseId};
use evenkeel_core::lease::Holder;
use evenkeel_core::node::{Core, Gpu, Node, PoolKind, Unavailable};
use evenkeel_core::unit::Time;
use evenkeeld::backend::{Backend, affinity};
use evenkeeld::reconcile::{Looker, Targets};

/// The socket that marks name; nobody listens there. Each test has its own, as each daemon has: a test must not find
/// the marked processes of another.
fn socket() -> PathBuf {
    let thread = std::thread::current();
    format!("/nowhere/{}.sock", thread.name().unwrap_or("main")).into()
}

/// CPUs that these tests may use.
fn cpus() -> CpuSet {
    affinity::read(std::process::id()).unwrap().unwrap()
}

/// One core per CPU; the first is reserved if `reserve`.
fn node(reserve: bool, gpus: Vec<Gpu>) -> Node {
    let core = |cpu| Core {
        id: cpu,
        cpus: CpuSet::range(cpu, cpu),
        numa: 0,
        package: 0,
    };
    Node {
        kind: PoolKind::Local,
        cores: cpus().iter().map(core).collect(),
        reserved_cores: cpus().take(u32::from(reserve)),
        gpus,
    }
}

fn target(lease: u64, holder: &Holder, want: Want) -> Target {
    Target {
        lease: LeaseId(lease),
        fence: Fence(3),
        generation: Generation(2),
        holder: holder.clone(),
        want,
        caps: BTreeMap::new(),
        gpus: BTreeSet::new(),
    }
}

fn looker(node: &Node, backends: Vec<Box<dyn Backend>>) -> Looker {
    Looker::new((node.clone(), Unavailable::default()), backends)
}

fn targets(node: &Node, targets: Vec<Target>) -> Targets {
    Targets {
        node: node.clone(),
        unavailable: Unavailable::default(),
        targets,
        at: Time(0),
    }
}

/// One look; what it says of each lease.
fn look(looker: &mut Looker, targets: &Targets) -> BTreeMap<LeaseId, Observation> {
    let observed = |command| match command {
        Command::Observe(o) => Some((o.lease, *o)),
        _ => None,
    };
    looker
        .look(targets, true)
        .into_iter()
        .filter_map(observed)
        .collect()
}
