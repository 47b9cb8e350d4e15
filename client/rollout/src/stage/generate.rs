//! Generation: batches of observations become chunks of actions. Lists of kernels are queued two deep, so that the
//! GPU does not wait for the host; the staleness gate decides whether the next batch may be made at all. Where the stage
//! has a batch size, batches that wait go over the GPU together, as far as it allows, and larger ones in several passes.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;

use evenkeel_gpu::KernelGroup;

use super::{Actor, Event, StageError};
use crate::affinity::boottime_ns;
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

/// A list in the GPU's stream, for one batch or several; their actions are there already.
struct Flight {
    token: u64,
    /// Observations of one pass, where the stage has a batch size; else 1.
    size: u32,
    version: u64,
    batches: Vec<Done>,
}

/// A batch and its actions.
struct Done {
    batch: u64,
    slot: Slot,
    chunks: Vec<Vec<f32>>,
}

/// A batch and its observations.
type Waiting = (u64, Vec<Vec<f32>>);

struct Loop<'a, A, C> {
    config: GenerateConfig,
    actor: &'a mut A,
    weights: Weights,
    gpu: &'a C,
    meter: &'a Meter,
    simulation: &'a Sender,
    gate: StalenessGate,
    waiting: VecDeque<Waiting>,
    flight: VecDeque<Flight>,
    next: u64,
}

impl<A: Actor, C: Compute> Loop<'_, A, C> {
    fn issue(&mut self) -> Result<(), StageError> {
        while self.flight.len() < self.config.depth.max(1) {
            let most = self.actor.batch().map(|most| most.max(1) as usize);
            let together = self.together(most);
            let count: usize = together.iter().map(|(_, (_, seen))| seen.len()).sum();
            if together.is_empty() {
                break;
            }
            let token = self.next;
            self.next += 1;
            self.gpu.submit(token, &self.passes(count, most))?;
            // The values are computed here while the GPU is at the list.
            let start_ns = boottime_ns();
            let done = |(slot, (batch, seen)): (Slot, Waiting)| Done {
                batch,
                slot,
                chunks: self.actor.act(&seen),
            };
            let batches = together.into_iter().map(done).collect();
            self.meter.push_host(start_ns, boottime_ns());
            let size = most.map_or(1, |most| most.min(count));
            self.flight.push_back(Flight {
                token,
                size: u32::try_from(size).unwrap_or(u32::MAX),
                version: self.weights.version,
                batches,
            });
        }
        Ok(())
    }

    /// The batches of the next list: the first that waits, if it may be made, and those behind it that fit in.
    fn together(&mut self, most: Option<usize>) -> Vec<(Slot, Waiting)> {
        let (mut together, mut count) = (Vec::new(), 0);
        while let Some((_, seen)) = self.waiting.front() {
            count += seen.len();
            let fits = together.is_empty() || most.is_some_and(|most| count <= most);
            if !fits {
                break;
            }
            let Some(slot) = self.gate.issue(self.weights.version) else {
                break;
            };
            together.extend(self.waiting.pop_front().map(|waiting| (slot, waiting)));
        }
        together
    }

    /// The kernels for so many observations, `most` at a time.
    fn passes(&self, count: usize, most: Option<usize>) -> Vec<KernelGroup> {
        let most = most.unwrap_or(count).max(1);
        let mut list = Vec::new();
        for done in (0..count.max(1)).step_by(most) {
            list.extend(self.actor.kernels((count - done).min(most)));
        }
        list
    }

    fn ran(&mut self, ran: Ran) -> Result<(), StageError> {
        let done = self
            .flight
            .pop_front()
            .filter(|flight| flight.token == ran.token);
        let done = done.ok_or(StageError::Protocol("a list that was not submitted"))?;
        let count: usize = done.batches.iter().map(|b| b.chunks.len()).sum();
        self.meter.push(Interval {
            lane: 0,
            start_ns: ran.start_ns,
            end_ns: ran.end_ns,
            units: self.config.units * count as f64,
            batch: done.size,
            cpu_ns: 0,
        });
        for batch in done.batches {
            self.simulation.send(&Message::Act {
                batch: batch.batch,
                rollout: batch.slot.rollout,
                version: done.version,
                chunks: batch.chunks,
            })?;
        }
        Ok(())
    }
}
