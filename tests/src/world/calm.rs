//! The end of a world: faults stop, and everything comes to rest. What was asked is served or refused, what was to
//! move has moved, what was held is free.
use std::collections::BTreeMap;

use evenkeel_core::decide::job::settled;
use evenkeel_core::grant::{GpuShare, Resize};
use evenkeel_core::id::{Generation, GpuId, LeaseId};
use evenkeel_core::invariant::Violation;
use evenkeel_core::job::{Job, JobPhase};
use evenkeel_core::lease::{Lease, Phase, PhaseName};
use evenkeel_core::state::{Durable, slots};

use super::truth::{Verdict, broken};
use super::{Happening, Kind, World};

/// Virtual time in which everything has to come to rest: the longest of what may be waited for, and then some.
const REST_MS: u64 = 400_000;
/// Longer than any one lease is on its way when nothing goes wrong.
const GRACE_MS: u64 = 90_000;

impl World {
    /// Faults stop; then jobs end, too.
    pub(super) fn come_to_rest(&mut self) -> Verdict {
        self.calm = true;
        self.hw.calm();
        self.trace.line(self.now, format_args!("faults stop"));
        self.queue.retain(|_, h| {
            !matches!(
                h,
                Happening::Crash
                    | Happening::Stall
                    | Happening::Admin
                    | Happening::Change
                    | Happening::Silence
                    | Happening::Mischief
            )
        });
        self.rescan()?;
        self.pass(REST_MS)?;
        self.nothing_waits()?;
        self.over = true;
        self.trace.line(self.now, format_args!("jobs end"));
        self.pass(REST_MS / 2)?;
        self.cancel_all(); // those whose owner never heard that they began
        self.pass(REST_MS / 2)?;
        self.everything_is_free()
    }

    /// The scanners see all of the hardware again, and nobody drains.
    fn rescan(&mut self) -> Verdict {
        self.pass(200_000)?;
        let node = self.swarm.node.clone();
        self.scan(node);
        self.undrain();
        self.pass(5_000)
    }

    fn pass(&mut self, ms: u64) -> Verdict {
        let until = self.now + ms;
        while self
            .queue
            .first_key_value()
            .is_some_and(|((at, ..), _)| *at <= until)
        {
            if self.next()? == Some(Kind::Nothing) && self.queue.is_empty() {
                break;
            }
        }
        self.now = until;
        Ok(())
    }

    /// Leases that are on their way somewhere, with where they are.
    fn in_motion(&self) -> BTreeMap<LeaseId, (PhaseName, Generation)> {
        let d = &self.truth.fold;
        let moving = |l: &&Lease| match l.phase {
            Phase::Quarantined { .. } | Phase::Draining(_) | Phase::Attached(_) => true,
            Phase::Pending => false,
            _ => l.held != l.target,
        };
        let moving = d.leases().values().filter(moving);
        moving
            .map(|l| (l.id, (l.phase.name(), l.generation)))
            .collect()
    }

    /// Nothing is on its way for long, and every worker has what its job's plan says.
    fn nothing_waits(&mut self) -> Verdict {
        let before = self.in_motion();
        self.pass(GRACE_MS)?;
        let after = self.in_motion();
        if let Some((id, at)) = after.iter().find(|(id, at)| before.get(id) == Some(at)) {
            let lease = self.truth.fold.leases().get(id);
            return broken(
                "everything_arrives",
                format!("{at:?} for {GRACE_MS} ms: {lease:?}"),
            );
        }
        let d = &self.truth.fold;
        let quiet = |id: LeaseId| {
            let lease = d.leases().get(&id);
            !after.contains_key(&id) && lease.is_some_and(|l| l.phase != Phase::Pending)
        };
        let still = |j: &&Job| slots(j).all(|(_, s)| s.lease.is_none_or(quiet));
        let admitted = d
            .jobs()
            .values()
            .filter(|j| j.phase == JobPhase::Admitted)
            .filter(still);
        match admitted
            .into_iter()
            .find(|j| !settled(d, j) && !held_up(d, j))
        {
            None => Ok(()),
            Some(j) => {
                let has: Vec<_> = slots(j)
                    .map(|(m, s)| (m, s, s.lease.and_then(|id| d.leases().get(&id))))
                    .collect();
                broken(
                    "every_move_is_confirmed",
                    format!("{}: plan {:?}, slots {has:?}", j.id, j.plan),
                )
            }
        }
    }

    fn everything_is_free(&self) -> Result<(), Violation> {
        let d = &self.truth.fold;
        if let Some(l) = d.leases().values().next() {
            return broken(
                "everything_is_free_in_the_end",
                format!("{} is {:?}", l.id, l.phase),
            );
        }
        if let Some(j) = d.jobs().values().next() {
            return broken(
                "everything_is_free_in_the_end",
                format!("{} is {:?}", j.id, j.phase),
            );
        }
        let cores = d.node().leasable_cores().difference(&d.unavailable().cores);
        let used = d
            .node()
            .gpus
            .iter()
            .any(|g| d.pool().used(g.id) != Default::default());
        if *d.pool().free_cores() != cores || used {
            return broken("everything_is_free_in_the_end", format!("{:?}", d.pool()));
        }
        self.compare()
    }
}

/// A job that cannot have all of its plan: a worker's share can never change, or somebody else has what it lacks.
fn held_up(d: &Durable, job: &Job) -> bool {
    let Some(plan) = &job.plan else { return false };
    slots(job).any(|(m, slot)| {
        let wanted = plan
            .stages
            .get(usize::from(m.stage.0))
            .and_then(|s| s.workers.get(m.worker.0 as usize));
        let lease = slot.lease.and_then(|id| d.leases().get(&id));
        let has = lease.map_or_else(|| slot.unclaimed.clone(), |l| l.target.clone());
        let Some(wanted) = wanted else { return false };
        let lacks = |id: &GpuId, w: &GpuShare| {
            let h = has.gpus.get(id).copied().unwrap_or_default();
            let free = d.pool().free_on(d.node(), d.unavailable(), *id);
            w.guarantee > h.guarantee + free.sms || w.memory > h.memory + free.memory
        };
        lease.is_some_and(|l| l.resize == Resize::Fixed)
            || !wanted
                .cores
                .difference(&has.cores)
                .is_subset(d.pool().free_cores())
            || wanted.gpus.iter().any(|(id, w)| lacks(id, w))
    })
}
