//! Following the audit trail: what has ended since the last look is read back and handed to the collector.
//!
//! The trail is the queue. A collector that does not answer moves nothing on: the same events are read again later, so
//! that no memory is kept for it. Behind by more than [`BACKLOG_MAX`] events, the oldest are given up, and that is said.
use std::time::Duration;

use evenkeel_core::id::LeaseId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::life;
use super::otlp::{Collector, SendError};
use crate::handle::{EventRecord, Handle, History, HistoryError, PAGE_MAX, Page};

/// Lives are looked for at most so often: many that end together are sent together.
const PAUSE: Duration = Duration::from_secs(1);
/// Events that are searched for ends in one read: some milliseconds.
const STRETCH: u64 = 20_000;
/// Lives that are sent in one message: a few hundred kilobytes.
const LIVES_PER_MESSAGE: usize = 64;
/// Events of one lease that are read: a life with more moves than this is told up to there, and counts as not ended.
const PAGES_PER_LIFE: usize = 8;
/// So many events behind, the oldest are given up: an hour of a busy node.
const BACKLOG_MAX: u64 = 1_000_000;
/// A collector that does not answer is asked again after so long, at most.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// What has ended just before a stop may take so long to be sent.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Trail(HistoryError),
    #[error(transparent)]
    Send(SendError),
}

/// Follows the trail.
pub(super) struct Follower {
    history: History,
    node: String,
    /// The share of leases that are traced, 0 to 1.
    sample: f64,
    collector: Collector,
    /// Everything up to this event is done; none: nothing was read yet.
    done: Option<u64>,
}

impl Follower {
    /// Begins at the trail's end: what ended before this start was sent by the one before.
    pub(super) async fn begin(
        history: History,
        node: String,
        sample: f64,
        collector: Collector,
    ) -> Self {
        let mut follower = Self {
            history,
            node,
            sample,
            collector,
            done: None,
        };
        // Where it cannot be read now, the first round that can begins.
        follower.done = follower.newest().await.ok();
        follower
    }

    pub(super) async fn run(mut self, handle: Handle, stop: CancellationToken) {
        let mut changes = handle.changes();
        let mut again = PAUSE;
        loop {
            // A round that is cut off is done again: the same lives have the same ids.
            let done = tokio::select! {
                () = stop.cancelled() => break,
                done = self.round() => done,
            };
            let pause = match done {
                Ok(()) => {
                    again = PAUSE;
                    PAUSE
                }
                Err(error) => {
                    if again == PAUSE {
                        tracing::warn!(%error, "traces wait; leases are not affected");
                    }
                    again = (again * 2).min(AGAIN_MAX);
                    again
                }
            };
            let is_late = again > PAUSE;
            tokio::select! {
                () = stop.cancelled() => break,
                () = next(&mut changes, pause, is_late) => {}
            }
        }
        let _ = tokio::time::timeout(LAST_WORDS, self.round()).await;
        self.history.close().await;
    }

    /// Sends what has ended since the last round.
    async fn round(&mut self) -> Result<(), RoundError> {
        let newest = self.newest().await?;
        let sent = self.send_until(newest).await;
        let waiting = newest.saturating_sub(self.done.unwrap_or(newest));
        metrics::gauge!("evenkeel_traces_waiting_events").set(waiting as f64);
        sent
    }

    async fn send_until(&mut self, newest: u64) -> Result<(), RoundError> {
        let mut done = self.done.unwrap_or(newest);
        if newest.saturating_sub(done) > BACKLOG_MAX {
            let kept = newest - BACKLOG_MAX;
            tracing::warn!(
                events = kept - done,
                "traces are too far behind, and the oldest are given up; a lower traces.sample helps"
            );
            done = kept;
        }
        self.done = Some(done);
        while done < newest {
            let last = newest.min(done + STRETCH);
            let page = Page {
                within: Some((done + 1, last)),
                kinds: &["lease_ended"],
                limit: LIVES_PER_MESSAGE as u32,
                ..Page::default()
            };
            let ended = self.page(&page).await?;
            done = match ended.last() {
                Some(record) if ended.len() >= LIVES_PER_MESSAGE => record.seq,
                _ => last,
            };
            let mut lives = Vec::new();
            for lease in ended.iter().filter_map(|record| record.lease) {
                if is_sampled(lease, self.sample) {
                    lives.extend(self.life(lease).await?);
                }
            }
            if !lives.is_empty() {
                self.collector
                    .send(&lives)
                    .await
                    .map_err(RoundError::Send)?;
            }
            self.done = Some(done);
        }
        Ok(())
    }

    async fn newest(&self) -> Result<u64, RoundError> {
        let page = Page {
            newest_first: true,
            limit: 1,
            ..Page::default()
        };
        Ok(self.page(&page).await?.first().map_or(0, |r| r.seq))
    }

    async fn life(&self, lease: LeaseId) -> Result<Option<life::Life>, RoundError> {
        let mut page = Page {
            lease: Some(lease),
            limit: PAGE_MAX,
            ..Page::default()
        };
        let mut records = Vec::new();
        for _ in 0..PAGES_PER_LIFE {
            let more = self.page(&page).await?;
            let Some(last) = more.last() else { break };
            page.after = Some(last.seq);
            let is_over = last.kind == "lease_ended";
            records.extend(more);
            if is_over {
                break;
            }
        }
        Ok(life::life(&self.node, &records))
    }

    async fn page(&self, page: &Page) -> Result<Vec<EventRecord>, RoundError> {
        self.history.page(page).await.map_err(RoundError::Trail)
    }
}

/// Waits for the next round: at least the pause, and for something to read unless something waits already.
async fn next(changes: &mut watch::Receiver<u64>, pause: Duration, is_late: bool) {
    tokio::time::sleep(pause).await;
    if !is_late && changes.changed().await.is_err() {
        std::future::pending::<()>().await; // the controller has ended; `stop` follows
    }
}

/// Whether a lease is among the traced share. The same lease always is, or never.
fn is_sampled(lease: LeaseId, share: f64) -> bool {
    // Fibonacci hashing: neighbouring numbers are spread evenly.
    let spread = lease.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11;
    (spread as f64) < share * (1_u64 << 53) as f64
}
