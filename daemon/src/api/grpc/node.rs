//! The service of the node and its audit trail.
use std::sync::Arc;
use std::time::Instant;

use evenkeel_core::command::{Caller, Command};
use evenkeel_core::converge::{self, Trouble};
use evenkeel_core::id::JobId;
use evenkeel_core::step::State;
use evenkeel_core::unit::Time;
use evenkeel_proto::v1 as pb;
use pb::node_service_server::NodeService;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::watching::{Look, mark, watch};
use super::{Answer, Answers};
use crate::api::budget::{Kind, Place};
use crate::api::caller;
use crate::api::context::Context;
use crate::api::convert::{self, Around, NodeFacts};
use crate::api::error;
use crate::api::limits::WATCH_EVERY;
use crate::api::past;
use crate::handle::Page;

/// See the module's text.
pub(super) struct Nodes(pub(super) Arc<Context>);

#[tonic::async_trait]
impl NodeService for Nodes {
    async fn get_node(&self, request: Request<pb::GetNodeRequest>) -> Answer<pb::GetNodeResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let node = Some(look(&self.0, &peer.caller).await?);
        Ok(Response::new(pb::GetNodeResponse { node }))
    }

    async fn drain_node(
        &self,
        request: Request<pb::DrainNodeRequest>,
    ) -> Answer<pb::DrainNodeResponse> {
        let peer = caller::of(&request)?;
        let draining = request.into_inner().draining;
        let node = Some(drain(&self.0, &peer.caller, draining).await?);
        Ok(Response::new(pb::DrainNodeResponse { node }))
    }

    async fn list_events(
        &self,
        request: Request<pb::ListEventsRequest>,
    ) -> Answer<pb::ListEventsResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let page = events(&self.0, &peer.caller, &request.into_inner()).await?;
        Ok(Response::new(page))
    }

    type WatchNodeStream = Answers<pb::WatchNodeResponse>;

    async fn watch_node(
        &self,
        request: Request<pb::WatchNodeRequest>,
    ) -> Answer<Self::WatchNodeStream> {
        let peer = caller::of(&request)?;
        let place = self.0.place(Kind::Watch, &peer.caller)?;
        let closing = peer.closing.clone();
        let looks = watch_it(&self.0, &peer.caller, closing, place);
        Ok(Response::new(looks))
    }
}

/// Grants nothing new, or again.
pub(in crate::api) async fn drain(
    ctx: &Context,
    caller: &Caller,
    draining: bool,
) -> Result<pb::Node, Status> {
    let _place = ctx.place(Kind::Call, caller)?;
    let command = Command::Drain {
        caller: caller.clone(),
        draining,
    };
    let done = ctx.handle.run(command).await;
    done.map_err(|failure| error::status(failure, caller))?;
    look(ctx, caller).await
}

/// The node whenever something about it changes.
pub(in crate::api) fn watch_it(
    ctx: &Arc<Context>,
    caller: &Caller,
    closing: CancellationToken,
    place: Place,
) -> Answers<pb::WatchNodeResponse> {
    let (inner, who) = (ctx.clone(), caller.clone());
    let seen = move || {
        let (ctx, caller) = (inner.clone(), who.clone());
        async move {
            let node = Some(recent(&ctx, &caller).await?);
            Ok(Look::Now(pb::WatchNodeResponse { node }, None))
        }
    };
    let of = |w: &pb::WatchNodeResponse| {
        mark(&convert::without_uptime(
            w.node.as_ref().unwrap_or(&pb::Node::default()),
        ))
    };
    watch(ctx, caller, closing, place, seen, of)
}

/// Looks that were made a moment ago: one serves all watchers who see the same.
pub(in crate::api) type Recent = tokio::sync::Mutex<Vec<(Caller, Instant, pb::Node)>>;

/// The node as it was a moment ago at most. A look goes over all leases, and takes the controller's time.
async fn recent(ctx: &Context, caller: &Caller) -> Result<pb::Node, Status> {
    let mut recent = ctx.recent.lock().await;
    recent.retain(|(_, at, _)| at.elapsed() < WATCH_EVERY);
    if let Some((.., node)) = recent.iter().find(|(who, ..)| who == caller) {
        return Ok(node.clone());
    }
    let node = look(ctx, caller).await?;
    recent.push((caller.clone(), Instant::now(), node.clone()));
    Ok(node)
}

/// The node as it is.
pub(in crate::api) async fn look(ctx: &Context, caller: &Caller) -> Result<pb::Node, Status> {
    let facts = NodeFacts {
        name: ctx.config.node_name.clone(),
        uptime: ctx.uptime(),
        degraded: ctx.degraded(),
        troubles: ctx.troubles(),
    };
    let sockets = ctx.config.gpu_sockets.clone();
    let who = caller.clone();
    let node = ctx.read(caller, move |state, now| {
        let mut facts = facts;
        facts.troubles.extend(troubles(state, now, &who));
        convert::node(state, &Around::new(state.durable.node(), &sockets), facts)
    });
    node.await
}

/// What is wrong with leases that the caller may know of: they name jobs and processes.
fn troubles(state: &State, now: Time, caller: &Caller) -> Vec<String> {
    let d = &state.durable;
    let theirs = |t: &Trouble| {
        let lease = d.leases().get(&t.lease);
        lease.map_or(caller.admin, |l| d.is_seen_by(l, caller))
    };
    let all = converge::troubles(d, &state.volatile, now).into_iter();
    all.filter(theirs).map(|t| t.text).collect()
}

/// A page of the audit trail: the caller's own, or (for an admin) all of it.
pub(in crate::api) async fn events(
    ctx: &Context,
    caller: &Caller,
    w: &pb::ListEventsRequest,
) -> Result<pb::ListEventsResponse, Status> {
    let records = past::page(ctx, &wanted(ctx, caller, w).await?).await?;
    let mut events: Vec<pb::Event> = records.into_iter().map(convert::event).collect();
    events.sort_by_key(|e| e.seq);
    let next_after_seq = events.last().map_or(w.after_seq, |e| e.seq);
    Ok(pb::ListEventsResponse {
        events,
        next_after_seq,
    })
}

/// Which events a caller asks for, and may see.
pub(in crate::api) async fn wanted(
    ctx: &Context,
    caller: &Caller,
    w: &pb::ListEventsRequest,
) -> Result<Page, Status> {
    // Who is limited to a job sees that job's.
    let job = match convert::optional_name("job", &w.job)?.or_else(|| caller.job.clone()) {
        None => None,
        Some(name) => Some(job_id(ctx, caller, name).await?),
    };
    let tenant = (!caller.admin).then(|| caller.tenant.clone());
    Ok(convert::page(w, job, tenant))
}

async fn job_id(
    ctx: &Context,
    caller: &Caller,
    name: evenkeel_core::id::Name,
) -> Result<JobId, Status> {
    let (who, wanted) = (caller.clone(), name.clone());
    let live = ctx.read(caller, move |state, _| {
        state.durable.job_seen_by(&who, &wanted).map(|j| j.id)
    });
    if let Some(id) = live.await? {
        return Ok(id);
    }
    let ended = past::ended_job(ctx, caller, &name).await?;
    ended.ok_or_else(|| error::not_found(&format!("job {name}")))
}
