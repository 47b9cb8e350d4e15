//! One trial of a stage of the demo, as `evenkeel calibrate` asks for it: what `[stages.bench]` of a job file runs, so that the
//! demo's real stages can be calibrated like any job's; or a running worker that offers itself for such trials. The GPU is
//! EMULATED, the physics is real.

use std::env;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use evenkeel_client::{GuardOptions, LeaseGuard, TrialAnswer};
use evenkeel_gpu::{Client, KernelGroup};
use evenkeel_rollout::affinity::{Thread, boottime_ns};
use serde::Serialize;

use super::DemoError;
use super::calibrate::{busy, simulate};
use super::load::{BATCH, Load, UNITS_PER_BATCH, UNITS_PER_ROLLOUT, memory};
use super::seeds::Stage;

/// Physics substeps of one environment step: about as many as the demo finds on a usual core.
const SUBSTEPS: u32 = 30;
/// Which environments.
const SEED: u64 = 1;
/// How often a worker that offers itself looks whether its lease is over.
const LOOK: Duration = Duration::from_secs(1);

/// What a benchmark prints at its end.
#[derive(Serialize)]
struct Told {
    units_per_s: f64,
    memory_bytes: u64,
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
struct Tried {
    stage: Stage,
    cores: u32,
    /// SMs to use; none: all that the context gets.
    sms: Option<u32>,
    batch: u32,
    warm_up: Duration,
    length: Duration,
}

/// Runs the trial that the environment describes, and prints its result.
pub(crate) fn run() -> Result<(), DemoError> {
    let stage = stage_named(&told::<String>("STAGE")?)?;
    let told = measure(Tried {
        stage,
        cores: told("CORES")?,
        sms: None,
        batch: told("BATCH")?,
        warm_up: seconds("WARMUP")?,
        length: seconds("SECONDS")?,
    })?;
    crate::out::json_line(&told);
    Ok(())
}

/// A running worker that offers itself for trials of a stage, until its lease is over: under `evenkeel run`, with a lease
/// as large as what is to be tried.
/// `named` is a stage of the demo, or JOB/STAGE for another job's profile.
pub(crate) fn offer(named: &str) -> Result<(), DemoError> {
    let (job, stage) = named.rsplit_once('/').unwrap_or(("demo", named));
    let stage = stage_named(stage)?;
    let guard = LeaseGuard::from_env(GuardOptions::default())?;
    let guard = guard.ok_or_else(|| {
        DemoError::Trial(
            "a worker that offers itself needs a lease: start it with `evenkeel run … -- evenkeel demo trial --offer …`"
                .to_owned(),
        )
    })?;
    let what = format!("{job}/{}", stage.name());
    guard.offer_trials(&what);
    crate::out::note(format_args!(
        "offers itself for trials of {what} (the GPU is EMULATED); Ctrl-C ends it"
    ));
    while guard.may_work() {
        let Some(trial) = guard.wait_trial(LOOK) else {
            continue;
        };
        let told = measure(Tried {
            stage,
            cores: trial.cores,
            sms: Some(trial.sms).filter(|n| *n > 0),
            batch: trial.batch,
            warm_up: trial.warmup,
            length: trial.measure,
        });
        let answer = match told {
            Ok(told) => TrialAnswer::Measured {
                units_per_s: told.units_per_s,
                memory_bytes: told.memory_bytes,
            },
            Err(error) => TrialAnswer::Failed {
                why: error.to_string(),
            },
        };
        guard.answer_trial(&trial, answer);
    }
    Ok(())
}

fn stage_named(name: &str) -> Result<Stage, DemoError> {
    let found = Stage::ALL.into_iter().find(|s| s.name() == name);
    found.ok_or_else(|| {
        let all = Stage::ALL.map(Stage::name).join(", ");
        DemoError::Trial(format!("the demo has no stage {name}; it has {all}"))
    })
}

fn measure(tried: Tried) -> Result<Told, DemoError> {
    let stage = tried.stage;
    let times = [tried.warm_up, tried.length];
    let (units_per_s, memory_bytes) = match stage {
        Stage::Simulation => {
            let cores = usize::try_from(tried.cores.max(1)).unwrap_or(usize::MAX);
            let cpus: Vec<u32> = (Thread::current().cpus().into_iter()).take(cores).collect();
            thread::sleep(tried.warm_up);
            let load = Load::base(SUBSTEPS);
            (simulate(load, &cpus, SEED, tried.length)?, 0)
        }
        Stage::Generation => {
            let part = f64::from(tried.batch) / BATCH as f64;
            let list = scaled(Load::base(SUBSTEPS).generation(), part);
            on_gpu((stage, tried.sms), &list, UNITS_PER_BATCH * part, times)?
        }
        Stage::Training => {
            let epochs = Load::base(SUBSTEPS).training();
            let units = UNITS_PER_ROLLOUT / epochs.len() as f64;
            on_gpu((stage, tried.sms), &epochs[0], units, times)?
        }
    };
    Ok(Told {
        units_per_s,
        memory_bytes,
    })
}

/// Units per second of a stream that is kept full, after a warm-up that does not count, and the memory that it took.
fn on_gpu(
    (stage, sms): (Stage, Option<u32>),
    list: &[KernelGroup],
    units: f64,
    [warm_up, length]: [Duration; 2],
) -> Result<(f64, u64), DemoError> {
    let client = Client::connect_from_env(stage.name())?;
    if let Some(sms) = sms {
        client.resize(sms)?;
    }
    let bytes = memory(stage).min(client.memory_limit());
    client.alloc(bytes)?;
    let run = |time: Duration| {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        busy(&client, list, units, boottime_ns().saturating_add(ns))
    };
    if !warm_up.is_zero() {
        run(warm_up)?;
    }
    Ok((run(length)?, bytes))
}

/// The same kernels for another batch: as many launches, each so much wider.
fn scaled(list: Vec<KernelGroup>, part: f64) -> Vec<KernelGroup> {
    let scale = |n: u64| (n as f64 * part).round() as u64;
    let of = |k: KernelGroup| KernelGroup {
        flops: scale(k.flops),
        bytes: scale(k.bytes),
        width_blocks: u32::try_from(scale(k.width_blocks.into()).max(1)).unwrap_or(u32::MAX),
        repeat: k.repeat,
    };
    list.into_iter().map(of).collect()
}

fn seconds(name: &str) -> Result<Duration, DemoError> {
    let seconds: f64 = told(name)?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|e| DemoError::Trial(format!("EVENKEEL_TRIAL_{name}={seconds}: {e}")))
}

/// What `evenkeel calibrate` says of the trial.
fn told<T: FromStr>(name: &str) -> Result<T, DemoError> {
    let name = format!("EVENKEEL_TRIAL_{name}");
    let text = env::var(&name).map_err(|_| {
        DemoError::Trial(format!(
            "{name} is not set: this runs as a stage's benchmark, under `evenkeel calibrate`"
        ))
    })?;
    text.parse()
        .map_err(|_| DemoError::Trial(format!("{name}=`{text}` cannot be read")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_twice_as_large_has_kernels_twice_as_wide() {
        let list = Load::base(1).generation();
        let twice = scaled(list.clone(), 2.0);
        assert_eq!(twice.len(), list.len());
        for (one, two) in list.iter().zip(&twice) {
            assert_eq!(two.width_blocks, 2 * one.width_blocks);
            assert_eq!((two.flops, two.repeat), (2 * one.flops, one.repeat));
        }
    }
}
