//! What health checks are told: `""` says that the process lives, each service's name that it is served, and
//! `grants` whether anything new can be granted.
use std::sync::Arc;

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::api::context::Context;
use crate::api::grpc::{GRANTS, SERVICES};

/// Keeps health up to date until the daemon stops, and says then that it does.
pub(super) async fn follow(ctx: Arc<Context>, reporter: HealthReporter) {
    for service in SERVICES {
        reporter
            .set_service_status(service, ServingStatus::Serving)
            .await;
    }
    let mut degraded = ctx.handle.degraded();
    loop {
        let grants = if degraded.borrow_and_update().is_some() {
            ServingStatus::NotServing
        } else {
            ServingStatus::Serving
        };
        reporter.set_service_status(GRANTS, grants).await;
        tokio::select! {
            () = ctx.stop.cancelled() => break,
            changed = degraded.changed() => if changed.is_err() { break },
        }
    }
    for service in SERVICES.into_iter().chain(["", GRANTS]) {
        reporter
            .set_service_status(service, ServingStatus::NotServing)
            .await;
    }
}
