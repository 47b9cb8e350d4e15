//! Line 3: stages that slow each other on the emulated GPU, in virtual time.
use anyhow::ensure;
use evenkeel_tests::corun::{Figures, Found, Kappa, figures};

use crate::Run;
use crate::row::Row;

/// Triples whose rates alone miss those beside each other, and how many of a short run.
const TRIPLES: usize = 20;
const SHORT: usize = 3;
/// Seeds that are looked at for them.
const SEEDS: u64 = 500;

pub(super) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let wanted = if run.short { SHORT } else { TRIPLES };
    let mut found: Vec<Figures> = Vec::new();
    for seed in 1..=SEEDS {
        if found.len() < wanted {
            found.extend(figures(seed)?);
        }
    }
    ensure!(
        found.len() == wanted,
        "of {SEEDS} seeds only {} have stages that slow each other",
        found.len()
    );
    let mut rows = vec![promised(&found), recovered(&found)];
    rows.extend(executed("`reserve`", &found, |f| f.reserve));
    rows.extend(executed("`cap`", &found, |f| f.cap));
    Ok(rows)
}

/// What a plan promises that knows only the curves alone.
fn promised(found: &[Figures]) -> Row {
    let least = found.iter().map(|f| f.misses).fold(f64::MAX, f64::min);
    let most = found.iter().map(|f| f.misses).fold(0.0, f64::max);
    Row::beside(
        "EMULATED GPU: what plans by curves alone promise, of triples with a stage that the other slows by 25 % or more",
        Ok(format!(
            "{} triples: {:.0} to {:.0} % too much",
            found.len(),
            100.0 * least,
            100.0 * most
        )),
    )
}

fn recovered(found: &[Figures]) -> Row {
    let of = |noted: bool| -> Vec<f64> {
        let all = found.iter().flat_map(|f| &f.kappa);
        all.filter(|k| (k.truth >= Kappa::OF_NOTE) == noted)
            .map(Kappa::error)
            .collect()
    };
    let (large, small) = (of(true), of(false));
    let most = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
    let mean = large.iter().sum::<f64>() / large.len().max(1) as f64;
    Row::new(
        "κ, found out in 200 steps of operation alone, against two saturated streams",
        "within 20 %; of less than 0.1, within 0.1",
        format!(
            "{} pairs: {:.1} % off on average, {:.1} % at most; {} smaller ones: {:.3} off at most",
            large.len(),
            100.0 * mean,
            100.0 * most(&large),
            small.len(),
            most(&small)
        ),
        !large.is_empty() && most(&large) <= 0.2 && most(&small) <= 0.1,
    )
}

fn executed(name: &str, found: &[Figures], of: impl Fn(&Figures) -> Found) -> [Row; 2] {
    let all: Vec<(u64, Found)> = found.iter().map(|f| (f.seed, of(f))).collect();
    let error = |f: &Found| f.error.abs().max(f.settled_error.abs());
    let off = all.iter().map(|(_, f)| error(f)).fold(0.0, f64::max);
    let moves: usize = all.iter().map(|(_, f)| f.moves).sum();
    let least = all
        .iter()
        .min_by(|a, b| a.1.of_best.total_cmp(&b.1.of_best));
    let (seed, worst) = least.map_or((0, 0.0), |(seed, f)| (*seed, f.of_best));
    let mean = all.iter().map(|(_, f)| f.of_best).sum::<f64>() / all.len().max(1) as f64;
    let short = all.iter().filter(|(_, f)| f.of_best < 0.97).count();
    [
        Row::new(
            &format!(
                "{name}: throughput predicted with κ, of the first plan and of the settled one"
            ),
            "within 10 %",
            format!("{:.1} % off at most", 100.0 * off),
            off <= 0.1,
        ),
        Row::new(
            &format!("{name}: the executed plan against the best executed split of the sweep"),
            "≥ 97 % for 20 triples",
            format!(
                "{:.1} % on average, {:.1} % at least (seed {seed}), {short} below; {moves} moves",
                100.0 * mean,
                100.0 * worst
            ),
            short == 0,
        ),
    ]
}
