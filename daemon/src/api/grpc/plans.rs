//! The service that answers "what if" and "why". It changes nothing.
use std::sync::Arc;

use evenkeel_core::id::JobId;
use evenkeel_proto::v1 as pb;
use pb::plan_service_server::PlanService;
use tonic::{Request, Response, Status};

use super::{Answer, jobs};
use crate::api::budget::Kind;
use crate::api::caller;
use crate::api::context::Context;
use crate::api::convert;
use crate::api::error;
use crate::api::waiting;
use crate::api::whatif;

/// Decisions that an explanation shows.
const DECISIONS_MAX: u32 = 20;

/// See the module's text.
pub(super) struct Plans(pub(super) Arc<Context>);

#[tonic::async_trait]
impl PlanService for Plans {
    async fn solve_plan(
        &self,
        request: Request<pb::SolvePlanRequest>,
    ) -> Answer<pb::SolvePlanResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let question = whatif::Question::parse(&request.into_inner(), &peer.caller)?;
        let gathered = self
            .0
            .read(&peer.caller, move |state, _| question.gather(state));
        let gathered = gathered.await?;
        // The exact search may take its time; it must not take the runtime's.
        let solved = tokio::task::spawn_blocking(move || gathered.solve()).await;
        let plan = solved
            .map_err(|_| Status::internal("the planner failed; this is a bug of the daemon"))??;
        Ok(Response::new(pb::SolvePlanResponse { plan: Some(plan) }))
    }

    async fn explain_job(
        &self,
        request: Request<pb::ExplainJobRequest>,
    ) -> Answer<pb::ExplainJobResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let name = convert::name("name", &request.into_inner().name)?;
        let job = jobs::find(&self.0, &peer.caller, name).await?;
        let waits_for = waiting::sentence(&self.0, &peer.caller, JobId(job.id)).await?;
        let decisions = self
            .0
            .handle
            .history()
            .decisions(JobId(job.id), DECISIONS_MAX)
            .await;
        let decisions = decisions.map_err(|error| {
            tracing::warn!(%error, "the audit trail cannot be read");
            error::plain(
                tonic::Code::Unavailable,
                "HISTORY",
                "the audit trail cannot be read just now",
            )
        })?;
        Ok(Response::new(pb::ExplainJobResponse {
            sentences: convert::sentences(&job, waits_for),
            decisions: decisions.iter().map(convert::decision).collect(),
            job: Some(job),
        }))
    }
}
