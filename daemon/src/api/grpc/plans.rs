//! The service that answers "what if" and "why". It changes nothing.
use std::sync::Arc;

use evenkeel_core::command::Caller;
use evenkeel_core::id::{JobId, Name};
use evenkeel_proto::v1 as pb;
use pb::plan_service_server::PlanService;
use tonic::{Request, Response, Status};

use super::{Answer, jobs};
use crate::api::budget::Kind;
use crate::api::caller;
use crate::api::context::Context;
use crate::api::convert;
use crate::api::past;
use crate::api::turns::{self, Turn, aside};
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
        let turn = turns::of(&request)?;
        let question = whatif::Question::parse(&request.into_inner(), &peer.caller)?;
        let gathered = self
            .0
            .read(&peer.caller, move |state, _| question.gather(state));
        let gathered = gathered.await?;
        // The exact search may take its time; it must not take the runtime's.
        let plan = aside(turn, move || gathered.solve()).await??;
        Ok(Response::new(pb::SolvePlanResponse { plan: Some(plan) }))
    }

    async fn explain_job(
        &self,
        request: Request<pb::ExplainJobRequest>,
    ) -> Answer<pb::ExplainJobResponse> {
        let peer = caller::of(&request)?;
        let turn = turns::of(&request)?;
        let name = convert::name("name", &request.into_inner().name)?;
        let why = explain(&self.0, &peer.caller, name, turn).await?;
        Ok(Response::new(why))
    }
}

/// Why a job's shares are as they are, and what moved them last.
pub(in crate::api) async fn explain(
    ctx: &Context,
    caller: &Caller,
    name: Name,
    turn: Turn,
) -> Result<pb::ExplainJobResponse, Status> {
    let _place = ctx.place(Kind::Call, caller)?;
    let job = jobs::find(ctx, caller, name).await?;
    let waits_for = waiting::sentence(ctx, caller, JobId(job.id), turn).await?;
    let decisions = past::decisions_of(ctx, JobId(job.id), DECISIONS_MAX).await?;
    Ok(pb::ExplainJobResponse {
        sentences: convert::sentences(&job, waits_for),
        decisions: decisions.iter().map(convert::decision).collect(),
        job: Some(job),
    })
}
