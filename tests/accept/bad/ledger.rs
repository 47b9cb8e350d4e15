//! Ledgers that are taken, newer, corrupt, read-only, or on a full disk.
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::lease_service_client::LeaseServiceClient;
use nix::mount::{MsFlags, mount};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{case, refused};
use crate::daemon::{Daemon, SYNTHETIC};
use crate::disk::SmallDisk;
use crate::load::{connect, request};
use crate::row::Row;

pub(super) async fn measure() -> Vec<Row> {
    vec![
        case(
            "a second daemon on the ledger",
            "exits, says why; the first goes on",
            second(),
        )
        .await,
        case(
            "a newer schema",
            "refuses to start, says so",
            patched("newer", 60, &999u32.to_be_bytes()),
        )
        .await,
        case(
            "a file that is no database",
            "refuses to start, says so",
            patched("no database", 0, b"not a database.."),
        )
        .await,
        case(
            "a corrupt database",
            "refuses to start, says so",
            patched("corrupt", 4096, &[0xa5; 8192]),
        )
        .await,
        case(
            "a read-only ledger",
            "refuses to start, says so",
            read_only(),
        )
        .await,
        case(
            "a full disk",
            "grants refused; renew, release, expire served; recovers by itself",
            full(),
        )
        .await,
    ]
}

async fn second() -> anyhow::Result<String> {
    let daemon = Daemon::start(SYNTHETIC).await?;
    let (code, said) = daemon.run_to_end()?;
    ensure!(
        code.is_some_and(|c| c != 0 && c != 124),
        "it ended with {code:?}: {said}"
    );
    connect(&daemon.socket())
        .await?
        .acquire_lease(request())
        .await
        .context("the first daemon")?;
    Ok(short(&said))
}

fn short(said: &str) -> String {
    said.lines()
        .find(|l| !l.trim().is_empty())
        .unwrap_or("nothing was said")
        .chars()
        .take(220)
        .collect()
}

/// Writes over a part of the ledger's file and expects a refusal that says so.
async fn patched(what: &str, at: u64, bytes: &[u8]) -> anyhow::Result<String> {
    let dir = tempfile::tempdir()?;
    let mut daemon = Daemon::in_folder(dir.path(), SYNTHETIC).await?;
    let mut client = connect(&daemon.socket()).await?;
    for _ in 0..200 {
        client.acquire_lease(request()).await?;
    }
    daemon.stop().await?;
    let ledger = dir.path().join("ledger").join("evenkeel.db");
    let file = fs::OpenOptions::new().write(true).open(&ledger)?;
    file.write_all_at(bytes, at)?;
    let before = fs::read(&ledger)?;
    let (code, said) = daemon.run_to_end()?;
    ensure!(
        code.is_some_and(|c| c != 0 && c != 124),
        "{what}: it ended with {code:?}: {said}"
    );
    ensure!(
        !said.contains("panicked") && !said.contains("Err("),
        "{what}: {said}"
    );
    ensure!(fs::read(&ledger)? == before, "{what}: the file was changed");
    Ok(short(&said))
}

async fn read_only() -> anyhow::Result<String> {
    let disk = SmallDisk::new(64)?;
    let mut daemon = Daemon::in_folder(disk.path(), SYNTHETIC).await?;
    daemon.stop().await?;
    let none = None::<&str>;
    mount(
        none,
        disk.path(),
        none,
        MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
        none,
    )
    .context("cannot remount read-only")?;
    let (code, said) = daemon.run_to_end()?;
    ensure!(
        code.is_some_and(|c| c != 0 && c != 124),
        "it ended with {code:?}: {said}"
    );
    Ok(short(&said))
}

type Client = LeaseServiceClient<Channel>;

async fn grant(
    client: &mut Client,
    asked: pb::AcquireLeaseRequest,
) -> anyhow::Result<pb::LeaseRef> {
    let lease = client
        .acquire_lease(asked)
        .await?
        .into_inner()
        .lease
        .context("no lease")?;
    Ok(pb::LeaseRef {
        lease_id: lease.id,
        fence: lease.fence,
    })
}

async fn full() -> anyhow::Result<String> {
    let disk = SmallDisk::new(512)?;
    let daemon = Daemon::in_folder(disk.path(), SYNTHETIC).await?;
    let mut client = connect(&daemon.socket()).await?;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(grant(&mut client, request()).await?);
    }
    let brief = pb::AcquireLeaseRequest {
        ttl_ms: 3_000,
        ..request()
    };
    let brief = grant(&mut client, brief).await?;
    disk.fill()?;
    let status = first_refusal(&mut client).await?;
    ensure!(status.code() == Code::Unavailable, "{status}");
    served(&mut client, &held).await?;
    ended(&mut client, brief.lease_id)
        .await
        .context("an expiry on a full disk")?;
    disk.free()?;
    let start = Instant::now();
    while client.acquire_lease(request()).await.is_err() {
        ensure!(
            start.elapsed() < Duration::from_secs(30),
            "grants did not come back by themselves"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(format!(
        "{}; back {:.1} s after space was",
        status.message(),
        start.elapsed().as_secs_f64()
    ))
}

/// Asks until it is refused: the write-ahead log may still have room that it took before.
async fn first_refusal(client: &mut Client) -> anyhow::Result<Status> {
    let start = Instant::now();
    loop {
        if let Err(status) = client.acquire_lease(request()).await {
            return Ok(status);
        }
        ensure!(
            start.elapsed() < Duration::from_secs(60),
            "grants go on although the disk is full"
        );
    }
}

/// On the full disk: all are renewed, the first ten are given back.
async fn served(client: &mut Client, held: &[pb::LeaseRef]) -> anyhow::Result<()> {
    let renewed = client
        .renew_leases(pb::RenewLeasesRequest {
            leases: held.to_vec(),
        })
        .await?
        .into_inner();
    let counted = renewed
        .results
        .iter()
        .all(|r| r.status() == pb::RenewStatus::Renewed);
    ensure!(counted, "{renewed:?}");
    for lease in &held[..10] {
        let release = pb::ReleaseLeaseRequest {
            lease_id: lease.lease_id,
            fence: lease.fence,
        };
        client
            .release_lease(release)
            .await
            .context("a release on a full disk")?;
    }
    Ok(())
}

async fn ended(client: &mut Client, lease_id: u64) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        match client.get_lease(pb::GetLeaseRequest { lease_id }).await {
            Ok(l)
                if l.get_ref()
                    .lease
                    .as_ref()
                    .is_some_and(|l| l.phase() == pb::LeasePhase::Ended) =>
            {
                return Ok(());
            }
            Err(_) => {
                refused(
                    client.get_lease(pb::GetLeaseRequest { lease_id }).await,
                    Code::FailedPrecondition,
                )
                .map(drop)?;
                return Ok(());
            }
            Ok(_) => ensure!(start.elapsed() < Duration::from_secs(60), "it lives on"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
