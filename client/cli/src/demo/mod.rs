//! `evenkeel demo`: the whole loop on an emulated GPU. A real daemon in a temporary directory, real simulation,
//! generation and training processes that take leases and exchange real data; only the GPU is emulated, and the demo
//! says so.
//!
//! `story` tells it with a drift, `steady` without one, `together` with two jobs. `site` has directory, device and daemon; `fleet` the worker
//! processes, which `talk` to it. `worker` is such a process; `task` (physics), `policy` (on `mlp`) and `load` (kernels)
//! are its work, and `seeds` says how that drifts. `jobspec` is what is submitted; `bench` is a trial of a stage by itself, for `evenkeel calibrate`. `calibrate`, `watch`, `observe` and
//! `rivals` measure; `show` and `closing` tell people, `report` programs.

mod bench;
mod calibrate;
mod closing;
mod fleet;
mod jobspec;
pub(crate) mod load;
mod mlp;
mod observe;
mod policy;
mod report;
mod rivals;
pub(crate) mod seeds;
mod show;
mod site;
mod steady;
mod story;
mod talk;
mod task;
mod together;
mod watch;
mod worker;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::{Args, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::fail::Failure;
use crate::out;

/// What `evenkeel demo` may be told.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    /// Print one JSON object with the measured figures instead of the live table
    #[arg(long)]
    pub json: bool,
    /// Which drift, environments and noise: 1 generation x1.5, 2 generation x2, 3 training x1.5, 4 training x2,
    /// 5 simulation x1.5; from 6 on the same drifts in turn, with other environments and noise
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Length of each measured phase, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=120))]
    pub seconds: u64,
    /// Which allocator
    #[arg(long, value_enum, default_value_t)]
    pub policy: DemoPolicy,
    /// Also measure the best static splits and unmanaged sharing, without a daemon (up to 5 minutes)
    #[arg(long)]
    pub full: bool,
    /// Let nothing drift, and compare with static splits without a daemon
    #[arg(long, conflicts_with = "full")]
    pub no_drift: bool,
    /// With --no-drift: how many pairs of a managed and a static run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10))]
    pub pairs: u64,
    /// With 2, nothing drifts: a second job comes, the first gives up what is more than its fair part, the second ends,
    /// and the first has everything back
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2),
        conflicts_with_all = ["full", "no_drift"])]
    pub jobs: u8,
    /// What the demo's own processes are started with
    #[command(subcommand)]
    pub(crate) hidden: Option<Hidden>,
}

/// The allocators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DemoPolicy {
    /// Bisection on the target throughput
    #[default]
    Waterfill,
    /// As published: the simulator at its knee, then a binary search between generation and training
    Ebrl,
}

/// Commands that the demo starts itself with.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Hidden {
    /// A worker process
    #[command(hide = true)]
    Worker {
        /// Its orders, as JSON
        orders: String,
    },
    /// One trial of one of the demo's stages, as the benchmark of a job (examples/demo.toml)
    Trial {
        /// Run as a worker that offers itself for trials of this stage (JOB/STAGE if the job is not called demo), under
        /// `evenkeel run` with a lease as large as what is to be tried
        #[arg(long, value_name = "STAGE")]
        offer: Option<String>,
    },
    /// The emulated GPU's device process
    #[command(hide = true)]
    Device {
        /// Directory of its socket
        dir: PathBuf,
    },
    /// Another program that ends with the demo
    #[command(hide = true)]
    Become {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("cannot use {}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot find out where this program is: {0}")]
    OwnPath(io::Error),
    #[error("there is no daemon to start: {} is missing", .program.display())]
    NoDaemon { program: PathBuf },
    #[error("cannot start {}: {source}", .program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot listen for signals: {0}")]
    Signal(io::Error),
    #[error("{process} is not up: {why}\n{log}")]
    NotUp {
        process: &'static str,
        why: String,
        log: String,
    },
    #[error("no core of this machine can be leased: the daemon keeps all of them for the system")]
    NoCores,
    #[error(
        "{jobs} jobs need a core each, and this machine has {cores} that can be leased; run the demo with --jobs 1"
    )]
    FewCores { cores: usize, jobs: usize },
    #[error("{what} did not happen within {seconds} s; {last}")]
    NotWithin {
        what: &'static str,
        seconds: u64,
        last: String,
    },
    #[error("the {worker} worker is not ready after {seconds} s")]
    NotReady { worker: &'static str, seconds: u64 },
    #[error("the {worker} worker failed: {why}")]
    Worker { worker: &'static str, why: String },
    #[error("the pipeline stands still: no training step for {seconds} s")]
    Stalled { seconds: u64 },
    #[error("the daemon did not move the shares within {seconds} s after the drift; {last}")]
    NoMove { seconds: u64, last: String },
    #[error("the job is not settled after {seconds} s; {last}")]
    Unsettled { seconds: u64, last: String },
    #[error("a trial failed: {0}")]
    Trial(String),
    #[error("the emulated GPU failed: {0}")]
    Gpu(#[from] evenkeel_gpu::ClientError),
    #[error("the daemon failed: {0}")]
    Daemon(#[from] evenkeel_client::Error),
    #[error("cannot simulate the pipeline in virtual time: {0}")]
    Virtual(#[from] evenkeel_rollout::pipeline::PipelineError),
    #[error("interrupted; everything that the demo started has ended")]
    Interrupted,
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        let failure = Self::new(format!("demo: {error}"));
        match error {
            DemoError::NoDaemon { .. } => failure.hint(
                "Build it with `make build` (or `cargo build --release --bin evenkeeld`), \
                 or name its folder in EVENKEEL_BIN_DIR.",
            ),
            DemoError::File { .. } => failure
                .hint("The demo needs some megabytes in the folder for temporary files (TMPDIR)."),
            DemoError::Interrupted => failure.code(130),
            _ => failure,
        }
    }
}

/// Runs the demo.
///
/// # Errors
/// What could not be started or measured; everything that was started has ended by then.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, Failure> {
    match &args.hidden {
        Some(Hidden::Worker { orders }) => {
            let orders = orders.clone();
            return Ok(apart(move || worker::main(&orders)).await?);
        }
        Some(Hidden::Trial { offer }) => {
            let offer = offer.clone();
            apart(move || match offer {
                Some(stage) => bench::offer(&stage),
                None => bench::run(),
            })
            .await??;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Hidden::Device { dir }) => return Ok(site::device(dir)),
        Some(Hidden::Become { command }) => return Ok(site::turn_into(command)),
        None => {}
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (done, mut outcome) = oneshot::channel();
    let flag = Arc::clone(&stop);
    // A thread of its own: calls to the daemon block there, and the workers' lives are tied to it.
    thread::Builder::new()
        .name("demo".to_owned())
        .spawn(move || drop(done.send(tell(&args, &flag))))
        .map_err(DemoError::Thread)?;
    let watch = |kind| signal(kind).map_err(DemoError::Signal);
    let (mut interrupt, mut terminate) = (
        watch(SignalKind::interrupt())?,
        watch(SignalKind::terminate())?,
    );
    loop {
        tokio::select! {
            _ = interrupt.recv() => stop.store(true, Ordering::SeqCst),
            _ = terminate.recv() => stop.store(true, Ordering::SeqCst),
            told = &mut outcome => {
                return match told {
                    Ok(told) => Ok(told.map(|()| ExitCode::SUCCESS)?),
                    Err(_) => Err(Failure::new("demo: it came to an end by itself; this is a bug")),
                };
            }
        }
    }
}

/// A worker on a thread outside of the runtime, since it makes blocking calls.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DemoError> {
    let (done, outcome) = oneshot::channel();
    let work = move || {
        // Nobody waits any more only if this process is being ended.
        done.send(work()).ok();
    };
    let named = thread::Builder::new().name("worker".to_owned());
    named.spawn(work).map_err(DemoError::Thread)?;
    outcome.await.map_err(|_| DemoError::Worker {
        worker: "demo's",
        why: "it came to an end by itself; this is a bug".to_owned(),
    })
}

fn tell(args: &DemoArgs, stop: &Arc<AtomicBool>) -> Result<(), DemoError> {
    let screen = show::Screen::new(args.json, out::is_terminal());
    if args.no_drift {
        let figures = steady::run(args, stop, screen)?;
        if args.json {
            out::json(&figures);
        }
        return Ok(());
    }
    if args.jobs > 1 {
        let figures = together::run(args, stop, screen)?;
        if args.json {
            out::json(&figures);
        }
        return Ok(());
    }
    let figures = story::run(args, stop, screen)?;
    if args.json {
        out::json(&figures);
    }
    Ok(())
}
