//! The lines of calibration, interference, several jobs and what-if: one file each. Most of them run a property test of the
//! core in a release build and read the line that it prints.
mod bad;
mod corun;
mod detect;
mod search;
mod speed;
mod stages;
mod trials;
mod two;
mod whatif;

use anyhow::{Context as _, bail, ensure};

use crate::Run;
use crate::plans::{cargo, tail};
use crate::row::Row;

/// Measures one line.
pub(crate) async fn measure(run: &Run, number: u8) -> anyhow::Result<Vec<Row>> {
    match number {
        1 => search::measure(run),
        2 => search::fairness(run),
        3 => corun::measure(run),
        4 => {
            let mut rows = trials::measure(run)?;
            rows.extend(stages::measure().await?);
            Ok(rows)
        }
        5 => detect::measure(run),
        6 => speed::measure(run),
        7 => {
            let mut rows = two::measure(run)?;
            rows.extend(whatif::measure(run)?);
            Ok(rows)
        }
        8 => bad::measure().await,
        n => bail!("there is no line {n}"),
    }
}

/// Runs one integration test of the core in a release build; what it printed.
fn core_test(test: &str, env: &[(&str, &str)]) -> anyhow::Result<String> {
    let args =
        format!("test --release -p evenkeel-core --test {test} -- --nocapture --test-threads 1");
    let args: Vec<&str> = args.split(' ').collect();
    let (ok, said) = cargo(&args, env)?;
    ensure!(ok, "{}", tail(&said));
    Ok(said)
}

/// The number after a word in a line.
fn number(line: &str, word: &str) -> anyhow::Result<f64> {
    let (_, rest) = line
        .split_once(&format!("{word} "))
        .with_context(|| format!("`{line}` has no {word}"))?;
    let text: String = rest
        .chars()
        .take_while(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | 'e'))
        .collect();
    text.parse()
        .with_context(|| format!("{word} of `{line}` is no number"))
}
