//! The pipeline in virtual time: the same gate, queue and batches as the real loops, the emulated GPU's model, and
//! environments that take a given time a step. Thousands of splits a second; agrees with execution where the GPU
//! binds. Used for sweeps over static splits; no clock, no threads, the same answer each time.

mod world;

use evenkeel_gpu::model::ModelError;
use evenkeel_gpu::{GpuSpec, KernelGroup};

/// What the pipeline does.
#[derive(Clone, Debug)]
pub struct PipelineSpec {
    /// The GPU.
    pub gpu: GpuSpec,
    /// Kernels of one batch of generation.
    pub generate: Vec<KernelGroup>,
    /// Kernels of one training iteration, list by list.
    pub train: Vec<Vec<KernelGroup>>,
    /// Environments.
    pub envs: usize,
    /// Groups of environments.
    pub groups: usize,
    /// Environments of one batch.
    pub batch: usize,
    /// Environment steps of one chunk.
    pub chunk_steps: u32,
    /// Batches of one rollout.
    pub batches_per_rollout: u64,
    /// Versions that weights may be old when their data are trained on.
    pub staleness: u64,
    /// Generation's lists in the GPU's stream at a time.
    pub depth: usize,
    /// Nanoseconds of one environment step on a core.
    pub step_ns: u64,
    /// By how much steps differ, in thousandths of `step_ns` to either side: the same in each run.
    pub step_spread_permille: u32,
    /// Nanoseconds from one stage to another: a message, and the host's work on it.
    pub hop_ns: u64,
}

impl PipelineSpec {
    /// Work units (environment steps) of one batch.
    pub fn units_per_batch(&self) -> f64 {
        self.batch as f64 * f64::from(self.chunk_steps)
    }

    /// Work units of one rollout.
    pub fn units_per_rollout(&self) -> f64 {
        self.units_per_batch() * self.batches_per_rollout as f64
    }
}

/// A static split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Split {
    /// SMs of generation.
    pub generate_sms: u32,
    /// SMs of training.
    pub train_sms: u32,
    /// Cores of simulation.
    pub cores: u32,
}

/// What a split yields, after a warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Work units trained on per second.
    pub units_per_s: f64,
    /// Generation's units per busy second of its stream.
    pub generate_units_per_s: f64,
    /// Training's units per busy second of its stream.
    pub train_units_per_s: f64,
    /// Simulation's units per second with all of its cores busy.
    pub simulate_units_per_s: f64,
    /// The oldest data that were trained on, in versions.
    pub staleness: u64,
    /// Training iterations measured.
    pub steps: u64,
}

impl Outcome {
    /// `1 − min/max` of rollout and training.
    pub fn gap(&self) -> f64 {
        let rollout = self.generate_units_per_s.min(self.simulate_units_per_s);
        let (low, high) = (
            rollout.min(self.train_units_per_s),
            rollout.max(self.train_units_per_s),
        );
        if high > 0.0 { 1.0 - low / high } else { 0.0 }
    }
}

/// Why a split was not simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The model refused a share or a list.
    #[error("the emulated GPU refused")]
    Gpu(#[from] ModelError),
    /// A specification under which nothing can ever happen.
    #[error("nothing can run: {0}")]
    Stuck(&'static str),
}

/// A part of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Environments, on cores.
    Simulation,
    /// The policy's stream.
    Generation,
    /// The trainer's stream.
    Training,
}

/// A time in which a lane worked; nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// Whose lane it is.
    pub part: Part,
    /// The core, counted from 0; 0 for a stream.
    pub lane: u32,
    /// When it began.
    pub start_ns: u64,
    /// When it ended: now.
    pub end_ns: u64,
    /// Work units done.
    pub units: f64,
}

/// Hears what happens in a virtual run, as it happens: what a worker would report.
pub trait Observer {
    /// A lane has worked.
    fn busy(&mut self, busy: Busy);
    /// Training has finished its iteration `n`, and consumed so many units.
    fn step(&mut self, n: u64, end_ns: u64, consumed: f64);
}

/// Hears nothing.
impl Observer for () {
    fn busy(&mut self, _: Busy) {}
    fn step(&mut self, _: u64, _: u64, _: f64) {}
}

/// Runs a split for `warm_up + steps` training iterations and measures the last `steps` (at least 1).
///
/// # Errors
/// When the GPU cannot give the shares, or the pipeline can never finish an iteration.
pub fn run(
    spec: &PipelineSpec,
    split: Split,
    warm_up: u64,
    steps: u64,
) -> Result<Outcome, PipelineError> {
    run_observed(spec, split, warm_up, steps, &mut ())
}

/// [`run`], with somebody who hears everything from the start, the warm-up included.
///
/// # Errors
/// As [`run`].
pub fn run_observed(
    spec: &PipelineSpec,
    split: Split,
    warm_up: u64,
    steps: u64,
    observer: &mut impl Observer,
) -> Result<Outcome, PipelineError> {
    if split.cores == 0 {
        return Err(PipelineError::Stuck("simulation has no core"));
    }
    if spec.batch == 0 || spec.envs < spec.batch || spec.chunk_steps == 0 {
        return Err(PipelineError::Stuck("no batch is ever full"));
    }
    world::World::new(spec, split, observer)?.run(warm_up, steps.max(1))
}

/// All splits of the GPU's SMs between generation and training at its granularity, with each of these core counts,
/// best first.
///
/// # Errors
/// As [`run`].
pub fn sweep(
    spec: &PipelineSpec,
    cores: &[u32],
    warm_up: u64,
    steps: u64,
) -> Result<Vec<(Split, Outcome)>, PipelineError> {
    let mut found = Vec::new();
    let counts = spec.gpu.enforceable_sms();
    for &generate_sms in &counts {
        let Some(train_sms) = counts
            .iter()
            .rev()
            .find(|sms| **sms + generate_sms <= spec.gpu.sms)
        else {
            continue;
        };
        for &cores in cores {
            let split = Split {
                generate_sms,
                train_sms: *train_sms,
                cores,
            };
            found.push((split, run(spec, split, warm_up, steps)?));
        }
    }
    found.sort_by(|(split_a, a), (split_b, b)| {
        b.units_per_s
            .total_cmp(&a.units_per_s)
            .then(split_a.cores.cmp(&split_b.cores))
            .then(split_a.cmp(split_b))
    });
    Ok(found)
}

#[cfg(test)]
mod tests;
