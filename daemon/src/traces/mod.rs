//! OpenTelemetry traces of leases' lives, for a collector: when a lease ends, its life is one trace, with a span for
//! each phase and each move of its share.
//!
//! Nothing is gathered while leases live. The audit trail already has every moment of them, so this follows the trail
//! like any reader, behind the commits, and reads an ended lease's events back: it costs renewals and grants nothing,
//! survives restarts, and what a collector missed is still there when it is back. What a life looks like as spans is
//! `life`; how they are sent is `otlp`, which a build without the feature `otel` leaves out.

#[cfg(feature = "otel")]
mod follow;
#[cfg(feature = "otel")]
mod life;
#[cfg(feature = "otel")]
mod otlp;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::TracesConfig;
use crate::handle::{Handle, History};

/// Whether this build can send traces.
pub const CAN_SEND: bool = cfg!(feature = "otel");

/// Follows the trail and sends what ends from now on, until `stop`. None: traces are off.
pub async fn spawn(
    config: &TracesConfig,
    node: String,
    handle: Handle,
    history: History,
    stop: CancellationToken,
) -> Option<JoinHandle<()>> {
    if config.endpoint.is_empty() {
        return None;
    }
    #[cfg(feature = "otel")]
    {
        let collector = otlp::Collector::new(&config.endpoint, &node);
        let follower = follow::Follower::begin(history, node, config.sample, collector).await;
        Some(tokio::spawn(follower.run(handle, stop)))
    }
    #[cfg(not(feature = "otel"))]
    {
        drop((node, handle, history, stop)); // the configuration's check has refused it already
        None
    }
}
