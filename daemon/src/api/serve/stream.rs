//! One request and its answer on an HTTP/2 connection: what they hold is counted, a message that has begun has to end,
//! and an answer that nobody takes is dropped. hyper would keep both for as long as the connection lives.
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use hyper::HeaderMap;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use super::met;
use crate::api::budget::{Cost, Held};
use crate::api::error;
use crate::api::limits::{ANSWER_CHUNK, ANSWER_PATIENCE, MESSAGE_PATIENCE, READER_PATIENCE};
use crate::api::turns;

/// Bytes before each message: whether it is compressed, and its length (gRPC over HTTP/2).
const PREFIX: usize = 5;

/// Whether an answer waits for its reader: odd while it does; another number each time.
#[derive(Debug, Default)]
struct Turn(AtomicU32);

impl Turn {
    fn given(&self) {
        self.0.fetch_or(1, Ordering::Relaxed);
    }
    fn asked(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(now & 1), Ordering::Relaxed);
    }
    fn waits(&self) -> Option<u32> {
        let now = self.0.load(Ordering::Relaxed);
        (now & 1 == 1).then_some(now)
    }
}

tokio::task_local! {
    static TURN: Arc<Turn>;
}

/// Runs hyper's streams, and drops one whose reader does not read: its client is told by RST_STREAM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams;

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(read_in_time(stream));
    }
}

async fn read_in_time(stream: impl Future<Output = ()>) {
    let turn = Arc::new(Turn::default());
    let stream = TURN.scope(turn.clone(), stream);
    tokio::pin!(stream);
    let mut first = None;
    let mut patience: Option<(u32, Pin<Box<Sleep>>)> = None;
    poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some(of) = turn.waits() else {
            patience = None;
            return Poll::Pending;
        };
        if patience.as_ref().is_none_or(|(now, _)| *now != of) {
            let now = Instant::now();
            let whole = *first.get_or_insert(now) + ANSWER_PATIENCE;
            patience = Some((of, Box::pin(sleep_until(whole.min(now + READER_PATIENCE)))));
        }
        if let Some((_, sleep)) = &mut patience {
            ready!(sleep.as_mut().poll(cx));
            met("reader");
        }
        Poll::Ready(())
    })
    .await;
}

/// What a client sends in the course of a request.
#[derive(Debug)]
pub(super) struct Upload {
    inner: Incoming,
    progress: Progress,
    held: Held,
    /// The whole request has to come in time, not only each of its messages.
    one: bool,
    ended: bool,
    patience: Option<Pin<Box<Sleep>>>,
}

/// How much of a message is there.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    prefix: [u8; PREFIX],
    /// Of the prefix.
    have: usize,
    /// Of the message: how much is to come, and how much is there.
    to_come: usize,
    there: usize,
}

impl Progress {
    /// Takes in what came; says how many bytes wait for the rest of their message.
    fn came(&mut self, mut bytes: &[u8]) -> usize {
        while !bytes.is_empty() {
            if self.to_come > 0 {
                let n = self.to_come.min(bytes.len());
                self.to_come -= n;
                self.there = if self.to_come > 0 { self.there + n } else { 0 };
                bytes = &bytes[n..];
                continue;
            }
            self.prefix[self.have] = bytes[0];
            self.have += 1;
            bytes = &bytes[1..];
            if self.have == PREFIX {
                let [_, a, b, c, d] = self.prefix;
                self.to_come = u32::from_be_bytes([a, b, c, d]) as usize;
                self.have = 0;
            }
        }
        self.have + self.there
    }
    const fn waits_for_more(&self) -> bool {
        self.have > 0 || self.to_come > 0
    }
}

impl Upload {
    /// `one`: it is a single message.
    pub(super) fn new(inner: Incoming, held: Held, one: bool) -> Self {
        Self {
            ended: inner.is_end_stream(),
            inner,
            progress: Progress::default(),
            held,
            one,
            patience: None,
        }
    }

    fn late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.ended || !(self.one || self.progress.waits_for_more()) {
            return Poll::Pending;
        }
        let until = || Box::pin(sleep_until(Instant::now() + MESSAGE_PATIENCE));
        ready!(self.patience.get_or_insert_with(until).as_mut().poll(cx));
        met("message");
        Poll::Ready(error::too_slow())
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let upload = self.get_mut();
        match Pin::new(&mut upload.inner).poll_frame(cx) {
            Poll::Pending => {
                let late = ready!(upload.late(cx));
                Poll::Ready(Some(Err(late.into())))
            }
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    let waiting = upload.progress.came(data);
                    if !upload.one && !upload.progress.waits_for_more() {
                        upload.patience = None;
                    }
                    if !upload.held.set(waiting) {
                        met("held");
                        return Poll::Ready(Some(Err(error::overloaded().into())));
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => {
                upload.ended = true;
                Poll::Ready(end.map(|e| e.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// An answer on its way to a reader: in pieces, so that no more is given away than the reader takes.
#[derive(Debug)]
pub(super) struct Download {
    inner: Body,
    rest: Bytes,
    /// The request's own share, and what of the answer is here. None: it was refused.
    held: Option<(Cost, Held)>,
    /// Its turn to be made.
    making: Option<turns::Turn>,
    turn: Option<Arc<Turn>>,
    over: bool,
}

impl Download {
    pub(super) fn new(
        inner: Body,
        held: Option<(Cost, Held)>,
        making: Option<turns::Turn>,
    ) -> Self {
        Self {
            inner,
            rest: Bytes::new(),
            held,
            making,
            turn: TURN.try_with(Arc::clone).ok(),
            over: false,
        }
    }

    /// Says that so much of it is here.
    fn holds(&mut self, n: usize) -> bool {
        self.held.as_mut().is_none_or(|(_, answer)| answer.set(n))
    }

    fn piece(&mut self) -> Frame<Bytes> {
        // What was given before has been taken, but for the last piece.
        self.holds(self.rest.len());
        let n = self.rest.len().min(ANSWER_CHUNK);
        if let Some(turn) = &self.turn {
            turn.given();
        }
        Frame::data(self.rest.split_to(n))
    }
}

impl HttpBody for Download {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let download = self.get_mut();
        if let Some(turn) = &download.turn {
            turn.asked();
        }
        if !download.rest.is_empty() {
            return Poll::Ready(Some(Ok(download.piece())));
        }
        download.holds(0);
        if download.over {
            return Poll::Ready(None);
        }
        match ready!(Pin::new(&mut download.inner).poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if !data.is_empty() => {
                    download.making = None;
                    if download.holds(data.len()) {
                        download.rest = data;
                        return Poll::Ready(Some(Ok(download.piece())));
                    }
                    met("held");
                    download.over = true;
                    Poll::Ready(Some(Ok(Frame::trailers(told(&error::overloaded())))))
                }
                Ok(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(trailers) => Poll::Ready(Some(Ok(trailers))),
            },
            end => Poll::Ready(end),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && (self.over || self.inner.is_end_stream())
    }
}

/// A status as trailers.
fn told(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // It fails only for what is no header, which our own words are not.
    let _ = status.add_header(&mut trailers);
    trailers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_core::id::Name;

    use super::*;
    use crate::api::budget::{Budget, Kind};

    #[test]
    fn what_waits_for_the_rest_of_its_message_is_counted_wherever_it_is_cut() {
        let one = [&[0, 0, 0, 1, 44][..], &[7; 300]].concat();
        let all = [one.clone(), one].concat();
        for cut in 0..all.len() {
            let mut progress = Progress::default();
            let waiting = progress.came(&all[..cut]);
            let of_one = cut % 305;
            let expect = if of_one < PREFIX {
                of_one
            } else {
                of_one - PREFIX
            };
            assert_eq!(waiting, expect, "{cut}");
            assert_eq!(progress.waits_for_more(), of_one > 0, "{cut}");
            assert_eq!(progress.came(&all[cut..]), 0, "{cut}");
        }
    }

    fn held() -> (Cost, Held) {
        let (budget, tenant) = (Budget::default(), Name::new("alice").unwrap());
        let hold = || budget.hold(Kind::Call, &tenant, 0).unwrap();
        (Cost::new(hold()), hold())
    }

    /// How long an answer is offered to a reader that takes a piece of it so often.
    async fn offered(a_piece_every: Duration) -> Duration {
        let start = Instant::now();
        let body = Body::new(http_body(ANSWER_CHUNK * 100));
        read_in_time(async move {
            let mut download = Download::new(body, Some(held()), None);
            loop {
                let piece = poll_fn(|cx| Pin::new(&mut download).poll_frame(cx)).await;
                if piece.is_none() {
                    return;
                }
                // As hyper does until there is a window again.
                tokio::time::sleep(a_piece_every).await;
            }
        })
        .await;
        start.elapsed()
    }

    fn http_body(bytes: usize) -> impl HttpBody<Data = Bytes, Error = Status> {
        struct Whole(Option<Bytes>);
        impl HttpBody for Whole {
            type Data = Bytes;
            type Error = Status;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
            }
        }
        Whole(Some(vec![7; bytes].into()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_its_reader_and_not_for_ever() {
        assert_eq!(
            offered(Duration::from_millis(10)).await,
            Duration::from_secs(1),
            "read"
        );
        assert_eq!(
            offered(Duration::from_secs(3_600)).await,
            READER_PATIENCE,
            "not read"
        );
        let slowly = offered(READER_PATIENCE.mul_f64(0.9)).await;
        assert_eq!(slowly, ANSWER_PATIENCE, "slowly");
    }
}
