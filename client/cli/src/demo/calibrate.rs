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
use evenkeel_gpu::{Client, ContextOptions, GpuSpec, KernelGroup};
use evenkeel_rollout::affinity::boottime_ns;
use evenkeel_rollout::{Binding, Chunk, EnvPool, Meter, Policy, PoolConfig};

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
/// How long one pair of shares is tried.
const TRIAL: Duration = Duration::from_millis(360);
/// How long a number of cores is tried.
const CORES_TRIAL: Duration = Duration::from_millis(1_200);
/// An environment that takes longer for its chunk of actions stands still.
const CHUNK_WITHIN: Duration = Duration::from_secs(5);
/// Time for finding out what a substep of the physics costs.
const SUBSTEP_TRIAL: Duration = Duration::from_millis(400);

/// How many substeps give a simulator that does `units_per_s` on one core, by a quick trial.
pub(crate) fn substeps_for(units_per_s: f64) -> u32 {
    const TRIED: u32 = 8;
    let mut arm = Reach::new(Arc::new(AtomicU32::new(TRIED)));
    // Any action that keeps the arm moving.
    let action = [0.3; JOINTS];
    let until = Instant::now() + SUBSTEP_TRIAL;
    // The best of several short stretches: what the physics costs, not what else the machine does.
    let mut best_ns = f64::INFINITY;
    while Instant::now() < until {
        const STEPS: u32 = 50;
        let start = Instant::now();
        for _ in 0..STEPS {
            evenkeel_rollout::Environment::step(&mut arm, &action);
        }
        best_ns = best_ns.min(start.elapsed().as_nanos() as f64 / f64::from(STEPS * TRIED));
    }
    let step_ns = 1e9 / units_per_s;
    (step_ns / best_ns).round().clamp(1.0, 1_000.0) as u32
}

/// Tries the simulator on one of these CPUs, then on two, and so on.
pub(crate) fn simulation(load: Load, cpus: &[u32], seed: u64) -> Result<Vec<Trial>, DemoError> {
    let mut trials = Vec::new();
    for cores in 1..=cpus.len() {
        let units_per_s = simulate(load, &cpus[..cores], seed)?;
        trials.push(Trial {
            stage: Stage::Simulation,
            cores: cores as u32,
            sms: 0,
            units_per_s,
        });
    }
    Ok(trials)
}

fn simulate(load: Load, cpus: &[u32], seed: u64) -> Result<f64, DemoError> {
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
    let chunk = |env| Chunk {
        env,
        // Any actions that keep the arms moving.
        actions: vec![0.2; CHUNK * JOINTS],
        remaining_chunks: 1,
        tag: 0,
    };
    for env in 0..ENVS {
        pool.submit(chunk(env)).map_err(failed)?;
    }
    meter.take_totals();
    let until = Instant::now() + CORES_TRIAL;
    while Instant::now() < until {
        let Ok(done) = finished.recv_timeout(CHUNK_WITHIN) else {
            return Err(DemoError::Trial("the simulator stands still".to_owned()));
        };
        pool.submit(chunk(done.env)).map_err(failed)?;
    }
    let (units, busy_ns) = meter.take_totals();
    Ok(units * cpus.len() as f64 / (busy_ns.max(1) as f64 * 1e-9))
}

/// Tries pairs of shares of the GPU; `each` hears of each pair.
pub(crate) fn gpu(
    socket: &Path,
    load: Load,
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
    let mut trials = Vec::new();
    for generation_sms in GENERATION_SMS {
        if stop.load(Ordering::SeqCst) {
            return Err(DemoError::Interrupted);
        }
        let training_sms = installed - generation_sms;
        generation.resize(generation_sms)?;
        training.resize(training_sms)?;
        let (generation_rate, training_rate) = pair(&generation, &training, load)?;
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
fn pair(generation: &Client, training: &Client, load: Load) -> Result<(f64, f64), DemoError> {
    let epochs = load.training();
    let list = load.generation();
    let per_epoch = UNITS_PER_ROLLOUT / epochs.len() as f64;
    let until_ns = boottime_ns() + TRIAL.as_nanos() as u64;
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
fn busy(
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

/// Stores the trials in the daemon.
pub(crate) fn report(
    client: &blocking::Client,
    job: &str,
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
            memory_bytes: memory(trial.stage),
            weight: 1.0,
        };
        client.report_trial(key, point)?;
    }
    Ok(())
}

/// The rate at which generation and training are balanced, by the model alone: what the simulator is made for.
pub(crate) fn balanced_rate(load: Load) -> f64 {
    let gpu = GpuSpec::h100();
    let rate = |sms: u32, list: &[KernelGroup], units: f64| {
        units / (evenkeel_gpu::solo_time_ns(&gpu, sms, list) as f64 * 1e-9)
    };
    let (generation, training) = (load.generation(), load.training().concat());
    let theta = |sms: u32| {
        rate(sms, &generation, UNITS_PER_BATCH).min(rate(
            gpu.sms - sms,
            &training,
            UNITS_PER_ROLLOUT,
        ))
    };
    (2..gpu.sms).step_by(2).map(theta).fold(0.0, f64::max)
}
