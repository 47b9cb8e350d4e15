//! The asynchronous rollout runtime that workers link: simulation, generation and training as three processes that
//! run at the same time and exchange observations, chunks of actions, trajectories and weights.
//!
//! - **Iterations overlap** (A1): rollout *i* runs while training works on rollout *i − 1*. [`StalenessGate`] says
//!   when generation may go on, [`TrajectoryQueue`] drops what is too old all the same, [`Weights`] carry versions.
//! - **Groups overlap** (A2): while environments of one group simulate, generation serves another
//!   ([`BatchFormer`]).
//! - **Steps overlap** (A3): inside a chunk every environment advances on its own; [`EnvPool`] gives each free core
//!   to a ready environment, in the order of a [`Policy`].
//!
//! [`stage`] has the three loops, generic over environment, policy, learner, GPU and transport; [`Meter`] keeps the
//! busy intervals that they report; [`hold`] is the thread that keeps a worker's lease, applies resizes and reports;
//! [`BatchSize`] is the batch size that a plan chose, on its way from there to a stage.
//! [`pipeline`] is the same pipeline in virtual time, for sweeps.
//!
//! It knows nothing of the daemon but the client library, and nothing of what an environment simulates.

pub mod affinity;
mod batch;
mod busy;
mod env;
mod former;
mod gate;
mod gpu;
mod hold;
mod meter;
pub mod pipeline;
mod pool;
mod queue;
mod schedule;
pub mod stage;
pub mod wire;

pub use batch::BatchSize;
pub use busy::{BusyLog, Interval};
pub use env::{Environment, Outcome};
pub use former::BatchFormer;
pub use gate::{Slot, StalenessGate, Weights};
pub use gpu::{Compute, GpuLane, LaneError, Ran};
pub use hold::{HoldError, Shares, hold};
pub use meter::Meter;
pub use pool::{Binding, Chunk, EnvPool, Finished, PoolConfig, PoolError};
pub use queue::{Item, TrajectoryQueue};
pub use schedule::Policy;
