//! The node: what it is, what it is made of, what is left of it; and its drain.
use std::sync::Arc;

use axum::extract::State;
use evenkeel_core::command::Caller;
use evenkeel_core::id::Name;

use super::Shared;
use super::access::{Viewer, Writer};
use super::answer::{Answer, Shown};
use super::ask::Body;
use super::shape::{Health, Node, Nothing, Pools, Topology};
use crate::api::context::Context;
use crate::api::grpc;

/// The node
///
/// What it has and what is leased, and what is wrong with it.
#[utoipa::path(get, path = "/v1/node",
    operation_id = "getNode", tag = "node", responses((status = 200, body = Node)))]
pub(super) async fn show(State(ctx): Shared, Viewer(caller): Viewer) -> Answer<Node> {
    let node = grpc::look_at_node(&ctx, &caller).await?;
    Ok(Shown::new(node))
}

/// Topology
///
/// Packages, NUMA nodes, cores and GPUs, and what is near what.
#[utoipa::path(
    get,
    path = "/v1/node/topology",
    operation_id = "getTopology",
    tag = "node",
    responses((status = 200, body = Topology))
)]
pub(super) async fn topology(State(ctx): Shared, Viewer(caller): Viewer) -> Answer<Topology> {
    let look = ctx.read(&caller, |state, _| Topology::of(state.durable.node()));
    Ok(Shown::new(look.await?))
}

/// Pools
///
/// Of each resource how much is installed, reserved, unavailable, held, promised and free.
#[utoipa::path(get, path = "/v1/pools",
    operation_id = "getPools", tag = "node", responses((status = 200, body = Pools)))]
pub(super) async fn pools(State(ctx): Shared, Viewer(caller): Viewer) -> Answer<Pools> {
    let look = ctx.read(&caller, |state, _| Pools::of(state));
    Ok(Shown::new(look.await?))
}

/// Drain the node
///
/// Grants nothing new, and asks holders to finish. For admins, where `listen.rest_writes` allows it.
#[utoipa::path(
    post,
    path = "/v1/node/drain",
    operation_id = "drainNode",
    tag = "changes",
    request_body = Nothing,
    responses((status = 200, body = Node))
)]
pub(super) async fn drain(ctx: Shared, Writer(who): Writer, _: Body<Nothing>) -> Answer<Node> {
    set_draining(&ctx, &who, true).await
}

/// Take grants up again
///
/// The opposite of a drain. For admins, where `listen.rest_writes` allows it.
#[utoipa::path(
    post,
    path = "/v1/node/undrain",
    operation_id = "undrainNode",
    tag = "changes",
    request_body = Nothing,
    responses((status = 200, body = Node))
)]
pub(super) async fn undrain(ctx: Shared, Writer(who): Writer, _: Body<Nothing>) -> Answer<Node> {
    set_draining(&ctx, &who, false).await
}

async fn set_draining(ctx: &Arc<Context>, who: &Caller, draining: bool) -> Answer<Node> {
    let node = grpc::drain(ctx, who, draining).await?;
    Ok(Shown::new(node))
}

/// Health
///
/// Answers while the controller does. `grants` says whether anything new can be granted.
#[utoipa::path(get, path = "/healthz",
    operation_id = "getHealth", tag = "daemon", responses((status = 200, body = Health)))]
pub(super) async fn health(State(ctx): Shared) -> Answer<Health> {
    let nobody = Caller::user(Name::unknown());
    let draining = ctx.read(&nobody, |state, _| state.durable.draining());
    let draining = draining.await?;
    let grants = !draining && ctx.degraded().is_none() && !ctx.stop.is_cancelled();
    Ok(Shown::new(Health {
        status: "serving".into(),
        grants,
    }))
}
