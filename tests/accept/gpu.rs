//! Line 2: the emulated GPU against its documented formulas, measured by its own program.
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::Run;
use crate::daemon::program;
use crate::row::Row;

/// Rows that its program gives at least: probes and pairs, idle and hogged, and what happens to contexts.
const ROWS: usize = 40;

#[derive(Deserialize)]
struct Measured {
    what: String,
    asked: String,
    measured: String,
    holds: bool,
}

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let seconds = if run.short { "0.3" } else { "2" };
    let out = Command::new(program("evenkeel-gpu")?)
        .args(["accept", "--json", "--seconds", seconds])
        .output()?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let rows: Vec<Measured> = serde_json::from_slice(&out.stdout)
        .with_context(|| format!("evenkeel-gpu accept: {said}"))?;
    let all = rows.iter().all(|r| r.holds);
    ensure!(
        rows.len() >= ROWS && all == out.status.success(),
        "evenkeel-gpu accept gave {} rows and ended with {}: {said}",
        rows.len(),
        out.status
    );
    Ok(rows
        .into_iter()
        .map(|r| Row::new(&r.what, &r.asked, r.measured, r.holds))
        .collect())
}
