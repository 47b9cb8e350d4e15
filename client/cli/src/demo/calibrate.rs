//! Brief calibration: real trials on the emulated GPU and of the real physics, reported to the daemon one by one.
//!
//! Generation and training are tried *together*, at shares that add up to the GPU: what one of them gets beside the
//! other is what the plan has to know. Kernels on the emulated GPU are deterministic, so a few lists are enough.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_client::{ProfileKey, ProfilePoint, blocking};
use evenkeel_gpu::{Client, ContextOptions, KernelGroup};
use evenkeel_rollout::affinity::boottime_ns;
use evenkeel_rollout::{Binding, Chunk, EnvPool, Meter, Policy, PoolConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::DemoError;
use super::load::{CHUNK, ENVS, GROUPS, Load, UNITS_PER_BATCH, UNITS_PER_ROLLOUT, memory};
use super::seeds::Stage;
use super::task::{JOINTS, Reach};

/// One measured point of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trial {
    pub(crate) stage: Stage,
    pub(crate) cores: u32,
    pub(crate) sms: u32,
    pub(crate) units_per_s: f64,
}

/// The shares of generation to try: dense where a drift of up to twice can move the balance, sparse outside.
const GENERATION_SMS: [u32; 18] = [
    30, 38, 44, 48, 52, 54, 56, 58, 60, 62, 66, 70, 74, 78, 82, 86, 92, 100,
];
/// The shares of generation to try on half of the GPU, where a second job will want the other half.
const GENERATION_SMS_OF_HALF: [u32; 9] = [14, 18, 22, 24, 26, 28, 32, 36, 42];
/// How long one pair of shares is tried.
const TRIAL: Duration = Duration::from_millis(360);
/// And on half of the GPU, where one list of training alone takes half a second.
const TRIAL_OF_HALF: Duration = Duration::from_millis(1_200);
/// How long a number of cores is tried.
const CORES_TRIAL: Duration = Duration::from_millis(1_200);
/// An environment that takes longer for its chunk of actions stands still.
const CHUNK_WITHIN: Duration = Duration::from_secs(5);
/// One of the trials that find out what a substep of the physics costs.
const SUBSTEPS_TRIAL: Duration = Duration::from_millis(500);
/// So many of them are made before the median is believed: a shared core is slow or fast for a second at a time.
const SUBSTEPS_TRIALS: usize = 3;
/// Substeps that the first trials are made with: about as many as are found in the end.
const SUBSTEPS_GUESSED: u32 = 30;

/// How many substeps give a simulator that does `units_per_s` on this core, by trials of the simulator itself.
pub(crate) fn substeps_for(units_per_s: f64, cpu: u32, seed: u64) -> Result<u32, DemoError> {
    let load = Load::base(SUBSTEPS_GUESSED);
    let mut rates = Vec::new();
    for _ in 0..SUBSTEPS_TRIALS {
        rates.push(simulate(load, &[cpu], seed, SUBSTEPS_TRIAL)?);
    }
    rates.sort_by(f64::total_cmp);
    Ok(scaled_substeps(
        load.substeps,
        rates[SUBSTEPS_TRIALS / 2],
        units_per_s,
    ))
}

/// What makes a simulator that did `measured` units per second with so many substeps do `wanted`.
fn scaled_substeps(substeps: u32, measured: f64, wanted: f64) -> u32 {
    (f64::from(substeps) * measured / wanted)
        .round()
        .clamp(1.0, 1_000.0) as u32
}

/// Tries the simulator on one of these CPUs, then on two, and so on.
pub(crate) fn simulation(load: Load, cpus: &[u32], seed: u64) -> Result<Vec<Trial>, DemoError> {
    let mut trials = Vec::new();
    for cores in 1..=cpus.len() {
        let units_per_s = simulate(load, &cpus[..cores], seed, CORES_TRIAL)?;
        trials.push(Trial {
            stage: Stage::Simulation,
            cores: cores as u32,
            sms: 0,
            units_per_s,
        });
    }
    Ok(trials)
}

pub(crate) fn simulate(
    load: Load,
    cpus: &[u32],
    seed: u64,
    length: Duration,
) -> Result<f64, DemoError> {
    let failed = |error: evenkeel_rollout::PoolError| DemoError::Trial(error.to_string());
    let substeps = Arc::new(AtomicU32::new(load.substeps));
    let arms = (0..ENVS)
        .map(|_| Reach::new(Arc::clone(&substeps)))
        .collect();
    let config = PoolConfig {
        policy: Policy::default(),
        action_len: JOINTS,
        seed,
        groups: GROUPS,
    };
    let binding = Binding::Set {
        cpus: cpus.to_vec(),
        threads: cpus.len(),
    };
    let (sender, finished) = channel();
    let meter = Arc::new(Meter::new(1));
    let sink = move |done| drop(sender.send(done));
    let pool = EnvPool::start(config, arms, binding, Arc::clone(&meter), sink).map_err(failed)?;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut chunk = |env| Chunk {
        env,
        // Arms that go to and fro, as a policy that learns has them do; ever the same way ends at the post.
        actions: vec![random.random_range(-1.0..1.0); CHUNK * JOINTS],
        remaining_chunks: 1,
        tag: 0,
    };
    for env in 0..ENVS {
        pool.submit(chunk(env)).map_err(failed)?;
    }
    meter.take_totals();
    let until = Instant::now() + length;
    while Instant::now() < until {
        let Ok(done) = finished.recv_timeout(CHUNK_WITHIN) else {
            return Err(DemoError::Trial("the simulator stands still".to_owned()));
        };
        pool.submit(chunk(done.env)).map_err(failed)?;
    }
    let (units, busy_ns) = meter.take_totals();
    Ok(units * cpus.len() as f64 / (busy_ns.max(1) as f64 * 1e-9))
}

/// Tries pairs of shares of the GPU, generation's before training's, and where two jobs are to run of half of it, too;
/// `each` hears of each pair.
pub(crate) fn gpu(
    socket: &Path,
    load: Load,
    jobs: usize,
    stop: &AtomicBool,
    mut each: impl FnMut(&[Trial; 2]),
) -> Result<Vec<Trial>, DemoError> {
    let open = |role: &str| {
        let options = ContextOptions {
            role: role.to_owned(),
            percentage: None,
            memory_limit: None,
        };
        Client::connect(socket, &options)
    };
    let (generation, training) = (open("trial/generation")?, open("trial/training")?);
    let installed = generation.spec().sms;
    let whole = GENERATION_SMS.map(|sms| (sms, installed, TRIAL));
    let half = GENERATION_SMS_OF_HALF.map(|sms| (sms, installed / 2, TRIAL_OF_HALF));
    let half = half.into_iter().filter(|_| jobs > 1);
    let mut trials = Vec::new();
    for (generation_sms, of_sms, length) in whole.into_iter().chain(half) {
        if stop.load(Ordering::SeqCst) {
            return Err(DemoError::Interrupted);
        }
        let training_sms = of_sms - generation_sms;
        generation.resize(generation_sms)?;
        training.resize(training_sms)?;
        let (generation_rate, training_rate) = pair(&generation, &training, load, length)?;
        let trial = |stage, sms, units_per_s| Trial {
            stage,
            cores: 0,
            sms,
            units_per_s,
        };
        let both = [
            trial(Stage::Generation, generation_sms, generation_rate),
            trial(Stage::Training, training_sms, training_rate),
        ];
        each(&both);
        trials.extend(both);
    }
    Ok(trials)
}

/// Units per second of both while both are busy.
fn pair(
    generation: &Client,
    training: &Client,
    load: Load,
    length: Duration,
) -> Result<(f64, f64), DemoError> {
    let epochs = load.training();
    let list = load.generation();
    let per_epoch = UNITS_PER_ROLLOUT / epochs.len() as f64;
    let until_ns = boottime_ns() + length.as_nanos() as u64;
    thread::scope(|scope| {
        let other = scope.spawn(|| busy(training, &epochs[0], per_epoch, until_ns));
        let first = busy(generation, &list, UNITS_PER_BATCH, until_ns);
        let second = other
            .join()
            .map_err(|_| DemoError::Trial("a trial's thread panicked".to_owned()))?;
        Ok((first?, second?))
    })
}

/// Units per second, by the device's clock, of a client that keeps two lists under way until some moment.
pub(crate) fn busy(
    client: &Client,
    list: &[KernelGroup],
    units: f64,
    until_ns: u64,
) -> Result<f64, DemoError> {
    let mut waiting = std::collections::VecDeque::new();
    let (mut lists, mut busy_ns) = (0_u32, 0_u64);
    loop {
        while waiting.len() < 2 && boottime_ns() < until_ns {
            waiting.push_back(client.submit(list)?);
        }
        let Some(ticket) = waiting.pop_front() else {
            break;
        };
        let done = client.wait(ticket)?;
        // What ended after the other side stopped ran with less company.
        if done.end_ns <= until_ns || lists == 0 {
            lists += 1;
            busy_ns += done.end_ns - done.start_ns;
        }
    }
    Ok(f64::from(lists) * units / (busy_ns.max(1) as f64 * 1e-9))
}

/// Stores the trials in the daemon, as those of a job that is one of so many.
pub(crate) fn report(
    client: &blocking::Client,
    (job, jobs): (&str, usize),
    gpu_model: &str,
    trials: &[Trial],
) -> Result<(), DemoError> {
    for trial in trials {
        let gpu = match trial.stage {
            Stage::Simulation => "none",
            Stage::Generation | Stage::Training => gpu_model,
        };
        let key = ProfileKey {
            stage: format!("{job}/{}", trial.stage.name()),
            gpu: gpu.to_owned(),
        };
        let point = ProfilePoint {
            cores: trial.cores,
            sms: trial.sms,
            batch: 1,
            replicas: 1,
            units_per_s: trial.units_per_s,
            memory_bytes: memory(trial.stage) / jobs as u64,
            weight: 1.0,
            ..ProfilePoint::default()
        };
        client.report_trial(key, point)?;
    }
    Ok(())
}

/// The rate at which generation and training are balanced, by these trials: what the simulator is made for.
pub(crate) fn balanced_rate(trials: &[Trial]) -> f64 {
    let slower = |pair: &[Trial]| pair.iter().map(|t| t.units_per_s).fold(f64::MAX, f64::min);
    trials.chunks_exact(2).map(slower).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_balanced_rate_is_the_best_slower_one() {
        let trial = |stage, sms, units_per_s| Trial {
            stage,
            cores: 0,
            sms,
            units_per_s,
        };
        let trials = [(50, 10.0, 40.0), (60, 25.0, 30.0), (70, 35.0, 20.0)].map(|(sms, g, t)| {
            [
                trial(Stage::Generation, sms, g),
                trial(Stage::Training, 132 - sms, t),
            ]
        });
        assert_eq!(balanced_rate(trials.as_flattened()), 25.0);
        assert_eq!(balanced_rate(&[]), 0.0);
    }

    #[test]
    fn a_simulator_that_is_too_fast_gets_more_substeps() {
        assert_eq!(scaled_substeps(30, 6_000.0, 4_500.0), 40);
        assert_eq!(scaled_substeps(30, 3_000.0, 4_500.0), 20);
        assert_eq!(scaled_substeps(30, 0.0, 4_500.0), 1, "at least one");
    }
}
