//! What there is for a job: all of a node, all that is available of it, what is free beside others. Only GPUs whose
//! shares this daemon may lease; `allocate` plans on it.
use super::cap::Ceiling;
use super::fit::{available_on, enforced};
use super::queue::Ahead;
use crate::allocate::Room;
use crate::balance::Free;
use crate::caps::Caps;
use crate::grant::Vector;
use crate::id::GpuId;
use crate::job::{Job, Plan};
use crate::node::{Gpu, GpuMode};
use crate::state::{Durable, Place, slots};
use crate::volatile::Volatile;

/// All of a node, as far as a cap goes.
pub(super) fn whole_room(d: &Durable, ceiling: &Ceiling) -> Room {
    let all = |g: &Gpu| (g.id, (g.sms, g.leasable_memory()));
    let mut room = Room {
        cores: d.node().leasable_cores(),
        gpus: enforced(d).map(all).collect(),
    };
    ceiling.trim(&mut room, &Room::default());
    room
}

/// All that is available of a node, whoever has it now, as far as a cap goes.
pub(super) fn available_room(d: &Durable, ceiling: &Ceiling) -> Room {
    let all = |g: &Gpu| {
        let available = available_on(d, g);
        (g.id, (available.sms, available.memory))
    };
    let mut room = Room {
        cores: d.pool().open_cores().clone(),
        gpus: enforced(d).map(all).collect(),
    };
    ceiling.trim(&mut room, &Room::default());
    room
}

/// What a running job may use for a new plan: it grows into nothing that somebody of its priority waits for.
pub(super) fn room_beside_queue(d: &Durable, v: &mut Volatile, job: &Job) -> Room {
    let ahead = Ahead::before(d, v, Place::last_of(job.spec.priority));
    room_of(d, &v.caps, job, &ahead)
}

/// What a job may use: what is free and need not be left to others, and what it has itself; no more than its tenant's
/// cap.
pub(super) fn room_of(d: &Durable, caps: &Caps, job: &Job, ahead: &Ahead) -> Room {
    let mut room = free_room(d);
    let others = d.jobs().values().filter(|j| j.id != job.id);
    others.for_each(|other| set_aside(d, other, &mut room));
    ahead.leave(&mut room);
    let kept = counted_for(d, job);
    room.cores = room.cores.union(&kept.cores);
    for (id, has) in &kept.gpus {
        let free = room.gpus.entry(*id).or_default();
        free.0 += has.0;
        free.1 += has.1;
    }
    Ceiling::beside(d, caps, job).trim(&mut room, &kept);
    room
}

/// What is counted for a job's workers and may stay theirs: without those on their way out.
pub(super) fn counted_for(d: &Durable, job: &Job) -> Room {
    let leased = |id: GpuId| d.node().gpu(id).is_some_and(|g| g.mode == GpuMode::Enforce);
    let mut kept = Room::default();
    let mut own = |v: &Vector| {
        kept.cores = kept.cores.union(&v.cores);
        for (id, share) in v.gpus.iter().filter(|(id, _)| leased(**id)) {
            let has = kept.gpus.entry(*id).or_default();
            has.0 += share.guarantee;
            has.1 += share.memory;
        }
    };
    for (_, slot) in slots(job) {
        own(&slot.unclaimed);
        let lease = slot.lease.and_then(|id| d.leases().get(&id));
        if let Some(lease) = lease.filter(|l| l.phase.is_usable()) {
            own(&lease.counted());
        }
    }
    kept
}

/// Takes out of a room what the plans of all but these jobs have and their workers have not yet.
pub(super) fn set_aside_all(d: &Durable, but: &[&Job], room: &mut Room) {
    let others = d.jobs().values();
    let others = others.filter(|j| !but.iter().any(|b| b.id == j.id));
    others.for_each(|other| set_aside(d, other, room));
}

/// What another job's plan has and its workers have not yet, because somebody has to give it up first: not for a
/// second plan, or the two would take it from each other in turn.
fn set_aside(d: &Durable, other: &Job, room: &mut Room) {
    for (wanted, has) in planned(d, other) {
        room.cores = room.cores.difference(&wanted.cores.difference(&has.cores));
        for (id, w) in &wanted.gpus {
            let have = has.gpus.get(id).copied().unwrap_or_default();
            if let Some(free) = room.gpus.get_mut(id) {
                free.0 = free.0 - (w.guarantee - have.guarantee);
                free.1 = free.1 - (w.memory - have.memory);
            }
        }
    }
}

/// What each worker of a job is to have by its plan, and what is counted for it.
fn planned<'a>(d: &'a Durable, job: &'a Job) -> impl Iterator<Item = (&'a Vector, Vector)> {
    slots(job).filter_map(|(m, slot)| {
        let stage = job.plan.as_ref()?.stages.get(usize::from(m.stage.0))?;
        let wanted = stage.workers.get(m.worker.0 as usize)?;
        let lease = slot.lease.and_then(|id| d.leases().get(&id));
        let has = lease.map_or_else(|| slot.unclaimed.clone(), |l| l.counted());
        Some((wanted, has))
    })
}

pub(super) fn free_room(d: &Durable) -> Room {
    let free = |id| d.pool().free_on(d.node(), d.unavailable(), id);
    Room {
        cores: d.pool().free_cores().clone(),
        gpus: enforced(d)
            .map(|g| (g.id, (free(g.id).sms, free(g.id).memory)))
            .collect(),
    }
}

/// What is free beside a plan.
pub(super) fn free_beside(d: &Durable, plan: &Plan) -> Free {
    let room = free_room(d);
    let on = |id| room.gpus.get(id).copied().unwrap_or_default();
    Free {
        cores: room.cores.len(),
        sms: plan
            .gpus
            .iter()
            .map(|id| on(id).0)
            .min()
            .unwrap_or_default(),
        memory: plan
            .gpus
            .iter()
            .map(|id| on(id).1)
            .min()
            .unwrap_or_default(),
    }
}
