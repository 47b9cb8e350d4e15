//! `evenkeel rebalance`: freezes a job's shares, lets them move again, plans them anew.
use clap::{Args, ValueEnum};
use evenkeel_client::{Job, JobPhase, JobUpdate, Policy, StagePlan};

use super::jobs;
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;

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
    let before = client.job(&args.name).await.doing(&doing)?;
    let rebalance = if freeze || unfreeze {
        // The rules are replaced as a whole: start from those in force.
        let mut rules = before.spec.rebalance.clone();
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
    let asked = update.clone();
    let job = client.update_job(&args.name, update).await.doing(&doing)?;
    for what in done(&before, &job, &asked) {
        out::note(format_args!("job {}: {what}", args.name));
    }
    jobs::show_one(globals, &job);
    Ok(())
}

/// What an update did, in sentences.
fn done(before: &Job, after: &Job, asked: &JobUpdate) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(rules) = &asked.rebalance {
        let already = if rules.frozen == before.spec.rebalance.frozen {
            " already"
        } else {
            ""
        };
        all.push(match rules.frozen {
            true => format!("its shares are frozen{already}: they stay as they are"),
            false => format!("its shares may move{already}"),
        });
    }
    if let Some(policy) = asked.policy {
        let policy = match policy {
            Policy::Waterfill => "waterfill",
            Policy::Ebrl => "ebrl",
        };
        let next = if asked.replan {
            ""
        } else {
            "; `--replan` does it now"
        };
        all.push(format!(
            "it is planned by {policy} from its next plan on{next}"
        ));
    }
    if asked.replan {
        all.push(replanned(before, after).to_owned());
    }
    all
}

fn replanned(before: &Job, after: &Job) -> &'static str {
    let (Some(old), Some(new)) = (&before.plan, &after.plan) else {
        return match after.phase {
            JobPhase::Queued => "it waits for room, and is planned when there is some",
            _ => "planned",
        };
    };
    let share = |s: &StagePlan| (s.cores, s.sms, s.cap_sms, s.memory_bytes, s.batch);
    let shares = |stages: &[StagePlan]| stages.iter().map(share).collect::<Vec<_>>();
    if shares(&old.stages) == shares(&new.stages) {
        "planned anew: the shares are the same, so nothing moves"
    } else {
        "planned anew: its shares move, as its workers confirm them"
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_client::{JobSpec, Plan};

    use super::*;

    #[test]
    fn what_was_done_is_told() {
        let job = |cores: u32, frozen: bool| {
            let stage = StagePlan {
                cores,
                ..StagePlan::default()
            };
            let mut job = Job {
                id: 1,
                tenant: "alice".to_owned(),
                spec: JobSpec::new("reach", "env_step"),
                phase: JobPhase::Admitted,
                plan: Some(Plan {
                    stages: vec![stage],
                    ..Plan::default()
                }),
                balance: None,
                leases: Vec::new(),
                moves: 0,
                moving: false,
            };
            job.spec.rebalance.frozen = frozen;
            job
        };
        let mut rules = job(1, false).spec.rebalance;
        rules.frozen = true;
        let freeze = JobUpdate {
            rebalance: Some(rules),
            ..JobUpdate::default()
        };
        let replan = JobUpdate {
            replan: true,
            ..JobUpdate::default()
        };
        let waiting = Job {
            plan: None,
            phase: JobPhase::Queued,
            ..job(1, false)
        };
        for (before, after, asked, expect) in [
            (job(1, false), job(1, true), &freeze, "frozen: they stay"),
            (job(1, true), job(1, true), &freeze, "frozen already"),
            (job(1, false), job(1, false), &replan, "nothing moves"),
            (job(1, false), job(2, false), &replan, "its shares move"),
            (waiting.clone(), waiting, &replan, "waits for room"),
        ] {
            let said = done(&before, &after, asked).join("; ");
            assert!(said.contains(expect), "{expect} is missing in {said}");
        }
    }
}
