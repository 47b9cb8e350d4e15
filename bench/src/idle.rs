//! The idle check before each run: what others do on the machine is measured, too, so the run waits for them to end,
//! or says that they did not.
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Others' share of the machine up to which it counts as idle, in percent. A desktop's own noise is below it.
const IDLE_PERCENT: f64 = 10.0;
/// Over so long the share is taken.
const LOOK: Duration = Duration::from_millis(500);

/// Busy and all ticks of all cores since the start of the machine.
fn ticks() -> anyhow::Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").context("cannot tell how busy the machine is")?;
    let line = text.lines().next().unwrap_or_default();
    let all: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|n| n.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal: what a neighbour steals is not ours to use.
    let idle: u64 = all.iter().skip(3).take(2).sum();
    let sum: u64 = all.iter().sum();
    Ok((sum - idle, sum))
}

/// How busy the machine is, in percent of all its cores, while this program waits.
async fn busy_percent() -> anyhow::Result<f64> {
    let (busy, all) = ticks()?;
    tokio::time::sleep(LOOK).await;
    let (busy_now, all_now) = ticks()?;
    let all = all_now.saturating_sub(all).max(1);
    Ok(100.0 * busy_now.saturating_sub(busy) as f64 / all as f64)
}

/// Waits until the machine is idle, for so long at most; how busy it was at the end.
///
/// # Errors
/// Where the kernel does not tell.
pub async fn wait(most: Duration) -> anyhow::Result<f64> {
    let start = Instant::now();
    loop {
        let busy = busy_percent().await?;
        if busy <= IDLE_PERCENT || start.elapsed() >= most {
            return Ok(busy);
        }
    }
}

/// Whether so busy a machine still counts as idle.
pub fn is_idle(busy_percent: f64) -> bool {
    busy_percent <= IDLE_PERCENT
}
