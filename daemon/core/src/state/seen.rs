//! Whose a lease is to see and change, to the job. What is over is in no table any more: the names of jobs that have
//! ended are kept here, in memory, for as long as a lease of theirs lives or is remembered. After a restart they are
//! unknown, and what is of an unknown job is seen by nobody who is limited to one.
use alloc::collections::BTreeMap;

use super::Durable;
use crate::command::Caller;
use crate::grant::Ask;
use crate::id::{Fence, JobId, LeaseId, Name};
use crate::lease::{End, Lease};

/// Names that the tables have forgotten. Not durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Over {
    /// Jobs that have ended.
    jobs: BTreeMap<JobId, Name>,
    /// The jobs of leases that have ended, while their requests are remembered.
    leases: BTreeMap<LeaseId, Name>,
}

impl Durable {
    /// The job that a live lease is for, by name: also when that has ended.
    pub fn job_of(&self, lease: &Lease) -> Option<&Name> {
        let Ask::Stage(member) = lease.ask else {
            return None;
        };
        let live = self.jobs.get(&member.job).map(|j| &j.spec.name);
        live.or_else(|| self.over.jobs.get(&member.job))
    }

    /// Whether a live lease is the caller's to see and change.
    pub fn is_seen_by(&self, lease: &Lease, caller: &Caller) -> bool {
        caller.sees(&lease.tenant, self.job_of(lease))
    }

    /// Whether a lease is of a job that has ended: its holder is told to give it back, and has a grace to do so.
    pub fn outlives_its_job(&self, lease: &Lease) -> bool {
        matches!(lease.ask, Ask::Stage(m) if !self.jobs.contains_key(&m.job))
    }

    /// How an ended lease of the caller's ended, while its request is remembered: its owner, the end, and the last fence.
    pub fn ended_seen_by(&self, id: LeaseId, caller: &Caller) -> Option<(&Name, End, Fence)> {
        let found = self.ended(id)?;
        caller
            .sees(found.0, self.over.leases.get(&id))
            .then_some(found)
    }

    pub(super) fn job_is_over(&mut self, id: JobId, name: Name) {
        self.over.jobs.insert(id, name);
    }

    pub(super) fn job_is_back(&mut self, id: JobId) {
        self.over.jobs.remove(&id);
    }

    /// Called before the lease goes.
    pub(super) fn lease_is_over(&mut self, lease: &Lease) {
        if let Some(job) = self.job_of(lease).cloned() {
            self.over.leases.insert(lease.id, job);
        }
    }

    pub(super) fn lease_is_forgotten(&mut self, id: LeaseId) {
        self.over.leases.remove(&id);
    }

    /// Forgets the names of jobs that have no lease any more.
    pub(super) fn forget_jobs(&mut self) {
        let tallies = &self.tallies;
        self.over.jobs.retain(|id, _| tallies.has_leases(*id));
    }
}
