//! `evenkeel plan`: what plan a job would get, on this node or another. Changes nothing.
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use evenkeel_client::{PlanRequest, Profile};

use super::jobs;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::jobfile::JobFile;
use crate::out;
use crate::units;

/// Ask what plan a job would get
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  evenkeel plan job.toml
  evenkeel plan job.toml --cores 32 --sms 132 --gpu-memory 80GiB
  evenkeel plan job.toml --profiles measured.json -o json | jq .units_per_s

A file of profiles is what `evenkeel calibrate export` prints: one profile, or a list of them.")]
pub(crate) struct PlanArgs {
    /// The job, in TOML; it need not be submitted
    file: PathBuf,
    /// Plan with so many cores instead of those that are free
    #[arg(long)]
    cores: Option<u32>,
    /// Plan with so many SMs on each GPU
    #[arg(long)]
    sms: Option<u32>,
    /// Plan with so much memory on each GPU
    #[arg(long, value_parser = units::bytes)]
    gpu_memory: Option<u64>,
    /// Use these profiles instead of the stored ones
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
}

pub(crate) async fn run(globals: &Globals, args: PlanArgs) -> Result<(), Failure> {
    let file = JobFile::read(&args.file)?;
    let profiles = args
        .profiles
        .as_deref()
        .map_or(Ok(Vec::new()), read_profiles)?;
    let client = globals.client()?;
    let spec = match args.sms {
        Some(sms) => file.spec(Some(sms))?,
        None => file.spec_on(&client).await?,
    };
    let unit = spec.unit.clone();
    let doing = format!("plan job {}", spec.name);
    let request = PlanRequest {
        spec,
        profiles,
        cores: args.cores,
        sms: args.sms,
        memory_bytes: args.gpu_memory,
    };
    let plan = client.solve_plan(request).await.doing(doing)?;
    if globals.json() {
        out::json(&plan);
    } else {
        out::text(jobs::plan_table(&plan));
        jobs::show_plan_summary(&plan, &unit);
    }
    Ok(())
}

/// One profile, or a list of them.
pub(crate) fn read_profiles(path: &Path) -> Result<Vec<Profile>, Failure> {
    let text = fs::read_to_string(path).doing(format_args!("read {}", path.display()))?;
    let is_list = text.trim_start().starts_with('[');
    let read = if is_list {
        serde_json::from_str(&text)
    } else {
        serde_json::from_str(&text).map(|profile| vec![profile])
    };
    read.map_err(|error| {
        Failure::usage(format!(
            "{} is not a file of profiles: {error}",
            path.display()
        ))
        .hint("`evenkeel calibrate export STAGE` prints one.")
    })
}
