//! How long one solve takes: 3 stages with 8 batch sizes on one 132-SM GPU (asked: under 200 µs), and harder ones.
#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "a benchmark; criterion's macros"
)]
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use evenkeel_core::allocate::{Problem, Stage, Supply, solve};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::id::Name;
use evenkeel_core::job::{Policy, Role, SmMode};
use evenkeel_core::unit::{Bytes, Rate, Sms};

const GPU_SMS: u32 = 132;
const BATCHES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// A stage with a knee at `knee` SMs, measured at ten quotas, eight batch sizes and the given core counts.
fn stage(name: &str, role: Role, peak: f64, knee: f64, cores: &[u32]) -> Stage {
    let mut points = Vec::new();
    for batch in BATCHES {
        for c in cores {
            for sms in (12..=GPU_SMS).step_by(12) {
                let by_sms = (f64::from(sms) / knee).min(1.0).powf(0.8);
                let by_batch = f64::from(batch) / (f64::from(batch) + 6.0);
                let wobble = 1.0 + 0.02 * f64::from((sms * 7 + batch * 3 + c) % 5);
                points.push(Point {
                    cores: *c,
                    sms: Sms(sms),
                    batch,
                    replicas: 1,
                    rate: Rate::clamped(
                        peak * by_sms * by_batch * f64::from(*c).powf(0.9) * wobble,
                    ),
                    memory: Bytes::mib(u64::from(2000 + 90 * batch)),
                    weight: 1.0,
                    ..Point::default()
                });
            }
        }
    }
    Stage {
        name: Name::new(name).expect("a name"),
        role,
        workers: 1,
        cores: (1, 32),
        sms: (Sms(0), Sms(GPU_SMS)),
        batches: BATCHES.to_vec(),
        memory: Bytes(0),
        synchronous: false,
        curve: Curve::fit(&points, &[], 1.0, 1),
        scale: 1.0,
        learned: 0,
        fixed: false,
    }
}

fn problem(policy: Policy, groups: u32) -> Problem {
    // The counts that MPS percentages leave on an H100 with a granularity of two SMs.
    let mut enforceable: Vec<Sms> = (1..=100)
        .map(|p| GPU_SMS * p / 100 / 2 * 2)
        .filter(|s| *s > 0)
        .map(Sms)
        .collect();
    enforceable.dedup();
    Problem {
        supply: Supply {
            cores: 24,
            gpus: 1,
            sms: Sms(GPU_SMS),
            enforceable,
            memory: Bytes::gib(78),
        },
        stages: vec![
            stage("simulation", Role::Simulation, 90.0, 30.0, &[4, 8, 12, 16]),
            stage("generation", Role::Generation, 700.0, 110.0, &[1, 2]),
            stage("training", Role::Training, 500.0, 125.0, &[1, 2]),
        ],
        groups,
        eta: Some(0.93),
        yielded: 1.0,
        kappa: None,
        sm_mode: SmMode::Reserve,
        policy,
        caps: Default::default(),
    }
}

fn bench(c: &mut Criterion) {
    for (name, problem) in [
        ("solve/waterfill/3x8", problem(Policy::Waterfill, 2)),
        ("solve/ebrl/3x8", problem(Policy::Ebrl, 2)),
        (
            "solve/waterfill/3x8/one-group",
            problem(Policy::Waterfill, 1),
        ),
    ] {
        let first = solve(&problem, None).expect("a split");
        c.bench_function(name, |b| b.iter(|| solve(black_box(&problem), None)));
        c.bench_function(&format!("{name}/again"), |b| {
            b.iter(|| solve(black_box(&problem), Some(black_box(&first))));
        });
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
