//! `evenkeel cancel`: ends a job.
use clap::Args;

use super::jobs;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;

/// End a job
///
/// Its workers are told to release; leases that stay are revoked.
#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    /// The job's name
    name: String,
}

pub(crate) async fn run(globals: &Globals, args: CancelArgs) -> Result<(), Failure> {
    let job = globals
        .client()?
        .cancel_job(&args.name)
        .await
        .doing(format_args!("cancel job {}", args.name))?;
    if globals.json() {
        jobs::show_one(globals, &job);
    } else {
        out::note(format_args!("job {} is cancelled", args.name));
    }
    Ok(())
}
