//! Those who connect and say nothing, or as little as keeps the connection open.
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::attacker::{Field, door};
use super::conn::{Door, add, listen};
use super::frames::{self, Kind, PREFACE};

/// Connections: 1,000 over the Unix socket, 600 over TCP, 400 for REST.
const IDLE: usize = 2_000;
/// Connections with headers that never end.
const SLOW: usize = 600;
/// A connection that is still open after this time was taken.
const STAYS: Duration = Duration::from_secs(1);
/// Between two bytes.
const BYTE_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn idle(field: &Field) {
    field.crowd(IDLE, stay).await;
}

async fn stay(field: Field, i: usize) {
    let door = match i % 10 {
        0..5 => Door::Unix,
        5..8 => Door::Tcp,
        _ => Door::Rest,
    };
    // Half of them greet first: what that costs the daemon stays.
    if i.is_multiple_of(2) && door != Door::Rest {
        let Some((reader, writer)) = field.doors.greet(door, &[], &field.tally).await else {
            return field.tally.seats().refused(i);
        };
        add(&field.tally.sent, 1);
        field.tally.seats().opened(i);
        let ended = listen(reader, &field.tally);
        while !ended.is() {
            tokio::time::sleep(BYTE_EVERY).await;
        }
        field.tally.seats().closed(i);
        drop(writer);
        return;
    }
    let refused = || {
        add(&field.tally.refused, 1);
        field.tally.seats().refused(i);
    };
    let Ok(mut io) = field.doors.open(door).await else {
        return refused();
    };
    add(&field.tally.sent, 1);
    // The end of it says that it was refused, or later that it was given up.
    let mut byte = [0];
    let mut end = std::pin::pin!(tokio::io::AsyncReadExt::read(&mut io, &mut byte));
    if tokio::time::timeout(STAYS, &mut end).await.is_ok() {
        return refused();
    }
    add(&field.tally.connected, 1);
    field.tally.seats().opened(i);
    let _ = end.await;
    field.tally.seats().closed(i);
    add(&field.tally.ended, 1);
}

pub(super) async fn slow_headers(field: &Field) {
    field.crowd(SLOW, drip).await;
}

async fn drip(field: Field, i: usize) {
    match i % 4 {
        0 => drip_rest(&field).await,
        1 => drip_greeting(&field, door(i)).await,
        _ => drip_block(&field, door(i)).await,
    }
}

/// A request of HTTP/1 whose headers never end.
async fn drip_rest(field: &Field) {
    let Ok(mut io) = field.doors.open(Door::Rest).await else {
        return add(&field.tally.refused, 1);
    };
    if io
        .write_all(b"GET /v1/node HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        .await
        .is_err()
    {
        return add(&field.tally.refused, 1);
    }
    let (mut reader, mut writer) = tokio::io::split(io);
    let drip = async {
        let mut bytes = 0;
        while writer.write_all(b"a").await.is_ok() {
            add(&field.tally.sent, 1);
            tokio::time::sleep(BYTE_EVERY).await;
            bytes += 1;
            if bytes == 2 {
                add(&field.tally.connected, 1); // it is still there
            }
        }
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = drip => {}
        _ = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut answer) => {}
    }
    add(&field.tally.ended, 1);
}

/// The greeting of HTTP/2, a byte at a time.
async fn drip_greeting(field: &Field, door: Door) {
    let Ok(mut io) = field.doors.open(door).await else {
        return add(&field.tally.refused, 1);
    };
    for byte in PREFACE {
        if io.write_all(&[*byte]).await.is_err() {
            return add(&field.tally.ended, 1);
        }
        add(&field.tally.sent, 1);
        tokio::time::sleep(BYTE_EVERY).await;
    }
}

/// HEADERS without their end, and then CONTINUATION with a byte each: fewer than a server counts as a flood.
async fn drip_block(field: &Field, door: Door) {
    let Some((reader, mut writer)) = field.doors.greet(door, &[], &field.tally).await else {
        return;
    };
    let ended = listen(reader, &field.tally);
    let mut block = frames::call("/evenkeel.v1.NodeService/GetNode");
    block.extend_from_slice(&[0, 1, b'x', 127, 0x80, 0x40]); // a value of 8 KiB, of which little comes
    if writer
        .write_all(&frames::frame(Kind::Headers, 0, 1, &block))
        .await
        .is_err()
    {
        return;
    }
    // A frame's head that promises a payload, and then the payload by bytes.
    let promise = frames::frame(Kind::Continuation, 0, 1, &[b'a'; 4_096]);
    for byte in promise {
        if ended.is() || writer.write_all(&[byte]).await.is_err() {
            return;
        }
        add(&field.tally.sent, 1);
        tokio::time::sleep(BYTE_EVERY).await;
    }
}
