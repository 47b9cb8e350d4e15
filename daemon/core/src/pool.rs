//! What is counted against the pool: one owner per core, running totals per GPU. Derived from leases and
//! slots, kept up to date by `State`, never stored by itself.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::cpuset::CpuSet;
use crate::grant::{Member, Vector};
use crate::id::{GpuId, LeaseId};
use crate::node::{Node, Unavailable};
use crate::unit::{Bytes, Sms};

/// Who a counted share belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A lease.
    Lease(LeaseId),
    /// A worker's place in an admitted job that no lease fills just now.
    Slot(Member),
}

/// What is counted on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// Sum of max(held, target) of the guarantees.
    pub sms: Sms,
    /// Sum of max(held, target) of the memory.
    pub memory: Bytes,
}

/// The counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Core and owner; a core with two owners is a violation that the gate finds.
    owners: BTreeSet<(u32, Owner)>,
    /// Leasable, available and without an owner.
    free: CpuSet,
    /// Leasable and available, with or without an owner.
    open: CpuSet,
    /// How many cores are leasable, available or not; and which, by NUMA node. Kept because a node may have
    /// thousands of cores, and every request asks.
    leasable: u32,
    numa: BTreeMap<u16, CpuSet>,
    gpus: BTreeMap<GpuId, GpuUse>,
}

impl Pool {
    /// The counts of a node on which nothing is owned yet, or the same owners on changed hardware.
    pub fn reinstall(&mut self, node: &Node, unavailable: &Unavailable) {
        let leasable = node.leasable_cores();
        self.leasable = leasable.len();
        self.numa = node.numa_nodes();
        self.open = leasable.difference(&unavailable.cores);
        let owned: CpuSet = self.owners.iter().map(|(core, _)| *core).collect();
        self.free = self.open.difference(&owned);
    }
    /// Counts `v` for `owner`.
    pub fn add(&mut self, owner: Owner, v: &Vector) {
        for core in v.cores.iter() {
            self.owners.insert((core, owner));
            self.free.remove(core);
        }
        for (id, share) in &v.gpus {
            let used = self.gpus.entry(*id).or_default();
            used.sms += share.guarantee;
            used.memory += share.memory;
        }
    }
    /// Takes back what [`Pool::add`] counted.
    pub fn remove(&mut self, owner: Owner, v: &Vector) {
        for core in v.cores.iter() {
            self.owners.remove(&(core, owner));
            if self.owners_of(core).next().is_none() && self.open.contains(core) {
                self.free.insert(core);
            }
        }
        for (id, share) in &v.gpus {
            let used = self.gpus.entry(*id).or_default();
            used.sms = used.sms - share.guarantee;
            used.memory = used.memory - share.memory;
            if *used == GpuUse::default() {
                self.gpus.remove(id);
            }
        }
    }
    /// Who owns a core: nobody or one, unless an invariant is broken.
    pub fn owners_of(&self, core: u32) -> impl Iterator<Item = Owner> + '_ {
        let first = (core, Owner::Lease(LeaseId(0)));
        self.owners
            .range(first..)
            .take_while(move |(c, _)| *c == core)
            .map(|(_, o)| *o)
    }
    /// All owned cores with their owners, ascending by core.
    pub fn owned(&self) -> impl Iterator<Item = (u32, Owner)> + '_ {
        self.owners.iter().copied()
    }
    /// Cores that can be given now.
    pub const fn free_cores(&self) -> &CpuSet {
        &self.free
    }
    /// How many cores the node can lease at most.
    pub const fn leasable_cores(&self) -> u32 {
        self.leasable
    }
    /// The node's cores by NUMA node.
    pub const fn numa_nodes(&self) -> &BTreeMap<u16, CpuSet> {
        &self.numa
    }
    /// Cores that can be leased, whoever has them now.
    pub const fn open_cores(&self) -> &CpuSet {
        &self.open
    }
    /// What is counted on a GPU.
    pub fn used(&self, gpu: GpuId) -> GpuUse {
        self.gpus.get(&gpu).copied().unwrap_or_default()
    }
    /// What can be given on a GPU now.
    pub fn free_on(&self, node: &Node, unavailable: &Unavailable, gpu: GpuId) -> GpuUse {
        let Some(g) = node.gpu(gpu) else {
            return GpuUse::default();
        };
        let (lost_sms, lost_memory) = unavailable.gpus.get(&gpu).copied().unwrap_or_default();
        let used = self.used(gpu);
        GpuUse {
            sms: g.sms - lost_sms - used.sms,
            memory: g.leasable_memory() - lost_memory - used.memory,
        }
    }
    /// The owners of the most cores, for a person who wants to know who holds them.
    pub fn core_owners(&self) -> Vec<(Owner, u32)> {
        let mut by: BTreeMap<Owner, u32> = BTreeMap::new();
        for (_, owner) in &self.owners {
            *by.entry(*owner).or_default() += 1;
        }
        let mut all: Vec<_> = by.into_iter().collect();
        all.sort_by_key(|(owner, n)| (core::cmp::Reverse(*n), *owner));
        all
    }
}
