//! Line 2: ten minutes with 10,000 live leases on 1,000 streams, while 64 clients acquire and release.
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::Run;
use crate::crowd::{Crowd, Shape, live};
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::{Figures, Load};
use crate::row::Row;

const CLIENTS: usize = 64;
/// The clients share some: with a thousand streams on a thousand connections, one user has no more to open.
const CONNECTIONS: usize = 8;
const TTL: Duration = Duration::from_secs(10);
/// What clients of ours do: three heartbeats to a life.
const GAP: Duration = Duration::from_millis(3_333);
/// Of the daemon, in MB.
const MEMORY_MOST: f64 = 150.0;

/// The most resident memory that a process has had, in MB.
fn peak_mb(pid: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.context("the kernel does not tell the daemon's memory")? * 1024.0 / 1e6)
}

async fn clients(socket: &Path, clients: usize, span: Duration) -> anyhow::Result<Figures> {
    let load = Load {
        socket: socket.to_owned(),
        clients,
        connections: clients.min(CONNECTIONS),
        span,
    };
    load.run().await
}

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let (streams, span) = if run.short {
        (100, Duration::from_secs(12))
    } else {
        (1_000, Duration::from_secs(600))
    };
    let shape = Shape {
        streams,
        leases: 10,
        ttl: TTL,
        gap: GAP,
    };
    let daemon = Daemon::start(SYNTHETIC).await?;
    let socket = daemon.socket();
    let one = clients(
        &socket,
        1,
        Duration::from_secs(if run.short { 1 } else { 10 }),
    )
    .await?;

    let crowd = Crowd::gather(&socket, shape).await?;
    let held = crowd.held.clone();
    crowd.count();
    let loaded = clients(&socket, CLIENTS, span).await?;
    let renewed = crowd.end(span).await?;
    let live = live(&socket).await?;
    let kept = held.intersection(&live).count();
    let memory = peak_mb(daemon.pid()?)?;

    Ok(vec![
        Row::new(
            "one client's grant",
            "p50 under 1 ms",
            format!(
                "p50 {:.2} ms (grants and releases: {one})",
                one.grant_p50_ms()
            ),
            one.done() > 0 && one.grant_p50_ms() < 1.0,
        ),
        Row::new(
            &format!(
                "{} live leases on {streams} streams (TTL {} s, each stream on a connection of its own) while {CLIENTS} \
                 clients acquire and release, {} s: false expiries",
                held.len(),
                TTL.as_secs(),
                span.as_secs()
            ),
            "none",
            format!(
                "{} renewals, {} that did not count; {kept} of {} leases live at the end; meanwhile {loaded}",
                renewed.done(),
                renewed.lost,
                held.len()
            ),
            renewed.done() > 0 && renewed.lost == 0 && kept == held.len() && loaded.done() > 0,
        ),
        Row::new(
            "renewal latency meanwhile (from when each frame was due)",
            "p99 under 10 ms",
            renewed.to_string(),
            renewed.p99_ms() < 10.0,
        ),
        Row::new(
            "the daemon's resident memory, its most",
            "under 150 MB",
            format!("{memory:.0} MB"),
            memory < MEMORY_MOST,
        ),
    ])
}
