//! `evenkeel-gpu`: the emulated GPU's device process, its client list, a busy probe, and the measurement of what was
//! asked of it. The work is in `cli`; this file only parses.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line answers on its standard streams"
)]

mod cli;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// An emulated GPU: a process that keeps time like a GPU under NVIDIA MPS, for machines that have none.
///
/// Nothing is computed. Clients declare kernels (FLOPs, bytes, width) and are told when they would have completed.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve emulated GPUs until SIGTERM; prints `ready DIR` once clients can connect.
    Serve(cli::serve::Serve),
    /// List the emulated GPUs of a directory and the contexts on them.
    List(cli::list::List),
    /// Keep one context busy and compare what it gets with what its percentage allows.
    Probe(cli::probe::ProbeArguments),
    /// Measure what was asked of the emulated GPU, each figure in a row: what, asked, measured, holds.
    Accept(cli::accept::Accept),
    /// Print the completions of this command for a shell.
    Completions(cli::pages::Completions),
    /// Write the man pages into a folder.
    #[command(hide = true)]
    Man(cli::pages::ManPages),
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("EVENKEEL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A device outlives whoever read its log; that must not end it.
        .log_internal_errors(false)
        .init();
    let outcome = match Arguments::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::List(list) => list.run(),
        Command::Probe(probe) => probe.run(),
        Command::Accept(accept) => accept.run(),
        Command::Completions(completions) => completions.run(Arguments::command()),
        Command::Man(man) => man.run(Arguments::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-gpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}
