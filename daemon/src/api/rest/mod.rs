//! The REST face: JSON for those who look, metrics, streams of events, and (where that is allowed) a few changes.
//!
//! It listens on loopback only. Who looks is told by a token, else by the connection's user ([`access::Viewer`]); what
//! is not theirs does not exist for them. Objects are read by the same functions as over gRPC.
//!
//! ```text
//! access   who looks, who may write     ask      paths, queries, bodies      accept    media types, known tags
//! shape/*  the objects: the schema      answer   objects, pages, tags        problem   what went wrong
//! node, jobs, leases, profiles, trail   feed     server-sent events          document  OpenAPI and its page
//! ```
mod accept;
mod access;
mod answer;
mod ask;
mod document;
mod feed;
mod jobs;
mod leases;
mod metrics;
mod node;
mod problem;
mod profiles;
mod shape;
mod trail;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use super::context::Context;
use super::limits::{REST_BODY_MAX, REST_TIMEOUT};
use accept::{EVENT_STREAM, HTML, JSON, Offer, TEXT};
pub(super) use access::{Closing, From};
use problem::Problem;

type Shared = State<Arc<Context>>;

/// The reason of an answer to who asks for a path that there is not.
const NO_SUCH_PATH: &str = "NO_SUCH_PATH";

/// Starts to record metrics. Comes first: a counter that was made before counts nothing.
pub(super) fn record(ctx: &Arc<Context>) {
    metrics::install(&ctx.tasks, &ctx.stop);
}

/// All paths.
pub(super) fn router(ctx: &Arc<Context>) -> Router {
    let mut router = Router::new();
    for (path, offer, methods) in routes() {
        let checked = middleware::from_fn_with_state(offer, acceptable);
        router = router.route(path, methods.route_layer(checked));
    }
    router
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_so)
        .layer(DefaultBodyLimit::max(REST_BODY_MAX))
        .layer(middleware::from_fn_with_state(ctx.clone(), guarded))
        .with_state(ctx.clone())
}

/// Each path, what it offers, and what may be done there. The document says the same; a test compares them.
fn routes() -> Vec<(&'static str, Offer, MethodRouter<Arc<Context>>)> {
    const OBJECT: Offer = &[JSON];
    const STREAM: Offer = &[EVENT_STREAM];
    vec![
        ("/v1/node", OBJECT, get(node::show)),
        ("/v1/node/topology", OBJECT, get(node::topology)),
        ("/v1/node/watch", STREAM, get(feed::node)),
        ("/v1/node/drain", OBJECT, post(node::drain)),
        ("/v1/node/undrain", OBJECT, post(node::undrain)),
        ("/v1/pools", OBJECT, get(node::pools)),
        ("/v1/jobs", OBJECT, get(jobs::list)),
        ("/v1/jobs/{name}", OBJECT, get(jobs::show)),
        ("/v1/jobs/{name}/stages", OBJECT, get(jobs::stages)),
        ("/v1/jobs/{name}/plan", OBJECT, get(jobs::plan)),
        ("/v1/jobs/{name}/explain", OBJECT, get(jobs::explain)),
        ("/v1/jobs/{name}/watch", STREAM, get(feed::job)),
        ("/v1/jobs/{name}/cancel", OBJECT, post(jobs::cancel)),
        ("/v1/leases", OBJECT, get(leases::list)),
        ("/v1/leases/{id}", OBJECT, get(leases::show)),
        ("/v1/leases/{id}/revoke", OBJECT, post(leases::revoke)),
        ("/v1/profiles", OBJECT, get(profiles::list)),
        ("/v1/profiles/{stage}/{gpu}", OBJECT, get(profiles::show)),
        ("/v1/decisions", OBJECT, get(trail::decisions)),
        ("/v1/events", trail::EVENTS, get(trail::events)),
        ("/v1/events/stream", STREAM, get(feed::events)),
        ("/healthz", OBJECT, get(node::health)),
        ("/metrics", &[TEXT], get(metrics::show)),
        ("/openapi.json", OBJECT, get(document::show)),
        ("/docs", &[HTML], get(document::page)),
    ]
}

/// Local names only, an answer in time, and only what the client does not have.
async fn guarded(State(ctx): Shared, mut request: Request, next: Next) -> Response {
    let asked = request.headers().clone();
    // Each name that the request gives: RFC 9112 lets the target's go before the header, and has one header at most.
    let named = asked.get_all(header::HOST).iter();
    let mut named = named.map(|host| host.to_str().unwrap_or("?"));
    let target = request.uri().authority().map(Authority::as_str);
    if !named.all(access::is_local) || !target.is_none_or(access::is_local) {
        let detail = "this address answers only to localhost, 127.0.0.1 and [::1]";
        return Problem::new(StatusCode::MISDIRECTED_REQUEST, "OTHER_HOST", detail).into_response();
    }
    let from = request.extensions().get::<From>().cloned();
    let who = access::known(&ctx, &asked, from.as_ref());
    request.extensions_mut().insert(who.clone());
    let path = request.uri().path().to_owned();
    if let Err(too_often) = access::in_time(&ctx, &who, request.method(), &path) {
        return too_often.into_response();
    }
    // Until the head of the answer: a stream goes on for as long as it is read.
    let answer = tokio::time::timeout(REST_TIMEOUT, next.run(request)).await;
    let answer = answer.unwrap_or_else(|_| {
        Problem::for_now("the daemon is too busy to answer just now").into_response()
    });
    access::note(&ctx, &who, from.as_ref(), &path, &answer);
    let mut answer = answer::unless_known(&asked, answer);
    let nosniff = HeaderValue::from_static("nosniff");
    answer
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    answer
}

/// Says so if the client takes nothing of what there is, before anything is done.
async fn acceptable(State(offer): State<Offer>, request: Request, next: Next) -> Response {
    if accept::preferred(request.headers(), offer).is_some() {
        return next.run(request).await;
    }
    let detail = format!(
        "here is {}; let Accept say that, or leave it out",
        offer.join(" or ")
    );
    Problem::new(StatusCode::NOT_ACCEPTABLE, "NOT_ACCEPTABLE", &detail).into_response()
}

/// For who comes while too many look at once.
pub(super) fn busy() -> Response {
    let detail = "too many look at once; come back in a second";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY", detail);
    ([(header::RETRY_AFTER, "1")], problem).into_response()
}

async fn nothing_here() -> Problem {
    let detail =
        "there is nothing at this path; /openapi.json lists the paths, and /docs shows them";
    Problem::new(StatusCode::NOT_FOUND, NO_SUCH_PATH, detail)
}

async fn not_so() -> Problem {
    let detail = "this path does not take this method; the header Allow says which it takes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", detail)
}
