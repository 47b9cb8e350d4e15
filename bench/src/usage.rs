//! What a server takes of the machine: memory and CPU time, over all its processes.
use std::collections::BTreeMap;
use std::fs;
use std::ops::Sub;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// At one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Resident memory in KiB, summed: pages that processes share count once for each of them.
    pub rss_kib: u64,
    /// The same with shared pages counted once (proportional set size); 0 where the kernel does not tell.
    pub pss_kib: u64,
    /// User and system time since the start, with that of processes that have ended.
    pub cpu: Duration,
}

/// Memory in MiB, as tables show it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Summed over the processes.
    pub rss_mib: f64,
    /// With shared pages counted once.
    pub pss_mib: f64,
}

impl Memory {
    /// The larger of both, each by itself.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            rss_mib: self.rss_mib.max(other.rss_mib),
            pss_mib: self.pss_mib.max(other.pss_mib),
        }
    }
}

impl Usage {
    /// Of a process and all its descendants. What cannot be read counts as nothing: processes come and go.
    pub fn of(root: u32) -> Self {
        tree(root).into_iter().map(Self::of_one).sum()
    }

    fn of_one(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        Self {
            rss_kib: kib(&status, "VmRSS:"),
            pss_kib: kib(&rollup, "Pss:"),
            cpu: cpu(pid).unwrap_or_default(),
        }
    }

    /// In MiB.
    pub fn memory(&self) -> Memory {
        Memory {
            rss_mib: self.rss_kib as f64 / 1024.0,
            pss_mib: self.pss_kib as f64 / 1024.0,
        }
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            rss_kib: a.rss_kib + b.rss_kib,
            pss_kib: a.pss_kib + b.pss_kib,
            cpu: a.cpu + b.cpu,
        })
    }
}

/// CPU time between two looks.
impl Sub for Usage {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.cpu.saturating_sub(earlier.cpu)
    }
}

/// A field of a file of `/proc` that is given in kB.
fn kib(text: &str, field: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// The fields of `/proc/PID/stat` after the name, which may hold blanks and brackets itself.
fn stat(pid: u32) -> Option<Vec<u64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    // The state is a letter; the others are numbers, of which some may be negative.
    let numbers = rest.split_whitespace().skip(1);
    Some(numbers.map(|n| n.parse().unwrap_or(0)).collect())
}

/// utime, stime, cutime and cstime are the fields 14 to 17 of proc(5).
fn cpu(pid: u32) -> Option<Duration> {
    let fields = stat(pid)?;
    let ticks: u64 = fields.get(10..14)?.iter().sum();
    // USER_HZ is 100 on every Linux that we build for.
    Some(Duration::from_millis(ticks * 10))
}

/// A process and all its descendants, parents first.
pub fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()) {
        let parent = stat(pid).and_then(|f| f.first().copied());
        if let Some(parent) = parent.and_then(|p| u32::try_from(p).ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        found.extend(children.get(pid).cloned().unwrap_or_default());
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_and_its_child_are_counted() {
        let me = std::process::id();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pids = tree(me);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(pids.first(), Some(&me));
        assert!(pids.contains(&child.id()), "{pids:?}");
        assert!(Usage::of(me).rss_kib > 100);
    }

    #[test]
    fn fields_in_kb_are_read() {
        assert_eq!(kib("VmPeak:\t 9 kB\nVmRSS:\t  123 kB\n", "VmRSS:"), 123);
        assert_eq!(kib("", "VmRSS:"), 0);
    }
}
