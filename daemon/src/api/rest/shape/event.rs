//! The audit trail, and the decisions in it.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::plan::Decision;

/// One entry of the audit trail.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Event {
    /// Its number, rising without a gap.
    pub(in crate::api::rest) seq: u64,
    /// Wall-clock time of the record, milliseconds since 1970; for people only.
    unix_ms: u64,
    /// What happened, in snake case, such as `lease_granted`.
    kind: String,
    /// The lease concerned; 0: none.
    lease_id: u64,
    /// The job concerned; 0: none.
    job_id: u64,
    /// Whose it is; empty: the node's.
    tenant: String,
    /// The whole event.
    #[schema(value_type = Object)]
    json: Value,
}

impl From<pb::Event> for Event {
    fn from(e: pb::Event) -> Self {
        Self {
            seq: e.seq,
            unix_ms: e.unix_ms,
            kind: e.kind,
            lease_id: e.lease_id,
            job_id: e.job_id,
            tenant: e.tenant,
            // The event itself, not a text that holds it.
            json: serde_json::from_str(&e.json).unwrap_or(Value::Null),
        }
    }
}

/// Events, ascending by number.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct EventPage {
    /// The events.
    pub(in crate::api::rest) events: Vec<Event>,
    /// Where to go on: the `after` of what comes next, whether or not it is there yet.
    pub(in crate::api::rest) next_after_seq: u64,
}

impl From<pb::ListEventsResponse> for EventPage {
    fn from(page: pb::ListEventsResponse) -> Self {
        Self {
            events: page.events.into_iter().map(Event::from).collect(),
            next_after_seq: page.next_after_seq,
        }
    }
}

/// One decision about a job's shares: an admission, a move, or a move that was not worth it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct DecisionRecord {
    #[serde(flatten)]
    decision: Decision,
    /// The job's number.
    job_id: u64,
    /// Whose it is.
    tenant: String,
}

impl DecisionRecord {
    /// A decision with what its event says of whom it is about.
    pub(in crate::api::rest) fn new(decision: pb::Decision, job_id: u64, tenant: String) -> Self {
        Self {
            decision: decision.into(),
            job_id,
            tenant,
        }
    }
}

/// Decisions, ascending by the numbers of their events.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct DecisionPage {
    /// The decisions. A page that was long to look for may hold few or none; follow `Link` to go on.
    pub(in crate::api::rest) decisions: Vec<DecisionRecord>,
    /// Where to go on.
    pub(in crate::api::rest) next_after_seq: u64,
}
