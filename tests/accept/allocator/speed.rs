//! Line 6: how long a solve takes, for one job and for many, and how that grows.
use anyhow::{Context as _, ensure};

use crate::Run;
use crate::plans::{cargo, estimates, tail};
use crate::row::Row;

/// Benchmarks that were asked for, with their limits in microseconds.
const ASKED: [(&str, f64); 3] = [
    ("solve/waterfill/3x8", 200.0),
    ("together/8-gpus/16-jobs", 20_000.0),
    ("together/16-gpus/64-jobs", 200_000.0),
];

pub(super) fn measure(_: &Run) -> anyhow::Result<Vec<Row>> {
    let mut figures = Vec::new();
    for bench in ["solve", "together"] {
        let (ok, said) = cargo(&["bench", "-p", "evenkeel-bench", "--bench", bench], &[])?;
        ensure!(ok, "cargo bench failed: {}", tail(&said));
        figures.extend(estimates(&said));
    }
    let figure = |name: &str| {
        let found = figures.iter().find(|(label, _)| label == name);
        found
            .and_then(|(_, micros)| *micros)
            .with_context(|| format!("no benchmark is called {name}"))
    };
    let mut rows = Vec::new();
    for (name, limit) in ASKED {
        let asked = format!("< {} ms", limit / 1_000.0);
        let found = figure(name).map(|us| (format!("{:.3} ms", us / 1_000.0), us < limit));
        rows.push(Row::judged(name, &asked, found));
    }
    let grows = || -> anyhow::Result<(String, bool)> {
        let said = super::core_test("together", &[("EVENKEEL_GROWTH", "1")])?;
        let mut found = Vec::new();
        for line in said
            .lines()
            .filter_map(|l| l.trim().strip_prefix("growth: "))
        {
            let jobs: f64 = line.split(' ').next().unwrap_or("").parse()?;
            found.push((jobs, super::number(line, "took")?));
        }
        let (Some(first), Some(last)) = (found.first(), found.last()) else {
            anyhow::bail!("no growth was told");
        };
        let (jobs, factor) = (last.0 / first.0, last.1 / first.1);
        let shown: Vec<String> = found
            .iter()
            .map(|(n, s)| format!("{n} jobs {:.1} ms", 1e3 * s))
            .collect();
        let shown = format!(
            "{}; {factor:.0} × the time for {jobs:.0} × the jobs",
            shown.join(", ")
        );
        Ok((shown, last.0 >= 1_024.0 && factor <= jobs * jobs))
    };
    rows.push(Row::judged(
        "growth from 16 to 1,024 jobs",
        "no worse than quadratic",
        grows(),
    ));
    Ok(rows)
}
