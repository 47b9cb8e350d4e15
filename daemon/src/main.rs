//! `evenkeeld`: parse, load, wire. What it wires is in the library beside it; here is only the order of things.
//!
//! Exit codes: 0 stopped as asked; 1 something failed; 2 the configuration or the command line is wrong.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "answers to a person at a terminal; everything later goes to the log"
)]

mod pages;
mod tools;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory as _, Parser};
use evenkeel_core::command::Command;
use evenkeeld::api::{self, Api, Connections};
use evenkeeld::audit::Audit;
use evenkeeld::backend::emulated::{EmulatedBackend, Started};
use evenkeeld::backend::{Backend, cpu, cpu::CpuBackend};
use evenkeeld::clock::Clock;
use evenkeeld::config::Config;
use evenkeeld::controller::{self, Controller, Fatal};
use evenkeeld::discover::{Found, Sources, discover};
use evenkeeld::handle::{Failure, Handle};
use evenkeeld::ledger::{self, History};
use evenkeeld::{descriptors, logging, reconcile, service, traces};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

/// Much of what one thread allocates another one frees: a command goes from a connection's task to the controller, its
/// answer back. In glibc's arenas, one to a thread, that leaves holes which no other thread fills: with 10,000 leases on
/// 1,000 streams the daemon was 15 MB larger and grew for as long as it was busy, and a grant cost a tenth more CPU time.
#[cfg(all(feature = "jemalloc", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// After this the process ends, whatever still runs: leases are in the ledger, and enforcement stands by itself.
const STOP_WITHIN: Duration = Duration::from_secs(9);
/// Commands of the reconciler that wait for the controller: a look at some hundred trees.
const OBSERVATIONS_MAX: usize = 1_024;

/// Leases CPU cores and GPU SMs of this machine to the processes of training jobs, and moves them.
///
/// Without a file, /etc/evenkeel/evenkeeld.toml is read if it exists; config/evenkeeld.toml documents every key.
/// Any key can be set by a variable instead: EVENKEEL__LEASES__TTL_MS=10000 sets leases.ttl_ms.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "PATH", global = true)]
    config: Option<PathBuf>,
    /// Say what is wrong in the configuration, and start nothing.
    #[arg(long, group = "only")]
    check_config: bool,
    /// Print the configuration as it results from file, variables and defaults, and start nothing.
    #[arg(long, group = "only")]
    print_config: bool,
    /// Print what is found on this machine as JSON, and start nothing (but an emulated GPU, where that is set).
    #[arg(long, group = "only")]
    print_node: bool,
    #[command(subcommand)]
    tool: Option<tools::Tool>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let tool = arguments.tool.as_ref();
    match tool.map(|tool| tool.run_without(Arguments::command())) {
        None | Some(Ok(false)) => {}
        Some(done) => return ended(done.map(drop)),
    }
    let config = match Config::load(arguments.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{:#}", anyhow::Error::new(error));
            return ExitCode::from(2);
        }
    };
    if let Some(tool) = &arguments.tool {
        return ended(tools::run(tool, &config));
    }
    let done = match &arguments {
        Arguments {
            check_config: true, ..
        } => {
            println!("the configuration is right");
            Ok(())
        }
        Arguments {
            print_config: true, ..
        } => print_config(&config),
        Arguments {
            print_node: true, ..
        } => print_node(&config),
        _ => start(config),
    };
    ended(done)
}

fn ended(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Who started it may be gone: the exit code says it, too.
            let _ = writeln!(std::io::stderr(), "evenkeeld: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print_config(config: &Config) -> anyhow::Result<()> {
    print!("{}", toml::to_string(config)?);
    Ok(())
}

fn print_node(config: &Config) -> anyhow::Result<()> {
    let found = discover(config, &Sources::default())?;
    println!("{}", serde_json::to_string_pretty(&found)?);
    Ok(())
}

/// Everything that blocks comes before the runtime: its threads inherit the shared set of cores.
fn start(config: Config) -> anyhow::Result<()> {
    logging::start(&config.log)?;
    service::starting("starting: looking at this machine");
    let clock = Clock::open()?;
    let open_files = descriptors::raise();
    let connections = Connections::within(open_files);
    let mut found = discover(&config, &Sources::default())?;
    let device = NewDevice(found.started.take());
    found.notes.extend(connections.shortfall(open_files));
    for note in &found.notes {
        tracing::warn!(note, "found on this machine");
    }
    cpu::bind_daemon(&found.node);
    tracing::info!(
        node = config.node_name(),
        cores = found.node.cores.len(),
        reserved = %found.node.reserved_cores,
        gpus = found.node.gpus.len(),
        version = env!("CARGO_PKG_VERSION"),
        "starting"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(run(config, &clock, found, device, connections));
    // A look at a device that hangs may still be under way; nobody waits for it.
    runtime.shutdown_background();
    result
}

async fn run(
    config: Config,
    clock: &Clock,
    found: Found,
    device: NewDevice,
    connections: Connections,
) -> anyhow::Result<()> {
    // First of all: who stops a daemon that is still starting wants it to end in order, too.
    let asked = asked_to_stop();
    service::starting("starting: opening the ledger; a new schema may take minutes");
    let poke = Arc::new(Notify::new());
    let (controller, handle, targets) = open(&config, clock, poke.clone()).await?;
    // Two steps: first nobody asks any more, then what was asked is done.
    let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
    let mut owner = tokio::spawn(controller.run(stop.clone()));
    install(&handle, &found).await?;
    let traces = follow(&config, &handle, &stop).await;
    let (commands, observed) = mpsc::channel(OBSERVATIONS_MAX);
    let troubles = reconcile::Troubles::default();
    let backends = backends(&config, &found);
    let pool = (found.node.clone(), found.unavailable.clone());
    let period = Duration::from_millis(config.leases.reconcile_ms);
    let (serves, watched) = (serves(&found), handle.clone());
    let config = api::Config {
        connections,
        ..api_config(&config, found, troubles.clone())?
    };
    let forwarder = tokio::spawn(forward(handle.clone(), observed));
    // Before anything looks at devices, and starts one again that a start which fails here has ended.
    let api = Api { config, handle }.spawn(closing.clone()).await?;
    let reconciler = reconcile::spawn(
        reconcile::Service {
            targets,
            poke,
            commands,
            troubles,
            period,
            stop: stop.clone(),
        },
        pool,
        backends,
    );
    device.keep();
    tracing::info!(socket = %api.socket.display(), tcp = ?api.tcp, rest = ?api.rest, "ready");
    service::ready(serves, watched, closing.clone());

    let ended = tokio::select! {
        ended = &mut owner => Some(ended),
        () = asked => None,
    };
    say_why(ended.as_ref());
    // Nothing is revoked: leases outlive the daemon, and so do their limits.
    closing.cancel();
    let rest = async {
        api.stopped().await;
        stop.cancel();
        let ended = match ended {
            Some(ended) => ended,
            None => owner.await,
        };
        let _ = tokio::join!(reconciler, forwarder);
        if let Some(traces) = traces {
            let _ = traces.await; // it has two seconds for what ended last
        }
        ended
    };
    let ended = tokio::time::timeout(STOP_WITHIN, rest)
        .await
        .with_context(|| {
            format!("could not stop within {STOP_WITHIN:?}; what was acknowledged is in the ledger")
        })?;
    Ok(ended.context("the controller panicked")??)
}

/// Leases' lives go to a collector, where one is set.
async fn follow(
    config: &Config,
    handle: &Handle,
    stop: &CancellationToken,
) -> Option<JoinHandle<()>> {
    let history = History::new(&ledger_config(config));
    let (traces, node) = (&config.traces, config.node_name());
    traces::spawn(traces, node, handle.clone(), history, stop.clone()).await
}

/// How the controller ended, where it did so by itself.
type Ended = Result<Result<(), Fatal>, JoinError>;

/// Says why the daemon ends.
fn say_why(ended: Option<&Ended>) {
    if let Some(Ok(Err(error))) = ended {
        let why = std::error::Error::source(error).map(ToString::to_string);
        tracing::error!(%error, why, "ALARM: the daemon ends by itself; start it again");
        service::stopping(&format!("ending by itself: {error}"));
    } else {
        service::stopping("stopping; leases and their limits stay");
    }
}

/// What is installed is known before anybody can ask for it.
async fn install(handle: &Handle, found: &Found) -> anyhow::Result<()> {
    let installed = Command::Discovered {
        node: found.node.clone().into(),
        unavailable: found.unavailable.clone().into(),
    };
    match handle.run_patiently(installed).await {
        Ok(_) => Ok(()),
        // A full disk, say: leases are kept and given back all the same, and the reconciler tells it again.
        Err(error @ Failure::Ledger(_)) => {
            tracing::error!(%error, "what is installed could not be noted; it is tried again");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// What the pool is, in one line.
fn serves(found: &Found) -> String {
    use evenkeel_core::node::{GpuBackend, PoolKind};
    let node = &found.node;
    let emulated = node.gpus.iter().any(|g| g.backend == GpuBackend::Emulated);
    format!(
        "serving cores: {} ({} kept for the system), GPUs: {}{}{}",
        node.cores.len(),
        node.reserved_cores.len(),
        node.gpus.len(),
        if emulated { " (EMULATED)" } else { "" },
        match node.kind {
            PoolKind::Local => "",
            PoolKind::Synthetic => "; a synthetic pool, nothing is enforced",
        },
    )
}

/// The emulated device, where this start has started it. It ends with a start that fails, as nothing uses it yet; a daemon
/// that serves leaves it behind.
struct NewDevice(Option<Started>);

impl NewDevice {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewDevice {
    fn drop(&mut self) {
        if let Some(device) = &self.0 {
            device.end();
        }
    }
}

type Open = (Controller, Handle, watch::Receiver<Arc<reconcile::Targets>>);

async fn open(config: &Config, clock: &Clock, poke: Arc<Notify>) -> anyhow::Result<Open> {
    let settings = ledger_config(config);
    let history = History::new(&settings);
    let opened = ledger::open(settings).await?;
    for warning in &opened.loaded.warnings {
        tracing::warn!(warning, "the ledger");
    }
    let rules = controller::Config {
        settings: config.settings(),
        caps: config.tenants.caps(),
        boot_id: clock.boot_id().to_owned(),
        keep_events: Duration::from_secs(u64::from(config.ledger.audit_days) * 86_400),
    };
    let (ledger, loaded) = (opened.ledger, opened.loaded);
    Ok(Controller::start(rules, ledger, loaded, history, poke).await?)
}

fn ledger_config(config: &Config) -> ledger::Config {
    ledger::Config {
        ballast_bytes: config.ledger.ballast_mib << 20,
        min_free_bytes: config.ledger.min_free_mib << 20,
        ..ledger::Config::new(&config.ledger.path)
    }
}

fn api_config(
    config: &Config,
    found: Found,
    troubles: reconcile::Troubles,
) -> anyhow::Result<api::Config> {
    let path = config.audit_path();
    let audit =
        Audit::to(&path).with_context(|| format!("cannot open audit.path {}", path.display()))?;
    let sockets = found.emulated.into_iter().map(|g| (g.id, g.socket));
    let notes = found.notes;
    Ok(api::Config {
        troubles: Arc::new(move || notes.iter().cloned().chain(troubles.list()).collect()),
        ..api::Config::new(config, sockets.collect(), audit)
    })
}

/// Nothing is enforced on a synthetic pool.
fn backends(config: &Config, found: &Found) -> Vec<Box<dyn Backend>> {
    use evenkeel_core::node::PoolKind;
    if found.node.kind == PoolKind::Synthetic {
        return Vec::new();
    }
    let socket = std::path::absolute(&config.listen.socket);
    let socket = socket.unwrap_or_else(|_| config.listen.socket.clone());
    vec![
        Box::new(CpuBackend::new(socket)),
        Box::new(EmulatedBackend::new(found.emulated.clone()).reviving(&config.gpu.emulated)),
    ]
}

/// What the reconciler saw goes to the controller. A refusal changes nothing: it looks, and tells, again.
async fn forward(handle: Handle, mut observed: mpsc::Receiver<Command>) {
    while let Some(command) = observed.recv().await {
        if let Err(error) = handle.run_patiently(command).await {
            tracing::debug!(%error, "an observation was not taken");
        }
    }
}

/// Listens for signals from now on, not only once it is polled.
fn asked_to_stop() -> impl Future<Output = ()> {
    let listening = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    async move {
        let (Ok(mut term), Ok(mut int)) = listening else {
            tracing::error!("cannot listen for signals; only SIGKILL stops this daemon");
            return std::future::pending().await;
        };
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping; leases and their limits stay");
    }
}
