//! Line 3: the allocator against exhaustive search, its speed, and the executed plan.
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::Run;
use crate::balance::number;
use crate::row::Row;

/// Problems in `make test`, and here.
const SAMPLE: u64 = 1_000;
const PROBLEMS: u64 = 10_000;
/// One solve, in microseconds.
const SOLVE_US: f64 = 200.0;
/// What the benchmarks of three stages with eight batch sizes have in their names, and that of the default policy.
const ASKED_FOR: &str = "3x8";
const DEFAULT: &str = "solve/waterfill/3x8";

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

/// The last lines of what a program said: where it tells why it failed.
pub(crate) fn tail(said: &str) -> String {
    let lines: Vec<_> = said.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join(" / ")
}

pub(crate) async fn measure(run: &mut Run) -> anyhow::Result<Vec<Row>> {
    let problems = if run.short { SAMPLE } else { PROBLEMS };
    let mut rows = vec![
        Row::judged(
            "waterfill equals exhaustive search, ebrl never beats it, both explain themselves",
            "10,000 random one-job problems",
            search(Some(problems)).map(|(shown, n)| (shown, n == problems)),
        ),
        Row::judged(
            "the seeded sample in `make test`",
            "1,000 problems",
            search(None).map(|(shown, n)| (shown, n == SAMPLE)),
        ),
        Row::judged(
            "one solve, 3 stages with 8 batch sizes on one GPU",
            "< 200 µs each",
            solves(),
        ),
    ];
    for (seed, shown) in executed(run) {
        let found = shown.and_then(|v| {
            let best = number(&v, "best_static_units_per_s")?;
            let plan = number(&v, "rebalanced_units_per_s")?;
            let shown = format!(
                "{:.1} % ({plan:.0} of {best:.0} units/s)",
                100.0 * plan / best
            );
            Ok((shown, best > 0.0 && plan >= 0.95 * best))
        });
        rows.push(Row::judged(
            &format!(
                "the plan of seed {seed}, executed, against the best executed split of the sweep"
            ),
            "≥ 95 %",
            found,
        ));
    }
    Ok(rows)
}

/// The demo's long runs: all that line 1 has made in this run, else one.
fn executed(run: &mut Run) -> Vec<(u32, anyhow::Result<Value>)> {
    let known: Vec<u32> = run.demos.keys().copied().collect();
    let seeds = if known.is_empty() { vec![1] } else { known };
    seeds
        .into_iter()
        .map(|seed| (seed, run.demo(seed)))
        .collect()
}

/// Runs the properties of the allocator over so many problems (none: as `make test` does); how many there were.
fn search(problems: Option<u64>) -> anyhow::Result<(String, u64)> {
    let args = "test --release -p evenkeel-core --test allocate -- --nocapture --test-threads 1";
    let args: Vec<&str> = args.split(' ').collect();
    let given = problems.map(|n| n.to_string());
    let env: Vec<_> = given
        .iter()
        .map(|n| ("EVENKEEL_ORACLE_CASES", n.as_str()))
        .collect();
    let (ok, said) = cargo(&args, &env)?;
    ensure!(ok, "{}", tail(&said));
    let seen = said
        .lines()
        .find_map(|l| l.split_once("Seen {").map(|(_, rest)| rest))
        .context("the test did not say what it saw")?;
    let count = |name: &str| -> anyhow::Result<u64> {
        let (_, rest) = seen
            .split_once(&format!(" {name}: "))
            .with_context(|| format!("the test did not count {name}"))?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    };
    let (solved, infeasible) = (count("solved")?, count("infeasible")?);
    let shown = format!(
        "{} problems: {solved} solved, all equal; {infeasible} without a split, by both; ebrl lost {}",
        solved + infeasible,
        count("ebrl_lost")?
    );
    Ok((shown, solved + infeasible))
}

/// Runs the benchmarks of one solve; all that were asked for have to be fast enough.
fn solves() -> anyhow::Result<(String, bool)> {
    let (ok, said) = cargo(&["bench", "-p", "evenkeel-bench", "--bench", "solve"], &[])?;
    ensure!(ok, "cargo bench failed: {}", tail(&said));
    judge(&estimates(&said))
}

fn judge(figures: &[(String, Option<f64>)]) -> anyhow::Result<(String, bool)> {
    ensure!(
        figures.iter().any(|(label, _)| label == DEFAULT),
        "no benchmark is called {DEFAULT}: {figures:?}"
    );
    let slow = |(label, micros): &(String, Option<f64>)| {
        label.contains(ASKED_FOR) && micros.is_none_or(|m| !(0.0..SOLVE_US).contains(&m))
    };
    let shown: Vec<_> = figures
        .iter()
        .map(|(label, micros)| match micros {
            Some(m) => format!("{label}: {m:.0} µs"),
            None => format!("{label}: no figure"),
        })
        .collect();
    Ok((shown.join("; "), !figures.iter().any(slow)))
}

/// Criterion's estimates in microseconds, by name. A name stands before its times, or on a line of its own above.
pub(crate) fn estimates(said: &str) -> Vec<(String, Option<f64>)> {
    let (mut found, mut name) = (Vec::new(), String::new());
    for line in said.lines() {
        if let Some((before, times)) = line.split_once("time:") {
            let label = match before.trim() {
                "" => name.clone(),
                label => label.to_owned(),
            };
            found.push((label, middle_micros(times)));
        } else {
            name = line.trim().into();
        }
    }
    found
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

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "
solve/waterfill/3x8     time:   [88.1 µs 89.0 µs 90.2 µs]
solve/waterfill/3x8/one-group
                        time:   [180.1 µs 190.5 µs 195.0 µs]
other/huge              time:   [1.1 ms 1.2 ms 1.3 ms]
";

    #[test]
    fn a_solve_that_is_slow_or_missing_does_not_hold() {
        let figures = estimates(SAID);
        assert_eq!(figures.len(), 3);
        assert_eq!(figures[1].0, "solve/waterfill/3x8/one-group");
        assert_eq!(figures[2].1, Some(1200.0));
        assert!(
            judge(&figures).unwrap().1,
            "the one that is slow was not asked for"
        );
        let slow = estimates(&SAID.replace("89.0 µs", "200.0 µs"));
        assert!(!judge(&slow).unwrap().1);
        let dumb = estimates(&SAID.replace("[88.1 µs 89.0 µs 90.2 µs]", "[]"));
        assert!(!judge(&dumb).unwrap().1);
        assert!(judge(&estimates(&SAID.replace("3x8", "4x8"))).is_err());
        assert!(judge(&[]).is_err());
    }
}
