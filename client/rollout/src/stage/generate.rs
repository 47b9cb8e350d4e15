//! Generation: batches of observations become chunks of actions. Lists of kernels are queued two deep, so that the
//! GPU does not wait for the host; the staleness gate decides whether the next batch may be made at all.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;

use super::{Actor, Event, StageError};
use crate::busy::Interval;
use crate::gate::{Slot, StalenessGate, Weights};
use crate::gpu::{Compute, Ran};
use crate::meter::Meter;
use crate::wire::{Message, Sender};

/// How generation runs.
#[derive(Clone, Copy, Debug)]
pub struct GenerateConfig {
    /// Batches of one rollout.
    pub batches_per_rollout: u64,
    /// Versions that weights may be old when their data are trained on.
    pub staleness: u64,
    /// Lists in the GPU's stream at a time.
    pub depth: usize,
    /// Work units of one observation: environment steps of one chunk.
    pub units: f64,
}

/// Runs until a peer hangs up or the stage is told to stop. `weights` are what the policy starts with.
///
/// # Errors
/// When a peer is gone while something has to be sent, the GPU fails, or what a peer sends does not fit.
pub fn generate<A: Actor, C: Compute>(
    config: GenerateConfig,
    actor: &mut A,
    weights: Weights,
    gpu: &C,
    meter: &Meter,
    events: &Receiver<Event>,
    simulation: &Sender,
) -> Result<(), StageError> {
    actor.load(&weights.values);
    let mut loop_ = Loop {
        config,
        actor,
        weights,
        gpu,
        meter,
        simulation,
        gate: StalenessGate::new(config.batches_per_rollout, config.staleness),
        waiting: VecDeque::new(),
        flight: VecDeque::new(),
        next: 0,
    };
    loop {
        loop_.issue()?;
        match events.recv() {
            Ok(Event::Message(Message::Observe {
                batch,
                observations,
            })) => {
                loop_.waiting.push_back((batch, observations));
            }
            Ok(Event::Message(Message::Weights { version, values })) => {
                let newer = Weights {
                    version,
                    values: values.into(),
                };
                if loop_.weights.update(newer) {
                    loop_.actor.load(&loop_.weights.values);
                }
            }
            Ok(Event::Ran(ran)) => loop_.ran(ran?)?,
            Ok(Event::Message(_) | Event::Finished(_)) => {
                return Err(StageError::Protocol(
                    "generation takes observations and weights",
                ));
            }
            Ok(Event::HungUp | Event::Stop) | Err(_) => return Ok(()),
        }
    }
}

/// A batch whose list is in the GPU's stream; its actions are there already.
struct Flight {
    token: u64,
    batch: u64,
    slot: Slot,
    version: u64,
    chunks: Vec<Vec<f32>>,
}

struct Loop<'a, A, C> {
    config: GenerateConfig,
    actor: &'a mut A,
    weights: Weights,
    gpu: &'a C,
    meter: &'a Meter,
    simulation: &'a Sender,
    gate: StalenessGate,
    waiting: VecDeque<(u64, Vec<Vec<f32>>)>,
    flight: VecDeque<Flight>,
    next: u64,
}

impl<A: Actor, C: Compute> Loop<'_, A, C> {
    fn issue(&mut self) -> Result<(), StageError> {
        while self.flight.len() < self.config.depth.max(1)
            && !self.waiting.is_empty()
            && let Some(slot) = self.gate.issue(self.weights.version)
            && let Some((batch, observations)) = self.waiting.pop_front()
        {
            let token = self.next;
            self.next += 1;
            self.gpu
                .submit(token, &self.actor.kernels(observations.len()))?;
            // The values are computed here while the GPU is at the list.
            let chunks = self.actor.act(&observations);
            let version = self.weights.version;
            self.flight.push_back(Flight {
                token,
                batch,
                slot,
                version,
                chunks,
            });
        }
        Ok(())
    }

    fn ran(&mut self, ran: Ran) -> Result<(), StageError> {
        let done = self
            .flight
            .pop_front()
            .filter(|flight| flight.token == ran.token);
        let done = done.ok_or(StageError::Protocol("a list that was not submitted"))?;
        self.meter.push(Interval {
            lane: 0,
            start_ns: ran.start_ns,
            end_ns: ran.end_ns,
            units: self.config.units * done.chunks.len() as f64,
            batch: 1,
            cpu_ns: 0,
        });
        self.simulation.send(&Message::Act {
            batch: done.batch,
            rollout: done.slot.rollout,
            version: done.version,
            chunks: done.chunks,
        })?;
        Ok(())
    }
}
