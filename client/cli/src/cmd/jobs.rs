//! `evenkeel jobs`: all jobs in a line each, or one job in full.
use clap::Args;
use comfy_table::Table;
use evenkeel_client::{Job, Plan};
use serde::Serialize;

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::table::{right, table};
use crate::units::{moved, show_bytes, show_rate};

/// Show jobs, or one job
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  evenkeel jobs
  evenkeel jobs reach
  evenkeel jobs --all -o json | jq '.jobs[].balance.gap'")]
pub(crate) struct JobsArgs {
    /// Only this job, in full
    name: Option<String>,
    /// Ended ones too
    #[arg(long, short)]
    all: bool,
}

#[derive(Serialize)]
struct JobList {
    jobs: Vec<Job>,
}

pub(crate) async fn run(globals: &Globals, args: JobsArgs) -> Result<(), Failure> {
    let client = globals.client()?;
    if let Some(name) = args.name {
        let job = client
            .job(&name)
            .await
            .doing(format_args!("show job {name}"))?;
        show_one(globals, &job);
        return Ok(());
    }
    let jobs = client.jobs(args.all).await.doing("list jobs")?;
    if globals.json() {
        out::json(&JobList { jobs });
    } else if jobs.is_empty() {
        out::note("there are no jobs; submit one with `evenkeel submit job.toml`");
    } else {
        out::text(list(&jobs));
    }
    Ok(())
}

fn list(jobs: &[Job]) -> Table {
    let mut table = table([
        "JOB",
        "TENANT",
        "PHASE",
        "STATE",
        "ROLLOUT/S",
        "TRAIN/S",
        "GAP",
        "STREAK",
        "MOVES",
    ]);
    for job in jobs {
        let balance = job.balance.clone().unwrap_or_default();
        let measured = |text: String| {
            right(if balance.windows == 0 {
                "-".into()
            } else {
                text
            })
        };
        table.add_row(vec![
            job.spec.name.as_str().into(),
            job.tenant.as_str().into(),
            job.phase.as_str().into(),
            balance.state.as_str().into(),
            measured(show_rate(balance.rollout_units_per_s)),
            measured(show_rate(balance.train_units_per_s)),
            measured(format!("{:.1} %", balance.gap * 100.0)),
            measured(balance.streak.to_string()),
            right(job.moves),
        ]);
    }
    table
}

/// One job in full.
pub(crate) fn show_one(globals: &Globals, job: &Job) {
    if globals.json() {
        out::json(job);
        return;
    }
    let unit = &job.spec.unit;
    out::text(format_args!(
        "job {} ({}) of {}, {}{}",
        job.spec.name,
        job.phase.as_str(),
        job.tenant,
        moved(job.moves),
        if job.moving { ", moving now" } else { "" }
    ));
    if let Some(plan) = &job.plan {
        out::text(stages(job, plan));
        show_plan_summary(plan, unit);
    }
    if let Some(balance) = job.balance.as_ref().filter(|b| b.windows > 0) {
        out::text(format_args!(
            "measured over {} windows: rollout {} {unit}/s, training {} {unit}/s, gap {:.1} %, streak {}; {}",
            balance.windows,
            show_rate(balance.rollout_units_per_s),
            show_rate(balance.train_units_per_s),
            balance.gap * 100.0,
            balance.streak,
            balance.state,
        ));
        if !balance.last.is_empty() {
            out::text(format_args!("last: {}", balance.last));
        }
    }
}

/// The plan's figures and reasons.
pub(crate) fn show_plan_summary(plan: &Plan, unit: &str) {
    if plan.units_per_s == 0.0 {
        out::text(format_args!(
            "split by {}; nothing is predicted before its stages are measured: `evenkeel calibrate FILE`",
            plan.by
        ));
    } else {
        out::text(format_args!(
            "predicted {} {unit}/s (rollout {}, training {}) by {}; {} binds",
            show_rate(plan.units_per_s),
            show_rate(plan.rollout_units_per_s),
            show_rate(plan.train_units_per_s),
            plan.by,
            if plan.binding_stage.is_empty() {
                "no stage"
            } else {
                &plan.binding_stage
            },
        ));
    }
    for why in &plan.why {
        out::text(format_args!("  {why}"));
    }
}

fn stages(job: &Job, plan: &Plan) -> Table {
    let mut table = plan_table(plan);
    let measured = job.balance.as_ref().filter(|b| b.windows > 0);
    if let Some(balance) = measured {
        table = table_with_measured(plan, &balance.stage_units_per_s);
    }
    table
}

fn row(stage: &evenkeel_client::StagePlan) -> Vec<comfy_table::Cell> {
    let cap = if stage.cap_sms > stage.sms {
        format!("{} (up to {})", stage.sms, stage.cap_sms)
    } else {
        stage.sms.to_string()
    };
    vec![
        stage.stage.as_str().into(),
        right(stage.workers.len().max(1)),
        right(stage.cores),
        right(cap),
        right(show_bytes(stage.memory_bytes)),
        right(stage.batch),
        right(show_rate(stage.predicted_units_per_s)),
    ]
}

/// A plan's stages in a line each.
pub(crate) fn plan_table(plan: &Plan) -> Table {
    let mut table = table([
        "STAGE",
        "WORKERS",
        "CORES",
        "SMS",
        "MEMORY",
        "BATCH",
        "PREDICTED/S",
    ]);
    for stage in &plan.stages {
        table.add_row(row(stage));
    }
    table
}

fn table_with_measured(plan: &Plan, rates: &[f64]) -> Table {
    let mut table = table([
        "STAGE",
        "WORKERS",
        "CORES",
        "SMS",
        "MEMORY",
        "BATCH",
        "PREDICTED/S",
        "MEASURED/S",
    ]);
    for (stage, rate) in plan.stages.iter().zip(rates) {
        let mut cells = row(stage);
        cells.push(right(show_rate(*rate)));
        table.add_row(cells);
    }
    table
}
