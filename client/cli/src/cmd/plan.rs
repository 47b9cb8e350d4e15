//! `evenkeel plan`: what plan a job would get, on this node or another, from a daemon or without one. Changes nothing.
use std::path::PathBuf;

use clap::Args;
use evenkeel_client::{Plan, PlanRequest, Profile};
use evenkeel_gpu::GpuSpec;

use super::calibrate::read_profiles;
use super::jobs;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::jobfile::JobFile;
use crate::offline::{self, CORES_MAX, GPUS_MAX, SMS_MAX, Sizes};
use crate::out;
use crate::units;

/// Ask what plan a job would get
///
/// The daemon answers for its own node, with what is free there or the job's own, unless sizes are given (what running
/// jobs would give up when the job is submitted is not counted). With
/// --offline there is no daemon: the same allocator plans for a node of the sizes given, all of it free. Either way the
/// answer says which stage binds, and what one more core, more SMs and one more GiB would bring.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  evenkeel plan job.toml
  evenkeel plan job.toml --cores 32 --sms 132 --gpu-memory 80GiB
  evenkeel plan job.toml --profiles measured.json -o json | jq .units_per_s
  evenkeel plan --offline job.toml --profiles measured.json --cores 16 --gpus 1 --gpu h100

A file of profiles is what `evenkeel calibrate export` prints: one profile, or a list of them. A stage without a
profile gets an even share, and the plan says so.")]
pub(crate) struct PlanArgs {
    /// The job, in TOML; it need not be submitted
    file: PathBuf,
    /// Plan without a daemon, for a node with --cores, --gpus and --gpu
    #[arg(long, requires = "cores")]
    offline: bool,
    /// Plan with so many cores instead of those that are free
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=CORES_MAX))]
    cores: Option<u32>,
    /// With --offline: how many GPUs the node has; as many as the job wants if left out
    #[arg(long, requires = "offline", value_parser = clap::value_parser!(u16).range(0..=GPUS_MAX))]
    gpus: Option<u16>,
    /// With --offline: their kind, for its SMs and memory: a100, a100-80gb, h100 or h200
    #[arg(long, requires = "offline", value_parser = preset, value_name = "KIND")]
    gpu: Option<GpuSpec>,
    /// Plan with so many SMs on each GPU
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=SMS_MAX))]
    sms: Option<u32>,
    /// Plan with so much memory on each GPU, such as 80GiB; a KIND's own, less 512 MiB for the system, if left out
    #[arg(long, value_parser = units::bytes, value_name = "BYTES")]
    gpu_memory: Option<u64>,
    /// Use these profiles instead of the stored ones; may be given several times
    #[arg(long, value_name = "FILE")]
    profiles: Vec<PathBuf>,
}

fn preset(text: &str) -> Result<GpuSpec, String> {
    GpuSpec::preset(text).ok_or_else(|| {
        format!(
            "known are {}; for another GPU give --sms and --gpu-memory instead",
            GpuSpec::PRESETS.join(", ")
        )
    })
}

pub(crate) async fn run(globals: &Globals, args: PlanArgs) -> Result<(), Failure> {
    let file = JobFile::load(&args.file, None)?;
    file.remarks().into_iter().for_each(out::note);
    let mut profiles = Vec::new();
    let mut places = Vec::new();
    for path in &args.profiles {
        let read = read_profiles(path)?;
        places.extend(read.iter().map(|_| path.display().to_string()));
        profiles.extend(read);
    }
    offline::one_of_each(places.into_iter().zip(&profiles))?;
    let (plan, unit) = if args.offline {
        solve_here(&args, &file, &profiles)?
    } else {
        ask(globals, &args, &file, profiles).await?
    };
    if globals.json() {
        out::json(&plan);
    } else {
        out::text(jobs::plan_table(&plan));
        jobs::show_plan_summary(&plan, &unit);
    }
    Ok(())
}

/// The daemon's plan, and the job's unit.
async fn ask(
    globals: &Globals,
    args: &PlanArgs,
    file: &JobFile,
    profiles: Vec<Profile>,
) -> Result<(Plan, String), Failure> {
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
    let plan = client.solve_plan(request).await.doing(doing);
    let plan = plan.map_err(|failure| {
        let failure = file.blamed(failure);
        match (failure.hint.is_none(), args.cores, args.sms) {
            (true, None, None) => failure.hint(
                "This is with what is free now. When the job is submitted, jobs that run give up what they have above \
                 their fair part.",
            ),
            _ => failure,
        }
    })?;
    Ok((plan, unit))
}

/// The same without a daemon.
fn solve_here(
    args: &PlanArgs,
    file: &JobFile,
    profiles: &[Profile],
) -> Result<(Plan, String), Failure> {
    let sizes = Sizes {
        // The grammar asks for it.
        cores: args.cores.unwrap_or(1),
        gpus: args.gpus,
        gpu: args.gpu.clone(),
        sms: args.sms,
        memory_bytes: args.gpu_memory,
    };
    let spec = file.spec(sizes.sms())?;
    let planned = offline::plan(&spec, profiles, &sizes).map_err(|failure| file.blamed(failure))?;
    planned.remarks.into_iter().for_each(out::note);
    Ok((planned.plan, spec.unit))
}
