//! `evenkeel calibrate`: measures a job's stages over a grid, and shows, imports and exports what was measured.

mod grid;
mod measure;
mod plot;
mod room;
mod show;
mod trial;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_client::{Client, ProfileKey};

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;

/// Under which GPU model stages without GPU work are kept.
const NO_GPU: &str = "none";

/// Measure a job's stages at different quotas
///
/// Runs each stage's benchmark ([stages.bench] in the job file) in a lease of its own for every point of
/// its grid of cores, SMs and batch sizes, and stores each trial as it finishes: Ctrl-C leaves what is done,
/// and the next call goes on from there. A trial that fails, hangs or runs out of memory is stored as 0:
/// it does not fit.
///
/// The benchmark is told by EVENKEEL_TRIAL_JOB, _STAGE, _CORES, _SMS, _BATCH, _MEMORY_BYTES and _SECONDS what
/// is tried, and prints one line of JSON at its end: {"units_per_s": 1234.5, "memory_bytes": 1073741824}
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  evenkeel calibrate job.toml
  evenkeel calibrate job.toml --stage training
  evenkeel calibrate show                       all profiles
  evenkeel calibrate show reach/training        one, with its curves and their knees
  evenkeel calibrate export reach/training > training.json
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
    },
    /// Replace profiles by those of a file
    Import {
        /// JSON as printed by export: one profile, or a list of them
        file: PathBuf,
    },
    /// Print profiles as JSON: one, or a list of several
    Export {
        /// The stages, JOB/STAGE or what the job file calls their profiles; all profiles if left out
        stages: Vec<String>,
        /// The GPU model it was measured on; the node's if left out
        #[arg(long)]
        gpu: Option<String>,
    },
}

pub(crate) async fn run(globals: &Globals, args: CalibrateArgs) -> Result<(), Failure> {
    match args.action {
        None => measure::run(globals, args.measure).await,
        Some(Action::Show { stage: None, .. }) => show::all(globals).await,
        Some(Action::Show {
            stage: Some(stage),
            gpu,
        }) => show::one(globals, stage, gpu).await,
        Some(Action::Import { file }) => import(globals, &file).await,
        Some(Action::Export { stages, gpu }) => export(globals, stages, gpu).await,
    }
}

async fn export(
    globals: &Globals,
    stages: Vec<String>,
    gpu: Option<String>,
) -> Result<(), Failure> {
    let client = globals.client()?;
    let mut keys = Vec::new();
    if stages.is_empty() {
        let all = client.profiles().await.doing("list profiles")?;
        let of_gpu = |key: &ProfileKey| gpu.as_ref().is_none_or(|gpu| *gpu == key.gpu);
        keys.extend(all.into_iter().map(|p| p.key).filter(of_gpu));
    }
    let only_one = stages.len() == 1;
    for stage in stages {
        keys.push(find(&client, stage, gpu.clone()).await?);
    }
    let mut profiles = Vec::with_capacity(keys.len());
    for key in keys {
        let doing = format!("export the profile of {}", key.stage);
        profiles.push(client.export_profile(key).await.doing(doing)?);
    }
    match profiles.as_slice() {
        [profile] if only_one => out::json(profile),
        profiles => out::json(&profiles),
    }
    Ok(())
}

async fn import(globals: &Globals, file: &std::path::Path) -> Result<(), Failure> {
    let client = globals.client()?;
    for profile in super::plan::read_profiles(file)? {
        let stage = profile.key.stage.clone();
        let points = client
            .import_profile(profile)
            .await
            .doing(format_args!("import the profile of {stage}"))?;
        out::note(format_args!("{stage} has {points} points now"));
    }
    Ok(())
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
