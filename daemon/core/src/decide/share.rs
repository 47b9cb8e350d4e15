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
use super::job::{inputs_of, pinned, profiles_of};
use super::queue::Ahead;
use super::room::{counted_for, free_room};
use crate::allocate::rules_together::{self, Joint};
use crate::allocate::{Bidder, Inputs, Portion, Room, TenantRoom, plan_together};
use crate::balance::Watch;
use crate::curve::corun::Caps;
use crate::event::Event;
use crate::id::{GpuId, JobId, Name};
use crate::job::{Job, JobPhase, Plan, StagePlan};
use crate::state::{Durable, Kind, Place};
use crate::unit::{Rate, Sms};
use crate::volatile::Volatile;

/// A job that could begin at once with at least this share of its fair part begins so, and nobody gives anything.
const GOOD_ENOUGH: f64 = 0.98;

/// Jobs that are planned together in one step, the newcomer among them: everybody waits for the step. With more, those that
/// came last keep what they have.
const SHARING_MAX: usize = 16;

/// The jobs that may give: those that run, with a priority of at most `most`, and whose shares may move.
fn movable(d: &Durable, most: i32) -> impl Iterator<Item = &Job> {
    let moves = move |j: &&Job| {
        let runs = j.phase == JobPhase::Admitted && j.plan.is_some();
        runs && j.spec.rebalance.enabled && j.spec.priority <= most
    };
    d.jobs().values().filter(moves).take(SHARING_MAX - 1)
}

/// Whether the declared least of these jobs is no more than the room has of cores and of SMs altogether: a plan is only
/// looked for where it is.
fn least_fits(jobs: &[&Job], room: &Room) -> bool {
    let (mut cores, mut sms) = (0_u64, 0_u64);
    for job in jobs {
        let gpus = match job.spec.gpus.len() {
            0 => u64::from(job.spec.gpu_count.max(1)),
            n => n as u64,
        };
        for stage in &job.spec.stages {
            cores += u64::from(stage.cores.0);
            sms += u64::from(stage.sms.0.0) * gpus;
        }
    }
    let has: u64 = room.gpus.values().map(|(sms, _)| u64::from(sms.0)).sum();
    cores <= room.cores.len().into() && sms <= has
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
            // Beyond its part lies another job's: nobody counts on that, but who is alone.
            inputs: Inputs {
                caps: match (jobs.len(), &job.plan) {
                    (1, Some(plan)) => plan.caps,
                    _ => Caps::Reserve,
                },
                eta: v.watches.get(&job.id).and_then(Watch::eta),
                ..inputs_of(job, profiles, pins)
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
    let portions = plan_together(&bidders, d.node(), room, &caps).ok()?;
    debug_assert_eq!(
        rules_together::broken(&Joint {
            bidders: &bidders,
            portions: &portions,
            room,
            caps: &caps,
        }),
        []
    );
    Some(portions)
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
    if !least_fits(&jobs, &room) || v.fits.was_shared_in_vain(job.id, &room, &who) {
        return Vec::new();
    }
    let Some(portions) = together(d, v, &jobs, &room) else {
        v.fits.shared_in_vain(job.id, room, who);
        return Vec::new();
    };
    let own = &portions[portions.len() - 1];
    if alone.is_some_and(|plan| gain(plan, plan.theta, own) <= 1.0 / GOOD_ENOUGH - 1.0) {
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
    let mut free = free_room(d);
    super::room::set_aside_all(d, &jobs, &mut free);
    let last = Place::last_of(i32::MIN);
    Ahead::before(d, v, last).leave(&mut free);
    if !jobs.iter().any(|job| could_use(job, &free)) {
        return Vec::new();
    }
    let room = room_of_all(d, free, &jobs);
    let Some(portions) = together(d, v, &jobs, &room) else {
        return Vec::new();
    };
    let gains = |(job, portion): (&&Job, &Portion)| {
        let had = job.plan.as_ref();
        had.is_some_and(|had| gain(had, now(had, portion), portion) > job.spec.rebalance.min_gain)
    };
    if !jobs.iter().zip(&portions).any(gains) {
        return Vec::new();
    }
    replanned(&jobs, &portions, "there is room that a job has left")
}

/// Whether a job may have more of something that is free.
fn could_use(job: &Job, free: &Room) -> bool {
    let Some(plan) = &job.plan else { return false };
    let mut stages = job.spec.stages.iter().zip(&plan.stages);
    let has_sms = |id: &GpuId| free.gpus.get(id).is_some_and(|(sms, _)| *sms > Sms(0));
    let sms = !plan.gpus.is_empty() && plan.gpus.iter().all(has_sms);
    let cores = !free.cores.is_empty();
    stages.any(|(spec, now)| (cores && now.cores < spec.cores.1) || (sms && now.cap < spec.sms.1))
}

/// The jobs whose shares change.
fn replanned(jobs: &[&Job], portions: &[Portion], why: &str) -> Vec<Event> {
    let changed = |(job, portion): (&&Job, &Portion)| {
        let had = job.plan.as_ref()?;
        let shares = |p: &Plan| -> Vec<_> {
            let stages = p.stages.iter();
            stages.map(|s| (s.workers.clone(), s.batch)).collect()
        };
        if shares(had) == shares(&portion.plan) || may_stay(job, had, portion) {
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

/// Whether a job can keep its plan, though another one was found: it is in nobody's way, and hardly worse. Nobody was given
/// any of its cores then: who needs no fewer than it had is planned on its own.
fn may_stay(job: &Job, had: &Plan, portion: &Portion) -> bool {
    let no_more = takes(had)
        .iter()
        .zip(takes(&portion.plan))
        .all(|(had, has)| *had <= has);
    let hardly = gain(had, now(had, portion), portion) <= job.spec.rebalance.min_gain;
    had.gpus == portion.plan.gpus && no_more && hardly
}

/// Cores, SMs and bytes of all stages.
fn takes(plan: &Plan) -> [u64; 3] {
    let sum = |f: fn(&StagePlan) -> u64| plan.stages.iter().map(f).sum::<u64>();
    [
        sum(|s| s.cores.into()),
        sum(|s| s.sms.0.into()),
        sum(|s| s.memory.0),
    ]
}

/// What a job does with the plan that it has, by what is known now: what the plan promised when it was made may be long ago.
fn now(had: &Plan, portion: &Portion) -> Rate {
    portion.now.unwrap_or(had.theta)
}

/// What a job gains by its part, relative to a plan that does `before`. Of what was never measured, more cores and SMs are
/// the gain.
fn gain(had: &Plan, before: Rate, portion: &Portion) -> f64 {
    let (before, after) = (before.get(), portion.solution.theta.get());
    if before > 0.0 && after > 0.0 {
        return after / before - 1.0;
    }
    let both = takes(had).into_iter().zip(takes(&portion.plan)).take(2);
    let more = both.map(|(had, has)| has as f64 / had.max(1) as f64 - 1.0);
    more.fold(0.0, f64::max)
}

fn reason(why: &str, had: &Plan, portion: &Portion) -> String {
    let (before, after) = (now(had, portion), portion.solution.theta);
    if after == Rate::ZERO {
        let ([c0, s0, _], [c1, s1, _]) = (takes(had), takes(&portion.plan));
        return format!(
            "{why}: nothing of this job was measured; cores {c0} → {c1}, SMs {s0} → {s1}."
        );
    }
    let part = 100.0 * portion.level;
    format!("{why}: from {before} to {after}, {part:.0} % of what it would do alone by its weight.")
}
