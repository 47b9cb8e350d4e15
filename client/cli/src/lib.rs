//! The command line of Evenkeel, and its demo.
//!
//! `args` says what may be typed, `cmd` has one file for each command, `jobfile` reads job files, `offline` plans without
//! a daemon, `simulate` says what would happen, `out` is the only place that prints, `fail` says what went wrong and with which exit code. The library
//! exists for the tests.

mod args;
mod cmd;
pub mod demo;
mod fail;
mod files;
mod jobfile;
mod mistake;
mod nearest;
mod offline;
mod out;
mod simulate;
mod table;
mod text;
mod units;

use std::process::ExitCode;

use clap::Parser as _;

/// Parses, runs, prints; the whole program.
pub fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
            args::hinted(error, &words.collect::<Vec<_>>()).exit()
        }
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("EVENKEEL_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error")),
        )
        .without_time()
        .init();
    // One thread: `run` binds its children to the thread that started them, and the rest only waits.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(cmd::dispatch(cli)),
        Err(error) => Err(fail::Failure::new(format!("cannot start: {error}"))),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            out::complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}
