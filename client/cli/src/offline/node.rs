//! A node that exists as sizes only: cores, and GPUs of a known kind or of given SMs and memory.

use evenkeel_core::allocate::Room;
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::JobSpec;
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::unit::{Bytes, Sms};
use evenkeel_gpu::GpuSpec;

use crate::fail::Failure;

/// Memory that a daemon keeps on each GPU for contexts and the system, by default.
const RESERVED: Bytes = Bytes::mib(512);
/// Memory of a GPU of no known kind, where none is given.
const MEMORY: Bytes = Bytes::gib(80);
/// More cores than any server has; as the daemon's limit for a what-if.
pub(crate) const CORES_MAX: i64 = 4_096;
/// More SMs than any GPU has; likewise.
pub(crate) const SMS_MAX: i64 = 1_024;
/// GPUs that a job can name; likewise.
pub(crate) const GPUS_MAX: i64 = 16;

/// How large the node is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sizes {
    /// Cores that can be leased.
    pub(crate) cores: u32,
    /// GPUs; none: as many as the job wants.
    pub(crate) gpus: Option<u16>,
    /// Their kind, if it is a known one.
    pub(crate) gpu: Option<GpuSpec>,
    /// SMs of each GPU; none: those of its kind.
    pub(crate) sms: Option<u32>,
    /// Memory of each GPU that can be leased; none: that of its kind, less what a daemon keeps.
    pub(crate) memory_bytes: Option<u64>,
}

impl Sizes {
    /// SMs of each GPU, if there is one.
    pub(crate) fn sms(&self) -> Option<u32> {
        self.sms.or_else(|| self.gpu.as_ref().map(|gpu| gpu.sms))
    }

    /// What the GPU is called.
    pub(super) fn model(&self) -> &str {
        self.gpu
            .as_ref()
            .map_or("a GPU of no known kind", |gpu| &gpu.name)
    }

    /// Whether a profile's GPU model is of this kind: `emulated-h100` and `NVIDIA-H100-80GB-HBM3` are both of `h100`.
    pub(super) fn is_of(&self, model: &str) -> bool {
        let family = |gpu: &GpuSpec| {
            let name = gpu.name.split('-').next().unwrap_or_default();
            name.to_ascii_lowercase()
        };
        self.gpu
            .as_ref()
            .is_some_and(|gpu| model.to_ascii_lowercase().contains(&family(gpu)))
    }

    /// The node in the core's words, and all of it as room.
    pub(crate) fn node(&self, job: &JobSpec) -> Result<(Node, Room), Failure> {
        let needed = job
            .stages
            .iter()
            .find(|s| s.sms.1 > Sms(0) || s.memory > Bytes(0));
        let kind = self.kind();
        if let (Some(stage), None) = (needed, &kind) {
            return Err(Failure::usage(format!(
                "stage {} needs a GPU, and the node to plan with has none",
                stage.name
            ))
            .hint(format!(
                "Say which: --gpu {}, or --sms and --gpu-memory; a stage without GPU work says `no_gpu = true`.",
                GpuSpec::PRESETS.join(", --gpu ")
            )));
        }
        let named = job.gpus.iter().map(|id| id.0.saturating_add(1)).max();
        let wanted = named.unwrap_or(0).max(job.gpu_count);
        let gpus: Vec<Gpu> = kind.map_or_else(Vec::new, |kind| {
            let gpu = |id| Gpu {
                id: GpuId(id),
                ..kind.clone()
            };
            (0..self.gpus.unwrap_or(wanted)).map(gpu).collect()
        });
        let cores = CpuSet::range(0, self.cores.saturating_sub(1));
        let room = Room {
            gpus: gpus
                .iter()
                .map(|gpu| (gpu.id, (gpu.sms, gpu.leasable_memory())))
                .collect(),
            cores,
        };
        let core = |id| Core {
            id,
            cpus: CpuSet::range(id, id),
            numa: 0,
            package: 0,
        };
        let node = Node {
            kind: PoolKind::Synthetic,
            cores: (0..self.cores).map(core).collect(),
            reserved_cores: CpuSet::new(),
            gpus,
        };
        Ok((node, room))
    }

    /// One of its GPUs, if it has any.
    fn kind(&self) -> Option<Gpu> {
        let spec = match (&self.gpu, self.sms) {
            (Some(gpu), Some(sms)) => Some(gpu.clone().with_sms(sms)),
            (gpu, _) => gpu.clone(),
        };
        let (memory, reserved) = match (&spec, self.memory_bytes) {
            (_, Some(bytes)) => (Bytes(bytes), Bytes(0)),
            (Some(spec), None) => (Bytes(spec.memory_bytes), RESERVED),
            (None, None) => (MEMORY, Bytes(0)),
        };
        let sms = self.sms()?;
        // Of an unknown GPU each SM can be given by itself.
        let mut enforceable = spec
            .as_ref()
            .map_or_else(|| (1..=sms).collect(), GpuSpec::enforceable_sms);
        enforceable.retain(|count| *count <= sms);
        let name = |text: &str| Name::new(text).unwrap_or_else(|_| Name::unknown());
        Some(Gpu {
            id: GpuId(0),
            uuid: name("imagined"),
            model: name(spec.as_ref().map_or("imagined", |spec| &spec.name)),
            sms: Sms(sms),
            memory,
            reserved_memory: reserved,
            enforceable: enforceable.into_iter().map(Sms).collect(),
            numa: 0,
            backend: GpuBackend::None,
            mode: GpuMode::Enforce,
        })
    }
}
