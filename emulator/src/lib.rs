//! The emulated GPU: what it is (`spec`), how long work takes on it (`model`, a library without a clock),
//! the device process that drives the model by the wall clock (`device`), its messages (`wire`), and the library
//! that its users link (`client`).
//!
//! It follows the rules of NVIDIA MPS, so that a machine without a GPU runs the same paths as one with. It is never
//! presented as a real GPU. The formulas, their sources and their limits of validity are in this crate's README.

pub mod client;
pub mod clock;
pub mod device;
pub mod limits;
pub mod model;
mod socket;
pub mod spec;
pub mod wire;

pub use client::{Admin, Client, ClientError, ContextOptions, Done, Ticket};
pub use model::{ClientId, ClientSpec, Completion, KernelGroup, Model, SubmissionId, solo_time_ns};
pub use socket::socket_path;
pub use spec::GpuSpec;
