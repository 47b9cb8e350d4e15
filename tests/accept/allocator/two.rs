//! Line 7: two real jobs under the demo's emulated GPU.
use anyhow::Context as _;
use serde_json::Value;

use crate::Run;
use crate::balance::{evenkeel, number};
use crate::row::Row;

/// Seconds of a measured phase, and of one in a short run.
const PHASE_S: u32 = 20;
const SHORT_PHASE_S: u32 = 5;
/// How far the levels of two equal jobs may be from each other.
const EVEN: f64 = 0.15;
/// How far a rate may be from its prediction.
const NEAR: f64 = 0.1;

pub(super) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let seconds = if run.short { SHORT_PHASE_S } else { PHASE_S };
    let v = evenkeel(&format!("demo --jobs 2 --json --seconds {seconds}"))?;
    Ok(vec![
        Row::judged(
            "EMULATED GPU: the second job arrives, the first shrinks to its fair share",
            "fewer SMs, no more cores, levels within 15 points; the seconds reported",
            shrinks(&v),
        ),
        near(&v, "first_shared", "the first job beside the second"),
        near(&v, "second_shared", "the second job beside the first"),
        Row::judged(
            "the second ends, the first has everything back",
            "as before; the seconds reported",
            back(&v),
        ),
        near(&v, "first_after", "the first job afterwards"),
        Row::judged(
            "seen by a separate observer over the whole run",
            "nothing promised twice",
            once(&v),
        ),
    ])
}

fn text<'a>(v: &'a Value, path: &str) -> anyhow::Result<&'a str> {
    let found = v.pointer(path).and_then(Value::as_str);
    found.with_context(|| format!("the demo's JSON has no text `{path}`"))
}

fn sms(v: &Value, split: &str) -> anyhow::Result<f64> {
    let of = |stage: &str| number(v, &format!("{split}.{stage}_sms"));
    Ok(of("generation")? + of("training")?)
}

fn shrinks(v: &Value) -> anyhow::Result<(String, bool)> {
    let (before, after) = (
        sms(v, "arrival.first_split_before")?,
        sms(v, "arrival.first_split_after")?,
    );
    let second = sms(v, "arrival.second_split")?;
    let cores = |split: &str| number(v, &format!("arrival.{split}.simulation_cores"));
    let (had, has) = (cores("first_split_before")?, cores("first_split_after")?);
    let confirmed = number(v, "arrival.first_confirmed_seconds")?;
    let runs = number(v, "arrival.second_runs_seconds")?;
    let levels = (
        number(v, "first_shared.level")?,
        number(v, "second_shared.level")?,
    );
    let shown = format!(
        "{had} to {has} cores, {before} to {after} SMs, the second has {second}; confirmed after {confirmed:.2} s, the \
         second's first step after {runs:.2} s; levels {:.0} and {:.0} %: {}",
        100.0 * levels.0,
        100.0 * levels.1,
        text(v, "/arrival/first_reason")?
    );
    let is_fair = (levels.0 - levels.1).abs() <= EVEN;
    Ok((
        shown,
        after < before && has <= had && second > 0.0 && is_fair,
    ))
}

fn near(v: &Value, phase: &str, what: &str) -> Row {
    let found = || {
        let of = |name: &str| number(v, &format!("{phase}.{name}"));
        let (measured, predicted) = (of("measured_units_per_s")?, of("predicted_units_per_s")?);
        let ratio = measured / predicted;
        let shown = format!(
            "{measured:.0} of {predicted:.0} units/s, {:.1} %; {:.1} % of what the refitted curves say",
            100.0 * ratio,
            100.0 * of("measured_over_refitted")?
        );
        Ok((shown, (ratio - 1.0).abs() <= NEAR))
    };
    Row::judged(
        &format!("{what}: measured against predicted"),
        "within 10 %",
        found(),
    )
}

fn back(v: &Value) -> anyhow::Result<(String, bool)> {
    let all = v.pointer("/departure/everything_back");
    let all = all
        .and_then(Value::as_bool)
        .context("the demo's JSON does not say whether everything is back")?;
    let shown = format!(
        "{} SMs again; the second's workers were gone after {:.2} s, the first had confirmed after {:.2} s",
        sms(v, "departure.first_split_after")?,
        number(v, "departure.second_ended_seconds")?,
        number(v, "departure.first_confirmed_seconds")?
    );
    Ok((shown, all))
}

fn once(v: &Value) -> anyhow::Result<(String, bool)> {
    let seconds = number(v, "overcommit_seconds")?;
    let looks = number(v, "observer.looks")?;
    Ok((
        format!("{seconds} s in {looks} looks"),
        seconds == 0.0 && looks > 0.0,
    ))
}
