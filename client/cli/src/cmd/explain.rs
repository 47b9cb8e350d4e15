//! `evenkeel explain`: why a job's shares are as they are, and what moved them last.
use clap::Args;

use super::jobs;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::table::table;

/// Say why a job's shares are as they are
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The job's name
    name: String,
}

pub(crate) async fn run(globals: &Globals, args: ExplainArgs) -> Result<(), Failure> {
    let client = globals.client()?;
    let explanation = client
        .explain(&args.name)
        .await
        .doing(format_args!("explain job {}", args.name))?;
    if globals.json() {
        out::json(&explanation);
        return Ok(());
    }
    jobs::show_one(globals, &explanation.job);
    // The plan's own sentences stand under it already.
    let plan = explanation.job.plan.as_ref();
    let told = plan.map_or(&[][..], |plan| &plan.why);
    for sentence in explanation.sentences.iter().filter(|s| !told.contains(s)) {
        out::text(sentence);
    }
    for remark in super::calibrate::remarks(&client, &explanation.job.spec).await? {
        out::wrapped(&remark);
    }
    if !explanation.decisions.is_empty() {
        let mut decisions = table(["EVENT", "WHEN", "DECISION", "WHY"]);
        for d in &explanation.decisions {
            decisions.add_row(vec![
                d.event_seq.to_string(),
                super::events::when(d.unix_ms),
                d.kind.clone(),
                d.reason.clone(),
            ]);
        }
        out::text(decisions);
    }
    Ok(())
}
