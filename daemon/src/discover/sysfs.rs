//! NUMA nodes and what is online, from sysfs; and packages and cores where hwloc did not say.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_core::cpuset::CpuSet;

use super::{Cpu, Draft, Scanner};

/// With the root of sysfs.
pub(super) struct Sysfs(pub(super) PathBuf);

impl Scanner for Sysfs {
    fn scan(&self, draft: &mut Draft) -> Result<(), String> {
        let cpu = self.0.join("devices/system/cpu");
        let online = list(&cpu.join("online"));
        if draft.cpus.is_empty() {
            for number in online.iter().flat_map(CpuSet::iter) {
                draft.cpus.insert(number, read(&cpu, number));
            }
        }
        if let Some(online) = &online {
            draft.cpus.retain(|number, _| online.contains(*number));
        }
        if let Some(isolated) = list(&cpu.join("isolated")).filter(|set| !set.is_empty()) {
            draft.notes.push(format!(
                "CPUs {isolated} are isolated (isolcpus): they are leased only if the daemon's own affinity has them"
            ));
        }
        self.numa(draft);
        match online {
            Some(_) => Ok(()),
            None => Err(format!(
                "cannot read which CPUs are online in {}; all that are known count as online",
                cpu.display()
            )),
        }
    }
}

impl Sysfs {
    fn numa(&self, draft: &mut Draft) {
        let Ok(entries) = fs::read_dir(self.0.join("devices/system/node")) else {
            return; // a kernel without NUMA: one node
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix("node"))
                .and_then(|number| number.parse::<u16>().ok());
            let (Some(number), Some(cpus)) = (number, list(&entry.path().join("cpulist"))) else {
                continue;
            };
            for cpu in cpus.iter() {
                if let Some(cpu) = draft.cpus.get_mut(&cpu) {
                    cpu.numa = number;
                }
            }
        }
    }
}

fn read(root: &Path, number: u32) -> Cpu {
    let topology = root.join(format!("cpu{number}/topology"));
    // The newer name first; a CPU alone where neither is there.
    let siblings = list(&topology.join("core_cpus_list"))
        .or_else(|| list(&topology.join("thread_siblings_list")))
        .filter(|set| set.contains(number))
        .unwrap_or_else(|| CpuSet::range(number, number));
    let package = fs::read_to_string(topology.join("physical_package_id")).unwrap_or_default();
    Cpu {
        siblings,
        // -1 where the firmware does not say.
        package: package.trim().parse().unwrap_or(0),
        numa: 0,
    }
}

fn list(path: &Path) -> Option<CpuSet> {
    fs::read_to_string(path).ok()?.parse().ok()
}
