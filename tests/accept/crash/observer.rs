//! The observer: believes nobody. Reads the devices' client lists and the kernel's affinities, and adds up.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_client::CpuList;
use evenkeel_gpu::Admin;

use super::workers::{Log, WORKER_LOGS};

type Cpus = BTreeSet<u32>;

/// Looks every few milliseconds until told to stop.
pub(super) fn observe(dir: &Path, log: &mut Log) -> anyhow::Result<()> {
    let gpus = dir.parent().unwrap_or(dir).join("gpu");
    let admins = [0, 1].map(|n| Admin::connect(&evenkeel_gpu::socket_path(&gpus, n)));
    let mut everywhere = Cpus::new();
    for cpus in threads(std::process::id()) {
        everywhere.extend(cpus);
    }
    let (mut looks, mut contexts, mut bound) = (0u64, 0u64, 0u64);
    while !log.stopped() {
        looks += 1;
        for admin in &admins {
            let admin = admin.as_ref().map_err(Clone::clone)?;
            let (several, wrong) = shares(admin)?;
            contexts += u64::from(several);
            wrong
                .iter()
                .for_each(|w| log.say(&format!("complaint over: {w}")));
        }
        let several = cores(dir, &everywhere, log)?;
        bound += u64::from(several);
        std::thread::sleep(Duration::from_millis(5));
    }
    log.say(&format!(
        "looks {looks}\ncontexts {contexts}\nbound {bound}"
    ));
    Ok(())
}

/// Whether several contexts are on a GPU, and what of it is promised twice.
fn shares(admin: &Admin) -> anyhow::Result<(bool, Option<String>)> {
    let spec = admin.gpu()?.spec;
    let clients = admin.list()?;
    let sms: u32 = clients.iter().map(|c| c.sms).sum();
    let bytes: u64 = clients.iter().map(|c| c.memory_limit).sum();
    let over = sms > spec.sms || bytes > spec.memory_bytes;
    let wrong = over.then(|| {
        format!(
            "{sms} of {} SMs, {bytes} of {} bytes on a device",
            spec.sms, spec.memory_bytes
        )
    });
    Ok((clients.len() > 1, wrong))
}

/// Whether several workers are bound to cores; and complaints about those that are not where they should be.
fn cores(dir: &Path, everywhere: &Cpus, log: &mut Log) -> anyhow::Result<bool> {
    let (workers, marks) = files(dir)?;
    let bound: BTreeMap<u32, Cpus> = workers
        .iter()
        .map(|pid| (*pid, bound_to(*pid, everywhere)))
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect();
    for (a, b, cpus) in overlaps(&bound) {
        // Two looks at each, crosswise: a core that changes hands between them is in both only if both have it at once.
        let still = |pid: u32| bound_to(pid, everywhere).is_superset(&cpus);
        if still(a) && still(b) && still(a) && still(b) {
            log.say(&format!(
                "complaint over: processes {a} and {b} are both bound to CPUs {cpus:?}"
            ));
        }
    }
    let mut owners: BTreeMap<u32, (&str, &str)> = BTreeMap::new();
    for (name, pid, cpus) in &marks {
        let wanted: Cpus = cpus.parse::<CpuList>()?.iter().collect();
        let strays: Vec<Cpus> = threads(*pid).into_iter().filter(|t| *t != wanted).collect();
        // The mark goes before the release: a mark that is still there was true during the look.
        if wanted.is_empty() || !dir.join(name).exists() {
            continue;
        }
        if let Some(stray) = strays.first() {
            log.say(&format!(
                "complaint over: {name} holds CPUs {cpus}, and a thread of it may run on {stray:?}"
            ));
        }
        for cpu in wanted {
            if let Some((other, _)) = owners.insert(cpu, (name, cpus)) {
                // The other one's mark may have been removed since it was read.
                if dir.join(other).exists() && dir.join(name).exists() {
                    log.say(&format!(
                        "complaint over: {other} and {name} both hold CPU {cpu}"
                    ));
                }
            }
        }
    }
    Ok(bound.len() > 1)
}

/// What a worker says it holds: the file, its process, the CPUs.
type Mark = (String, u32, String);

/// The workers' processes, and their marks.
fn files(dir: &Path) -> anyhow::Result<(Vec<u32>, Vec<Mark>)> {
    let (mut workers, mut marks) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir)
        .context("cannot look at the marks")?
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(rest) = name.strip_prefix("core-") {
            let pid = rest.split('-').next().and_then(|pid| pid.parse().ok());
            if let (Some(pid), Ok(cpus)) = (pid, fs::read_to_string(entry.path())) {
                marks.push((name, pid, cpus));
            }
        } else if let Some(rest) = WORKER_LOGS.iter().find_map(|p| name.strip_prefix(p))
            && let Some(Ok(pid)) = rest.strip_suffix(".log").map(str::parse)
        {
            workers.push(pid);
        }
    }
    Ok((workers, marks))
}

/// Pairs of processes that are bound to a CPU in common.
fn overlaps(bound: &BTreeMap<u32, Cpus>) -> Vec<(u32, u32, Cpus)> {
    let mut found = Vec::new();
    for (a, of_a) in bound {
        for (b, of_b) in bound.range(a + 1..) {
            let both: Cpus = of_a.intersection(of_b).copied().collect();
            if !both.is_empty() {
                found.push((*a, *b, both));
            }
        }
    }
    found
}

/// The CPUs that a process's threads are bound to, where they may not run everywhere.
fn bound_to(pid: u32, everywhere: &Cpus) -> Cpus {
    threads(pid)
        .into_iter()
        .filter(|cpus| cpus != everywhere)
        .flatten()
        .collect()
}

/// Where each thread of a process may run; none for those that have ended meanwhile.
fn threads(pid: u32) -> Vec<Cpus> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let allowed = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let list = status
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
        let list: CpuList = list.trim().parse().ok()?;
        Some(list.iter().collect())
    };
    tasks.flatten().filter_map(allowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_two_processes_are_bound_to_are_found() {
        let bound = |all: &[(u32, &[u32])]| {
            let sets = all
                .iter()
                .map(|(pid, cpus)| (*pid, cpus.iter().copied().collect()));
            overlaps(&sets.collect()).len()
        };
        assert_eq!(bound(&[(7, &[0]), (8, &[1])]), 0);
        assert_eq!(bound(&[(7, &[0, 1]), (8, &[1]), (9, &[2])]), 1);
    }

    #[test]
    fn every_thread_of_a_process_is_looked_at() {
        let (say, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv().is_err());
        let all = threads(std::process::id());
        assert!(
            all.len() >= 2 && all.iter().all(|t| !t.is_empty()),
            "{all:?}"
        );
        drop(say);
        thread.join().unwrap();
        assert!(threads(u32::MAX).is_empty(), "no such process");
    }
}
