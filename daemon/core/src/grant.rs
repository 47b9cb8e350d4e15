//! What is asked for and what is given: asks, vectors of resources, and how a share can change.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::id::{GpuId, JobId, StageId, WorkerId};
use crate::unit::{Bytes, Sms};

/// The smallest percentage of a GPU's SMs that gives `cap`: MPS rounds a percentage's SMs down.
pub fn percent(cap: Sms, total: Sms) -> u32 {
    if cap == Sms(0) || total == Sms(0) {
        return 0;
    }
    let percent = (u64::from(cap.0) * 100).div_ceil(total.0.into());
    u32::try_from(percent.clamp(1, 100)).unwrap_or(100)
}

/// A share of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuShare {
    /// SMs that nobody else is promised. The guarantees on a GPU never exceed its SMs.
    pub guarantee: Sms,
    /// The most SMs it may use; at least the guarantee, at most the GPU's. Caps may overlap inside a job.
    pub cap: Sms,
    /// GPU memory, in bytes, over all processes of the worker.
    pub memory: Bytes,
}

/// A whole vector of resources: cores by id, and a share of each GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// Core ids.
    pub cores: CpuSet,
    /// Shares by GPU; a GPU without a share is absent.
    pub gpus: BTreeMap<GpuId, GpuShare>,
}

impl Vector {
    /// Nothing at all.
    pub const fn empty() -> Self {
        Self {
            cores: CpuSet::new(),
            gpus: BTreeMap::new(),
        }
    }
    /// Whether it is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
            && self
                .gpus
                .values()
                .all(|s| s.guarantee == Sms(0) && s.memory == Bytes(0))
    }
    /// The larger of two, resource by resource: what the pool counts for a lease that is moving.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        let mut gpus = self.gpus.clone();
        for (id, o) in &other.gpus {
            let mine = gpus.entry(*id).or_default();
            *mine = GpuShare {
                guarantee: mine.guarantee.max(o.guarantee),
                cap: mine.cap.max(o.cap),
                memory: mine.memory.max(o.memory),
            };
        }
        Self {
            cores: self.cores.union(&other.cores),
            gpus,
        }
    }
    /// Whether this one uses no more of any counted resource than the other.
    pub fn fits_in(&self, other: &Self) -> bool {
        self.cores.is_subset(&other.cores)
            && self.gpus.iter().all(|(id, s)| {
                let o = other.gpus.get(id).copied().unwrap_or_default();
                s.guarantee <= o.guarantee && s.cap <= o.cap && s.memory <= o.memory
            })
    }
}

/// SMs as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SmAsk {
    /// So many SMs, rounded up to the next enforceable count.
    Count(Sms),
    /// A percentage of the GPU's SMs, 1 to 100, rounded up likewise.
    Percent(u8),
}

/// A share of one GPU as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAsk {
    /// This GPU, or any.
    pub gpu: Option<GpuId>,
    /// SMs.
    pub sms: SmAsk,
    /// GPU memory in bytes.
    pub memory: Bytes,
}

/// Whose worker a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The job.
    pub job: JobId,
    /// Its stage.
    pub stage: StageId,
    /// The worker's index in the stage.
    pub worker: WorkerId,
}

/// What a lease is asked to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Amounts of its own, outside any job.
    Alone {
        /// How many cores.
        cores: u32,
        /// One entry per GPU.
        gpus: Vec<GpuAsk>,
    },
    /// The share that the job's plan has for this worker.
    Stage(Member),
}

/// How a lease's GPU share can change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resize {
    /// While the worker runs: it applies the new share and acknowledges.
    Live,
    /// By a restart of the worker's process at a step boundary, under the same lease.
    #[default]
    Restart,
    /// Never.
    Fixed,
}
