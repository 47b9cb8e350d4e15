//! Judgements by example, and the whole loop (watch, judge, move) over a small true world with drifts and noise.
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::allocate::plan as plan_job;
use crate::balance::{Busy, Free, JobContext, Report, StepReport, Watch};
use crate::cpuset::CpuSet;
use crate::curve::{Point, Profile, ProfileKey};
use crate::id::{GpuId, Name, StageId, WorkerId};
use crate::job::{Detector, JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use crate::node::{Core, Gpu, GpuBackend, GpuMode, PoolKind};
use crate::unit::{Bytes, Time};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
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
        sms: Sms(132),
        memory: Bytes::gib(80),
        reserved_memory: Bytes(0),
        enforceable: (1..=66).map(|n| Sms(2 * n)).collect(),
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

fn spec() -> JobSpec {
    let stage = |role, cores, sms: (u32, u32)| StageSpec {
        name: name(match role {
            Role::Simulation => "simulation",
            Role::Generation => "generation",
            _ => "training",
        }),
        role,
        workers: 1,
        processes: 1,
        cores,
        sms: (Sms(sms.0), Sms(sms.1)),
        memory: Bytes::gib(if sms.1 > 0 { 10 } else { 0 }),
        batches: Vec::new(),
        synchronous: false,
        resize: Resize::Restart,
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
        rebalance: RebalanceSpec::default(),
        stages: vec![
            stage(Role::Simulation, (4, 4), (0, 0)),
            stage(Role::Generation, (1, 1), (2, 132)),
            stage(Role::Training, (1, 1), (2, 132)),
        ],
    }
}

/// What the stages really do: profiled alone, slowed by a factor each.
#[derive(Clone, Copy, Debug)]
struct World {
    slow: [f64; 3],
}

/// Rates in the profile: generation saturates softly, training is almost linear.
fn alone(stage: usize, sms: Sms) -> f64 {
    let q = f64::from(sms.0);
    match stage {
        0 => 600.0,
        1 => 900.0 * q / (q + 60.0),
        _ => 5.0 * q,
    }
}

fn profiles() -> Vec<Profile> {
    (0..3)
        .map(|stage| {
            let counts: Vec<u32> = if stage == 0 {
                vec![0]
            } else {
                (1..=16).map(|n| 8 * n).collect()
            };
            let point = |sms| Point {
                cores: if stage == 0 { 4 } else { 1 },
                sms: Sms(sms),
                batch: 1,
                replicas: 1,
                rate: Rate::clamped(alone(stage, Sms(sms))),
                memory: Bytes(0),
                weight: 1.0,
                ..Point::default()
            };
            let key = ProfileKey {
                tenant: name("t"),
                stage: name("s"),
                gpu: name("H100"),
            };
            Profile {
                key,
                points: counts.into_iter().map(point).collect(),
            }
        })
        .collect()
}

impl World {
    fn rates(&self, plan: &Plan) -> [f64; 3] {
        [0, 1, 2].map(|i| alone(i, plan.stages[i].sms) / self.slow[i])
    }
    fn theta(&self, plan: &Plan) -> f64 {
        self.rates(plan).into_iter().fold(f64::MAX, f64::min)
    }
    /// The best over all splits of 132 SMs.
    fn best(&self) -> f64 {
        let at = |x: u32| {
            let [s, g, t] = [(0, 0), (1, 2 * x), (2, 132 - 2 * x)]
                .map(|(i, q)| alone(i, Sms(q)) / self.slow[i]);
            s.min(g).min(t)
        };
        (1..66).map(at).fold(0.0, f64::max)
    }
}

/// A job under watch in a world.
struct Loop {
    spec: JobSpec,
    node: Node,
    room: Room,
    profiles: Vec<Profile>,
    plan: Plan,
    watch: Watch,
    scale: Vec<f64>,
    learned: Vec<Vec<Point>>,
    step: u64,
    moves: Vec<(u64, f64)>,
    stays: Vec<StayReason>,
}

fn inputs<'a>(
    spec: &'a JobSpec,
    profiles: &'a [Option<&'a Profile>],
    scale: &'a [f64],
    learned: &'a [Vec<Point>],
) -> Inputs<'a> {
    Inputs {
        profiles,
        scale,
        learned,
        ..Inputs::declared(spec)
    }
}

impl Loop {
    fn new(spec: JobSpec) -> Self {
        let node = node();
        let room = Room {
            cores: CpuSet::range(0, 7),
            gpus: [(GpuId(0), (Sms(132), Bytes::gib(80)))].into(),
        };
        let profiles = profiles();
        let known: Vec<_> = profiles.iter().map(Some).collect();
        let (plan, _) = plan_job(&inputs(&spec, &known, &[], &[]), &node, &room, None).unwrap();
        let watch = Watch::new(&spec, Time(0));
        let learned = vec![Vec::new(); 3];
        let (moves, stays) = (Vec::new(), Vec::new());
        let scale = vec![1.0; 3];
        Self {
            spec,
            node,
            room,
            profiles,
            plan,
            watch,
            scale,
            learned,
            step: 0,
            moves,
            stays,
        }
    }

    /// Runs windows; `noise(step, stage)` multiplies a stage's rate.
    fn run(&mut self, world: World, windows: u64, noise: impl Fn(u64, usize) -> f64) {
        for _ in 0..windows {
            self.step += 1;
            for (i, rate) in world.rates(&self.plan).into_iter().enumerate() {
                let units = rate * noise(self.step, i);
                let step = StepReport {
                    n: self.step,
                    consumed: 1.0,
                    discarded: 0.0,
                };
                let report = Report {
                    stage: StageId(i as u8),
                    worker: WorkerId(0),
                    at: Time(self.step * 1000),
                    lanes: 1,
                    busy: vec![Busy {
                        lane: 0,
                        start_us_ago: 1_000_000,
                        dur_us: 1_000_000,
                        units,
                        batch: 1,
                    }],
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
    }

    fn judge(&mut self, verdict: &Verdict) {
        let known: Vec<_> = self.profiles.iter().map(Some).collect();
        let case = Case {
            inputs: inputs(&self.spec, &known, &self.scale, &self.learned),
            plan: &self.plan,
            node: &self.node,
            room: &self.room,
            verdict,
            costs: Costs::default(),
            live: &[],
        };
        let judgement = judge(&case);
        assert!(!judgement.sentence().is_empty());
        let windows = self.spec.rebalance.cooldown_windows;
        match &judgement.decision {
            Decision::Move(_) => self.watch.moved(windows, judgement.sentence()),
            Decision::Stay { reason, detail } => {
                self.watch.stayed(Free::default(), *reason, detail.clone());
            }
        }
        if let Some(refit) = &judgement.refit {
            self.scale.clone_from(&refit.scale);
            self.learned.clone_from(&refit.learned);
        }
        match judgement.decision {
            Decision::Move(m) => {
                assert!(m.predicted_gain >= self.spec.rebalance.min_gain && m.cost_s > 0.0);
                assert!(
                    m.reasons.iter().any(|r| r.contains("SMs")),
                    "{:?}",
                    m.reasons
                );
                self.moves.push((self.step, m.predicted_gain));
                self.plan = m.plan;
            }
            Decision::Stay { reason, .. } => self.stays.push(reason),
        }
    }
}

const ALONE: World = World { slow: [1.0; 3] };

fn quiet(_: u64, _: usize) -> f64 {
    1.0
}

/// A factor of about one, from a fixed sequence.
fn noise(seed: u64, spread: [f64; 3]) -> impl Fn(u64, usize) -> f64 {
    move |step, stage| {
        let mut z = (step * 3 + stage as u64 + seed * 7919)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = (z ^ (z >> 31)) >> 11;
        1.0 + spread[stage] * (2.0 * (unit as f64 / (1u64 << 53) as f64) - 1.0)
    }
}

#[test]
fn a_drift_is_answered_within_two_moves_that_reach_95_percent_of_the_best_split() {
    // Generation or training slower by half or by two, simulation by half; curves measured alone or not.
    for apart in [[1.0; 3], [1.0, 1.15, 1.25]] {
        for (stage, factor) in [(1, 1.5), (1, 2.0), (2, 1.5), (2, 2.0), (0, 1.5)] {
            let mut job = Loop::new(spec());
            job.run(World { slow: apart }, 60, quiet);
            let before = job.moves.len();
            assert!(before <= 1, "one correction at most: {:?}", job.moves);
            let mut slow = apart;
            slow[stage] *= factor;
            let world = World { slow };
            job.run(world, 300, quiet);
            let (got, best) = (world.theta(&job.plan), world.best());
            let what = alloc::format!(
                "stage {stage} by {factor} from {apart:?}: {:?} {:?}",
                job.moves,
                job.stays
            );
            assert!(got >= 0.95 * best, "{got} of {best}: {what}");
            assert!(job.moves.len() - before <= 2, "{what}");
        }
    }
}

#[test]
fn curves_measured_alone_are_corrected_once_after_the_start() {
    let mut job = Loop::new(spec());
    job.run(
        World {
            slow: [1.0, 1.0, 1.4],
        },
        100,
        quiet,
    );
    assert_eq!(job.moves.len(), 1);
    assert_eq!(job.moves[0].0, 8, "by the first refit");
    assert_eq!(
        job.stays,
        [StayReason::OnlyRefit],
        "the refit after it moves nothing"
    );
    assert!((job.scale[2] - 1.0 / 1.4).abs() < 0.02, "{:?}", job.scale);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn constant_load_moves_nothing_whatever_the_noise(
        seed in 0u64..1_000_000,
        sim in 0.0..0.15, generation in 0.0..0.08, training in 0.0..0.08,
        cusum: bool,
    ) {
        let mut spec = spec();
        if cusum {
            spec.rebalance.detector = Detector::Cusum { slack: 0.1, threshold: 1.0 };
        }
        let mut job = Loop::new(spec);
        job.run(ALONE, 400, noise(seed, [sim, generation, training]));
        prop_assert!(job.moves.is_empty(), "{:?}", job.moves);
        prop_assert!(!job.stays.is_empty(), "nothing was judged at all");
    }
}

/// As CI found it: eight windows of noise that looked like a gap of more than 5 %, and a split that gained 3.5 % by it.
#[test]
fn noise_that_looks_like_a_gap_after_the_start_moves_nothing() {
    let mut job = Loop::new(spec());
    let spread = [0.0, 0.079_286_156_409_862_13, 0.057_415_257_933_444_99];
    job.run(ALONE, 400, noise(157_851, spread));
    assert!(job.moves.is_empty(), "{:?}", job.moves);
}

/// Judges a measured drift of generation under changed rules.
fn judged(change: impl Fn(&mut JobSpec), costs: Costs<'_>) -> Decision {
    let mut spec = spec();
    change(&mut spec);
    let job = Loop::new(spec);
    let rates = World {
        slow: [1.0, 1.5, 1.0],
    }
    .rates(&job.plan);
    let stage = |r| {
        Some(crate::balance::StageMeasure {
            rate: Rate::clamped(r),
            batch: 1,
        })
    };
    let measured = Measured {
        stages: rates.into_iter().map(stage).collect(),
        t_r: Rate::clamped(rates[0].min(rates[1])),
        t_train: Rate::clamped(rates[2]),
        yielded: 1.0,
        windows: 5,
        error: 0.0,
        overlap: Vec::new(),
    };
    let verdict = Verdict {
        trigger: Trigger::Detector,
        measured,
        why: "it drifted.".into(),
    };
    let known: Vec<_> = job.profiles.iter().map(Some).collect();
    let stages = job.spec.stages.iter();
    let in_use: Vec<bool> = stages.map(|s| s.resize == Resize::Fixed).collect();
    let case = Case {
        inputs: Inputs {
            pinned: &in_use,
            ..inputs(&job.spec, &known, &job.scale, &job.learned)
        },
        plan: &job.plan,
        node: &job.node,
        room: &job.room,
        verdict: &verdict,
        costs,
        live: &[],
    };
    let first = judge(&case);
    assert_eq!(first, judge(&case), "the same case, the same judgement");
    first.decision
}

#[track_caller]
fn stays(change: impl Fn(&mut JobSpec), costs: Costs<'_>, expect: StayReason, says: &str) {
    match judged(change, costs) {
        Decision::Stay { reason, detail } => {
            assert_eq!(reason, expect, "{detail}");
            assert!(detail.contains(says), "{detail}");
        }
        Decision::Move(m) => panic!("moved: {:?}", m.reasons),
    }
}

#[test]
fn a_move_that_pays_says_what_it_does_and_why() {
    let Decision::Move(m) = judged(|_| (), Costs::default()) else {
        panic!("stayed")
    };
    assert!(m.predicted_gain > 0.15, "{}", m.predicted_gain);
    assert_eq!(
        m.cost_s, 20.0,
        "training shrinks by a restart, generation grows by another"
    );
    let all = m.reasons.join(" ");
    for says in [
        "it drifted.",
        "generation runs at 0.67 times its prediction",
        "for a pause of 20.0 s (generation's restart was not measured yet, taken as 10 s; training's restart was not \
         measured yet, taken as 10 s)",
        "generation: SMs",
    ] {
        assert!(all.contains(says), "{says:?} is not in {all}");
    }
    assert_eq!(
        m.plan.stages.iter().map(|s| s.sms.0).sum::<u32>(),
        132,
        "no SM stays idle"
    );
}

#[test]
fn not_moving_has_a_reason() {
    let none = Costs::default();
    stays(
        |s| s.rebalance.enabled = false,
        none,
        StayReason::Disabled,
        "frozen",
    );
    stays(
        |s| s.rebalance.min_gain = 0.9,
        none,
        StayReason::GainTooSmall,
        "needs +90.0 %",
    );
    stays(
        |s| s.rebalance.horizon = Millis::secs(60),
        none,
        StayReason::DoesNotPay,
        "within 60 s",
    );
    let slow = Costs {
        restarts: &[None, Some(Millis::secs(100)), Some(Millis::secs(90))],
        drain: None,
    };
    let says = "a pause of 190.0 s (generation's restart took 100 s; training's restart took 90 s)";
    stays(|_| (), slow, StayReason::DoesNotPay, says);
    let fixed = |s: &mut JobSpec| s.stages.iter_mut().for_each(|s| s.resize = Resize::Fixed);
    stays(fixed, none, StayReason::AlreadyBest, "the best one");
}

#[test]
fn a_measured_restart_counts_and_one_that_was_not_is_assumed() {
    let costs = Costs {
        restarts: &[None, None, Some(Millis::secs(2))],
        drain: None,
    };
    let Decision::Move(m) = judged(|_| (), costs) else {
        panic!("stayed")
    };
    assert_eq!(m.cost_s, 12.0, "2 s measured of training, 10 s declared");
    let says = "for a pause of 12.0 s (generation's restart was not measured yet, taken as 10 s; training's restart \
                took 2 s)";
    assert!(m.reasons.join(" ").contains(says), "{:?}", m.reasons);
}

#[test]
fn a_live_resize_costs_only_the_drain() {
    let live = |s: &mut JobSpec| s.stages.iter_mut().for_each(|s| s.resize = Resize::Live);
    let costs = Costs {
        restarts: &[Some(Millis::secs(100)); 3],
        drain: Some(Millis(500)),
    };
    let Decision::Move(m) = judged(live, costs) else {
        panic!("stayed")
    };
    assert_eq!(m.cost_s.to_string(), "0.5");
}
