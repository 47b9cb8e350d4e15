//! All tables of the ledger, in memory: what SQLite holds, as maps by key.
//!
//! The loader reads SQLite into it; the simulated world uses it as its disk. Not the state that decisions are
//! made on (that is `Durable`): this is rows, changed only by [`Tables::apply`], in the order of the SQL.
use std::collections::BTreeMap;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::{Point, ProfileKey};
use evenkeel_core::grant::{GpuShare, Member};
use evenkeel_core::id::{GpuId, JobId, LeaseId};
use evenkeel_core::node::{Core, Gpu, PoolKind};
use evenkeel_core::pool::Owner;
use evenkeel_core::state::{Effect, Remembered};
use evenkeel_core::unit::{Bytes, Sms, Time};

use super::fold::{Batch, NodeRows};
use super::rows::{CoreOwnerRow, EndedRow, JobRow, LeaseGpuRow, LeaseRow, NodeRow, RequestKey};

/// The tables. See the schema in `migrations/` for what each column means.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// `node`
    pub node: NodeRow,
    /// `core`
    pub cores: BTreeMap<u32, Core>,
    /// `gpu`
    pub gpus: BTreeMap<GpuId, Gpu>,
    /// `unavailable_gpu`
    pub unavailable: BTreeMap<GpuId, (Sms, Bytes)>,
    /// `lease`
    pub leases: BTreeMap<LeaseId, LeaseRow>,
    /// `lease.unrenewed_since_ms`
    pub unrenewed: BTreeMap<LeaseId, Time>,
    /// `meta.alive_ms`
    pub alive: Option<Time>,
    /// `core_owner`
    pub core_owners: BTreeMap<u32, CoreOwnerRow>,
    /// `lease_gpu`
    pub lease_gpus: BTreeMap<(LeaseId, GpuId), LeaseGpuRow>,
    /// `job`
    pub jobs: BTreeMap<JobId, JobRow>,
    /// `slot`
    pub slots: BTreeMap<Member, Option<LeaseId>>,
    /// `slot_gpu`
    pub slot_gpus: BTreeMap<(Member, GpuId), GpuShare>,
    /// `request`
    pub requests: BTreeMap<RequestKey, Remembered>,
    /// `profile` and `profile_point`
    pub profiles: BTreeMap<ProfileKey, BTreeMap<u32, Point>>,
    /// `counter.next_lease`
    pub next_lease: LeaseId,
    /// `counter.next_job`
    pub next_job: JobId,
    /// `counter.batch`: how many batches were committed.
    pub batch: u64,
}

/// Why tables refuse a batch; SQLite refuses it for the same reason. Always a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A core would have two owners.
    #[error("core {0} has an owner already")]
    CoreOwned(u32),
    /// A core, GPU, lease, job or slot that a row refers to does not exist.
    #[error("{0} refers to something that does not exist")]
    Dangling(&'static str),
    /// More would be counted on a GPU than is installed.
    #[error("{0} would be over-committed")]
    Overcommitted(GpuId),
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            node: NodeRow {
                kind: PoolKind::Local,
                reserved_cores: CpuSet::new(),
                unavailable_cores: CpuSet::new(),
                draining: false,
            },
            cores: BTreeMap::new(),
            gpus: BTreeMap::new(),
            unavailable: BTreeMap::new(),
            leases: BTreeMap::new(),
            unrenewed: BTreeMap::new(),
            alive: None,
            core_owners: BTreeMap::new(),
            lease_gpus: BTreeMap::new(),
            jobs: BTreeMap::new(),
            slots: BTreeMap::new(),
            slot_gpus: BTreeMap::new(),
            requests: BTreeMap::new(),
            profiles: BTreeMap::new(),
            next_lease: LeaseId(1),
            next_job: JobId(1),
            batch: 0,
        }
    }
}

impl Tables {
    /// Applies a batch. An error is a bug of the daemon, found here as SQLite would have found it (SQLite then
    /// rolls back; these tables are left half-changed and are good for looking at only).
    pub fn apply(&mut self, batch: &Batch) -> Result<(), Refusal> {
        self.remove(batch);
        batch.node.iter().for_each(|node| self.install(node));
        self.insert(batch)?;
        (self.next_lease, self.next_job) = (batch.next_lease, batch.next_job);
        self.batch += 1;
        Ok(())
    }

    /// What goes.
    fn remove(&mut self, batch: &Batch) {
        batch.ended.iter().for_each(|row| self.end_lease(row));
        batch.ended_jobs.iter().for_each(|id| self.end_job(*id));
        batch.reslotted.iter().for_each(|id| self.remove_slots(*id));
        batch
            .revectored
            .iter()
            .for_each(|id| self.remove_shares(*id));
        for member in &batch.refilled {
            self.core_owners
                .retain(|_, row| row.owner != Owner::Slot(*member));
            self.slot_gpus.retain(|(m, _), _| m != member);
        }
        for key in &batch.forgotten {
            self.requests.remove(key);
        }
        batch
            .reprofiled
            .iter()
            .for_each(|key| drop(self.profiles.remove(key)));
    }

    fn end_lease(&mut self, row: &EndedRow) {
        if let Some(lease) = self.leases.remove(&row.lease) {
            if let Some(fence) = lease.granted_fence {
                let effect = Effect::Lease {
                    id: lease.id,
                    fence,
                    end: Some((row.how, row.fence)),
                };
                let key = (lease.tenant, lease.request);
                self.requests.insert(
                    key,
                    Remembered {
                        body: lease.body,
                        effect,
                    },
                );
            }
            self.remove_shares(row.lease);
            self.unrenewed.remove(&row.lease);
            self.slots
                .values_mut()
                .filter(|l| **l == Some(row.lease))
                .for_each(|l| *l = None);
        }
    }

    fn end_job(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(&id) {
            if job.remembered {
                let remembered = Remembered {
                    body: job.body,
                    effect: Effect::Job(id),
                };
                self.requests.insert((job.tenant, job.request), remembered);
            }
            self.remove_slots(id);
        }
    }

    fn remove_slots(&mut self, id: JobId) {
        let of_job = |owner: &Owner| matches!(owner, Owner::Slot(m) if m.job == id);
        self.core_owners.retain(|_, row| !of_job(&row.owner));
        self.slots.retain(|m, _| m.job != id);
        self.slot_gpus.retain(|(m, _), _| m.job != id);
    }

    fn remove_shares(&mut self, id: LeaseId) {
        self.core_owners
            .retain(|_, row| row.owner != Owner::Lease(id));
        let of_lease = (id, GpuId(0))..=(id, GpuId(u16::MAX));
        let gpus: Vec<_> = self
            .lease_gpus
            .range(of_lease)
            .map(|(key, _)| *key)
            .collect();
        for key in gpus {
            self.lease_gpus.remove(&key);
        }
    }

    fn install(&mut self, rows: &NodeRows) {
        self.node.clone_from(&rows.node);
        if let Some(cores) = &rows.cores {
            self.cores = cores.iter().map(|c| (c.id, c.clone())).collect();
        }
        if let Some(gpus) = &rows.gpus {
            self.gpus = gpus.iter().map(|g| (g.id, g.clone())).collect();
        }
        self.unavailable = rows
            .unavailable
            .iter()
            .map(|u| (u.gpu, (u.sms, u.memory)))
            .collect();
    }

    /// What comes.
    fn insert(&mut self, batch: &Batch) -> Result<(), Refusal> {
        self.leases
            .extend(batch.leases.iter().map(|row| (row.id, row.clone())));
        self.jobs
            .extend(batch.jobs.iter().map(|row| (row.id, row.clone())));
        for row in &batch.slots {
            if !self.jobs.contains_key(&row.member.job)
                || row.lease.is_some_and(|id| !self.leases.contains_key(&id))
            {
                return Err(Refusal::Dangling("a slot"));
            }
            self.slots.insert(row.member, row.lease);
        }
        for row in &batch.cores {
            if !self.cores.contains_key(&row.core) || !self.owner_exists(row.owner) {
                return Err(Refusal::Dangling("the owner of a core"));
            }
            if self.core_owners.insert(row.core, *row).is_some() {
                return Err(Refusal::CoreOwned(row.core));
            }
        }
        for row in &batch.lease_gpus {
            self.lease_gpus.insert((row.lease, row.gpu), *row);
        }
        for row in &batch.slot_gpus {
            self.slot_gpus.insert((row.member, row.gpu), row.share);
        }
        let gpus = batch.lease_gpus.iter().map(|row| row.gpu);
        gpus.chain(batch.slot_gpus.iter().map(|row| row.gpu))
            .try_for_each(|gpu| self.fits(gpu))?;
        for row in &batch.requests {
            let remembered = Remembered {
                body: row.body,
                effect: row.effect,
            };
            self.requests.insert(row.key.clone(), remembered);
        }
        for key in &batch.profiles {
            self.profiles.entry(key.clone()).or_default();
        }
        for row in &batch.points {
            self.profiles
                .entry(row.key.clone())
                .or_default()
                .insert(row.n, row.point.clone());
        }
        Ok(())
    }

    fn owner_exists(&self, owner: Owner) -> bool {
        match owner {
            Owner::Lease(id) => self.leases.contains_key(&id),
            Owner::Slot(member) => self.slots.contains_key(&member),
        }
    }

    /// What is counted on a GPU: SMs and bytes.
    pub fn counted_on(&self, gpu: GpuId) -> (Sms, Bytes) {
        let leases = self
            .lease_gpus
            .values()
            .filter(|row| row.gpu == gpu)
            .map(LeaseGpuRow::counted);
        let slots = self.slot_gpus.iter().filter(|((_, g), _)| *g == gpu);
        leases
            .chain(slots.map(|(_, share)| (share.guarantee, share.memory)))
            .fold((Sms(0), Bytes(0)), |sum, share| {
                (sum.0 + share.0, sum.1 + share.1)
            })
    }

    fn fits(&self, gpu: GpuId) -> Result<(), Refusal> {
        let installed = self
            .gpus
            .get(&gpu)
            .ok_or(Refusal::Dangling("a GPU share"))?;
        let (sms, memory) = self.counted_on(gpu);
        match sms <= installed.sms && memory <= installed.leasable_memory() {
            true => Ok(()),
            false => Err(Refusal::Overcommitted(gpu)),
        }
    }
}

impl LeaseGpuRow {
    /// What the pool counts: the larger of held and target.
    pub fn counted(&self) -> (Sms, Bytes) {
        let (h, t) = (
            self.held.unwrap_or_default(),
            self.target.unwrap_or_default(),
        );
        (h.guarantee.max(t.guarantee), h.memory.max(t.memory))
    }
}
