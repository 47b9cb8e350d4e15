//! Between the wire and our own types. The only place that names the wire's messages, beside the calls.
//!
//! What the wire leaves out becomes a default; an enum value of a newer daemon becomes `Unknown`
//! or the nearest harmless one: a client must not fail on what it does not need.

mod job;
mod lease;
mod node;
mod plan;
mod trial;

pub(crate) use lease::{acknowledge, acquire_request, directive, lease_ref, work_report};
pub(crate) use node::list_events_request;
pub(crate) use plan::solve_request;
pub(crate) use trial::{trial, trial_offer, trial_result};
