//! The client of Evenkeel's daemon: typed calls that are tried until they have an answer, and guards
//! that keep leases alive.
//!
//! [`Client`] is asynchronous; [`blocking::Client`] is for threads without a runtime; [`LeaseGuard`]
//! works in both. A worker, in short:
//!
//! ```no_run
//! # use evenkeel_client::{GuardEvent, GuardOptions, LeaseRequest, blocking};
//! # use std::time::Duration;
//! let client = blocking::Client::from_env()?;
//! let worker = client.hold(
//!     &LeaseRequest::worker("reach", "training", 0),
//!     GuardOptions::default(),
//! )?;
//! // `worker.attached.environment` belongs into the environment before a GPU context is created.
//! while worker.guard.may_work() {
//!     if let Some(GuardEvent::Directive(d)) = worker.guard.wait_event(Duration::ZERO) {
//!         // … take up `d.target` …
//!         worker.guard.acknowledge(d.generation, d.target);
//!     }
//!     // … work, then `worker.guard.report(…)` …
//! }
//! # Ok::<(), evenkeel_client::Error>(())
//! ```
#![forbid(unsafe_code)]

mod address;
pub mod blocking;
mod calls;
mod client;
mod clock;
mod convert;
mod error;
mod guard;
pub mod model;
mod retry;
mod session;
mod tls;

pub use address::{Address, BadAddress, DEFAULT_SOCKET, SOCKET_VARIABLE};
pub use calls::{PROFILE_BYTES_MAX, Watch};
pub use client::Client;
pub use clock::BootTime;
pub use error::{Error, Rejection, Result};
pub use guard::{BATCH_VARIABLE, FENCE_VARIABLE, GuardOptions, LEASE_VARIABLE, LeaseGuard};
pub use model::*;
pub use retry::ClientConfig;
pub use session::{Callback, GuardEvent, GuardState, LossReason, OnDaemonLost};
pub use tls::{CA_VARIABLE, CERTIFICATE_VARIABLE, Credentials, KEY_VARIABLE, TlsError};
