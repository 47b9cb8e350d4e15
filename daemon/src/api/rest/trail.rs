//! The audit trail: all of it, and the decisions in it.
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse as _, Response};
use evenkeel_proto::v1 as pb;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Shared;
use super::accept::{self, JSON, NDJSON, Offer};
use super::access::Viewer;
use super::answer::{self, Answer, Shown};
use super::ask::{self, Number, Query};
use super::problem::Problem;
use super::shape::{DecisionPage, DecisionRecord, Event, EventPage};
use crate::api::convert;
use crate::api::grpc;
use crate::api::limits::PAGE_MAX;
use crate::api::past;

/// What a page of events can be.
pub(super) const EVENTS: Offer = &[JSON, NDJSON];

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Only those with higher numbers.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    after: Option<Number>,
    /// At most so many; 1,000 if left out.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
    /// Only those of this lease.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    lease: Option<Number>,
    /// Only those of the job with this name, its leases' among them.
    #[param(min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    job: Option<String>,
    /// The newest instead of the oldest; still ascending.
    #[serde(default)]
    newest: bool,
}

/// Which decisions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DecisionsQuery {
    /// Only those with higher numbers.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    after: Option<Number>,
    /// At most so many; 1,000 if left out.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
    /// Only those about the job with this name.
    #[param(min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    job: Option<String>,
    /// The newest instead of the oldest; still ascending.
    #[serde(default)]
    newest: bool,
}

/// The request that a query stands for.
fn request(query: &EventsQuery) -> Result<pb::ListEventsRequest, Problem> {
    let job = ask::name("job", query.job.as_deref())?;
    Ok(pb::ListEventsRequest {
        after_seq: query.after.unwrap_or_default().0,
        page_size: ask::limit(query.limit, PAGE_MAX)?,
        lease_id: ask::id("lease", query.lease)?,
        job: job.map(|name| name.to_string()).unwrap_or_default(),
        newest: query.newest,
    })
}

/// Events
///
/// The audit trail, oldest first, as one object or (with `Accept: application/x-ndjson`) one event a line. A full page
/// ends with a `Link` to the next one.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "listEvents",
    tag = "events",
    params(EventsQuery),
    responses((
        status = 200,
        content(
            (EventPage = "application/json"),
            (String = "application/x-ndjson", example = "{\"seq\":1,\"kind\":\"node_installed\"}\n")
        )
    ))
)]
pub(super) async fn events(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    uri: Uri,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Response, Problem> {
    let request = request(&query)?;
    let page = grpc::events(&ctx, &caller, &request).await?;
    let full = page.events.len() >= request.page_size as usize && !query.newest;
    let next = full.then(|| ask::next_page(&uri, &page.next_after_seq.to_string()));
    Ok(match accept::preferred(&headers, EVENTS) {
        Some(NDJSON) => {
            let events: Vec<Event> = page.events.into_iter().map(Event::from).collect();
            answer::lines(&events, next.as_deref())
        }
        _ => Shown::page(EventPage::from(page), next).into_response(),
    })
}

/// Decisions
///
/// How shares were decided: admissions, moves, and moves that were not worth it, each with its reason. Of all jobs, one
/// page searches a bounded stretch of the audit trail and may hold few or none: follow `Link`.
#[utoipa::path(
    get,
    path = "/v1/decisions",
    operation_id = "listDecisions",
    tag = "events",
    params(DecisionsQuery),
    responses((status = 200, body = DecisionPage))
)]
pub(super) async fn decisions(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    uri: Uri,
    Query(query): Query<DecisionsQuery>,
) -> Answer<DecisionPage> {
    let request = request(&EventsQuery {
        after: query.after,
        limit: query.limit,
        lease: None,
        job: query.job,
        newest: query.newest,
    })?;
    let asked = grpc::wanted(&ctx, &caller, &request).await?;
    let (records, next) = past::decisions(&ctx, asked).await?;
    let last = records.last().map(|r| r.seq);
    let record = |r: &crate::handle::EventRecord| {
        let tenant = r.tenant.as_ref().map(ToString::to_string);
        DecisionRecord::new(
            convert::decision(r),
            r.job.map_or(0, |id| id.0),
            tenant.unwrap_or_default(),
        )
    };
    let page = DecisionPage {
        decisions: records.iter().map(record).collect(),
        next_after_seq: next.or(last).unwrap_or(request.after_seq),
    };
    let next = next.map(|seq| ask::next_page(&uri, &seq.to_string()));
    Ok(Shown::page(page, next))
}
