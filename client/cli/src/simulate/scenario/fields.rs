//! Numbers of a scenario, refused where they are read: what is not finite, negative or absurd never gets further, and the
//! message has the place. Every limit is here, with its reason.

use std::fmt::Display;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::units;

/// Longest simulated time, and longest time that a scenario may name: a month.
pub(super) const SECONDS_MAX: f64 = 31.0 * 86_400.0;
/// Nodes of one scenario: ten times the largest that is asked for.
pub(super) const NODES_MAX: u32 = 1_000;
/// Jobs of one node: as many as share a large server.
pub(super) const JOBS_MAX: usize = 64;
/// Drifts of one job.
pub(super) const DRIFTS_MAX: usize = 64;
/// Measured points of one stage.
pub(super) const POINTS_MAX: usize = 4_096;
/// Environments of one job: each is a queue entry in the `chunk` fidelity.
const ENVIRONMENTS_MAX: u32 = 1 << 16;
/// Steps of one chunk: policies plan tens of actions ahead.
const CHUNK_MAX: u32 = 4_096;
/// Staleness: beyond it an algorithm is offline.
const STALENESS_MAX: u64 = 64;
/// Work units a second, or of an iteration: a trillion tokens.
const UNITS_MAX: f64 = 1e12;
/// Factors of cost: a thousandfold is another workload.
const FACTOR_RANGE: (f64, f64) = (1e-3, 1e3);
/// Coefficients of variation: beyond it a mean says nothing.
const SPREAD_MAX: f64 = 5.0;
/// How much a neighbour can slow a stage down.
const KAPPA_MAX: f64 = 10.0;

fn refuse<E: Error>(value: impl Display, wanted: impl Display) -> E {
    E::custom(format!("{value} is not {wanted}"))
}

/// A number between two, both allowed.
fn within<'de, D: Deserializer<'de>>(from: D, low: f64, high: f64) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    if value.is_finite() && (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(refuse(value, format_args!("a number from {low} to {high}")))
}

/// A number above zero, up to so much.
fn above_zero<'de, D: Deserializer<'de>>(from: D, high: f64) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    if value.is_finite() && value > 0.0 && value <= high {
        return Ok(value);
    }
    Err(refuse(
        value,
        format_args!("a number above 0, at most {high}"),
    ))
}

/// A count of at least one.
fn counted<'de, D, N>(from: D, high: N) -> Result<N, D::Error>
where
    D: Deserializer<'de>,
    N: Deserialize<'de> + PartialOrd + From<u8> + Display + Copy,
{
    let value = N::deserialize(from)?;
    if value >= N::from(1) && value <= high {
        return Ok(value);
    }
    Err(refuse(
        value,
        format_args!("a whole number from 1 to {high}"),
    ))
}

pub(super) fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    above_zero(from, UNITS_MAX)
}
pub(super) fn maybe_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    rate(from).map(Some)
}
pub(super) fn units<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    above_zero(from, UNITS_MAX)
}
/// From 0 to 1, both allowed.
pub(super) fn share<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, 0.0, 1.0)
}
/// A share that leaves something.
pub(super) fn part<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, 0.0, 0.95)
}
/// A share that is something.
pub(super) fn efficiency<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, 0.05, 1.0)
}
pub(super) fn factor<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, FACTOR_RANGE.0, FACTOR_RANGE.1)
}
pub(super) fn exponent<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, 0.05, 4.0)
}
pub(super) fn spread<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, 0.0, SPREAD_MAX)
}
pub(super) fn kappa<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, 0.0, KAPPA_MAX)
}
pub(super) fn batch_half<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    within(from, 0.0, 1e6)
}
pub(super) fn maybe_knee<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    above_zero(from, 1_024.0).map(Some)
}
pub(super) fn maybe_environments<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<u32>, D::Error> {
    counted(from, ENVIRONMENTS_MAX).map(Some)
}
pub(super) fn chunk<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    counted(from, CHUNK_MAX)
}
pub(super) fn nodes<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    counted(from, NODES_MAX)
}
pub(super) fn staleness<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(from)?;
    if value <= STALENESS_MAX {
        return Ok(value);
    }
    Err(refuse(
        value,
        format_args!("a whole number from 0 to {STALENESS_MAX}"),
    ))
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a time is written as 500ms, 30s, 10m, 2h or a number of seconds"
)]
enum Written {
    Seconds(f64),
    Text(String),
}

/// Seconds, written as a number or as `500ms`, `10m`, `2h`.
pub(super) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let seconds = match Written::deserialize(from)? {
        Written::Seconds(seconds) => seconds,
        Written::Text(text) => {
            let parsed = units::duration(&text).map(|d: Duration| d.as_secs_f64());
            parsed.map_err(D::Error::custom)?
        }
    };
    if seconds.is_finite() && (0.0..=SECONDS_MAX).contains(&seconds) {
        return Ok(seconds);
    }
    Err(refuse(
        format_args!("{seconds} s"),
        format_args!("a time from 0 s to 31 days"),
    ))
}
pub(super) fn maybe_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    time(from).map(Some)
}
/// A time that is some.
pub(super) fn some_time<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let seconds = time(from)?;
    if seconds > 0.0 {
        return Ok(seconds);
    }
    Err(refuse("0 s", "a time above 0 s"))
}
pub(super) fn maybe_some_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    some_time(from).map(Some)
}
