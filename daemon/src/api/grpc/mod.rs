//! The gRPC services. Each handler parses, enqueues and awaits; what it awaits is true when it comes.
mod jobs;
mod leases;
mod node;
mod plans;
mod profiles;
mod trial;
mod watching;

use std::sync::Arc;

use evenkeel_proto::v1 as pb;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use super::context::Context;
use super::limits::{ANSWER_MAX, MESSAGE_MAX, PROFILE_MESSAGE_MAX};
use super::serve::ServeError;

pub(super) use jobs::{
    cancel as cancel_job, find as find_job, page as page_of_jobs, watch_one as watch_job,
};
pub(super) use leases::{
    check_renewals, find as find_lease, list as list_leases, note_anothers, renew, revoke,
};
pub(super) use node::{
    Recent, drain, events, look as look_at_node, wanted, watch_it as watch_node,
};
pub(super) use plans::explain;
pub(super) use profiles::{find as find_profile, fitted, list as list_profiles};

/// What a call returns.
type Answer<T> = Result<tonic::Response<T>, Status>;
/// A stream of answers.
type Answers<T> = tokio_stream::wrappers::ReceiverStream<Result<T, Status>>;

/// The busiest service, reached without the router.
pub(super) type LeaseServer = pb::lease_service_server::LeaseServiceServer<leases::Leases>;

/// Path of the busiest service.
pub(super) const LEASES: &str = "/evenkeel.v1.LeaseService/";

/// Whether new grants are possible: the health of this name says so.
pub(super) const GRANTS: &str = "grants";

/// Names of the services in health checks, beside `""` (the process lives) and [`GRANTS`].
pub(super) const SERVICES: [&str; 5] = [
    pb::lease_service_server::SERVICE_NAME,
    pb::job_service_server::SERVICE_NAME,
    pb::profile_service_server::SERVICE_NAME,
    pb::plan_service_server::SERVICE_NAME,
    pb::node_service_server::SERVICE_NAME,
];

/// The lease service.
pub(super) fn leases(ctx: &Arc<Context>) -> LeaseServer {
    LeaseServer::new(leases::Leases(ctx.clone()))
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(ANSWER_MAX)
}

/// All other services, health and reflection among them.
pub(super) fn routes(ctx: &Arc<Context>) -> Result<(Routes, HealthReporter), ServeError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let describe = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection = describe().build_v1().map_err(ServeError::Reflection)?;
    let reflection_alpha = describe().build_v1alpha().map_err(ServeError::Reflection)?;
    let routes = Routes::new(
        pb::job_service_server::JobServiceServer::new(jobs::Jobs(ctx.clone()))
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(ANSWER_MAX),
    )
    .add_service(
        pb::profile_service_server::ProfileServiceServer::new(profiles::Profiles(ctx.clone()))
            .max_decoding_message_size(PROFILE_MESSAGE_MAX)
            .max_encoding_message_size(ANSWER_MAX),
    )
    .add_service(
        pb::plan_service_server::PlanServiceServer::new(plans::Plans(ctx.clone()))
            .max_decoding_message_size(PROFILE_MESSAGE_MAX)
            .max_encoding_message_size(ANSWER_MAX),
    )
    .add_service(
        pb::node_service_server::NodeServiceServer::new(node::Nodes(ctx.clone()))
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(ANSWER_MAX),
    )
    .add_service(health)
    .add_service(reflection)
    .add_service(reflection_alpha);
    Ok((routes.prepare(), reporter))
}

/// An answer that the core cannot give to this command.
fn unexpected(what: &'static str) -> Status {
    tracing::error!(
        what,
        "the controller answered something that does not belong to the command"
    );
    Status::internal(
        "the daemon gave an answer that does not belong to the request; this is a bug of the daemon",
    )
}
