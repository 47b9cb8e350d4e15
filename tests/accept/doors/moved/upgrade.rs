//! A daemon to come, with another schema: it is killed in the middle of the change, again and again, and the present one
//! finds everything as it was; then the change is made, the present daemon refuses the ledger, and the copy that was
//! made before it leads back.
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use evenkeel_proto::v1 as pb;
use evenkeeld::ledger::{
    Config, EventRecord, History, OpenError, PAGE_MAX, Page, SCHEMA, Schema, open_with,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::copy::evenkeeld;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::{connect, request};
use crate::row::Row;

/// Longer than the measurement: no lease ends by itself.
const TTL_MS: u64 = 3_600_000;
/// A change takes seconds: whoever has no copy, or is not done, after this hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// The version of the schema, in an SQLite file's header.
const USER_VERSION_AT: u64 = 60;
/// The present daemon starts on the ledger after one in so many kills.
const LOOKS: usize = 4;
/// One in so many kills comes before the copy is made.
const EARLY: usize = 5;
/// A log that is longer holds more than what a start writes.
const PART_OF_IT: u64 = 1 << 20;

/// The daemon to come: it opens the ledger, and so changes its schema.
#[derive(Args)]
pub(crate) struct NextArgs {
    ledger: PathBuf,
}

/// A change that touches each lease and each event, takes a second or two, and is larger than SQLite's cache, so that a part
/// of it is in the log before it is committed.
fn next_schema() -> Schema {
    let version = SCHEMA + 1;
    let sql = format!(
        "ALTER TABLE lease ADD COLUMN note TEXT NOT NULL DEFAULT 'old';
         UPDATE lease SET note = 'new';
         CREATE TABLE trail (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, json TEXT NOT NULL) STRICT;
         INSERT INTO trail SELECT seq, kind, json FROM event;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000000)
         INSERT INTO trail SELECT -i, 'padding', hex(randomblob(100)) FROM n WHERE i % 10 = 0;
         PRAGMA user_version = {version};"
    );
    Schema::ours().and_then("a trail of its own", sql)
}

/// Runs as the daemon to come, up to where it would serve.
pub(crate) async fn next(args: NextArgs) -> anyhow::Result<bool> {
    let opened = open_with(config(&args.ledger), &next_schema()).await?;
    opened.ledger.close().await;
    Ok(true)
}

fn config(ledger: &Path) -> Config {
    Config {
        ballast_bytes: 16 << 20, // as the daemons of this program have it
        ..Config::new(ledger)
    }
}

/// What must not change: the durable state, and the trail.
#[derive(PartialEq)]
struct Truth {
    live: BTreeSet<u64>,
    parts: String,
    trail: Vec<EventRecord>,
}

pub(super) async fn measure(short: bool) -> anyhow::Result<Vec<Row>> {
    let (leases, kills) = if short { (200, 4) } else { (5_000, 40) };
    let dir = tempfile::Builder::new()
        .prefix("evenkeel-accept-")
        .tempdir()?;
    let mut daemon = Daemon::in_folder(dir.path(), SYNTHETIC).await?;
    let acknowledged = fill(&daemon, leases).await?;
    daemon.stop().await?;
    let ledger = dir.path().join("ledger").join("evenkeel.db");
    let truth = truth(&ledger, &Schema::ours()).await?;
    ensure!(
        acknowledged.is_subset(&truth.live),
        "a grant is lost before anything began"
    );

    let killed = killed(&mut daemon, &ledger, &truth, kills).await;
    older_copies(&ledger)?;
    let changed = changed(&ledger, &truth).await;
    let back = back(&mut daemon, &ledger, &truth).await;
    Ok(vec![
        Row::judged(
            "upgrades killed (SIGKILL) in the middle of their migration",
            "each time the ledger is as before: all leases, the durable state, the trail",
            killed,
        ),
        Row::judged(
            "the migration, started again",
            "ends; all leases, the durable state and the trail are there",
            changed,
        ),
        Row::judged(
            "the older daemon on the newer ledger; back by the copy that the upgrade made",
            "refuses and says so, changes nothing; restored, all leases and the trail are there; of five copies the newest 3 are kept",
            back,
        ),
    ])
}

/// Grants so many leases and gives every third back; those that were acknowledged and kept.
async fn fill(daemon: &Daemon, leases: usize) -> anyhow::Result<BTreeSet<u64>> {
    let mut client = connect(&daemon.socket()).await?;
    let mut kept = BTreeSet::new();
    for n in 0..leases {
        // Cores only: the GPUs of this pool would be full before.
        let asked = pb::AcquireLeaseRequest {
            ttl_ms: TTL_MS,
            gpus: Vec::new(),
            ..request()
        };
        let granted = client.acquire_lease(asked).await?.into_inner();
        let lease = granted.lease.context("a grant without a lease")?;
        if n % 3 == 0 {
            let release = pb::ReleaseLeaseRequest {
                lease_id: lease.id,
                fence: lease.fence,
            };
            client.release_lease(release).await?;
        } else {
            kept.insert(lease.id);
        }
    }
    Ok(kept)
}

async fn truth(ledger: &Path, schema: &Schema) -> anyhow::Result<Truth> {
    let settings = config(ledger);
    let opened = open_with(settings.clone(), schema).await?;
    let parts = &opened.loaded.parts;
    let live = parts.leases.iter().map(|lease| lease.id.0).collect();
    let parts = format!("{parts:?}");
    let history = History::new(&settings);
    let mut trail: Vec<EventRecord> = Vec::new();
    loop {
        let page = Page {
            after: trail.last().map(|event| event.seq),
            limit: PAGE_MAX,
            ..Page::default()
        };
        let events = history.page(&page).await?;
        if events.is_empty() {
            break;
        }
        trail.extend(events);
    }
    history.close().await;
    opened.ledger.close().await;
    Ok(Truth { live, parts, trail })
}

/// Why it is not the truth, in a few words.
fn same(found: &Truth, truth: &Truth) -> anyhow::Result<()> {
    ensure!(
        found.live == truth.live,
        "{} live leases of {}",
        found.live.len(),
        truth.live.len()
    );
    ensure!(
        found.trail == truth.trail,
        "{} events of {}",
        found.trail.len(),
        truth.trail.len()
    );
    ensure!(found.parts == truth.parts, "the durable state is another");
    Ok(())
}

fn start(ledger: &Path) -> anyhow::Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .arg("next")
        .arg(ledger)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(child)
}

/// The copies that upgrades have made beside the ledger, the oldest first.
fn copies(ledger: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(ledger.parent().context("no folder")?)? {
        let path = entry?.path();
        if path.to_string_lossy().contains(".backup-0") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the change is made, be it only in the log: then the present daemon refuses the ledger.
async fn is_changed(ledger: &Path) -> anyhow::Result<bool> {
    match evenkeeld::ledger::open(config(ledger)).await {
        Ok(opened) => {
            opened.ledger.close().await;
            Ok(false)
        }
        Err(OpenError::Newer { .. }) => Ok(true),
        Err(error) => Err(error).context("the ledger does not open"),
    }
}

fn schema_of(ledger: &Path) -> anyhow::Result<u32> {
    let mut version = [0; 4];
    fs::File::open(ledger)?.read_exact_at(&mut version, USER_VERSION_AT)?;
    Ok(u32::from_be_bytes(version))
}

/// How long the daemon to come takes: until it has made its copy, and from there until the change is made.
struct Spans {
    copy: Duration,
    change: Duration,
}

/// How the kills fell.
#[derive(Default)]
struct Fallen {
    /// Before the copy was there.
    early: usize,
    /// In the middle of the change.
    middle: usize,
    /// Of those, so many with a part of the change in SQLite's log already.
    written: usize,
    /// After it: those show nothing.
    late: usize,
}

/// Kills the daemon to come, most times between its copy and its end, and looks each time at what is left.
async fn killed(
    daemon: &mut Daemon,
    ledger: &Path,
    truth: &Truth,
    kills: usize,
) -> anyhow::Result<(String, bool)> {
    let folder = ledger.parent().context("no folder")?;
    let aside = tempfile::Builder::new()
        .prefix("evenkeel-accept-")
        .tempdir()?;
    let clone = aside.path().join("evenkeel.db");
    fs::copy(ledger, &clone)?;
    let spans = spans(ledger)?;
    let mut dice = StdRng::seed_from_u64(7);
    let mut fallen = Fallen::default();
    for kill in 0..2 * kills {
        if fallen.middle >= kills {
            break;
        }
        // The name of a copy has its second in it: one is needed for each kill.
        copies(ledger)?.iter().try_for_each(fs::remove_file)?;
        let mut child = start(ledger)?;
        if kill % EARLY == 1 {
            tokio::time::sleep(spans.copy.mul_f64(dice.random_range(0.0..0.9))).await;
        } else {
            copied(&mut child, ledger).await?;
            tokio::time::sleep(spans.change.mul_f64(dice.random_range(0.0..0.9))).await;
        }
        child.kill()?;
        child.wait()?;
        let log = ledger.with_file_name("evenkeel.db-wal").metadata();
        let written = log.is_ok_and(|log| log.len() > PART_OF_IT);
        if is_changed(ledger).await? {
            fallen.late += 1;
            fs::remove_dir_all(folder)?;
            fs::create_dir(folder)?;
            fs::copy(&clone, ledger)?;
            continue;
        }
        match copies(ledger)?.is_empty() {
            true => fallen.early += 1,
            false => fallen.middle += 1,
        }
        fallen.written += usize::from(written);
        if kill % LOOKS == 0 {
            daemon
                .spawn()
                .await
                .with_context(|| format!("after kill {kill}"))?;
            daemon.stop().await?;
        }
        let found = self::truth(ledger, &Schema::ours()).await?;
        same(&found, truth).with_context(|| format!("kill {kill}"))?;
    }
    let shown = format!(
        "{} kills in the middle of a change of {:.1} s, {} of them with a part of it in the log; {} before its copy ({} came \
         too late); {} live leases and {} events each time",
        fallen.middle,
        spans.change.as_secs_f64(),
        fallen.written,
        fallen.early,
        fallen.late,
        truth.live.len(),
        truth.trail.len()
    );
    Ok((shown, fallen.middle >= kills && fallen.written > 0))
}

/// Waits until the copy is made: from then on the change is under way.
async fn copied(child: &mut Child, ledger: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    while copies(ledger)?.is_empty() {
        if child.try_wait()?.is_some() || began.elapsed() > HANGS_AFTER {
            let _ = child.kill();
            bail!("no copy was made");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Measured on a clone of the ledger.
fn spans(ledger: &Path) -> anyhow::Result<Spans> {
    let dir = tempfile::Builder::new()
        .prefix("evenkeel-accept-")
        .tempdir()?;
    let clone = dir.path().join("evenkeel.db");
    fs::copy(ledger, &clone)?;
    let mut child = start(&clone)?;
    let (began, mut copied) = (Instant::now(), None);
    loop {
        if copied.is_none() && !copies(&clone)?.is_empty() {
            copied = Some(began.elapsed());
        }
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the change fails: {status}");
            let copy = copied.context("it has made no copy")?;
            let change = began.elapsed().saturating_sub(copy);
            return Ok(Spans { copy, change });
        }
        ensure!(began.elapsed() < HANGS_AFTER, "the change hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Puts copies of older upgrades beside the ledger, more than are kept: the next upgrade has some to drop.
fn older_copies(ledger: &Path) -> anyhow::Result<()> {
    copies(ledger)?.iter().try_for_each(fs::remove_file)?;
    for second in 1..=4 {
        let name = format!("evenkeel.db.backup-{second:012}-schema-0");
        fs::write(ledger.with_file_name(name), "of an older upgrade")?;
    }
    Ok(())
}

async fn changed(ledger: &Path, truth: &Truth) -> anyhow::Result<(String, bool)> {
    let status = start(ledger)?.wait()?;
    ensure!(status.success(), "the change ends with {status}");
    ensure!(
        i64::from(schema_of(ledger)?) == SCHEMA + 1,
        "the schema is the old one"
    );
    let found = self::truth(ledger, &next_schema()).await?;
    same(&found, truth)?;
    let shown = format!(
        "schema {}; {} live leases, {} events",
        SCHEMA + 1,
        found.live.len(),
        found.trail.len()
    );
    Ok((shown, true))
}

async fn back(daemon: &mut Daemon, ledger: &Path, truth: &Truth) -> anyhow::Result<(String, bool)> {
    let before = fs::read(ledger)?;
    let (code, said) = daemon.run_to_end()?;
    ensure!(
        code == Some(1) && said.contains("has schema"),
        "it ends with {code:?}: {said}"
    );
    ensure!(
        fs::read(ledger)? == before,
        "the older daemon has changed the ledger"
    );
    let kept = copies(ledger)?;
    let copy = kept.last().context("no copy was kept")?;
    evenkeeld(&daemon.dir.join("evenkeeld.toml"), &["restore"], copy)?;
    daemon.spawn().await?;
    daemon.stop().await?;
    let found = self::truth(ledger, &Schema::ours()).await?;
    same(&found, truth)?;
    let refusal = said
        .lines()
        .last()
        .unwrap_or("")
        .chars()
        .take(90)
        .collect::<String>();
    let shown = format!(
        "exit code 1, \"{refusal}…\"; {} live leases, {} events, {} copies",
        found.live.len(),
        found.trail.len(),
        kept.len()
    );
    Ok((shown, kept.len() == 3))
}
