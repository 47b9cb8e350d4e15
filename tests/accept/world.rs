//! Line 4: the simulated world, and the faults that are planted in it.
use std::time::Instant;

use crate::Run;
use crate::plans::cargo;
use crate::row::Row;

pub(crate) async fn measure(run: Run) -> anyhow::Result<Vec<Row>> {
    let filter = if run.short { "trace" } else { "world" };
    let start = Instant::now();
    let (ok, said) = cargo(
        &[
            "nextest",
            "run",
            "-p",
            "evenkeel-tests",
            "--no-capture",
            "-E",
            &format!("test({filter})"),
        ],
        &[],
    )?;
    let told: Vec<&str> = said.lines().filter(|l| l.starts_with("world:")).collect();
    let mut rows = vec![Row::new(
        "the world's tests: a million happenings and the planted faults",
        "pass, under 240 s",
        format!(
            "{} in {:.0} s",
            if ok { "pass" } else { "FAIL" },
            start.elapsed().as_secs_f64()
        ),
        ok && start.elapsed().as_secs() < 240,
    )];
    rows.extend(
        told.into_iter()
            .map(|l| Row::beside("the world says", l.trim_start_matches("world:").trim())),
    );
    Ok(rows)
}
