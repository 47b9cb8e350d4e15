//! A job's trials, one by one: `campaign` says which, `trial` runs it, and each is stored as it ends.
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use evenkeel_client::{Client, Gpu, Node, ProfileKey, ProfilePoint, SmMode};
use indicatif::{ProgressBar, ProgressStyle};

use super::NO_GPU;
use super::campaign::{Campaign, Choice, known_of, supply};
use super::corun;
use super::grid::{self, Point};
use super::room;
use super::summary::{End, StageSummary, conclude};
use super::trial::{self, Outcome};
use super::worker;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::jobfile::{BenchFile, JobFile, StageFile};
use crate::out;
use crate::units::{self, counted, show_duration, show_rate};

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
    /// Stop when so much time is used, such as 10m; the next call goes on from there
    #[arg(long, value_parser = units::duration)]
    budget: Option<Duration>,
    /// The whole grid, not only what the plan depends on
    #[arg(long)]
    full: bool,
    /// Also what was measured before; a point's new measurements replace its old ones
    #[arg(long)]
    again: bool,
    /// How often a point is measured at most (4 where the plan rests on it); with --full, each point so often (1)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Stages alone only: no trials of pairs, which tell what co-running costs
    #[arg(long)]
    no_pairs: bool,
}

/// One stage that is measured.
pub(super) struct Work<'a> {
    /// Its place in the job.
    pub(super) index: usize,
    pub(super) stage: &'a StageFile,
    pub(super) bench: &'a BenchFile,
    pub(super) key: ProfileKey,
    /// What may be tried.
    pub(super) grid: Vec<Point>,
    /// What was measured, now or before, and counts.
    pub(super) known: Vec<ProfilePoint>,
    /// With --full: what is still to be tried.
    pub(super) todo: VecDeque<Point>,
    /// Points whose older measurements go when the first new one comes.
    outdated: BTreeSet<Point>,
    /// Whether any trial of the stage, now or earlier, did work.
    pub(super) works: bool,
    /// What failed is a result only if the benchmark works somewhere; until then it is kept back.
    untold: Vec<(String, Point, ProfilePoint)>,
    summary: StageSummary,
}

/// A calibration under way.
pub(super) struct Run<'a> {
    pub(super) globals: &'a Globals,
    pub(super) client: &'a Client,
    pub(super) job: &'a str,
    pub(super) progress: ProgressBar,
    started: Instant,
    budget: Option<Duration>,
    /// Trials made now, and the time that they took.
    made: (u32, Duration),
    /// What goes on from here.
    goes_on: &'static str,
    /// What was said to be waited for last.
    waited_for: RefCell<String>,
}

pub(super) async fn run(globals: &Globals, args: MeasureArgs) -> Result<(), Failure> {
    let path = args.file.clone().unwrap_or_default();
    let file = JobFile::load(&path, None)?;
    let client = globals.client()?;
    let node = client.node().await.doing("look at the node")?;
    let mut works = works(&client, &node, &file, &path, &args).await?;
    for work in &works {
        if let Some(guess) = work.stage.guess() {
            let stage = &work.stage.name;
            out::note(format_args!("{stage}: batch sizes by {}", guess.words()));
        }
    }
    // The plan says where pairs are worth a trial, also where the whole grid is measured.
    let planner = adaptive(&client, &node, &file, &works, args.repeats).await?;
    let campaign = if args.full { &Campaign::Full } else { &planner };
    // With it everything would begin anew.
    let goes_on = match args.again {
        true => "the same command without --again goes on from here",
        false => "the same command goes on from here",
    };
    let mut run = Run {
        globals,
        client: &client,
        job: &file.name,
        progress: bar(campaign.bound(&works) as u64),
        started: Instant::now(),
        budget: args.budget,
        made: (0, Duration::ZERO),
        goes_on,
        waited_for: RefCell::default(),
    };
    let mut pairs = 0;
    let all = async {
        let stopped = run.singles(campaign, &mut works).await?;
        if !args.no_pairs {
            let ground = corun::Ground {
                planner: &planner,
                node: &node,
                gpu: gpu_of(&file, &node),
                may_go_beyond: file.sm_mode == SmMode::Cap,
            };
            pairs = corun::pairs(&mut run, &mut works, &ground).await?;
        }
        Ok::<String, Failure>(stopped)
    };
    let stopped = tokio::select! {
        done = all => Some(done),
        () = super::ended_from_outside() => None,
    };
    run.progress.finish_and_clear();
    let broken = broken(&works);
    let interrupted = stopped.is_none();
    let stopped = stopped.unwrap_or_else(|| Ok("interrupted".to_owned()))?;
    let end = End {
        pairs,
        interrupted: interrupted.then_some(goes_on),
        stopped,
    };
    let stages = works.into_iter().map(|w| w.summary).collect();
    conclude(globals, stages, end)?;
    match broken {
        Some(failure) if !interrupted => Err(failure),
        _ => Ok(()),
    }
}

/// The stages to be measured.
async fn works<'a>(
    client: &Client,
    node: &Node,
    file: &'a JobFile,
    path: &std::path::Path,
    args: &MeasureArgs,
) -> Result<Vec<Work<'a>>, Failure> {
    if let Some(name) = &args.stage
        && !file.stages.iter().any(|s| s.name == *name)
    {
        let names: Vec<&str> = file.stages.iter().map(|s| s.name.as_str()).collect();
        let what = format!("{} has no stage {name}", path.display());
        return Err(Failure::usage(what).hint(format!("Its stages are {}.", names.join(", "))));
    }
    let mut works = Vec::new();
    for (index, stage) in file.stages.iter().enumerate() {
        let wanted = args.stage.as_ref().is_none_or(|name| *name == stage.name);
        if let (true, Some(bench)) = (wanted, &stage.bench) {
            works.push(plan(client, node, file, (index, stage, bench), args).await?);
        }
    }
    if works.is_empty() {
        return Err(Failure::usage(format!(
            "{} has no [stages.bench] to measure with",
            path.display()
        ))
        .hint("See examples/job.toml for how a stage says how it is measured."));
    }
    Ok(works)
}

/// What is to be done for a stage.
async fn plan<'a>(
    client: &Client,
    node: &Node,
    file: &JobFile,
    (index, stage, bench): (usize, &'a StageFile, &'a BenchFile),
    args: &MeasureArgs,
) -> Result<Work<'a>, Failure> {
    if !stage.is_without_gpu() && stage.trial_memory(bench) == 0 {
        return Err(Failure::usage(format!(
            "stage {}: a trial on a GPU needs memory there, and the stage names none",
            stage.name
        ))
        .hint("Say `memory = \"10GiB\"`; a stage without GPU work says `no_gpu = true`."));
    }
    let key = key_of(file, node, stage);
    let grid = grid::points(stage, node, gpu_of(file, node))?;
    let known = stored(client, &key).await?;
    // A profile in which nothing ever worked is that of a benchmark that could not run: it is tried again.
    // With --again it may be broken by now, too: nothing old is replaced before something new has worked.
    let works = !args.again
        && known
            .iter()
            .any(|k| k.units_per_s > 0.0 && k.beside.is_none());
    let there = known_of(&grid, &known);
    let is_done = |point: &&Point| works && there.contains(point);
    let todo: Vec<Point> = grid.iter().filter(|p| !is_done(p)).copied().collect();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let summary = StageSummary {
        stage: key.stage.clone(),
        gpu: key.gpu.clone(),
        known_before: count(grid.len() - todo.len()),
        grid: count(grid.len()),
        ..StageSummary::default()
    };
    let outdated = todo.iter().filter(|p| there.contains(p)).copied().collect();
    let repeats = args.repeats.unwrap_or(1);
    let todo = todo.into_iter();
    Ok(Work {
        index,
        stage,
        bench,
        key,
        todo: todo.flat_map(|p| (0..repeats).map(move |_| p)).collect(),
        grid,
        known: if works { known } else { Vec::new() },
        outdated,
        works,
        untold: Vec::new(),
        summary,
    })
}

/// Under which key a stage is measured on this node.
fn key_of(file: &JobFile, node: &Node, stage: &StageFile) -> ProfileKey {
    ProfileKey {
        stage: file.fingerprint(stage),
        gpu: match gpu_of(file, node) {
            Some(gpu) if !stage.is_without_gpu() => gpu.model.clone(),
            _ => NO_GPU.to_owned(),
        },
    }
}

/// What is stored of a stage; nothing is no failure.
async fn stored(client: &Client, key: &ProfileKey) -> Result<Vec<ProfilePoint>, Failure> {
    match client.export_profile(key.clone()).await {
        Ok(profile) => Ok(profile.points),
        Err(evenkeel_client::Error::NotFound { .. }) => Ok(Vec::new()),
        other => Ok(other.doing("see what was measured before")?.points),
    }
}

/// A campaign that looks for the job's best plan on this node.
async fn adaptive(
    client: &Client,
    node: &Node,
    file: &JobFile,
    works: &[Work<'_>],
    repeats: Option<u32>,
) -> Result<Campaign, Failure> {
    let gpu = gpu_of(file, node);
    let spec = file.spec(gpu.map(|g| g.sms))?;
    let gpus = spec
        .gpu_count
        .max(u32::try_from(spec.gpus.len()).unwrap_or(0));
    let mut others = Vec::with_capacity(file.stages.len());
    for (index, stage) in file.stages.iter().enumerate() {
        others.push(match works.iter().any(|w| w.index == index) {
            true => Vec::new(),
            false => stored(client, &key_of(file, node, stage)).await?,
        });
    }
    Campaign::adaptive(&spec, supply(node, gpu, gpus), works, others, repeats)
}

pub(super) fn gpu_of<'n>(file: &JobFile, node: &'n Node) -> Option<&'n Gpu> {
    let first = file.first_gpu();
    node.gpus.iter().find(|g| first.is_none_or(|id| g.id == id))
}

fn bar(total: u64) -> ProgressBar {
    let progress = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{wide_bar} {pos}, at most {len}: {msg}");
    // The template is ours; a plain bar is what is left if it were wrong.
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    progress
}

impl Run<'_> {
    /// Trials of single stages until none is worth its time. Says why it stopped.
    async fn singles(
        &mut self,
        campaign: &Campaign,
        works: &mut [Work<'_>],
    ) -> Result<String, Failure> {
        loop {
            let (at, point, why) = match campaign.next(works) {
                Choice::Done(why) => return Ok(why),
                Choice::Try(at, point, why) => (at, point, why),
            };
            let expected = self.expected(works[at].bench);
            if let Some(used_up) = self.over_budget(expected) {
                return Ok(used_up);
            }
            self.forecast(campaign.bound(works), expected, &works[at], point);
            self.one(&mut works[at], point, &why).await?;
            self.progress
                .set_length(u64::from(self.made.0) + campaign.bound(works) as u64);
        }
    }

    /// How long a trial takes: as long as those before, and before any, as long as it says.
    pub(super) fn expected(&self, bench: &BenchFile) -> Duration {
        match self.made {
            (0, _) => bench.warmup + bench.seconds,
            (n, time) => time / n,
        }
    }

    /// What to say if another trial does not fit into the budget.
    pub(super) fn over_budget(&self, trial: Duration) -> Option<String> {
        let budget = self.budget?;
        let over = self.started.elapsed() + trial > budget;
        over.then(|| {
            let budget = show_duration(budget);
            format!("the budget of {budget} is used up; {}", self.goes_on)
        })
    }

    /// Counts a trial that was made.
    pub(super) fn count(&mut self, since: Instant) {
        self.made = (self.made.0 + 1, self.made.1 + since.elapsed());
        self.progress.inc(1);
        // Trials of pairs come on top of what was announced.
        let made = self.progress.position();
        if self.progress.length().is_some_and(|most| made > most) {
            self.progress.set_length(made);
        }
    }

    /// The time left, at most: an adaptive plan may end earlier, and the budget ends it anyway.
    fn forecast(&self, trials: usize, each: Duration, work: &Work<'_>, point: Point) {
        let trials = u32::try_from(trials).unwrap_or(u32::MAX);
        let left = each.saturating_mul(trials);
        let budget = self
            .budget
            .map(|b| b.saturating_sub(self.started.elapsed()));
        let left = show_duration(budget.map_or(left, |b| b.min(left)));
        let name = describe(&work.key.stage, point);
        self.progress
            .set_message(format!("at most {left} left: {name}"));
    }

    /// Says something above the bar, or on the standard error where there is no terminal for one.
    pub(super) fn say(&self, what: std::fmt::Arguments<'_>) {
        self.progress.suspend(|| out::note(what));
    }

    /// Says what is waited for, unless that was said last.
    pub(super) fn say_once(&self, what: &str) {
        if self.waited_for.replace(what.to_owned()) != what {
            self.say(format_args!("{what}"));
        }
    }

    /// One trial of a stage, by whoever makes them.
    pub(super) async fn trial(&self, work: &Work<'_>, point: Point) -> Result<Outcome, Failure> {
        match work.bench.worker {
            true => worker::run(self, work, point).await,
            false => trial::run(self.globals, self.job, work.stage, work.bench, point).await,
        }
    }

    /// Waits for a trial, and says after a while what share it waits for, and for whom.
    pub(super) async fn waited<T>(
        &self,
        trial: impl Future<Output = T>,
        (share, memory): (Point, u64),
        name: &str,
    ) -> T {
        tokio::pin!(trial);
        tokio::select! {
            outcome = &mut trial => outcome,
            () = tokio::time::sleep(MENTION_WAIT_AFTER) => {
                if let Some(what) = room::waits_for(self.client, share, memory).await {
                    self.say(format_args!("{name}: {what}"));
                }
                trial.await
            }
        }
    }

    /// One trial of a stage alone, stored.
    pub(super) async fn one(
        &mut self,
        work: &mut Work<'_>,
        point: Point,
        why: &str,
    ) -> Result<(), Failure> {
        let name = describe(&work.key.stage, point);
        let say = |text: String| self.say(format_args!("{name}: {text}"));
        let because = match why {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        let started = Instant::now();
        let memory = work.stage.trial_memory(work.bench);
        let trial = self.trial(work, point);
        let outcome = self.waited(trial, (point, memory), &name).await?;
        if work.todo.front() == Some(&point) {
            work.todo.pop_front();
        }
        match outcome {
            Outcome::Measured(result) => {
                work.summary.measured += 1;
                say(format!(
                    "{} units/s{because}",
                    show_rate(result.units_per_s)
                ));
                work.learn(name, point, result);
            }
            Outcome::DoesNotFit(result, reason) => {
                work.summary.does_not_fit += 1;
                say(format!("does not fit: {reason}"));
                work.learn(name, point, result);
            }
            Outcome::Beyond { most, reason } => {
                let fits = |p: &Point| p.cores <= most.cores && p.sms <= most.sms;
                let before = work.grid.len();
                work.grid.retain(fits);
                work.todo.retain(fits);
                let dropped = before.saturating_sub(work.grid.len());
                work.summary.skipped += u32::try_from(dropped).unwrap_or(u32::MAX);
                say(format!("skipped, with all that is larger: {reason}"));
            }
            Outcome::Skipped(reason) => {
                work.summary.skipped += 1;
                say(format!("skipped: {reason}"));
                work.grid.retain(|p| *p != point); // it says nothing of the stage, and is not asked for again
            }
            Outcome::Broken(reason) => {
                let command = work.bench.command.join(" ");
                return Err(Failure::usage(format!("{command}: {reason}"))
                    .hint("Nothing is stored for a benchmark that cannot be run."));
            }
        }
        self.count(started);
        work.tell(self.client).await
    }
}

impl Work<'_> {
    fn learn(&mut self, name: String, point: Point, result: ProfilePoint) {
        self.works |= result.units_per_s > 0.0;
        self.known.push(result.clone());
        self.untold.push((name, point, result));
    }

    /// Stores what may be told: beside what is known of its point, or in the place of it where that is outdated.
    async fn tell(&mut self, client: &Client) -> Result<(), Failure> {
        if !self.works {
            return Ok(());
        }
        for (name, point, result) in self.untold.drain(..) {
            let key = self.key.clone();
            let stored = match self.outdated.remove(&point) {
                true => client.replace_trial(key, result).await,
                false => client.report_trial(key, result).await,
            };
            stored.doing(format_args!("store the trial {name}"))?;
        }
        Ok(())
    }
}

/// What to say of a stage whose benchmark works nowhere.
fn broken(works: &[Work<'_>]) -> Option<Failure> {
    let work = works.iter().find(|w| !w.untold.is_empty())?;
    let stage = &work.stage.name;
    let failure = Failure::new(format!(
        "no trial of stage {stage} did any work, so nothing of it is stored"
    ));
    Some(failure.hint(match work.bench.worker {
        true => "Look into the log of the worker that offered itself.".to_owned(),
        false => format!(
            "Run its benchmark by hand, from this directory: {}",
            work.bench.command.join(" ")
        ),
    }))
}

pub(super) fn describe(stage: &str, point: Point) -> String {
    let mut text = format!("{stage} at {}", counted(point.cores.into(), "core"));
    if point.sms > 0 {
        text.push_str(&format!(", {}", counted(point.sms.into(), "SM")));
    }
    if point.batch > 1 {
        text.push_str(&format!(", batch {}", point.batch));
    }
    if point.replicas > 1 {
        text.push_str(&format!(", {} replicas", point.replicas));
    }
    text
}
