//! Between the wire and the words of the core: parsed once here, trusted after. No decisions, no waiting.
//!
//! A field that makes no sense is a [`Bad`]: its name, what is wrong with it, what would be right.
mod ask;
mod declared;
mod environment;
mod job;
mod lease;
mod node;
mod plan;
mod profile;
mod report;
mod spec;
mod trial;
mod vector;

use std::fmt::Display;

use evenkeel_core::grant::Resize;
use evenkeel_core::id::{Name, RequestId};
use evenkeel_proto::v1 as pb;

pub(super) use ask::{acquire, member};
pub(super) use environment::{Daemon, environment};
pub(super) use job::{ended_job, job, without_times};
pub(super) use lease::{LeaseTimes, directive, ended_lease, lease, lease_in, remaining};
pub(super) use node::{NodeFacts, backend_word, event, kind_word, node, page, without_uptime};
pub(super) use plan::{decision, plan, sentences};
pub(super) use profile::{curves, key, point, profile, profile_points, summary};
pub(super) use report::{acknowledge, report};
pub(super) use spec::{policy, rebalance, spec};
pub(super) use trial::{Wanted, offer, trial, trial_result};
pub(super) use vector::Around;

/// A field that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub(super) struct Bad {
    /// Which.
    pub(super) field: String,
    /// What is wrong, and what would be right.
    pub(super) why: String,
}

impl Bad {
    pub(super) fn new(field: impl Into<String>, why: impl Display) -> Self {
        Self {
            field: field.into(),
            why: why.to_string(),
        }
    }
    /// The same field, seen from a message around it.
    pub(super) fn within(self, outer: impl Display) -> Self {
        Self {
            field: format!("{outer}.{}", self.field),
            why: self.why,
        }
    }
}

/// A name that has to be there.
pub(super) fn name(field: &str, text: &str) -> Result<Name, Bad> {
    if text.is_empty() {
        return Err(Bad::new(field, "is missing"));
    }
    Name::new(text).map_err(|e| Bad::new(field, format!("`{}`: {e}", shortened(text))))
}

/// A name that may be left out.
pub(super) fn optional_name(field: &str, text: &str) -> Result<Option<Name>, Bad> {
    if text.is_empty() {
        Ok(None)
    } else {
        name(field, text).map(Some)
    }
}

/// What was given, short enough to be told back.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 64;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The key of idempotence.
pub(super) fn request_id(text: &str) -> Result<RequestId, Bad> {
    if text.is_empty() {
        let why = "is missing; give a UUID of your own making, best a time-ordered one (version 7), and the same one \
                   when you try again";
        return Err(Bad::new("request_id", why));
    }
    text.parse()
        .map_err(|e| Bad::new("request_id", format!("`{}`: {e}", shortened(text))))
}

/// A reason in words.
pub(super) fn reason(text: &str) -> Result<String, Bad> {
    let max = super::limits::REASON_MAX;
    if text.trim().is_empty() {
        return Err(Bad::new(
            "reason",
            "is missing; say why you are sure, it is recorded",
        ));
    }
    if text.len() > max {
        let why = format!("has {} bytes; {max} are kept", text.len());
        return Err(Bad::new("reason", why));
    }
    Ok(text.to_owned())
}

/// How a GPU share can change.
fn resize(field: &str, wire: i32) -> Result<Resize, Bad> {
    match pb::ResizeMode::try_from(wire) {
        Ok(pb::ResizeMode::Unspecified | pb::ResizeMode::Restart) => Ok(Resize::Restart),
        Ok(pb::ResizeMode::Live) => Ok(Resize::Live),
        Ok(pb::ResizeMode::Fixed) => Ok(Resize::Fixed),
        Err(_) => {
            let why = format!("{wire} is not known; 1 is live, 2 restart, 3 fixed");
            Err(Bad::new(field, why))
        }
    }
}

const fn resize_mode(resize: Resize) -> pb::ResizeMode {
    match resize {
        Resize::Live => pb::ResizeMode::Live,
        Resize::Restart => pb::ResizeMode::Restart,
        Resize::Fixed => pb::ResizeMode::Fixed,
    }
}

/// A number that stands for a default if it is zero.
const fn or_default(n: u32, default: u32) -> u32 {
    if n == 0 { default } else { n }
}

/// A number that is not too large.
fn at_most<T: PartialOrd + Display>(field: &str, n: T, most: T) -> Result<T, Bad> {
    if n <= most {
        Ok(n)
    } else {
        Err(Bad::new(field, format!("{n} is more than {most}")))
    }
}

/// A finite number in a range.
fn within(field: &str, x: f64, low: f64, high: f64) -> Result<f64, Bad> {
    if x.is_finite() && x >= low && x <= high {
        Ok(x)
    } else {
        // `Debug` writes 1e300 and not three hundred digits.
        let why = format!("{x:?} is not a number from {low:?} to {high:?}");
        Err(Bad::new(field, why))
    }
}
