//! Vectors of resources.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use utoipa::ToSchema;

/// Cores by id and a share of each GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct ResourceVector {
    /// Core ids in the kernel's list format, such as `0-3,8`. A core's id is its lowest CPU number.
    cores: String,
    /// CPUs (hardware threads) of those cores, in the same format: the affinity mask.
    cpus: String,
    /// One entry for each GPU with a share.
    gpus: Vec<GpuShare>,
}

/// A share of one GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct GpuShare {
    /// Place of the GPU on its node.
    gpu: u32,
    /// The device's own id.
    gpu_uuid: String,
    /// SMs that nobody else is promised.
    guarantee_sms: u32,
    /// The most SMs it may use; at least the guarantee.
    cap_sms: u32,
    /// The percentage that gives `cap_sms` on this GPU; 0 for no SMs.
    cap_percent: u32,
    /// GPU memory in bytes, over all processes of the worker.
    memory_bytes: u64,
    /// Where the emulated device listens; empty for a real GPU.
    emulated_socket: String,
}

impl From<pb::ResourceVector> for ResourceVector {
    fn from(v: pb::ResourceVector) -> Self {
        Self {
            cores: v.cores,
            cpus: v.cpus,
            gpus: v.gpus.into_iter().map(GpuShare::from).collect(),
        }
    }
}

impl From<pb::GpuShare> for GpuShare {
    fn from(s: pb::GpuShare) -> Self {
        Self {
            gpu: s.gpu,
            gpu_uuid: s.gpu_uuid,
            guarantee_sms: s.guarantee_sms,
            cap_sms: s.cap_sms,
            cap_percent: s.cap_percent,
            memory_bytes: s.memory_bytes,
            emulated_socket: s.emulated_socket,
        }
    }
}
