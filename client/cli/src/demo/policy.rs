//! The demo's policy: a small denoising network that turns an observation and noise into a chunk of actions, and
//! learns from what its own chunks reached, whatever they were meant to reach (hindsight: Andrychowicz et al.,
//! arXiv:1707.01495). Its values are really computed, on the host; the GPU time that is declared for it is that of a
//! policy large enough to need a GPU (`load`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_gpu::KernelGroup;
use evenkeel_rollout::stage::{Actor, Learner};
use evenkeel_rollout::wire::Part;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::load::{CHUNK, Load};
use super::mlp::{Adam, Mlp, Trace};
use super::task::{GOAL, JOINTS, OBSERVATION, TIP, WAY};

/// Values of a chunk of actions.
pub(crate) const ACTIONS: usize = CHUNK * JOINTS;
/// Width of the hidden layers: enough for this arm, and a fraction of a millisecond for a chunk on a CPU.
const HIDDEN: usize = 64;
/// Chunks that are made up instead of generated, so that there is always something new to learn from.
const EXPLORE: f32 = 0.3;
/// Three times Adam's usual 1e-3: a demo has some hundred training steps, not millions.
const LEARNING_RATE: f32 = 3e-3;
/// Noise levels tried for each chunk and epoch.
const LEVELS_PER_EPOCH: usize = 2;
/// Chunks of one step of the optimizer.
const MINIBATCH: usize = 16;

/// Told apart from the weights' seed, so that actor, learner and weights do not draw the same numbers.
const ACTOR_STREAM: u64 = 0xAC70;
const LEARNER_STREAM: u64 = 0x7EA1;

/// The load, as the threads of a worker share it: a drift changes it while they run.
#[derive(Debug)]
pub(crate) struct SharedLoad {
    pub(crate) substeps: Arc<AtomicU32>,
    denoising_steps: AtomicU32,
    epochs: AtomicU32,
}

impl SharedLoad {
    pub(crate) fn new(load: Load) -> Self {
        Self {
            substeps: Arc::new(AtomicU32::new(load.substeps)),
            denoising_steps: AtomicU32::new(load.denoising_steps),
            epochs: AtomicU32::new(load.epochs),
        }
    }

    pub(crate) fn set(&self, load: Load) {
        self.substeps.store(load.substeps, Ordering::Relaxed);
        self.denoising_steps
            .store(load.denoising_steps, Ordering::Relaxed);
        self.epochs.store(load.epochs, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Load {
        Load {
            substeps: self.substeps.load(Ordering::Relaxed),
            denoising_steps: self.denoising_steps.load(Ordering::Relaxed),
            epochs: self.epochs.load(Ordering::Relaxed),
        }
    }
}

/// The network: from a noisy chunk, the noise level and an observation to the chunk without noise.
#[derive(Clone, Debug)]
pub(crate) struct Denoiser {
    net: Mlp,
    trace: Trace,
    input: Vec<f32>,
}

impl Denoiser {
    /// The same for the same seed, in every process.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let sizes = [ACTIONS + 1 + OBSERVATION, HIDDEN, HIDDEN, ACTIONS];
        Self {
            net: Mlp::random(&sizes, &mut rng),
            trace: Trace::default(),
            input: Vec::new(),
        }
    }

    /// Its weights.
    pub(crate) fn values(&self) -> &[f32] {
        &self.net.values
    }

    fn clean(&mut self, noisy: &[f32], level: f32, observation: &[f32]) -> &[f32] {
        self.input.clear();
        self.input.extend_from_slice(noisy);
        self.input.push(level);
        self.input.extend_from_slice(observation);
        self.net.forward(&self.input, &mut self.trace)
    }

    /// From noise to a chunk along the straight path (rectified flow: Liu et al., arXiv:2209.03003), in `steps` steps.
    fn sample(&mut self, observation: &[f32], steps: u32, rng: &mut SmallRng) -> Vec<f32> {
        let mut chunk: Vec<f32> = (0..ACTIONS).map(|_| noise(rng)).collect();
        for step in 0..steps {
            let level = step as f32 / steps as f32;
            let share = 1.0 / (steps - step) as f32;
            let goal = self.clean(&chunk, level, observation);
            for (value, clean) in chunk.iter_mut().zip(goal) {
                *value += share * (clean - *value);
            }
        }
        chunk.iter_mut().for_each(|v| *v = v.clamp(-1.0, 1.0));
        chunk
    }
}

/// About normal, with unit variance.
fn noise(rng: &mut SmallRng) -> f32 {
    (0..6).map(|_| rng.random_range(-1.0_f32..1.0)).sum::<f32>() / 2.0_f32.sqrt()
}

/// Generation's side.
pub(crate) struct ReachActor {
    denoiser: Denoiser,
    load: Arc<SharedLoad>,
    rng: SmallRng,
}

impl ReachActor {
    pub(crate) fn new(seed: u64, load: Arc<SharedLoad>) -> Self {
        Self {
            denoiser: Denoiser::new(seed),
            load,
            rng: SmallRng::seed_from_u64(seed ^ ACTOR_STREAM),
        }
    }
}

impl Actor for ReachActor {
    fn load(&mut self, weights: &[f32]) {
        self.denoiser.net.load(weights);
    }

    fn act(&mut self, observations: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let steps = self.load.get().denoising_steps;
        let mut chunks = Vec::with_capacity(observations.len());
        for observation in observations {
            let chunk = if self.rng.random::<f32>() < EXPLORE {
                // One direction for the whole chunk gets further than a new one at each step.
                let way: [f32; JOINTS] = std::array::from_fn(|_| self.rng.random_range(-1.0..1.0));
                way.repeat(CHUNK)
            } else {
                self.denoiser.sample(observation, steps, &mut self.rng)
            };
            chunks.push(chunk);
        }
        chunks
    }

    fn kernels(&self, _observations: usize) -> Vec<KernelGroup> {
        self.load.get().generation()
    }
}

/// Training's side.
pub(crate) struct ReachLearner {
    denoiser: Denoiser,
    adam: Adam,
    load: Arc<SharedLoad>,
    rng: SmallRng,
}

impl ReachLearner {
    pub(crate) fn new(seed: u64, load: Arc<SharedLoad>) -> Self {
        let denoiser = Denoiser::new(seed);
        Self {
            adam: Adam::new(denoiser.values().len(), LEARNING_RATE),
            denoiser,
            load,
            rng: SmallRng::seed_from_u64(seed ^ LEARNER_STREAM),
        }
    }

    /// One epoch; the mean squared error.
    fn epoch(&mut self, parts: &[&Part]) -> f32 {
        let share = |minibatch: &[&Part]| minibatch.len() as f32 / parts.len() as f32;
        parts
            .chunks(MINIBATCH)
            .map(|minibatch| share(minibatch) * self.minibatch(minibatch))
            .sum()
    }

    /// One step of the optimizer; the mean squared error before it.
    fn minibatch(&mut self, parts: &[&Part]) -> f32 {
        let mut gradient = vec![0.0; self.denoiser.values().len()];
        let scale = 1.0 / (parts.len() * LEVELS_PER_EPOCH) as f32;
        let mut loss = 0.0;
        for part in parts {
            let observation = hindsight(part);
            for _ in 0..LEVELS_PER_EPOCH {
                let level = self.rng.random_range(0.0_f32..1.0);
                let mix = |clean: &f32| level * clean + (1.0 - level) * noise(&mut self.rng);
                let noisy: Vec<f32> = part.actions.iter().map(mix).collect();
                let clean = self.denoiser.clean(&noisy, level, &observation);
                let error: Vec<f32> = clean
                    .iter()
                    .zip(&part.actions)
                    .map(|(c, a)| (c - a) * scale)
                    .collect();
                loss += error.iter().map(|e| e * e).sum::<f32>() / scale / ACTIONS as f32;
                self.denoiser
                    .net
                    .backward(&self.denoiser.trace, &error, &mut gradient);
            }
        }
        self.adam.step(&mut self.denoiser.net.values, &gradient);
        loss
    }
}

impl Learner for ReachLearner {
    fn update(&mut self, parts: &[&Part]) -> f32 {
        let whole = |part: &&Part| {
            part.first.len() == OBSERVATION
                && part.last.len() == OBSERVATION
                && part.actions.len() == ACTIONS
        };
        let parts: Vec<&Part> = parts.iter().copied().filter(whole).collect();
        if parts.is_empty() {
            return 0.0;
        }
        let epochs = self.load.get().epochs;
        (0..epochs)
            .map(|_| self.epoch(&parts))
            .last()
            .unwrap_or(0.0)
    }

    fn weights(&self) -> Vec<f32> {
        self.denoiser.values().to_vec()
    }

    fn kernels(&self) -> Vec<Vec<KernelGroup>> {
        self.load.get().training()
    }
}

/// What was observed before the chunk, as if the goal had been where the tip ended up.
fn hindsight(part: &Part) -> Vec<f32> {
    let mut observation = part.first.clone();
    for axis in 0..2 {
        let reached = part.last[TIP + axis];
        observation[GOAL + axis] = reached;
        observation[WAY + axis] = reached - part.first[TIP + axis];
    }
    observation
}

#[cfg(test)]
mod tests {
    use evenkeel_rollout::Environment;

    use super::super::task::Reach;
    use super::*;

    #[test]
    fn both_sides_start_from_the_same_weights() {
        let load = Arc::new(SharedLoad::new(Load::base(2)));
        let learner = ReachLearner::new(9, Arc::clone(&load));
        assert_eq!(
            learner.weights(),
            ReachActor::new(9, load).denoiser.values()
        );
    }

    /// Plays an iteration's worth of chunks; the parts and the share of episodes that succeeded.
    fn rollout(arms: &mut [Reach], actor: &mut ReachActor, chunks: usize) -> (Vec<Part>, f64) {
        let (mut parts, mut ends, mut successes) = (Vec::new(), 0, 0);
        let observe = |arm: &Reach| {
            let mut values = Vec::new();
            arm.observe(&mut values);
            values
        };
        for chunk in 0..chunks {
            let observations: Vec<Vec<f32>> = arms.iter().map(observe).collect();
            let actions = actor.act(&observations);
            for (index, (arm, (first, actions))) in arms
                .iter_mut()
                .zip(observations.into_iter().zip(actions))
                .enumerate()
            {
                let outcomes: Vec<_> = actions.chunks_exact(JOINTS).map(|a| arm.step(a)).collect();
                let (done, success) = (
                    outcomes.iter().any(|o| o.done),
                    outcomes.iter().any(|o| o.success),
                );
                parts.push(Part {
                    first,
                    actions,
                    last: observe(arm),
                    done,
                    success,
                    ..Part::default()
                });
                if done {
                    ends += 1;
                    successes += u32::from(success);
                    arm.reset((chunk * arms_seed() + index) as u64);
                }
            }
        }
        (parts, f64::from(successes) / f64::from(ends.max(1)))
    }

    const fn arms_seed() -> usize {
        7_919
    }

    #[test]
    fn training_makes_it_reach_more_often() {
        let load = Arc::new(SharedLoad::new(Load::base(2)));
        let mut actor = ReachActor::new(1, Arc::clone(&load));
        let mut learner = ReachLearner::new(1, load);
        let mut arms: Vec<Reach> = (0..32)
            .map(|seed| {
                let mut arm = Reach::new(Arc::new(AtomicU32::new(2)));
                arm.reset(seed);
                arm
            })
            .collect();
        let (_, before) = rollout(&mut arms, &mut actor, 24);
        for _ in 0..60 {
            let (parts, _) = rollout(&mut arms, &mut actor, 5);
            // No word on the loss: its data change with the policy, so two of them cannot be compared.
            learner.update(&parts.iter().collect::<Vec<_>>());
            actor.load(&learner.weights());
        }
        let (_, after) = rollout(&mut arms, &mut actor, 24);
        assert!(
            after > before,
            "successes went from {before:.2} to {after:.2}"
        );
    }
}
