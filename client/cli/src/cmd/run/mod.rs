//! `evenkeel run`: a command under a lease.
//!
//! This process is the root of the worker's tree: it acquires, attaches itself, binds itself to the
//! lease's cores, and starts the command, which inherits all that. `supervise` does the rest.

mod child;
mod signals;
mod supervise;
mod why;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use evenkeel_client::{
    Client, Error, FENCE_VARIABLE, GpuAsk, GuardOptions, LEASE_VARIABLE, Lease, LeaseRequest,
    OnDaemonLost, ResizeMode, SOCKET_VARIABLE, SmAsk,
};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::leases::show_shares;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::units;

/// How long `run` tries to reach the daemon: as long as a restart of it takes, and somebody at a prompt waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// A wait in the queue that is longer than this is mentioned.
const MENTION_WAIT_AFTER: Duration = Duration::from_secs(1);

/// What is tried, as failures tell it.
const GETTING: &str = "get a lease";

/// The exit code when the command was ended by --timeout, as of timeout(1).
pub(crate) const TIMED_OUT: u8 = 124;
/// The exit code when the command did not run, or was stopped because its lease was over.
pub(crate) const NOT_RUN: u8 = 125;

/// Run a command under a lease
///
/// Takes a lease, binds itself to the lease's cores, gives the command the environment of its GPU share,
/// and keeps the lease while the command runs. SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGWINCH are
/// passed on. When the daemon moves the share, the command gets SIGTERM (checkpoint, then exit), and after
/// --grace SIGKILL, and is started again with its new share under the same lease. Cores change while it runs.
///
/// When the lease is over under the command (its job is cancelled, it is revoked or expires, the node is drained), the
/// command gets SIGTERM, and after --grace SIGKILL; the lease is given back, and run says why and exits with 125,
/// whatever the command's own exit code was.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("what").required(true).multiple(true).args(["cores", "sm", "job"]),
    after_help = "\
Examples:
  evenkeel run --cores 4 --sm 30% --gpu-memory 10GiB -- python train.py
  evenkeel run --job reach --stage simulation --worker 3 --wait 10m -- ./simulate
  evenkeel run --cores 2 -- make -j2

Exit code: the command's (128 + n for signal n); 124 if it was ended by --timeout; 125 if it did not run, or was
stopped because its lease was over; 126 if it cannot be executed, 127 if it was not found."
)]
pub(crate) struct RunArgs {
    /// How many cores
    #[arg(long)]
    cores: Option<u32>,
    /// A share of a GPU: SMs, or a percentage such as 30%
    #[arg(long, value_parser = units::sms, value_name = "SMS|PERCENT", requires = "gpu_memory")]
    sm: Option<SmAsk>,
    /// GPU memory, such as 10GiB; a share needs some: even an empty context takes some hundred MiB
    #[arg(long, value_parser = units::bytes, requires = "sm", value_name = "BYTES")]
    gpu_memory: Option<u64>,
    /// Which GPU; any if left out
    #[arg(long, requires = "sm")]
    gpu: Option<u32>,
    /// For a worker of this job: the share that its plan has for it
    #[arg(long, requires = "stage", conflicts_with_all = ["cores", "sm", "gpu", "gpu_memory"])]
    job: Option<String>,
    /// The worker's stage
    #[arg(long, requires = "job", conflicts_with_all = ["cores", "sm", "gpu", "gpu_memory"])]
    stage: Option<String>,
    /// The worker's index in its stage
    #[arg(long, requires = "job", default_value_t = 0)]
    worker: u32,
    /// How long to wait in the queue, such as 10m
    #[arg(long, value_parser = units::duration, default_value = "0", hide_default_value = true)]
    wait: Duration,
    /// Time without a heartbeat after which the lease ends; the daemon's default if left out
    #[arg(long, value_parser = units::duration)]
    ttl: Option<Duration>,
    /// How the GPU share may change; if left out, as the stage declares it, and outside a job by a restart
    #[arg(long, value_enum)]
    resize: Option<ResizeArg>,
    /// Processes of the command that share the GPU memory; if left out, as the stage declares it, and outside a job 1
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    processes: Option<u32>,
    /// Higher goes first in the queue
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_parser = units::duration, default_value = "30s")]
    grace: Duration,
    /// End the command when it has run for so long: SIGTERM, after --grace SIGKILL; run then exits with 124
    #[arg(long, value_parser = units::duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// End with the process that started this; a signal that ends it counts like a timeout
    #[arg(long, hide = true)]
    with_parent: bool,
    /// What to do when the daemon has been silent for a whole TTL
    #[arg(long, value_enum, default_value_t)]
    on_daemon_lost: LostArg,
    /// Say nothing about the lease
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How the GPU share may change.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ResizeArg {
    /// While the command runs: it talks to the daemon itself
    Live,
    /// By a restart of the command
    Restart,
    /// Never
    Fixed,
}

/// What to do when the daemon is silent.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LostArg {
    /// Go on: what the daemon enforced stands while it is down
    #[default]
    Continue,
    /// Stop the command
    Stop,
}

impl RunArgs {
    fn request(&self) -> LeaseRequest {
        let mut request = match (&self.job, &self.stage) {
            (Some(job), Some(stage)) => LeaseRequest::worker(job, stage, self.worker),
            _ => {
                let gpus = self.sm.map(|sms| GpuAsk {
                    gpu: self.gpu,
                    sms,
                    memory_bytes: self.gpu_memory.unwrap_or(0),
                });
                LeaseRequest::amounts(self.cores.unwrap_or(0), gpus.into_iter().collect())
            }
        };
        request.ttl = self.ttl;
        request.wait = self.wait;
        request.processes = self.processes;
        request.priority = self.priority;
        request.resize = self.resize.map(|r| match r {
            ResizeArg::Live => ResizeMode::Live,
            ResizeArg::Restart => ResizeMode::Restart,
            ResizeArg::Fixed => ResizeMode::Fixed,
        });
        request
    }

    fn options(&self) -> GuardOptions {
        GuardOptions {
            on_daemon_lost: match self.on_daemon_lost {
                LostArg::Continue => OnDaemonLost::Continue,
                LostArg::Stop => OnDaemonLost::Stop,
            },
            ..GuardOptions::default()
        }
    }
}

pub(crate) async fn run(globals: &Globals, args: RunArgs) -> Result<ExitCode, Failure> {
    let not_run = |failure: Failure| failure.code(NOT_RUN);
    if args.with_parent {
        // Where it cannot be had, the one who started this ends it by itself.
        set_pdeathsig(Signal::SIGTERM).ok();
    }
    let client = Client::new(globals.config().deadline(PATIENCE))
        .doing("reach the daemon")
        .map_err(not_run)?;
    let request = args.request();
    let worker = {
        let hold = client.hold(&request, args.options());
        tokio::pin!(hold);
        tokio::select! {
            worker = &mut hold => worker,
            () = tokio::time::sleep(MENTION_WAIT_AFTER) => {
                if !args.quiet && !args.wait.is_zero() {
                    out::note(format_args!(
                        "waiting for room, for up to {}",
                        units::show_duration(args.wait)
                    ));
                }
                hold.await
            }
        }
    };
    let worker = worker
        .doing(GETTING)
        .map_err(|f| not_run(over_tcp(&client, in_options(f))))?;
    let lease = worker.attached.lease;
    if !args.quiet {
        out::note(describe(&lease));
    }
    let environment = complete(worker.attached.environment, &client, &lease);
    let supervisor = supervise::Supervisor {
        client,
        guard: worker.guard,
        lease,
        environment,
        command: args.command,
        grace: args.grace,
        timeout: args.timeout,
        with_parent: args.with_parent,
        quiet: args.quiet,
    };
    supervisor.run().await
}

/// Fields of the wire, and the options that fill them.
const OPTIONS: [(&str, &str); 12] = [
    ("wait_ms", "--wait"),
    ("ttl_ms", "--ttl"),
    ("ttl", "--ttl"),
    ("member.job", "--job"),
    ("member.stage", "--stage"),
    ("worker", "--worker"),
    ("cores", "--cores"),
    ("gpus[0].sms", "--sm"),
    ("gpus[0].percent", "--sm"),
    ("gpus[0].memory_bytes", "--gpu-memory"),
    ("gpus[0].gpu", "--gpu"),
    ("processes", "--processes"),
];

/// A refusal of a field, told of the option that filled it.
fn in_options(mut failure: Failure) -> Failure {
    let told = failure.what.split_once(GETTING).and_then(|(before, told)| {
        let (field, why) = told.strip_prefix(": ")?.split_once(": ")?;
        let (_, option) = OPTIONS.iter().find(|(wire, _)| *wire == field)?;
        let why = why
            .replace("(gpus)", "(--sm)")
            .replace("(member)", "(--job)");
        Some(format!("{before}{GETTING}: {option}: {why}"))
    });
    if let Some(told) = told {
        failure.what = told;
    }
    failure
}

/// Attaching needs the kernel's word on who calls.
fn over_tcp(client: &Client, failure: Failure) -> Failure {
    match client.address() {
        evenkeel_client::Address::Http(_) | evenkeel_client::Address::Https(_)
            if failure.hint.is_none() => failure.hint(
            "A command can only be attached over the daemon's Unix socket; give its path with --socket.",
        ),
        _ => failure,
    }
}

/// What the worker needs to find its lease, where the daemon's environment does not say it already.
fn complete(
    mut environment: BTreeMap<String, String>,
    client: &Client,
    lease: &Lease,
) -> BTreeMap<String, String> {
    let ours = [
        (LEASE_VARIABLE, lease.id.to_string()),
        (FENCE_VARIABLE, lease.fence.to_string()),
        (SOCKET_VARIABLE, absolute(client)),
    ];
    for (name, value) in ours {
        environment.entry(name.to_owned()).or_insert(value);
    }
    environment
}

/// The socket's path, good from any directory.
fn absolute(client: &Client) -> String {
    match client.address() {
        evenkeel_client::Address::Unix(path) => std::path::absolute(path)
            .unwrap_or_else(|_| path.clone())
            .display()
            .to_string(),
        evenkeel_client::Address::Http(uri) | evenkeel_client::Address::Https(uri) => uri.clone(),
    }
}

/// A lease in a line.
fn describe(lease: &Lease) -> String {
    let mut parts = Vec::new();
    if !lease.target.cores.is_empty() {
        parts.push(format!("cores {}", lease.target.cores));
    }
    if !lease.target.gpus.is_empty() {
        parts.push(show_shares(&lease.target));
    }
    let enforced = if lease.enforced {
        ""
    } else {
        " (not enforced)"
    };
    format!("lease {}: {}{enforced}", lease.id, parts.join("; "))
}

/// Why a lease could not be given back, if that is worth a word.
fn release_trouble(error: &Error) -> Option<String> {
    match error {
        // It has ended already: the aim is reached.
        Error::Fenced { .. } | Error::NotFound { .. } => None,
        other => Some(format!(
            "the lease was not given back and ends by itself at its TTL: {other}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_options_and_not_fields() {
        for (told, expect) in [
            (
                "cannot get a lease: wait_ms: 90000000 is more than a day",
                "cannot get a lease: --wait: 90000000 is more than a day",
            ),
            (
                "cannot get a lease: cores: nothing is asked; a GPU share (gpus), a job's stage (member)",
                "cannot get a lease: --cores: nothing is asked; a GPU share (--sm), a job's stage (--job)",
            ),
            (
                "cannot get a lease: 2 more cores are needed: really",
                "cannot get a lease: 2 more cores are needed: really",
            ),
        ] {
            assert_eq!(in_options(Failure::new(told)).what, expect);
        }
    }
}
