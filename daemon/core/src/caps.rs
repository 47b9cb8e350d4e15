//! What one tenant may have at most, and what is counted for it. Set by the daemon's configuration; fixed while it runs.
//!
//! A cap bounds what is planned and granted. While shares move, what is being given back counts beside it; a cap that
//! is lowered takes nothing away from anybody.
use alloc::collections::BTreeMap;

use crate::grant::Vector;
use crate::id::{GpuId, Name};
use crate::pool::GpuUse;
use crate::unit::{Bytes, Sms};

/// What a tenant may have at most. None: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap {
    /// Cores, over all of its leases and jobs.
    pub cores: Option<u32>,
    /// SMs on each GPU.
    pub sms_per_gpu: Option<Sms>,
    /// Memory on each GPU.
    pub memory_per_gpu: Option<Bytes>,
    /// Live leases, the queue among them.
    pub leases: Option<u32>,
}

impl Cap {
    /// Whether it bounds no resource.
    pub const fn is_open(&self) -> bool {
        self.cores.is_none() && self.sms_per_gpu.is_none() && self.memory_per_gpu.is_none()
    }
    /// Cores that are left beside `used`.
    pub fn cores_left(&self, used: u32) -> u32 {
        self.cores.map_or(u32::MAX, |cap| cap.saturating_sub(used))
    }
    /// What is left on a GPU beside `used`.
    pub fn left_on(&self, used: GpuUse) -> GpuUse {
        GpuUse {
            sms: self
                .sms_per_gpu
                .map_or(Sms(u32::MAX), |cap| cap.saturating_sub(used.sms)),
            memory: self
                .memory_per_gpu
                .map_or(Bytes(u64::MAX), |cap| cap.saturating_sub(used.memory)),
        }
    }
}

/// The caps of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Of those that are named.
    pub named: BTreeMap<Name, Cap>,
    /// Of each of the others.
    pub others: Cap,
}

impl Caps {
    /// A tenant's.
    pub fn of(&self, tenant: &Name) -> Cap {
        self.named.get(tenant).copied().unwrap_or(self.others)
    }
}

/// What is counted for one tenant: Σ max(held, target) of its leases, and what its jobs keep for their workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Cores.
    pub cores: u32,
    /// By GPU; only those of which it has something.
    pub gpus: BTreeMap<GpuId, GpuUse>,
}

impl Use {
    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        self.cores == 0 && self.gpus.is_empty()
    }
    /// On one GPU.
    pub fn on(&self, gpu: GpuId) -> GpuUse {
        self.gpus.get(&gpu).copied().unwrap_or_default()
    }
    /// Counts a share.
    pub fn add(&mut self, v: &Vector) {
        self.cores = self.cores.saturating_add(v.cores.len());
        for (id, share) in &v.gpus {
            let used = self.gpus.entry(*id).or_default();
            used.sms += share.guarantee;
            used.memory += share.memory;
        }
    }
    /// Takes back what [`Use::add`] counted.
    pub fn remove(&mut self, v: &Vector) {
        self.cores = self.cores.saturating_sub(v.cores.len());
        for (id, share) in &v.gpus {
            let used = self.gpus.entry(*id).or_default();
            used.sms = used.sms.saturating_sub(share.guarantee);
            used.memory = used.memory.saturating_sub(share.memory);
            if *used == GpuUse::default() {
                self.gpus.remove(id);
            }
        }
    }
}
