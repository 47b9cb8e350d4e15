//! A full disk: grants are refused; renewals, releases and expiries are served, by a daemon that is started on it, too;
//! and all comes back by itself when there is space.
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use tonic::{Code, Status};

use super::calls::{Calls, right};
use super::case;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::disk::SmallDisk;
use crate::load::request;
use crate::row::Row;

/// Leases that are held when the disk becomes full; so many of them are given back then.
const HELD: usize = 20;
const GIVEN_BACK: usize = 10;
const BRIEF_MS: u64 = 3_000;
/// What is waited for comes within this time, on the slowest machine.
const SOON: Duration = Duration::from_secs(60);

pub(super) async fn measure() -> Vec<Row> {
    let asked = "grants refused; renew, release, expire served; recovers by itself";
    vec![
        case("a full disk", asked, full()).await,
        case(
            "a daemon that is killed and started again when the disk has just become full",
            asked,
            restarted(false),
        )
        .await,
        case(
            "a daemon that is killed and started again after it has noticed that the disk is full",
            asked,
            restarted(true),
        )
        .await,
    ]
}

/// A daemon with leases on a small disk.
struct Rig {
    disk: SmallDisk,
    daemon: Daemon,
    calls: Calls,
    held: Vec<pb::LeaseRef>,
    brief: u64,
}

impl Rig {
    async fn start() -> anyhow::Result<Self> {
        let disk = SmallDisk::new()?;
        let daemon = Daemon::in_folder(disk.path(), SYNTHETIC).await?;
        let mut calls = Calls::connect(&daemon.socket()).await?;
        let mut held = Vec::new();
        for _ in 0..HELD {
            held.push(right(&calls.grant(request()).await?));
        }
        let brief = pb::AcquireLeaseRequest {
            ttl_ms: BRIEF_MS,
            ..request()
        };
        let brief = calls.grant(brief).await?.id;
        Ok(Self {
            disk,
            daemon,
            calls,
            held,
            brief,
        })
    }

    /// Asks until it is refused: the write-ahead log may still have room that it took before.
    async fn first_refusal(&mut self) -> anyhow::Result<Status> {
        let start = Instant::now();
        loop {
            if let Err(status) = self.calls.leases.acquire_lease(request()).await {
                ensure!(status.code() == Code::Unavailable, "{status}");
                return Ok(status);
            }
            ensure!(
                start.elapsed() < SOON,
                "grants go on although the disk is full"
            );
        }
    }

    /// On the full disk: all are renewed, the first ten are given back, and the brief one expires.
    async fn served(&mut self) -> anyhow::Result<()> {
        let leases = self.held.clone();
        let renewed = self
            .calls
            .leases
            .renew_leases(pb::RenewLeasesRequest { leases });
        let renewed = renewed.await?.into_inner();
        let counted = |r: &pb::RenewResult| r.status() == pb::RenewStatus::Renewed;
        ensure!(renewed.results.iter().all(counted), "{renewed:?}");
        for lease in &self.held[..GIVEN_BACK] {
            let release = pb::ReleaseLeaseRequest {
                lease_id: lease.lease_id,
                fence: lease.fence,
            };
            let released = self.calls.leases.release_lease(release).await;
            let lease = released
                .context("a release on a full disk")?
                .into_inner()
                .lease;
            let end = lease.context("no lease")?.end();
            ensure!(end == pb::LeaseEnd::Released, "a release led to {end:?}");
        }
        self.expired().await.context("an expiry on a full disk")
    }

    async fn expired(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let lease = self.calls.lease(self.brief).await?;
            if lease.phase() == pb::LeasePhase::Ended {
                ensure!(
                    lease.end() == pb::LeaseEnd::Expired,
                    "it ended as {:?}",
                    lease.end()
                );
                return Ok(());
            }
            ensure!(start.elapsed() < SOON, "it lives on");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// There is space again: grants come back, and what was held is still there.
    async fn recovered(&mut self) -> anyhow::Result<Duration> {
        self.disk.free()?;
        let start = Instant::now();
        while self.calls.leases.acquire_lease(request()).await.is_err() {
            ensure!(
                start.elapsed() < Duration::from_secs(30),
                "grants did not come back by themselves"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let took = start.elapsed();
        for lease in &self.held[GIVEN_BACK..] {
            let renewed = self.calls.renew(*lease).await?;
            ensure!(renewed.status() == pb::RenewStatus::Renewed, "{renewed:?}");
        }
        Ok(took)
    }
}

async fn full() -> anyhow::Result<String> {
    let mut rig = Rig::start().await?;
    rig.disk.fill()?;
    let status = rig.first_refusal().await?;
    rig.served().await?;
    let back = rig.recovered().await?;
    Ok(format!(
        "{}; back {:.1} s after space was",
        status.message(),
        back.as_secs_f64()
    ))
}

/// The same with a new daemon on the full disk. `noticed`: the old one had used up its ballast by then.
async fn restarted(noticed: bool) -> anyhow::Result<String> {
    let mut rig = Rig::start().await?;
    rig.disk.fill()?;
    if noticed {
        rig.first_refusal().await?;
    }
    rig.daemon.kill();
    let took = rig
        .daemon
        .spawn()
        .await
        .context("the start on the full disk")?;
    rig.calls = Calls::connect(&rig.daemon.socket()).await?;
    let status = if noticed {
        // It was full before, and nobody has made space: the very first one is refused.
        let answer = rig.calls.leases.acquire_lease(request()).await;
        super::refused(answer, Code::Unavailable).context("a grant after the restart")?
    } else {
        rig.first_refusal().await?
    };
    rig.served().await?;
    let back = rig.recovered().await?;
    Ok(format!(
        "started within {:.0} ms; {}; back {:.1} s after space was",
        took.as_secs_f64() * 1e3,
        status.message(),
        back.as_secs_f64()
    ))
}
