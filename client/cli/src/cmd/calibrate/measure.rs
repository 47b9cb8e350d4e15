//! The grid of a job's stages, trial by trial.
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use evenkeel_client::{Client, Gpu, Node, ProfileKey, ProfilePoint};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::NO_GPU;
use super::grid::{self, Point};
use super::room;
use super::trial::{self, Outcome};
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::jobfile::{BenchFile, JobFile, StageFile};
use crate::out;
use crate::units::{counted, show_rate};

/// A trial that waits for its share for longer than this says so.
const MENTION_WAIT_AFTER: Duration = Duration::from_secs(1);

/// What is measured.
#[derive(Args, Debug)]
pub(super) struct MeasureArgs {
    /// The job, in TOML, with a [stages.bench] for each stage to be measured
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// Only this stage
    #[arg(long)]
    stage: Option<String>,
    /// Also what was measured before; a point's new measurements replace its old ones
    #[arg(long)]
    again: bool,
    /// How often each point is measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
}

/// What was done for a stage.
#[derive(Default, Serialize)]
struct StageSummary {
    stage: String,
    gpu: String,
    measured: u32,
    does_not_fit: u32,
    skipped: u32,
    known_before: u32,
}

#[derive(Serialize)]
struct Summary {
    stages: Vec<StageSummary>,
    interrupted: bool,
}

/// One stage with the points that are still to be tried.
struct Work<'a> {
    stage: &'a StageFile,
    bench: &'a BenchFile,
    key: ProfileKey,
    todo: Vec<Point>,
    /// Points whose older measurements go when the first new one comes.
    outdated: BTreeSet<Point>,
    /// Whether any trial of the stage, now or earlier, did work.
    works: bool,
    summary: StageSummary,
}

pub(super) async fn run(globals: &Globals, args: MeasureArgs) -> Result<(), Failure> {
    let path = args.file.clone().unwrap_or_default();
    let file = JobFile::read(&path)?;
    let client = globals.client()?;
    let node = client.node().await.doing("look at the node")?;
    if let Some(name) = &args.stage
        && !file.stages.iter().any(|s| s.name == *name)
    {
        let names: Vec<&str> = file.stages.iter().map(|s| s.name.as_str()).collect();
        let what = format!("{} has no stage {name}", path.display());
        return Err(Failure::usage(what).hint(format!("Its stages are {}.", names.join(", "))));
    }
    let mut works = Vec::new();
    for stage in &file.stages {
        let wanted = args.stage.as_ref().is_none_or(|name| *name == stage.name);
        if let (true, Some(bench)) = (wanted, &stage.bench) {
            works.push(plan(&client, &node, &file, stage, bench, &args).await?);
        }
    }
    if works.is_empty() {
        return Err(Failure::usage(format!(
            "{} has no [stages.bench] to measure with",
            path.display()
        ))
        .hint("See examples/job.toml for how a stage says how it is measured."));
    }
    let total: usize = works.iter().map(|w| w.todo.len()).sum();
    let progress = bar(total as u64);
    let mut interrupted = false;
    for work in &mut works {
        tokio::select! {
            done = measure(globals, &client, &file.name, work, &progress) => done?,
            _ = tokio::signal::ctrl_c() => interrupted = true,
        }
        if interrupted {
            break;
        }
    }
    progress.finish_and_clear();
    conclude(globals, works, interrupted)
}

/// What is left to do for a stage.
async fn plan<'a>(
    client: &Client,
    node: &Node,
    file: &JobFile,
    stage: &'a StageFile,
    bench: &'a BenchFile,
    args: &MeasureArgs,
) -> Result<Work<'a>, Failure> {
    if !stage.is_without_gpu() && stage.trial_memory(bench) == 0 {
        return Err(Failure::usage(format!(
            "stage {}: a trial on a GPU needs memory there, and the stage names none",
            stage.name
        ))
        .hint("Say `memory = \"10GiB\"`; a stage without GPU work says `no_gpu = true`."));
    }
    let gpu = gpu_of(file, node);
    let key = ProfileKey {
        stage: file.fingerprint(stage),
        gpu: match gpu {
            Some(gpu) if !stage.is_without_gpu() => gpu.model.clone(),
            _ => NO_GPU.to_owned(),
        },
    };
    let mut todo = grid::points(stage, node, gpu)?;
    let before = todo.len();
    let known = match client.export_profile(key.clone()).await {
        Ok(profile) => profile.points,
        Err(evenkeel_client::Error::NotFound { .. }) => Vec::new(),
        other => other.doing("see what was measured before")?.points,
    };
    // A profile in which nothing ever worked is that of a benchmark that could not run: it is tried again.
    // With --again it may be broken by now, too: nothing old is replaced before something new has worked.
    let works = !args.again && known.iter().any(|k| k.units_per_s > 0.0);
    let is_known = |point: &Point| known.iter().any(|k| point.is_of(k));
    if works {
        todo.retain(|point| !is_known(point));
    }
    let outdated = todo.iter().copied().filter(is_known).collect();
    let summary = StageSummary {
        stage: key.stage.clone(),
        gpu: key.gpu.clone(),
        known_before: u32::try_from(before - todo.len()).unwrap_or(u32::MAX),
        ..StageSummary::default()
    };
    let todo = todo
        .into_iter()
        .flat_map(|point| (0..args.repeats).map(move |_| point))
        .collect();
    Ok(Work {
        stage,
        bench,
        key,
        todo,
        outdated,
        works,
        summary,
    })
}

/// Stores a trial: beside what is known of its point, or in the place of it where that is outdated.
async fn store(
    client: &Client,
    key: &ProfileKey,
    outdated: &mut BTreeSet<Point>,
    point: Point,
    result: ProfilePoint,
) -> Result<(), evenkeel_client::Error> {
    if !outdated.contains(&point) {
        client.report_trial(key.clone(), result).await?;
        return Ok(());
    }
    // As it is now: other points may have come since this run began.
    let mut profile = client.export_profile(key.clone()).await?;
    let is_old = |p: &ProfilePoint| point.is_of(p) && p.replicas == result.replicas;
    profile.points.retain(|p| !is_old(p));
    profile.points.push(result);
    client.import_profile(profile).await?;
    outdated.remove(&point);
    Ok(())
}

fn gpu_of<'n>(file: &JobFile, node: &'n Node) -> Option<&'n Gpu> {
    let first = file.first_gpu();
    node.gpus.iter().find(|g| first.is_none_or(|id| g.id == id))
}

fn bar(total: u64) -> ProgressBar {
    let progress = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left: {msg}");
    // The template is ours; a plain bar is what is left if it were wrong.
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    progress
}

async fn measure(
    globals: &Globals,
    client: &Client,
    job: &str,
    work: &mut Work<'_>,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    // What failed is a result only if the benchmark works somewhere; until then it is kept back.
    let mut untold = Vec::new();
    for &point in &work.todo {
        let name = describe(&work.key.stage, point);
        progress.set_message(name.clone());
        // A line above the bar, or on the standard error where there is no terminal for one.
        let say = |text: String| progress.suspend(|| out::note(format_args!("{name}: {text}")));
        let outcome = {
            let trial = trial::run(globals, job, work.stage, work.bench, point);
            tokio::pin!(trial);
            tokio::select! {
                outcome = &mut trial => outcome,
                () = tokio::time::sleep(MENTION_WAIT_AFTER) => {
                    let memory = work.stage.trial_memory(work.bench);
                    if let Some(what) = room::waits_for(client, point, memory).await {
                        say(what);
                    }
                    trial.await
                }
            }
        }?;
        match outcome {
            Outcome::Measured(result) => {
                work.summary.measured += 1;
                say(format!("{} units/s", show_rate(result.units_per_s)));
                work.works |= result.units_per_s > 0.0;
                untold.push((name, point, result));
            }
            Outcome::DoesNotFit(result, why) => {
                work.summary.does_not_fit += 1;
                say(format!("does not fit: {why}"));
                untold.push((name, point, result));
            }
            Outcome::Skipped(why) => {
                work.summary.skipped += 1;
                say(format!("skipped: {why}"));
            }
            Outcome::Broken(why) => {
                return Err(
                    Failure::usage(format!("{}: {why}", work.bench.command.join(" ")))
                        .hint("Nothing is stored for a benchmark that cannot be run."),
                );
            }
        }
        if work.works {
            for (name, point, result) in untold.drain(..) {
                let stored = store(client, &work.key, &mut work.outdated, point, result).await;
                stored.doing(format_args!("store the trial {name}"))?;
            }
        }
        progress.inc(1);
    }
    if untold.is_empty() {
        return Ok(());
    }
    let stage = &work.stage.name;
    Err(Failure::new(format!(
        "no trial of stage {stage} did any work, so nothing of it is stored"
    ))
    .hint(format!(
        "Run its benchmark by hand, from this directory: {}",
        work.bench.command.join(" ")
    )))
}

fn describe(stage: &str, point: Point) -> String {
    let mut text = format!("{stage} at {}", counted(point.cores.into(), "core"));
    if point.sms > 0 {
        text.push_str(&format!(", {}", counted(point.sms.into(), "SM")));
    }
    if point.batch > 1 {
        text.push_str(&format!(", batch {}", point.batch));
    }
    text
}

fn conclude(globals: &Globals, works: Vec<Work<'_>>, interrupted: bool) -> Result<(), Failure> {
    let stages: Vec<StageSummary> = works.into_iter().map(|w| w.summary).collect();
    // Who calibrates in a script goes on only with something to go on with.
    let got = |s: &StageSummary| s.measured + s.does_not_fit + s.known_before;
    let is_vain = stages.iter().map(got).sum::<u32>() == 0 && stages.iter().any(|s| s.skipped > 0);
    if globals.json() {
        out::json(&Summary {
            stages,
            interrupted,
        });
    } else {
        for s in &stages {
            out::note(format_args!(
                "{} on {}: measured {}, not fitting {}, skipped {}, known before {}; see `evenkeel calibrate show {}`",
                s.stage, s.gpu, s.measured, s.does_not_fit, s.skipped, s.known_before, s.stage
            ));
        }
    }
    if is_vain && !interrupted {
        return Err(Failure::new(
            "nothing was measured: every point was skipped, for the reasons above",
        ));
    }
    if interrupted {
        return Err(Failure::new("interrupted; what was measured is stored")
            .code(130)
            .hint("The same command goes on from here."));
    }
    Ok(())
}
