//! Two benchmarks at once in one lease, each with a cap of its own: caps that overlap. Started by `beyond` under `evenkeel run`.
//!
//! A percentage of MPS is read when a process makes its context, so each benchmark finds its own in its environment. The
//! lease covers all that both may use, so that nobody else is in the way, and they in nobody's.
use std::collections::BTreeMap;
use std::env;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::{said, trial};
use crate::fail::{Doing as _, Failure};
use crate::out;

/// Where the orders are.
pub(super) const VARIABLE: &str = "EVENKEEL_TRIAL_PAIR";

/// One benchmark's orders.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Side {
    pub(super) command: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// GPU memory of its lease, in bytes.
    pub(super) memory: u64,
}

/// What both gave.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Both {
    pub(super) sides: [Told; 2],
}

/// What one benchmark gave.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) units_per_s: f64,
    pub(super) memory_bytes: u64,
    /// When it ended, after the start of both.
    pub(super) ended: Duration,
}

/// Runs both, and prints what they gave. Whatever ends this, both end with it.
pub(super) async fn run() -> Result<(), Failure> {
    let orders = env::var(VARIABLE).map_err(|_| {
        Failure::usage(format!(
            "{VARIABLE} is not set: `evenkeel calibrate` runs this itself"
        ))
    })?;
    let sides: [Side; 2] = serde_json::from_str(&orders)
        .map_err(|error| Failure::usage(format!("{VARIABLE} cannot be read: {error}")))?;
    let started = Instant::now();
    let [a, b] = &sides;
    let both = async { tokio::try_join!(one(a, started), one(b, started)) };
    let (a, b) = tokio::select! {
        told = both => told?,
        () = super::ended_from_outside() => return Err(Failure::new("ended by a signal")),
    };
    out::json_line(&Both { sides: [a, b] });
    Ok(())
}

/// A process group that ends with this, hardly and whole: what a benchmark leaves behind has no lease any more.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            killpg(group, Signal::SIGKILL).ok();
        }
    }
}

async fn one(side: &Side, started: Instant) -> Result<Told, Failure> {
    let [program, arguments @ ..] = side.command.as_slice() else {
        return Err(Failure::usage("a side of the pair has no command"));
    };
    let failed = |why: String| Failure::new(format!("{program}: {why}"));
    let mut child = Command::new(program)
        .args(arguments)
        .envs(&side.environment)
        .env_remove(VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .doing(format_args!("run {program}"))?;
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let _group = Group(id.map(Pid::from_raw));
    let end = said::until_end(&mut child).await;
    let end = end.doing(format_args!("wait for {program}"))?;
    let ended = started.elapsed();
    if !end.status.success() {
        let reason = end.complained.last().map_or("", String::as_str);
        return Err(failed(format!("{}: {reason}", end.status)));
    }
    let (units_per_s, memory_bytes) = trial::read(&end.said, side.memory).map_err(failed)?;
    Ok(Told {
        units_per_s,
        memory_bytes,
        ended,
    })
}
