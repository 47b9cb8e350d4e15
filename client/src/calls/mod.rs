//! The calls, by service.

mod jobs;
mod leases;
mod node;
mod profiles;

pub use node::Watch;
pub use profiles::PROFILE_BYTES_MAX;

use crate::error::{Error, Result};

/// A part of an answer that must be there.
fn required<T>(part: Option<T>, call: &'static str, what: &str) -> Result<T> {
    part.ok_or_else(|| Error::Protocol {
        call,
        what: format!("it lacks the {what}"),
    })
}
