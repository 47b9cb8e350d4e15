//! One attack from its beginning to five seconds after its end, and what is said of it.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use pb::lease_service_client::LeaseServiceClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use super::attacker::{Attack, Did};
use super::ground::{Attackers, Ground, Use, look, say};
use super::victim::Suffered;
use crate::load::{connect, request};
use crate::row::Row;

/// The daemon's memory stays below this.
const RSS_MAX_MIB: u64 = 256;
/// All recovers within this time.
const RECOVERS_WITHIN: Duration = Duration::from_secs(5);
/// Past it nobody waits any longer, and what was not there is said.
const GIVES_UP: Duration = Duration::from_secs(40);
/// Files beyond those of before that may be open when all is over.
const FILES_MORE: u64 = 8;
/// Between two looks at the daemon.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// All that was seen of one attack.
struct Seen {
    did: Vec<(Attack, Did)>,
    suffered: Suffered,
    before: Use,
    most: Use,
    after: Use,
    recovered: Recovery,
    alarms: Vec<String>,
    log_kib: u64,
}

/// The rows of one attack, or of several at once.
pub(super) async fn rows(
    what: &str,
    ground: anyhow::Result<Ground>,
    attacks: &[Attack],
    seconds: u64,
    short: bool,
) -> Vec<Row> {
    say(&format!("{what}, {seconds} s"));
    let seen = match ground {
        Ok(ground) => attacked(ground, attacks, seconds).await,
        Err(e) => Err(e),
    };
    match seen {
        Ok(seen) => told(what, &seen, seconds, short),
        Err(e) => vec![Row::new(what, "the daemon stands", format!("{e:#}"), false)],
    }
}

async fn attacked(ground: Ground, attacks: &[Attack], seconds: u64) -> anyhow::Result<Seen> {
    let victim = ground.victim()?;
    let before = ground.looks()?;
    let watcher = Watcher::start(ground.pid()?);
    let attackers = Attackers::start(&ground, attacks, seconds)?;
    let did = tokio::task::spawn_blocking(|| attackers.did()).await??;
    let recovered = recovers(&ground, before).await;
    let after = ground.looks()?;
    // Not in the runtime's way: it waits for the victim's end.
    let suffered = tokio::task::spawn_blocking(|| victim.suffered()).await??;
    Ok(Seen {
        did,
        suffered,
        before,
        most: watcher.most(),
        after,
        recovered,
        alarms: ground.alarms(),
        log_kib: ground.log_bytes() >> 10,
    })
}

/// Looks at the daemon all the time.
struct Watcher {
    most: Arc<[AtomicU64; 2]>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watcher {
    fn start(pid: u32) -> Self {
        let most: Arc<[AtomicU64; 2]> = Arc::default();
        let over: Arc<AtomicBool> = Arc::default();
        let (of, until) = (most.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                if let Ok(now) = look(pid) {
                    of[0].fetch_max(now.peak_mib, Ordering::Relaxed);
                    of[1].fetch_max(now.files, Ordering::Relaxed);
                }
                std::thread::sleep(LOOKS_EVERY);
            }
        });
        Self {
            most,
            over,
            thread: Some(thread),
        }
    }

    fn most(mut self) -> Use {
        self.end();
        Use {
            rss_mib: 0,
            peak_mib: self.most[0].load(Ordering::Relaxed),
            files: self.most[1].load(Ordering::Relaxed),
        }
    }

    fn end(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end();
    }
}

/// How long it took until all was as it should be, if it was; and what was the last that was not.
struct Recovery {
    took: Option<Duration>,
    last: Option<String>,
}

/// Waits until, after the attack, each door serves, grants go on, files are closed and memory is in bound.
async fn recovers(ground: &Ground, before: Use) -> Recovery {
    let start = Instant::now();
    let mut last = None;
    loop {
        let well = tokio::time::timeout(RECOVERS_WITHIN, is_well(ground, before)).await;
        let why = match well {
            Ok(Ok(())) => {
                let took = Some(start.elapsed());
                return Recovery { took, last };
            }
            Ok(Err(e)) => format!("{e:#}"),
            Err(_) => format!("no answer within {RECOVERS_WITHIN:?}"),
        };
        last = Some(why);
        if start.elapsed() > GIVES_UP {
            return Recovery { took: None, last };
        }
        tokio::time::sleep(LOOKS_EVERY).await;
    }
}

async fn is_well(ground: &Ground, before: Use) -> anyhow::Result<()> {
    takes_and_gives(connect(&ground.socket()).await?)
        .await
        .context("over the Unix socket")?;
    let tcp = Endpoint::from_shared(format!("http://{}", ground.tcp))?;
    let tcp = LeaseServiceClient::new(tcp.connect().await.context("over TCP")?);
    takes_and_gives(tcp).await.context("over TCP")?;
    healthy(ground).await.context("over REST")?;
    let now = ground.looks()?;
    ensure!(
        now.rss_mib << 20 < RSS_MAX_MIB * 1_000_000,
        "it uses {} MiB",
        now.rss_mib
    );
    ensure!(
        now.files <= before.files + FILES_MORE,
        "{} files are open, {} before",
        now.files,
        before.files
    );
    Ok(())
}

async fn takes_and_gives(
    mut client: LeaseServiceClient<tonic::transport::Channel>,
) -> anyhow::Result<()> {
    let lease = client.acquire_lease(request()).await?.into_inner().lease;
    let lease = lease.context("no lease in the answer")?;
    let release = pb::ReleaseLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
    };
    client.release_lease(release).await?;
    Ok(())
}

async fn healthy(ground: &Ground) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(ground.rest).await?;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "it said {:?}",
        answer.lines().next()
    );
    Ok(())
}

fn told(what: &str, seen: &Seen, seconds: u64, short: bool) -> Vec<Row> {
    let together = seen.did.len() > 1;
    let happened = seen
        .did
        .iter()
        .all(|(attack, did)| happened(*attack, did, short, together));
    let s = &seen.suffered;
    vec![
        Row::new(
            &format!("{what}: that it was one, for {seconds} s"),
            "it connected and did what it is named for",
            in_words(seen),
            happened,
        ),
        renewals(what, s),
        Row::beside(
            &format!("{what}: the other tenant's grants"),
            Ok(format!(
                "{} granted and given back (p99 {:.0} ms), told to wait {} times, {} not granted",
                s.granted, s.grant_p99_ms, s.told_to_wait, s.not_granted
            )),
        ),
        memory(what, seen),
        recovery(what, seen),
    ]
}

/// Whether it was the attack that it is named for.
fn happened(attack: Attack, did: &Did, short: bool, together: bool) -> bool {
    let (connected, sent) = attack.at_least(short, together);
    // Together, others may have taken the turns of large messages.
    let taken_in = attack != Attack::Oversized || together || did.taken_in > 0;
    // Who does not read meets a limit in the end. A short run may be over before.
    let met = attack != Attack::SlowReaders || short || did.ended + did.resets > 0;
    let at_once = attack.at_once(short, together);
    did.connected >= connected
        && did.sent >= sent
        && did.at_once.is_enough_for(at_once)
        && taken_in
        && met
}

fn renewals(what: &str, s: &Suffered) -> Row {
    let first = s.first.as_ref();
    let first = first.map_or_else(String::new, |f| format!("; first: {f}"));
    Row::new(
        &format!("{what}: the other tenant's renewals"),
        "none lost, none failed, all its leases live",
        format!(
            "{} renewed, {} lost, {} failed, {} of {} leases live; p50 {:.1} ms, p99 {:.1} ms, worst {:.0} ms{first}",
            s.renewed, s.lost, s.failed, s.alive, s.held, s.p50_ms, s.p99_ms, s.worst_ms
        ),
        s.renewed > 0 && s.lost + s.failed == 0 && s.alive == s.held,
    )
}

fn memory(what: &str, seen: &Seen) -> Row {
    Row::new(
        &format!("{what}: memory"),
        &format!("under {RSS_MAX_MIB} MB"),
        format!(
            "{} MiB at most ({} before, {} after); {} files open at most; {} KiB of log",
            seen.most.peak_mib,
            seen.before.rss_mib,
            seen.after.rss_mib,
            seen.most.files,
            seen.log_kib
        ),
        seen.most.peak_mib << 20 < RSS_MAX_MIB * 1_000_000,
    )
}

fn recovery(what: &str, seen: &Seen) -> Row {
    let Recovery { took, last } = &seen.recovered;
    let last = last.as_ref();
    let last = last.map_or_else(String::new, |last| format!(" (until then: {last})"));
    let (after, in_time) = match took {
        Some(took) => (
            format!("{:.1} s{last}", took.as_secs_f64()),
            *took <= RECOVERS_WITHIN,
        ),
        None => (format!("not within {} s{last}", GIVES_UP.as_secs()), false),
    };
    let alarm = seen.alarms.first();
    let alarm = alarm.map_or_else(String::new, |a| format!(", such as {a}"));
    Row::new(
        &format!(
            "{what}: recovers: every door serves, grants go on, files are closed, memory is in bound, no alarm"
        ),
        "within 5 s",
        format!(
            "{after}; {} files open ({} before); {} alarms{alarm}",
            seen.after.files,
            seen.before.files,
            seen.alarms.len(),
        ),
        in_time && seen.alarms.is_empty(),
    )
}

fn at_once(did: &Did) -> String {
    let most = did.at_once;
    match (most.pressing, most.unread) {
        (0, 0) => String::new(),
        (0, unread) => format!(" ({unread} at once)"),
        (all, _) => format!(
            " (at once {all} who wanted one, of whom {} had one and the others were turned away)",
            most.open
        ),
    }
}

fn in_words(seen: &Seen) -> String {
    let one = |(attack, did): &(Attack, Did)| {
        format!(
            "{} {}{}; {} connections taken, {} refused, {} ended by the daemon ({} by GOAWAY), {} streams reset by it{}",
            did.sent,
            attack.in_words().1,
            at_once(did),
            did.connected,
            did.refused,
            did.ended,
            did.goaways,
            did.resets,
            match did.taken_in {
                0 => String::new(),
                n => format!(", {n} messages read in full and refused"),
            }
        )
    };
    if let [only] = seen.did.as_slice() {
        return one(only);
    }
    let all: Vec<_> = seen
        .did
        .iter()
        .map(|d| format!("{}: {}", d.0.name(), one(d)))
        .collect();
    all.join(". ")
}

#[cfg(test)]
mod tests {
    use super::super::attacker::AtOnce;
    use super::*;

    #[test]
    fn connections_one_after_another_are_not_so_many_at_once() {
        let did = |pressing, open| Did {
            connected: 9_000,
            sent: 9_000,
            at_once: AtOnce {
                pressing,
                open,
                unread: 0,
            },
            ..Did::default()
        };
        for (pressing, open, holds) in [
            (2_000, 1_100, true),
            (1_999, 1_999, false),
            (2_000, 999, false),
        ] {
            assert_eq!(
                happened(Attack::Idle, &did(pressing, open), false, false),
                holds
            );
        }
        assert!(happened(Attack::RapidReset, &did(0, 0), false, false));
    }

    #[test]
    fn readers_whom_nothing_stops_are_no_proof() {
        let did = |unread, resets| Did {
            connected: 90,
            sent: 9_000,
            resets,
            at_once: AtOnce {
                unread,
                ..AtOnce::default()
            },
            ..Did::default()
        };
        for (unread, resets, holds) in [(1_000, 1, true), (999, 1, false), (1_000, 0, false)] {
            assert_eq!(
                happened(Attack::SlowReaders, &did(unread, resets), false, false),
                holds
            );
        }
    }
}
