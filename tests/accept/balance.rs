//! Line 1: the demo over five seeds, and without a drift; on a fresh clone, where that is asked for.
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::Run;
use crate::clone;
use crate::daemon::program;
use crate::row::Row;

/// What each seed's drift is, as documented.
const DRIFTS: [(&str, f64); 5] = [
    ("generation", 1.5),
    ("generation", 2.0),
    ("training", 1.5),
    ("training", 2.0),
    ("simulation", 1.5),
];
/// The least length of a phase, in seconds.
const PHASE_S: f64 = 20.0;
/// The same in a short run: the shortest that the demo knows.
const SHORT_PHASE_S: f64 = 5.0;
/// Phases of a long run with a drift: before, rebalanced, three static splits, the old one, unmanaged.
const PHASES: f64 = 7.0;
/// Static splits that are executed: the best three, and the old one.
const EXECUTED: usize = 4;

impl Run {
    /// The seeds that this run measures.
    fn seeds(&self) -> usize {
        if self.short { 1 } else { DRIFTS.len() }
    }
    fn phase_s(&self) -> f64 {
        if self.short { SHORT_PHASE_S } else { PHASE_S }
    }
    /// The demo's long run of a seed: measured once, judged by lines 1 and 3.
    pub(crate) fn demo(&mut self, seed: u32) -> anyhow::Result<Value> {
        let seconds = self.phase_s();
        let known = self.demos.entry(seed).or_insert_with(|| {
            let args = format!("demo --json --full --seed {seed} --seconds {seconds}");
            evenkeel(&args).map_err(|e| format!("{e:#}"))
        });
        known.clone().map_err(anyhow::Error::msg)
    }
}

/// Runs the command line and returns the object that it prints.
pub(crate) fn evenkeel(args: &str) -> anyhow::Result<Value> {
    let out = Command::new(program("evenkeel")?)
        .args(args.split(' '))
        .output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success(),
        "evenkeel {args}: {}: {}",
        out.status,
        said.trim()
    );
    serde_json::from_slice(&out.stdout).with_context(|| format!("evenkeel {args}: {}", said.trim()))
}

pub(crate) async fn measure(run: &mut Run) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    if run.fresh_clone {
        rows.extend(clone::measure().await);
    }
    for (seed, drift) in (1..).zip(DRIFTS).take(run.seeds()) {
        let name = format!("seed {seed} ({} × {})", drift.0, drift.1);
        match run.demo(seed) {
            Ok(shown) => rows.extend(drifted(&name, drift, &shown, run.phase_s())),
            Err(e) => rows.push(Row::new(&name, "runs", format!("{e:#}"), false)),
        }
    }
    let (pairs, seconds) = (if run.short { 1 } else { 3 }, run.phase_s());
    match evenkeel(&format!(
        "demo --json --no-drift --pairs {pairs} --seconds {seconds}"
    )) {
        Ok(shown) => rows.extend(calm(&shown, pairs, run.phase_s())),
        Err(e) => rows.push(Row::new("without a drift", "runs", format!("{e:#}"), false)),
    }
    Ok(rows)
}

/// A figure of the demo. One that is absent, or no number, is an error: it can hold nothing.
pub(crate) fn number(v: &Value, path: &str) -> anyhow::Result<f64> {
    let place = format!("/{}", path.replace('.', "/"));
    v.pointer(&place)
        .and_then(Value::as_f64)
        .filter(|n| n.is_finite())
        .with_context(|| format!("the demo's JSON has no number `{path}`"))
}

fn list<'a>(v: &'a Value, path: &str) -> anyhow::Result<&'a Vec<Value>> {
    v.get(path)
        .and_then(Value::as_array)
        .with_context(|| format!("the demo's JSON has no list `{path}`"))
}

fn drifted(name: &str, drift: (&str, f64), v: &Value, phase_s: f64) -> Vec<Row> {
    let name = |what: &str| format!("{name}: {what}");
    vec![
        Row::judged(
            &name("gap before the drift"),
            "< 0.05",
            number(v, "before_gap").map(|gap| (format!("{gap:.3}"), gap < 0.05)),
        ),
        Row::judged(
            &name("throughput after it"),
            "≥ 95 % of the best static split, ≤ 2 moves",
            recovered(v),
        ),
        Row::judged(
            &name("gain realised"),
            "≥ 90 % of the achievable where that is above 1.10",
            realised(v),
        ),
        Row::beside(
            &name("unmanaged sharing"),
            number(v, "unmanaged_units_per_s").and_then(|unmanaged| {
                let share = unmanaged / number(v, "rebalanced_units_per_s")?;
                Ok(format!(
                    "{unmanaged:.0} units/s, {:.1} % of the rebalanced",
                    100.0 * share
                ))
            }),
        ),
        Row::judged(
            &name("over-commitment seen by the observer"),
            "0 s",
            over(v),
        ),
        Row::judged(
            &name("the drift, the phases and the rivals"),
            "the documented drift; phases ≥ 20 s; the best three of the sweep executed",
            conditions(v, drift, phase_s),
        ),
    ]
}

fn recovered(v: &Value) -> anyhow::Result<(String, bool)> {
    let best = number(v, "best_static_units_per_s")?;
    let rebalanced = number(v, "rebalanced_units_per_s")?;
    let moves = list(v, "rebalances")?.len();
    let shown = format!(
        "{:.1} % ({rebalanced:.0} of {best:.0} units/s), {moves} moves",
        100.0 * rebalanced / best
    );
    Ok((shown, best > 0.0 && rebalanced >= 0.95 * best && moves <= 2))
}

fn realised(v: &Value) -> anyhow::Result<(String, bool)> {
    let (gain, achievable) = (number(v, "gain")?, number(v, "achievable_gain")?);
    let needed = achievable > 1.10;
    let share = (gain - 1.0) / (achievable - 1.0);
    let shown = if needed {
        format!("gain {gain:.3} of {achievable:.3} ({:.0} %)", 100.0 * share)
    } else {
        format!("gain {gain:.3} of {achievable:.3} (not above 1.10: nothing is asked)")
    };
    Ok((shown, !needed || share >= 0.90))
}

/// Seconds of over-commitment, and that somebody looked.
fn over(v: &Value) -> anyhow::Result<(String, bool)> {
    let (over, looks) = (
        number(v, "overcommit_seconds")?,
        number(v, "observer.looks")?,
    );
    let first = v.pointer("/observer/first").and_then(Value::as_str);
    let first = first.filter(|f| !f.is_empty()).map(|f| format!("; {f}"));
    Ok((
        format!("{over} s in {looks:.0} looks{}", first.unwrap_or_default()),
        over == 0.0 && looks > 100.0,
    ))
}

fn conditions(
    v: &Value,
    (stage, factor): (&str, f64),
    least: f64,
) -> anyhow::Result<(String, bool)> {
    let drift = v.get("drift").context("the demo's JSON has no `drift`")?;
    let (had, by) = (drift["stage"].as_str(), number(v, "drift.factor")?);
    let (phase, all) = (number(v, "phase_seconds")?, number(v, "run_seconds")?);
    let (swept, executed) = (number(v, "swept")?, list(v, "executed")?.len());
    let shown = format!(
        "{} × {by}; phases of {phase} s in a run of {all:.0} s; {swept:.0} splits swept, {executed} executed",
        had.unwrap_or("?")
    );
    let holds = had == Some(stage)
        && by == factor
        && phase >= least
        && all >= PHASES * phase
        && executed >= EXECUTED
        && swept > executed as f64;
    Ok((shown, holds))
}

fn calm(v: &Value, pairs: usize, phase_s: f64) -> Vec<Row> {
    let name = |what: &str| format!("without a drift: {what}");
    let still = |v: &Value| {
        let moves = number(v, "moves")?;
        let had = list(v, "pairs")?.len();
        Ok((
            format!("{moves:.0} moves in {had} runs"),
            moves == 0.0 && had == pairs,
        ))
    };
    let alike = |v: &Value| {
        let ratio = number(v, "ratio")?;
        let mut each = Vec::new();
        for pair in list(v, "pairs")? {
            let share = number(pair, "managed_units_per_s")? / number(pair, "static_units_per_s")?;
            each.push(format!("{:.1} %", 100.0 * share));
        }
        let shown = format!("{:.1} % (each pair: {})", 100.0 * ratio, each.join(", "));
        Ok((shown, ratio >= 0.98 && each.len() == pairs))
    };
    let long = |v: &Value| {
        let (phase, all) = (number(v, "phase_seconds")?, number(v, "run_seconds")?);
        let shown = format!("{phase} s, {} of them in {all:.0} s", 2 * pairs);
        Ok((shown, phase >= phase_s && all >= 2.0 * pairs as f64 * phase))
    };
    vec![
        Row::judged(&name("moves"), "0, in three runs", still(v)),
        Row::judged(
            &name("throughput against a daemon-free static run"),
            "≥ 98 % (three interleaved pairs)",
            alike(v),
        ),
        Row::judged(&name("phases"), "≥ 20 s", long(v)),
        Row::judged(
            &name("over-commitment seen by the observer"),
            "0 s",
            over(v),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        json!({
            "before_gap": 0.01, "best_static_units_per_s": 1000.0, "rebalanced_units_per_s": 990.0,
            "rebalances": [{}], "gain": 1.25, "achievable_gain": 1.26, "unmanaged_units_per_s": 900.0,
            "overcommit_seconds": 0.0, "observer": {"looks": 5000}, "phase_seconds": 20, "run_seconds": 210.0,
            "drift": {"stage": "generation", "factor": 1.5}, "swept": 120, "executed": [1, 2, 3, 4]
        })
    }

    /// The rows that do not hold after a change.
    fn broken(change: impl FnOnce(&mut Value)) -> usize {
        let mut v = good();
        change(&mut v);
        let rows = drifted("seed 1", DRIFTS[0], &v, PHASE_S);
        rows.iter().filter(|r| r.holds == Some(false)).count()
    }

    #[test]
    fn a_figure_that_is_missing_or_no_number_never_holds() {
        assert_eq!(broken(|_| {}), 0);
        let keys = [
            ("before_gap", 1),
            ("best_static_units_per_s", 1),
            ("rebalanced_units_per_s", 2),
            ("rebalances", 1),
            ("gain", 1),
            ("achievable_gain", 1),
            ("unmanaged_units_per_s", 1),
            ("overcommit_seconds", 1),
            ("observer", 1),
            ("phase_seconds", 1),
            ("run_seconds", 1),
            ("drift", 1),
            ("swept", 1),
            ("executed", 1),
        ];
        for (key, rows) in keys {
            let gone = broken(|v| drop(v.as_object_mut().unwrap().remove(key)));
            assert_eq!(gone, rows, "{key} is absent");
            // A NaN is written as null.
            assert_eq!(broken(|v| v[key] = Value::Null), rows, "{key} is null");
        }
    }

    #[test]
    fn the_bars_are_those_that_were_asked_for() {
        let set = |key: &'static str, to: Value| broken(move |v| v[key] = to);
        assert_eq!(set("before_gap", json!(0.05)), 1);
        assert_eq!(set("rebalanced_units_per_s", json!(949.0)), 1);
        assert_eq!(set("rebalances", json!([{}, {}, {}])), 1);
        assert_eq!(set("gain", json!(1.20)), 1, "77 % of 1.26");
        assert_eq!(set("achievable_gain", json!(1.10)), 0, "nothing is asked");
        assert_eq!(set("overcommit_seconds", json!(0.02)), 1);
        assert_eq!(set("observer", json!({"looks": 3})), 1);
        assert_eq!(set("phase_seconds", json!(19)), 1);
        assert_eq!(set("run_seconds", json!(60.0)), 1, "no room for the phases");
        assert_eq!(set("drift", json!({"stage": "training", "factor": 1.5})), 1);
        assert_eq!(set("executed", json!([1, 2])), 1);
    }

    #[test]
    fn runs_without_a_drift_are_judged_by_all_their_figures() {
        let pair = json!({"managed_units_per_s": 99.0, "static_units_per_s": 100.0});
        let v = json!({
            "moves": 0, "ratio": 0.99, "pairs": [pair, pair, pair], "phase_seconds": 20, "run_seconds": 180.0,
            "overcommit_seconds": 0.0, "observer": {"looks": 5000}
        });
        let broken = |v: &Value| {
            calm(v, 3, PHASE_S)
                .iter()
                .filter(|r| r.holds == Some(false))
                .count()
        };
        assert_eq!(broken(&v), 0);
        for (key, to, rows) in [
            ("moves", json!(1), 1),
            ("ratio", json!(0.97), 1),
            ("ratio", Value::Null, 1),
            ("pairs", json!([pair]), 2),
            ("overcommit_seconds", json!(0.1), 1),
            ("overcommit_seconds", Value::Null, 1),
            ("observer", json!({"looks": 3}), 1),
            ("phase_seconds", json!(5), 1),
        ] {
            let mut changed = v.clone();
            changed[key] = to;
            assert_eq!(broken(&changed), rows, "{key}");
        }
    }
}
