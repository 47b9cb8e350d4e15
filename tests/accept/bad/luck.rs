//! Bad luck: a clock set back, a daemon that is down for long, once or again and again.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;

use super::calls::{Calls, right};
use super::case;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::request;
use crate::row::Row;

/// The life of a brief lease, and the daemon's grace after it: by default, and where a daemon is down for long.
const BRIEF: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(10);
const SHORT_GRACE_MS: u64 = 1_000;
/// How much later than it has to a lease may end, on the slowest machine.
const LATE: Duration = Duration::from_secs(10);
/// TTLs after which a lease that nobody renews over several starts may end.
const UNRENEWED_TTLS: u32 = 3;

pub(super) async fn measure() -> Vec<Row> {
    vec![
        case(
            "the wall clock set back a year",
            "no lease ends before its TTL and grace, none lives on",
            clock_back(),
        )
        .await,
        case(
            "a daemon that is down for longer than the TTL",
            "leases live on with one full TTL",
            down(),
        )
        .await,
        case(
            "the same again and again, each time right after the first renewal",
            "a lease that was renewed whenever it could be lives on",
            down_again(),
        )
        .await,
    ]
}

/// Shifts CLOCK_REALTIME back by a year for whoever loads it, once the file that EVENKEEL_YEAR_BACK names exists.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, t);
    const char *flag = getenv("EVENKEEL_YEAR_BACK");
    if (!r && id == CLOCK_REALTIME && flag && !access(flag, F_OK)) t->tv_sec -= 365 * 86400;
    return r;
}
"#;

/// Builds the shim in a folder.
fn shim(dir: &Path) -> anyhow::Result<PathBuf> {
    let (source, shim) = (dir.join("shim.c"), dir.join("shim.so"));
    std::fs::write(&source, SHIM)?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&shim)
        .arg(&source)
        .arg("-ldl")
        .status()?;
    ensure!(built.success(), "cc did not build the shim");
    Ok(shim)
}

async fn clock_back() -> anyhow::Result<String> {
    let dir = tempfile::tempdir()?;
    let (shim, flag) = (shim(dir.path())?, dir.path().join("back"));
    let env: [(&str, &Path); 2] = [("LD_PRELOAD", &shim), ("EVENKEEL_YEAR_BACK", &flag)];
    let mut daemon = Daemon::in_folder_with(&dir.path().join("d"), SYNTHETIC, &env).await?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let brief = || pb::AcquireLeaseRequest {
        ttl_ms: BRIEF.as_millis() as u64,
        ..request()
    };
    // Its deadline counts from some moment after this one.
    let start = Instant::now();
    let left = calls.grant(brief()).await?;
    let kept = calls.grant(brief()).await?;
    std::fs::write(&flag, "")?;
    let took = loop {
        let renewed = calls.renew(right(&kept)).await?;
        ensure!(
            renewed.status() == pb::RenewStatus::Renewed
                && renewed.remaining_ms <= BRIEF.as_millis() as u64,
            "a lease that is renewed: {renewed:?}"
        );
        let all = calls.leases.list_leases(pb::ListLeasesRequest::default());
        let all = all.await?.into_inner().leases;
        let took = start.elapsed();
        if !all.iter().any(|l| l.id == left.id) {
            break took;
        }
        ensure!(
            took < BRIEF + GRACE + LATE,
            "a lease lives on because the wall clock went back"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    ensure!(
        took >= BRIEF + GRACE,
        "it ended early, after {:.2} s",
        took.as_secs_f64()
    );
    // The clock really was another one for the daemon: its records are a year old.
    let last = pb::ListEventsRequest {
        newest: true,
        page_size: 1,
        ..Default::default()
    };
    let last = calls.nodes.list_events(last).await?.into_inner().events;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_millis() as u64;
    let days = now_ms.saturating_sub(last.last().context("no event")?.unix_ms) / 86_400_000;
    ensure!(
        (364..=366).contains(&days),
        "the daemon's clock is {days} days behind"
    );
    calls
        .grant(request())
        .await
        .context("a grant after the change")?;
    daemon.stop().await?;
    Ok(format!(
        "a TTL of {} s (and {} s of grace) ended after {:.1} s by a clock {days} days behind; a renewed lease and new \
         grants go on",
        BRIEF.as_secs(),
        GRACE.as_secs(),
        took.as_secs_f64()
    ))
}

/// A daemon that is quick to give up a lease, and one of its leases.
async fn brief(ttl: Duration) -> anyhow::Result<(Daemon, pb::Lease)> {
    let tables = format!("{SYNTHETIC}\n[leases]\ngrace_ms = {SHORT_GRACE_MS}\n");
    let daemon = Daemon::start(&tables).await?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let lease = calls
        .grant(pb::AcquireLeaseRequest {
            ttl_ms: ttl.as_millis() as u64,
            ..request()
        })
        .await?;
    Ok((daemon, lease))
}

/// Starts the daemon again and says how much time the lease has left then, and what a renewal says.
async fn back(daemon: &mut Daemon, lease: &pb::Lease, ttl: Duration) -> anyhow::Result<u64> {
    let start = Instant::now();
    daemon.spawn().await?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let found = calls.lease(lease.id).await?;
    // A full TTL, less what has passed since the start.
    let least = ttl.saturating_sub(start.elapsed() + Duration::from_millis(50));
    ensure!(
        found.fence == lease.fence && u128::from(found.remaining_ms) >= least.as_millis(),
        "{:?} after the start it is {:?} (it ended as {:?}) with fence {} of {} and {} ms left",
        start.elapsed(),
        found.phase(),
        found.end(),
        found.fence,
        lease.fence,
        found.remaining_ms
    );
    let renewed = calls.renew(right(lease)).await?;
    ensure!(renewed.status() == pb::RenewStatus::Renewed, "{renewed:?}");
    Ok(found.remaining_ms)
}

async fn down() -> anyhow::Result<String> {
    let ttl = Duration::from_millis(1_500);
    let (mut daemon, lease) = brief(ttl).await?;
    daemon.kill();
    // Longer than anything that could count: TTL, grace, and the most that an unrenewed lease lives.
    let away = ttl * (UNRENEWED_TTLS + 1) + Duration::from_millis(SHORT_GRACE_MS);
    tokio::time::sleep(away).await;
    let left = back(&mut daemon, &lease, ttl).await?;
    Ok(format!(
        "down for {:.1} s with a TTL of {:.1} s; {left} ms left at the start, and renewed",
        away.as_secs_f64(),
        ttl.as_secs_f64()
    ))
}

async fn down_again() -> anyhow::Result<String> {
    let ttl = Duration::from_millis(1_500);
    let (mut daemon, lease) = brief(ttl).await?;
    let away = ttl * (UNRENEWED_TTLS + 1) + Duration::from_millis(SHORT_GRACE_MS);
    let mut left = Vec::new();
    for _ in 0..3 {
        daemon.kill();
        tokio::time::sleep(away).await;
        // It is killed again before it could write anything down that can wait.
        left.push(back(&mut daemon, &lease, ttl).await?.to_string());
    }
    Ok(format!(
        "down three times for {:.1} s each; {} ms left at the starts, and renewed at each",
        away.as_secs_f64(),
        left.join(", ")
    ))
}
