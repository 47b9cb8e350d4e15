//! One tenant asks for grants as fast as it can: it gives back, it keeps, and it does not wait for answers.
use std::sync::Arc;
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use pb::lease_service_client::LeaseServiceClient;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use super::attacker::{Field, door};
use super::conn::{Door, add, listen};
use super::frames;
use crate::load::{connect, request};

/// Clients that acquire and release.
const CLIENTS: usize = 64;
/// Clients that keep what they get.
const HOARDERS: usize = 8;
/// Leases that they keep, of 16,384 that there are of this size.
const HOARD: usize = 8_000;
/// Connections that ask and hang up.
const UNHEARD: usize = 8;
/// Requests of one write of theirs.
const BURST: u32 = 20;

const ACQUIRE: &str = "/evenkeel.v1.LeaseService/AcquireLease";

pub(super) async fn flood(field: &Field) {
    let clients = field.crowd(CLIENTS, take_and_give);
    let hoarders = field.crowd(HOARDERS, hoard);
    let unheard = field.crowd(UNHEARD, hang_up);
    tokio::join!(clients, hoarders, unheard);
}

/// Its leases over the Unix socket are one tenant's, those over TCP another's.
async fn client(field: &Field, door: Door) -> Option<LeaseServiceClient<Channel>> {
    let connected = match door {
        Door::Unix => connect(&field.doors.socket).await,
        _ => over_tcp(field).await,
    };
    let counter = match &connected {
        Ok(_) => &field.tally.connected,
        Err(_) => &field.tally.refused,
    };
    add(counter, 1);
    connected.ok()
}

async fn over_tcp(field: &Field) -> anyhow::Result<LeaseServiceClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{}", field.doors.tcp))?;
    Ok(LeaseServiceClient::new(endpoint.connect().await?))
}

/// A few SMs and a MiB, and no core: others still find some. Nobody renews it.
fn little() -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        cores: 0,
        gpus: vec![pb::GpuRequest {
            gpu: None,
            sms: 8,
            percent: 0,
            memory_bytes: 1 << 20,
        }],
        ..request()
    }
}

/// Leaves so many events behind, or as many as a third of the time allows.
pub(super) async fn some_events(field: &Field, at_least: usize) {
    let now = Instant::now();
    let third = now + (field.until - now) / 3;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        // Not part of the attack: it is not counted.
        let field = Field {
            tally: Arc::default(),
            ..field.clone()
        };
        all.spawn(async move {
            let Some(mut client) = client(&field, Door::Unix).await else {
                return;
            };
            for _ in 0..at_least.div_ceil(2 * CLIENTS) {
                give_back(&mut client, &field).await;
            }
        });
    }
    let all = async { while all.join_next().await.is_some() {} };
    let _ = tokio::time::timeout_at(third, all).await;
}

async fn give_back(client: &mut LeaseServiceClient<Channel>, field: &Field) {
    add(&field.tally.sent, 1);
    let Ok(answer) = client.acquire_lease(request()).await else {
        return tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let Some(lease) = answer.into_inner().lease else {
        return;
    };
    let release = pb::ReleaseLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
    };
    let _ = client.release_lease(release).await;
}

async fn take_and_give(field: Field, i: usize) {
    let Some(mut client) = client(&field, door(i)).await else {
        return;
    };
    while field.goes_on() {
        give_back(&mut client, &field).await;
    }
}

/// As many leases as leave the others some.
async fn hoard(field: Field, _: usize) {
    let Some(mut client) = client(&field, Door::Unix).await else {
        return;
    };
    for _ in 0..HOARD / HOARDERS {
        add(&field.tally.sent, 1);
        if client.acquire_lease(little()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    tokio::time::sleep_until(field.until).await;
}

/// Asks, and resets the stream a moment later: the daemon does the work, and nobody takes it. Always the same lease:
/// else there would soon be none for others.
async fn hang_up(field: Field, _: usize) {
    let Some((reader, mut writer)) = field.doors.greet(Door::Unix, &[], &field.tally).await else {
        return;
    };
    let ended = listen(reader, &field.tally);
    let (mut stream, same) = (1, little());
    while field.goes_on() && !ended.is() {
        let mut resets = Vec::new();
        for _ in 0..BURST {
            let asked = writer
                .write_all(&frames::unary(stream, ACQUIRE, &same))
                .await;
            if asked.is_err() {
                return;
            }
            resets.extend(frames::reset(stream));
            stream += 2;
            add(&field.tally.sent, 1);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        if writer.write_all(&resets).await.is_err() {
            return;
        }
    }
}
