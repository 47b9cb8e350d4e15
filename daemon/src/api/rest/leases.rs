//! Leases; and taking one back.
use axum::extract::State;
use axum::http::Uri;
use evenkeel_core::id::LeaseId;
use evenkeel_proto::v1 as pb;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Shared;
use super::access::{Viewer, Writer};
use super::answer::{Answer, Shown};
use super::ask::{self, Body, Number, Path, Query};
use super::shape::{Lease, LeasePage, Nothing};
use crate::api::grpc;
use crate::api::limits::PAGE_MAX;

/// Which lease.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct LeasePath {
    /// Its number.
    #[param(value_type = u64, minimum = 1, maximum = 9_007_199_254_740_991_u64, example = 1)]
    id: Number,
}

/// Which leases.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LeasesQuery {
    /// Only those with higher numbers.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, maximum = 9_007_199_254_740_991_u64, required = false)]
    after: Number,
    /// At most so many; 1,000 if left out.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
    /// Only those of the live job with this name.
    #[param(min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    job: Option<String>,
}

/// Leases
///
/// Live ones, the queue among them. A page ends with a `Link` to the next one.
#[utoipa::path(
    get,
    path = "/v1/leases",
    operation_id = "listLeases",
    tag = "leases",
    params(LeasesQuery),
    responses((status = 200, body = LeasePage))
)]
pub(super) async fn list(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    uri: Uri,
    Query(query): Query<LeasesQuery>,
) -> Answer<LeasePage> {
    let job = ask::name("job", query.job.as_deref())?;
    let request = pb::ListLeasesRequest {
        job: job.map(|name| name.to_string()).unwrap_or_default(),
        page_size: ask::limit(query.limit, PAGE_MAX)?,
        after_id: query.after.0,
    };
    let page = grpc::list_leases(&ctx, &caller, &request).await?;
    let next = Some(page.next_after_id).filter(|id| *id > 0);
    let next = next.map(|id| ask::next_page(&uri, &id.to_string()));
    Ok(Shown::page(page.into(), next))
}

/// One lease
///
/// Live, or ended and remembered.
#[utoipa::path(
    get,
    path = "/v1/leases/{id}",
    operation_id = "getLease",
    tag = "leases",
    params(LeasePath),
    responses((status = 200, body = Lease))
)]
pub(super) async fn show(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Path(path): Path<LeasePath>,
) -> Answer<Lease> {
    let lease = grpc::find_lease(&ctx, &caller, LeaseId(path.id.0)).await?;
    Ok(Shown::new(lease))
}

/// Take a lease back
///
/// Its tree is quarantined and, if it stays, ended. For admins, where `listen.rest_writes` allows it.
#[utoipa::path(
    post,
    path = "/v1/leases/{id}/revoke",
    operation_id = "revokeLease",
    tag = "changes",
    params(LeasePath),
    request_body = Nothing,
    responses((status = 200, body = Lease))
)]
pub(super) async fn revoke(
    State(ctx): Shared,
    Writer(caller): Writer,
    Path(path): Path<LeasePath>,
    _: Body<Nothing>,
) -> Answer<Lease> {
    let lease = grpc::revoke(&ctx, &caller, LeaseId(path.id.0)).await?;
    Ok(Shown::new(lease))
}
