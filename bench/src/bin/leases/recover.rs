//! SIGKILL under load: how long until the server grants again, and whether it has all that it had acknowledged.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use evenkeel_bench::peers::{Client, Held, Peer};
use evenkeel_bench::report::Recovery;
use evenkeel_bench::server::START_LIMIT;

/// Clients that are granted leases when the server is killed.
const CLIENTS: usize = 16;
/// It is killed after so many grants, or after so long.
const GRANTS: usize = 2_000;
const GRANTS_WITHIN: Duration = Duration::from_secs(5);
/// Grants of one client at most: the pool must not run dry before the kill.
const EACH: usize = 250;

type Granted = Arc<Mutex<Vec<Held>>>;

pub(crate) async fn recover(peer: &mut dyn Peer) -> anyhow::Result<Recovery> {
    let granted = Granted::default();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        tasks.spawn(acquire(peer.client(number).await?, granted.clone()));
    }
    let count = || granted.lock().unwrap_or_else(PoisonError::into_inner).len();
    let start = Instant::now();
    while count() < GRANTS && start.elapsed() < GRANTS_WITHIN {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    peer.server().kill()?;
    // Whoever waits for an answer is told by the connection that there will be none.
    while tasks.join_next().await.is_some() {}
    let acknowledged = granted
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    ensure!(
        !acknowledged.is_empty(),
        "nothing was granted before the kill"
    );

    let start = Instant::now();
    peer.server().spawn()?;
    while grant(peer).await.is_err() {
        peer.server().check()?;
        ensure!(
            start.elapsed() < START_LIMIT,
            "it does not serve after SIGKILL: {}",
            peer.server().log_tail()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let present = peer.present(&acknowledged).await?;
    let recovery = Recovery {
        ms,
        acknowledged: acknowledged.len(),
        lost: acknowledged.len() - present,
    };
    eprintln!(
        "bench-leases:   killed: grants again after {ms:.0} ms, {} of {} leases lost",
        recovery.lost, recovery.acknowledged
    );
    Ok(recovery)
}

/// Is granted leases until there are no more answers.
async fn acquire(mut client: Box<dyn Client>, granted: Granted) {
    for _ in 0..EACH {
        let Ok(held) = client.grant().await else {
            return;
        };
        granted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(held);
    }
}

async fn grant(peer: &dyn Peer) -> anyhow::Result<Held> {
    let attempt = async { peer.client(0).await?.grant().await };
    tokio::time::timeout(Duration::from_secs(1), attempt).await?
}
