//! Jobs: their stages, plans and reasons; and their end.
use axum::extract::{Extension, State};
use axum::http::Uri;
use evenkeel_core::id::{JobId, Name};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Shared;
use super::access::{Viewer, Writer};
use super::answer::{Answer, Shown};
use super::ask::{self, Body, Number, Path, Query};
use super::problem::Problem;
use super::shape::{Explanation, Job, JobPage, Nothing, PlanOfJob, Stages};
use crate::api::convert;
use crate::api::grpc;
use crate::api::limits::JOBS_PAGE_MAX;
use crate::api::turns::Turn;

/// Which job.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct JobPath {
    /// Its name, percent-encoded: a job `pick/place` is `pick%2Fplace`.
    #[param(
        min_length = 1,
        max_length = 128,
        pattern = "^[!-~]+$",
        example = "pick-and-place"
    )]
    name: String,
}

impl JobPath {
    pub(super) fn name(&self) -> Result<Name, Problem> {
        Ok(convert::name("name", &self.name)?)
    }
}

/// Which jobs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct JobsQuery {
    /// Ended ones too, as far as the newest events tell.
    #[serde(default)]
    include_ended: bool,
    /// Only those with higher numbers.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, maximum = 9_007_199_254_740_991_u64, required = false)]
    after: Number,
    /// At most so many; 100 if left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
}

/// Jobs
///
/// Everything about each: declaration, plan, balance, leases. A page ends with a `Link` to the next one.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    operation_id = "listJobs",
    tag = "jobs",
    params(JobsQuery),
    responses((status = 200, body = JobPage))
)]
pub(super) async fn list(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    uri: Uri,
    Query(query): Query<JobsQuery>,
) -> Answer<JobPage> {
    let most = ask::limit(query.limit, JOBS_PAGE_MAX)? as usize;
    let after = JobId(query.after.0);
    let (jobs, next) = grpc::page_of_jobs(&ctx, &caller, query.include_ended, after, most).await?;
    let page = JobPage {
        jobs: jobs.into_iter().map(Job::from).collect(),
        next_after_id: next.map_or(0, |id| id.0),
    };
    let next = next.map(|id| ask::next_page(&uri, &id.0.to_string()));
    Ok(Shown::page(page, next))
}

/// One job
///
/// A live one, by its name. An admin sees also that of another tenant.
#[utoipa::path(
    get,
    path = "/v1/jobs/{name}",
    operation_id = "getJob",
    tag = "jobs",
    params(JobPath),
    responses((status = 200, body = Job))
)]
pub(super) async fn show(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Path(path): Path<JobPath>,
) -> Answer<Job> {
    let job = grpc::find_job(&ctx, &caller, path.name()?).await?;
    Ok(Shown::new(job))
}

/// A job's stages
///
/// Of each what was declared, planned and measured, and who works for it.
#[utoipa::path(
    get,
    path = "/v1/jobs/{name}/stages",
    operation_id = "getStages",
    tag = "jobs",
    params(JobPath),
    responses((status = 200, body = Stages))
)]
pub(super) async fn stages(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Path(path): Path<JobPath>,
) -> Answer<Stages> {
    let job = grpc::find_job(&ctx, &caller, path.name()?).await?;
    Ok(Shown::new(job))
}

/// A job's plan
///
/// The split in force, with its reasons.
#[utoipa::path(
    get,
    path = "/v1/jobs/{name}/plan",
    operation_id = "getPlan",
    tag = "jobs",
    params(JobPath),
    responses((status = 200, body = PlanOfJob))
)]
pub(super) async fn plan(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Path(path): Path<JobPath>,
) -> Answer<PlanOfJob> {
    let job = grpc::find_job(&ctx, &caller, path.name()?).await?;
    Ok(Shown::new(job))
}

/// Why a job's shares are as they are
///
/// In sentences, with the last decisions about them.
#[utoipa::path(
    get,
    path = "/v1/jobs/{name}/explain",
    operation_id = "explainJob",
    tag = "jobs",
    params(JobPath),
    responses((status = 200, body = Explanation))
)]
pub(super) async fn explain(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Extension(turn): Extension<Turn>,
    Path(path): Path<JobPath>,
) -> Answer<Explanation> {
    let why = grpc::explain(&ctx, &caller, path.name()?, turn).await?;
    Ok(Shown::new(why))
}

/// Cancel a job
///
/// Its name is free again; its workers are told to release, and after a grace what is left is revoked. The answer has
/// the job as it was, with the leases whose holders are told. For admins, where `listen.rest_writes` allows it.
#[utoipa::path(
    post,
    path = "/v1/jobs/{name}/cancel",
    operation_id = "cancelJob",
    tag = "changes",
    params(JobPath),
    request_body = Nothing,
    responses((status = 200, body = Job))
)]
pub(super) async fn cancel(
    State(ctx): Shared,
    Writer(caller): Writer,
    Path(path): Path<JobPath>,
    _: Body<Nothing>,
) -> Answer<Job> {
    let job = grpc::cancel_job(&ctx, &caller, path.name()?).await?;
    Ok(Shown::new(job))
}
