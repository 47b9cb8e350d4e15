//! Streams that show something now and again whenever it changes: at most ten times a second, and never more than
//! the reader takes. Of what was told, only a digest is kept.
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::command::Caller;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Answers;
use crate::api::budget::{Kind, Place};
use crate::api::context::Context;
use crate::api::error;
use crate::api::limits::{READER_PATIENCE, WATCH_EVERY, WATCH_LOOK, WATCHERS_OFTEN};
use crate::api::turns::Turn;

/// What a look shows.
pub(super) enum Look<T> {
    /// This, and there may be more. Where it may be large, it has its turn until it is counted.
    Now(T, Option<Turn>),
    /// This is the last.
    Last(T),
    /// Nothing: others look just now.
    NotNow,
}

/// What tells one look from another.
pub(super) type Mark = [u8; 32];

/// The mark of what matters of a look.
pub(super) fn mark(what: &impl prost::Message) -> Mark {
    Sha256::digest(what.encode_to_vec()).into()
}

/// Starts a watcher of the caller's, which ends when its connection is `closing`. `look` looks; `of` marks what matters:
/// looks with the same mark are told once.
pub(super) fn watch<T, F, Fut>(
    ctx: &Arc<Context>,
    caller: &Caller,
    closing: CancellationToken,
    place: Place,
    mut look: F,
    of: fn(&T) -> Mark,
) -> Answers<T>
where
    T: prost::Message + 'static,
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future<Output = Result<Look<T>, Status>> + Send,
{
    // Only the newest waits for its reader.
    let (down, stream) = mpsc::channel(1);
    let mut changes = ctx.handle.changes();
    let (budget, caller) = (ctx.clone(), caller.clone());
    ctx.tasks.spawn(async move {
        let Ok(mut held) = budget.hold(Kind::Watch, &caller, 0) else {
            return;
        };
        let mut told: Option<Mark> = None;
        loop {
            changes.mark_unchanged();
            if down.capacity() == down.max_capacity() {
                held.set(0); // what was told has been taken, and counts as an answer on its way
            }
            let (seen, turn, last) = match look().await {
                Ok(Look::Now(seen, turn)) => (Some(Ok(seen)), turn, false),
                Ok(Look::Last(seen)) => (Some(Ok(seen)), None, true),
                Ok(Look::NotNow) => (None, None, false),
                Err(status) => (Some(Err(status)), None, true),
            };
            if let Some(seen) = seen {
                let seen_mark = seen.as_ref().ok().map(of);
                let news = last || told != seen_mark;
                // What waits and what comes behind it, each twice as long as on the wire.
                let n = |seen: &T| 4 * seen.encoded_len();
                if news && !held.set(seen.as_ref().map_or(0, n)) {
                    tell(&down, Err(error::overloaded())).await;
                    return;
                }
                drop(turn);
                told = seen_mark;
                if news && !tell(&down, seen).await {
                    return; // the reader is gone, or too slow
                }
            }
            if last {
                return;
            }
            tokio::select! {
                () = closing.cancelled() => {
                    tell(&down, Err(error::reconnect())).await;
                    return;
                }
                () = down.closed() => return,
                () = tokio::time::sleep(pause(place.own())) => {}
            }
            tokio::select! {
                () = closing.cancelled() => {}
                () = down.closed() => return,
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(WATCH_LOOK) => {}
            }
        }
    });
    ReceiverStream::new(stream)
}

/// Between two looks of one of so many watchers.
fn pause(watchers: usize) -> Duration {
    let as_often = watchers.div_ceil(WATCHERS_OFTEN).max(1);
    WATCH_EVERY * u32::try_from(as_often).unwrap_or(u32::MAX)
}

/// False: nobody reads it.
async fn tell<T>(down: &mpsc::Sender<Result<T, Status>>, what: Result<T, Status>) -> bool {
    matches!(
        tokio::time::timeout(READER_PATIENCE, down.send(what)).await,
        Ok(Ok(()))
    )
}
