//! What must always be true, as named functions: run by tests, by the simulated world, at start and each minute
//! on everything, and before each commit on what a step touched.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::event::Event;
use crate::grant::{Ask, Member, Vector};
use crate::id::{GpuId, JobId};
use crate::job::Slot;
use crate::lease::Phase;
use crate::pool::{GpuUse, Owner};
use crate::state::{Durable, slot, slots};
use crate::unit::Sms;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's name: the function's.
    pub invariant: &'static str,
    /// What breaks it.
    pub detail: String,
}

type Check = fn(&Durable) -> Option<String>;

/// All invariants of a state, by name.
pub const ALL: [(&str, Check); 9] = [
    ("one_owner_per_core", one_owner_per_core),
    ("guarantees_within_installed", guarantees_within_installed),
    ("memory_within_installed", memory_within_installed),
    ("cores_are_installed", cores_are_installed),
    ("totals_equal_the_sum", totals_equal_the_sum),
    ("indices_equal_a_fresh_look", indices_equal_a_fresh_look),
    ("phases_hold_what_they_may", phases_hold_what_they_may),
    ("slots_and_leases_agree", slots_and_leases_agree),
    ("shares_are_enforceable", shares_are_enforceable),
];

/// Every broken invariant of a state.
pub fn violations(d: &Durable) -> Vec<Violation> {
    let broken = |(invariant, check): &(&'static str, Check)| {
        check(d).map(|detail| Violation { invariant, detail })
    };
    ALL.iter().filter_map(broken).collect()
}

/// No core is counted for two.
fn one_owner_per_core(d: &Durable) -> Option<String> {
    let mut last: Option<(u32, Owner)> = None;
    for (core, owner) in d.pool().owned() {
        if let Some((c, o)) = last.filter(|(c, _)| *c == core) {
            return Some(format!("core {c} is counted for {o:?} and {owner:?}"));
        }
        last = Some((core, owner));
    }
    None
}

/// Σ max(held, target) of the guarantees on a GPU is at most its SMs.
fn guarantees_within_installed(d: &Durable) -> Option<String> {
    d.node().gpus.iter().find_map(|g| {
        let used = d.pool().used(g.id).sms;
        (used > g.sms).then(|| format!("{}: {used} counted, {} installed", g.id, g.sms))
    })
}

/// Σ max(held, target) of the memory on a GPU is at most what may be leased of it.
fn memory_within_installed(d: &Durable) -> Option<String> {
    d.node().gpus.iter().find_map(|g| {
        let (used, most) = (d.pool().used(g.id).memory, g.leasable_memory());
        (used > most).then(|| format!("{}: {used} counted, {most} to lease", g.id))
    })
}

/// Only installed cores that are not the system's are counted, and only installed GPUs.
fn cores_are_installed(d: &Durable) -> Option<String> {
    let may = d.node().leasable_cores();
    let stray = d.pool().owned().find(|(core, _)| !may.contains(*core));
    if let Some((core, owner)) = stray {
        return Some(format!("core {core} of {owner:?} is not leasable"));
    }
    counted(d).into_iter().find_map(|(owner, v)| {
        let gpu = v.gpus.keys().find(|id| d.node().gpu(**id).is_none())?;
        Some(format!("{owner:?} counts {gpu}, which is not installed"))
    })
}

/// The running totals are what a fresh sum gives.
fn totals_equal_the_sum(d: &Durable) -> Option<String> {
    let (mut gpus, mut cores): (BTreeMap<GpuId, GpuUse>, Vec<(u32, Owner)>) = Default::default();
    for (owner, v) in counted(d) {
        cores.extend(v.cores.iter().map(|c| (c, owner)));
        for (id, s) in &v.gpus {
            let sum = gpus.entry(*id).or_default();
            sum.sms += s.guarantee;
            sum.memory += s.memory;
        }
    }
    cores.sort_unstable();
    if !d.pool().owned().eq(cores.iter().copied()) {
        return Some("the owners of cores are not those of leases and slots".into());
    }
    for gpu in d.node().gpus.iter().map(|g| g.id) {
        let (sum, kept) = (
            gpus.get(&gpu).copied().unwrap_or_default(),
            d.pool().used(gpu),
        );
        if sum != kept {
            return Some(format!("{gpu}: {kept:?} kept, {sum:?} summed"));
        }
    }
    let owned = cores.iter().map(|(c, _)| *c).collect();
    let open = d.node().leasable_cores().difference(&d.unavailable().cores);
    (*d.pool().free_cores() != open.difference(&owned)).then(|| "the free cores are wrong".into())
}

/// The queue, the counts per tenant and the reverse indices are what a fresh look gives.
fn indices_equal_a_fresh_look(d: &Durable) -> Option<String> {
    (!d.indices_are_right()).then(|| "the queue, a count or an index is not".into())
}

/// Queued leases hold nothing, pending ones are held by nobody, draining ones get nothing more.
fn phases_hold_what_they_may(d: &Durable) -> Option<String> {
    d.leases().values().find_map(|l| {
        let ok = match &l.phase {
            Phase::Queued => l.held.is_empty() && l.target.is_empty(),
            Phase::Pending => l.held.is_empty(),
            Phase::Draining(_) => l.target.is_empty(),
            Phase::Active { holder, .. } => holder.is_some() == l.enforced,
            Phase::Ended(_) => false,
            Phase::Attached(_) | Phase::Quarantined { .. } => l.enforced,
        };
        (!ok).then(|| {
            format!(
                "{} is {} with held {:?}, target {:?}",
                l.id,
                l.phase.name().as_str(),
                l.held,
                l.target
            )
        })
    })
}

/// A slot names a live lease that names the slot, and keeps nothing beside it.
fn slots_and_leases_agree(d: &Durable) -> Option<String> {
    for (member, s) in d.jobs().values().flat_map(slots) {
        let Some(id) = s.lease else { continue };
        let names_it = d
            .leases()
            .get(&id)
            .is_some_and(|l| l.ask == Ask::Stage(member));
        if !names_it || !s.unclaimed.is_empty() {
            return Some(format!("{member:?} names {id}"));
        }
    }
    d.leases().values().find_map(|l| {
        let Ask::Stage(member) = l.ask else {
            return None;
        };
        let job = d.jobs().get(&member.job).filter(|j| !j.slots.is_empty())?;
        let wrong =
            l.phase != Phase::Queued && slot(job, member).is_none_or(|s| s.lease != Some(l.id));
        wrong.then(|| format!("{} is of {member:?}, whose slot does not name it", l.id))
    })
}

/// SM counts are ones that the GPU's backend can enforce, and a cap is at least its guarantee.
fn shares_are_enforceable(d: &Durable) -> Option<String> {
    counted(d).into_iter().find_map(|(owner, v)| {
        v.gpus.iter().find_map(|(id, s)| {
            let g = d.node().gpu(*id)?;
            let fine = |n: Sms| n == Sms(0) || g.round_up(n) == Some(n);
            let ok = fine(s.guarantee) && fine(s.cap) && s.cap >= s.guarantee && s.cap <= g.sms;
            (!ok).then(|| format!("{owner:?} on {id}: {s:?}"))
        })
    })
}

fn counted(d: &Durable) -> Vec<(Owner, Vector)> {
    let leases = d
        .leases()
        .values()
        .map(|l| (Owner::Lease(l.id), l.counted()));
    let kept = d
        .jobs()
        .values()
        .flat_map(slots)
        .map(|(m, s)| (Owner::Slot(m), s.unclaimed.clone()));
    leases.chain(kept).collect()
}

/// The check before each commit, on what the events touched: over-commitment, double owners, illegal transitions,
/// and that nothing was raised above what is available. `used_before` is [`usage`] before the events.
pub fn gate(d: &Durable, used_before: &[(GpuId, GpuUse)], events: &[Event]) -> Option<Violation> {
    let violation = |invariant, detail| Some(Violation { invariant, detail });
    if let Some((invariant, id)) = d.broken() {
        return violation(invariant, format!("{id}"));
    }
    for lease in events.iter().filter_map(|e| d.leases().get(&e.lease()?)) {
        let double = |core: &u32| d.pool().owners_of(*core).count() > 1;
        if let Some(core) = lease.counted().cores.iter().find(double) {
            return violation("one_owner_per_core", format!("core {core}"));
        }
    }
    for (member, slot) in touched_slots(d, events) {
        for core in slot.unclaimed.cores.iter() {
            if d.pool().owners_of(core).count() > 1 {
                return violation("one_owner_per_core", format!("core {core} of {member:?}"));
            }
        }
    }
    for (id, old) in used_before {
        let (Some(g), used) = (d.node().gpu(*id), d.pool().used(*id)) else {
            continue;
        };
        let (lost_sms, lost_memory) = d.unavailable().gpus.get(id).copied().unwrap_or_default();
        let most = GpuUse {
            sms: g.sms - lost_sms,
            memory: g.leasable_memory() - lost_memory,
        };
        if used.sms > g.sms || (used.sms > old.sms && used.sms > most.sms) {
            return violation(
                "guarantees_within_installed",
                format!("{id}: {} of {}", used.sms, most.sms),
            );
        }
        if used.memory > g.leasable_memory()
            || (used.memory > old.memory && used.memory > most.memory)
        {
            return violation(
                "memory_within_installed",
                format!("{id}: {} of {}", used.memory, most.memory),
            );
        }
    }
    None
}

/// The workers' places that events changed: one, or all of a job's. Each job once, however many events it has.
fn touched_slots<'a>(
    d: &'a Durable,
    events: &'a [Event],
) -> impl Iterator<Item = (Member, &'a Slot)> {
    let alone = events.iter().filter_map(|e| match e {
        Event::SlotReserved { member, .. } => {
            Some((*member, slot(d.jobs().get(&member.job)?, *member)?))
        }
        _ => None,
    });
    let whole = |e: &&Event| !matches!(e, Event::SlotReserved { .. });
    let jobs: BTreeSet<JobId> = events.iter().filter(whole).filter_map(Event::job).collect();
    let jobs = jobs.into_iter().filter_map(|id| d.jobs().get(&id));
    alone.chain(jobs.flat_map(slots))
}

/// What is counted on every GPU, for [`gate`].
pub fn usage(d: &Durable) -> Vec<(GpuId, GpuUse)> {
    d.node()
        .gpus
        .iter()
        .map(|g| (g.id, d.pool().used(g.id)))
        .collect()
}
