//! A small node, and small jobs on it, for the tests of this folder.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use evenkeel_core::command::{Caller, Command, Rejection, Reply};
use evenkeel_core::event::Event;
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeel_core::step::{State, step};
use evenkeel_core::unit::{Bytes, Sms, Time};
use evenkeel_core::volatile::Volatile;

pub fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}
pub fn alice() -> Caller {
    Caller::user(name("alice"))
}

/// A daemon that has just started on these books.
pub fn start(durable: Durable, now: Time) -> State {
    let volatile = Volatile::start(&durable, Settings::default(), now, BTreeMap::new());
    State { durable, volatile }
}

/// Eight cores, the first reserved, and two GPUs of 100 SMs.
pub fn node() -> Node {
    let core = |id: u32| Core {
        id,
        cpus: (id..=id).collect(),
        numa: 0,
        package: 0,
    };
    let gpu = |id: u16| Gpu {
        id: GpuId(id),
        uuid: name(&format!("GPU-{id}")),
        model: name("EMU"),
        sms: Sms(100),
        memory: Bytes::gib(80),
        reserved_memory: Bytes(0),
        enforceable: (1..=50).map(|n| Sms(2 * n)).collect(),
        numa: 0,
        backend: GpuBackend::Emulated,
        mode: GpuMode::Enforce,
    };
    Node {
        kind: PoolKind::Local,
        cores: (0..8).map(core).collect(),
        reserved_cores: (0..1).collect(),
        gpus: vec![gpu(0), gpu(1)],
    }
}

/// A daemon that has just started on it.
pub fn fresh() -> State {
    start(Durable::new(node()), Time(0))
}

/// Commands in one step, committed at once: what happened, and the answers.
pub fn run(
    s: &mut State,
    at: u64,
    batch: &[Command],
) -> (Vec<Event>, Vec<Result<Reply, Rejection>>) {
    let settled = step(s, Time(at), batch).settle(s, Time(at));
    let _ = s.next_wakeup(Time(at));
    (settled.events, settled.answers)
}

pub fn stage(n: usize) -> StageSpec {
    let (label, role) = [
        ("sim", Role::Simulation),
        ("gen", Role::Generation),
        ("train", Role::Training),
        ("rest", Role::Other),
    ][n % 4];
    StageSpec {
        name: name(&format!("{label}{n}")),
        role,
        workers: 1,
        processes: 1,
        cores: (1, 2),
        sms: (Sms(2), Sms(50)),
        memory: Bytes::gib(1),
        batches: vec![],
        synchronous: false,
        resize: Resize::Restart,
        profile: None,
    }
}
pub fn job(stages: Vec<StageSpec>) -> JobSpec {
    JobSpec {
        name: name("j"),
        unit: name("step"),
        priority: 0,
        weight: 1.0,
        gpus: vec![],
        gpu_count: 1,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec::default(),
        stages,
    }
}
