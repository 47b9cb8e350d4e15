//! Simulation: environments that wait are sent to generation in batches of their group; what comes back runs on the
//! leased cores; what was run goes to training. Nobody waits for a slower environment but its own batch.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use super::{Event, StageError};
use crate::env::Environment;
use crate::former::BatchFormer;
use crate::pool::{Chunk, EnvPool, Finished};
use crate::wire::{Message, Part, Sender};

/// How environments are batched.
#[derive(Clone, Copy, Debug)]
pub struct SimulateConfig {
    /// Groups that overlap simulation with generation (A2).
    pub groups: usize,
    /// Environments of one batch.
    pub batch: usize,
    /// Chunks of one environment in a rollout, on average.
    pub chunks_per_rollout: u32,
}

/// A batch on its way through generation and simulation.
struct Batch {
    envs: Vec<usize>,
    rollout: u64,
    version: u64,
    parts: Vec<Option<Part>>,
}

/// Runs until a peer hangs up or the stage is told to stop.
///
/// # Errors
/// When a peer is gone while something has to be sent, or what it sends does not fit.
pub fn simulate<E: Environment>(
    config: SimulateConfig,
    pool: &EnvPool<E>,
    events: &Receiver<Event>,
    generation: &Sender,
    training: &Sender,
) -> Result<(), StageError> {
    let count = pool.len();
    let mut loop_ = Loop {
        config,
        pool,
        generation,
        training,
        former: BatchFormer::new(count, config.groups, config.batch),
        observed: (0..count)
            .map(|env| pool.observe(env))
            .collect::<Result<_, _>>()?,
        chunks: vec![0; count],
        batches: BTreeMap::new(),
        next: 0,
    };
    (0..count).for_each(|env| loop_.former.ready(env));
    loop {
        loop_.ask()?;
        match events.recv() {
            Ok(Event::Message(Message::Act {
                batch,
                rollout,
                version,
                chunks,
            })) => {
                loop_.act(batch, rollout, version, chunks)?;
            }
            Ok(Event::Finished(finished)) => loop_.finished(finished)?,
            Ok(Event::Message(_) | Event::Ran(_)) => {
                return Err(StageError::Protocol("simulation takes actions"));
            }
            Ok(Event::HungUp | Event::Stop) | Err(_) => return Ok(()),
        }
    }
}

struct Loop<'a, E: Environment> {
    config: SimulateConfig,
    pool: &'a EnvPool<E>,
    generation: &'a Sender,
    training: &'a Sender,
    former: BatchFormer,
    /// What each waiting environment's next chunk starts from.
    observed: Vec<Vec<f32>>,
    /// Chunks that each environment has done.
    chunks: Vec<u32>,
    batches: BTreeMap<u64, Batch>,
    next: u64,
}

impl<E: Environment> Loop<'_, E> {
    fn ask(&mut self) -> Result<(), StageError> {
        while let Some(envs) = self.former.form() {
            let observations = envs.iter().map(|env| self.observed[*env].clone()).collect();
            let batch = self.next;
            self.next += 1;
            self.batches.insert(
                batch,
                Batch {
                    parts: envs.iter().map(|_| None).collect(),
                    envs,
                    rollout: 0,
                    version: 0,
                },
            );
            self.generation.send(&Message::Observe {
                batch,
                observations,
            })?;
        }
        Ok(())
    }

    fn act(
        &mut self,
        tag: u64,
        rollout: u64,
        version: u64,
        chunks: Vec<Vec<f32>>,
    ) -> Result<(), StageError> {
        let batch = self
            .batches
            .get_mut(&tag)
            .ok_or(StageError::Protocol("actions for an unknown batch"))?;
        if batch.envs.len() != chunks.len() {
            return Err(StageError::Protocol(
                "a batch needs one chunk for each environment",
            ));
        }
        (batch.rollout, batch.version) = (rollout, version);
        for (&env, actions) in batch.envs.iter().zip(chunks) {
            let quota = self.config.chunks_per_rollout.max(1);
            let remaining_chunks = quota - self.chunks[env] % quota;
            self.pool.submit(Chunk {
                env,
                actions,
                remaining_chunks,
                tag,
            })?;
        }
        Ok(())
    }

    fn finished(&mut self, finished: Finished) -> Result<(), StageError> {
        let (env, tag) = (finished.env, finished.tag);
        let batch = self
            .batches
            .get_mut(&tag)
            .ok_or(StageError::Protocol("a chunk of an unknown batch"))?;
        let place = batch
            .envs
            .iter()
            .position(|e| *e == env)
            .ok_or(StageError::Protocol("a chunk of a stranger"))?;
        let first = std::mem::replace(&mut self.observed[env], finished.next);
        batch.parts[place] = Some(Part {
            first,
            actions: finished.actions,
            last: finished.last,
            reward: finished.outcomes.iter().map(|o| o.reward).sum(),
            steps: finished.outcomes.len() as u32,
            done: finished.outcomes.iter().any(|o| o.done),
            success: finished.outcomes.iter().any(|o| o.success),
        });
        self.chunks[env] = self.chunks[env].wrapping_add(1);
        self.former.ready(env);
        if batch.parts.iter().all(Option::is_some)
            && let Some(batch) = self.batches.remove(&tag)
        {
            let (rollout, version) = (batch.rollout, batch.version);
            let parts = batch.parts.into_iter().flatten().collect();
            self.training.send(&Message::Trajectory {
                rollout,
                version,
                parts,
            })?;
        }
        Ok(())
    }
}
