//! The commands, one file each.

pub(crate) mod calibrate;
pub(crate) mod cancel;
pub(crate) mod cert;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod jobs;
pub(crate) mod leases;
pub(crate) mod node;
pub(crate) mod pages;
pub(crate) mod plan;
pub(crate) mod rebalance;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod token;
pub(crate) mod top;

use std::process::{ExitCode, Termination};

use crate::args::{Cli, Command};
use crate::demo;
use crate::fail::Failure;

/// Does what was asked.
pub(crate) async fn dispatch(cli: Cli) -> Result<ExitCode, Failure> {
    let globals = &cli.globals;
    match cli.command {
        // The commands with an exit code of their own.
        Command::Run(args) => return run::run(globals, args).await,
        Command::Doctor => return doctor::run(globals).await,
        Command::Demo(args) => return demo::run(args).await.map(Termination::report),
        Command::Submit(args) => submit::run(globals, args).await,
        Command::Jobs(args) => jobs::run(globals, args).await,
        Command::Cancel(args) => cancel::run(globals, args).await,
        Command::Rebalance(args) => rebalance::run(globals, args).await,
        Command::Leases(args) => leases::run(globals, args).await,
        Command::Node => node::run(globals).await,
        Command::Top(args) => top::run(globals, args).await,
        Command::Explain(args) => explain::run(globals, args).await,
        Command::Events(args) => events::run(globals, args).await,
        Command::Plan(args) => plan::run(globals, args).await,
        Command::Simulate(args) => simulate::run(globals, &args),
        Command::Drain(args) => drain::run(globals, args).await,
        Command::Cert(args) => cert::run(globals, args),
        Command::Token(args) => token::run(globals, &args),
        Command::Calibrate(args) => calibrate::run(globals, args).await,
        Command::Completions(args) => pages::completions(args),
        Command::Man(args) => pages::man(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
