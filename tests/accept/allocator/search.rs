//! Lines 1 and 2: the allocator against exhaustive search, for one job and for several.
use anyhow::Context as _;

use super::{core_test, number};
use crate::Run;
use crate::row::Row;

/// Problems of one job in a run of CI, and those made by hand.
const PROBLEMS: u64 = 5_000;
const MADE: u64 = 200;
/// Nodes with two or three jobs.
const NODES: u64 = 8_000;

/// The number that a test's `Seen { … }` has under a name.
fn seen(line: &str, name: &str) -> anyhow::Result<f64> {
    number(line, &format!(" {name}:"))
}

/// Line 1: one job.
pub(super) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let n = if run.short { 1_000 } else { PROBLEMS };
    let said = core_test("allocate", &[("EVENKEEL_ORACLE_CASES", &n.to_string())])?;
    let line = |made: bool| {
        let mut lines = said.lines().filter(|l| l.contains("Seen {"));
        lines
            .find(|l| l.contains("made:") == made)
            .context("the test did not say what it saw")
    };
    let row = |what: &str, asked: u64, made: bool| -> anyhow::Result<Row> {
        let line = line(made)?;
        let (solved, none) = (seen(line, "solved")?, seen(line, "infeasible")?);
        let shown = format!(
            "{} problems: {solved} solved, all equal to exhaustive search; {none} without a split, by both",
            solved + none
        );
        Ok(Row::new(
            what,
            &format!("{asked} problems, all equal"),
            shown,
            solved + none == asked as f64,
        ))
    };
    let random = line(false)?;
    let loss = format!(
        "it loses in {} of {} random problems, {:.1} % on average over all, {:.0} % at most",
        seen(random, "ebrl_lost")?,
        seen(random, "solved")?,
        100.0 * seen(random, "ebrl_loss")? / seen(random, "solved")?,
        100.0 * seen(random, "ebrl_most")?
    );
    Ok(vec![
        row(
            "waterfill on random problems of one job, all dimensions",
            n,
            false,
        )?,
        row("waterfill on problems made by hand", MADE, true)?,
        Row::beside("ebrl against it", Ok(loss)),
        Row::beside(
            "ebrl on curves of the usual shape, by the simulator's knee (docs/allocation.md)",
            published(),
        ),
    ])
}

/// What `ebrl` loses on average, by the share of the GPU at which the simulator has its knee.
fn published() -> anyhow::Result<String> {
    let said = core_test("published", &[])?;
    let mut told = Vec::new();
    for line in said.lines().filter(|l| l.starts_with("ebrl: ")) {
        let (knee, mean) = (number(line, "at")?, number(line, "mean")?);
        told.push(format!("{knee} %: {:.1} %", 100.0 * mean));
    }
    anyhow::ensure!(!told.is_empty(), "the test did not say what was lost");
    Ok(format!("lost on average at {}", told.join(", ")))
}

/// Line 2: two or three jobs.
pub(super) fn fairness(run: &Run) -> anyhow::Result<Vec<Row>> {
    let n = if run.short { 500 } else { NODES };
    let said = core_test("fair", &[("EVENKEEL_ORACLE_CASES", &n.to_string())])?;
    let line = said
        .lines()
        .find(|l| l.contains("Seen {"))
        .context("the test did not say what it saw")?;
    let solved = seen(line, "two")? + seen(line, "three")?;
    let exact = format!(
        "{solved} nodes ({} with three jobs), none has a better allocation; {} refusals, each justified; nobody lost when \
         one left; the order of the jobs changed nothing; {} too large for the exact search, and said so",
        seen(line, "three")?,
        seen(line, "refused")?,
        seen(line, "heuristic")?
    );
    let loss = said
        .lines()
        .find(|l| l.contains("fair: heuristic"))
        .context("no loss was told")?;
    let heuristic = format!(
        "on the same nodes: the lowest level is {:.1} % lower on average, {:.0} % at most; {} refused although something fits",
        100.0 * number(loss, "mean loss")?,
        100.0 * seen(line, "most")?,
        seen(line, "missed")?
    );
    let many = core_test("together", &[])?;
    let nodes = many.lines().filter(|l| l.starts_with("together:")).count();
    let planned = format!(
        "{nodes} nodes of 1 to 16 GPUs and 3 to 64 jobs: nothing given twice, planned again the same"
    );
    Ok(vec![
        Row::new(
            "no other allocation is lexicographically better",
            "none, by exhaustive search",
            exact,
            solved > 0.0,
        ),
        Row::beside("what the heuristic for more jobs loses", Ok(heuristic)),
        Row::new(
            "planning again changes nothing",
            "idempotent",
            planned,
            nodes > 0,
        ),
    ])
}
