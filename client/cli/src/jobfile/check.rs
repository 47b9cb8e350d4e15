//! What would be refused of a job file on any node, said with its place before anybody is asked: what the daemon checks
//! at its door, and the benchmarks, which only `calibrate` reads.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use evenkeel_client::SmAsk;
use evenkeel_core::decide::node::POINTS_MAX;
use evenkeel_core::job::{BATCH_MAX, CORES_MAX, MEMORY_MAX, PROCESSES_MAX, SMS_MAX};

use super::{BenchFile, JobFile, Origin, StageFile, complain};
use crate::fail::Failure;
use crate::files;
use crate::offline;

/// The largest job file that is read: a job of eight stages with every key and its remarks has some ten KiB.
const FILE_MAX: u64 = 1 << 20;
/// The longest that a part of a trial may take: a day. Longer times are mistakes of a unit.
const TRIAL_MAX: Duration = Duration::from_secs(86_400);
/// A percentage is taken of so many SMs here. Of how many it really is makes no difference to what is checked.
const SOME_SMS: u32 = 100;

/// A complaint, and the path of the key that it is about.
pub(crate) struct Wrong {
    pub(crate) path: String,
    pub(crate) failure: Failure,
}

impl JobFile {
    /// Reads a file, and looks for what would be refused of it on any node. `name` replaces the job's own.
    pub(crate) fn load(path: &Path, name: Option<String>) -> Result<Self, Failure> {
        let text = files::read(path, "job file", FILE_MAX)?;
        let shown = path.display().to_string();
        let mut file = Self::parse(&text, &shown)?;
        if let Some(name) = name {
            file.name = name;
        }
        file.check().map_err(|wrong| {
            let place = complain::at(&wrong.path, &text, &shown);
            wrong.failure.about(&place)
        })?;
        file.origin = Origin { text, name: shown };
        Ok(file)
    }

    /// Whether it makes sense by itself.
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        let mut spec = self.spec_without_stages();
        for (i, stage) in self.stages.iter().enumerate() {
            let stage = stage.without_mixture().spec(Some(SOME_SMS));
            spec.stages.push(stage.map_err(|failure| Wrong {
                path: format!("stages[{i}]"),
                failure,
            })?);
        }
        offline::check(&spec).map_err(|bad| Wrong {
            path: bad.path(),
            failure: bad.into(),
        })?;
        self.check_zeros()?;
        for (i, stage) in self.stages.iter().enumerate() {
            let Some(bench) = &stage.bench else { continue };
            check_bench(stage, bench).map_err(|(key, what)| Wrong {
                path: format!("stages[{i}].bench.{key}"),
                failure: Failure::usage(format!("stage {}: {key} {what}", stage.name)),
            })?;
        }
        Ok(())
    }
}

impl JobFile {
    /// Zeros that stand for the default on the wire: whoever writes one means something else.
    fn check_zeros(&self) -> Result<(), Wrong> {
        let wrong = |path: String, what: String| Wrong {
            path,
            failure: Failure::usage(what),
        };
        if self.groups == 0 {
            let what = "groups = 0: 1 runs the rollout's stages in turn, 2 overlaps them";
            return Err(wrong(
                "groups".to_owned(),
                format!("job {}: {what}", self.name),
            ));
        }
        for (i, stage) in self.stages.iter().enumerate() {
            let counts = [("workers", stage.workers), ("processes", stage.processes)];
            if let Some((key, _)) = counts.iter().find(|(_, n)| *n == 0) {
                let what = format!("stage {}: {key} = 0: it is at least 1", stage.name);
                return Err(wrong(format!("stages[{i}].{key}"), what));
            }
        }
        Ok(())
    }
}

impl StageFile {
    /// The same without the percentages of SMs that are beside a number: which of the two is more depends on the GPU.
    fn without_mixture(&self) -> Self {
        let mut stage = self.clone();
        let (min, max) = (&mut stage.min_sms, &mut stage.max_sms);
        let is_percent = |ask: &Option<SmAsk>| matches!(ask, Some(SmAsk::Percent(_)));
        if min.is_some() && max.is_some() && is_percent(min) != is_percent(max) {
            let percent = if is_percent(min) { min } else { max };
            *percent = None;
        }
        stage
    }
}

/// A list of whole numbers within limits.
fn counts(
    key: &'static str,
    all: &[u32],
    least: u32,
    most: u32,
) -> Result<(), (&'static str, String)> {
    match all.iter().find(|n| !(least..=most).contains(n)) {
        Some(n) => Err((key, format!("has {n}; it is {least} to {most}"))),
        None => Ok(()),
    }
}

/// Whether it says who makes the trials: a command, or a running worker.
fn check_command(bench: &BenchFile) -> Result<(), (&'static str, String)> {
    let wrong = |what: &str| Err(("command", what.to_owned()));
    let program = bench.command.first().filter(|word| !word.trim().is_empty());
    match (program, bench.worker) {
        (None, false) => wrong(
            "names no program; write [\"program\", \"argument\", …], or `worker = true` for a running worker that \
             offers itself for trials",
        ),
        (_, true) if !bench.command.is_empty() => {
            wrong("is not run where `worker = true` asks a running worker; leave one of them out")
        }
        _ => Ok(()),
    }
}

/// A key of a benchmark, and what is wrong with it.
fn check_bench(stage: &StageFile, bench: &BenchFile) -> Result<(), (&'static str, String)> {
    let wrong = |key, what: &dyn Display| Err((key, what.to_string()));
    check_command(bench)?;
    // On the shared set it measures something only if there are SMs.
    let least = u32::from(stage.is_without_gpu() && !stage.is_without_cores());
    counts("cores", &bench.cores, least, CORES_MAX)?;
    counts("batches", &bench.batches, 1, BATCH_MAX)?;
    counts("replicas", &bench.replicas, 1, PROCESSES_MAX)?;
    if let Some(SmAsk::Count(n)) = bench.sms.iter().find(|ask| match ask {
        SmAsk::Count(n) => !(1..=SMS_MAX).contains(n),
        SmAsk::Percent(_) => false,
    }) && !stage.is_without_gpu()
    {
        return wrong(
            "sms",
            &format_args!("has {n}; it is 1 to {SMS_MAX}, or 1% to 100%"),
        );
    }
    for (key, bytes) in [
        ("memory", bench.memory),
        ("sample_memory", bench.sample_memory),
    ] {
        if bytes > MEMORY_MAX {
            return wrong(
                key,
                &format_args!("= {bytes} bytes is more than any GPU has"),
            );
        }
    }
    for (key, time, may_be_none) in [
        ("warmup", bench.warmup, true),
        ("seconds", bench.seconds, false),
        ("timeout", bench.timeout, false),
    ] {
        if time > TRIAL_MAX || (time.is_zero() && !may_be_none) {
            let least = if may_be_none { "0 s" } else { "more than 0 s" };
            let said = time.as_secs_f64();
            return wrong(
                key,
                &format_args!("= {said} s: it is {least}, and a day at most"),
            );
        }
    }
    let lists = [
        bench.cores.len(),
        bench.sms.len(),
        bench.batches.len(),
        bench.replicas.len(),
    ];
    let points = lists
        .iter()
        .fold(1_usize, |all, n| all.saturating_mul((*n).max(1)));
    if points > POINTS_MAX {
        let what =
            format_args!("and the other lists make {points} points; a profile holds {POINTS_MAX}");
        return wrong("cores", &what);
    }
    Ok(())
}
