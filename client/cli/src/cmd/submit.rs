//! `evenkeel submit`: a job file to the daemon.
use std::path::PathBuf;

use clap::Args;
use evenkeel_client::{JobPhase, JobSpec};

use super::jobs;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::jobfile::JobFile;
use crate::out;

/// Submit a job
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  evenkeel submit examples/job.toml
  evenkeel submit job.toml --check        only read the file and say what is wrong with it
  evenkeel submit job.toml -o json | jq .plan

A stage that does no GPU work says `no_gpu = true` or `sms = 0`; one that says nothing of a GPU may get SMs.")]
pub(crate) struct SubmitArgs {
    /// The job, in TOML; see examples/job.toml for every key
    file: PathBuf,
    /// Submit it under another name
    #[arg(long)]
    name: Option<String>,
    /// Only read the file; submit nothing
    #[arg(long)]
    check: bool,
}

pub(crate) async fn run(globals: &Globals, args: SubmitArgs) -> Result<(), Failure> {
    let file = JobFile::load(&args.file, args.name)?;
    file.remarks().into_iter().for_each(out::note);
    if args.check {
        out::note(format_args!("{} is a job file", args.file.display()));
        return Ok(());
    }
    let client = globals.client()?;
    let spec = file.spec_on(&client).await?;
    let job = client
        .submit(JobSpec::request_id(), &spec)
        .await
        .doing(format_args!("submit job {}", spec.name))
        .map_err(|failure| file.blamed(failure))?;
    if job.phase == JobPhase::Queued {
        out::note(format_args!(
            "job {} waits for room; see `evenkeel explain {}`",
            spec.name, spec.name
        ));
    }
    jobs::show_one(globals, &job);
    Ok(())
}
