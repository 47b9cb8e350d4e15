//! What holders say and what reconciliers see: acknowledgements and observations. Only what was observed frees
//! anything.
use alloc::vec::Vec;

use super::lease::ended;
use super::{Decision, find_fenced};
use crate::command::{Caller, Observation, Rejection, Seen};
use crate::cpuset::CpuSet;
use crate::event::Event;
use crate::grant::{GpuShare, Resize, Vector};
use crate::id::{Fence, Generation, GpuId, LeaseId};
use crate::lease::{End, Lease, Phase};
use crate::state::Durable;
use crate::unit::{Bytes, Sms};
use crate::volatile::Volatile;

/// The worker says that it has applied a generation. Believed only together with an observation.
pub(super) fn acknowledge(
    d: &Durable,
    v: &mut Volatile,
    caller: &Caller,
    (id, fence, generation): (LeaseId, Fence, Generation),
    effective: &Vector,
) -> Result<Decision, Rejection> {
    let lease = find_fenced(d, caller, id, fence)?;
    if generation > lease.generation {
        let why = alloc::format!(
            "{generation} has not been asked for; the latest is {}",
            lease.generation
        );
        return Err(Rejection::Invalid {
            field: "generation",
            why,
        });
    }
    let fits = effective
        .gpus
        .iter()
        .all(|(gpu, s)| lease.target.gpus.get(gpu).is_some_and(|t| s.cap <= t.cap));
    if generation == lease.generation && fits {
        v.acknowledged.insert(id, generation);
        if !lease.enforced && lease.held != lease.target {
            return Ok(Decision::of([Event::LeaseHeld {
                id,
                held: lease.target.clone(),
            }]));
        }
    }
    Ok(Decision::done())
}

/// What a reconciler saw of a lease's tree.
pub(super) fn observe(d: &Durable, v: &mut Volatile, o: &Observation) -> Decision {
    let Some(lease) = d.leases().get(&o.lease).filter(|l| l.fence == o.fence) else {
        return Decision::done();
    };
    if !o.gone && o.generation != lease.generation {
        return Decision::done(); // what is gone stays gone; everything else may have changed since
    }
    if o.gone {
        return match &lease.phase {
            Phase::Draining(_) => Decision::of([ended(lease, End::Released, None)]),
            Phase::Quarantined { cause, .. } => Decision::of([ended(lease, cause.end(), None)]),
            // Told that its job is over, it did the right thing without a word.
            Phase::Attached(_) | Phase::Active { .. } if d.outlives_its_job(lease) => {
                Decision::of([ended(lease, End::Revoked, None)])
            }
            Phase::Attached(_) | Phase::Active { .. } => {
                Decision::of([ended(lease, End::Failed, None)])
            }
            _ => Decision::done(),
        };
    }
    match &lease.phase {
        Phase::Attached(_) => attached(d, lease, v, o),
        Phase::Active { verified, .. } => {
            note_wide(v, lease, o, *verified);
            active(d, lease, v, o, *verified)
        }
        Phase::Draining(_) => draining(d, lease, o),
        _ => Decision::done(),
    }
}

/// The tree was seen on its target's cores; where that has none, off those that it had.
fn cores_bound(d: &Durable, lease: &Lease, o: &Observation) -> bool {
    if lease.target.cores.is_empty() {
        return lease.held.cores.is_empty() || off(d, o, &lease.held.cores);
    }
    let on = |c: &CpuSet| !c.is_empty() && c.is_subset(&lease.target.cores);
    o.cores.as_ref().is_some_and(on)
}

/// The tree was seen off these cores. Where no core is reserved, the shared set is all of them: a tree on all cores
/// has been moved there.
fn off(d: &Durable, o: &Observation, cores: &CpuSet) -> bool {
    let node = d.node();
    let shared =
        |c: &CpuSet| node.reserved_cores.is_empty() && node.cores.iter().all(|n| c.contains(n.id));
    o.cores
        .as_ref()
        .is_some_and(|c| c.is_disjoint(cores) || shared(c))
}

/// Cores are read back: from here on the lease is active.
fn attached(d: &Durable, lease: &Lease, v: &Volatile, o: &Observation) -> Decision {
    let id = lease.id;
    if !cores_bound(d, lease, o) {
        return Decision::done();
    }
    let mut events = Vec::new();
    // What it was told when it attached may be in use. Where the target has shrunk since, or the contexts of its
    // process before a restart are still there, that has to be seen gone like any other shrink.
    let held = if is_beyond(lease, o) {
        widened(d, lease, o)
    } else {
        observed(d, lease, v, o)
    };
    if held != lease.held {
        events.push(Event::LeaseHeld { id, held });
    }
    events.push(Event::LeaseActivated { id });
    Decision::of(events)
}

fn too_wide(lease: &Lease, gpu: GpuId, seen: &Seen) -> bool {
    seen.clients > 0 && seen.cap > lease.target.gpus.get(&gpu).map_or(Sms(0), |s| s.cap)
}

fn active(d: &Durable, lease: &Lease, v: &Volatile, o: &Observation, verified: bool) -> Decision {
    let id = lease.id;
    let mut events = Vec::new();
    if is_beyond(lease, o) {
        if verified {
            events.push(Event::LeaseUnverified { id });
        }
        let held = widened(d, lease, o);
        if held != lease.held {
            events.push(Event::LeaseHeld { id, held });
        }
        return Decision::of(events);
    }
    if lease.held != lease.target {
        let held = observed(d, lease, v, o);
        if held != lease.held {
            events.push(Event::LeaseHeld { id, held });
        }
    }
    let right = |(gpu, share): (&GpuId, &GpuShare)| {
        o.gpus
            .get(gpu)
            .is_some_and(|s| s.clients > 0 && s.cap <= share.cap && s.memory <= share.memory)
    };
    if !verified && !lease.target.gpus.is_empty() && lease.target.gpus.iter().all(right) {
        events.push(Event::LeaseVerified { id });
    }
    Decision::of(events)
}

/// What was seen on the GPUs that the lease counts a share of. (On another GPU its tree is a neighbour.)
fn shares_seen<'a>(
    lease: &Lease,
    o: &'a Observation,
) -> impl Iterator<Item = (&'a GpuId, &'a Seen)> {
    let counted = lease.counted().gpus;
    o.gpus
        .iter()
        .filter(move |(gpu, _)| counted.contains_key(gpu))
}

/// Whether contexts may use more than this share.
fn exceeds(seen: Seen, share: Option<&GpuShare>) -> bool {
    let share = share.copied().unwrap_or_default();
    seen.clients > 0 && (seen.cap > share.cap || seen.memory > share.memory)
}

/// Whether contexts may use more than is counted for the lease.
fn is_beyond(lease: &Lease, o: &Observation) -> bool {
    let counted = lease.counted().gpus;
    shares_seen(lease, o).any(|(gpu, seen)| exceeds(*seen, counted.get(gpu)))
}

/// Notes whether contexts have more than they are to have, for a person. While a shrink is under way, more than both
/// the old share and the new one; once the limits were seen not to hold, more than the target.
fn note_wide(v: &mut Volatile, lease: &Lease, o: &Observation, verified: bool) {
    let may = if verified {
        lease.counted()
    } else {
        lease.target.clone()
    };
    let wide = shares_seen(lease, o).find(|(gpu, seen)| exceeds(**seen, may.gpus.get(gpu)));
    match wide {
        Some((gpu, seen)) => drop(v.wide.insert(lease.id, (*gpu, *seen))),
        None if o.gpus.is_empty() => {} // no GPU has answered
        None => drop(v.wide.remove(&lease.id)),
    }
}

/// Held, with what was seen beyond it: the cap as it is, and as much of the rest as nobody else counts. So nothing
/// that the contexts may use is granted to others from here on; what others count already cannot be taken back here.
fn widened(d: &Durable, lease: &Lease, o: &Observation) -> Vector {
    let (mut held, counted) = (lease.held.clone(), lease.counted().gpus);
    for (id, seen) in shares_seen(lease, o) {
        let may = counted.get(id).copied().unwrap_or_default();
        let Some(gpu) = d.node().gpu(*id).filter(|_| exceeds(*seen, Some(&may))) else {
            continue;
        };
        let free = d.pool().free_on(d.node(), d.unavailable(), *id);
        let all = gpu.enforceable.last().copied().unwrap_or_default();
        let cap = gpu.round_up(seen.cap).unwrap_or(all).max(may.cap);
        let beyond = cap.saturating_sub(may.cap).min(free.sms);
        let guarantee = gpu.round_down((may.guarantee + beyond).min(cap));
        let more = seen.memory.saturating_sub(may.memory).min(free.memory);
        let share = GpuShare {
            guarantee: guarantee.max(may.guarantee),
            cap,
            memory: may.memory + more,
        };
        held.gpus.insert(*id, share);
    }
    held
}

/// What the holder has now, as far as it was seen. Never less than what may still be in use.
fn observed(d: &Durable, lease: &Lease, v: &Volatile, o: &Observation) -> Vector {
    let cores = match &o.cores {
        _ if lease.held.cores == lease.target.cores => lease.target.cores.clone(),
        Some(_) if cores_bound(d, lease, o) => lease.target.cores.clone(),
        Some(c) => lease
            .counted()
            .cores
            .intersection(&c.union(&lease.target.cores)),
        None => lease.held.cores.clone(),
    };
    // The first target was handed over by the attach; nobody is asked to acknowledge it.
    let applied = lease.generation == Generation(1)
        || v.acknowledged.get(&lease.id) == Some(&lease.generation);
    let mut gpus = lease.held.gpus.clone();
    let ids: Vec<GpuId> = lease.counted().gpus.keys().copied().collect();
    for gpu in ids {
        let target = lease.target.gpus.get(&gpu).copied().unwrap_or_default();
        let held = lease.held.gpus.get(&gpu).copied().unwrap_or_default();
        let confirmed = match o.gpus.get(&gpu) {
            Some(seen) => applied && !too_wide(lease, gpu, seen) && !too_fat(lease, gpu, seen),
            None => false,
        };
        // A grow needs no proof that nothing is left behind: it was reserved when it became the target.
        let grows = held.guarantee <= target.guarantee
            && held.cap <= target.cap
            && held.memory <= target.memory;
        let now = if confirmed || (grows && applied && lease.resize != Resize::Fixed) {
            target
        } else {
            held
        };
        if now == GpuShare::default() {
            gpus.remove(&gpu)
        } else {
            gpus.insert(gpu, now)
        };
    }
    Vector { cores, gpus }
}

fn too_fat(lease: &Lease, gpu: GpuId, seen: &Seen) -> bool {
    seen.clients > 0 && seen.memory > lease.target.gpus.get(&gpu).map_or(Bytes(0), |s| s.memory)
}

/// Given back: cores are free when the tree is off them, SMs and bytes when it is off the GPU.
fn draining(d: &Durable, lease: &Lease, o: &Observation) -> Decision {
    let mut held = lease.held.clone();
    if off(d, o, &held.cores) {
        held.cores = Default::default();
    }
    held.gpus
        .retain(|gpu, _| o.gpus.get(gpu).is_none_or(|seen| seen.clients > 0));
    if held.is_empty() {
        return Decision::of([ended(lease, End::Released, None)]);
    }
    if held == lease.held {
        Decision::done()
    } else {
        Decision::of([Event::LeaseHeld { id: lease.id, held }])
    }
}
