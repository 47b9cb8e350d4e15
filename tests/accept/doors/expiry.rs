//! Line 3: 10,000 leases whose holders have gone quiet expire at once, while others are renewed.
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::node_service_client::NodeServiceClient;

use crate::Run;
use crate::crowd::{Crowd, Shape, acquire};
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::{channel, connect};
use crate::row::Row;
use crate::trail::{self, Trail};

/// Long enough to acquire all of them before the first would end.
const TTL: Duration = Duration::from_secs(20);
/// Past the deadline, in which a renewal would still save them.
const GRACE: Duration = Duration::from_secs(1);
/// Clients that acquire them.
const ACQUIRING: usize = 16;
/// Leases of one renewal: the daemon's limit is a little higher.
const MESSAGE: usize = 1_000;
/// Renewals are judged in this time around the expiry: before and after.
const AROUND: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));
/// Nothing that works takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Those that go quiet.
async fn many(socket: &Path, leases: usize) -> anyhow::Result<Vec<pb::LeaseRef>> {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..ACQUIRING {
        let mut client = connect(socket).await?;
        let share = leases / ACQUIRING + usize::from(n < leases % ACQUIRING);
        tasks.spawn(async move { acquire(&mut client, share, TTL).await });
    }
    let mut all = Vec::new();
    while let Some(some) = tasks.join_next().await {
        all.extend(some??);
    }
    Ok(all)
}

/// Renews all of them together, for the last time; when the first message was sent, and how long all of it took.
async fn last_renewal(
    socket: &Path,
    quiet: &[pb::LeaseRef],
) -> anyhow::Result<(Instant, Duration)> {
    let mut client = connect(socket).await?;
    let sent = Instant::now();
    for leases in quiet.chunks(MESSAGE) {
        let request = pb::RenewLeasesRequest {
            leases: leases.to_vec(),
        };
        let answer = client.renew_leases(request).await?.into_inner();
        let renewed = |r: &pb::RenewResult| r.status() == pb::RenewStatus::Renewed;
        ensure!(
            answer.results.iter().all(renewed),
            "a lease was lost before it was to expire"
        );
    }
    Ok((sent, sent.elapsed()))
}

/// When the ledger had so many events. Over one connection: whoever looks should be no load.
async fn when(socket: &Path, events: u64) -> anyhow::Result<Instant> {
    let mut node = NodeServiceClient::new(channel(socket).await?);
    let start = Instant::now();
    loop {
        let last = pb::ListEventsRequest {
            newest: true,
            page_size: 1,
            ..Default::default()
        };
        let page = node.list_events(last).await?.into_inner();
        if page.events.last().is_some_and(|e| e.seq >= events) {
            return Ok(Instant::now());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "they are not all reclaimed within {} s",
            PATIENCE.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let (leases, streams) = if run.short {
        (1_000, 20)
    } else {
        (10_000, 100)
    };
    let tables = format!("{SYNTHETIC}[leases]\ngrace_ms = {}\n", GRACE.as_millis());
    let daemon = Daemon::start(&tables).await?;
    let socket = daemon.socket();
    // The others: a frame each 100 ms on each stream, so that the time of the expiry has enough of them to be judged.
    let shape = Shape {
        streams,
        leases: 10,
        ttl: TTL,
        gap: Duration::from_millis(100),
    };
    let crowd = Crowd::gather(&socket, shape).await?;
    let quiet = many(&socket, leases).await?;
    let before = trail::newest(&socket).await?;
    let (sent, took) = last_renewal(&socket, &quiet).await?;
    let due = sent + TTL + GRACE;

    tokio::time::sleep_until((due - AROUND.0).into()).await;
    crowd.count();
    let early = trail::newest(&socket).await? - before;
    tokio::time::sleep_until((due - Duration::from_millis(5)).into()).await;
    let reclaimed = when(&socket, before + leases as u64).await?;
    let lag = reclaimed.saturating_duration_since(due);
    let others = crowd.held.clone();
    tokio::time::sleep_until((due + AROUND.1).into()).await;
    let renewed = crowd.end(AROUND.0 + AROUND.1).await?;

    let trail = Trail::read(&socket, before).await?;
    let ends = trail.ends();
    let all: BTreeSet<u64> = quiet.iter().map(|l| l.lease_id).collect();
    let ended: BTreeSet<u64> = ends.keys().copied().collect();
    let how = ends.values().next().context("no lease ended")?;
    let once = ends.values().all(|e| *e == ["expired"]);
    let wrong = ended.intersection(&others).count();
    Ok(vec![
        Row::new(
            &format!("{leases} leases, renewed together for the last time, expire at once"),
            "each once, as expired, none early, none of the others",
            format!(
                "{} of {leases} ended ({}), {early} events before their time, {wrong} of the others ended",
                ended.intersection(&all).count(),
                how.join(", ")
            ),
            ended == all && once && early == 0,
        ),
        Row::new(
            "all reclaimed after TTL and grace of the first of them, with a lag",
            "under 1 s",
            format!(
                "{:.0} ms (of which the renewals themselves were apart: {:.0} ms)",
                lag.as_secs_f64() * 1e3,
                took.as_secs_f64() * 1e3
            ),
            lag < Duration::from_secs(1),
        ),
        Row::new(
            &format!(
                "renewals of {} other leases from 1 s before to 2 s after (from when each frame was due)",
                others.len()
            ),
            "p99 under 10 ms, none lost",
            format!("{renewed}, {} lost", renewed.lost),
            renewed.done() > 0 && renewed.p99_ms() < 10.0 && renewed.lost == 0,
        ),
    ])
}
