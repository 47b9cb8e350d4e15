//! Detection, as a table: how soon a change is seen, how often none is, and what is lost, for noise, changes and both
//! detectors. `EVENKEEL_DRIFT_SEEDS` sets how many seeds each cell takes; the lines that begin with `drift:` are read by
//! `make accept`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that tells its figures"
)]
mod drifting;

use drifting::{Job, Slow, clairvoyant, cusum, streak};
use evenkeel_core::job::Detector;

fn seeds() -> u64 {
    let given = std::env::var("EVENKEEL_DRIFT_SEEDS").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(12)
}

const QUIET: Slow = [1.0; 3];
/// Windows before a change, and after it.
const BEFORE: u64 = 150;
const AFTER: u64 = 200;
/// What a cell's share of lost throughput is taken over, once the shares have moved: the last of the windows after.
const SETTLED: u64 = 100;

/// What came of one change.
struct Outcome {
    /// Windows from the change to the alarm; none: it was not seen.
    delay: Option<u64>,
    /// Alarms before the change.
    early: usize,
    /// Share of the clairvoyant's throughput that is lost in the end.
    loss: f64,
    moved: bool,
}

fn change(detector: Detector, stage: usize, factor: f64, noise: f64, seed: u64) -> Outcome {
    let mut job = Job::new(detector, seed);
    (0..BEFORE).for_each(|_| job.window(QUIET, noise));
    let (early, moves) = (job.alarms.len(), job.moves.len());
    let mut slow = QUIET;
    slow[stage] = factor;
    let mut got = 0.0;
    for n in 0..AFTER {
        job.window(slow, noise);
        got += if n >= AFTER - SETTLED {
            job.theta(slow)
        } else {
            0.0
        };
    }
    Outcome {
        delay: job.alarms.get(early).map(|at| at - BEFORE),
        early,
        loss: 1.0 - got / SETTLED as f64 / clairvoyant(slow),
        moved: job.moves.len() > moves,
    }
}

fn detectors() -> [(&'static str, Detector); 2] {
    [("streak", streak()), ("cusum", cusum())]
}

#[test]
fn changes_are_seen_soon_and_answered_well() {
    for (label, detector) in detectors() {
        for noise in [0.02, 0.05, 0.1, 0.2] {
            for factor in [1.1, 1.25, 1.5, 2.0, 4.0] {
                cell(label, detector, noise, factor);
            }
        }
    }
}

fn cell(label: &str, detector: Detector, noise: f64, factor: f64) {
    let runs: Vec<Outcome> = (0..seeds())
        .map(|seed| {
            change(
                detector,
                1 + (seed % 2) as usize,
                factor,
                noise,
                977 * seed + 13,
            )
        })
        .collect();
    let mut delays: Vec<u64> = runs.iter().filter_map(|r| r.delay).collect();
    delays.sort_unstable();
    let seen = delays.len();
    let at = |q: f64| {
        delays
            .get(((seen as f64 - 1.0).max(0.0) * q).round() as usize)
            .copied()
    };
    let show = |d: Option<u64>| d.map_or("-".into(), |d| d.to_string());
    let early: usize = runs.iter().map(|r| r.early).sum();
    let moved: Vec<&Outcome> = runs.iter().filter(|r| r.moved).collect();
    let loss = moved.iter().map(|r| r.loss).sum::<f64>() / moved.len().max(1) as f64;
    println!(
        "drift: {label} noise {noise} change {factor} runs {} seen {seen} median {} most {} early {early} moved {} loss {loss:.4}",
        runs.len(),
        show(at(0.5)),
        show(at(1.0)),
        moved.len(),
    );
    let asked = match label {
        "streak" if factor >= 1.5 && noise <= 0.05 => Some(25),
        "cusum" if factor >= 1.25 && noise <= 0.1 => Some(20),
        _ => None,
    };
    if let Some(most) = asked {
        assert_eq!(seen, runs.len(), "{label} {noise} {factor}");
        assert!(
            at(1.0) <= Some(most),
            "{label} {noise} {factor}: {delays:?}"
        );
        assert!(
            noise > 0.05 || loss < 0.02,
            "{label} {noise} {factor}: {loss}"
        );
    }
}

#[test]
fn constant_load_is_left_alone() {
    let windows = 1_000 * seeds();
    for (label, detector) in detectors() {
        for noise in [0.05, 0.1] {
            let mut job = Job::new(detector, 5);
            (0..windows).for_each(|_| job.window(QUIET, noise));
            let (alarms, moves) = (job.alarms.len(), job.moves.len());
            println!(
                "drift: constant {label} noise {noise} windows {windows} alarms {alarms} moves {moves}"
            );
            assert!(moves == 0 || noise > 0.05, "{label}: {:?}", job.moves);
            assert!(
                alarms as u64 <= 1 + windows / 50_000,
                "{label} {noise}: {:?}",
                job.alarms
            );
        }
    }
}

#[test]
fn a_slow_drift_loses_little_and_a_fast_swing_moves_nothing_to_and_fro() {
    for (label, detector) in detectors() {
        let (mut lost, mut n) = (0.0, 0.0);
        for seed in 0..seeds() {
            let mut job = Job::new(detector, seed + 100);
            for w in 0..3_000_u32 {
                let slow = [1.0, 1.0 + f64::from(w) / 3_000.0, 1.0];
                job.window(slow, 0.05);
                lost += 1.0 - job.theta(slow) / clairvoyant(slow);
                n += 1.0;
            }
        }
        println!("drift: slow {label} loss {:.4}", lost / n);
        assert!(lost / n < 0.05, "{label}: {}", lost / n);
        let mut most = 0;
        for seed in 0..seeds() {
            let mut job = Job::new(detector, seed + 200);
            for w in 0..2_000_u32 {
                let slow = [1.0, if w / 3 % 2 == 0 { 1.0 } else { 1.5 }, 1.0];
                job.window(slow, 0.05);
            }
            most = most.max(job.moves.len());
        }
        println!("drift: swing {label} moves {most}");
        assert!(most <= 2, "{label}: {most} moves");
        // One that lasts long enough to be seen: of its 80 turns fewer and fewer are followed.
        let mut most = 0;
        for seed in 0..seeds() {
            let mut job = Job::new(detector, seed + 300);
            for w in 0..2_000_u32 {
                let slow = [1.0, if w / 25 % 2 == 0 { 1.0 } else { 1.5 }, 1.0];
                job.window(slow, 0.05);
            }
            most = most.max(job.moves.len());
        }
        println!("drift: slower swing {label} moves {most}");
        assert!(most <= 30, "{label}: {most} moves");
    }
}
