//! `make bench-leases`: durable leases on Evenkeel and on its peers, in one run on one machine, with the same work.
//! bench/README.md says how it is measured and what is compared with what.
#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a program for people: progress on stderr, the table on stdout"
)]
mod measure;
mod recover;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use evenkeel_bench::load::{Renewing, Times};
use evenkeel_bench::peers::Kind;
use evenkeel_bench::report::Report;
use evenkeel_bench::{bare, machine, off, plot, table};
use tokio::signal::unix::{SignalKind, signal};

use crate::measure::Run;

/// Measures durable leases on Evenkeel and, beside it, on etcd, Redis and PostgreSQL, each in a process of its own on
/// the same disk. A peer that is not installed is skipped by name; `scripts/peers.sh` installs them.
#[derive(Parser)]
#[command(name = "bench-leases", version)]
struct Args {
    /// Which peers; all of them if none is named.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Kind>,
    /// What is measured; everything if nothing is named.
    #[arg(long, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Clients of the closed loops.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,256")]
    clients: Vec<usize>,
    /// Live leases of which renewals are measured.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    live: Vec<usize>,
    /// Connections that renew them.
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Leases that one message renews.
    #[arg(long, default_value_t = 10)]
    message: usize,
    /// Messages under way on each connection.
    #[arg(long, default_value_t = 4)]
    window: usize,
    /// Arrivals a second of the open loops, rising; a peer that does not keep up is not asked for more.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "250,500,1000,2000,4000,8000,16000,32000"
    )]
    rates: Vec<f64>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Of each, so many, with the peers in another order; the median counts.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Seconds that the machine has to become idle before the measurements of a peer, all together, in each repeat.
    #[arg(long, default_value_t = 60.0)]
    idle_wait: f64,
    /// Where the servers' folders are made: the disk that is measured.
    #[arg(long)]
    base: Option<PathBuf>,
    /// Where leases.json, leases.md and leases.svg go.
    #[arg(long, default_value = "target/bench-leases")]
    out: PathBuf,
    /// Fewer seconds, leases and repeats: to see that the harness works. Its table says so.
    #[arg(long)]
    short: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Processes that the benchmark starts itself.
#[derive(Subcommand)]
enum Role {
    /// The wire with nothing behind it (internal).
    #[command(hide = true)]
    Bare {
        /// Where it listens.
        socket: PathBuf,
    },
    /// The daemon with a ledger that writes nothing (internal).
    #[command(hide = true)]
    Off {
        /// Its configuration.
        config: PathBuf,
    },
}

/// What is measured of each peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Grants and releases, as fast as they go.
    Closed,
    /// Grants and releases at fixed rates.
    Open,
    /// Renewals.
    Renewals,
    /// SIGKILL under load.
    Recovery,
}

impl Args {
    fn run(&self) -> Run {
        let seconds = if self.short {
            self.seconds.min(0.5)
        } else {
            self.seconds
        };
        let span = Duration::from_secs_f64(seconds);
        let wanted = |part| self.parts.is_empty() || self.parts.contains(&part);
        let most = |all: &[usize], most| -> Vec<usize> {
            let small = |n: &&usize| !self.short || **n <= most;
            all.iter().filter(small).copied().collect()
        };
        Run {
            times: Times {
                warm_up: span / 5,
                span,
            },
            repeats: if self.short { 1 } else { self.repeats.max(1) },
            clients: if wanted(Part::Closed) {
                most(&self.clients, 256)
            } else {
                vec![]
            },
            rates: match wanted(Part::Open) {
                true if self.short => self.rates.iter().copied().take(3).collect(),
                true => self.rates.clone(),
                false => vec![],
            },
            live: if wanted(Part::Renewals) {
                most(&self.live, 1_000)
            } else {
                vec![]
            },
            renewing: Renewing {
                connections: self.connections.max(1),
                message: self.message.max(1),
                window: self.window.max(1),
            },
            recovery: wanted(Part::Recovery),
            idle_wait: Duration::from_secs_f64(if self.short { 0.0 } else { self.idle_wait }),
            base: self.base.clone().unwrap_or_else(std::env::temp_dir),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.role {
        Some(Role::Bare { socket }) => bare::serve(socket).await,
        Some(Role::Off { config }) => off::serve(config).await,
        None => whole(&args).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-leases: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The whole run; ended early, it ends its servers, too.
async fn whole(args: &Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        done = measured(args) => done,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        _ = terminate.recv() => anyhow::bail!("terminated"),
    }
}

async fn measured(args: &Args) -> anyhow::Result<()> {
    let run = args.run();
    let mut report = Report {
        machine: machine::describe()?,
        disk: machine::filesystem(&run.base)?,
        short: args.short,
        seconds: run.times.span.as_secs_f64(),
        repeats: run.repeats,
        renewing: format!(
            "{} leases a message, {} connections, {} messages under way on each",
            run.renewing.message, run.renewing.connections, run.renewing.window
        ),
        busy: Vec::new(),
        notes: Vec::new(),
        peers: Vec::new(),
    };
    if !report.is_on_disk() {
        report.notes.push(format!(
            "The servers' folders are on {}: nothing here is durable. Name a folder on a disk with `--base`.",
            report.disk
        ));
    }
    let kinds = if args.peers.is_empty() {
        Kind::ALL.to_vec()
    } else {
        args.peers.clone()
    };
    measure::all(&run, &kinds, &mut report).await?;
    std::fs::create_dir_all(&args.out)?;
    let write = |name: &str, text: String| {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let table = table::markdown(&report);
    write("leases.json", serde_json::to_string_pretty(&report)?)?;
    write("leases.md", table.clone())?;
    write("leases.svg", plot::svg(&report))?;
    println!("{table}");
    eprintln!("bench-leases: written to {}", args.out.display());
    Ok(())
}
