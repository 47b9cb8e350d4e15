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
use tonic::{Request, Response, Status};

use super::watching::{Look, watch};
use super::{Answer, Answers, jobs};
use crate::api::budget::Kind;
use crate::api::caller;
use crate::api::context::Context;
use crate::api::convert::{self, Around, NodeFacts};
use crate::api::error;
use crate::api::limits::WATCH_EVERY;
use crate::api::past;

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
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let command = Command::Drain {
            caller: peer.caller.clone(),
            draining: request.into_inner().draining,
        };
        let done = self.0.handle.run(command).await;
        done.map_err(|failure| error::status(failure, &peer.caller))?;
        let node = Some(look(&self.0, &peer.caller).await?);
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
        let (ctx, caller) = (self.0.clone(), peer.caller.clone());
        let seen = move || {
            let (ctx, caller) = (ctx.clone(), caller.clone());
            async move {
                let node = Some(recent(&ctx, &caller).await?);
                Ok(Look::Now(pb::WatchNodeResponse { node }))
            }
        };
        let same = |a: &pb::WatchNodeResponse, b: &pb::WatchNodeResponse| match (&a.node, &b.node) {
            (Some(a), Some(b)) => convert::same_node(a, b),
            _ => false,
        };
        Ok(Response::new(watch(&self.0, peer, place, seen, same)))
    }
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
        caller.admin || lease.is_some_and(|l| l.tenant == caller.tenant)
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
    let job = match convert::optional_name("job", &w.job)? {
        None => None,
        Some(name) => Some(job_id(ctx, caller, name).await?),
    };
    let tenant = (!caller.admin).then(|| caller.tenant.clone());
    let records = past::page(ctx, &convert::page(w, job, tenant)).await?;
    let mut events: Vec<pb::Event> = records.into_iter().map(convert::event).collect();
    events.sort_by_key(|e| e.seq);
    let next_after_seq = events.last().map_or(w.after_seq, |e| e.seq);
    Ok(pb::ListEventsResponse {
        events,
        next_after_seq,
    })
}

async fn job_id(
    ctx: &Context,
    caller: &Caller,
    name: evenkeel_core::id::Name,
) -> Result<JobId, Status> {
    let (who, wanted) = (caller.clone(), name.clone());
    let live = ctx.read(caller, move |state, _| {
        jobs::named(state, &who, &wanted).map(|j| j.id)
    });
    if let Some(id) = live.await? {
        return Ok(id);
    }
    let ended = past::ended_job(ctx, caller, &name).await?;
    ended.ok_or_else(|| error::not_found(&format!("job {name}")))
}
