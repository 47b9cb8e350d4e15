//! What can be leased: of each resource how much is installed, kept, lost, counted and free.
use std::collections::BTreeMap;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::grant::Vector;
use evenkeel_core::id::GpuId;
use evenkeel_core::node::Gpu;
use evenkeel_core::step::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::convert::backend_word;

/// The node's pool. Everything in it is of one moment.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Pools {
    /// Its cores.
    cores: CorePool,
    /// Its GPUs, ascending.
    gpus: Vec<GpuPool>,
}

/// The cores.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct CorePool {
    /// How many.
    count: Amounts,
    /// Which are installed, in the kernel's list format.
    installed: String,
    /// Which are kept for the system.
    reserved: String,
    /// Which are offline or taken by others.
    unavailable: String,
    /// Which are counted for leases and plans.
    used: String,
    /// Which can be given now.
    free: String,
}

/// One GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct GpuPool {
    /// Its place on the node.
    gpu: u16,
    /// The device's own id.
    uuid: String,
    /// Who enforces its shares: `emulated` (no hardware), `mps`, `mig` or `none`.
    backend: &'static str,
    /// SMs that are guaranteed to somebody. Caps may overlap and are not counted.
    sms: Amounts,
    /// Memory.
    memory_bytes: Amounts,
}

/// One resource: `installed` = `reserved` + `unavailable` + `used` + `free`, unless more is lost than was free.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
struct Amounts {
    /// All there is.
    installed: u64,
    /// Kept for the system.
    reserved: u64,
    /// Lost, or taken by neighbours without a lease.
    unavailable: u64,
    /// What leases have, as observed.
    held: u64,
    /// What leases are to have.
    target: u64,
    /// What is kept for workers of admitted jobs that have no lease yet.
    unclaimed: u64,
    /// What is counted: of each lease the larger of held and target, and what is unclaimed.
    used: u64,
    /// What can be given now.
    free: u64,
}

/// What all leases have and are to have. Summed in one look, as metrics are.
#[derive(Debug, Default)]
struct Sums {
    held: Share,
    target: Share,
    counted: Share,
}

/// Cores, and SMs and bytes of each GPU.
#[derive(Debug, Default)]
struct Share {
    cores: u64,
    gpus: BTreeMap<GpuId, (u64, u64)>,
}

impl Share {
    fn add(&mut self, v: &Vector) {
        self.cores += u64::from(v.cores.len());
        for (id, share) in &v.gpus {
            let gpu = self.gpus.entry(*id).or_default();
            gpu.0 += u64::from(share.guarantee.0);
            gpu.1 += share.memory.0;
        }
    }
    fn sms(&self, gpu: GpuId) -> u64 {
        self.gpus.get(&gpu).map_or(0, |g| g.0)
    }
    fn bytes(&self, gpu: GpuId) -> u64 {
        self.gpus.get(&gpu).map_or(0, |g| g.1)
    }
}

impl Amounts {
    /// Of leases, and of what the pool counts in all.
    fn new(sums: &Sums, of: impl Fn(&Share) -> u64, used: u64) -> Self {
        Self {
            held: of(&sums.held),
            target: of(&sums.target),
            unclaimed: used.saturating_sub(of(&sums.counted)),
            used,
            ..Self::default()
        }
    }
}

impl Pools {
    pub(in crate::api::rest) fn of(state: &State) -> Self {
        let mut sums = Sums::default();
        for lease in state.durable.leases().values() {
            sums.held.add(&lease.held);
            sums.target.add(&lease.target);
            sums.counted.add(&lease.counted());
        }
        let gpus = &state.durable.node().gpus;
        Self {
            cores: cores(state, &sums),
            gpus: gpus.iter().map(|g| gpu(state, &sums, g)).collect(),
        }
    }
}

fn cores(state: &State, sums: &Sums) -> CorePool {
    let d = &state.durable;
    let (node, lost) = (d.node(), &d.unavailable().cores);
    let installed: CpuSet = node.cores.iter().map(|c| c.id).collect();
    let used: CpuSet = d.pool().owned().map(|(core, _)| core).collect();
    let free = d.pool().free_cores();
    let amounts = Amounts::new(sums, |s| s.cores, used.len().into());
    CorePool {
        count: Amounts {
            installed: installed.len().into(),
            reserved: node.reserved_cores.len().into(),
            unavailable: lost.len().into(),
            free: free.len().into(),
            ..amounts
        },
        installed: installed.to_string(),
        reserved: node.reserved_cores.to_string(),
        unavailable: lost.to_string(),
        used: used.to_string(),
        free: free.to_string(),
    }
}

fn gpu(state: &State, sums: &Sums, gpu: &Gpu) -> GpuPool {
    let d = &state.durable;
    let used = d.pool().used(gpu.id);
    let free = d.pool().free_on(d.node(), d.unavailable(), gpu.id);
    let lost = d.unavailable().gpus.get(&gpu.id).copied();
    let lost = lost.unwrap_or_default();
    GpuPool {
        gpu: gpu.id.0,
        uuid: gpu.uuid.to_string(),
        backend: backend_word(gpu.backend),
        sms: Amounts {
            installed: gpu.sms.0.into(),
            unavailable: lost.0.0.into(),
            free: free.sms.0.into(),
            ..Amounts::new(sums, |s| s.sms(gpu.id), used.sms.0.into())
        },
        memory_bytes: Amounts {
            installed: gpu.memory.0,
            reserved: gpu.reserved_memory.0,
            unavailable: lost.1.0,
            free: free.memory.0,
            ..Amounts::new(sums, |s| s.bytes(gpu.id), used.memory.0)
        },
    }
}
