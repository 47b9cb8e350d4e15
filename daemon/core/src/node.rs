//! What a server has: its cores and GPUs, what is reserved for the system, and what is unavailable just now.
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::id::{GpuId, Name};
use crate::unit::{Bytes, Sms};

/// Whether the pool is hardware that this daemon enforces shares on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// Cores of this machine, real or emulated GPUs: leases are enforced, an end needs proof.
    Local,
    /// Amounts that exist only in the ledger: leases are unenforced and end without proof.
    Synthetic,
}

/// One leasable core: a physical core, or one of its threads where SMT sharing is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// The core's number: its lowest CPU number.
    pub id: u32,
    /// The CPUs (hardware threads) that come with it.
    pub cpus: CpuSet,
    /// NUMA node.
    pub numa: u16,
    /// Package (socket).
    pub package: u16,
}

/// Who enforces a GPU's shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuBackend {
    /// The emulated GPU: a device process, no hardware.
    Emulated,
    /// NVIDIA MPS: percentages and pinned-memory limits.
    Mps,
    /// Multi-Instance GPU.
    Mig,
    /// Nobody (synthetic pools).
    None,
}

/// How far the daemon may go on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuMode {
    /// Look only.
    Observe,
    /// Say what should change.
    Advise,
    /// Lease and enforce.
    Enforce,
}

/// One GPU as installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Place on the node.
    pub id: GpuId,
    /// The device's own id.
    pub uuid: Name,
    /// Model name, such as `NVIDIA-H100-80GB-HBM3`.
    pub model: Name,
    /// All its SMs.
    pub sms: Sms,
    /// All its memory.
    pub memory: Bytes,
    /// Memory kept for contexts and the system.
    pub reserved_memory: Bytes,
    /// The SM counts that its backend can enforce, ascending; the last is at most `sms`.
    pub enforceable: Arc<[Sms]>,
    /// NUMA node.
    pub numa: u16,
    /// Who enforces shares.
    pub backend: GpuBackend,
    /// How far the daemon may go.
    pub mode: GpuMode,
}

impl Gpu {
    /// The smallest enforceable count that is at least `wanted`; none if that is more than the GPU has.
    pub fn round_up(&self, wanted: Sms) -> Option<Sms> {
        if wanted == Sms(0) {
            return Some(wanted);
        }
        self.enforceable
            .get(self.enforceable.partition_point(|s| *s < wanted))
            .copied()
    }
    /// The largest enforceable count that is at most `limit`; zero if there is none.
    pub fn round_down(&self, limit: Sms) -> Sms {
        let at = self.enforceable.partition_point(|s| *s <= limit);
        at.checked_sub(1)
            .and_then(|i| self.enforceable.get(i))
            .copied()
            .unwrap_or(Sms(0))
    }
    /// Memory that leases may share.
    pub fn leasable_memory(&self) -> Bytes {
        self.memory - self.reserved_memory
    }
}

/// A server's pool as installed. Its long lists are shared between copies: many keep one, to see what changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Hardware or bookkeeping.
    pub kind: PoolKind,
    /// Every leasable core, ascending by id; those reserved for the system are among them.
    pub cores: Arc<[Core]>,
    /// Cores kept for the system: the shared set where the daemon and trees without leased cores run.
    pub reserved_cores: CpuSet,
    /// The GPUs, ascending by id.
    pub gpus: Vec<Gpu>,
}

impl Node {
    /// Core ids that may be leased.
    pub fn leasable_cores(&self) -> CpuSet {
        self.cores
            .iter()
            .map(|c| c.id)
            .collect::<CpuSet>()
            .difference(&self.reserved_cores)
    }
    /// The GPU with this id.
    pub fn gpu(&self, id: GpuId) -> Option<&Gpu> {
        self.gpus
            .binary_search_by_key(&id, |g| g.id)
            .ok()
            .and_then(|i| self.gpus.get(i))
    }
    /// Core ids by NUMA node.
    pub fn numa_nodes(&self) -> BTreeMap<u16, CpuSet> {
        let mut nodes: BTreeMap<u16, CpuSet> = BTreeMap::new();
        for core in self.cores.iter() {
            nodes.entry(core.numa).or_default().insert(core.id);
        }
        nodes
    }
    /// The CPUs of a set of core ids.
    pub fn cpus_of(&self, cores: &CpuSet) -> CpuSet {
        let mut cpus = CpuSet::new();
        for core in cores.iter() {
            if let Ok(i) = self.cores.binary_search_by_key(&core, |c| c.id) {
                cpus = cpus.union(&self.cores[i].cpus);
            }
        }
        cpus
    }
    /// The CPUs of the shared set: the reserved cores, or all of them where none is reserved.
    pub fn shared_cpus(&self) -> CpuSet {
        if self.reserved_cores.is_empty() {
            self.cpus_of(&self.cores.iter().map(|c| c.id).collect())
        } else {
            self.cpus_of(&self.reserved_cores)
        }
    }
}

/// What is installed but cannot be leased just now: lost hardware, and neighbours without a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    /// Cores that are offline or taken.
    pub cores: CpuSet,
    /// SMs and bytes per GPU.
    pub gpus: BTreeMap<GpuId, (Sms, Bytes)>,
}
