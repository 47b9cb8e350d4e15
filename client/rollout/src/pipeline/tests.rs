//! The virtual pipeline against figures worked out by hand, and the properties that sweeps rely on.

use super::*;

/// Compute-bound kernels as wide as the GPU: time falls with every SM.
fn list(ms_on_all: f64) -> Vec<KernelGroup> {
    let gpu = GpuSpec::h100();
    let width_blocks = 132 * 60;
    vec![KernelGroup {
        flops: (gpu.flops_per_s as f64 * ms_on_all * 1e-3 / 4.0) as u64,
        bytes: 0,
        width_blocks,
        repeat: 4,
    }]
}

fn spec() -> PipelineSpec {
    PipelineSpec {
        gpu: GpuSpec::h100(),
        generate: list(7.0),
        train: vec![list(70.0), list(70.0)],
        envs: 32,
        groups: 2,
        batch: 8,
        chunk_steps: 8,
        batches_per_rollout: 20,
        staleness: 1,
        depth: 2,
        step_ns: 100_000,
        step_spread_permille: 0,
        hop_ns: 200_000,
    }
}

fn half() -> Split {
    Split {
        generate_sms: 66,
        train_sms: 66,
        cores: 1,
    }
}

fn near(got: f64, expect: f64, tolerance: f64) {
    assert!(
        (got / expect - 1.0).abs() < tolerance,
        "{got} is not {expect}"
    );
}

#[test]
fn rates_are_what_a_hand_computes() {
    let outcome = run(&spec(), half(), 4, 20).unwrap();
    near(outcome.generate_units_per_s, 64.0 / 14e-3, 0.01); // 7 ms on all, so 14 ms on half
    near(outcome.train_units_per_s, 1_280.0 / 280e-3, 0.01);
    near(outcome.simulate_units_per_s, 1e4, 1e-9);
    assert!(
        outcome.gap() < 0.01 && outcome.units_per_s <= outcome.generate_units_per_s * 1.001,
        "{outcome:?}"
    );
    // Both sides are equal, so what is lost is the way of a rollout's last batch: at most its simulation and hops.
    near(outcome.units_per_s, outcome.generate_units_per_s, 0.05);
}

#[test]
fn the_slowest_stage_decides() {
    let slow = |change: &dyn Fn(&mut PipelineSpec)| {
        let mut changed = spec();
        change(&mut changed);
        run(&changed, half(), 4, 20).unwrap()
    };
    let generation = slow(&|s| s.generate = list(14.0));
    near(generation.units_per_s, 64.0 / 28e-3, 0.02);
    let training = slow(&|s| s.train = vec![list(70.0); 4]);
    near(training.units_per_s, 1_280.0 / 560e-3, 0.02);
    let simulation = slow(&|s| s.step_ns = 400_000);
    near(simulation.units_per_s, 2_500.0, 0.02);
    let more_cores = run(
        &PipelineSpec {
            step_ns: 400_000,
            ..spec()
        },
        Split { cores: 2, ..half() },
        4,
        20,
    );
    near(more_cores.unwrap().units_per_s, 4_500.0, 0.05);
}

#[test]
fn rollout_and_training_overlap_by_one_iteration() {
    let overlapping = run(&spec(), half(), 4, 20).unwrap();
    let synchronous = PipelineSpec {
        staleness: 0,
        ..spec()
    };
    let synchronous = run(&synchronous, half(), 4, 20).unwrap();
    assert_eq!((overlapping.staleness, synchronous.staleness), (1, 0));
    let speedup = overlapping.units_per_s / synchronous.units_per_s;
    assert!(
        speedup > 1.8,
        "two equal halves overlap: {speedup:.2} times"
    );
}

#[test]
fn groups_overlap_simulation_with_generation() {
    // One batch at a time: generation (14 ms) and simulation (12.8 ms) take turns.
    let alone = PipelineSpec {
        envs: 8,
        groups: 1,
        step_ns: 200_000,
        ..spec()
    };
    let two = PipelineSpec {
        envs: 16,
        groups: 2,
        step_ns: 200_000,
        ..spec()
    };
    let (alone, two) = (
        run(&alone, half(), 4, 20).unwrap(),
        run(&two, half(), 4, 20).unwrap(),
    );
    near(alone.units_per_s, 64.0 / 27.4e-3, 0.05);
    assert!(
        two.units_per_s > 1.7 * alone.units_per_s,
        "{alone:?} {two:?}"
    );
}

#[test]
fn the_same_run_gives_the_same_answer() {
    let (a, b) = (run(&spec(), half(), 2, 10), run(&spec(), half(), 2, 10));
    assert_eq!(a, b);
}

#[test]
fn a_sweep_finds_the_balance_and_a_drift_moves_it() {
    let before = sweep(&spec(), &[1], 2, 8).unwrap();
    assert_eq!(
        before.len(),
        65,
        "every split of 132 SMs in pairs, nobody without"
    );
    let best = before[0].0;
    assert!((64..=68).contains(&best.generate_sms), "{best:?}");
    // Generation twice as heavy: two thirds of the SMs, and 4/3 of what the old split does.
    let drifted = PipelineSpec {
        generate: list(14.0),
        ..spec()
    };
    let after = sweep(&drifted, &[1], 2, 8).unwrap();
    let (best, outcome) = after[0];
    assert!((86..=90).contains(&best.generate_sms), "{best:?}");
    let old = run(&drifted, half(), 2, 8).unwrap();
    near(outcome.units_per_s / old.units_per_s, 4.0 / 3.0, 0.05);
}

#[test]
fn what_can_never_run_is_said() {
    let none = Split { cores: 0, ..half() };
    assert!(matches!(
        run(&spec(), none, 0, 1),
        Err(PipelineError::Stuck(_))
    ));
    let few = PipelineSpec { envs: 4, ..spec() };
    assert!(matches!(
        run(&few, half(), 0, 1),
        Err(PipelineError::Stuck(_))
    ));
    let huge = Split {
        generate_sms: 200,
        ..half()
    };
    assert!(matches!(
        run(&spec(), huge, 0, 1),
        Err(PipelineError::Gpu(_))
    ));
}
