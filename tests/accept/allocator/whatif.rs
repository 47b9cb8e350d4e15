//! The what-if simulator against the real demo: the same load, with a drift, under the same allocator and detector.
use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::Run;
use crate::balance::{evenkeel, number};
use crate::row::Row;

/// The demo's load as a scenario; its drift comes after a minute.
const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/scenarios/demo.toml");
/// How the demo is managed.
const POLICY: &str = "waterfill-streak";
/// When the simulated job has settled, and until just before the drift, in seconds.
const BEFORE_S: (f64, f64) = (20.0, 55.0);
/// The same after the shares have moved.
const AFTER_S: (f64, f64) = (120.0, 175.0);
/// How far a simulation may be from what happened.
const NEAR: f64 = 0.1;

pub(super) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let seconds = if run.short { 5 } else { 20 };
    let demo = evenkeel(&format!("demo --json --seed 1 --seconds {seconds}"))?;
    let told = evenkeel(&format!("simulate {SCENARIO} --policy {POLICY} -o json"))?;
    let row = |what: &str, figure: &str, span: (f64, f64)| {
        let found = || {
            let (real, simulated) = (number(&demo, figure)?, mean(&told, span)?);
            let off = simulated / real - 1.0;
            let shown = format!(
                "{simulated:.0} simulated, {real:.0} measured, {:+.1} %",
                100.0 * off
            );
            Ok((shown, off.abs() <= NEAR))
        };
        Row::judged(what, "within 10 %", found())
    };
    Ok(vec![
        row(
            "what-if against the real demo, before the drift (units/s)",
            "before_drift_units_per_s",
            BEFORE_S,
        ),
        row(
            "what-if against the real demo, after the drift and the move (units/s)",
            "rebalanced_units_per_s",
            AFTER_S,
        ),
    ])
}

/// Simulated throughput over a span of time.
fn mean(told: &Value, (from, to): (f64, f64)) -> anyhow::Result<f64> {
    let timeline = &told["timeline"];
    let step = timeline["step_s"].as_f64().context("no timeline.step_s")?;
    let points = timeline
        .pointer("/units_per_s/0/points")
        .and_then(Value::as_array)
        .context("no timeline.units_per_s[0].points")?;
    let inside = (0..points.len()).filter(|i| {
        let (begins, ends) = (*i as f64 * step, (*i + 1) as f64 * step);
        begins >= from && ends <= to
    });
    let rates: Vec<f64> = inside.filter_map(|i| points[i].as_f64()).collect();
    ensure!(!rates.is_empty(), "no point from {from} to {to} s");
    Ok(rates.iter().sum::<f64>() / rates.len() as f64)
}
