//! The watch by example: detectors, stays, cool-downs; reports and windows are in `windows`.
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::grant::Resize;
use crate::id::Name;
use crate::job::{Detector, Policy, RebalanceSpec, Role, SmMode, StageSpec};

mod windows;

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn stage(role: Role, workers: u32) -> StageSpec {
    StageSpec {
        name: name("s"),
        role,
        workers,
        processes: 1,
        cores: (1, 4),
        sms: (Sms(0), Sms(132)),
        memory: Bytes(0),
        batches: Vec::new(),
        synchronous: false,
        resize: Resize::Restart,
        profile: None,
    }
}

fn job(detector: Detector, workers: [u32; 3]) -> JobSpec {
    let [sim, generation, training] = workers;
    JobSpec {
        name: name("pick"),
        unit: name("env_step"),
        priority: 0,
        weight: 1.0,
        gpus: Vec::new(),
        gpu_count: 1,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec {
            detector,
            ..RebalanceSpec::default()
        },
        stages: vec![
            stage(Role::Simulation, sim),
            stage(Role::Generation, generation),
            stage(Role::Training, training),
        ],
    }
}

fn planned(rate: f64) -> Plan {
    let rate = Rate::clamped(rate);
    Plan {
        stages: Vec::new(),
        gpus: Vec::new(),
        t_r: rate,
        t_train: rate,
        theta: rate,
        binding: StageId(0),
        by: name("waterfill"),
        why: Vec::new(),
        caps: Default::default(),
    }
}

fn ctx<'a>(spec: &'a JobSpec, plan: &'a Plan) -> JobContext<'a> {
    JobContext {
        spec,
        plan,
        settled: true,
        free: Free::default(),
    }
}

fn busy(lane: u32, start_us_ago: u64, dur_us: u64, units: f64) -> Busy {
    Busy {
        lane,
        start_us_ago,
        dur_us,
        units,
        batch: 1,
    }
}

/// One worker's report of a second's work at `rate`, on one lane.
fn second(stage: u8, worker: u32, rate: f64, step: Option<u64>) -> Report {
    Report {
        stage: StageId(stage),
        worker: WorkerId(worker),
        at: Time(0),
        lanes: 1,
        busy: vec![busy(0, 1_000_000, 1_000_000, rate)],
        steps: step
            .map(|n| StepReport {
                n,
                consumed: 1.0,
                discarded: 0.0,
            })
            .into_iter()
            .collect(),
    }
}

/// Feeds windows of a job with one worker a stage until the watch says something; `rates` by window.
fn run(
    watch: &mut Watch,
    ctx: &JobContext<'_>,
    steps: core::ops::Range<u64>,
    rates: impl Fn(u64) -> [f64; 3],
) -> Option<(u64, Verdict)> {
    for n in steps {
        let [sim, generation, training] = rates(n);
        for report in [
            second(0, 0, sim, None),
            second(1, 0, generation, None),
            second(2, 0, training, Some(n)),
        ] {
            watch.ingest(&report).unwrap();
            if let Some(verdict) = watch.poll(ctx) {
                return Some((n, verdict));
            }
        }
    }
    None
}

/// A watch that has been refitted and is balanced at 100.
fn settled(ctx: &JobContext<'_>) -> (Watch, u64) {
    let mut watch = Watch::new(ctx.spec, Time(0));
    let (n, verdict) = run(&mut watch, ctx, 0..100, |_| [120.0, 100.0, 100.0]).unwrap();
    assert_eq!(
        (n, verdict.trigger),
        (7, Trigger::Start),
        "refit after eight windows"
    );
    watch.stayed(ctx.free, StayReason::Balanced, "balanced".into());
    (watch, n + 1)
}

#[test]
fn the_streak_fires_after_twenty_windows_of_a_smoothed_gap() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let (mut watch, from) = settled(&c);
    let drift = from + 10;
    let rates = |n| {
        if n < drift {
            [120.0, 100.0, 100.0]
        } else {
            [120.0, 60.0, 100.0]
        }
    };
    let (n, verdict) = run(&mut watch, &c, from..from + 200, rates).unwrap();
    // The median of five sees the drift with its third window; from there twenty.
    assert_eq!(n - drift + 1, 22);
    assert_eq!(verdict.trigger, Trigger::Detector);
    assert_eq!(verdict.measured.slower(), Side::Rollout);
    assert!((verdict.measured.gap() - 0.4).abs() < 1e-9);
    assert!(
        verdict.why.contains("the rollout is slower"),
        "{}",
        verdict.why
    );
}

#[test]
fn the_streak_starts_again_when_the_gap_closes_or_the_other_side_is_slower() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let (mut watch, from) = settled(&c);
    let rates = |n: u64| match (n - from) / 15 % 2 {
        0 => [120.0, 60.0, 100.0],
        _ => [200.0, 160.0, 100.0],
    };
    assert_eq!(
        run(&mut watch, &c, from..from + 300, rates),
        None,
        "fifteen one way, fifteen the other"
    );
    let rates = |n: u64| {
        if n % 16 < 4 {
            [100.0; 3]
        } else {
            [60.0, 60.0, 100.0]
        }
    };
    assert_eq!(
        run(&mut watch, &c, from + 304..from + 604, rates),
        None,
        "closes each sixteen windows"
    );
}

#[test]
fn a_stay_is_quiet_until_the_gap_moves_or_room_appears() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let (mut watch, from) = settled(&c);
    let (n, _) = run(&mut watch, &c, from..from + 100, |_| [120.0, 70.0, 100.0]).unwrap();
    watch.stayed(c.free, StayReason::DoesNotPay, "no".into());
    assert!(watch.view().held);
    assert_eq!(
        run(&mut watch, &c, n + 1..n + 200, |_| [120.0, 69.0, 100.0]),
        None,
        "held"
    );
    let roomier = JobContext {
        free: Free {
            cores: 1,
            ..Free::default()
        },
        ..c
    };
    let (n, _) = run(&mut watch, &roomier, n + 200..n + 300, |_| {
        [120.0, 69.0, 100.0]
    })
    .unwrap();
    watch.stayed(roomier.free, StayReason::DoesNotPay, "no".into());
    let (_, verdict) = run(&mut watch, &roomier, n + 1..n + 100, |_| {
        [120.0, 60.0, 100.0]
    })
    .unwrap();
    assert!(
        (verdict.measured.gap() - 0.4).abs() < 0.06,
        "the gap moved by 0.05"
    );
}

#[test]
fn after_a_move_comes_a_cool_down_and_a_refit_and_after_that_only_a_refit() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let (mut watch, from) = settled(&c);
    let slow = |_| [120.0, 60.0, 100.0];
    let (n, verdict) = run(&mut watch, &c, from..from + 100, slow).unwrap();
    assert_eq!(verdict.trigger, Trigger::Detector);
    watch.moved(5, "moved".into());
    assert_eq!((watch.view().cooldown, watch.view().since_move), (5, 0));
    let (n, verdict) = run(&mut watch, &c, n + 1..n + 100, slow).unwrap();
    assert_eq!(
        (verdict.trigger, verdict.measured.windows),
        (Trigger::AfterMove, 8)
    );
    watch.moved(5, "moved again".into());
    let (_, verdict) = run(&mut watch, &c, n + 1..n + 100, slow).unwrap();
    assert_eq!(verdict.trigger, Trigger::AfterRefit);
    let remarks: Vec<String> = watch.view().remarks.into_iter().map(|r| r.detail).collect();
    assert_eq!(remarks, ["balanced", "moved", "moved again"]);
}

#[test]
fn a_verdict_that_nobody_answered_comes_again() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let mut watch = Watch::new(&spec, Time(0));
    let (n, _) = run(&mut watch, &c, 0..100, |_| [100.0; 3]).unwrap();
    let (again, verdict) = run(&mut watch, &c, n + 1..100, |_| [100.0; 3]).unwrap();
    assert_eq!((again, verdict.trigger), (n + 1, Trigger::Start));
}

const CUSUM: Detector = Detector::Cusum {
    slack: 0.1,
    threshold: 1.0,
};

/// A factor of about one with the given spread, from a fixed sequence.
fn noise(n: u64, stage: u64, spread: f64) -> f64 {
    let mut z = (n * 3 + stage)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    1.0 + spread * (2.0 * ((z >> 11) as f64 / (1u64 << 53) as f64) - 1.0)
}

#[test]
fn cusum_sees_a_drift_in_noise_within_a_few_windows_and_is_quiet_without_one() {
    let spec = job(CUSUM, [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let (mut watch, from) = settled(&c);
    let noisy = |drift: u64| {
        move |n: u64| {
            let slow = if n < drift { 1.0 } else { 1.5 };
            [
                130.0 * noise(n, 0, 0.17),
                100.0 * noise(n, 1, 0.17) / slow,
                100.0 * noise(n, 2, 0.17),
            ]
        }
    };
    let mut quiet = watch.clone();
    assert_eq!(
        run(&mut quiet, &c, from..from + 2_000, noisy(u64::MAX)),
        None,
        "10 % noise, no drift"
    );
    let drift = from + 50;
    let (n, verdict) = run(&mut watch, &c, from..from + 200, noisy(drift)).unwrap();
    assert!(
        (3..=16).contains(&(n - drift + 1)),
        "after {} windows",
        n - drift + 1
    );
    assert!(verdict.why.contains("added up"), "{}", verdict.why);
}

#[test]
fn constant_load_with_noise_never_fires_the_streak() {
    let spec = job(Detector::default(), [1, 1, 1]);
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let (mut watch, from) = settled(&c);
    let mut over = 0;
    for n in from..from + 3_000 {
        let rates = [130.0, 105.0, 100.0];
        let rates = [0, 1, 2].map(|i| rates[i as usize] * noise(n, i, 0.17));
        assert_eq!(run(&mut watch, &c, n..n + 1, |_| rates), None);
        let last = watch.view().last.unwrap();
        over += u64::from(crate::unit::gap(last.t_r, last.t_train) > 0.15);
    }
    assert!(over > 100, "the noise did open gaps: {over}");
}

#[test]
fn a_burst_of_a_few_windows_is_smoothed_away() {
    let spec = job(
        Detector::Streak {
            gap: 0.15,
            windows: 1,
        },
        [1, 1, 1],
    );
    let plan = planned(100.0);
    let c = ctx(&spec, &plan);
    let (mut watch, from) = settled(&c);
    let rates = |n: u64| {
        if n % 10 < 2 {
            [120.0, 20.0, 100.0]
        } else {
            [120.0, 100.0, 100.0]
        }
    };
    assert_eq!(run(&mut watch, &c, from..from + 300, rates), None);
}
