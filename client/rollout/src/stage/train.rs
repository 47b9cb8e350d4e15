//! Training: a whole rollout is taken when it is there, trained on, and the new weights go to generation. One
//! iteration is one step of the job; only fresh units count as consumed.

use std::sync::mpsc::Receiver;

use evenkeel_client::Step;

use super::{Event, Learner, StageError};
use crate::affinity::boottime_ns;
use crate::busy::Interval;
use crate::gpu::{Compute, Ran};
use crate::meter::Meter;
use crate::queue::{Item, TrajectoryQueue};
use crate::wire::{Message, Part, Sender};

/// How training runs.
#[derive(Clone, Copy, Debug)]
pub struct TrainConfig {
    /// Work units of one rollout.
    pub units_per_rollout: f64,
    /// Versions that weights may be old when their data are trained on.
    pub staleness: u64,
}

/// A training iteration that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepDone {
    /// Its number, from 1: the version of the weights that it made.
    pub n: u64,
    /// When the GPU was done, in CLOCK_BOOTTIME nanoseconds.
    pub end_ns: u64,
    /// How long the GPU was at it, in nanoseconds.
    pub gpu_ns: u64,
    /// Distinct units trained on.
    pub consumed: f64,
    /// Units dropped since the step before.
    pub discarded: f64,
    /// The oldest data's staleness, in versions.
    pub staleness: u64,
    /// Training loss.
    pub loss: f32,
    /// Episodes that ended in the data.
    pub episodes: u32,
    /// Those that ended in success.
    pub successes: u32,
}

/// Runs until a peer hangs up or the stage is told to stop. `on_step` is called after each iteration.
///
/// # Errors
/// When a peer is gone while something has to be sent, the GPU fails, or what a peer sends does not fit.
pub fn train<L: Learner, C: Compute>(
    config: TrainConfig,
    learner: &mut L,
    gpu: &C,
    meter: &Meter,
    events: &Receiver<Event>,
    generation: &Sender,
    mut on_step: impl FnMut(&StepDone),
) -> Result<(), StageError> {
    let mut loop_ = Loop {
        learner,
        gpu,
        meter,
        generation,
        queue: TrajectoryQueue::new(config.units_per_rollout, config.staleness),
        version: 0,
        told: 0.0,
        at: None,
        next: 0,
    };
    loop {
        loop_.start()?;
        match events.recv() {
            Ok(Event::Message(Message::Trajectory {
                rollout,
                version,
                parts,
            })) => {
                let units = parts.iter().map(|part| f64::from(part.steps)).sum();
                loop_.queue.push(Item {
                    rollout,
                    version,
                    units,
                    value: parts,
                });
            }
            Ok(Event::Ran(ran)) => {
                if let Some(done) = loop_.ran(ran?)? {
                    on_step(&done);
                }
            }
            Ok(Event::Message(_) | Event::Finished(_)) => {
                return Err(StageError::Protocol("training takes trajectories"));
            }
            Ok(Event::HungUp | Event::Stop) | Err(_) => return Ok(()),
        }
    }
}

/// The iteration under way.
struct Iteration {
    done: StepDone,
    /// What its lists run at; 1 where the stage has no batch size.
    batch: u32,
    lists: u64,
    left: u64,
}

struct Loop<'a, L, C> {
    learner: &'a mut L,
    gpu: &'a C,
    meter: &'a Meter,
    generation: &'a Sender,
    queue: TrajectoryQueue<Vec<Part>>,
    version: u64,
    /// Discarded units that have been told in a step.
    told: f64,
    at: Option<Iteration>,
    next: u64,
}

impl<L: Learner, C: Compute> Loop<'_, L, C> {
    fn start(&mut self) -> Result<(), StageError> {
        if self.at.is_some() {
            return Ok(());
        }
        let Some(items) = self.queue.take(self.version) else {
            return Ok(());
        };
        let batch = self.learner.batch().map_or(1, |batch| batch.max(1));
        let lists = self.learner.kernels();
        for list in &lists {
            self.gpu.submit(self.next, list)?;
            self.next += 1;
        }
        let parts: Vec<&Part> = items.iter().flat_map(|item| &item.value).collect();
        // The values are computed here while the GPU is at the lists.
        let start_ns = boottime_ns();
        let loss = self.learner.update(&parts);
        self.meter.push_host(start_ns, boottime_ns());
        let discarded = self.queue.discarded() - self.told;
        self.told += discarded;
        let age = |item: &Item<Vec<Part>>| self.version.saturating_sub(item.version);
        let count = |f: fn(&Part) -> bool| parts.iter().filter(|part| f(part)).count() as u32;
        self.at = Some(Iteration {
            done: StepDone {
                n: self.version + 1,
                end_ns: 0,
                gpu_ns: 0,
                consumed: items.iter().map(|item| item.units).sum(),
                discarded,
                staleness: items.iter().map(age).max().unwrap_or(0),
                loss,
                episodes: count(|part| part.done),
                successes: count(|part| part.success),
            },
            batch,
            lists: lists.len() as u64,
            left: lists.len() as u64,
        });
        Ok(())
    }

    /// A list is done; the iteration, if it was the last one.
    fn ran(&mut self, ran: Ran) -> Result<Option<StepDone>, StageError> {
        let at = self
            .at
            .as_mut()
            .ok_or(StageError::Protocol("a list that was not submitted"))?;
        self.meter.push(Interval {
            lane: 0,
            start_ns: ran.start_ns,
            end_ns: ran.end_ns,
            units: at.done.consumed / at.lists as f64,
            batch: at.batch,
            cpu_ns: 0,
        });
        at.done.gpu_ns += ran.end_ns.saturating_sub(ran.start_ns);
        at.done.end_ns = ran.end_ns;
        at.left -= 1;
        if at.left > 0 {
            return Ok(None);
        }
        let done = at.done;
        self.at = None;
        self.version = done.n;
        self.generation.send(&Message::Weights {
            version: self.version,
            values: self.learner.weights(),
        })?;
        self.meter.step(Step {
            n: done.n,
            consumed_units: done.consumed,
            discarded_units: done.discarded,
        });
        Ok(Some(done))
    }
}
