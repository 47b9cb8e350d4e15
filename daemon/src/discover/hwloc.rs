//! Packages, cores and hardware threads from hwloc. Nothing else is asked of it: hwloc2's lookup of NUMA nodes, PCI and
//! OS devices panics (their depths are negative), so those come from sysfs.

use evenkeel_core::cpuset::CpuSet;
use hwloc2::{ObjectType, Topology, TopologyObject};

use super::{Cpu, Draft, Scanner};

pub(super) struct Hwloc;

impl Scanner for Hwloc {
    fn scan(&self, draft: &mut Draft) -> Result<(), String> {
        let topology =
            Topology::new().ok_or("hwloc could not read this machine; sysfs answers for it")?;
        for thread in objects(&topology, &ObjectType::PU) {
            for cpu in cpus(thread).iter() {
                let siblings = CpuSet::range(cpu, cpu);
                draft.cpus.insert(
                    cpu,
                    Cpu {
                        siblings,
                        ..Cpu::default()
                    },
                );
            }
        }
        for core in objects(&topology, &ObjectType::Core) {
            let threads = cpus(core);
            for cpu in threads.iter() {
                if let Some(cpu) = draft.cpus.get_mut(&cpu) {
                    cpu.siblings = threads.clone();
                }
            }
        }
        for package in objects(&topology, &ObjectType::Package) {
            let number = u16::try_from(package.os_index()).unwrap_or(0);
            for cpu in cpus(package).iter() {
                if let Some(cpu) = draft.cpus.get_mut(&cpu) {
                    cpu.package = number;
                }
            }
        }
        Ok(())
    }
}

/// All objects of a kind that has an ordinary depth; none where hwloc knows no such level.
fn objects<'a>(topology: &'a Topology, kind: &ObjectType) -> Vec<&'a TopologyObject> {
    match topology.depth_for_type(kind) {
        Ok(depth) if depth < topology.depth() => topology.objects_at_depth(depth),
        _ => Vec::new(),
    }
}

fn cpus(object: &TopologyObject) -> CpuSet {
    match object.cpuset() {
        // A full bitmap has no end.
        Some(set) if !set.is_full() && set.last() >= 0 => set.into_iter().collect(),
        _ => CpuSet::new(),
    }
}
