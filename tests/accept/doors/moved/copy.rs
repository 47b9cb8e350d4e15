//! Copies that `evenkeeld backup` makes while clients acquire and release, restored elsewhere with `evenkeeld restore`,
//! and judged by the audit trail and by what the clients were told.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;

use crate::crowd::live;
use crate::daemon::{Daemon, SYNTHETIC, program};
use crate::load::{connect, request};
use crate::row::Row;
use crate::trail::Trail;

/// Clients that load the daemon meanwhile.
const CLIENTS: usize = 16;
/// A client keeps one in so many of its leases: the copy has live ones.
const KEPT: u64 = 64;
/// And so many at most: all of them together are half of the pool.
const KEPT_MOST: u64 = 256;
/// Longer than the measurement: no lease ends by itself.
const TTL_MS: u64 = 3_600_000;

/// What clients were told: each grant, and whether they have asked for its release since.
#[derive(Default)]
struct Told(Mutex<BTreeMap<u64, Grant>>);

#[derive(Clone)]
struct Grant {
    request: pb::AcquireLeaseRequest,
    kept: bool,
}

impl Told {
    fn all(&self) -> BTreeMap<u64, Grant> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    fn note(&self, lease: u64, request: pb::AcquireLeaseRequest, kept: bool) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(lease, Grant { request, kept });
    }
}

/// What came of one copy.
struct Copied {
    events: usize,
    later: usize,
    live: usize,
    acknowledged: usize,
}

pub(super) async fn measure(short: bool) -> anyhow::Result<Vec<Row>> {
    let (copies, pause) = if short { (1, 1) } else { (3, 10) };
    let source = Daemon::start(SYNTHETIC).await?;
    let told = Arc::new(Told::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let leases = connect(&source.socket()).await?;
        clients.push(tokio::spawn(client(leases, told.clone(), stop.clone())));
    }
    let mut made = Vec::new();
    for n in 0..copies {
        tokio::time::sleep(Duration::from_secs(pause)).await; // of load
        let file = source.dir.join(format!("copy-{n}.db"));
        let before = told.all();
        let config = source.dir.join("evenkeeld.toml");
        let said = tokio::task::spawn_blocking({
            let file = file.clone();
            move || evenkeeld(&config, &["backup"], &file)
        });
        made.push((file, before, events_of(&said.await??)?));
    }
    tokio::time::sleep(Duration::from_secs(1)).await; // of load after the last
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    let whole = Trail::read(&source.socket(), 0).await?;
    let mut found = Vec::new();
    for (file, before, events) in made {
        found.push(elsewhere(&file, &before, events, &whole).await);
    }
    let found: anyhow::Result<Vec<Copied>> = found.into_iter().collect();
    Ok(vec![Row::judged(
        "copies made under load, restored elsewhere",
        "the audit trail is equal, event by event; the live leases are those that it says; every grant acknowledged \
         before the copy is in it, and its request gives the same lease",
        found.map(|found| shown(&found)),
    )])
}

fn shown(found: &[Copied]) -> (String, bool) {
    let each = found.iter().map(|c| {
        format!(
            "{} events equal ({} came later), {} live leases, {} acknowledged before",
            c.events, c.later, c.live, c.acknowledged
        )
    });
    let each: Vec<_> = each.collect();
    // Nothing is shown by a copy of a daemon that did nothing.
    let telling = found
        .iter()
        .all(|c| c.later > 0 && c.live > 0 && c.acknowledged > 0);
    (each.join("; "), telling && !found.is_empty())
}

async fn client(
    mut leases: pb::lease_service_client::LeaseServiceClient<tonic::transport::Channel>,
    told: Arc<Told>,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let request = pb::AcquireLeaseRequest {
            ttl_ms: TTL_MS,
            ..request()
        };
        let granted = leases.acquire_lease(request.clone()).await?.into_inner();
        let lease = granted.lease.context("a grant without a lease")?;
        let kept = n % KEPT == 0 && n / KEPT < KEPT_MOST;
        told.note(lease.id, request, kept);
        if !kept {
            let release = pb::ReleaseLeaseRequest {
                lease_id: lease.id,
                fence: lease.fence,
            };
            leases.release_lease(release).await?;
        }
    }
    Ok(())
}

/// Runs a command of the daemon's program on a file.
pub(super) fn evenkeeld(config: &Path, words: &[&str], file: &Path) -> anyhow::Result<String> {
    let out = Command::new(program("evenkeeld")?)
        .arg("--config")
        .arg(config)
        .args(words)
        .arg(file)
        .output()?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let why = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success(),
        "evenkeeld {}: {}",
        words.join(" "),
        why.trim()
    );
    Ok(said)
}

/// How many events the copy has, by what `backup` says.
fn events_of(said: &str) -> anyhow::Result<usize> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let at = words.iter().rposition(|word| word.starts_with("event"));
    let number = at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok());
    number.with_context(|| format!("backup does not say how many events: {said}"))
}

/// Restores a copy over another daemon's new ledger, starts that daemon, and compares.
async fn elsewhere(
    copy: &Path,
    before: &BTreeMap<u64, Grant>,
    events: usize,
    whole: &Trail,
) -> anyhow::Result<Copied> {
    let mut other = Daemon::start(SYNTHETIC).await?;
    other.stop().await?;
    evenkeeld(&other.dir.join("evenkeeld.toml"), &["restore"], copy)?;
    other.spawn().await?;
    let trail = Trail::read(&other.socket(), 0).await?;
    trail.same_until(whole, events)?;

    let mut leases = connect(&other.socket()).await?;
    let live = live(&other.socket()).await?;
    let ends = trail.ends();
    let granted: BTreeSet<u64> = trail.grants().into_values().flatten().collect();
    let by_trail: BTreeSet<u64> = granted
        .iter()
        .copied()
        .filter(|id| !ends.contains_key(id))
        .collect();
    ensure!(
        live == by_trail,
        "{} live leases, and {} by the trail",
        live.len(),
        by_trail.len()
    );
    for (id, grant) in before {
        ensure!(
            granted.contains(id),
            "lease {id} was acknowledged and is not in the copy"
        );
        ensure!(
            !grant.kept || live.contains(id),
            "lease {id} was kept and is not live"
        );
        if grant.kept {
            let again = leases
                .acquire_lease(grant.request.clone())
                .await?
                .into_inner();
            ensure!(
                again.lease.is_some_and(|lease| lease.id == *id),
                "the request of lease {id} gives another one"
            );
        }
    }
    Ok(Copied {
        events,
        later: whole.len() - events,
        live: live.len(),
        acknowledged: before.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_backup_says_is_read() {
        let said = "copied a.db to b.db (0.2 MiB, schema 1: 1 live lease, 1,234 events)\n";
        assert!(events_of(said).is_err(), "no number that is one");
        let said = said.replace("1,234", "1234");
        assert_eq!(events_of(&said).unwrap(), 1234);
    }
}
