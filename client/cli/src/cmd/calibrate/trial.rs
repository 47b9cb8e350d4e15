//! One trial: the benchmark under `evenkeel run`, with a lease and a process tree of its own.
use std::env;
use std::process::Stdio;
use std::time::Duration;

use evenkeel_client::ProfilePoint;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::process::{Child, Command};

use super::conditions;
use super::grid::Point;
use super::said;
use crate::args::Globals;
use crate::cmd::run::{NOT_RUN, TIMED_OUT};
use crate::fail::{Doing as _, Failure};
use crate::jobfile::{BenchFile, StageFile};
use crate::offline::RATE_MAX;
use crate::units::show_bytes;

/// How long an ended benchmark may take to stop.
const GRACE: Duration = Duration::from_secs(5);
/// How long a trial waits for its lease: the share of the one before may still be draining.
pub(super) const WAIT: Duration = Duration::from_secs(60);

/// What a trial gave.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    Measured(ProfilePoint),
    /// It failed, hung or ran out of memory: stored as 0.
    DoesNotFit(ProfilePoint, String),
    /// It and all larger shares are more than its worker's lease has.
    Beyond {
        /// The most that may be tried.
        most: Point,
        reason: String,
    },
    /// There was no lease for it: says nothing about the stage, and is not stored.
    Skipped(String),
    /// The command cannot be run at all.
    Broken(String),
}

/// What a benchmark prints at its end.
#[derive(Deserialize)]
struct Measured {
    units_per_s: f64,
    #[serde(default)]
    memory_bytes: u64,
}

/// How a command under a lease ended.
pub(super) enum Ended {
    /// Well; the last lines of what it said.
    Well(Vec<String>),
    /// It failed, hung, or was killed: why.
    Badly(String),
    /// There was no lease for it.
    NotRun(String),
    /// It cannot be run at all.
    Broken(String),
}

/// Runs one trial. Dropping the future ends the benchmark.
pub(super) async fn run(
    globals: &Globals,
    job: &str,
    stage: &StageFile,
    bench: &BenchFile,
    point: Point,
) -> Result<Outcome, Failure> {
    let (limit, memory) = (bench.limit(), stage.trial_memory(bench));
    let mut command = leased(globals, point, memory, limit)?;
    command
        .args(&bench.command)
        .envs(variables(job, stage, bench, point));
    let zero = |reason: String| Outcome::DoesNotFit(measured(point, 0.0, 0), reason);
    let child = command.spawn().doing("start a trial")?;
    Ok(match ended(child, limit).await? {
        Ended::Well(said) => match read(&said, memory) {
            Ok((rate, memory)) => Outcome::Measured(measured(point, rate, memory)),
            Err(why) => zero(why),
        },
        Ended::Badly(reason) => zero(reason),
        Ended::NotRun(reason) => Outcome::Skipped(reason),
        Ended::Broken(reason) => Outcome::Broken(reason),
    })
}

/// `evenkeel run` with a lease of so much for so long, up to its command. It ends with this process.
pub(super) fn leased(
    globals: &Globals,
    point: Point,
    memory: u64,
    limit: Duration,
) -> Result<Command, Failure> {
    let this = env::current_exe().doing("find this program")?;
    let mut command = Command::new(this);
    command
        .arg("--socket")
        .arg(globals.config().address.to_string())
        .args(["run", "--quiet", "--resize", "fixed", "--with-parent"])
        .arg("--timeout")
        .arg(format!("{}ms", limit.as_millis()))
        .arg("--grace")
        .arg(format!("{}s", GRACE.as_secs()))
        .arg("--wait")
        .arg(format!("{}s", WAIT.as_secs()))
        .arg("--cores")
        .arg(point.cores.to_string());
    if point.sms > 0 {
        command.arg("--sm").arg(point.sms.to_string());
        command.arg("--gpu-memory").arg(format!("{memory}B"));
    }
    command
        .arg("--")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// What a benchmark is told.
pub(super) fn variables(
    job: &str,
    stage: &StageFile,
    bench: &BenchFile,
    point: Point,
) -> [(&'static str, String); 9] {
    let seconds = |d: Duration| d.as_secs_f64().to_string();
    [
        ("EVENKEEL_TRIAL_JOB", job.to_owned()),
        ("EVENKEEL_TRIAL_STAGE", stage.name.clone()),
        ("EVENKEEL_TRIAL_CORES", point.cores.to_string()),
        ("EVENKEEL_TRIAL_SMS", point.sms.to_string()),
        ("EVENKEEL_TRIAL_BATCH", point.batch.to_string()),
        ("EVENKEEL_TRIAL_REPLICAS", point.replicas.to_string()),
        (
            "EVENKEEL_TRIAL_MEMORY_BYTES",
            stage.trial_memory(bench).to_string(),
        ),
        ("EVENKEEL_TRIAL_WARMUP", seconds(bench.warmup)),
        ("EVENKEEL_TRIAL_SECONDS", seconds(bench.seconds)),
    ]
}

/// Waits for the end of what [`leased`] started. Dropping the future ends it.
pub(super) async fn ended(mut child: Child, limit: Duration) -> Result<Ended, Failure> {
    let ender = Ender(child.id().and_then(|id| i32::try_from(id).ok()));
    let end = said::until_end(&mut child).await;
    std::mem::forget(ender);
    let end = end.doing("wait for a trial")?;
    let reason = || end.complained.last().map_or("", |line| shortened(line));
    Ok(match end.status.code() {
        Some(0) => Ended::Well(end.said),
        Some(code) if code == i32::from(TIMED_OUT) => {
            Ended::Badly(format!("did not end within {} s", limit.as_secs_f64()))
        }
        Some(code) if code == i32::from(NOT_RUN) => {
            Ended::NotRun(shortened(&end.complained.join(" ")).to_owned())
        }
        Some(126 | 127) => Ended::Broken(reason().to_owned()),
        Some(code) => Ended::Badly(format!("exit code {code}: {}", reason())),
        // Not the command, which has an exit code even then: its supervisor was killed.
        None => Ended::NotRun(format!("its `evenkeel run` was killed ({})", end.status)),
    })
}

/// A reason, no longer than people read.
fn shortened(line: &str) -> &str {
    const LONGEST: usize = 300;
    &line[..line.floor_char_boundary(LONGEST)]
}

/// Ends the trial if we do not come to its end.
struct Ender(Option<i32>);

impl Ender {
    fn end(&self) {
        if let Some(pid) = self.0 {
            // `evenkeel run` passes it on, and gives the lease back.
            kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
        }
    }
}

impl Drop for Ender {
    fn drop(&mut self) {
        self.end();
    }
}

/// The last line that is a result: units per second, and bytes. With a lease of so much GPU memory; 0: of none.
pub(super) fn read(said: &[String], memory: u64) -> Result<(f64, u64), String> {
    let result = said
        .iter()
        .rev()
        .find_map(|line| serde_json::from_str::<Measured>(line).ok())
        .ok_or("it printed no line like {\"units_per_s\": 1234.5, \"memory_bytes\": 0}")?;
    if !(0.0..=RATE_MAX).contains(&result.units_per_s) {
        return Err(format!("{:?} is not a throughput", result.units_per_s));
    }
    if memory > 0 && result.memory_bytes > memory {
        return Err(format!(
            "it says that it took {} of GPU memory, of a lease of {}",
            show_bytes(result.memory_bytes),
            show_bytes(memory)
        ));
    }
    Ok((result.units_per_s, result.memory_bytes))
}

pub(super) fn measured(point: Point, units_per_s: f64, memory_bytes: u64) -> ProfilePoint {
    ProfilePoint {
        cores: point.cores,
        sms: point.sms,
        batch: point.batch,
        replicas: point.replicas,
        units_per_s,
        memory_bytes,
        conditions: Some(conditions::here().clone()),
        ..ProfilePoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_result_counts_and_chatter_does_not() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let said = lines(
            "warming up\n{\"units_per_s\": 1}\n{\"units_per_s\": 2.5, \"memory_bytes\": 7}\nbye",
        );
        assert_eq!(read(&said, 0), Ok((2.5, 7)));
        assert_eq!(read(&said, 7), Ok((2.5, 7)));
        assert!(read(&said, 6).unwrap_err().contains("of a lease of 6 B"));
        assert!(read(&lines("nothing"), 0).is_err());
        for nonsense in ["-1", "1e308", "1e999"] {
            let said = lines(&format!("{{\"units_per_s\": {nonsense}}}"));
            assert!(read(&said, 0).is_err(), "{nonsense}");
        }
    }
}
