//! `evenkeel simulate`: what a workload would do under each way to share a node, in virtual time, without a daemon.
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::simulate::{self, Fidelity, Policy, Report, Scenario, Wish};
use crate::units;

/// Longest time that can be simulated: a month.
const SECONDS_MAX: f64 = 31.0 * 86_400.0;

/// Ask what would happen: simulate a workload under each way to share a node
///
/// A scenario says what nodes there are, which jobs run on them, what their stages really do, and how that changes. The
/// allocators and the rebalancer are those of the daemon; time is virtual. OF BEST is the share of what the best split
/// for the true rates at each moment would have done.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  evenkeel simulate config/scenarios/shorter-trajectories.toml
  evenkeel simulate config/scenarios/two-jobs.toml --svg two-jobs.svg
  evenkeel simulate my.toml --policy waterfill-streak --policy clairvoyant --seed 7
  evenkeel simulate my.toml --seconds 10m -o json | jq '.policies[] | {policy, units_per_s}'

docs/simulate.md has the scenario's keys and the formulas.")]
pub(crate) struct SimulateArgs {
    /// The scenario, in TOML
    #[arg(required_unless_present = "print_demo")]
    scenario: Option<PathBuf>,
    /// Print the scenario of the demo with this seed
    #[arg(long, hide = true, conflicts_with = "scenario", value_name = "SEED")]
    print_demo: Option<u64>,
    /// Only this policy; may be given several times
    #[arg(long, value_enum, value_name = "POLICY")]
    policy: Vec<Policy>,
    /// Another seed than the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Simulate so long, such as 90s, 10m or 24h
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    seconds: Option<f64>,
    /// Simulate more coarsely or more finely than the scenario asks for
    #[arg(long, value_enum)]
    fidelity: Option<Fidelity>,
    /// Draw how it went over time
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The policy whose shares are drawn, and are in the JSON's timeline
    #[arg(long, value_enum, value_name = "POLICY")]
    shares_of: Option<Policy>,
    /// Threads to use; as many as there are CPUs if left out
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = units::duration(text)?.as_secs_f64();
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(seconds)
    } else {
        Err("it is more than 0 s and at most 31 days".to_owned())
    }
}

pub(crate) fn run(globals: &Globals, args: &SimulateArgs) -> Result<(), Failure> {
    if let Some(seed) = args.print_demo {
        out::text(simulate::demo_scenario(seed)?.trim_end());
        return Ok(());
    }
    // The grammar asks for it.
    let Some(path) = &args.scenario else {
        return Err(Failure::usage("which scenario?"));
    };
    let scenario = Scenario::read(path, args.seconds)?;
    let wish = Wish {
        policies: args.policy.clone(),
        seed: args.seed,
        seconds: args.seconds,
        fidelity: args.fidelity,
        shares_of: args.shares_of,
        threads: args.threads.map(usize::from),
    };
    let policies = match args.policy.len() {
        0 => Policy::all().len(),
        some => some,
    };
    let bar = bar(u64::from(scenario.nodes.count) * policies as u64);
    let report = simulate::simulate(&scenario, &wish, &|| bar.inc(1));
    bar.finish_and_clear();
    let report = report.map_err(|failure| failure.about(&path.display().to_string()))?;
    if let Some(path) = &args.svg {
        fs::write(path, simulate::svg(&report))
            .doing(format_args!("write the picture {}", path.display()))?;
    }
    if globals.json() {
        out::json(&report);
    } else {
        show(&report);
    }
    Ok(())
}

fn bar(total: u64) -> ProgressBar {
    let progress = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left");
    // The template is ours; a plain bar is what is left if it were wrong.
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    progress
}

fn show(report: &Report) {
    let length = units::show_duration(Duration::from_secs_f64(report.seconds));
    let nodes = units::counted(u64::from(report.nodes), "node");
    out::text(format_args!(
        "{}: {nodes}, {length}, seed {}",
        report.scenario, report.seed
    ));
    if !report.about.is_empty() {
        out::wrapped(&report.about);
    }
    out::text(report.table());
    report
        .remarks()
        .iter()
        .for_each(|remark| out::wrapped(remark));
}
