//! The books against the machine: what real trees are bound to and what their contexts may use is counted for the
//! leases they hold, and never more than there is.
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::command::{Command, Observation};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{GpuId, LeaseId};
use evenkeel_core::lease::{Holder, Lease, Phase};
use evenkeel_core::state::Durable;
use evenkeel_core::unit::{Bytes, Sms};

use super::hardware::Hardware;
use super::shell::{Said, Ticket};
use super::truth::{Verdict, broken};

/// All of it.
pub fn reality_is_counted(d: &Durable, hw: &Hardware) -> Verdict {
    let key = |h: &Holder| (h.pid, h.start_time);
    let mut lease_of: BTreeMap<(u32, u64), LeaseId> = BTreeMap::new();
    for lease in d.leases().values() {
        if let Some(holder) = lease.phase.holder() {
            lease_of.insert(key(holder), lease.id);
        }
    }
    let mut bound = CpuSet::new();
    let mut used: BTreeMap<GpuId, (Sms, Bytes)> = BTreeMap::new();
    for tree in hw.trees() {
        let lease = lease_of
            .get(&key(&tree.holder))
            .and_then(|id| d.leases().get(id));
        let counted = lease.map(|l| l.counted()).unwrap_or_default();
        if tree.cpus != hw.shared {
            let private = tree.cpus.difference(&hw.shared);
            if !private.is_subset(&d.node().cpus_of(&counted.cores)) {
                let why = format!(
                    "tree {} runs on {private}, and {:?} counts cores {}",
                    tree.holder.pid,
                    lease.map(|l| l.id),
                    counted.cores
                );
                return broken("reality_is_counted", why);
            }
            if !bound.is_disjoint(&private) {
                let why = format!("tree {} is not alone on {private}", tree.holder.pid);
                return broken("one_tree_per_core", why);
            }
            bound = bound.union(&private);
        }
        let gpus: BTreeSet<GpuId> = tree.contexts.iter().map(|c| c.gpu).collect();
        for gpu in gpus {
            let may = counted.gpus.get(&gpu).copied().unwrap_or_default();
            let of_gpu = tree.contexts.iter().filter(|c| c.gpu == gpu);
            let cap = of_gpu
                .clone()
                .map(|c| c.share.cap)
                .max()
                .unwrap_or_default();
            let memory: Bytes = of_gpu.map(|c| c.share.memory).sum();
            if cap > may.cap || memory > may.memory {
                let why = format!(
                    "tree {} may use {cap} and {memory} of {gpu}, and {:?} counts {may:?}",
                    tree.holder.pid,
                    lease.map(|l| l.id),
                );
                return broken("reality_is_counted", why);
            }
            let sum = used.entry(gpu).or_default();
            // Where caps may overlap, a cap is no promise.
            sum.0 += if may.cap == may.guarantee {
                cap
            } else {
                Sms(0)
            };
            sum.1 += memory;
        }
    }
    contexts_fit(d, &used)
}

/// What real contexts may use is at most what is installed.
fn contexts_fit(d: &Durable, used: &BTreeMap<GpuId, (Sms, Bytes)>) -> Verdict {
    for (id, (sms, memory)) in used {
        let installed = d
            .node()
            .gpu(*id)
            .map(|g| (g.sms, g.leasable_memory()))
            .unwrap_or_default();
        if *sms > installed.0 || *memory > installed.1 {
            return broken(
                "contexts_within_installed",
                format!("{id}: {sms} and {memory} in use"),
            );
        }
    }
    Ok(())
}

/// What a reconciler saw of a lease's contexts is counted once its word has been taken.
pub fn what_is_seen_is_counted(d: &Durable, said: &[(Ticket, Said)]) -> Verdict {
    let seen = said.iter().filter_map(|(t, _)| match &t.command {
        Command::Observe(o) => Some((o.lease, &**o)),
        _ => None,
    });
    let newest: BTreeMap<LeaseId, &Observation> = seen.collect();
    for o in newest.into_values() {
        let same = |l: &&Lease| {
            let active = matches!(l.phase, Phase::Active { .. });
            active && l.fence == o.fence && l.generation == o.generation
        };
        let Some(lease) = d.leases().get(&o.lease).filter(same) else {
            continue;
        };
        let counted = lease.counted().gpus;
        for (gpu, seen) in o.gpus.iter().filter(|(_, seen)| seen.clients > 0) {
            if counted.get(gpu).is_some_and(|c| seen.cap > c.cap) {
                let why = format!("{gpu}: {seen:?} of {lease:?}");
                return broken("what_is_seen_is_counted", why);
            }
        }
    }
    Ok(())
}
