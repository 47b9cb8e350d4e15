//! What may be typed. Each command's own options are with the command (`cmd`).
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use evenkeel_client::{
    Address, BadAddress, CA_VARIABLE, CERTIFICATE_VARIABLE, Client, ClientConfig, Credentials,
    KEY_VARIABLE, SOCKET_VARIABLE,
};

use crate::cmd;
use crate::demo::DemoArgs;
use crate::fail::{Doing as _, EXIT_CODES, Failure};
use crate::out::Output;

/// How long a command tries to reach the daemon. `run` tries longer: it stands for a worker.
const PATIENCE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  evenkeel run --cores 4 --sm 30% --gpu-memory 10GiB -- python train.py
  evenkeel submit job.toml
  evenkeel run --job reach --stage training -- python train.py
  evenkeel top
  evenkeel explain reach
  evenkeel leases --output json";

/// Shares one server's cores, SMs and GPU memory among the stages of training runs.
#[derive(Debug, Parser)]
#[command(
    name = "evenkeel",
    version,
    propagate_version = true,
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"),
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Says where the command of `run` begins to who forgot to.
pub(crate) fn hinted(mut error: clap::Error, line: &[String]) -> clap::Error {
    let runs = line.iter().position(|word| word == "run");
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument => word,
        _ => return error,
    };
    let at = line.iter().position(|word| word == unknown);
    if let (Some(runs), Some(at)) = (runs, at)
        && runs < at
        && !unknown.starts_with('-')
        && !line[..at].iter().any(|word| word == "--")
    {
        let mut options = line[runs + 1..at].join(" ");
        if options.is_empty() {
            "--cores 1".clone_into(&mut options);
        }
        let command = line[at..].join(" ");
        let tip = format!("the command comes after `--`: evenkeel run {options} -- {command}");
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

/// Where `--help` puts how the daemon is reached: apart from what a command is about.
const CONNECTION: &str = "Connection";

/// What every command understands.
#[derive(Args, Clone, Debug)]
pub(crate) struct Globals {
    /// Where the daemon listens: a socket's path, https://HOST:PORT, or http://127.0.0.1:PORT
    #[arg(long, global = true, help_heading = CONNECTION, env = SOCKET_VARIABLE, value_parser = address, value_name = "SOCKET")]
    socket: Option<Address>,
    /// For https: this client's certificate, PEM
    #[arg(long, global = true, help_heading = CONNECTION, env = CERTIFICATE_VARIABLE, value_name = "FILE", hide_short_help = true)]
    tls_cert: Option<PathBuf>,
    /// For https: its private key, PEM
    #[arg(long, global = true, help_heading = CONNECTION, env = KEY_VARIABLE, value_name = "FILE", hide_short_help = true)]
    tls_key: Option<PathBuf>,
    /// For https: the CA of the daemon's certificate, PEM
    #[arg(long, global = true, help_heading = CONNECTION, env = CA_VARIABLE, value_name = "FILE", hide_short_help = true)]
    tls_ca: Option<PathBuf>,
    /// How results are printed
    #[arg(long, short = 'o', global = true, value_enum, default_value_t)]
    pub(crate) output: Output,
}

fn address(text: &str) -> Result<Address, BadAddress> {
    if text.is_empty() {
        return Ok(Address::default());
    }
    text.parse()
}

impl Globals {
    /// How the daemon is reached.
    pub(crate) fn config(&self) -> ClientConfig {
        let credentials = match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(ca)) => Some(Credentials {
                certificate: certificate.clone(),
                key: key.clone(),
                ca: ca.clone(),
            }),
            _ => None,
        };
        ClientConfig::new(self.socket.clone().unwrap_or_default()).credentials(credentials)
    }
    /// A client that gives up soon: somebody waits at a prompt.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Client::new(self.config().deadline(PATIENCE)).doing("reach the daemon")
    }
    /// Whether a program reads the result.
    pub(crate) fn json(&self) -> bool {
        self.output == Output::Json
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lease
    Run(cmd::run::RunArgs),
    /// Submit a job
    Submit(cmd::submit::SubmitArgs),
    /// Show jobs, or one job
    Jobs(cmd::jobs::JobsArgs),
    /// End a job
    Cancel(cmd::cancel::CancelArgs),
    /// Change how a job is rebalanced, or plan it anew
    Rebalance(cmd::rebalance::RebalanceArgs),
    /// Show leases, take them back, or clear them
    Leases(cmd::leases::LeasesArgs),
    /// Show what the node has and what is leased
    Node,
    /// Say what is in order between this process, the daemon and the node, and what mends the rest
    Doctor,
    /// Watch the node and its jobs live
    Top(cmd::top::TopArgs),
    /// Say why a job's shares are as they are
    Explain(cmd::explain::ExplainArgs),
    /// Show what happened
    Events(cmd::events::EventsArgs),
    /// Ask what plan a job would get
    Plan(cmd::plan::PlanArgs),
    /// Ask what would happen: simulate a workload under each way to share a node
    Simulate(cmd::simulate::SimulateArgs),
    /// Grant nothing new and ask holders to finish
    Drain(cmd::drain::DrainArgs),
    /// Measure a job's stages at different quotas
    Calibrate(cmd::calibrate::CalibrateArgs),
    /// Make certificates for gRPC over TCP
    Cert(cmd::cert::CertArgs),
    /// Make a token for REST, and the line of the daemon's configuration for it
    Token(cmd::token::TokenArgs),
    /// See the whole loop on an emulated GPU
    Demo(DemoArgs),
    /// Print the completions of this command for a shell
    Completions(cmd::pages::CompletionsArgs),
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man(cmd::pages::ManArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_without_dashes_before_it_is_hinted_at() {
        for (line, expect) in [
            (
                "evenkeel run sleep 1",
                Some("evenkeel run --cores 1 -- sleep 1"),
            ),
            (
                "evenkeel run --cores 4 python -c x",
                Some("evenkeel run --cores 4 -- python -c x"),
            ),
            ("evenkeel run --coers 4 -- sleep 1", None),
            ("evenkeel jobs a b", None),
        ] {
            let typed: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = Cli::try_parse_from(&typed).unwrap_err();
            let said = hinted(error, &typed).to_string();
            let tip = said.lines().find(|l| l.contains("comes after"));
            assert_eq!(tip.is_some(), expect.is_some(), "{said}");
            assert!(tip.unwrap_or("").ends_with(expect.unwrap_or("")), "{said}");
        }
    }

    #[test]
    fn lines_parse() {
        for line in [
            "evenkeel run --cores 4 --sm 30% --gpu-memory 10GiB -- sleep 1",
            "evenkeel run --job j --stage s --worker 2 --wait 10m -- python -c x",
            "evenkeel --socket /tmp/x.sock jobs reach --output json",
            "evenkeel leases revoke 7",
            "evenkeel leases clear 7 --reason gone",
            "evenkeel rebalance reach --freeze",
            "evenkeel calibrate show reach/training",
            "evenkeel calibrate job.toml",
            "evenkeel drain --undo",
            "evenkeel events --follow --job reach",
            "evenkeel plan job.toml --cores 8 --sms 100",
            "evenkeel simulate s.toml --policy even --policy clairvoyant --seconds 10m --svg x.svg --seed 3",
            "evenkeel plan --offline job.toml --profiles a.json --profiles b.json --cores 16 --gpus 1 --gpu h100",
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
        for line in [
            "evenkeel run -- sleep 1",
            "evenkeel run --cores 4",
            "evenkeel run --cores 4 --job j --stage s -- sleep 1",
            "evenkeel run --job j -- sleep 1",
            "evenkeel run --cores 4 --sm 40 -- sleep 1",
            "evenkeel run --cores 4 --gpu-memory 10GiB -- sleep 1",
            "evenkeel rebalance reach",
            "evenkeel rebalance reach --freeze --unfreeze",
            "evenkeel leases clear 7",
            "evenkeel run --cores 4 --sm 130% --gpu-memory 1GiB -- sleep 1",
            "evenkeel simulate",
            "evenkeel simulate s.toml --policy best",
            "evenkeel simulate s.toml --seconds 0",
            "evenkeel plan --offline job.toml",
            "evenkeel plan --offline job.toml --cores 0",
            "evenkeel plan --offline job.toml --cores 4 --gpu gtx1080",
            "evenkeel plan job.toml --gpu h100",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
