//! The three loops of the pipeline, each for a process (or a thread) of its own. They are generic over environment,
//! policy, learner and GPU; what they need from each other are [`Message`](crate::wire::Message)s.
//!
//! Each loop takes events from one channel and returns when its peers hang up or it is told to stop.

mod generate;
mod simulate;
mod train;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::mpsc;
use std::thread;

use evenkeel_gpu::KernelGroup;

use crate::gpu::{LaneError, Ran};
use crate::pool::{Finished, PoolError};
use crate::wire::{Message, Part, Receiver};

pub use generate::{GenerateConfig, generate};
pub use simulate::{SimulateConfig, simulate};
pub use train::{StepDone, TrainConfig, train};

/// What happens to a stage.
#[derive(Debug)]
pub enum Event {
    /// A peer says something.
    Message(Message),
    /// An environment has run its chunk.
    Finished(Finished),
    /// A list of kernels is done, or the stream has failed.
    Ran(Result<Ran, LaneError>),
    /// A peer has hung up.
    HungUp,
    /// Somebody wants the stage to end.
    Stop,
}

/// Why a stage ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// A peer is gone or speaks nonsense.
    #[error("cannot talk to another stage")]
    Peer(#[from] io::Error),
    /// The environments.
    #[error("cannot run the environments")]
    Pool(#[from] PoolError),
    /// The GPU.
    #[error("cannot use the GPU")]
    Gpu(#[from] LaneError),
    /// A peer sent what does not fit.
    #[error("another stage sent what does not fit: {0}")]
    Protocol(&'static str),
}

/// The policy as generation uses it.
pub trait Actor: Send {
    /// Newer weights.
    fn load(&mut self, weights: &[f32]);
    /// One chunk of actions for each observation. Host work, done while the GPU is at the list.
    fn act(&mut self, observations: &[Vec<f32>]) -> Vec<Vec<f32>>;
    /// The kernels that this costs on the GPU, for so many observations.
    fn kernels(&self, observations: usize) -> Vec<KernelGroup>;
    /// Most observations of one pass over the GPU: the batch size of the job's plan, where the stage has one (see
    /// [`BatchSize`](crate::BatchSize)). None: it has none, and a pass takes what comes together.
    fn batch(&self) -> Option<u32> {
        None
    }
}

/// The policy as training uses it.
pub trait Learner: Send {
    /// One iteration on these chunks; returns the loss. Host work, done while the GPU is at the lists.
    fn update(&mut self, parts: &[&Part]) -> f32;
    /// The weights now.
    fn weights(&self) -> Vec<f32>;
    /// The kernels that an iteration costs on the GPU: one list after the other.
    fn kernels(&self) -> Vec<Vec<KernelGroup>>;
    /// The batch size at which these kernels run, where the stage has one (see [`BatchSize`](crate::BatchSize)). It is
    /// asked once for each iteration, before the kernels are.
    fn batch(&self) -> Option<u32> {
        None
    }
}

/// Starts the thread that turns a peer's messages into events; it ends with the connection.
///
/// # Errors
/// When no thread can be started.
pub fn listen(mut peer: Receiver, events: mpsc::Sender<Event>) -> io::Result<()> {
    let work = move || {
        loop {
            let event = match peer.receive() {
                Ok(Some(message)) => Event::Message(message),
                Ok(None) => Event::HungUp,
                Err(error) => {
                    tracing::warn!(%error, "a peer is gone");
                    Event::HungUp
                }
            };
            let is_over = matches!(event, Event::HungUp);
            if events.send(event).is_err() || is_over {
                return;
            }
        }
    };
    thread::Builder::new().name("peer".to_owned()).spawn(work)?;
    Ok(())
}
