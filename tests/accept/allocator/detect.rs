//! Line 5: detection over simulated windows, as a table.
use anyhow::Context as _;

use super::{core_test, number};
use crate::Run;
use crate::row::Row;

/// Seeds of each cell.
const SEEDS: u64 = 200;

pub(super) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let seeds = if run.short { 20 } else { SEEDS };
    let said = core_test("drift", &[("EVENKEEL_DRIFT_SEEDS", &seeds.to_string())])?;
    let lines: Vec<&str> = said
        .lines()
        .filter_map(|l| l.trim().strip_prefix("drift: "))
        .collect();
    let mut rows = Vec::new();
    for line in &lines {
        if line.contains(" change ") {
            rows.push(cell(line)?);
        }
    }
    for line in lines.iter().filter(|l| l.starts_with("constant ")) {
        let (windows, alarms) = (number(line, "windows")?, number(line, "alarms")?);
        let (noise, moves) = (number(line, "noise")?, number(line, "moves")?);
        let asked = if noise <= 0.05 {
            "no move"
        } else {
            "≤ 1 alarm in 50,000 windows"
        };
        let holds = if noise <= 0.05 {
            moves == 0.0
        } else {
            alarms <= (windows / 50_000.0).max(1.0)
        };
        rows.push(Row::new(
            line.split(" windows").next().unwrap_or(line),
            asked,
            format!("{windows} windows: {alarms} alarms, {moves} moves"),
            holds,
        ));
    }
    for line in lines.iter().filter(|l| l.starts_with("slow ")) {
        let loss = number(line, "loss")?;
        rows.push(Row::new(
            &format!("slow drift, {}", word(line, 1)),
            "mean loss < 5 %",
            percent(loss),
            loss < 0.05,
        ));
    }
    for line in lines.iter().filter(|l| l.starts_with("swing ")) {
        let moves = number(line, "moves")?;
        let what = format!(
            "a load that swings faster than the cool-down, {}",
            word(line, 1)
        );
        rows.push(Row::new(
            &what,
            "no oscillation",
            format!("{moves} moves at most in 2,000 windows"),
            moves <= 2.0,
        ));
    }
    anyhow::ensure!(rows.len() > 40, "only {} rows were printed", rows.len());
    Ok(rows)
}

fn word(line: &str, n: usize) -> &str {
    line.split(' ').nth(n).unwrap_or("")
}
fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// One cell of the table: detector, noise, change.
fn cell(line: &str) -> anyhow::Result<Row> {
    let label = word(line, 0);
    let (noise, factor) = (number(line, "noise")?, number(line, "change")?);
    let (runs, seen) = (number(line, "runs")?, number(line, "seen")?);
    let (early, loss) = (number(line, "early")?, number(line, "loss")?);
    let most = line
        .split_once("most ")
        .map(|(_, rest)| rest.split(' ').next().unwrap_or("-"));
    let most = most.context("no delay")?;
    let shown = format!(
        "seen in {seen} of {runs}, after {} windows (median), {most} at most; {early} alarms before; loss {}",
        line.split_once("median ")
            .map_or("-", |(_, rest)| rest.split(' ').next().unwrap_or("-")),
        percent(loss)
    );
    let limit = match label {
        "streak" if factor >= 1.5 && noise <= 0.05 => Some(25.0),
        "cusum" if factor >= 1.25 && noise <= 0.1 => Some(20.0),
        _ => None,
    };
    let what = format!("{label}, noise {:.0} %, change × {factor}", 100.0 * noise);
    let Some(limit) = limit else {
        return Ok(Row::beside(&what, Ok(shown)));
    };
    let in_time = most.parse::<f64>().is_ok_and(|m| m <= limit);
    let (asked, settled) = if noise <= 0.05 {
        (
            format!("all within {limit} windows, then within 2 %"),
            loss < 0.02,
        )
    } else {
        (format!("all within {limit} windows"), true)
    };
    Ok(Row::new(
        &what,
        &asked,
        shown,
        seen == runs && in_time && settled,
    ))
}
