//! Streams that show something now and again whenever it changes: at most ten times a second, and never more than
//! the reader takes.
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Answers;
use crate::api::budget::Place;
use crate::api::context::Context;
use crate::api::error;
use crate::api::limits::{OUTBOUND_MAX, READER_PATIENCE, WATCH_EVERY, WATCH_LOOK};

/// What a look shows.
pub(super) enum Look<T> {
    /// This, and there may be more.
    Now(T),
    /// This is the last.
    Last(T),
}

/// Starts a watcher, which ends when its connection is `closing`. `look` looks; `same` says whether two looks differ in nothing that matters.
pub(super) fn watch<T, F, Fut>(
    ctx: &Arc<Context>,
    closing: CancellationToken,
    place: Place,
    mut look: F,
    same: fn(&T, &T) -> bool,
) -> Answers<T>
where
    T: Clone + Send + Sync + 'static,
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future<Output = Result<Look<T>, Status>> + Send,
{
    let (down, stream) = mpsc::channel(OUTBOUND_MAX);
    let mut changes = ctx.handle.changes();
    ctx.tasks.spawn(async move {
        let _place = place;
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
                () = tokio::time::sleep(WATCH_EVERY) => {}
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

/// False: nobody reads it.
async fn tell<T>(down: &mpsc::Sender<Result<T, Status>>, what: Result<T, Status>) -> bool {
    matches!(
        tokio::time::timeout(READER_PATIENCE, down.send(what)).await,
        Ok(Ok(()))
    )
}
