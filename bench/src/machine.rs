//! The machine that a table was measured on: a figure without it says nothing.
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// One paragraph: processor, cores, memory, kernel, disk.
///
/// # Errors
/// When the disk cannot be timed.
pub fn describe() -> anyhow::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("?", |l| l.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = memory
        .lines()
        .next()
        .and_then(|l| l.split_whitespace().nth(1))
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    let (p50, p99) = fdatasync_ms()?;
    let disk = filesystem(&std::env::temp_dir())?;
    Ok(format!(
        "Measured on {cores} shared virtual cores ({model}), {} GiB of memory, Linux {}, without a GPU (every GPU here is \
         the emulated one); fdatasync of 4 KiB on {disk}: p50 {p50:.2} ms, p99 {p99:.2} ms; load average at the start {load}.",
        kib >> 20,
        kernel.trim(),
    ))
}

/// The kind of file system that a folder is on.
///
/// # Errors
/// When there is no such folder.
pub fn filesystem(dir: &Path) -> anyhow::Result<String> {
    let dir = dir.canonicalize()?;
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot tell what is mounted")?;
    // Device, place, kind, …; the longest place that is above the folder, and of those the one mounted last.
    let above = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        dir.starts_with(place).then_some((place.len(), kind))
    });
    let (_, kind) = above
        .max_by_key(|(len, _)| *len)
        .context("the folder is on no file system")?;
    Ok(kind.to_owned())
}

/// Median and 99th percentile of 200 small durable writes, in milliseconds: what a commit cannot beat.
fn fdatasync_ms() -> anyhow::Result<(f64, f64)> {
    let mut file = tempfile::tempfile().context("cannot make a file to time the disk with")?;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        file.write_all(&[7; 4096])?;
        let start = Instant::now();
        file.sync_data().context("fdatasync")?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let ms = |i: usize| times.get(i).map_or(0.0, |t| t.as_secs_f64() * 1e3);
    Ok((ms(100), ms(198)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_apart() {
        assert_eq!(filesystem(Path::new("/proc/self")).unwrap(), "proc");
        assert!(filesystem(Path::new("/no/such/folder")).is_err());
    }
}
