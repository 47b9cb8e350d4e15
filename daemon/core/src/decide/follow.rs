//! What follows from what happened, level-triggered: targets move toward the plan as far as there is room (shrinks at
//! once, grows only into what is free), then waiting jobs and requests are served in order.
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::{queue, recall, share};
use crate::event::Event;
use crate::grant::{Ask, GpuShare, Vector};
use crate::id::{JobId, LeaseId};
use crate::job::{Job, JobPhase};
use crate::lease::{Lease, Phase};
use crate::state::{Durable, slots};
use crate::unit::{Bytes, Sms};
use crate::volatile::Volatile;

/// What happened that something may follow from.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    jobs: BTreeSet<JobId>,
    freed: bool,
    /// SMs of a GPU were given, or promised.
    given: bool,
    /// A job has left, and so has what its workers had.
    left: bool,
}

impl Touched {
    /// Notes an event that is about to be applied: who leaves is known only before.
    pub fn expect(&mut self, d: &Durable, event: &Event) {
        let nobody_else = |job: JobId, leaves: Option<LeaseId>| {
            let is_over = !d.jobs().contains_key(&job) || leaves.is_none();
            is_over && d.leases_of(job).all(|l| Some(l.id) == leaves)
        };
        self.left |= match event {
            Event::JobEnded { id } | Event::JobParked { id } => nobody_else(*id, None),
            Event::LeaseEnded { id, .. } => match d.leases().get(id).map(|l| &l.ask) {
                Some(Ask::Stage(member)) => nobody_else(member.job, Some(*id)),
                // What it waited for was left to it.
                Some(Ask::Alone { .. }) => {
                    let lease = d.leases().get(id);
                    lease.is_some_and(|l| matches!(l.phase, Phase::Queued))
                }
                None => false,
            },
            _ => false,
        };
    }

    /// Notes an event that was applied.
    pub fn note(&mut self, d: &Durable, event: &Event) {
        match event {
            Event::LeaseHeld { .. }
            | Event::LeaseEnded { .. }
            | Event::LeaseRetargeted { .. }
            | Event::SlotReserved { .. }
            | Event::JobEnded { .. }
            | Event::JobParked { .. }
            | Event::JobSubmitted { .. }
            | Event::NodeInstalled { .. }
            | Event::UnavailableChanged { .. }
            | Event::NodeDrained { .. } => self.freed = true,
            Event::LeaseGranted { lease } => self.given |= !lease.target.gpus.is_empty(),
            Event::JobReplanned { id, .. } | Event::JobAdmitted { id, .. } => {
                self.jobs.insert(*id);
                (self.freed, self.given) = (true, true);
            }
            // What is known of a job that waits has changed: it may fit now.
            Event::TrialReported { .. } | Event::ProfileImported { .. } => {
                self.freed |= d.a_job_waits();
            }
            _ => {}
        }
        if self.freed {
            let admitted = d.jobs().values().filter(|j| j.phase == JobPhase::Admitted);
            self.jobs.extend(admitted.map(|j| j.id));
        }
    }
}

/// The next events that follow. Call again after applying them, until there are none.
pub fn follow(d: &Durable, v: &mut Volatile, touched: &mut Touched) -> Vec<Event> {
    while let Some(id) = touched.jobs.first().copied() {
        if let Some(event) = d.jobs().get(&id).and_then(|job| retarget(d, job)) {
            return vec![event];
        }
        touched.jobs.remove(&id);
    }
    if core::mem::take(&mut touched.given)
        && let Some(event) = recall::next(d, v)
    {
        touched.given = true;
        return vec![event];
    }
    if core::mem::take(&mut touched.freed) && !d.draining() {
        let events = queue::next(d, v);
        if !events.is_empty() {
            touched.freed = true;
            return events;
        }
    }
    if core::mem::take(&mut touched.left) && !d.draining() {
        return share::spread(d, v);
    }
    Vec::new()
}

/// The next worker of the job whose target (or kept share) or batch size is not what the plan says and can come nearer.
fn retarget(d: &Durable, job: &Job) -> Option<Event> {
    let plan = job.plan.as_ref()?;
    slots(job).find_map(|(member, slot)| {
        let stage = plan.stages.get(usize::from(member.stage.0))?;
        let wanted = stage.workers.get(member.worker.0 as usize)?;
        match slot.lease.and_then(|id| d.leases().get(&id)) {
            Some(lease) if lease.phase.is_usable() => {
                let next = nearer(d, lease, wanted);
                let batch = batch_with(lease, next.as_ref(), wanted, stage.batch);
                (next.is_some() || batch != lease.batch).then(|| Event::LeaseRetargeted {
                    id: lease.id,
                    generation: lease.generation.next(),
                    target: next.unwrap_or_else(|| lease.target.clone()),
                    batch,
                })
            }
            Some(_) => None,
            None => {
                // What is kept is kept piece by piece: what the plan needs must not go to others meanwhile.
                let all = step_toward(d, &slot.unclaimed, &slot.unclaimed, wanted);
                let next = all.or_else(|| partly(d, &slot.unclaimed, wanted))?;
                Some(Event::SlotReserved {
                    member,
                    unclaimed: next,
                })
            }
        }
    })
}

/// The batch size that goes with the next target: the plan's with all of the plan's share, and on the way there none
/// that needs more memory than either end. A share that cannot change keeps its batch size.
fn batch_with(lease: &Lease, next: Option<&Vector>, wanted: &Vector, planned: u32) -> u32 {
    if lease.is_pinned() {
        lease.batch
    } else if next.unwrap_or(&lease.target) == wanted {
        planned
    } else {
        planned.min(lease.batch)
    }
}

fn nearer(d: &Durable, lease: &Lease, wanted: &Vector) -> Option<Vector> {
    let wanted = if lease.is_pinned() {
        Vector {
            cores: wanted.cores.clone(),
            gpus: lease.target.gpus.clone(),
        }
    } else {
        wanted.clone()
    };
    step_toward(d, &lease.target, &lease.counted(), &wanted)
}

/// The next target on the way from `target` to `wanted`, if there is one: all of it if what it adds to `counted` is
/// free; else what shrinks, and the cores that are free (they need no co-operation, and no restart).
fn step_toward(d: &Durable, target: &Vector, counted: &Vector, wanted: &Vector) -> Option<Vector> {
    if target == wanted {
        return None;
    }
    let cores_free = wanted
        .cores
        .difference(&counted.cores)
        .is_subset(d.pool().free_cores());
    let gpus_free = wanted.gpus.iter().all(|(id, share)| {
        let have = counted.gpus.get(id).copied().unwrap_or_default();
        let free = d.pool().free_on(d.node(), d.unavailable(), *id);
        share.guarantee.saturating_sub(have.guarantee) <= free.sms
            && share.memory.saturating_sub(have.memory) <= free.memory
    });
    if cores_free && gpus_free {
        return Some(wanted.clone());
    }
    let mut next = shrunk(target, wanted);
    let own = counted.cores.union(d.pool().free_cores());
    next.cores = next.cores.union(&wanted.cores.intersection(&own));
    (next != *target).then_some(next)
}

/// `have` and as much of what `wanted` has beyond it as is free; none if that is nothing.
fn partly(d: &Durable, have: &Vector, wanted: &Vector) -> Option<Vector> {
    let cores = wanted
        .cores
        .intersection(&have.cores.union(d.pool().free_cores()));
    let mut gpus = have.gpus.clone();
    for (id, w) in &wanted.gpus {
        let (h, free) = (
            have.gpus.get(id).copied().unwrap_or_default(),
            d.pool().free_on(d.node(), d.unavailable(), *id),
        );
        let sms = w.guarantee.min(h.guarantee + free.sms);
        let share = GpuShare {
            guarantee: d.node().gpu(*id).map_or(h.guarantee, |g| g.round_down(sms)),
            cap: w.cap,
            memory: w.memory.min(h.memory + free.memory),
        };
        if share.guarantee > Sms(0) || share.memory > Bytes(0) {
            gpus.insert(*id, share);
        }
    }
    let next = Vector { cores, gpus };
    (next != *have).then_some(next)
}

/// What both have. A worker that is to have cores is never left without any on the way.
fn shrunk(target: &Vector, wanted: &Vector) -> Vector {
    let mut cores = target.cores.intersection(&wanted.cores);
    if cores.is_empty() && !wanted.cores.is_empty() {
        cores = target.cores.clone();
    }
    let mut gpus = target.gpus.clone();
    gpus.retain(|id, share| {
        let w = wanted.gpus.get(id).copied().unwrap_or_default();
        *share = GpuShare {
            guarantee: share.guarantee.min(w.guarantee),
            cap: share.cap.min(w.cap),
            memory: share.memory.min(w.memory),
        };
        *share != GpuShare::default()
    });
    Vector { cores, gpus }
}
