//! Line 4: how many trials a calibration takes, and what its plan loses.
use anyhow::Context as _;

use super::core_test;
use crate::Run;
use crate::row::Row;

pub(super) fn measure(_: &Run) -> anyhow::Result<Vec<Row>> {
    let said = core_test("trials", &[])?;
    let three = |label: &str| -> anyhow::Result<[f64; 3]> {
        let line = said.lines().find_map(|l| l.split_once(label));
        let (_, rest) = line.with_context(|| format!("the test did not tell `{label}`"))?;
        let mut numbers = Vec::new();
        for word in rest
            .split(['(', ')', ',', '[', ']', ':'])
            .map(str::trim)
            .filter(|w| !w.is_empty())
        {
            numbers.extend(word.parse::<f64>());
        }
        numbers
            .try_into()
            .map_err(|n| anyhow::anyhow!("`{label}` is followed by {n:?}"))
    };
    let [mean_share, _, share] = three("trials of the grid (mean, 95th percentile, most)")?;
    let [mean, _, most] = three("loss to the whole grid's plan (likewise)")?;
    Ok(vec![
        Row::new(
            "trials of 50 random stage triples",
            "≤ a third of the full grid's",
            format!(
                "{:.1} % on average, {:.1} % at most",
                100.0 * mean_share,
                100.0 * share
            ),
            share <= 1.0 / 3.0,
        ),
        Row::new(
            "their plans, on the true curves, against the full grid's",
            "within 2 %",
            format!(
                "{:.2} % on average, {:.2} % at most",
                100.0 * mean,
                100.0 * most
            ),
            most <= 0.02,
        ),
    ])
}
