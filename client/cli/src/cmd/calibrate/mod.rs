//! `evenkeel calibrate`: measures a job's stages over a grid, and shows, imports and exports what was measured.

mod beyond;
mod campaign;
pub(crate) mod conditions;
mod corun;
mod grid;
mod measure;
mod pair;
mod picture;
mod plot;
mod room;
mod rows;
mod said;
mod show;
mod summary;
mod transfer;
mod trial;
mod worker;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_client::{Client, ProfileKey};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};

pub(crate) use show::remarks;
pub(crate) use transfer::read_profiles;

/// Under which GPU model stages without GPU work are kept.
const NO_GPU: &str = "none";

/// Measure a job's stages at different quotas
///
/// Runs each stage's benchmark ([stages.bench] in the job file) in a lease of its own at different cores, SMs, batch
/// sizes and replicas. The next trial is always the one that teaches most about the best plan, and it stops when no plan
/// can be much better: about a third of the grid; --full tries all of it. Then each pair of stages runs together, for
/// what co-running costs (in a job with sm_mode = "cap" also with caps of half as much again, and of the whole GPU). A stage with
/// `worker = true` in place of a command is measured by a running worker that offers itself. Each trial is stored as it ends: Ctrl-C leaves what is done, and the next call goes on from
/// there. A trial that fails, hangs or runs out of memory is stored as 0: it does not fit, and neither does a larger batch.
///
/// The benchmark is told by EVENKEEL_TRIAL_JOB, _STAGE, _CORES, _SMS, _BATCH, _REPLICAS, _MEMORY_BYTES, _WARMUP and
/// _SECONDS what is tried, runs for so many seconds after its warm-up, and prints one line of JSON at its end:
/// {"units_per_s": 1234.5, "memory_bytes": 1073741824}
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  evenkeel calibrate job.toml
  evenkeel calibrate job.toml --stage training --budget 10m
  evenkeel calibrate show                       all profiles
  evenkeel calibrate show reach/training        one, with its curves and their knees
  evenkeel calibrate show reach/training --svg training.svg
  evenkeel calibrate export reach/training > training.json
  evenkeel calibrate export reach/training --csv > training.csv
  evenkeel calibrate export > all.json          all profiles, as a list
  evenkeel calibrate import training.json
  evenkeel plan --offline job.toml --profiles all.json --cores 16 --gpu h100

A point of a profile is {cores, sms, batch, replicas, units_per_s, memory_bytes, weight}: the quota it ran at (SMs on
each GPU), work units per second, peak GPU memory in bytes, and how much it counts."
)]
pub(crate) struct CalibrateArgs {
    #[command(flatten)]
    measure: measure::MeasureArgs,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show profiles, or one with its curves
    Show {
        /// The stage, JOB/STAGE or what the job file calls its profile
        stage: Option<String>,
        /// The GPU model it was measured on; the node's if left out
        #[arg(long)]
        gpu: Option<String>,
        /// Draw its curves into this file, too
        #[arg(long, requires = "stage", value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Likewise, as a picture of pixels
        #[arg(long, requires = "stage", value_name = "FILE")]
        png: Option<PathBuf>,
    },
    /// Replace profiles by those of a file
    Import {
        /// JSON or CSV as printed by export: one profile, or several
        file: PathBuf,
    },
    /// Print profiles as JSON or CSV: one, or a list of several
    Export(transfer::ExportArgs),
    /// Two benchmarks in one lease: what calibrate starts itself with
    #[command(hide = true)]
    Pair,
}

pub(crate) async fn run(globals: &Globals, args: CalibrateArgs) -> Result<(), Failure> {
    match args.action {
        None => measure::run(globals, args.measure).await,
        Some(Action::Show { stage: None, .. }) => show::all(globals).await,
        Some(Action::Show {
            stage: Some(stage),
            gpu,
            svg,
            png,
        }) => show::one(globals, stage, gpu, show::Pictures { svg, png }).await,
        Some(Action::Import { file }) => transfer::import(globals, &file).await,
        Some(Action::Export(args)) => transfer::export(globals, args).await,
        Some(Action::Pair) => pair::run().await,
    }
}

/// Somebody wants this process to end: Ctrl-C, SIGTERM, or a terminal that is gone.
async fn ended_from_outside() {
    let listen = |kind| signal(kind).ok();
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [mut int, mut term, mut hup] = kinds.map(listen);
    // One that cannot be listened to ends the process by itself.
    let next = async |one: &mut Option<Signal>| match one {
        Some(one) => drop(one.recv().await),
        None => std::future::pending().await,
    };
    tokio::select! {
        () = next(&mut int) => {}
        () = next(&mut term) => {}
        () = next(&mut hup) => {}
    }
}

/// The profile that is meant: the only one of the stage, or the one measured on the GPU that is named.
async fn find(client: &Client, stage: String, gpu: Option<String>) -> Result<ProfileKey, Failure> {
    if let Some(gpu) = gpu {
        return Ok(ProfileKey { stage, gpu });
    }
    let profiles = client.profiles().await.doing("list profiles")?;
    let keys: Vec<ProfileKey> = profiles.into_iter().map(|p| p.key).collect();
    let mut found = keys.iter().filter(|k| k.stage == stage);
    match (found.next(), found.next()) {
        (Some(key), None) => Ok(key.clone()),
        (None, _) => {
            let near = crate::nearest::nearest(&stage, keys.iter().map(|k| k.stage.as_str()));
            let failure = Failure::new(format!("there is no profile of {stage}"))
                .code(crate::fail::NOT_FOUND);
            Err(failure.hint(near.map_or_else(
                || "`evenkeel calibrate show` lists them; `evenkeel calibrate job.toml` measures them.".to_owned(),
                |near| format!("Did you mean {near}?"),
            )))
        }
        (Some(_), Some(_)) => {
            let models: Vec<&str> = keys
                .iter()
                .filter(|k| k.stage == stage)
                .map(|k| k.gpu.as_str())
                .collect();
            Err(
                Failure::usage(format!("{stage} was measured on several GPUs"))
                    .hint(format!("Say which with --gpu: {}.", models.join(", "))),
            )
        }
    }
}
