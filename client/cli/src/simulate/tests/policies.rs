//! What policies do: the clairvoyant is the best split there is, rebalancers follow drifts and leave constant load alone,
//! jobs share a node, and everything can be repeated.

use super::super::optimum::Optimum;
use super::super::policy::Policy;
use super::super::{Wish, simulate};
use super::*;

/// Stages whose rates depend on their shares.
fn curved(more: &'static str, noise: &str) -> Plain {
    Plain {
        job: "units_per_iteration = 4096".to_owned(),
        generation: format!("max_units_per_s = 900\nknee_sms = 100\nexponent = 0.6\n{noise}"),
        training: format!("max_units_per_s = 1000\nknee_sms = 132\nexponent = 0.9\n{noise}"),
        more,
        ..Plain::default()
    }
}

fn report(scenario: &Scenario, wish: &Wish) -> super::super::Report {
    simulate(scenario, wish, &|| ()).unwrap_or_else(|f| panic!("{f}"))
}

fn of(report: &super::super::Report, policy: Policy) -> &super::super::report::Row {
    report
        .policies
        .iter()
        .find(|row| row.policy == policy)
        .unwrap()
}

#[test]
fn the_clairvoyant_is_the_best_of_all_splits() {
    for interference in [
        "",
        "interference = { training = { generation = 0.4 }, generation = { training = 0.1 } }",
    ] {
        let mut plain = curved("", "");
        plain.job = format!("{}\n{interference}", plain.job);
        let scenario = plain.scenario();
        let world = World::new(&scenario, 1, 0).unwrap();
        let job = &world.jobs[0];
        let mut optimum = Optimum::new(&world, job, world.room.clone());
        for factors in [[1.0; 3], [1.0, 2.0, 1.0], [1.0, 1.0, 1.7], [1.5, 0.6, 1.0]] {
            let found = optimum.at(&factors).unwrap();
            let period_s = found.pace(job, &factors).period_s;
            let all = (1..66).map(|n| {
                let mut layout = found.clone();
                for (stage, sms) in [(1, 2 * n), (2, 132 - 2 * n)] {
                    layout.holds[stage].sms = f64::from(sms);
                    layout.holds[stage].cap = f64::from(sms);
                }
                layout.pace(job, &factors).period_s
            });
            let best_s = all.fold(f64::INFINITY, f64::min);
            near(
                &format!("{interference} {factors:?}"),
                period_s,
                best_s,
                2e-3,
            );
        }
    }
}

#[test]
fn a_drift_is_followed_and_constant_load_is_left_alone() {
    let drift = "[[jobs.drifts]]\nstage = \"training\"\nat = \"20m\"\nfactor = 1.8\n";
    let hour = |plain: Plain| {
        let text = plain.text().replacen("seconds = 600", "seconds = 3600", 1);
        Scenario::parse(&text, "hour.toml", Path::new(".")).unwrap()
    };
    let wish = Wish::default();
    let drifts = report(&hour(curved(drift, "noise = 0.02")), &wish);
    for policy in [
        Policy::WaterfillStreak,
        Policy::WaterfillCusum,
        Policy::EbrlStreak,
    ] {
        let row = of(&drifts, policy);
        assert!(row.moves >= 1, "{policy:?} never moved");
        assert!(
            row.of_clairvoyant.unwrap() > 0.95,
            "{policy:?}: {:?}",
            row.of_clairvoyant
        );
        assert!(
            row.units_per_s > of(&drifts, Policy::EbrlOnce).units_per_s,
            "{policy:?}"
        );
    }
    assert_eq!(of(&drifts, Policy::EbrlOnce).moves, 0);
    let constant = report(&hour(curved("", "noise = 0.03")), &wish);
    for row in &constant.policies {
        assert_eq!(row.moves, 0, "{:?}", row.policy);
        assert_eq!(row.paused_s, 0.0);
    }
}

#[test]
fn frozen_shares_never_move() {
    let drift = "[[jobs.drifts]]\nstage = \"training\"\nat = \"5m\"\nfactor = 2\n";
    let mut plain = curved(drift, "");
    plain.spec = "groups = 2\nrebalance = { frozen = true }";
    let report = report(&plain.scenario(), &Wish::default());
    assert!(report.policies.iter().all(|row| row.moves == 0));
}

#[test]
fn a_pause_costs_what_it_takes() {
    let drift = "[[jobs.drifts]]\nstage = \"training\"\nat = \"2m\"\nfactor = 2\n";
    let restarts = |seconds: &str| {
        let mut plain = curved(drift, "");
        plain.generation = format!("{}\nrestart = {seconds}", plain.generation);
        plain.training = format!("{}\nrestart = {seconds}", plain.training);
        let report = report(&plain.scenario(), &Wish::default());
        let row = of(&report, Policy::WaterfillStreak).clone();
        (row.moves, row.paused_s, row.units_per_s.unwrap())
    };
    let (short, long) = (restarts("1"), restarts("30"));
    assert!(short.0 >= 1 && long.0 >= 1);
    assert!(
        long.1 > 10.0 * short.1 && long.2 < short.2,
        "{short:?} {long:?}"
    );
}

#[test]
fn a_second_job_takes_its_share_and_gives_it_back() {
    let one = curved("", "").text();
    let second = one[one.find("[[jobs]]").unwrap()..].replacen(
        "[[jobs]]",
        "[[jobs]]\narrives = 200\nends = 400",
        1,
    );
    let second = second.replacen("name = \"j\"", "name = \"k\"", 1);
    let scenario =
        Scenario::parse(&format!("{one}\n{second}"), "two.toml", Path::new(".")).unwrap();
    let report = report(&scenario, &Wish::default());
    for policy in [
        Policy::WaterfillStreak,
        Policy::EbrlOnce,
        Policy::Even,
        Policy::Clairvoyant,
    ] {
        let row = of(&report, policy);
        assert!(row.jobs.iter().all(|job| job.units_per_s > 0.0), "{row:?}");
        assert!(row.jobs.iter().all(|job| job.waited_s == 0.0), "{row:?}");
    }
    let bands = &report.timeline.shares;
    let held = |job: &str, bin: usize| -> f64 {
        bands
            .iter()
            .filter(|b| b.job == job)
            .map(|b| b.sms[bin])
            .sum()
    };
    for (bin, first, second) in [(20, 132.0, 0.0), (120, 66.0, 66.0), (220, 132.0, 0.0)] {
        assert!(
            (held("j", bin) - first).abs() < 3.0,
            "bin {bin}: {}",
            held("j", bin)
        );
        assert!(
            (held("k", bin) - second).abs() < 3.0,
            "bin {bin}: {}",
            held("k", bin)
        );
    }
}

#[test]
fn both_fidelities_agree() {
    let scenario = curved("", "").scenario();
    let at = |fidelity| {
        let wish = Wish {
            fidelity: Some(fidelity),
            seconds: Some(1_200.0),
            ..Wish::default()
        };
        report(&scenario, &wish)
    };
    let (coarse, fine) = (at(Fidelity::Step), at(Fidelity::Chunk));
    let mut compared = 0;
    for (a, b) in coarse.policies.iter().zip(&fine.policies) {
        if let (Some(a_rate), Some(b_rate)) = (a.units_per_s, b.units_per_s) {
            near(a.policy.name(), b_rate, a_rate, 0.07);
            let (idle, fine_idle) = (a.gpu_idle_share.unwrap(), b.gpu_idle_share.unwrap());
            assert!(
                (idle - fine_idle).abs() < 0.08,
                "{:?}: {idle} {fine_idle}",
                a.policy
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 10, "all but whole-gpu");
}

#[test]
fn weights_divide_a_node() {
    let one = curved("", "").text();
    let second = one[one.find("[[jobs]]").unwrap()..].replacen(
        "name = \"j\"",
        "name = \"k\"\nweight = 2",
        1,
    );
    let scenario =
        Scenario::parse(&format!("{one}\n{second}"), "two.toml", Path::new(".")).unwrap();
    let report = report(&scenario, &Wish::default());
    // Both would do the same alone, so the heavier one does twice as much.
    for policy in [Policy::WaterfillStreak, Policy::Clairvoyant] {
        let jobs = &of(&report, policy).jobs;
        near(
            policy.name(),
            jobs[1].units_per_s / jobs[0].units_per_s,
            2.0,
            0.05,
        );
    }
}

#[test]
fn what_is_discarded_is_measured_and_counts() {
    let mut plain = curved("", "");
    plain.job = format!("{}\ndiscarded = 0.4", plain.job);
    let report = report(&plain.scenario(), &Wish::default());
    let row = of(&report, Policy::WaterfillStreak);
    assert!(row.moves >= 1, "the plan of the start did not know");
    assert!(row.of_clairvoyant.unwrap() > 0.9, "{row:?}");
}

#[test]
fn a_job_that_does_not_fit_beside_others_waits() {
    let one = curved("", "")
        .text()
        .replace("memory = \"10GiB\"", "memory = \"30GiB\"");
    let second =
        one[one.find("[[jobs]]").unwrap()..].replacen("[[jobs]]", "[[jobs]]\narrives = 100", 1);
    let second = second.replacen("name = \"j\"", "name = \"k\"", 1);
    let scenario =
        Scenario::parse(&format!("{one}\n{second}"), "two.toml", Path::new(".")).unwrap();
    let report = report(&scenario, &Wish::default());
    let row = of(&report, Policy::WaterfillStreak);
    assert_eq!(row.jobs[1].waited_s, 500.0);
    assert_eq!(row.jobs[1].units_per_s, 0.0);
}

#[test]
fn the_same_seed_gives_the_same_report_under_any_number_of_threads() {
    let mut plain = curved(
        "[[jobs.drifts]]\nstage = \"generation\"\nat = 100\nfactor = 1.5\n",
        "noise = 0.05\nvariation = 0.05",
    );
    plain.node = "count = 5\nvariety = 0.2\ncores = 10\ngpus = 1\ngpu = \"h100\"";
    plain.job = "units_per_iteration = 4096\njitter = 100".to_owned();
    let scenario = plain.scenario();
    let json = |threads, seed, fidelity| {
        let wish = Wish {
            threads: Some(threads),
            seed: Some(seed),
            seconds: Some(200.0),
            fidelity: Some(fidelity),
            ..Wish::default()
        };
        serde_json::to_string(&report(&scenario, &wish)).unwrap()
    };
    for fidelity in [Fidelity::Step, Fidelity::Chunk] {
        let one = json(1, 3, fidelity);
        assert_eq!(one, json(3, 3, fidelity));
        assert_ne!(one, json(1, 4, fidelity));
    }
}

#[test]
fn only_the_policies_that_were_asked_for_are_run() {
    let wish = Wish {
        policies: vec![Policy::Clairvoyant, Policy::Even, Policy::Even],
        ..Wish::default()
    };
    let report = report(&curved("", "").scenario(), &wish);
    let run: Vec<Policy> = report.policies.iter().map(|row| row.policy).collect();
    assert_eq!(run, [Policy::Even, Policy::Clairvoyant]);
}

#[test]
fn what_is_not_possible_is_said_and_the_rest_goes_on() {
    let report = report(&curved("", "").scenario(), &Wish::default());
    let row = of(&report, Policy::WholeGpu);
    let why = row.not_possible.as_ref().unwrap();
    assert!(
        why.contains("2 stages need a GPU each, the job has 1"),
        "{why}"
    );
    assert!(report.remarks()[0].starts_with("whole-gpu: not possible"));
    assert!(report.table().to_string().contains("clairvoyant"));
    assert!(super::super::svg(&report).contains("</svg>"));
}

#[test]
fn who_estimates_interference_from_the_reports_finds_it() {
    use super::super::keeper::Keeper;
    use super::super::together::{Candidate, plan_node};
    let mut plain = curved("", "");
    plain.job =
        "units_per_iteration = 4096\ninterference = { generation = { training = 0.4 } }".to_owned();
    plain.training = format!("{}\nvariation = 0.1", plain.training);
    plain.generation = format!("{}\nvariation = 0.02", plain.generation);
    plain.spec = "groups = 2\nrebalance = { frozen = true }";
    let scenario = plain.scenario();
    let world = World::new(&scenario, 1, 0).unwrap();
    let job = &world.jobs[0];
    let profiles: Vec<_> = job.profiles.iter().map(Some).collect();
    let inputs = evenkeel_core::allocate::Inputs {
        profiles: &profiles,
        ..job.told(&job.job.spec)
    };
    let candidate = Candidate {
        inputs,
        previous: None,
    };
    let mut planned = plan_node(&world.node, &world.room, &[candidate])
        .remove(0)
        .unwrap();
    // Training is given more than it needs, so that it waits now and then: else nothing can be told.
    for (stage, sms) in [(1, 40), (2, 92)] {
        let plan = &mut planned.plan.stages[stage];
        (plan.sms, plan.cap) = (evenkeel_core::unit::Sms(sms), evenkeel_core::unit::Sms(sms));
    }
    let mut keeper = Keeper::new(
        &world,
        job,
        Policy::WaterfillStreak,
        (planned.room, planned.plan),
    );
    let layout = Layout::of_plan(keeper.plan());
    let mut tally = Tally::new(1e4, 1, 3);
    let mut step = StepEngine::new(job, 0.0);
    for _ in 0..300 {
        let seen = step.advance(job, &layout, 1e6, &mut tally).unwrap();
        assert!(keeper.window(&seen).is_none(), "frozen");
    }
    let kappa = keeper.kappa();
    let found = kappa[1][2].unwrap_or_else(|| panic!("{kappa:?}"));
    near("coarse", found, 0.4, 0.2);
    // The fine engine knows who was busy when: batches beside training take 1.4 times as long as the others.
    let mut chunk = ChunkEngine::new(job, &layout, 0.0).unwrap();
    let (mut beside, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let seen = chunk
            .advance(job, &layout, 1e6, &mut tally)
            .unwrap()
            .unwrap();
        let done = seen.done.unwrap();
        let training = &done[2].spells[0];
        for batch in &done[1].spells {
            let unit_s = (batch.to_s - batch.from_s) / batch.units;
            if batch.from_s >= training.from_s {
                beside.push(unit_s);
            } else if batch.from_s >= seen.from_s && batch.to_s <= training.from_s {
                alone.push(unit_s);
            }
        }
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    assert!(beside.len() > 100 && alone.len() > 100);
    near("fine", mean(&beside) / mean(&alone), 1.4, 0.02);
}
