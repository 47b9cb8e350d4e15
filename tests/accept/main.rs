//! `make accept PART=…`: measures what was asked for, line by line, and prints a table: what, asked, measured, holds.
//!
//! Not a test suite: figures of speed and gain live here, on the machine at hand, with its description beside them.
//! Correctness lines are in `make test` too, in a shorter form. It ends with a status other than zero if a row does
//! not hold.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people; what it prints is its result"
)]
mod allocator;
mod bad;
mod balance;
mod clone;
mod crash;
mod crowd;
mod daemon;
mod disk;
mod doors;
mod gpu;
mod line;
mod load;
mod plans;
mod row;
mod speed;
mod trail;
mod world;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use evenkeel_bench::machine;

use crate::line::{Line, Theme};
use crate::row::Table;

/// Measures the acceptance lines, theme by theme, and prints what was asked, what was measured, whether it holds.
#[derive(Parser)]
#[command(
    name = "accept",
    after_help = "Build the release binaries first: `make accept` does."
)]
struct Args {
    /// Which lines: a theme (main, doors, allocator), one of its lines (main.3), several with commas, or `all`.
    #[arg(long, default_value = "all")]
    part: String,
    /// Also writes the table, as Markdown, to this file.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Fewer seconds, kills, seeds and leases, and every row: to see that the harness works. Its table says so.
    #[arg(long)]
    short: bool,
    /// With line 1: also clones HEAD into a folder for temporary files and runs `make demo` and `make test` there, with
    /// a build from nothing. Takes a quarter of an hour and some gigabytes.
    #[arg(long)]
    fresh_clone: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Processes that the harness starts itself.
#[derive(Subcommand)]
enum Role {
    /// A worker under test (internal).
    #[command(hide = true)]
    Worker(crash::WorkerArgs),
    /// A worker that is stopped past its deadline (internal).
    #[command(hide = true)]
    Late(bad::LateArgs),
    /// Another tenant (internal).
    #[command(hide = true)]
    Stranger(bad::StrangerArgs),
    /// Somebody who attacks the daemon (internal).
    #[command(hide = true)]
    Attacker(doors::AttackerArgs),
    /// Another tenant of a daemon under attack (internal).
    #[command(hide = true)]
    Victim(doors::VictimArgs),
    /// A server without a ledger: the ceiling of the transport (internal).
    #[command(hide = true)]
    Ceiling(load::CeilingArgs),
    /// A daemon to come, with another schema (internal).
    #[command(hide = true)]
    Next(doors::NextArgs),
}

/// What the parts need to know.
pub(crate) struct Run {
    /// Smaller amounts, the same rows.
    pub(crate) short: bool,
    /// Whether the fresh clone is asked for.
    pub(crate) fresh_clone: bool,
    /// What the demo's long runs gave, by seed: lines 1 and 3 judge the same runs.
    pub(crate) demos: BTreeMap<u32, Result<serde_json::Value, String>>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Role::Worker(worker)) => crash::worker(worker).await,
        Some(Role::Late(late)) => bad::late(late).await,
        Some(Role::Stranger(stranger)) => bad::stranger(stranger).await,
        Some(Role::Attacker(attacker)) => doors::attacker(attacker).await,
        Some(Role::Victim(victim)) => doors::victim(victim).await,
        Some(Role::Ceiling(ceiling)) => load::ceiling(ceiling).await,
        Some(Role::Next(next)) => doors::next(next).await,
        None => measure(&args).await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("accept: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn measure(args: &Args) -> anyhow::Result<bool> {
    let mut run = Run {
        short: args.short,
        fresh_clone: args.fresh_clone,
        demos: BTreeMap::new(),
    };
    let lines = line::parse(&args.part)?;
    let mut table = Table::new(machine::describe()?, args.short);
    for line in &lines {
        eprintln!("accept: measuring line {line}");
        let rows = match (line.theme, line.number) {
            (Theme::Main, 1) => balance::measure(&mut run).await,
            (Theme::Main, 2) => gpu::measure(&run).await,
            (Theme::Main, 3) => plans::measure(&mut run).await,
            (Theme::Main, 4) => world::measure(&run).await,
            (Theme::Main, 5) => crash::measure(&run).await,
            (Theme::Main, 6) => speed::measure(&run).await,
            (Theme::Main, _) => bad::measure(&run).await,
            (Theme::Doors, number) => doors::measure(&run, number).await,
            (Theme::Allocator, number) => allocator::measure(&run, number).await,
        };
        table.part(*line, rows);
        print!("{}", table.last_part());
    }
    let demo = Line {
        theme: Theme::Main,
        number: 1,
    };
    if lines.contains(&demo) && !args.fresh_clone {
        table.note(
            "Not asked for in this run: that the two commands work on a fresh clone (line main.1; `--fresh-clone` \
             measures it).",
        );
    }
    println!("\n{}", table.markdown());
    if let Some(path) = &args.write {
        std::fs::write(path, table.markdown())?;
    }
    Ok(table.holds())
}
