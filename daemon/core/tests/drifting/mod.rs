//! A job under watch in a small true world: stages with known curves that drift, in noise, over windows without a clock.
//! Drives the production watch and judge; the clairvoyant is exhaustive search over the splits of one GPU.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
use evenkeel_core::allocate::{Inputs, Room, plan};
use evenkeel_core::balance::{Busy, Free, JobContext, Report, StepReport, Trigger, Verdict, Watch};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::decide::rebalance::{Case, Costs, Decision, judge};
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name, StageId, WorkerId};
use evenkeel_core::job::{Detector, JobSpec, Plan, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::unit::{Bytes, Rate, Sms, Time};

pub const SMS: u32 = 132;
const STAGES: [(&str, Role); 3] = [
    ("simulation", Role::Simulation),
    ("generation", Role::Generation),
    ("training", Role::Training),
];

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

/// A seeded generator (splitmix64), with normal noise.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    /// About 1, normal with this standard deviation, never below a tenth.
    fn about_one(&mut self, sd: f64) -> f64 {
        let (a, b) = (self.next().max(1e-300), self.next());
        let normal = (-2.0 * a.ln()).sqrt() * (core::f64::consts::TAU * b).cos();
        (1.0 + sd * normal).max(0.1)
    }
}

/// Rates alone: the simulator is fast enough, generation saturates softly, training is almost linear.
fn alone(stage: usize, sms: u32) -> f64 {
    let q = f64::from(sms);
    match stage {
        0 => 800.0,
        1 => 900.0 * q / (q + 60.0),
        _ => 5.0 * q.powf(0.97),
    }
}

/// How much slower than its profile each stage is.
pub type Slow = [f64; 3];

pub struct Job {
    spec: JobSpec,
    node: Node,
    room: Room,
    profiles: Vec<Profile>,
    pub plan: Plan,
    watch: Watch,
    scale: Vec<f64>,
    learned: Vec<Vec<Point>>,
    kappa: Vec<Vec<f64>>,
    rng: Rng,
    pub windows: u64,
    /// Windows in which a detector fired, and in which shares moved.
    pub alarms: Vec<u64>,
    pub moves: Vec<u64>,
}

fn node() -> Node {
    let core = |id| Core {
        id,
        cpus: CpuSet::range(id, id),
        numa: 0,
        package: 0,
    };
    let gpu = Gpu {
        id: GpuId(0),
        uuid: name("GPU-0"),
        model: name("H100"),
        sms: Sms(SMS),
        memory: Bytes::gib(80),
        reserved_memory: Bytes(0),
        enforceable: (1..=SMS / 2).map(|n| Sms(2 * n)).collect(),
        numa: 0,
        backend: GpuBackend::Emulated,
        mode: GpuMode::Enforce,
    };
    Node {
        kind: PoolKind::Local,
        cores: (0..8).map(core).collect(),
        reserved_cores: CpuSet::new(),
        gpus: vec![gpu],
    }
}

fn spec(detector: Detector) -> JobSpec {
    let stage = |(n, role): (&str, Role)| StageSpec {
        name: name(n),
        role,
        workers: 1,
        processes: 1,
        cores: if role == Role::Simulation {
            (4, 4)
        } else {
            (1, 1)
        },
        sms: if role == Role::Simulation {
            (Sms(0), Sms(0))
        } else {
            (Sms(2), Sms(SMS))
        },
        memory: Bytes(0),
        batches: Vec::new(),
        synchronous: false,
        resize: Resize::Live,
        profile: None,
    };
    JobSpec {
        name: name("pick"),
        unit: name("env_step"),
        priority: 0,
        weight: 1.0,
        gpus: vec![GpuId(0)],
        gpu_count: 1,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec {
            detector,
            ..RebalanceSpec::default()
        },
        stages: STAGES.map(stage).to_vec(),
    }
}

fn profiles() -> Vec<Profile> {
    let of = |i: usize| {
        let counts: Vec<u32> = if i == 0 {
            vec![0]
        } else {
            (1..=16).map(|n| 8 * n).collect()
        };
        let point = |sms| Point {
            cores: if i == 0 { 4 } else { 1 },
            sms: Sms(sms),
            batch: 1,
            replicas: 1,
            rate: Rate::clamped(alone(i, sms)),
            memory: Bytes(0),
            weight: 1.0,
            ..Point::default()
        };
        Profile {
            key: ProfileKey {
                tenant: name("t"),
                stage: name(STAGES[i].0),
                gpu: name("H100"),
            },
            points: counts.into_iter().map(point).collect(),
        }
    };
    (0..3).map(of).collect()
}

pub fn streak() -> Detector {
    Detector::default()
}
pub fn cusum() -> Detector {
    Detector::Cusum {
        slack: 0.1,
        threshold: 0.5,
    }
}

/// The best Θ of any split under these factors.
pub fn clairvoyant(slow: Slow) -> f64 {
    let rate = |i: usize, q: u32| alone(i, q) / slow[i];
    let at = |x: u32| rate(0, 0).min(rate(1, 2 * x)).min(rate(2, SMS - 2 * x));
    (1..SMS / 2).map(at).fold(0.0, f64::max)
}

impl Job {
    pub fn new(detector: Detector, seed: u64) -> Self {
        let (spec, node, profiles) = (spec(detector), node(), profiles());
        let room = Room {
            cores: CpuSet::range(0, 7),
            gpus: [(GpuId(0), (Sms(SMS), Bytes::gib(80)))].into(),
        };
        let known: Vec<_> = profiles.iter().map(Some).collect();
        let inputs = Inputs {
            profiles: &known,
            ..Inputs::declared(&spec)
        };
        let (plan, _) = plan(&inputs, &node, &room, None).unwrap();
        let watch = Watch::new(&spec, Time(0));
        Self {
            spec,
            node,
            room,
            profiles,
            plan,
            watch,
            scale: vec![1.0; 3],
            learned: vec![Vec::new(); 3],
            kappa: Vec::new(),
            rng: Rng(seed),
            windows: 0,
            alarms: Vec::new(),
            moves: Vec::new(),
        }
    }

    pub fn theta(&self, slow: Slow) -> f64 {
        let rate = |i: usize| alone(i, self.plan.stages[i].sms.0) / slow[i];
        (0..3).map(rate).fold(f64::INFINITY, f64::min)
    }

    /// One window with these true factors and this noise on each stage's rate.
    pub fn window(&mut self, slow: Slow, noise: f64) {
        self.windows += 1;
        for (i, slow) in slow.iter().enumerate() {
            let rate = alone(i, self.plan.stages[i].sms.0) / slow;
            let units = rate * self.rng.about_one(noise);
            let step = StepReport {
                n: self.windows,
                consumed: 1.0,
                discarded: 0.0,
            };
            let busy = Busy {
                lane: 0,
                start_us_ago: 1_000_000,
                dur_us: 1_000_000,
                units,
                batch: 1,
            };
            let report = Report {
                stage: StageId(i as u8),
                worker: WorkerId(0),
                at: Time(self.windows * 1000),
                lanes: 1,
                busy: vec![busy],
                steps: if i == 2 { vec![step] } else { Vec::new() },
            };
            self.watch.ingest(&report).unwrap();
        }
        let free = Free::default();
        let ctx = JobContext {
            spec: &self.spec,
            plan: &self.plan,
            settled: true,
            free,
        };
        if let Some(verdict) = self.watch.poll(&ctx) {
            self.judge(&verdict);
        }
    }

    fn judge(&mut self, verdict: &Verdict) {
        if verdict.trigger == Trigger::Detector {
            self.alarms.push(self.windows);
        }
        let known: Vec<_> = self.profiles.iter().map(Some).collect();
        let live = self.watch.kappa();
        let inputs = Inputs {
            profiles: &known,
            scale: &self.scale,
            learned: &self.learned,
            kappa: (!self.kappa.is_empty()).then_some(&self.kappa[..]),
            ..Inputs::declared(&self.spec)
        };
        let case = Case {
            inputs,
            plan: &self.plan,
            node: &self.node,
            room: &self.room,
            verdict,
            costs: Costs::default(),
            live: &live,
        };
        let judgement = judge(&case);
        match &judgement.decision {
            Decision::Move(_) => {
                let windows = self.spec.rebalance.cooldown_windows;
                self.watch.moved(windows, judgement.sentence());
            }
            Decision::Stay { reason, detail } => {
                self.watch.stayed(Free::default(), *reason, detail.clone());
            }
        }
        if let Some(refit) = &judgement.refit {
            self.scale.clone_from(&refit.scale);
            self.learned.clone_from(&refit.learned);
            self.kappa.clone_from(&refit.kappa);
        }
        if let Decision::Move(m) = judgement.decision {
            self.moves.push(self.windows);
            self.plan = m.plan;
        }
    }
}
