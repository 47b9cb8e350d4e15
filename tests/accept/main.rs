//! `make accept PART=…`: measures what was asked for, line by line, and prints a table: what, asked, measured, holds.
//!
//! Not a test suite: figures of speed and gain live here, on the machine at hand, with its description beside them.
//! Correctness lines are in `make test` too, in a shorter form.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people; what it prints is its result"
)]
mod bad;
mod balance;
mod crash;
mod daemon;
mod disk;
mod gpu;
mod load;
mod machine;
mod plans;
mod row;
mod speed;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::row::Table;

/// Measures the acceptance lines of the main job and prints what was asked, what was measured, whether it holds.
#[derive(Parser)]
#[command(
    name = "accept",
    after_help = "Build the release binaries first: `make accept` does."
)]
struct Args {
    /// Which lines: 1 to 7, several with commas, or `all`.
    #[arg(long, default_value = "all")]
    part: String,
    /// Also writes the table, as Markdown, to this file.
    #[arg(long)]
    write: Option<PathBuf>,
    /// A tenth of everything: to see that the harness works. Its table says so.
    #[arg(long)]
    short: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Processes that the harness starts itself.
#[derive(Subcommand)]
enum Role {
    /// A worker under test (internal).
    #[command(hide = true)]
    Worker(crash::WorkerArgs),
    /// A server without a ledger: the ceiling of the transport (internal).
    #[command(hide = true)]
    Ceiling(load::CeilingArgs),
}

/// What the parts need to know.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// A tenth of everything.
    pub(crate) short: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Role::Worker(worker)) => crash::worker(worker).await,
        Some(Role::Ceiling(ceiling)) => load::ceiling(ceiling).await,
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
    let run = Run { short: args.short };
    let mut table = Table::new(machine::describe()?, args.short);
    for part in parts(&args.part)? {
        eprintln!("accept: measuring line {part}");
        let rows = match part {
            1 => balance::measure(run).await,
            2 => gpu::measure(run).await,
            3 => plans::measure(run).await,
            4 => world::measure(run).await,
            5 => crash::measure(run).await,
            6 => speed::measure(run).await,
            _ => bad::measure(run).await,
        };
        table.part(part, rows);
        print!("{}", table.last_part());
    }
    println!("\n{}", table.markdown());
    if let Some(path) = &args.write {
        std::fs::write(path, table.markdown())?;
    }
    Ok(table.holds())
}

fn parts(text: &str) -> anyhow::Result<Vec<u8>> {
    if text == "all" {
        return Ok((1..=7).collect());
    }
    text.split(',')
        .map(|p| match p.trim().parse() {
            Ok(n) if (1..=7).contains(&n) => Ok(n),
            _ => anyhow::bail!("--part {p}: lines are 1 to 7, or `all`"),
        })
        .collect()
}
