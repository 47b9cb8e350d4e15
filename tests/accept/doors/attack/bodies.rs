//! Requests that never end, and those that are too large or too deep.
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use pb::profile_service_client::ProfileServiceClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::attacker::{Field, door};
use super::conn::{Door, add, listen};
use super::frames::{self, Kind};

/// Connections with requests that never end, and requests on each.
const SLOW: usize = 80;
const STREAMS: u32 = 64;
/// Connections with requests that are too much.
const LARGE: usize = 12;
/// Between two bytes.
const BYTE_EVERY: Duration = Duration::from_millis(500);
/// Nesting that no parser should follow.
const DEPTH: usize = 200_000;
/// Elements with nothing in them: two bytes on the wire, many in memory.
const EMPTY_ELEMENTS: usize = 1 << 20;

/// As many as a message with profiles may have.
const ALLOWED_ELEMENTS: usize = 390_000;

const ACQUIRE: &str = "/evenkeel.v1.LeaseService/AcquireLease";
const SESSION: &str = "/evenkeel.v1.LeaseService/Session";
const IMPORT: &str = "/evenkeel.v1.ProfileService/ImportProfile";
const SUBMIT: &str = "/evenkeel.v1.JobService/SubmitJob";

pub(super) async fn slow(field: &Field) {
    field.crowd(SLOW, never_ends).await;
}

/// On each stream all of a message but its last bytes, and then a byte now and again.
async fn never_ends(field: Field, i: usize) {
    let Some((reader, mut writer)) = field.doors.greet(door(i), &[], &field.tally).await else {
        return;
    };
    let ended = listen(reader, &field.tally);
    let (path, promised) = match i % 3 {
        0 => (ACQUIRE, 64 << 10),
        1 => (SESSION, 64 << 10),
        _ => (IMPORT, 2 << 20),
    };
    let mut head = frames::prefixed(&[]);
    head[1..].copy_from_slice(&(promised as u32).to_be_bytes());
    // As much at once as the windows of before any answer allow.
    let body = [&head[..], &[0; 500]].concat();
    for n in 0..STREAMS {
        let stream = 2 * n + 1;
        let begun = [
            frames::begin(stream, path),
            frames::data(stream, &body, false),
        ]
        .concat();
        if writer.write_all(&begun).await.is_err() {
            return;
        }
        add(&field.tally.sent, 1);
    }
    let chunk = [0; 256];
    while field.goes_on() && !ended.is() {
        for n in 0..STREAMS {
            let more = frames::data(2 * n + 1, &chunk, false);
            if ended.is() || writer.write_all(&more).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(BYTE_EVERY).await;
    }
}

pub(super) async fn oversized(field: &Field) {
    field.crowd(LARGE, too_large).await;
}

async fn too_large(field: Field, i: usize) {
    match i % 4 {
        0 => rest(&field, i).await,
        1 => just_small_enough(&field).await,
        _ => grpc(&field, i).await,
    }
}

/// What is sent over gRPC: (path, bytes of the message, what its prefix says).
fn too_much(i: usize) -> (&'static str, Vec<u8>) {
    match i % 5 {
        // A stage within a stage within a stage …, by field numbers that repeat.
        0 => (SUBMIT, nested()),
        1 => (ACQUIRE, frames::prefixed(&vec![b'x'; 4 << 20])),
        2 => {
            let mut lie = frames::prefixed(&[0; 64]);
            lie[1..5].copy_from_slice(&u32::MAX.to_be_bytes());
            (ACQUIRE, lie)
        }
        3 => {
            let profile = pb::Profile {
                points: vec![pb::ProfilePoint::default(); EMPTY_ELEMENTS - 64],
                ..Default::default()
            };
            let profile = Some(profile);
            (
                IMPORT,
                frames::message(&pb::ImportProfileRequest { profile }),
            )
        }
        // Reports with nothing in them: 30,000 in a message of the size that is allowed.
        _ => {
            let reports = vec![pb::WorkReport::default(); 30_000];
            let frame = pb::SessionRequest {
                reports,
                ..Default::default()
            };
            (SESSION, frames::message(&frame))
        }
    }
}

/// Groups within groups: a parser that follows them by calling itself runs out of stack.
fn nested() -> Vec<u8> {
    frames::prefixed(&[0x7b; 60_000])
}

async fn grpc(field: &Field, i: usize) {
    let Some((reader, mut writer)) = field.doors.greet(door(i), &[], &field.tally).await else {
        return;
    };
    let ended = listen(reader, &field.tally);
    let mut stream = 1;
    for n in 0..50 {
        let (path, body) = too_much(i / 4 + n);
        if writer
            .write_all(&frames::begin(stream, path))
            .await
            .is_err()
        {
            return;
        }
        // Whether or not there is a window for it; the daemon may end the stream or the connection.
        for chunk in body.chunks(frames::PAYLOAD_MAX) {
            let more = frames::frame(Kind::Data, 0, stream, chunk);
            let sent = tokio::time::timeout(Duration::from_secs(2), writer.write_all(&more)).await;
            if ended.is() || !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        let _ = writer
            .write_all(&frames::frame(Kind::Data, frames::END_STREAM, stream, &[]))
            .await;
        add(&field.tally.sent, 1);
        stream += 2;
    }
}

/// A message of nearly the size that is allowed, sent as it should be, that is forty times as large in memory.
async fn just_small_enough(field: &Field) {
    let Ok(channel) = crate::load::channel(&field.doors.socket).await else {
        return add(&field.tally.refused, 1);
    };
    add(&field.tally.connected, 1);
    let mut profiles = ProfileServiceClient::new(channel);
    for _ in 0..50 {
        let profile = Some(pb::Profile {
            points: vec![pb::ProfilePoint::default(); ALLOWED_ELEMENTS],
            ..Default::default()
        });
        add(&field.tally.sent, 1);
        let answer = profiles.import_profile(pb::ImportProfileRequest { profile });
        // Read and refused for what it says, it has cost what it can cost; else it was only large.
        if answer
            .await
            .is_err_and(|e| e.code() == tonic::Code::InvalidArgument)
        {
            add(&field.tally.taken_in, 1);
        }
    }
}

/// JSON and HTTP/1 that are too much.
async fn rest(field: &Field, i: usize) {
    let Ok(mut io) = field.doors.open(Door::Rest).await else {
        return add(&field.tally.refused, 1);
    };
    let deep = "[".repeat(DEPTH);
    let request = match i % 3 {
        0 => with_body("POST", &deep),
        1 => format!(
            "GET /v1/leases?job={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "a".repeat(1 << 20)
        ),
        _ => with_body("PUT", &format!("{{\"a\":{}", "{\"a\":".repeat(DEPTH))),
    };
    let written = tokio::time::timeout(Duration::from_secs(2), io.write_all(request.as_bytes()));
    add(&field.tally.connected, 1);
    let _ = written.await;
    add(&field.tally.sent, 1);
    let mut answer = vec![0; 4_096];
    let _ = tokio::time::timeout(Duration::from_secs(2), io.read(&mut answer)).await;
}

fn with_body(method: &str, body: &str) -> String {
    format!(
        "{method} /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: \
         {}\r\n\r\n{body}",
        body.len()
    )
}
