//! The state of a node: what is durable (and equal to the ledger's tables) and what is not.
//!
//! Durable state changes only through [`Durable::evolve`]; every change goes through one of the `put_*`
//! functions, which keep the pool's counts and write an undo journal. So a step that is not committed can be
//! taken back exactly.
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::command::Caller;
use crate::curve::{Profile, ProfileKey};
use crate::grant::Member;
use crate::id::{Fence, JobId, LeaseId, Name, RequestId};
use crate::job::{Job, Slot};
use crate::lease::{End, Lease};
use crate::node::{Node, Unavailable};
use crate::pool::{Owner, Pool};

mod answers;
mod evolve;
mod line;
mod seen;
mod tally;

pub use answers::{Answers, Effect, Remembered};
pub use line::{Kind, Place, Waiter};
pub use tally::Tally;

/// What the ledger's tables hold.
#[derive(Clone, Debug)]
pub struct Durable {
    node: Node,
    unavailable: Unavailable,
    draining: bool,
    leases: BTreeMap<LeaseId, Lease>,
    requests: Answers,
    jobs: BTreeMap<JobId, Job>,
    profiles: BTreeMap<ProfileKey, Profile>,
    next_lease: LeaseId,
    next_job: JobId,
    // Derived from the above.
    pool: Pool,
    line: line::Line,
    tallies: tally::Tallies,
    ended: BTreeMap<LeaseId, (Name, RequestId)>,
    // In memory only.
    over: seen::Over,
    journal: Vec<Undo>,
    broken: Option<(&'static str, LeaseId)>,
}

/// What a change replaced.
#[derive(Clone, Debug)]
enum Undo {
    Lease(LeaseId, Option<Box<Lease>>),
    Request((Name, RequestId), Option<Remembered>),
    Job(JobId, Option<Box<Job>>),
    Slot(Member, Box<Slot>),
    Profile(ProfileKey, Option<Box<Profile>>),
    PopPoint(ProfileKey),
    Node(Box<Node>),
    Unavailable(Unavailable),
    Draining(bool),
    Next(LeaseId, JobId),
}

/// The parts of [`Durable`], as a ledger loads them.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Installed hardware.
    pub node: Node,
    /// Not available.
    pub unavailable: Unavailable,
    /// No grants.
    pub draining: bool,
    /// Live leases, the queue among them.
    pub leases: Vec<Lease>,
    /// Remembered answers.
    pub requests: Vec<((Name, RequestId), Remembered)>,
    /// Jobs that have not ended.
    pub jobs: Vec<Job>,
    /// Profiles.
    pub profiles: Vec<Profile>,
    /// The next lease's number.
    pub next_lease: LeaseId,
    /// The next job's number.
    pub next_job: JobId,
}

impl Durable {
    /// A node on which nothing has happened.
    pub fn new(node: Node) -> Self {
        Self::load(Parts {
            node,
            unavailable: Unavailable::default(),
            draining: false,
            leases: Vec::new(),
            requests: Vec::new(),
            jobs: Vec::new(),
            profiles: Vec::new(),
            next_lease: LeaseId(1),
            next_job: JobId(1),
        })
    }
    /// From what a ledger holds. Checks nothing: run [`crate::invariant::violations`] on it.
    pub fn load(parts: Parts) -> Self {
        let mut d = Self {
            node: parts.node,
            unavailable: parts.unavailable,
            draining: parts.draining,
            leases: BTreeMap::new(),
            requests: Answers::default(),
            jobs: BTreeMap::new(),
            profiles: parts
                .profiles
                .into_iter()
                .map(|p| (p.key.clone(), p))
                .collect(),
            next_lease: parts.next_lease,
            next_job: parts.next_job,
            pool: Pool::default(),
            line: line::Line::default(),
            tallies: tally::Tallies::default(),
            ended: BTreeMap::new(),
            over: seen::Over::default(),
            journal: Vec::new(),
            broken: None,
        };
        d.pool.reinstall(&d.node, &d.unavailable);
        parts
            .requests
            .into_iter()
            .for_each(|(key, r)| d.put_request(key, Some(r)));
        parts
            .leases
            .into_iter()
            .for_each(|l| d.put_lease(l.id, Some(l)));
        parts
            .jobs
            .into_iter()
            .for_each(|j| d.put_job(j.id, Some(j)));
        d.journal.clear();
        d
    }
    /// What a ledger has to hold.
    pub fn parts(&self) -> Parts {
        Parts {
            node: self.node.clone(),
            unavailable: self.unavailable.clone(),
            draining: self.draining,
            leases: self.leases.values().cloned().collect(),
            requests: self
                .requests
                .iter()
                .map(|(tenant, id, r)| ((tenant.clone(), id), r.clone()))
                .collect(),
            jobs: self.jobs.values().cloned().collect(),
            profiles: self.profiles.values().cloned().collect(),
            next_lease: self.next_lease,
            next_job: self.next_job,
        }
    }

    /// Installed hardware.
    pub const fn node(&self) -> &Node {
        &self.node
    }
    /// Not available just now.
    pub const fn unavailable(&self) -> &Unavailable {
        &self.unavailable
    }
    /// Whether grants are stopped.
    pub const fn draining(&self) -> bool {
        self.draining
    }
    /// Live leases by id, the queue among them.
    pub const fn leases(&self) -> &BTreeMap<LeaseId, Lease> {
        &self.leases
    }
    /// Live jobs by id.
    pub const fn jobs(&self) -> &BTreeMap<JobId, Job> {
        &self.jobs
    }
    /// A tenant's live job by name.
    pub fn job_named(&self, tenant: &Name, name: &Name) -> Option<&Job> {
        self.jobs
            .values()
            .find(|j| &j.tenant == tenant && &j.spec.name == name)
    }
    /// A live job of this name that the caller sees: its own tenant's, else (an admin) anybody's.
    pub fn job_seen_by(&self, caller: &Caller, name: &Name) -> Option<&Job> {
        let seen = |j: &&Job| caller.sees(&j.tenant, Some(&j.spec.name));
        let any = || self.jobs.values().find(|j| j.spec.name == *name && seen(j));
        self.job_named(&caller.tenant, name)
            .filter(seen)
            .or_else(any)
    }
    /// Profiles.
    pub const fn profiles(&self) -> &BTreeMap<ProfileKey, Profile> {
        &self.profiles
    }
    /// The profiles of a tenant.
    pub fn profiles_of(&self, tenant: &Name) -> impl Iterator<Item = &Profile> {
        // Names are not empty: nothing comes before this key.
        let first = ProfileKey {
            tenant: tenant.clone(),
            stage: Name::least(),
            gpu: Name::least(),
        };
        let from = self.profiles.range(first..).map(|(_, p)| p);
        let tenant = tenant.clone();
        from.take_while(move |p| p.key.tenant == tenant)
    }
    /// Remembered answers.
    pub const fn requests(&self) -> &Answers {
        &self.requests
    }
    /// How an ended lease ended, while its request is remembered: its owner, the end, and the last fence.
    pub fn ended(&self, id: LeaseId) -> Option<(&Name, End, Fence)> {
        let key = self.ended.get(&id)?;
        match self.requests.get(&key.0, key.1)?.effect {
            Effect::Lease {
                end: Some((how, fence)),
                ..
            } => Some((&key.0, how, fence)),
            _ => None,
        }
    }
    /// The request that an ended lease is remembered by.
    pub fn ended_key(&self, id: LeaseId) -> Option<&(Name, RequestId)> {
        self.ended.get(&id)
    }
    /// The counts.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }
    /// The next lease's number.
    pub const fn next_lease(&self) -> LeaseId {
        self.next_lease
    }
    /// The next job's number.
    pub const fn next_job(&self) -> JobId {
        self.next_job
    }

    /// Forgets how to undo: what happened is committed.
    pub fn commit(&mut self) {
        self.journal.clear();
        self.broken = None;
        self.forget_jobs();
    }
    /// A rule of single leases that an event broke since the last undo or commit: its name, and whose.
    pub const fn broken(&self) -> Option<(&'static str, LeaseId)> {
        self.broken
    }
    /// How many changes could be undone.
    pub fn mark(&self) -> usize {
        self.journal.len()
    }
    /// Takes back all changes since `mark`, newest first.
    pub fn undo_to(&mut self, mark: usize) {
        let changes = self.journal.split_off(mark.min(self.journal.len()));
        for change in changes.into_iter().rev() {
            match change {
                Undo::Lease(id, old) => self.put_lease(id, old.map(|b| *b)),
                Undo::Request(key, old) => self.put_request(key, old),
                Undo::Job(id, old) => self.put_job(id, old.map(|b| *b)),
                Undo::Slot(member, old) => self.put_slot(member, *old),
                Undo::Profile(key, old) => self.put_profile(key, old.map(|b| *b)),
                Undo::PopPoint(key) => {
                    if let Some(p) = self.profiles.get_mut(&key) {
                        p.points.pop();
                    }
                }
                Undo::Node(old) => self.put_node(*old),
                Undo::Unavailable(old) => self.put_unavailable(old),
                Undo::Draining(old) => self.draining = old,
                Undo::Next(lease, job) => (self.next_lease, self.next_job) = (lease, job),
            }
        }
        self.journal.truncate(mark);
        self.broken = None;
        self.forget_jobs();
    }

    fn put_lease(&mut self, id: LeaseId, new: Option<Lease>) {
        // Out before in: a running total is never more than what is counted in the end.
        if let Some(l) = self.leases.get(&id) {
            self.pool.remove(Owner::Lease(id), &l.counted());
        }
        if let Some(l) = &new {
            self.pool.add(Owner::Lease(id), &l.counted());
        }
        let old = match new {
            Some(l) => self.leases.insert(id, l),
            None => self.leases.remove(&id),
        };
        self.line.lease(old.as_ref(), self.leases.get(&id));
        self.tallies.lease(old.as_ref(), self.leases.get(&id));
        self.journal.push(Undo::Lease(id, old.map(Box::new)));
    }
    fn put_job(&mut self, id: JobId, new: Option<Job>) {
        let count = |pool: &mut Pool, job: &Job, add: bool| {
            for (member, slot) in slots(job) {
                match add {
                    true => pool.add(Owner::Slot(member), &slot.unclaimed),
                    false => pool.remove(Owner::Slot(member), &slot.unclaimed),
                }
            }
        };
        if let Some(old) = self.jobs.get(&id) {
            count(&mut self.pool, old, false);
        }
        if let Some(new) = &new {
            count(&mut self.pool, new, true);
        }
        let old = match new {
            Some(j) => {
                self.job_is_back(id);
                self.jobs.insert(id, j)
            }
            None => self.jobs.remove(&id),
        };
        if let (Some(old), false) = (&old, self.jobs.contains_key(&id)) {
            self.job_is_over(id, old.spec.name.clone());
        }
        self.line.job(old.as_ref(), self.jobs.get(&id));
        self.tallies.job(old.as_ref(), self.jobs.get(&id));
        self.journal.push(Undo::Job(id, old.map(Box::new)));
    }
    /// Changes one worker's place: a job may have thousands, and its plan names each.
    fn put_slot(&mut self, member: Member, new: Slot) {
        let Some(job) = self.jobs.get_mut(&member.job) else {
            return;
        };
        let tenant = job.tenant.clone();
        let Some(slot) = slot_mut(job, member) else {
            return;
        };
        let owner = Owner::Slot(member);
        self.pool.remove(owner, &slot.unclaimed);
        self.pool.add(owner, &new.unclaimed);
        self.tallies.count(&tenant, &slot.unclaimed, false);
        self.tallies.count(&tenant, &new.unclaimed, true);
        let old = core::mem::replace(slot, new);
        self.journal.push(Undo::Slot(member, Box::new(old)));
    }
    fn put_request(&mut self, key: (Name, RequestId), new: Option<Remembered>) {
        let old = self.requests.get(&key.0, key.1).map(|r| r.effect);
        let effect = new.as_ref().map(|r| r.effect);
        self.tallies.request(&key, old, effect);
        if let Some(Effect::Lease { id, .. }) = old {
            self.ended.remove(&id);
            let over = matches!(effect, Some(Effect::Lease { end: Some(_), .. }));
            if !over {
                self.lease_is_forgotten(id);
            }
        }
        if let Some(Effect::Lease {
            id, end: Some(_), ..
        }) = effect
        {
            self.ended.insert(id, key.clone());
        }
        let old = self.requests.put(&key, new);
        self.journal.push(Undo::Request(key, old));
    }
    fn put_profile(&mut self, key: ProfileKey, new: Option<Profile>) {
        let old = match new {
            Some(p) => self.profiles.insert(key.clone(), p),
            None => self.profiles.remove(&key),
        };
        self.journal.push(Undo::Profile(key, old.map(Box::new)));
    }
    fn put_node(&mut self, node: Node) {
        let old = core::mem::replace(&mut self.node, node);
        self.pool.reinstall(&self.node, &self.unavailable);
        self.journal.push(Undo::Node(Box::new(old)));
    }
    fn put_unavailable(&mut self, unavailable: Unavailable) {
        let old = core::mem::replace(&mut self.unavailable, unavailable);
        self.pool.reinstall(&self.node, &self.unavailable);
        self.journal.push(Undo::Unavailable(old));
    }
    fn advance_next(&mut self, lease: Option<LeaseId>, job: Option<JobId>) {
        self.journal
            .push(Undo::Next(self.next_lease, self.next_job));
        if let Some(LeaseId(n)) = lease {
            self.next_lease = self.next_lease.max(LeaseId(n + 1));
        }
        if let Some(JobId(n)) = job {
            self.next_job = self.next_job.max(JobId(n + 1));
        }
    }
}

/// A job's slots with their members.
pub fn slots(job: &Job) -> impl Iterator<Item = (Member, &Slot)> {
    use crate::id::{StageId, WorkerId};
    job.slots.iter().enumerate().flat_map(move |(s, workers)| {
        workers.iter().enumerate().map(move |(w, slot)| {
            let (stage, worker) = (StageId(s as u8), WorkerId(w as u32));
            (
                Member {
                    job: job.id,
                    stage,
                    worker,
                },
                slot,
            )
        })
    })
}

/// A member's slot.
pub fn slot(job: &Job, member: Member) -> Option<&Slot> {
    job.slots
        .get(usize::from(member.stage.0))?
        .get(member.worker.0 as usize)
}

fn slot_mut(job: &mut Job, member: Member) -> Option<&mut Slot> {
    job.slots
        .get_mut(usize::from(member.stage.0))?
        .get_mut(member.worker.0 as usize)
}
