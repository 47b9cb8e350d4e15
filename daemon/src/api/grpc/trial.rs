//! One trial by a running worker, from the call to its result.
use evenkeel_core::command::Caller;
use evenkeel_core::id::LeaseId;
use evenkeel_core::unit::Sms;
use evenkeel_proto::v1 as pb;
use tonic::{Code, Status};

use crate::api::context::Context;
use crate::api::convert;
use crate::api::error;
use crate::api::limits::TRIAL_AGAIN;
use crate::api::trials::{Idle, Stage};

/// Has it run, and waits for its end. Who stops waiting leaves the worker to finish for nobody.
pub(super) async fn run(
    ctx: &Context,
    caller: &Caller,
    wire: &pb::RunTrialRequest,
) -> Result<pb::RunTrialResponse, Status> {
    let convert::Wanted {
        stage,
        trial,
        within,
    } = convert::trial(wire)?;
    let stage = (caller.tenant.clone(), stage);
    let offered = ctx.trials.offered(&stage);
    if offered.is_empty() {
        return Err(nobody(&stage));
    }
    let among = large_enough(ctx, caller, offered, &trial).await?;
    let begun = ctx.trials.begin(&stage, &among, &trial);
    let (lease, result) = begun.map_err(|idle| match idle {
        Idle::Nobody => nobody(&stage),
        Idle::Busy => {
            let what = format!(
                "all that offer themselves for trials of {} are at work on others",
                stage.1
            );
            error::busy(&what, TRIAL_AGAIN)
        }
    })?;
    let failed = |failure: String| pb::RunTrialResponse {
        failure,
        lease_id: lease.0,
        ..Default::default()
    };
    match tokio::time::timeout(within, result).await {
        Err(_) => Ok(failed(format!(
            "the worker of {lease} did not answer within {:.0} s",
            within.as_secs_f64()
        ))),
        Ok(Err(_)) => Err(error::plain(
            Code::Aborted,
            "WORKER_GONE",
            &format!("the worker of {lease} went away in the middle of the trial"),
        )),
        Ok(Ok(told)) if !told.failure.is_empty() => Ok(failed(told.failure)),
        Ok(Ok(told)) => Ok(pb::RunTrialResponse {
            units_per_s: told.units_per_s,
            memory_bytes: told.memory_bytes,
            ..failed(String::new())
        }),
    }
}

/// Those of these leases that have what the trial uses: a trial stays within its worker's lease, and disturbs nobody.
async fn large_enough(
    ctx: &Context,
    caller: &Caller,
    offered: Vec<LeaseId>,
    trial: &pb::Trial,
) -> Result<Vec<LeaseId>, Status> {
    let shares = ctx.read(caller, move |state, _| {
        let share = |id: LeaseId| {
            let target = &state.durable.leases().get(&id)?.target;
            let sms = target.gpus.values().map(|g| g.guarantee).min();
            Some((id, target.cores.len() as u64, sms.unwrap_or_default()))
        };
        offered.into_iter().filter_map(share).collect::<Vec<_>>()
    });
    let shares = shares.await?;
    let (cores, sms) = (u64::from(trial.cores), Sms(trial.sms));
    let fits = |(_, c, s): &&(LeaseId, u64, Sms)| *c >= cores && *s >= sms;
    let among: Vec<LeaseId> = shares.iter().filter(fits).map(|(id, ..)| *id).collect();
    match (
        among.is_empty(),
        shares.iter().max_by_key(|(_, c, s)| (*s, *c)),
    ) {
        (true, Some((id, has_cores, has_sms))) => {
            let what = format!(
                "the trial takes {cores} cores and {sms} on each GPU; of those who offer themselves, {id} has {has_cores} \
                 cores and {has_sms}, and a trial stays within its worker's lease"
            );
            let short = match sms > *has_sms {
                true => ("sms", u64::from(sms.saturating_sub(*has_sms).0)),
                false => ("cores", cores.saturating_sub(*has_cores)),
            };
            Err(error::short(
                Code::FailedPrecondition,
                "BEYOND_LEASE",
                short,
                &what,
            ))
        }
        _ => Ok(among),
    }
}

fn nobody(stage: &Stage) -> Status {
    error::not_found(&format!(
        "a worker that offers itself for trials of {}",
        stage.1
    ))
}
