//! Line 1: the demo over five seeds, and without a drift.
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use crate::Run;
use crate::daemon::program;
use crate::row::Row;

/// Runs the demo and returns its object.
pub(crate) fn demo(seed: u32, full: bool, run: Run) -> anyhow::Result<Value> {
    let mut args = vec![
        "demo".into(),
        "--json".into(),
        "--seed".into(),
        seed.to_string(),
    ];
    if full && !run.short {
        args.push("--full".into());
    }
    evenkeel(&args)
}

fn evenkeel(args: &[String]) -> anyhow::Result<Value> {
    let out = Command::new(program("evenkeel")?).args(args).output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    serde_json::from_slice(&out.stdout)
        .with_context(|| format!("evenkeel {}: {}", args.join(" "), said.trim()))
}

const DRIFTS: [&str; 5] = [
    "generation × 1.5",
    "generation × 2",
    "training × 1.5",
    "training × 2",
    "simulation × 1.5",
];

pub(crate) async fn measure(run: Run) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (seed, drift) in (1..).zip(DRIFTS) {
        match demo(seed, true, run) {
            Ok(shown) => rows.extend(drifted(seed, drift, &shown)),
            Err(e) => rows.push(Row::new(
                &format!("seed {seed} ({drift})"),
                "runs",
                format!("{e:#}"),
                false,
            )),
        }
    }
    let pairs = if run.short { "1" } else { "3" };
    let calm = evenkeel(&["demo", "--json", "--no-drift", "--pairs", pairs].map(String::from))?;
    let (moves, ratio) = (number(&calm, "moves"), number(&calm, "ratio"));
    rows.push(Row::new(
        "without a drift, against a daemon-free static run",
        "0 moves, ≥ 98 % (three interleaved pairs)",
        format!("{moves:.0} moves, {:.1} %", 100.0 * ratio),
        moves == 0.0 && ratio >= 0.98,
    ));
    Ok(rows)
}

fn number(v: &Value, key: &str) -> f64 {
    v.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn drifted(seed: u32, drift: &str, v: &Value) -> Vec<Row> {
    let name = |what: &str| format!("seed {seed} ({drift}): {what}");
    let gap = number(v, "before_gap");
    let (best, rebalanced) = (
        number(v, "best_static_units_per_s"),
        number(v, "rebalanced_units_per_s"),
    );
    let (gain, achievable) = (number(v, "gain"), number(v, "achievable_gain"));
    let moves = v
        .get("rebalances")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    let over = number(v, "overcommit_seconds");
    let realised = (gain - 1.0) / (achievable - 1.0);
    let needs_gain = achievable > 1.10;
    vec![
        Row::new(
            &name("gap before the drift"),
            "< 0.05",
            format!("{gap:.3}"),
            gap < 0.05,
        ),
        Row::new(
            &name("throughput after it"),
            "≥ 95 % of the best static split, ≤ 2 moves",
            format!(
                "{:.1} % ({rebalanced:.0} of {best:.0} units/s), {moves} moves",
                100.0 * rebalanced / best
            ),
            rebalanced >= 0.95 * best && moves <= 2,
        ),
        Row::new(
            &name("gain realised"),
            "≥ 90 % of the achievable where that is above 1.10",
            format!(
                "gain {gain:.3} of {achievable:.3} ({:.0} %)",
                100.0 * realised
            ),
            !needs_gain || realised >= 0.90,
        ),
        Row::beside(
            &name("unmanaged sharing"),
            format!("{:.0} units/s", number(v, "unmanaged_units_per_s")),
        ),
        Row::new(
            &name("over-commitment seen by the observer"),
            "0 s",
            format!("{over} s"),
            over == 0.0,
        ),
    ]
}
