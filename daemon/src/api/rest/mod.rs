//! The REST face: JSON for those who look, and metrics. Read-only.
//!
//! It listens on loopback only and does not tell users apart: whoever can open a connection there sees everyone's
//! jobs and leases, as with an admin's eyes. On a machine whose users must not see each other's, leave `listen.rest`
//! empty; the Unix socket tells them apart. Requests that name another host are refused, so that a web page in
//! somebody's browser cannot read it through a name that it makes point here (DNS rebinding).
mod json;
mod metrics;
mod problem;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_core::command::Caller;
use evenkeel_core::id::{LeaseId, Name};
use evenkeel_proto::v1 as pb;
use serde::Deserialize;
use serde_json::{Value, json};

use super::context::Context;
use super::convert;
use super::grpc;
use super::limits::REST_TIMEOUT;
use problem::Problem;

type Shared = State<Arc<Context>>;
type Answer = Result<Json<Value>, Problem>;

/// Starts to record metrics. Comes first: a counter that was made before counts nothing.
pub(super) fn record(ctx: &Arc<Context>) {
    metrics::install(&ctx.tasks, &ctx.stop);
}

/// All paths.
pub(super) fn router(ctx: &Arc<Context>) -> Router {
    Router::new()
        .route("/v1/node", get(node))
        .route("/v1/jobs", get(jobs))
        .route("/v1/jobs/{name}", get(job))
        .route("/v1/leases", get(leases))
        .route("/v1/leases/{id}", get(lease))
        .route("/v1/events", get(events))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics::show))
        .fallback(nothing_here)
        .method_not_allowed_fallback(read_only)
        .layer(middleware::from_fn(guarded))
        .with_state(ctx.clone())
}

/// Local names only, and an answer in time.
async fn guarded(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|h| h.to_str().ok());
    if host.is_some_and(|host| !is_local(host)) {
        let detail = "this address answers only to localhost, 127.0.0.1 and [::1]";
        return Problem::new(StatusCode::MISDIRECTED_REQUEST, "OTHER_HOST", detail).into_response();
    }
    match tokio::time::timeout(REST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = "the daemon is too busy to answer just now";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY", detail).into_response()
        }
    }
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let loopback = address
        .parse::<std::net::IpAddr>()
        .is_ok_and(|ip| ip.is_loopback());
    name.eq_ignore_ascii_case("localhost") || loopback
}

/// Whoever looks here sees everything.
fn onlooker() -> Caller {
    Caller {
        tenant: Name::unknown(),
        admin: true,
    }
}

async fn node(State(ctx): Shared) -> Answer {
    let node = grpc::look_at_node(&ctx, &onlooker()).await?;
    Ok(Json(json::node(&node)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobsQuery {
    #[serde(default)]
    include_ended: bool,
}

async fn jobs(State(ctx): Shared, query: Result<Query<JobsQuery>, QueryRejection>) -> Answer {
    let Query(query) = query.map_err(Problem::query)?;
    let jobs = grpc::list_jobs(&ctx, &onlooker(), query.include_ended).await?;
    let jobs: Vec<Value> = jobs.iter().map(json::job).collect();
    Ok(Json(json!({ "jobs": jobs })))
}

async fn job(State(ctx): Shared, name: Result<Path<String>, PathRejection>) -> Answer {
    let Path(name) = name.map_err(Problem::path)?;
    let name = convert::name("name", &name)?;
    let job = grpc::find_job(&ctx, &onlooker(), name).await?;
    Ok(Json(json::job(&job)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeasesQuery {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    limit: u32,
    #[serde(default)]
    job: String,
}

async fn leases(State(ctx): Shared, query: Result<Query<LeasesQuery>, QueryRejection>) -> Answer {
    let Query(query) = query.map_err(Problem::query)?;
    let request = pb::ListLeasesRequest {
        job: query.job,
        page_size: query.limit,
        after_id: query.after,
    };
    let page = grpc::list_leases(&ctx, &onlooker(), &request).await?;
    let leases: Vec<Value> = page.leases.iter().map(json::lease).collect();
    Ok(Json(
        json!({ "leases": leases, "next_after_id": page.next_after_id }),
    ))
}

async fn lease(State(ctx): Shared, id: Result<Path<u64>, PathRejection>) -> Answer {
    let Path(id) = id.map_err(Problem::path)?;
    let lease = grpc::find_lease(&ctx, &onlooker(), LeaseId(id)).await?;
    Ok(Json(json::lease(&lease)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    limit: u32,
    #[serde(default)]
    lease: u64,
    #[serde(default)]
    job: String,
    #[serde(default)]
    newest: bool,
}

async fn events(State(ctx): Shared, query: Result<Query<EventsQuery>, QueryRejection>) -> Answer {
    let Query(query) = query.map_err(Problem::query)?;
    let request = pb::ListEventsRequest {
        after_seq: query.after,
        page_size: query.limit,
        lease_id: query.lease,
        job: query.job,
        newest: query.newest,
    };
    let page = grpc::events(&ctx, &onlooker(), &request).await?;
    let events: Vec<Value> = page.events.iter().map(json::event).collect();
    Ok(Json(
        json!({ "events": events, "next_after_seq": page.next_after_seq }),
    ))
}

/// 200 while the controller answers. `grants` says whether anything new can be granted.
async fn healthz(State(ctx): Shared) -> Answer {
    let draining = ctx.read(&onlooker(), |s, _| s.durable.draining()).await?;
    let grants = !draining && ctx.degraded().is_none() && !ctx.stop.is_cancelled();
    Ok(Json(json!({ "status": "serving", "grants": grants })))
}

/// For who comes while too many look at once.
pub(super) fn busy() -> Response {
    let detail = "too many look at once; come back in a second";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY", detail);
    ([(header::RETRY_AFTER, "1")], problem).into_response()
}

async fn nothing_here() -> Problem {
    let detail = "there is /v1/node, /v1/jobs, /v1/jobs/NAME, /v1/leases, /v1/leases/ID, /v1/events, /healthz and \
                  /metrics";
    Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_PATH", detail)
}

async fn read_only() -> Problem {
    let detail = "this address only shows; changes go over gRPC";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "READ_ONLY", detail)
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_local_names_are_answered() {
        for (host, expect) in [
            ("localhost", true),
            ("LOCALHOST:7420", true),
            ("127.0.0.1:7420", true),
            ("127.3.2.1", true),
            ("[::1]:7420", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:7420", false),
            ("localhost.evil.example", false),
            ("10.0.0.1:7420", false),
            ("", false),
        ] {
            assert_eq!(is_local(host), expect, "{host:?}");
        }
    }
}
