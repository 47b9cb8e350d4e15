//! The stream to the daemon: down, opening, or up; and which renewals it has not answered yet.
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use pb::lease_service_client::LeaseServiceClient as Leases;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::client::Client;
use crate::clock::BootTime;
use crate::model::{LeaseRef, Renewal};

/// Frames that may wait for a slow daemon; then the stream counts as stuck.
const FRAMES_WAITING: usize = 16;
/// How long a stream may take to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The stream.
pub(super) enum Link {
    /// To be opened again at this time.
    Down(Instant),
    Opening(Pin<Box<dyn Future<Output = Result<Box<Up>, Status>> + Send>>),
    Up(Box<Up>),
}

/// An open stream.
pub(super) struct Up {
    pub(super) frames: mpsc::Sender<pb::SessionRequest>,
    answers: Streaming<pb::SessionResponse>,
    pub(super) unanswered: Unanswered,
}

/// What happened to the link.
pub(super) enum LinkEvent {
    /// Time to open it.
    Retry,
    Opened(Result<Box<Up>, Status>),
    Answer(pb::SessionResponse),
    Closed(Option<Status>),
}

impl Link {
    /// Begins to open the stream.
    pub(super) fn open(client: &Client) -> Self {
        let mut leases = Leases::new(client.channel.clone());
        Self::Opening(Box::pin(async move {
            let (frames, outgoing) = mpsc::channel(FRAMES_WAITING);
            let opened = leases.session(ReceiverStream::new(outgoing));
            match tokio::time::timeout(OPEN_TIMEOUT, opened).await {
                Ok(answer) => Ok(Box::new(Up {
                    frames,
                    answers: answer?.into_inner(),
                    unanswered: Unanswered::default(),
                })),
                Err(_) => Err(Status::deadline_exceeded("the stream did not open")),
            }
        }))
    }

    /// Waits for something to happen to it. Cancel-safe.
    pub(super) async fn event(&mut self) -> LinkEvent {
        match self {
            Self::Down(until) => {
                tokio::time::sleep_until(*until).await;
                LinkEvent::Retry
            }
            Self::Opening(opening) => LinkEvent::Opened(opening.await),
            Self::Up(up) => match up.answers.message().await {
                Ok(Some(answer)) => LinkEvent::Answer(answer),
                Ok(None) => LinkEvent::Closed(None),
                Err(status) => LinkEvent::Closed(Some(status)),
            },
        }
    }
}

/// Renewals that were sent on a stream and not answered yet, in order.
#[derive(Debug, Default)]
pub(super) struct Unanswered(VecDeque<(LeaseRef, BootTime)>);

impl Unanswered {
    /// One frame of renewals was sent.
    pub(super) fn sent(&mut self, leases: &[LeaseRef], at: BootTime) {
        self.0.extend(leases.iter().map(|lease| (*lease, at)));
    }

    /// Finds what a result answers. Results come in the order asked, so what stands before it was passed over.
    pub(super) fn answered(&mut self, renewal: Renewal) -> Option<(LeaseRef, BootTime)> {
        let place = self
            .0
            .iter()
            .position(|(lease, _)| lease.lease_id == renewal.lease_id)?;
        self.0.drain(..=place).next_back()
    }

    /// How long the oldest has waited.
    pub(super) fn oldest(&self, now: BootTime) -> Duration {
        self.0
            .front()
            .map_or(Duration::ZERO, |(_, sent_at)| now.since(*sent_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RenewalStatus;

    #[test]
    fn answers_find_the_time_at_which_they_were_asked_for() {
        let lease = |lease_id| LeaseRef { lease_id, fence: 1 };
        let at = BootTime::from_micros;
        let renewed = |lease_id| Renewal {
            lease_id,
            status: RenewalStatus::Renewed,
            remaining: Duration::from_secs(30),
        };
        let mut unanswered = Unanswered::default();
        unanswered.sent(&[lease(1), lease(2)], at(10));
        unanswered.sent(&[lease(1), lease(2)], at(20));
        assert_eq!(unanswered.answered(renewed(1)), Some((lease(1), at(10))));
        assert_eq!(unanswered.oldest(at(15)), Duration::from_micros(5));
        assert_eq!(unanswered.answered(renewed(2)), Some((lease(2), at(10))));
        assert_eq!(
            unanswered.answered(renewed(2)),
            Some((lease(2), at(20))),
            "1 was passed over"
        );
        assert_eq!(unanswered.answered(renewed(2)), None, "nobody asked");
        assert_eq!(unanswered.oldest(at(99)), Duration::ZERO);
    }
}
