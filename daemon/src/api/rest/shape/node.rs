//! The node, and whether it serves.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use utoipa::ToSchema;

/// The node.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Node {
    /// Host name.
    name: String,
    /// `local` or `synthetic`.
    kind: String,
    /// All core ids, as a list such as `0-55`.
    cores: String,
    /// Cores kept for the system.
    reserved_cores: String,
    /// Cores counted for leases and plans.
    used_cores: String,
    /// Cores that are offline or taken by others.
    unavailable_cores: String,
    /// The GPUs.
    gpus: Vec<Gpu>,
    /// No new grants.
    draining: bool,
    /// Version of the daemon.
    version: String,
    /// Live leases.
    live_leases: u32,
    /// Requests in the queue.
    queued: u32,
    /// Time since the daemon started, in milliseconds.
    uptime_ms: u64,
    /// What is wrong, for a person; empty: nothing.
    troubles: Vec<String>,
    /// Whether new grants are refused because the ledger cannot be written, or a restart would not find it again.
    degraded: bool,
}

/// One GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Gpu {
    /// Its place on the node.
    id: u32,
    /// The device's own id.
    uuid: String,
    /// Its model; that it is emulated is said in `backend`.
    model: String,
    /// All its SMs.
    sms: u32,
    /// All its memory in bytes.
    memory_bytes: u64,
    /// Memory that leases may share, in bytes.
    leasable_memory_bytes: u64,
    /// SMs counted for leases and plans.
    used_sms: u32,
    /// Bytes counted for leases and plans.
    used_memory_bytes: u64,
    /// SMs that neighbours without a lease (or a loss) take.
    unavailable_sms: u32,
    /// Bytes that neighbours without a lease (or a loss) take.
    unavailable_memory_bytes: u64,
    /// `emulated`, `mps`, `mig` or `none`.
    backend: String,
    /// `observe`, `advise` or `enforce`.
    mode: String,
    /// SM counts that can be enforced, ascending.
    enforceable_sms: Vec<u32>,
    /// NUMA node.
    numa: u32,
    /// Where the emulated device listens; empty for a real GPU.
    emulated_socket: String,
}

impl From<pb::Node> for Node {
    fn from(n: pb::Node) -> Self {
        Self {
            name: n.name,
            kind: n.kind,
            cores: n.cores,
            reserved_cores: n.reserved_cores,
            used_cores: n.used_cores,
            unavailable_cores: n.unavailable_cores,
            gpus: n.gpus.into_iter().map(Gpu::from).collect(),
            draining: n.draining,
            version: n.version,
            live_leases: n.live_leases,
            queued: n.queued,
            uptime_ms: n.uptime_ms,
            troubles: n.troubles,
            degraded: n.degraded,
        }
    }
}

impl From<pb::Gpu> for Gpu {
    fn from(g: pb::Gpu) -> Self {
        Self {
            id: g.id,
            uuid: g.uuid,
            model: g.model,
            sms: g.sms,
            memory_bytes: g.memory_bytes,
            leasable_memory_bytes: g.leasable_memory_bytes,
            used_sms: g.used_sms,
            used_memory_bytes: g.used_memory_bytes,
            unavailable_sms: g.unavailable_sms,
            unavailable_memory_bytes: g.unavailable_memory_bytes,
            backend: g.backend,
            mode: g.mode,
            enforceable_sms: g.enforceable_sms,
            numa: g.numa,
            emulated_socket: g.emulated_socket,
        }
    }
}

/// Whether the daemon serves.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Health {
    /// `serving`, while the controller answers.
    #[schema(example = "serving")]
    pub(in crate::api::rest) status: String,
    /// Whether anything new can be granted.
    pub(in crate::api::rest) grants: bool,
}
