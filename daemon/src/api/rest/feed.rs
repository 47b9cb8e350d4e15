//! Server-sent events: the audit trail as it grows, and objects whenever they change.
//!
//! What is sent is bounded by what the reader takes: one who takes nothing for [`READER_PATIENCE`] is left. A stream
//! ends with an `end` event and a hint when to come back; the audit trail goes on where it was by `Last-Event-ID`.
use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event as Message, KeepAlive, KeepAliveStream};
use evenkeel_proto::v1 as pb;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use utoipa::IntoParams;

use super::Shared;
use super::access::{Closing, Ends, Viewer};
use super::ask::{self, Number, Path, Query};
use super::jobs::JobPath;
use super::problem::Problem;
use super::shape::{Event, Job, Node};
use crate::api::budget::{Held, Kind, Place};
use crate::api::context::Context;
use crate::api::convert;
use crate::api::error;
use crate::api::grpc;
use crate::api::limits::{
    NUMBER_MAX, OUTBOUND_MAX, READER_PATIENCE, STREAM_AGAIN, STREAM_BEAT, STREAM_PAGE, WATCH_EVERY,
};
use crate::api::past;
use crate::api::tenants::Stranger;
use crate::api::turns::Turn;
use crate::handle::{EventRecord, Page};

/// The header in which a browser says what it saw last.
const LAST_EVENT_ID: &str = "last-event-id";

/// A stream of messages, with a sign of life in between.
pub(super) type Feed = Sse<KeepAliveStream<BoxStream<'static, Result<Message, Infallible>>>>;

/// Until the messages end, or the right to see them.
fn feed(ends: Ends, mut messages: impl Stream<Item = Message> + Send + Unpin + 'static) -> Feed {
    let mut right = ends.0.map(|at| Box::pin(sleep_until(at)));
    let mut over = false;
    let messages = futures::stream::poll_fn(move |cx| {
        if over {
            return Poll::Ready(None);
        }
        if let Some(right) = &mut right
            && right.as_mut().poll(cx).is_ready()
        {
            over = true;
            return Poll::Ready(Some(end(Stranger::Token.status())));
        }
        messages.poll_next_unpin(cx)
    });
    let messages = messages.map(Ok).boxed();
    let beat = KeepAlive::new().interval(STREAM_BEAT).text("still here");
    Sse::new(messages).keep_alive(beat)
}

/// An object as a message.
fn message(what: &impl Serialize) -> Message {
    let message = Message::default().json_data(what);
    message.unwrap_or_else(|error| {
        tracing::error!(%error, "a message of a stream cannot be written as JSON");
        Message::default().comment("a message could not be written; this is a bug of the daemon")
    })
}

/// The last message, and when to come back.
fn end(why: Status) -> Message {
    let why = message(&Problem::from(why));
    why.event("end").retry(STREAM_AGAIN)
}

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FeedQuery {
    /// Begin behind this number; left out: with what happens from now on. `Last-Event-ID` goes before it.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    after: Option<Number>,
    /// Only those of this lease.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    lease: Option<Number>,
    /// Only those of the job with this name, its leases' among them.
    #[param(min_length = 1, max_length = 128, pattern = "^[!-~]+$")]
    job: Option<String>,
}

/// Events as they happen
///
/// Server-sent events: `id` is the number in the audit trail, `data` the event. After a break, `Last-Event-ID` goes on
/// where it was. Messages with a name are about the stream: `reset` where that number is not of this trail, and the
/// last one, `end`, with a problem that says why.
#[utoipa::path(
    get,
    path = "/v1/events/stream",
    operation_id = "streamEvents",
    tag = "streams",
    params(
        FeedQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "The last number that was seen.")
    ),
    responses((status = 200, body = String, content_type = "text/event-stream"))
)]
pub(super) async fn events(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Closing(closing): Closing,
    ends: Ends,
    headers: HeaderMap,
    Query(query): Query<FeedQuery>,
) -> Result<Feed, Problem> {
    let seen = last_event_id(&headers)?.or(query.after);
    let place = ctx.place(Kind::Feed, &caller)?;
    let job = ask::name("job", query.job.as_deref())?;
    let request = pb::ListEventsRequest {
        lease_id: ask::id("lease", query.lease)?,
        job: job.map(|name| name.to_string()).unwrap_or_default(),
        page_size: STREAM_PAGE,
        ..Default::default()
    };
    let page = grpc::wanted(&ctx, &caller, &request).await?;
    let newest = past::newest(&ctx).await?;
    let held = ctx.hold(Kind::Feed, &caller, 0)?;
    let (down, messages) = mpsc::channel(OUTBOUND_MAX);
    if seen.is_some_and(|n| n.0 > newest) {
        // Of another trail than this one, such as before a restore: all that can be told is what comes.
        let reset = message(&Reset { newest }).event("reset");
        let _ = down.try_send(reset.id(newest.to_string())); // there is room
    }
    let follower = Follower {
        page: Page {
            after: Some(seen.map_or(newest, |n| n.0.min(newest))),
            ..page
        },
        ctx: ctx.clone(),
        down,
        closing,
        held,
        _place: place,
    };
    ctx.tasks.spawn(follower.run());
    Ok(feed(ends, ReceiverStream::new(messages)))
}

/// Where a stream goes on whose reader came with a number that this trail does not have.
#[derive(Debug, Serialize)]
struct Reset {
    newest: u64,
}

/// Tells a reader what is new in the audit trail.
struct Follower {
    ctx: Arc<Context>,
    page: Page,
    down: mpsc::Sender<Message>,
    closing: CancellationToken,
    /// What of a page is here.
    held: Held,
    _place: Place,
}

impl Follower {
    async fn run(mut self) {
        if let Err(why) = self.follow().await {
            let _ = tokio::time::timeout(READER_PATIENCE, self.down.send(end(why))).await; // or it is gone
        }
    }

    /// Until nobody reads, or until it has to end and says why.
    async fn follow(&mut self) -> Result<(), Status> {
        let mut changes = self.ctx.handle.changes();
        loop {
            changes.mark_unchanged();
            let records = past::page(&self.ctx, &self.page).await?;
            let more = records.len() >= STREAM_PAGE as usize;
            // As rows, as what waits for the reader, and as JSON.
            let page: usize = records.iter().map(|r| r.json.len()).sum();
            if !self.held.set(3 * page) {
                return Err(error::overloaded());
            }
            for record in records {
                self.page.after = Some(record.seq);
                if !self.tell(record).await? {
                    return Ok(());
                }
            }
            if more {
                continue;
            }
            if !self.all_taken().await? {
                return Ok(());
            }
            self.held.set(0);
            tokio::select! {
                () = self.closing.cancelled() => return Err(error::reconnect()),
                () = self.down.closed() => return Ok(()),
                changed = changes.changed() => changed.map_err(|_| error::stopping())?,
            }
            // What follows at once is told with it.
            tokio::time::sleep(WATCH_EVERY).await;
        }
    }

    /// Waits until the last message has gone to the reader. False: nobody reads it.
    async fn all_taken(&self) -> Result<bool, Status> {
        let all = self.down.reserve_many(OUTBOUND_MAX);
        tokio::select! {
            () = self.closing.cancelled() => Err(error::reconnect()),
            taken = tokio::time::timeout(READER_PATIENCE, all) => Ok(matches!(taken, Ok(Ok(_)))),
        }
    }

    /// False: nobody reads it.
    async fn tell(&self, record: EventRecord) -> Result<bool, Status> {
        let event = Event::from(convert::event(record));
        let message = message(&event).id(event.seq.to_string());
        tokio::select! {
            () = self.closing.cancelled() => Err(error::reconnect()),
            sent = tokio::time::timeout(READER_PATIENCE, self.down.send(message)) => {
                Ok(matches!(sent, Ok(Ok(()))))
            }
        }
    }
}

/// The node whenever it changes
///
/// Server-sent events, each with the node as it is, at most ten a second. The last one is `end`, with a problem that
/// says why.
#[utoipa::path(
    get,
    path = "/v1/node/watch",
    operation_id = "watchNode",
    tag = "streams",
    responses((status = 200, body = String, content_type = "text/event-stream"))
)]
pub(super) async fn node(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Closing(closing): Closing,
    ends: Ends,
) -> Result<Feed, Problem> {
    let place = ctx.place(Kind::Feed, &caller)?;
    let looks = grpc::watch_node(&ctx, &caller, closing, place);
    Ok(feed(
        ends,
        looks.map(|look| match look {
            Ok(seen) => message(&seen.node.map(Node::from)),
            Err(why) => end(why),
        }),
    ))
}

/// A job whenever it changes
///
/// Server-sent events, each with the job as it is, at most ten a second, until it is over.
#[utoipa::path(
    get,
    path = "/v1/jobs/{name}/watch",
    operation_id = "watchJob",
    tag = "streams",
    params(JobPath),
    responses((status = 200, body = String, content_type = "text/event-stream"))
)]
pub(super) async fn job(
    State(ctx): Shared,
    Viewer(caller): Viewer,
    Closing(closing): Closing,
    ends: Ends,
    Extension(turn): Extension<Turn>,
    Path(path): Path<JobPath>,
) -> Result<Feed, Problem> {
    let place = ctx.place(Kind::Feed, &caller)?;
    let looks = grpc::watch_job(&ctx, &caller, path.name()?, closing, place, turn).await?;
    Ok(feed(
        ends,
        looks.map(|look| match look {
            Ok(seen) => message(&seen.job.map(Job::from)),
            Err(why) => end(why),
        }),
    ))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<Number>, Problem> {
    let Some(given) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let number = given.to_str().ok().and_then(|text| text.parse().ok());
    let number = number.filter(|n| *n <= NUMBER_MAX).map(Number);
    let bad = || {
        Problem::from(convert::Bad::new(
            "Last-Event-ID",
            "is not the number of an event",
        ))
    };
    number.map(Some).ok_or_else(bad)
}
