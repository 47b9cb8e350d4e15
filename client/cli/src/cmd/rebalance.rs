//! `evenkeel rebalance`: freezes a job's shares, lets them move again, plans them anew.
use clap::{Args, ValueEnum};
use evenkeel_client::{JobUpdate, Policy};

use super::jobs;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};

/// Change how a job is rebalanced, or plan it anew
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  evenkeel rebalance reach --freeze
  evenkeel rebalance reach --unfreeze --replan
  evenkeel rebalance reach --policy ebrl")]
pub(crate) struct RebalanceArgs {
    /// The job's name
    name: String,
    #[command(flatten)]
    change: Change,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
struct Change {
    /// Never move its shares
    #[arg(long, conflicts_with = "unfreeze")]
    freeze: bool,
    /// Let its shares move again
    #[arg(long)]
    unfreeze: bool,
    /// Plan from the profiles that are stored now, and move if the plan differs
    #[arg(long)]
    replan: bool,
    /// Plan with another allocator from now on
    #[arg(long, value_enum)]
    policy: Option<PolicyArg>,
}

/// Which allocator.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyArg {
    Waterfill,
    Ebrl,
}

pub(crate) async fn run(globals: &Globals, args: RebalanceArgs) -> Result<(), Failure> {
    let client = globals.client()?;
    let Change {
        freeze,
        unfreeze,
        replan,
        policy,
    } = args.change;
    let doing = format!("change job {}", args.name);
    let rebalance = if freeze || unfreeze {
        // The rules are replaced as a whole: start from those in force.
        let mut rules = client.job(&args.name).await.doing(&doing)?.spec.rebalance;
        rules.frozen = freeze;
        Some(rules)
    } else {
        None
    };
    let update = JobUpdate {
        rebalance,
        policy: policy.map(|p| match p {
            PolicyArg::Waterfill => Policy::Waterfill,
            PolicyArg::Ebrl => Policy::Ebrl,
        }),
        replan,
    };
    let job = client.update_job(&args.name, update).await.doing(&doing)?;
    jobs::show_one(globals, &job);
    Ok(())
}
