//! What the ledger's tests share: a node, leases and jobs as values, and a seeded source of legal happenings.
use std::collections::BTreeMap;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::grant::{Ask, GpuShare, Resize, Vector};
use evenkeel_core::id::{
    BodyHash, Fence, Generation, GpuId, JobId, LeaseId, Name, RequestId, StageId,
};
use evenkeel_core::job::{
    Job, JobPhase, JobSpec, Plan, Policy, RebalanceSpec, Role, SmMode, StagePlan, StageSpec,
};
use evenkeel_core::lease::{Holder, Lease, Phase};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms};
use evenkeeld::ledger::{self, Config, Opened};

/// A random number generator of three lines (splitmix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Less than `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len() as u64) as usize).cloned()
    }
    pub(crate) fn rate(&mut self) -> Rate {
        Rate::clamped(self.next() as f64 / 7.0e13)
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn node(cores: u32, gpus: u16) -> Node {
    Node {
        kind: PoolKind::Local,
        cores: (0..cores).map(core).collect(),
        reserved_cores: CpuSet::range(0, 0),
        gpus: (0..gpus).map(gpu).collect(),
    }
}

pub(crate) fn core(id: u32) -> Core {
    Core {
        id,
        cpus: [id, id + 1000].into_iter().collect(),
        numa: (id % 2) as u16,
        package: 0,
    }
}

pub(crate) fn gpu(id: u16) -> Gpu {
    Gpu {
        id: GpuId(id),
        uuid: name(&format!("GPU-{id}")),
        model: name("H100"),
        sms: Sms(132),
        memory: Bytes::gib(80),
        reserved_memory: Bytes::mib(512),
        enforceable: (1..=66).map(|n| Sms(2 * n)).collect(),
        numa: 0,
        backend: GpuBackend::Emulated,
        mode: GpuMode::Enforce,
    }
}

pub(crate) fn share(sms: u32, memory: Bytes) -> GpuShare {
    GpuShare {
        guarantee: Sms(sms),
        cap: Sms(sms + 2),
        memory,
    }
}

/// Cores, and a share of GPU 0 where `sms` is not zero.
pub(crate) fn vector(cores: impl IntoIterator<Item = u32>, sms: u32) -> Vector {
    let gpus = [(GpuId(0), share(sms, Bytes::gib(u64::from(sms) / 4)))];
    Vector {
        cores: cores.into_iter().collect(),
        gpus: gpus
            .into_iter()
            .filter(|_| sms > 0)
            .collect::<BTreeMap<_, _>>(),
    }
}

/// A pending lease for `target`.
pub(crate) fn lease(id: u64, target: Vector) -> Lease {
    Lease {
        id: LeaseId(id),
        tenant: name(["alice", "bob", "größe"][(id % 3) as usize]),
        request: RequestId(u128::from(id) << 64 | 0xfeed),
        body: BodyHash(u64::MAX - id),
        ask: Ask::Alone {
            cores: target.cores.len(),
            gpus: Vec::new(),
        },
        enforced: true,
        resize: Resize::Live,
        processes: 1,
        ttl: Millis::secs(30),
        priority: -1,
        fence: Fence(id),
        generation: Generation(0),
        held: Vector::empty(),
        target,
        batch: (id % 3) as u32 + 1,
        phase: Phase::Pending,
    }
}

pub(crate) fn holder(pid: u32) -> Holder {
    Holder {
        pid,
        start_time: u64::from(pid) << 20,
        uid: 1000,
    }
}

/// A queued job of two stages, with so many workers each.
pub(crate) fn job(id: u64, workers: u32) -> Job {
    let stage = |stage: &str, role| StageSpec {
        name: name(stage),
        role,
        workers,
        processes: 1,
        cores: (1, 8),
        sms: (Sms(0), Sms(132)),
        memory: Bytes::gib(4),
        batches: vec![1, 2, 4],
        synchronous: true,
        resize: Resize::Restart,
        profile: None,
    };
    Job {
        id: JobId(id),
        tenant: name("alice"),
        request: RequestId(u128::from(id) << 64 | 0x0b),
        body: BodyHash(id),
        arrival: LeaseId(id + 1),
        spec: JobSpec {
            name: name(&format!("job-{id}")),
            unit: name("env_step"),
            priority: 0,
            weight: 1.0,
            gpus: vec![GpuId(0)],
            gpu_count: 1,
            groups: 2,
            policy: Policy::Waterfill,
            sm_mode: SmMode::Reserve,
            rebalance: RebalanceSpec::default(),
            stages: vec![
                stage("sim", Role::Simulation),
                stage("train", Role::Training),
            ],
        },
        phase: JobPhase::Queued,
        plan: None,
        slots: Vec::new(),
        scale: vec![1.0, 1.0],
        learned: vec![Vec::new(), Vec::new()],
        kappa: Vec::new(),
        moves: 0,
    }
}

/// A plan with these vectors, by stage and worker.
pub(crate) fn plan(stages: Vec<Vec<Vector>>, rng: &mut Rng) -> Plan {
    let stage = |workers: Vec<Vector>, rng: &mut Rng| StagePlan {
        cores: workers.iter().map(|v| v.cores.len()).sum(),
        sms: Sms(0),
        cap: Sms(0),
        memory: Bytes(0),
        batch: 1,
        predicted: rng.rate(),
        workers,
    };
    Plan {
        stages: stages.into_iter().map(|s| stage(s, rng)).collect(),
        gpus: vec![GpuId(0)],
        t_r: rng.rate(),
        t_train: rng.rate(),
        theta: rng.rate(),
        binding: StageId(1),
        by: name("waterfill"),
        why: vec!["it's \"quoted\"; and ünïcode".into()],
        caps: evenkeel_core::curve::corun::Caps::HalfMore,
    }
}

/// A configuration in a folder of the test's own, with a small ballast.
pub(crate) fn config(folder: &std::path::Path) -> Config {
    Config {
        ballast_bytes: 1 << 20,
        min_free_bytes: 1 << 20,
        ..Config::new(folder.join("ledger.db"))
    }
}

pub(crate) async fn open(config: &Config) -> Opened {
    ledger::open(config.clone()).await.unwrap()
}

/// Runs a test's future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
