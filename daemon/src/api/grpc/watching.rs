//! Streams that show something now and again whenever it changes: at most ten times a second, and never more than
//! the reader takes.
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::command::Caller;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Answers;
use crate::api::budget::{Kind, Place};
use crate::api::context::Context;
use crate::api::error;
use crate::api::limits::{READER_PATIENCE, WATCH_EVERY, WATCH_LOOK, WATCHERS_OFTEN};

/// What a look shows.
pub(super) enum Look<T> {
    /// This, and there may be more.
    Now(T),
    /// This is the last.
    Last(T),
}

/// Starts a watcher of the caller's, which ends when its connection is `closing`. `look` looks; `same` says whether two
/// looks differ in nothing that matters.
pub(super) fn watch<T, F, Fut>(
    ctx: &Arc<Context>,
    caller: &Caller,
    closing: CancellationToken,
    place: Place,
    mut look: F,
    same: fn(&T, &T) -> bool,
) -> Answers<T>
where
    T: prost::Message + Clone + 'static,
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
        let mut told: Option<T> = None;
        loop {
            changes.mark_unchanged();
            let (seen, last) = match look().await {
                Ok(Look::Now(seen)) => (Ok(seen), false),
                Ok(Look::Last(seen)) => (Ok(seen), true),
                Err(status) => (Err(status), true),
            };
            let news = match (&seen, &told) {
                (Ok(seen), Some(told)) => last || !same(seen, told),
                _ => true,
            };
            // What is told and what waits (twice as long as on the wire), and what is on its way.
            let n = |seen: &T| 5 * seen.encoded_len();
            if news && !held.set(seen.as_ref().map_or(0, n)) {
                tell(&down, Err(error::overloaded())).await;
                return;
            }
            told = seen.as_ref().ok().cloned();
            if news && !tell(&down, seen).await {
                return; // the reader is gone, or too slow
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
