//! Line 3: the allocator against exhaustive search, its speed, and the executed plan.
use std::process::Command;

use anyhow::Context as _;

use crate::Run;
use crate::balance::demo;
use crate::row::Row;

/// Runs cargo in the workspace; whether it succeeded and all that it said.
pub(crate) fn cargo(args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<(bool, String)> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let out = Command::new("cargo")
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root)
        .output()
        .context("cannot run cargo")?;
    let said =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    Ok((out.status.success(), said))
}

pub(crate) async fn measure(run: Run) -> anyhow::Result<Vec<Row>> {
    let cases = if run.short { "1000" } else { "10000" };
    let (equal, said) = cargo(
        &[
            "test",
            "--release",
            "-p",
            "evenkeel-core",
            "--test",
            "allocate",
            "--",
            "--nocapture",
        ],
        &[("EVENKEEL_ORACLE_CASES", cases)],
    )?;
    let tail = said
        .lines()
        .rev()
        .find(|l| l.contains("test result"))
        .unwrap_or("no result")
        .to_owned();
    let mut rows = vec![Row::new(
        "waterfill equals exhaustive search, ebrl never beats it, both explain themselves",
        "10,000 random one-job problems",
        format!("{cases} problems: {tail}"),
        equal && !run.short,
    )];
    let (_, said) = cargo(&["bench", "-p", "evenkeel-bench", "--bench", "solve"], &[])?;
    let mut under = true;
    let mut figures = Vec::new();
    let mut name = String::new();
    for line in said.lines() {
        if let Some((before, times)) = line.split_once("time:") {
            let label = if before.trim().is_empty() {
                name.clone()
            } else {
                before.trim().into()
            };
            let micros = middle_micros(times);
            under &= micros.is_some_and(|m| m < 200.0) || !label.contains("3_stages_8_batches");
            figures.push(format!("{label}: {:.0} µs", micros.unwrap_or(f64::NAN)));
        } else {
            name = line.trim().into();
        }
    }
    rows.push(Row::new(
        "one solve, 3 stages with 8 batch sizes on one GPU",
        "< 200 µs",
        figures.join("; "),
        under && !figures.is_empty(),
    ));
    let shown = demo(1, true, run)?;
    let ratio = shown
        .get("plan_vs_best")
        .and_then(serde_json::Value::as_f64)
        .unwrap_or(0.0);
    rows.push(Row::new(
        "the plan, executed, against the best executed split",
        "≥ 95 %",
        format!("{:.1} %", 100.0 * ratio),
        ratio >= 0.95,
    ));
    Ok(rows)
}

/// The estimate in criterion's `[low mid high]`.
fn middle_micros(times: &str) -> Option<f64> {
    let words: Vec<&str> = times
        .trim()
        .trim_matches(['[', ']'])
        .split_whitespace()
        .collect();
    let value: f64 = words.get(2)?.parse().ok()?;
    Some(match *words.get(3)? {
        "ns" => value / 1e3,
        "ms" => value * 1e3,
        "s" => value * 1e6,
        _ => value,
    })
}
