//! The job file: TOML that people write, read into the job that the daemon knows.
//!
//! Unknown keys are refused, and the nearest known one is named. `check` says what the daemon would refuse on any node,
//! and `complain` where that is in the file.

mod blame;
mod check;
mod complain;
mod fields;
mod place;

use std::time::Duration;

use evenkeel_client::{
    Client, Detector, JobSpec, Policy, RebalanceSpec, ResizeMode, Role, SmAsk, SmMode, StageSpec,
};
use evenkeel_core::curve::guess::{Guess, batch_for};
use evenkeel_core::unit::Bytes;
use serde::Deserialize;

use crate::fail::{Doing as _, Failure};

pub(crate) use place::of as place_of;

/// A job as written. `examples/job.toml` explains every key.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobFile {
    pub(crate) name: String,
    unit: String,
    #[serde(default)]
    priority: i32,
    #[serde(default = "even")]
    weight: f64,
    #[serde(default)]
    gpus: Vec<u32>,
    #[serde(default)]
    gpu_count: u32,
    #[serde(default = "two")]
    groups: u32,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    pub(crate) sm_mode: SmMode,
    #[serde(default)]
    rebalance: RebalanceFile,
    pub(crate) stages: Vec<StageFile>,
    #[serde(skip)]
    origin: Origin,
}

/// Where a job was read: for complaints that come later.
#[derive(Clone, Debug, Default, PartialEq)]
struct Origin {
    text: String,
    name: String,
}

/// When shares may move, as written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RebalanceFile {
    frozen: bool,
    detector: Detector,
    gap: Option<f64>,
    windows: Option<u32>,
    cusum_slack: Option<f64>,
    cusum_threshold: Option<f64>,
    cooldown_windows: Option<u32>,
    #[serde(deserialize_with = "fields::maybe_time_ms")]
    horizon: Option<u64>,
    #[serde(deserialize_with = "fields::maybe_time_ms")]
    restart_cost: Option<u64>,
    min_gain: Option<f64>,
    #[serde(deserialize_with = "fields::maybe_time_ms")]
    shrink_timeout: Option<u64>,
    escalate: bool,
    refit_windows: Option<u32>,
}

/// One stage as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StageFile {
    pub(crate) name: String,
    role: Role,
    #[serde(default = "one")]
    workers: u32,
    #[serde(default = "one")]
    processes: u32,
    cores: Option<u32>,
    min_cores: Option<u32>,
    max_cores: Option<u32>,
    #[serde(default)]
    no_cores: bool,
    #[serde(default, deserialize_with = "fields::maybe_share")]
    sms: Option<SmAsk>,
    #[serde(default, deserialize_with = "fields::maybe_share")]
    min_sms: Option<SmAsk>,
    #[serde(default, deserialize_with = "fields::maybe_share")]
    max_sms: Option<SmAsk>,
    #[serde(default)]
    no_gpu: bool,
    #[serde(default, deserialize_with = "fields::memory")]
    memory: u64,
    #[serde(default)]
    batches: Vec<u32>,
    #[serde(default)]
    synchronous: bool,
    #[serde(default)]
    resize: ResizeMode,
    profile: Option<String>,
    pub(crate) bench: Option<BenchFile>,
}

/// How a stage is measured by `evenkeel calibrate`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BenchFile {
    /// Prints one line of JSON at its end: `{"units_per_s": …, "memory_bytes": …}`.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// No command: a running worker that offers itself for trials is asked instead.
    #[serde(default)]
    pub(crate) worker: bool,
    /// Core counts to try.
    #[serde(default)]
    pub(crate) cores: Vec<u32>,
    /// SM counts or percentages to try.
    #[serde(default, deserialize_with = "fields::shares")]
    pub(crate) sms: Vec<SmAsk>,
    /// Batch sizes to try; the stage's own if left out.
    #[serde(default)]
    pub(crate) batches: Vec<u32>,
    /// Numbers of replicas to try: told to the command, which starts them itself.
    #[serde(default)]
    pub(crate) replicas: Vec<u32>,
    /// Parameters of the stage's model: where no batch size is named, the ones to try are guessed from them.
    #[serde(default, deserialize_with = "fields::maybe_count")]
    parameters: Option<u64>,
    /// GPU memory of one sample of a batch: with it the batch that fits is guessed, too.
    #[serde(default, deserialize_with = "fields::memory")]
    sample_memory: u64,
    /// GPU memory to lease for each trial; the stage's own if left out.
    #[serde(default, deserialize_with = "fields::memory")]
    pub(crate) memory: u64,
    /// How long a trial should measure.
    #[serde(default = "trial_seconds", deserialize_with = "fields::time")]
    pub(crate) seconds: Duration,
    /// How long it should run before that without being measured: caches, clocks and compilers settle.
    #[serde(default = "trial_warmup", deserialize_with = "fields::time")]
    pub(crate) warmup: Duration,
    /// After this a trial is ended, and counts as one that does not run.
    #[serde(default = "trial_limit", deserialize_with = "fields::time")]
    pub(crate) timeout: Duration,
}

impl BenchFile {
    /// How long a trial may take, its warm-up included.
    pub(crate) fn limit(&self) -> Duration {
        self.timeout.saturating_add(self.warmup)
    }
}

const fn even() -> f64 {
    1.0
}
const fn one() -> u32 {
    1
}
const fn two() -> u32 {
    2
}
/// Long enough for a rate, short enough for a grid.
const fn trial_seconds() -> Duration {
    Duration::from_secs(10)
}
/// Enough for caches and clocks; a stage that compiles at its start says more.
const fn trial_warmup() -> Duration {
    Duration::from_secs(2)
}
/// The daemon's default for a trial.
const fn trial_limit() -> Duration {
    Duration::from_secs(60)
}

impl JobFile {
    /// Reads a text; `name` is what it is called in messages.
    pub(crate) fn parse(text: &str, name: &str) -> Result<Self, Failure> {
        toml::from_str(text).map_err(|error| complain::about(&error, text, name))
    }

    /// The job, with percentages of SMs taken of a GPU with so many.
    pub(crate) fn spec(&self, sms_per_gpu: Option<u32>) -> Result<JobSpec, Failure> {
        let stages = self.stages.iter().enumerate().map(|(i, stage)| {
            let spec = stage.spec(sms_per_gpu);
            spec.map_err(|failure| self.about(&format!("stages[{i}]"), failure))
        });
        Ok(JobSpec {
            stages: stages.collect::<Result<_, _>>()?,
            ..self.spec_without_stages()
        })
    }

    fn spec_without_stages(&self) -> JobSpec {
        let mut spec = JobSpec::new(self.name.clone(), self.unit.clone());
        spec.priority = self.priority;
        spec.weight = self.weight;
        spec.gpus.clone_from(&self.gpus);
        spec.gpu_count = self.gpu_count;
        spec.groups = self.groups;
        spec.policy = self.policy;
        spec.sm_mode = self.sm_mode;
        spec.rebalance = self.rebalance.spec();
        spec
    }

    /// What may not be meant as it is written.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let silent = self.stages.iter().filter(|stage| stage.is_silent_on_gpu());
        silent
            .map(|stage| {
                format!(
                    "stage {} says nothing of a GPU, so the plan may give it SMs; \
                     if it does no GPU work, write `no_gpu = true`",
                    stage.name
                )
            })
            .collect()
    }

    /// Under which name a stage's measurements are kept.
    pub(crate) fn fingerprint(&self, stage: &StageFile) -> String {
        let named = stage.profile.clone();
        named.unwrap_or_else(|| format!("{}/{}", self.name, stage.name))
    }

    /// The first GPU that the job names.
    pub(crate) fn first_gpu(&self) -> Option<u32> {
        self.gpus.first().copied()
    }

    /// The job, with percentages of SMs taken of the daemon's GPUs.
    pub(crate) async fn spec_on(&self, client: &Client) -> Result<JobSpec, Failure> {
        let percent = |s: &Option<SmAsk>| matches!(s, Some(SmAsk::Percent(_)));
        let any = self
            .stages
            .iter()
            .any(|s| percent(&s.sms) || percent(&s.min_sms) || percent(&s.max_sms));
        if !any {
            return self.spec(None);
        }
        let node = client
            .node()
            .await
            .doing("find out how many SMs its GPUs have")?;
        let first = self.gpus.first();
        let gpu = node
            .gpus
            .iter()
            .find(|g| first.is_none_or(|id| g.id == *id));
        self.spec(gpu.map(|g| g.sms))
    }
}

impl RebalanceFile {
    fn spec(&self) -> RebalanceSpec {
        RebalanceSpec {
            frozen: self.frozen,
            detector: self.detector,
            gap: self.gap,
            windows: self.windows,
            cusum_slack: self.cusum_slack,
            cusum_threshold: self.cusum_threshold,
            cooldown_windows: self.cooldown_windows,
            horizon_ms: self.horizon,
            restart_cost_ms: self.restart_cost,
            min_gain: self.min_gain,
            shrink_timeout_ms: self.shrink_timeout,
            escalate: self.escalate,
            refit_windows: self.refit_windows,
        }
    }
}

impl StageFile {
    fn spec(&self, sms_per_gpu: Option<u32>) -> Result<StageSpec, Failure> {
        let both = |name: &str| {
            Failure::usage(format!(
                "stage {}: `{name}` says both the least and the most; leave out min_{name} and max_{name}",
                self.name
            ))
        };
        if self.cores.is_some() && (self.min_cores.is_some() || self.max_cores.is_some()) {
            return Err(both("cores"));
        }
        if self.sms.is_some() && (self.min_sms.is_some() || self.max_sms.is_some()) {
            return Err(both("sms"));
        }
        self.check_zeros()?;
        let count = |ask: Option<SmAsk>| ask.map(|ask| self.sm_count(ask, sms_per_gpu)).transpose();
        let mut spec = StageSpec::new(self.name.clone(), self.role);
        spec.workers = self.workers;
        spec.processes = self.processes;
        spec.min_cores = self.cores.or(self.min_cores).unwrap_or(0);
        spec.no_cores = self.is_without_cores();
        spec.max_cores = self.cores.or(self.max_cores).filter(|_| !spec.no_cores);
        spec.no_gpu = self.is_without_gpu();
        spec.min_sms = count(self.sms.or(self.min_sms))?.unwrap_or(0);
        spec.max_sms = count(self.sms.or(self.max_sms))?.filter(|_| !spec.no_gpu);
        spec.memory_bytes = self.memory;
        spec.batches.clone_from(&self.batches);
        spec.synchronous = self.synchronous;
        spec.resize = self.resize;
        spec.profile.clone_from(&self.profile);
        Ok(spec)
    }

    /// Whether it does no work on a GPU: `no_gpu = true`, or `sms = 0`, which says the same.
    pub(crate) fn is_without_gpu(&self) -> bool {
        self.no_gpu || self.max_sms == Some(SmAsk::Count(0)) || self.sms == Some(SmAsk::Count(0))
    }

    /// Whether it gets no core: `no_cores = true`, or `cores = 0`, which says the same.
    pub(crate) fn is_without_cores(&self) -> bool {
        self.no_cores || self.cores == Some(0) || self.max_cores == Some(0)
    }

    /// Zeros that would mean something else to the daemon, where 0 is "no limit", and amounts that contradict them.
    fn check_zeros(&self) -> Result<(), Failure> {
        let wrong = |what: &str| Failure::usage(format!("stage {}: {what}", self.name));
        let some = |ask: Option<SmAsk>| ask.is_some_and(|ask| ask != SmAsk::Count(0));
        if self.is_without_gpu() && [self.sms, self.min_sms, self.max_sms].into_iter().any(some) {
            return Err(
                wrong("it does no GPU work (no_gpu, or no SMs), and asks for SMs")
                    .hint("Leave one of the two out."),
            );
        }
        if self.is_without_gpu() && self.memory > 0 {
            return Err(
                wrong("it does no GPU work (no_gpu, or no SMs), and asks for GPU memory")
                    .hint("Leave `memory` out, or give it SMs."),
            );
        }
        let cores = [self.cores, self.min_cores, self.max_cores];
        if self.is_without_cores() && cores.into_iter().flatten().any(|n| n > 0) {
            return Err(
                wrong("it gets no core (no_cores, or 0 cores), and asks for cores")
                    .hint("Leave one of the two out."),
            );
        }
        if self.is_without_cores() && self.is_without_gpu() {
            return Err(wrong("it may have neither cores nor SMs")
                .hint("Nothing runs on nothing: leave one of no_cores and no_gpu out."));
        }
        Ok(())
    }

    /// Whether it looks like a stage without GPU work that does not say so.
    fn is_silent_on_gpu(&self) -> bool {
        let asks = [self.sms, self.min_sms, self.max_sms];
        let tries = self
            .bench
            .as_ref()
            .is_some_and(|bench| !bench.sms.is_empty());
        self.role == Role::Simulation
            && !self.is_without_gpu()
            && asks.iter().all(Option::is_none)
            && self.memory == 0
            && !tries
    }

    /// Batch sizes to measure; 1 where the stage has none.
    pub(crate) fn batches_to_try(&self) -> Vec<u32> {
        let own = self.bench.iter().flat_map(|b| b.batches.clone());
        let mut batches: Vec<u32> = own.collect();
        if batches.is_empty() {
            batches.clone_from(&self.batches);
        }
        if let (true, Some(guess)) = (batches.is_empty(), self.guess()) {
            batches.extend([guess.batch.0, guess.batch.1]);
        }
        if batches.is_empty() {
            batches.push(1);
        }
        batches
    }

    /// The batch that would fit beside the model's parameters (two bytes each) on a GPU with so much memory; a guess.
    pub(crate) fn guessed_batch(&self, gpu_memory: u64) -> Option<u32> {
        let bench = self.bench.as_ref().filter(|_| self.guess().is_some())?;
        let parameters = bench.parameters?.saturating_mul(2);
        batch_for(
            Bytes(gpu_memory),
            Bytes(parameters),
            Bytes(bench.sample_memory),
        )
    }

    /// What is usual for a model of its size, where no batch size is named and the model's size is.
    pub(crate) fn guess(&self) -> Option<Guess> {
        let bench = self.bench.as_ref()?;
        let named = !bench.batches.is_empty() || !self.batches.is_empty();
        bench.parameters.filter(|_| !named).map(Guess::of_size)
    }

    /// GPU memory to lease for a trial.
    pub(crate) fn trial_memory(&self, bench: &BenchFile) -> u64 {
        if bench.memory > 0 {
            bench.memory
        } else {
            self.memory
        }
    }

    /// A count of SMs; a percentage is rounded up, as the daemon does.
    pub(crate) fn sm_count(&self, ask: SmAsk, sms_per_gpu: Option<u32>) -> Result<u32, Failure> {
        match (ask, sms_per_gpu) {
            (SmAsk::Count(n), _) => Ok(n),
            (SmAsk::Percent(p), Some(sms)) => Ok((sms * p).div_ceil(100)),
            (SmAsk::Percent(p), None) => Err(Failure::usage(format!(
                "stage {}: {p}% of what? The node has no such GPU",
                self.name
            ))
            .hint(
                "Write a number of SMs, or say with --sms (or --offline --gpu) how many a GPU has.",
            )),
        }
    }
}

#[cfg(test)]
mod tests;
