//! Ledgers that are taken, newer, corrupt or read-only: the daemon does not start, says why, changes nothing, and has
//! lost nothing once the cause is gone.
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use nix::mount::{MsFlags, mount};

use super::calls::{Calls, right};
use super::case;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::disk::SmallDisk;
use crate::load::request;
use crate::row::Row;

/// Leases in a ledger before it is harmed: several pages of the file.
const LEASES: usize = 200;
/// Bytes of one page.
const PAGE: usize = 4096;

pub(super) async fn measure() -> Vec<Row> {
    let asked = "refuses to start and says so; the file is untouched; undone, all leases are there";
    vec![
        case(
            "a second daemon on the ledger",
            "exits, says why; the first goes on",
            second(),
        )
        .await,
        case(
            "a newer schema",
            asked,
            // The user_version of the file's header.
            patched("schema", 60, &999u32.to_be_bytes()),
        )
        .await,
        case(
            "a file that is no database",
            asked,
            patched("not a ledger", 0, b"not a database.."),
        )
        .await,
        case(
            "a corrupt database",
            asked,
            patched("damaged", PAGE as u64, &[0xa5; 2 * PAGE]),
        )
        .await,
        case("a read-only ledger", asked, read_only()).await,
    ]
}

/// A daemon that must not start; what it said, which has to contain `word`.
fn refuses(daemon: &Daemon, word: &str) -> anyhow::Result<String> {
    let (code, said) = daemon.run_to_end()?;
    ensure!(
        code.is_some_and(|c| c != 0 && c != 124),
        "it ended with {code:?}: {said}"
    );
    ensure!(
        !said.contains("panicked") && !said.contains("Err("),
        "it says what no user understands: {said}"
    );
    ensure!(said.contains(word), "it does not say {word:?}: {said}");
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

async fn second() -> anyhow::Result<String> {
    let daemon = Daemon::start(SYNTHETIC).await?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let lease = calls.grant(request()).await?;
    let said = refuses(&daemon, "another daemon")?;
    let renewed = calls.renew(right(&lease)).await?;
    ensure!(renewed.status() == pb::RenewStatus::Renewed, "{renewed:?}");
    // On a new connection, too: the second one has not taken the socket away.
    let mut calls = Calls::connect(&daemon.socket()).await?;
    calls.grant(request()).await.context("the first daemon")?;
    Ok(said)
}

/// A ledger with many leases, whose daemon has stopped; and their ids.
async fn filled(dir: &Path) -> anyhow::Result<(Daemon, Vec<u64>)> {
    let mut daemon = Daemon::in_folder(dir, SYNTHETIC).await?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        leases.push(calls.grant(request()).await?.id);
    }
    daemon.stop().await?;
    Ok((daemon, leases))
}

/// Starts it again: nothing is lost.
async fn all_there(daemon: &mut Daemon, leases: &[u64]) -> anyhow::Result<()> {
    daemon.spawn().await.context("after the cause was undone")?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let now = calls.leases.list_leases(pb::ListLeasesRequest::default());
    let now: Vec<u64> = now
        .await?
        .into_inner()
        .leases
        .iter()
        .map(|l| l.id)
        .collect();
    ensure!(
        now == leases,
        "there were {} leases and are {}",
        leases.len(),
        now.len()
    );
    Ok(())
}

/// Writes over a part of the ledger's file and expects a refusal that says so.
async fn patched(word: &str, at: u64, bytes: &[u8]) -> anyhow::Result<String> {
    let dir = tempfile::tempdir()?;
    let (mut daemon, leases) = filled(dir.path()).await?;
    let ledger = dir.path().join("ledger").join("evenkeel.db");
    let whole = fs::read(&ledger)?;
    ensure!(
        whole.len() > at as usize + bytes.len(),
        "the ledger is too small to be harmed there"
    );
    let file = fs::OpenOptions::new().write(true).open(&ledger)?;
    file.write_all_at(bytes, at)?;
    let harmed = fs::read(&ledger)?;
    let said = refuses(&daemon, word)?;
    ensure!(fs::read(&ledger)? == harmed, "the file was changed");
    fs::write(&ledger, &whole)?;
    all_there(&mut daemon, &leases).await?;
    Ok(said)
}

async fn read_only() -> anyhow::Result<String> {
    let disk = SmallDisk::new()?;
    let (mut daemon, leases) = filled(disk.path()).await?;
    remount(disk.path(), MsFlags::MS_RDONLY)?;
    let said = refuses(&daemon, "can only be read")?;
    remount(disk.path(), MsFlags::empty())?;
    all_there(&mut daemon, &leases).await?;
    Ok(said)
}

fn remount(dir: &Path, how: MsFlags) -> anyhow::Result<()> {
    let none = None::<&str>;
    mount(none, dir, none, MsFlags::MS_REMOUNT | how, none).context("cannot remount")
}
