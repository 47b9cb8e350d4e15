//! Both engines against formulas: the slowest stage decides, groups in turn add up, pipelines fill and drain, one core
//! does one thing at a time, list scheduling keeps Graham's bound, and no unit is lost or made.

use super::super::layout::Sharing;
use super::super::policy::Policy;
use super::super::rivals;
use super::*;

const BOTH: [Fidelity; 2] = [Fidelity::Step, Fidelity::Chunk];

/// Steps a second of the plain simulator under a plan: 8 of the 10 cores are the simulator's.
const SIMULATED: f64 = 800.0;

#[test]
fn with_a_deep_queue_the_slowest_stage_decides() {
    for (generation, training, expect) in [
        (1_000.0, 700.0, 700.0),
        (600.0, 900.0, 600.0),
        (2_000.0, 3_000.0, SIMULATED),
    ] {
        let plain = Plain {
            job: "units_per_iteration = 1280\nstaleness = 4".to_owned(),
            generation: flat(generation),
            training: flat(training),
            ..Plain::default()
        };
        let scenario = plain.scenario();
        let world = World::new(&scenario, 1, 0).unwrap();
        for fidelity in BOTH {
            let found = throughput(&world, &planned(&world), fidelity, 200.0);
            let what = format!("{fidelity:?} {generation} {training}");
            near(&what, found, expect, 0.02);
        }
    }
}

#[test]
fn one_group_runs_the_rollouts_stages_in_turn() {
    let plain = Plain {
        job: "units_per_iteration = 1280\nstaleness = 2".to_owned(),
        spec: "groups = 1",
        generation: flat(1_000.0),
        training: flat(5_000.0),
        ..Plain::default()
    };
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    let expect = 1.0 / (1.0 / SIMULATED + 1.0 / 1_000.0);
    for fidelity in BOTH {
        let found = throughput(&world, &planned(&world), fidelity, 200.0);
        near(&format!("{fidelity:?}"), found, expect, 0.02);
    }
}

#[test]
fn without_staleness_rollout_and_training_add_up() {
    let plain = Plain {
        job: "units_per_iteration = 1280\nstaleness = 0\nweight_sync = 0.25".to_owned(),
        generation: flat(500.0),
        ..Plain::default()
    };
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    let coarse = 1_280.0 / 500.0 + 1_280.0 / 700.0 + 0.25;
    let found = throughput(&world, &planned(&world), Fidelity::Step, 400.0);
    near("step", found, 1_280.0 / coarse, 0.01);
    // In the fine engine the pipeline has to fill and drain: T_warmup + ceil(N/k − 1) · T_bottleneck + T_cooldown.
    let batch = 32.0 * 4.0;
    let (warm_up, bottleneck, cool_down) = (batch / 500.0, batch / 500.0, batch / SIMULATED);
    let rollout = warm_up + (1_280.0_f64 / batch - 1.0).ceil() * bottleneck + cool_down;
    let fine = rollout + 1_280.0 / 700.0 + 0.25;
    let found = throughput(&world, &planned(&world), Fidelity::Chunk, 400.0);
    near("chunk", found, 1_280.0 / fine, 0.01);
}

#[test]
fn turns_add_up_with_their_switches() {
    let plain = Plain {
        job: "units_per_iteration = 1280\nswitch = 0.5".to_owned(),
        generation: flat(1_000.0),
        training: flat(700.0),
        ..Plain::default()
    };
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    for (policy, rollout) in [
        (Policy::Collocated, 1_280.0 / SIMULATED + 1_280.0 / 1_000.0),
        (Policy::Hybrid, 1_280.0 / SIMULATED),
    ] {
        let layout = rivals::layout(policy, &world, &world.jobs[0], &world.room).unwrap();
        assert!(matches!(layout.sharing, Sharing::Phases { .. }));
        let period = rollout + 1_280.0 / 700.0 + 2.0 * 0.5;
        for (fidelity, within) in [(Fidelity::Step, 0.01), (Fidelity::Chunk, 0.05)] {
            let found = throughput(&world, &layout, fidelity, 400.0);
            near(
                &format!("{} {fidelity:?}", policy.name()),
                found,
                1_280.0 / period,
                within,
            );
        }
    }
}

#[test]
fn one_core_does_one_thing_at_a_time() {
    let plain = Plain {
        node: "cores = 3\ngpus = 1\ngpu = \"h100\"",
        simulation: "environments = 16\nchunk = 4\nstep = 0.01\ndistribution = \"constant\"\n\
                     stragglers = { share = 0.25, times = 5.0 }"
            .to_owned(),
        job: "units_per_iteration = 128".to_owned(),
        ..Plain::default()
    };
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    // Every environment has the same number of chunks in the long run: the mean step decides.
    let mean_step_s = 0.01 * (0.75 + 0.25 * 5.0);
    for fidelity in BOTH {
        let found = throughput(&world, &planned(&world), fidelity, 400.0);
        near(&format!("{fidelity:?}"), found, 1.0 / mean_step_s, 0.05);
    }
}

#[test]
fn list_scheduling_keeps_grahams_bound() {
    let plain = Plain {
        node: "cores = 6\ngpus = 1\ngpu = \"h100\"",
        spec: "groups = 1",
        simulation: "environments = 10\nchunk = 4\nstep = 0.01\ndistribution = \"constant\"\n\
                     stragglers = { share = 0.2, times = 4.0 }"
            .to_owned(),
        generation: flat(1e6),
        training: flat(1e6),
        job: "units_per_iteration = 40\nstaleness = 8".to_owned(),
        ..Plain::default()
    };
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    let (cores, units) = (4.0_f64, 10.0 * 4.0);
    let (sum, longest): (f64, f64) = (4.0 * (8.0 * 0.01 + 2.0 * 0.04), 4.0 * 0.04);
    let least = (sum / cores).max(longest);
    let graham = sum / cores + (1.0 - 1.0 / cores) * longest;
    let found = throughput(&world, &planned(&world), Fidelity::Chunk, 200.0);
    assert!(
        found <= units / least * 1.01,
        "{found} is faster than {}",
        units / least
    );
    assert!(
        found >= units / graham * 0.99,
        "{found} is slower than {}",
        units / graham
    );
}

#[test]
fn no_unit_is_lost_or_made() {
    let plain = Plain {
        job: "units_per_iteration = 1000\nstaleness = 2\ndiscarded = 0.2".to_owned(),
        simulation: "environments = 64\nchunk = 4\nstep = 0.01\nspread = 0.7\n\
                     resets = { probability = 0.01, cost = 0.2 }"
            .to_owned(),
        ..Plain::default()
    };
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    let (job, layout) = (&world.jobs[0], planned(&world));
    let mut tally = Tally::new(100.0, 1, 3);
    let mut engine = ChunkEngine::new(job, &layout, 0.0).unwrap();
    let mut in_training = 0;
    for moment in 1..=60 {
        let until_s = 1.37 * f64::from(moment);
        while engine
            .advance(job, &layout, until_s, &mut tally)
            .unwrap()
            .is_some()
        {}
        let [generated, trained, training, queued, discarded] = engine.balance(job);
        let there = trained + training + queued + discarded;
        assert!(
            (generated - there).abs() < 1e-3,
            "{generated} is not {there} at {until_s} s"
        );
        assert!(tally.units[0] >= trained - 1e-6 && tally.units[0] <= trained + training + 1e-6);
        in_training += u32::from(training > 0.0);
    }
    assert!(in_training > 10, "nothing was ever under way");
}

#[test]
fn an_interrupted_run_is_the_same_as_one_in_one_piece() {
    let scenario = Plain::default().scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    let (job, layout) = (&world.jobs[0], planned(&world));
    for fidelity in BOTH {
        let units = |moments: &[f64]| {
            let mut tally = Tally::new(300.0, 1, 3);
            run_to(job, &layout, fidelity, moments, &mut tally)
                .iter()
                .sum::<f64>()
        };
        let pieces: Vec<f64> = (0..=60).map(|n| 4.9 * f64::from(n)).collect();
        near(
            &format!("{fidelity:?}"),
            units(&pieces),
            units(&[0.0, 294.0]),
            0.02,
        );
    }
}

#[test]
fn rates_under_interference_are_what_their_busy_shares_say() {
    let plain = Plain {
        job: "units_per_iteration = 1280\n\
              interference = { training = { generation = 0.5 }, generation = { training = 0.2, simulation = 0.1 } }"
            .to_owned(),
        generation: flat(1_200.0),
        training: flat(900.0),
        ..Plain::default()
    };
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    let (job, layout) = (&world.jobs[0], planned(&world));
    let pace = layout.pace(job, &[1.0; 3]);
    let busy: Vec<f64> = (0..3)
        .map(|i| 1_280.0 / (pace.rates[i] * pace.period_s))
        .collect();
    near(
        "generation",
        pace.rates[1],
        1_200.0 / (1.0 + 0.2 * busy[2] + 0.1 * busy[0]),
        1e-6,
    );
    near(
        "training",
        pace.rates[2],
        900.0 / (1.0 + 0.5 * busy[1]),
        1e-6,
    );
    assert!(
        busy.iter().any(|u| *u > 0.999) && busy.iter().all(|u| *u < 1.0 + 1e-6),
        "{busy:?}"
    );
    // And the fine engine, which knows who is busy when, agrees.
    let fine = throughput(&world, &layout, Fidelity::Chunk, 300.0);
    near("chunk", fine, 1_280.0 / pace.period_s, 0.05);
}
