//! Two benchmarks at once in one lease, each with a cap of its own: caps that overlap. Started by `beyond` under `evenkeel run`.
//!
//! A percentage of MPS is read when a process makes its context, so each benchmark finds its own in its environment. The
//! lease covers all that both may use, so that nobody else is in the way, and they in nobody's.
use std::collections::BTreeMap;
use std::env;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::trial::{self, Ended};
use crate::fail::{Doing as _, Failure};
use crate::out;

/// Where the orders are.
pub(super) const VARIABLE: &str = "EVENKEEL_TRIAL_PAIR";

/// One benchmark's orders.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Side {
    pub(super) command: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// After so long it counts as one that hangs.
    pub(super) limit: Duration,
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

/// Runs both, and prints what they gave.
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
    let (a, b) = tokio::try_join!(one(a, started), one(b, started))?;
    out::json_line(&Both { sides: [a, b] });
    Ok(())
}

async fn one(side: &Side, started: Instant) -> Result<Told, Failure> {
    let [program, arguments @ ..] = side.command.as_slice() else {
        return Err(Failure::usage("a side of the pair has no command"));
    };
    let failed = |why: String| Failure::new(format!("{program}: {why}"));
    let child = Command::new(program)
        .args(arguments)
        .envs(&side.environment)
        .env_remove(VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .doing(format_args!("run {program}"))?;
    match trial::ended(child, side.limit).await? {
        Ended::Well(said) => {
            let ended = started.elapsed();
            let (units_per_s, memory_bytes) = trial::read(&said).map_err(failed)?;
            Ok(Told {
                units_per_s,
                memory_bytes,
                ended,
            })
        }
        Ended::Badly(why) | Ended::NotRun(why) | Ended::Broken(why) => Err(failed(why)),
    }
}
