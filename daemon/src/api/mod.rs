//! The API: gRPC on a Unix socket (and over TCP where that is set), REST on loopback for those who look.
//!
//! Handlers parse, enqueue and await, nothing more: a handler is dropped when its client goes away, and what it
//! enqueued still runs exactly once. Wire types stop in `convert`. What a lease or a job is worth is decided in the
//! core; what is durable is the controller's; both are reached through [`crate::handle::Handle`] alone.
//!
//! ```text
//! caller   who calls, by the connection  convert  wire <-> words of the core     error  failures -> codes
//! grpc/*   one service each              session  the stream of a process        rest   JSON and metrics
//! tenants  who is whose                  identity what a certificate says        serve  listeners, limits, the end
//! budget   how much at once, of whom     rate     how often                      limits every number, with its reason
//! turns    who makes a large answer next   trials   what running workers measure
//! ```
mod budget;
mod caller;
mod config;
mod context;
mod convert;
mod error;
mod grpc;
mod hash;
pub(crate) mod identity;
pub mod limits;
mod past;
pub mod rate;
mod rest;
pub mod serve;
mod session;
mod tenants;
mod trials;
mod turns;
mod waiting;
mod whatif;

pub use config::{Config, GpuSockets, Tcp, Troubles};
pub use serve::{Api, Connections, Running, ServeError, TlsFiles};
pub use tenants::Tenants;
