//! Who has how much, and what belongs to which job: counts and reverse indices, so that nobody has to look through
//! everything that lives. Derived, kept up to date by [`Durable`], never stored by itself.
use alloc::collections::{BTreeMap, BTreeSet};

use super::line::Line;
use super::{Durable, Effect, slots};
use crate::caps::Use;
use crate::grant::{Ask, Vector};
use crate::id::{JobId, LeaseId, Name, RequestId};
use crate::job::Job;
use crate::lease::{Lease, Phase};

/// How much a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Live leases, the queue among them.
    pub leases: usize,
    /// Of them, those in the queue.
    pub queued: usize,
    /// Jobs that have not ended.
    pub jobs: usize,
}

/// The counts and indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tallies {
    tenants: BTreeMap<Name, Tally>,
    /// What is counted for each tenant; only those for whom there is something.
    uses: BTreeMap<Name, Use>,
    /// The leases of each job's workers.
    of_job: BTreeMap<JobId, BTreeSet<LeaseId>>,
    /// The request that each remembered job was submitted by.
    submitted: BTreeMap<JobId, (Name, RequestId)>,
}

impl Tallies {
    pub(super) fn has_leases(&self, job: JobId) -> bool {
        self.of_job.contains_key(&job)
    }
    pub(super) fn lease(&mut self, old: Option<&Lease>, new: Option<&Lease>) {
        for (l, come) in gone_and_come(old, new) {
            self.count(&l.tenant, &l.counted(), come);
        }
        if let (Some(old), Some(new)) = (old, new)
            && (old.phase == Phase::Queued) == (new.phase == Phase::Queued)
        {
            return;
        }
        for (l, come) in gone_and_come(old, new) {
            let queued = l.phase == Phase::Queued;
            self.change(&l.tenant, |t| {
                step(&mut t.leases, 1, come);
                step(&mut t.queued, usize::from(queued), come);
            });
            let Ask::Stage(member) = l.ask else { continue };
            let leases = self.of_job.entry(member.job).or_default();
            match come {
                true => leases.insert(l.id),
                false => leases.remove(&l.id),
            };
            if leases.is_empty() {
                self.of_job.remove(&member.job);
            }
        }
    }
    pub(super) fn job(&mut self, old: Option<&Job>, new: Option<&Job>) {
        for (j, come) in gone_and_come(old, new) {
            for (_, slot) in slots(j) {
                self.count(&j.tenant, &slot.unclaimed, come);
            }
        }
        if old.is_some() == new.is_some() {
            return;
        }
        for (j, come) in gone_and_come(old, new) {
            self.change(&j.tenant, |t| step(&mut t.jobs, 1, come));
        }
    }
    pub(super) fn request(
        &mut self,
        key: &(Name, RequestId),
        old: Option<Effect>,
        new: Option<Effect>,
    ) {
        if let Some(Effect::Job(id)) = old {
            self.submitted.remove(&id);
        }
        if let Some(Effect::Job(id)) = new {
            self.submitted.insert(id, key.clone());
        }
    }
    /// Counts a share for a tenant, or takes it back.
    pub(super) fn count(&mut self, tenant: &Name, share: &Vector, come: bool) {
        if share.is_empty() {
            return;
        }
        // Without a clone of the name where it is known.
        if !self.uses.contains_key(tenant) {
            self.uses.insert(tenant.clone(), Use::default());
        }
        let Some(used) = self.uses.get_mut(tenant) else {
            return;
        };
        match come {
            true => used.add(share),
            false => used.remove(share),
        }
        if used.is_empty() {
            self.uses.remove(tenant);
        }
    }
    fn change(&mut self, tenant: &Name, change: impl FnOnce(&mut Tally)) {
        let tally = self.tenants.entry(tenant.clone()).or_default();
        change(tally);
        if *tally == Tally::default() {
            self.tenants.remove(tenant);
        }
    }
}

/// What was there, and then what is there; each with whether it comes.
fn gone_and_come<'a, T>(
    old: Option<&'a T>,
    new: Option<&'a T>,
) -> impl Iterator<Item = (&'a T, bool)> {
    let gone = old.into_iter().map(|t| (t, false));
    gone.chain(new.into_iter().map(|t| (t, true)))
}

const fn step(count: &mut usize, by: usize, up: bool) {
    *count = if up {
        count.saturating_add(by)
    } else {
        count.saturating_sub(by)
    };
}

impl Durable {
    /// Whether the queue, the counts and the indices are what a fresh look at everything gives.
    pub fn indices_are_right(&self) -> bool {
        let (mut line, mut tallies) = (Line::default(), Tallies::default());
        for lease in self.leases.values() {
            line.lease(None, Some(lease));
            tallies.lease(None, Some(lease));
        }
        for job in self.jobs.values() {
            line.job(None, Some(job));
            tallies.job(None, Some(job));
        }
        for (tenant, id, r) in self.requests.iter() {
            tallies.request(&(tenant.clone(), id), None, Some(r.effect));
        }
        line == self.line && tallies == self.tallies
    }
    /// How much a tenant has.
    pub fn tally(&self, tenant: &Name) -> Tally {
        self.tallies
            .tenants
            .get(tenant)
            .copied()
            .unwrap_or_default()
    }
    /// What is counted for a tenant.
    pub fn used_by(&self, tenant: &Name) -> &Use {
        static NOTHING: Use = Use {
            cores: 0,
            gpus: BTreeMap::new(),
        };
        self.tallies.uses.get(tenant).unwrap_or(&NOTHING)
    }
    /// The live leases of a job's workers, those in the queue among them.
    pub fn leases_of(&self, job: JobId) -> impl Iterator<Item = &Lease> {
        let ids = self.tallies.of_job.get(&job).into_iter().flatten();
        ids.filter_map(|id| self.leases.get(id))
    }
    /// The request that a job was submitted by, while it is remembered.
    pub fn request_of(&self, job: JobId) -> Option<&(Name, RequestId)> {
        self.tallies.submitted.get(&job)
    }
}
