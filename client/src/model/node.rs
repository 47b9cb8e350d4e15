//! The node, and what happened on it.
use serde::{Deserialize, Serialize};

use super::amount::CpuList;

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its place on the node.
    pub id: u32,
    /// The device's own id.
    pub uuid: String,
    /// Its model; that it is emulated is said in `backend`.
    pub model: String,
    /// All its SMs.
    pub sms: u32,
    /// All its memory in bytes.
    pub memory_bytes: u64,
    /// Memory that leases may share, in bytes.
    pub leasable_memory_bytes: u64,
    /// SMs counted for leases and plans.
    pub used_sms: u32,
    /// Bytes counted for leases and plans.
    pub used_memory_bytes: u64,
    /// SMs that neighbours without a lease (or a loss) take.
    pub unavailable_sms: u32,
    /// Bytes that neighbours without a lease (or a loss) take.
    pub unavailable_memory_bytes: u64,
    /// `emulated`, `mps`, `mig` or `none`.
    pub backend: String,
    /// `observe`, `advise` or `enforce`.
    pub mode: String,
    /// SM counts that can be enforced, ascending.
    pub enforceable_sms: Vec<u32>,
    /// NUMA node.
    pub numa: u32,
    /// Where the emulated device listens; empty for a real GPU.
    pub emulated_socket: String,
}

/// The node: one server as one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Host name.
    pub name: String,
    /// `local` or `synthetic`.
    pub kind: String,
    /// All core ids.
    pub cores: CpuList,
    /// Cores kept for the system.
    pub reserved_cores: CpuList,
    /// Cores counted for leases and plans.
    pub used_cores: CpuList,
    /// Cores that are offline or taken by others.
    pub unavailable_cores: CpuList,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// No new grants.
    pub draining: bool,
    /// Version of the daemon.
    pub version: String,
    /// Live leases.
    pub live_leases: u32,
    /// Requests in the queue.
    pub queued: u32,
    /// Time since the daemon started, in milliseconds.
    pub uptime_ms: u64,
    /// What is wrong, for a person; empty: nothing.
    pub troubles: Vec<String>,
    /// Whether new grants are being refused because the ledger cannot be written.
    pub degraded: bool,
}

/// One entry of the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number, rising without a gap.
    pub seq: u64,
    /// Wall-clock time of the record, milliseconds since 1970; for people only.
    pub unix_ms: u64,
    /// What happened, in snake case, such as `lease_granted`.
    pub kind: String,
    /// The lease concerned; 0: none.
    pub lease_id: u64,
    /// The job concerned; 0: none.
    pub job_id: u64,
    /// Whose it is; empty: the node's.
    pub tenant: String,
    /// The whole event as a JSON text.
    pub json: String,
}

/// Which events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Numbers above this one.
    pub after_seq: u64,
    /// At most so many; none: the daemon's limit for one page.
    pub limit: Option<u32>,
    /// Only those of this lease.
    pub lease_id: Option<u64>,
    /// Only those of this job, by name.
    pub job: Option<String>,
    /// The newest instead of the oldest; still ascending.
    pub newest: bool,
}
