//! Jobs for the wire: declaration, plan, balance, leases.
use evenkeel_core::balance::{SMOOTH, View};
use evenkeel_core::grant::Ask;
use evenkeel_core::id::StageId;
use evenkeel_core::job::{Job, JobPhase};
use evenkeel_core::lease::Lease;
use evenkeel_core::step::State;
use evenkeel_core::unit::Time;
use evenkeel_proto::v1 as pb;

use super::declared::spec_wire;
use super::lease::lease_in;
use super::plan::plan;
use super::vector::Around;

/// A job as its owner sees it.
pub(in crate::api) fn job(state: &State, now: Time, j: &Job, around: &Around<'_>) -> pb::Job {
    let leases = jobs_leases(state, j);
    let moving = leases.iter().any(|l| moves(j, l));
    let watch = state.volatile.watches.get(&j.id);
    pb::Job {
        phase: phase(j.phase).into(),
        plan: j.plan.as_ref().map(|p| plan(&j.spec, p, around)),
        balance: watch.map(|w| balance(j, &w.view(), moving, now)),
        leases: leases
            .iter()
            .map(|l| lease_in(state, now, l, around))
            .collect(),
        moving,
        ..bare(j)
    }
}

/// A job that has ended: nothing of it counts any more.
pub(in crate::api) fn ended_job(j: &Job) -> pb::Job {
    pb::Job {
        phase: pb::JobPhase::Ended.into(),
        ..bare(j)
    }
}

fn bare(j: &Job) -> pb::Job {
    pb::Job {
        id: j.id.0,
        tenant: j.tenant.to_string(),
        spec: Some(spec_wire(&j.spec)),
        moves: j.moves,
        ..Default::default()
    }
}

/// The same job without what time alone changes: for watchers.
pub(in crate::api) fn without_times(job: &pb::Job) -> pb::Job {
    let mut job = job.clone();
    for lease in &mut job.leases {
        lease.remaining_ms = 0;
    }
    if let Some(balance) = &mut job.balance {
        balance.waits_for.clear();
    }
    job
}

const fn phase(phase: JobPhase) -> pb::JobPhase {
    match phase {
        JobPhase::Queued | JobPhase::Parked => pb::JobPhase::Queued,
        JobPhase::Admitted => pb::JobPhase::Admitted,
        JobPhase::Ended => pb::JobPhase::Ended,
    }
}

/// A job's live leases, by number: those in its slots and those that wait for one.
fn jobs_leases<'a>(state: &'a State, j: &Job) -> Vec<&'a Lease> {
    state.durable.leases_of(j.id).collect()
}

/// Whether a lease is on its way from one split to the next. (What it was first given is no move.)
fn moves(j: &Job, l: &Lease) -> bool {
    let Ask::Stage(m) = l.ask else { return false };
    let planned = || {
        let stage = j.plan.as_ref()?.stages.get(usize::from(m.stage.0))?;
        stage.workers.get(m.worker.0 as usize)
    };
    let resized = l.generation.0 > 1 && l.held != l.target;
    l.phase.is_usable() && (resized || planned().is_some_and(|p| *p != l.target))
}

fn balance(j: &Job, view: &View, moving: bool, now: Time) -> pb::Balance {
    let rate = |stage: usize| {
        let measured = view.measured.as_ref()?.stages.get(stage)?.as_ref()?;
        Some(measured.rate.get())
    };
    let measured = view.measured.as_ref();
    pb::Balance {
        windows: view.windows,
        rollout_units_per_s: measured.map_or(0.0, |m| m.t_r.get()),
        train_units_per_s: measured.map_or(0.0, |m| m.t_train.get()),
        gap: measured.map_or(0.0, |m| m.gap()),
        streak: view.alarm.streak,
        stage_units_per_s: (0..j.spec.stages.len())
            .map(|i| rate(i).unwrap_or(0.0))
            .collect(),
        last: view
            .remarks
            .last()
            .map(|r| r.detail.clone())
            .unwrap_or_default(),
        state: state_of(j, view, moving).into(),
        waits_for: view
            .silence(&j.spec, |stage| is_manned(j, stage), now)
            .unwrap_or_default(),
    }
}

/// Whether a worker of a stage has a lease.
fn is_manned(j: &Job, stage: StageId) -> bool {
    let slots = j.slots.get(usize::from(stage.0)).into_iter().flatten();
    slots.into_iter().any(|slot| slot.lease.is_some())
}

fn state_of(j: &Job, view: &View, moving: bool) -> &'static str {
    let rules = &j.spec.rebalance;
    let refits = rules.refit_windows > 0 && view.since_move < rules.refit_windows;
    if moving {
        "moving"
    } else if !rules.enabled {
        "frozen"
    } else if view.windows == 0 || (view.since_move as usize) < SMOOTH {
        "warming up"
    } else if refits {
        "refitting"
    } else if view.cooldown > 0 {
        "cooling down"
    } else {
        "watching"
    }
}
