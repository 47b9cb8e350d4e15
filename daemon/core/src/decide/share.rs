//! Several jobs on one node: a job that waits takes what others have above their fair part, and what a job leaves goes to
//! the others at once. Who gives is never below what it declares as its least; it gives through the shrink protocol.
//!
//! `allocate::plan_together` says what is fair; here is who takes part, on what, and what events come of it. Jobs of a
//! higher priority, frozen ones, and leases without a job keep what they have.
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::cap::Ceiling;
use super::job::{pinned, profiles_of};
use super::queue::Ahead;
use super::room::{counted_for, free_room};
use crate::allocate::{Bidder, Inputs, Portion, Room, TenantRoom, plan_together};
use crate::event::Event;
use crate::id::{JobId, Name};
use crate::job::{Job, JobPhase, Plan};
use crate::state::{Durable, Kind, Place};
use crate::unit::Rate;
use crate::volatile::Volatile;

/// A job that could begin at once with at least this share of its fair part begins so, and nobody gives anything.
const GOOD_ENOUGH: f64 = 0.98;

/// The jobs that may give: those that run, with a priority of at most `most`, and whose shares may move.
fn movable(d: &Durable, most: i32) -> impl Iterator<Item = &Job> {
    let moves = move |j: &&Job| {
        let runs = j.phase == JobPhase::Admitted && j.plan.is_some();
        runs && j.spec.rebalance.enabled && j.spec.priority <= most
    };
    d.jobs().values().filter(moves)
}

/// What these jobs may have together: what is free and what is counted for them.
fn room_of_all(d: &Durable, mut free: Room, jobs: &[&Job]) -> Room {
    for job in jobs {
        let own = counted_for(d, job);
        free.cores = free.cores.union(&own.cores);
        for (id, has) in own.gpus {
            let on = free.gpus.entry(id).or_default();
            on.0 += has.0;
            on.1 += has.1;
        }
    }
    free
}

/// The fairest plans of these jobs; none if not everybody's least fits.
fn together(d: &Durable, v: &Volatile, jobs: &[&Job], room: &Room) -> Option<Vec<Portion>> {
    let profiles: Vec<_> = jobs
        .iter()
        .map(|j| profiles_of(d, &j.tenant, &j.spec))
        .collect();
    let pins: Vec<Vec<bool>> = jobs.iter().map(|j| pinned(d, j)).collect();
    let known = jobs.iter().zip(&profiles).zip(&pins);
    let bidders: Vec<Bidder<'_>> = known
        .map(|((job, profiles), pins)| Bidder {
            inputs: Inputs {
                scale: &job.scale,
                learned: &job.learned,
                profiles,
                pinned: pins,
                ..Inputs::declared(&job.spec)
            },
            previous: job.plan.as_ref(),
            tenant: &job.tenant,
        })
        .collect();
    let tenants: BTreeSet<&Name> = jobs.iter().map(|j| &j.tenant).collect();
    let caps: Vec<TenantRoom<'_>> = tenants
        .into_iter()
        .filter_map(|tenant| Ceiling::beside_all(d, &v.caps, tenant, jobs).room(tenant, room))
        .collect();
    plan_together(&bidders, d.node(), room, &caps).ok()
}

/// How a waiting job begins with its fair part, where others have more than theirs: they are planned anew, and it is
/// admitted with what they will give up. `alone` is the plan with which it could begin beside them.
pub(super) fn admit(
    d: &Durable,
    v: &mut Volatile,
    job: &Job,
    ahead: &Ahead,
    alone: Option<&Plan>,
) -> Vec<Event> {
    if Kind::of_spec(&job.spec)
        .iter()
        .any(|kind| ahead.waits_for(kind))
    {
        return Vec::new();
    }
    let mut jobs: Vec<&Job> = movable(d, job.spec.priority).collect();
    if jobs.is_empty() {
        return Vec::new();
    }
    jobs.push(job);
    let mut free = free_room(d);
    super::room::set_aside_all(d, &jobs, &mut free);
    let room = room_of_all(d, free, &jobs);
    let who: Vec<JobId> = jobs.iter().map(|j| j.id).collect();
    if v.fits.was_shared_in_vain(job.id, &room, &who) {
        return Vec::new();
    }
    let Some(portions) = together(d, v, &jobs, &room) else {
        v.fits.shared_in_vain(job.id, room, who);
        return Vec::new();
    };
    let own = &portions[portions.len() - 1];
    if alone.is_some_and(|plan| plan.theta.get() >= GOOD_ENOUGH * own.solution.theta.get()) {
        return Vec::new();
    }
    let why = format!("job {} came", job.spec.name);
    let mut events = replanned(&jobs[..jobs.len() - 1], &portions, &why);
    let plan = own.plan.clone();
    events.push(Event::JobAdmitted {
        id: job.id,
        plan,
        promised: true,
    });
    events
}

/// What somebody has left, in fair parts, if that is worth a move for anybody. Nobody takes what somebody waits for.
pub(super) fn spread(d: &Durable, v: &mut Volatile) -> Vec<Event> {
    let jobs: Vec<&Job> = movable(d, i32::MAX).collect();
    if jobs.is_empty() {
        return Vec::new();
    }
    let mut free = free_room(d);
    super::room::set_aside_all(d, &jobs, &mut free);
    let last = Place::last_of(i32::MIN);
    Ahead::before(d, v, last).leave(&mut free);
    let room = room_of_all(d, free, &jobs);
    let Some(portions) = together(d, v, &jobs, &room) else {
        return Vec::new();
    };
    let gains = |(job, portion): (&&Job, &Portion)| {
        let had = job.plan.as_ref().map_or(Rate::ZERO, |p| p.theta);
        let (had, has) = (had.get(), portion.solution.theta.get());
        has > had * (1.0 + job.spec.rebalance.min_gain)
    };
    if !jobs.iter().zip(&portions).any(gains) {
        return Vec::new();
    }
    replanned(&jobs, &portions, "there is room that a job has left")
}

/// The jobs whose shares change.
fn replanned(jobs: &[&Job], portions: &[Portion], why: &str) -> Vec<Event> {
    let changed = |(job, portion): (&&Job, &Portion)| {
        let had = job.plan.as_ref()?;
        let shares = |p: &Plan| -> Vec<_> {
            let stages = p.stages.iter();
            stages.map(|s| (s.workers.clone(), s.batch)).collect()
        };
        if shares(had) == shares(&portion.plan) {
            return None;
        }
        Some(Event::JobReplanned {
            id: job.id,
            plan: portion.plan.clone(),
            reason: reason(why, had, portion),
        })
    };
    jobs.iter().zip(portions).filter_map(changed).collect()
}

fn reason(why: &str, had: &Plan, portion: &Portion) -> String {
    let (before, after) = (had.theta, portion.solution.theta);
    let part = 100.0 * portion.level;
    format!("{why}: from {before} to {after}, {part:.0} % of what it would do alone by its weight.")
}
