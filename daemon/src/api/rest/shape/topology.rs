//! What the node is made of, and what is near what.
use std::collections::BTreeMap;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::node::{Core, Gpu, Node};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::convert::{backend_word, kind_word};

/// Packages, NUMA nodes, cores and GPUs as installed. Nothing in it depends on who has what.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Topology {
    /// `local` (hardware, or an emulated GPU beside real cores) or `synthetic` (amounts in the ledger only).
    kind: &'static str,
    /// Packages (sockets), ascending.
    packages: Vec<Package>,
    /// NUMA nodes that have cores or GPUs, ascending.
    numa_nodes: Vec<NumaNode>,
    /// Cores, ascending.
    cores: Vec<TopologyCore>,
    /// GPUs, ascending.
    gpus: Vec<TopologyGpu>,
}

/// A package (socket).
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Package {
    /// Its number.
    id: u16,
    /// Its core ids, in the kernel's list format.
    cores: String,
    /// The NUMA nodes of its cores.
    numa_nodes: Vec<u16>,
}

/// A NUMA node.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct NumaNode {
    /// Its number.
    id: u16,
    /// Its core ids, in the kernel's list format.
    cores: String,
    /// CPUs (hardware threads) of those cores, likewise.
    cpus: String,
    /// The GPUs next to it.
    gpus: Vec<u16>,
}

/// A core.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct TopologyCore {
    /// Its lowest CPU number.
    id: u32,
    /// Its CPUs (hardware threads), in the kernel's list format.
    cpus: String,
    /// NUMA node.
    numa: u16,
    /// Package.
    package: u16,
    /// Whether it is kept for the system.
    reserved: bool,
}

/// A GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct TopologyGpu {
    /// Its place on the node.
    id: u16,
    /// The device's own id.
    uuid: String,
    /// Its model; that it is emulated is said in `backend`.
    model: String,
    /// NUMA node.
    numa: u16,
    /// All its SMs.
    sms: u32,
    /// All its memory in bytes.
    memory_bytes: u64,
    /// Who enforces its shares: `emulated`, `mps`, `mig` or `none`.
    backend: &'static str,
}

impl Topology {
    pub(in crate::api::rest) fn of(node: &Node) -> Self {
        Self {
            kind: kind_word(node.kind),
            packages: packages(node),
            numa_nodes: numa_nodes(node),
            cores: node.cores.iter().map(|c| core(node, c)).collect(),
            gpus: node.gpus.iter().map(gpu).collect(),
        }
    }
}

fn packages(node: &Node) -> Vec<Package> {
    let mut by: BTreeMap<u16, (CpuSet, Vec<u16>)> = BTreeMap::new();
    for core in node.cores.iter() {
        let (cores, numa) = by.entry(core.package).or_default();
        cores.insert(core.id);
        if let Err(at) = numa.binary_search(&core.numa) {
            numa.insert(at, core.numa);
        }
    }
    let package = |(id, (cores, numa_nodes)): (u16, (CpuSet, Vec<u16>))| Package {
        id,
        cores: cores.to_string(),
        numa_nodes,
    };
    by.into_iter().map(package).collect()
}

fn numa_nodes(node: &Node) -> Vec<NumaNode> {
    let mut by = node.numa_nodes();
    for gpu in &node.gpus {
        by.entry(gpu.numa).or_default();
    }
    let near = |id| {
        let gpus = node.gpus.iter().filter(move |g| g.numa == id);
        gpus.map(|g| g.id.0).collect()
    };
    let numa = |(id, cores): (u16, CpuSet)| NumaNode {
        id,
        cpus: node.cpus_of(&cores).to_string(),
        cores: cores.to_string(),
        gpus: near(id),
    };
    by.into_iter().map(numa).collect()
}

fn core(node: &Node, core: &Core) -> TopologyCore {
    TopologyCore {
        id: core.id,
        cpus: core.cpus.to_string(),
        numa: core.numa,
        package: core.package,
        reserved: node.reserved_cores.contains(core.id),
    }
}

fn gpu(gpu: &Gpu) -> TopologyGpu {
    TopologyGpu {
        id: gpu.id.0,
        uuid: gpu.uuid.to_string(),
        model: gpu.model.to_string(),
        numa: gpu.numa,
        sms: gpu.sms.0,
        memory_bytes: gpu.memory.0,
        backend: backend_word(gpu.backend),
    }
}
