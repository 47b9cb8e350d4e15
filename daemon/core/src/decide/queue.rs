//! The one queue of jobs and requests: who goes next, and what a newcomer has to leave to those that wait.
//!
//! By priority, then arrival. Backfill delays nobody: who comes later takes nothing of a kind of resource (cores, this
//! GPU, some GPU) that somebody before it waits for. Who would not fit even if everything that is available were free
//! holds up nobody: nothing that is taken delays it.
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use super::cap::Ceiling;
use super::fit::{self, fit_under};
use super::job::plan_for;
use super::lease::granted;
use super::room::{available_room, room_of};
use super::share;
use crate::allocate::{Refusal, Room};
use crate::command::{Rejection, Resource};
use crate::cpuset::CpuSet;
use crate::event::Event;
use crate::grant::{Ask, Member, Vector};
use crate::id::JobId;
use crate::job::{Job, JobPhase, Plan};
use crate::lease::{Lease, Phase};
use crate::state::{Durable, Kind, Place, Waiter, slot};
use crate::volatile::Volatile;

/// Entries of the queue that are tried in one step: a long queue behind a blocked head must not cost a step.
pub const QUEUE_LOOKS: usize = 64;

/// The kinds of resource that somebody earlier waits for, each with the first who does.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead(BTreeMap<Kind, Place>);

impl Ahead {
    /// Of those before `end`.
    pub(super) fn before(d: &Durable, v: &mut Volatile, end: Place) -> Self {
        let mut ahead = Self::default();
        for kind in d.kinds_waited_for() {
            let first = d.waiting_for(kind, end).find(|p| possible(d, v, p.who()));
            ahead.0.extend(first.map(|place| (kind, place)));
        }
        let mut last = None;
        for (place, worker) in d.waiting_workers().take_while(|(p, _)| *p < end) {
            if let Some(job) = parked_job(d, worker).filter(|j| last.replace(j.id) != Some(j.id))
                && possible(d, v, place.who())
            {
                ahead.wait(job, place);
            }
        }
        ahead
    }
    /// A job waits at this place for all that it may take.
    fn wait(&mut self, job: &Job, place: Place) {
        for kind in Kind::of_spec(&job.spec) {
            let first = self.0.entry(kind).or_insert(place);
            *first = place.min(*first);
        }
    }
    /// Who waits at this place is left what it waits for.
    fn pass(&mut self, d: &Durable, v: &mut Volatile, place: Place) {
        if !possible(d, v, place.who()) {
            return;
        }
        match place.who() {
            Waiter::Job(id) => {
                if let Some(job) = d.jobs().get(&id) {
                    self.wait(job, place);
                }
            }
            Waiter::Lease(id) => {
                let Some(lease) = d.leases().get(&id) else {
                    return;
                };
                if let Some(job) = parked_job(d, lease) {
                    self.wait(job, place);
                }
                for kind in Kind::of_ask(&lease.ask) {
                    self.0.entry(kind).or_insert(place);
                }
            }
        }
    }
    /// Who has to go before somebody that takes this.
    fn first(&self, wanted: &Vector) -> Option<Waiter> {
        let places = Kind::of_vector(wanted).into_iter();
        let first = places.filter_map(|kind| self.0.get(&kind)).min()?;
        Some(first.who())
    }
    /// Takes out of a room what is left to those who wait.
    pub(super) fn leave(&self, room: &mut Room) {
        if self.0.contains_key(&Kind::Cores) {
            room.cores = CpuSet::new();
        }
        if self.0.contains_key(&Kind::AnyGpu) {
            room.gpus.clear();
        }
        room.gpus
            .retain(|id, _| !self.0.contains_key(&Kind::Gpu(*id)));
    }
    /// Whether somebody waits for this kind.
    pub(super) fn waits_for(&self, kind: &Kind) -> bool {
        self.0.contains_key(kind)
    }
    /// Whether nobody else can have anything.
    fn is_all(&self) -> bool {
        self.0.contains_key(&Kind::Cores) && self.0.contains_key(&Kind::AnyGpu)
    }
}

/// The parked job that a worker of the queue waits for.
fn parked_job<'a>(d: &'a Durable, worker: &Lease) -> Option<&'a Job> {
    let Ask::Stage(member) = worker.ask else {
        return None;
    };
    let job = d.jobs().get(&member.job)?;
    (job.phase == JobPhase::Parked).then_some(job)
}

/// Whether somebody would fit on all that is available, with nobody else there.
fn possible(d: &Durable, v: &mut Volatile, who: Waiter) -> bool {
    let job = match who {
        Waiter::Job(id) => id,
        Waiter::Lease(id) => match d.leases().get(&id).map(|l| (l, &l.ask)) {
            Some((lease, Ask::Alone { cores, gpus })) => {
                let ceiling = Ceiling::of(d, &v.caps, &lease.tenant);
                return fit::possible(d, &ceiling, *cores, gpus);
            }
            Some((_, Ask::Stage(member))) => member.job,
            None => return false,
        },
    };
    let Some(job) = d.jobs().get(&job) else {
        return false;
    };
    let ceiling = Ceiling::beside(d, &v.caps, job);
    let room = available_room(d, &ceiling);
    let ask = || plan_for(d, job, &room).is_ok();
    match ceiling.is_open() {
        true => v.fits.possible(job.id, ask),
        // What a cap leaves changes with what its tenant has.
        false => v.fits.possible_on(job.id, &room, ask),
    }
}

/// The plan by which a job that has nothing yet can begin now, if there is one on what it need not leave to others.
fn beginning(d: &Durable, v: &mut Volatile, job: &Job, ahead: &Ahead) -> Option<Plan> {
    let room = room_of(d, &v.caps, job, ahead);
    if v.fits.was_in_vain(job.id, &room) {
        return None;
    }
    match plan_for(d, job, &room) {
        Ok(plan) => Some(plan),
        Err(_) => {
            v.fits.in_vain(job.id, room);
            None
        }
    }
}

/// Why a job that waits does not begin now.
#[derive(Clone, Debug, PartialEq)]
pub enum Waits {
    /// The node grants nothing new.
    Drained,
    /// Something is short, or the split that would be possible is none: a rejection that says so.
    Room(Rejection),
    /// Somebody who came first waits for what it needs.
    Turn(Waiter),
    /// It could begin; if it is parked, as soon as one of its workers asks.
    Nothing,
}

/// What a job that waits could begin with: what is free beside others, without a look at who comes first.
pub fn free_for(d: &Durable, v: &Volatile, job: &Job) -> Room {
    room_of(d, &v.caps, job, &Ahead::default())
}

/// Why a job that waits does not begin, where `refusal` says why there is no plan for it on [`free_for`]. That is asked
/// outside of a step: finding a plan takes its time, and only a person wants to know.
pub fn waits_for(d: &Durable, job: &Job, refusal: Option<&Refusal>) -> Waits {
    if d.draining() {
        return Waits::Drained;
    }
    if let Some(refusal) = refusal {
        return Waits::Room(fit::short_for_job(d, refusal));
    }
    let end = match job.phase {
        JobPhase::Queued => Place::of_job(job),
        _ => Place::last_of(job.spec.priority),
    };
    let earlier = |kind| d.waiting_for(kind, end).next();
    let first = Kind::of_spec(&job.spec).into_iter().filter_map(earlier);
    first.min().map_or(Waits::Nothing, |p| Waits::Turn(p.who()))
}

/// A parked job's plan, if its worker asks and there is room for all of the job again.
pub(super) fn unpark(d: &Durable, v: &mut Volatile, lease: &Lease) -> Option<(JobId, Plan)> {
    let job = parked_job(d, lease)?;
    let ahead = Ahead::before(d, v, Place::last_of(lease.priority));
    let plan = beginning(d, v, job, &ahead)?;
    Some((job.id, plan))
}

/// The share that a new request would get now.
pub(super) fn room(d: &Durable, v: &mut Volatile, lease: &Lease) -> Result<Vector, Rejection> {
    let (cores, gpus) = match &lease.ask {
        Ask::Alone { cores, gpus } => (*cores, gpus),
        Ask::Stage(member) => return kept_for(d, *member),
    };
    let vector = fit_under(d, &Ceiling::of(d, &v.caps, &lease.tenant), cores, gpus)?;
    let ahead = Ahead::before(d, v, Place::last_of(lease.priority));
    let Some(first) = ahead.first(&vector) else {
        return Ok(vector);
    };
    Err(Rejection::Short {
        resource: if cores > 0 {
            Resource::Cores
        } else {
            Resource::Sms(None)
        },
        asked: cores.into(),
        free: 0,
        short_by: cores.max(1).into(),
        holder: Some(format!("the queue: {first} waits for them first")),
    })
}

/// Whether a job's worker has not yet given up what it has to.
fn somebody_gives(d: &Durable) -> bool {
    let leases = d.jobs().keys().flat_map(|id| d.leases_of(*id));
    leases
        .filter(|l| l.phase.is_usable() && l.phase != Phase::Pending)
        .any(|l| !l.held.fits_in(&l.target))
}

/// What is kept for a worker of an admitted job.
fn kept_for(d: &Durable, member: Member) -> Result<Vector, Rejection> {
    let job = d.jobs().get(&member.job);
    let job = job.ok_or_else(|| Rejection::NotFound(format!("{}", member.job)))?;
    if job.phase != JobPhase::Admitted {
        return Err(Rejection::JobQueued(job.spec.name.clone()));
    }
    let not_found = || Rejection::NotFound(format!("{}", member.stage));
    let slot = slot(job, member).ok_or_else(not_found)?;
    let stage = usize::from(member.stage.0);
    let planned = job.plan.as_ref().and_then(|p| {
        let workers = &p.stages.get(stage)?.workers;
        workers.get(member.worker.0 as usize)
    });
    match slot.lease {
        // Its share, or a part of it, is still with somebody who has to give it up first.
        None if planned.is_some_and(|p| slot.unclaimed.is_empty() && !p.is_empty())
            || (planned != Some(&slot.unclaimed) && somebody_gives(d)) =>
        {
            Err(Rejection::JobQueued(job.spec.name.clone()))
        }
        None => Ok(slot.unclaimed.clone()),
        Some(id) => Err(Rejection::SlotTaken {
            stage: job.spec.stages[stage].name.clone(),
            worker: member.worker.0,
            lease: id,
        }),
    }
}

/// What comes to the next of those that wait: workers whose place is kept, then the queue in order. A job may begin by
/// what others give up.
pub(super) fn next(d: &Durable, v: &mut Volatile) -> Vec<Event> {
    let grant = |lease: &Lease, target| Event::LeaseGranted {
        lease: granted(d, lease, target),
    };
    let kept = |worker: &Lease| match worker.ask {
        Ask::Stage(member) => Some(grant(worker, kept_for(d, member).ok()?)),
        Ask::Alone { .. } => None,
    };
    if let Some(event) = d.waiting_workers().find_map(|(_, worker)| kept(worker)) {
        return [event].into();
    }
    let mut ahead = Ahead::default();
    let tried = d.line().filter(|p| waits_for_room(d, p.who()));
    for place in tried.take(QUEUE_LOOKS) {
        let job = match place.who() {
            Waiter::Job(id) => d.jobs().get(&id),
            Waiter::Lease(id) => {
                let Some(lease) = d.leases().get(&id) else {
                    continue;
                };
                if let Ask::Alone { cores, gpus } = &lease.ask
                    && let Ok(vector) =
                        fit_under(d, &Ceiling::of(d, &v.caps, &lease.tenant), *cores, gpus)
                    && ahead.first(&vector).is_none()
                {
                    return [grant(lease, vector)].into();
                }
                parked_job(d, lease)
            }
        };
        if let Some(job) = job {
            let plan = beginning(d, v, job, &ahead);
            let shared = share::admit(d, v, job, &ahead, plan.as_ref());
            if !shared.is_empty() {
                return shared;
            }
            if let Some(plan) = plan {
                let (id, promised) = (job.id, false);
                return [Event::JobAdmitted { id, plan, promised }].into();
            }
        }
        ahead.pass(d, v, place);
        if ahead.is_all() {
            break;
        }
    }
    Vec::new()
}

/// Whether an entry waits for room of its own, and not for a place that its job keeps.
fn waits_for_room(d: &Durable, who: Waiter) -> bool {
    match who {
        Waiter::Job(_) => true,
        Waiter::Lease(id) => d.leases().get(&id).is_some_and(|l| match l.ask {
            Ask::Alone { .. } => true,
            Ask::Stage(_) => parked_job(d, l).is_some(),
        }),
    }
}
