//! Those who ask and do not read: by a window that never opens, or by a socket that is never read.
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::attacker::{Field, door};
use super::conn::{Door, add, listen};
use super::frames;
use super::grants;

/// Readers over gRPC: so many streams on so many connections.
const CONNECTIONS: usize = 90;
const STREAMS: u32 = 10;
/// And for REST.
const REST: usize = 100;
/// Events that there are to read, at least.
const EVENTS: usize = 1_000;
/// How long one is tried before it is tried anew.
const STAYS: Duration = Duration::from_secs(20);

const EVENTS_OF: &str = "/evenkeel.v1.NodeService/ListEvents";
const RENEW: &str = "/evenkeel.v1.LeaseService/RenewLeases";
const SESSION: &str = "/evenkeel.v1.LeaseService/Session";
const WATCH: &str = "/evenkeel.v1.NodeService/WatchNode";

pub(super) async fn slow(field: &Field) {
    grants::some_events(field, EVENTS).await;
    let over_rest = field.crowd(REST, deaf_rest);
    let over_grpc = field.crowd(CONNECTIONS, deaf);
    tokio::join!(over_rest, over_grpc);
}

/// Renewals of leases that there are not: as many as leave room for the others in the window of a connection.
fn renewals() -> Vec<pb::LeaseRef> {
    let one = pb::LeaseRef {
        lease_id: u64::MAX >> 1,
        fence: 1,
    };
    vec![one; 256]
}

fn ask(stream: u32, i: usize) -> Vec<u8> {
    let leases = renewals();
    match i % 4 {
        0 => {
            let newest = pb::ListEventsRequest {
                newest: true,
                ..Default::default()
            };
            frames::unary(stream, EVENTS_OF, &newest)
        }
        1 => frames::unary(stream, RENEW, &pb::RenewLeasesRequest { leases }),
        2 => {
            let frame = pb::SessionRequest {
                renew: leases,
                ..Default::default()
            };
            let mut all = frames::begin(stream, SESSION);
            all.extend(frames::data(stream, &frames::message(&frame), false));
            all
        }
        _ => frames::unary(stream, WATCH, &pb::WatchNodeRequest {}),
    }
}

async fn deaf(field: Field, i: usize) {
    // A window that stays shut; one of a byte; or all the window there is, and a socket that nobody reads.
    let (window, reads) = match i % 3 {
        0 => (0, true),
        1 => (1, true),
        _ => (i32::MAX as u32, false),
    };
    let settings = [(frames::INITIAL_WINDOW, window)];
    let Some((reader, mut writer)) = field.doors.greet(door(i), &settings, &field.tally).await
    else {
        return;
    };
    if !reads
        && writer
            .write_all(&frames::window_update(0, 1 << 30))
            .await
            .is_err()
    {
        return;
    }
    let end = Instant::now() + STAYS;
    let mut unread = None;
    let ended = if reads {
        listen(reader, &field.tally)
    } else {
        unread = Some(reader);
        Default::default()
    };
    let mut stream = 1;
    let mut waiting = field.tally.unread.part();
    while field.goes_on() && !ended.is() && Instant::now() < end {
        for _ in 0..STREAMS {
            let request = ask(stream, i / 3);
            let asked = tokio::time::timeout(Duration::from_secs(1), writer.write_all(&request));
            // Who is not read any more has come to where the daemon waits for it.
            if !matches!(asked.await, Ok(Ok(()))) {
                break;
            }
            add(&field.tally.sent, 1);
            stream += 2;
            waiting.set(u64::from(stream / 2).saturating_sub(ended.streams()));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop(unread);
}

/// A page of events that nobody reads.
async fn deaf_rest(field: Field, _: usize) {
    let Ok(mut io) = field.doors.open(Door::Rest).await else {
        return add(&field.tally.refused, 1);
    };
    let request = b"GET /v1/events?newest=true&limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    if io.write_all(&request.repeat(8)).await.is_err() {
        return add(&field.tally.refused, 1);
    }
    add(&field.tally.connected, 1);
    add(&field.tally.sent, 1);
    let mut waiting = field.tally.unread.part();
    waiting.set(1);
    tokio::time::sleep(STAYS).await;
}
