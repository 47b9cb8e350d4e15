//! What this machine has, when the daemon starts: a fold of scanners, each adding what it knows to one draft.
//!
//! hwloc knows packages, cores and threads; sysfs knows NUMA nodes and what is online (and stands in for hwloc where
//! that fails); the kernel knows what this process may use; a device knows its GPUs. A scanner that fails leaves a
//! note, and the rest is served. Called by `main` before anything is bound.

mod affinity;
mod emulated;
mod hwloc;
mod synthetic;
mod sysfs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::node::{Core, Gpu, Node, PoolKind, Unavailable};
use evenkeel_core::unit::{Bytes, Sms};
use serde::Serialize;

use crate::backend::emulated::{Emulated, Started};
use crate::config::{Config, GpuSource, Reserve, Smt};

/// With fewer cores than this none is reserved: one of two would be half of the machine.
const RESERVE_FROM: usize = 4;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Installed.
    pub node: Node,
    /// Not available now.
    pub unavailable: Unavailable,
    /// What is odd about it, for a person.
    pub notes: Vec<String>,
    /// The emulated GPUs among them, for their backend.
    #[serde(skip)]
    pub emulated: Vec<Emulated>,
    /// Their device, where it was started for this.
    #[serde(skip)]
    pub started: Option<Started>,
}

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// Nobody knows a CPU.
    #[error("found no CPU that this process may use ({}); is /sys mounted?", .0.join("; "))]
    NoCpu(Vec<String>),
}

/// Where to look. Tests look elsewhere.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The root of sysfs.
    pub sysfs: PathBuf,
    /// CPUs that this process may use; none: ask the kernel.
    pub allowed: Option<CpuSet>,
    /// Whether to ask hwloc.
    pub hwloc: bool,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            sysfs: "/sys".into(),
            allowed: None,
            hwloc: true,
        }
    }
}

/// One hardware thread, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cpu {
    /// It and its siblings on the same physical core.
    siblings: CpuSet,
    package: u16,
    numa: u16,
}

/// What is known so far.
#[derive(Clone, Debug, Default)]
struct Draft {
    cpus: BTreeMap<u32, Cpu>,
    gpus: Vec<Gpu>,
    unavailable: Unavailable,
    emulated: Vec<Emulated>,
    started: Option<Started>,
    notes: Vec<String>,
}

/// Adds what it knows. What it cannot say is a note, not an end.
trait Scanner {
    fn scan(&self, draft: &mut Draft) -> Result<(), String>;
}

/// Looks at the machine.
///
/// # Errors
/// When not one CPU was found.
pub fn discover(config: &Config, sources: &Sources) -> Result<Found, DiscoverError> {
    let mut scanners: Vec<Box<dyn Scanner>> = Vec::new();
    if config.node.pool == PoolKind::Synthetic {
        scanners.push(Box::new(synthetic::Synthetic(config.synthetic.clone())));
    } else {
        if sources.hwloc {
            scanners.push(Box::new(hwloc::Hwloc));
        }
        scanners.push(Box::new(sysfs::Sysfs(sources.sysfs.clone())));
        scanners.push(Box::new(affinity::Allowed(sources.allowed.clone())));
        if config.gpu.backend == GpuSource::Emulated {
            scanners.push(Box::new(emulated::Device(config.clone())));
        }
    }
    let mut draft = Draft::default();
    for scanner in scanners {
        if let Err(note) = scanner.scan(&mut draft) {
            draft.notes.push(note);
        }
    }
    if draft.cpus.is_empty() {
        return Err(DiscoverError::NoCpu(draft.notes));
    }
    Ok(finish(config, draft))
}

fn finish(config: &Config, draft: Draft) -> Found {
    let cores = cores(&draft.cpus, config.node.smt);
    let mut notes = draft.notes;
    let wanted = match config.node.reserve_cores {
        Reserve::Auto if cores.len() < RESERVE_FROM => 0,
        Reserve::Auto => 1,
        Reserve::Cores(n) => n as usize,
    };
    if config.node.pool == PoolKind::Local && wanted >= cores.len() && wanted > 0 {
        notes.push(format!(
            "node.reserve_cores = {wanted} leaves none of the {} cores to lease",
            cores.len()
        ));
    }
    // Nothing runs on a synthetic pool, so nothing is kept of it.
    let reserved_cores = if config.node.pool == PoolKind::Synthetic {
        CpuSet::new()
    } else {
        cores.iter().take(wanted).map(|core| core.id).collect()
    };
    Found {
        node: Node {
            kind: config.node.pool,
            cores: cores.into(),
            reserved_cores,
            gpus: draft.gpus,
        },
        unavailable: draft.unavailable,
        notes,
        emulated: draft.emulated,
        started: draft.started,
    }
}

/// Cores from threads, ascending by id. A core of which only some threads may be used has those.
fn cores(cpus: &BTreeMap<u32, Cpu>, smt: Smt) -> Vec<Core> {
    let usable: CpuSet = cpus.keys().copied().collect();
    let mut cores: BTreeMap<u32, Core> = BTreeMap::new();
    for (number, cpu) in cpus {
        let threads = match smt {
            Smt::Cores => cpu.siblings.intersection(&usable),
            Smt::Threads => CpuSet::range(*number, *number),
        };
        let id = threads.first().unwrap_or(*number);
        cores.entry(id).or_insert_with(|| Core {
            id,
            cpus: threads,
            numa: cpu.numa,
            package: cpu.package,
        });
    }
    cores.into_values().collect()
}

/// The whole of a GPU: what is unavailable of a lost one.
fn whole(gpu: &Gpu) -> (Sms, Bytes) {
    (gpu.sms, gpu.memory)
}
