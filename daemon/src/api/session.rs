//! The stream of a process: one frame renews many leases; reports and acknowledgements go up, directives come down.
//!
//! Offers of trials and their results go up, trials come down (`trials`).
//!
//! Renewals are answered at once, from one atomic word each; they wait for nothing but, rarely, the verdict on an
//! expiry that is being decided. Reports and acknowledgements run beside them, in the order in which they came.
//! Directives are level-triggered: told when the controller says that something changed, when a lease is seen for
//! the first time, and again every few seconds until they are acknowledged. To look for them waits for the controller,
//! and so for its commits: it goes on beside the renewals, which do not. A reader that does not keep up is dropped; its
//! leases keep their TTL.
use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::command::Command;
use evenkeel_core::converge::{self, Order};
use evenkeel_core::id::{Fence, LeaseId};
use evenkeel_core::step::State;
use evenkeel_core::unit::Time;
use evenkeel_proto::v1 as pb;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use prost::Message as _;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::budget::{Held, Kind, Place};
use super::caller::Peer;
use super::context::Context;
use super::convert::{self, Around, Bad, Daemon};
use super::error;
use super::grpc::{LEASES, check_renewals, note_anothers, renew};
use super::limits::{
    ACKNOWLEDGEMENTS_MAX, DIRECT_EVERY, DIRECTIVE_AGAIN, OUTBOUND_MAX, READER_PATIENCE,
    REPORTS_MAX, SESSION_LEASES_MAX, SESSION_LOOK, SESSION_PENDING_MAX, STREAM_WINDOW, TRIALS_MAX,
    TRIALS_WAITING, UNHEARD_PATIENCE,
};
use super::trials::{Door, Inbox};

type Down = Result<pb::SessionResponse, Status>;
/// What a session's client is told.
pub(super) type Told = BoxStream<'static, Down>;
/// An answer, and its bytes until it is taken.
type Queued = (Down, Option<Held>);
/// What the holders of some leases have to be told; none: the controller has no time to be looked at now.
type Look = BoxFuture<'static, Option<Vec<pb::Directive>>>;

/// Starts a session.
pub(super) fn open(
    ctx: Arc<Context>,
    peer: Arc<Peer>,
    up: Streaming<pb::SessionRequest>,
    place: Place,
) -> Told {
    let (down, stream) = mpsc::channel(OUTBOUND_MAX);
    let (door, trials) = mpsc::channel(TRIALS_WAITING);
    let session = Session {
        ctx: ctx.clone(),
        peer,
        down,
        wake: Arc::new(Notify::new()),
        next_look: Instant::now(),
        look: None,
        to_look_at: Vec::new(),
        leases: BTreeMap::new(),
        last: Vec::new(),
        under_way: FuturesUnordered::new(),
        door,
        trials,
        renewals: metrics::counter!("evenkeel_renewals_total"),
    };
    ctx.tasks.spawn(async move {
        let _place = place;
        session.run(up).await;
    });
    Box::pin(ReceiverStream::new(stream).map(|(answer, _)| answer))
}

/// Why a session ends.
enum End {
    /// The reader is gone or does not keep up.
    Reader,
    /// The client has to be told why.
    Tell(Status),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Tell(status)
    }
}

struct Session {
    ctx: Arc<Context>,
    peer: Arc<Peer>,
    down: mpsc::Sender<Queued>,
    /// The controller rings here when there may be a directive for one of the leases.
    wake: Arc<Notify>,
    /// Before this it is not answered.
    next_look: Instant,
    /// The look for directives that is under way, and the leases that come after it.
    look: Option<Look>,
    to_look_at: Vec<(LeaseId, Fence)>,
    /// What this session renews, and the fences it does so with.
    leases: BTreeMap<LeaseId, Fence>,
    /// The last frame's renewals: most frames are like the one before.
    last: Vec<pb::LeaseRef>,
    /// Reports and acknowledgements that the controller has not answered; each says why it was refused, if it was.
    under_way: FuturesUnordered<BoxFuture<'static, Option<String>>>,
    /// Where calibrations ask this session's workers for trials.
    door: Door,
    trials: Inbox,
    renewals: metrics::Counter,
}

impl Session {
    async fn run(mut self, mut up: Streaming<pb::SessionRequest>) {
        let end = self.serve(&mut up).await;
        self.ctx.trials.close(&self.door);
        if let Err(End::Tell(status)) = end {
            // If the reader is that slow, it sees the stream end without a word.
            drop(self.down.try_send((Err(status), None)));
        }
        // What was enqueued runs, and has its place until it has run.
        let rest = async { while self.under_way.next().await.is_some() {} };
        let _ = tokio::time::timeout(UNHEARD_PATIENCE, rest).await;
    }

    async fn serve(&mut self, up: &mut Streaming<pb::SessionRequest>) -> Result<(), End> {
        let closing = self.peer.closing.clone();
        let closing = closing.cancelled();
        tokio::pin!(closing);
        let mut again = tokio::time::interval(DIRECTIVE_AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (wake, down) = (self.wake.clone(), self.down.clone());
        loop {
            tokio::select! {
                biased;
                // Its stream is gone, or was dropped because nobody reads it.
                () = down.closed() => return Err(End::Reader),
                () = &mut closing => return Err(error::reconnect().into()),
                Some(refused) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.refused(refused.into_iter().collect()).await?;
                }
                directives = seen(&mut self.look) => self.direct(directives).await?,
                Some(trial) = self.trials.recv() => {
                    let answer = pb::SessionResponse {
                        trials: vec![trial],
                        ..Default::default()
                    };
                    self.tell(answer).await?;
                }
                () = rung(&wake, self.next_look), if self.look.is_none() => self.look_round(),
                _ = again.tick(), if self.look.is_none() => self.look_round(),
                frame = up.message() => match frame {
                    Ok(Some(frame)) => self.frame(frame).await?,
                    // The client has said all it will: what is under way still gets its answer.
                    Ok(None) => return self.finish().await,
                    // If the client is gone, nobody reads it.
                    Err(status) => return Err(error::unreadable(status).into()),
                },
            }
        }
    }

    async fn finish(&mut self) -> Result<(), End> {
        while let Some(refused) = self.under_way.next().await {
            self.refused(refused.into_iter().collect()).await?;
        }
        Ok(())
    }

    async fn frame(&mut self, mut frame: pb::SessionRequest) -> Result<(), End> {
        check_renewals(frame.renew.len())?;
        let no_trials = frame.trial_offers.is_empty() && frame.trial_results.is_empty();
        let empty = frame.reports.is_empty() && frame.acknowledgements.is_empty() && no_trials;
        // First of all: who waits for a reader below has the frame in its hands.
        let mut refused = Vec::from_iter(shorten(&mut frame));
        if !frame.renew.is_empty() || empty {
            let renewals = renew(&self.ctx, &self.peer.caller, &frame.renew).await?;
            note_anothers(&self.ctx, &self.peer, "Session", &renewals);
            self.renewals.increment(renewals.len() as u64);
            let fresh = frame.renew != self.last && self.meet(&frame.renew, &renewals)?;
            // A frame that did not go through in full is looked at again when it comes again.
            self.last = if self.part(&renewals) {
                Vec::new()
            } else {
                frame.renew
            };
            let answer = pb::SessionResponse {
                renewals,
                ..Default::default()
            };
            self.tell(answer).await?;
            if fresh {
                self.next_look = Instant::now();
                self.wake.notify_one();
            }
        }
        if !empty {
            refused.extend(self.take_in(&frame.reports, &frame.acknowledgements));
            refused.extend(self.take_trials(&frame.trial_offers, frame.trial_results));
            self.refused(refused).await?;
        }
        Ok(())
    }

    /// Leases that are seen for the first time (with this fence) ring for this session from now on.
    fn meet(&mut self, refs: &[pb::LeaseRef], results: &[pb::RenewResult]) -> Result<bool, Status> {
        let caller = &self.peer.caller;
        let mut fresh = false;
        for (w, result) in refs.iter().zip(results) {
            let (id, fence) = (LeaseId(w.lease_id), Fence(w.fence));
            let good = result.status == pb::RenewStatus::Renewed as i32;
            if good && self.leases.insert(id, fence) != Some(fence) {
                self.ctx.handle.listen(caller, id, &self.wake);
                fresh = true;
            }
        }
        if self.leases.len() > SESSION_LEASES_MAX {
            let why =
                format!("this session has more than {SESSION_LEASES_MAX} leases; open another one");
            return Err(error::invalid("renew", &why));
        }
        Ok(fresh)
    }

    /// Leases that are over, or another's by now, are no longer this session's. Says whether there were any.
    fn part(&mut self, results: &[pb::RenewResult]) -> bool {
        let mut any = false;
        for result in results
            .iter()
            .filter(|r| r.status != pb::RenewStatus::Renewed as i32)
        {
            let lease = LeaseId(result.lease_id);
            self.leases.remove(&lease);
            self.ctx.trials.withdraw(lease, &self.door);
            any = true;
        }
        any
    }

    /// Enqueues reports and acknowledgements; says which were refused at once.
    fn take_in(&mut self, reports: &[pb::WorkReport], acks: &[pb::Acknowledge]) -> Vec<String> {
        let mut refused = Vec::new();
        let caller = self.peer.caller.clone();
        for (i, w) in acks.iter().enumerate() {
            let parsed = convert::acknowledge(w, &caller);
            refused.extend(self.enqueue(format!("acknowledgements[{i}]"), parsed).err());
        }
        for (i, w) in reports.iter().enumerate() {
            let parsed = convert::report(w, &caller);
            refused.extend(self.enqueue(format!("reports[{i}]"), parsed).err());
        }
        refused
    }

    /// Takes offers of trials and results of trials; says which were refused.
    fn take_trials(&self, offers: &[pb::TrialOffer], results: Vec<pb::TrialResult>) -> Vec<String> {
        let mut refused = Vec::new();
        for (i, w) in offers.iter().enumerate() {
            let taken = self.offer(w);
            refused.extend(taken.err().map(|why| format!("trial_offers[{i}]: {why}")));
        }
        for (i, w) in results.into_iter().enumerate() {
            let taken = self.trial_done(w);
            refused.extend(taken.err().map(|why| format!("trial_results[{i}]: {why}")));
        }
        refused
    }

    fn offer(&self, w: &pb::TrialOffer) -> Result<(), String> {
        let (lease, fence, stage) = convert::offer(w).map_err(|bad| bad.to_string())?;
        self.renews(lease, fence)?;
        let trials = &self.ctx.trials;
        match stage {
            None => trials.withdraw(lease, &self.door),
            Some(stage) => {
                let stage = (self.peer.caller.tenant.clone(), stage);
                let taken = trials.offer((lease, fence), stage, &self.door);
                taken.map_err(|refusal| refusal.to_string())?;
            }
        }
        Ok(())
    }

    fn trial_done(&self, w: pb::TrialResult) -> Result<(), String> {
        let (lease, fence) = convert::trial_result(&w).map_err(|bad| bad.to_string())?;
        self.renews(lease, fence)?;
        let taken = self.ctx.trials.done(lease, &self.door, w);
        taken.map_err(|refusal| refusal.to_string())
    }

    /// Only who holds a lease here speaks for its worker.
    fn renews(&self, lease: LeaseId, fence: Fence) -> Result<(), String> {
        match self.leases.get(&lease) == Some(&fence) {
            true => Ok(()),
            false => Err(format!(
                "lease: this session does not renew {lease} with fence {}; renew it first",
                fence.0
            )),
        }
    }

    fn enqueue(&self, what: String, parsed: Result<Command, Bad>) -> Result<(), String> {
        let command = parsed.map_err(|bad| format!("{what}: {bad}"))?;
        if self.under_way.len() >= SESSION_PENDING_MAX {
            return Err(format!(
                "{what}: too much of this session waits already; report less often"
            ));
        }
        let (ctx, peer) = (self.ctx.clone(), self.peer.clone());
        let kind = match command {
            Command::Acknowledge { .. } => Kind::Urgent,
            _ => Kind::Call,
        };
        let place = ctx.place(kind, &peer.caller);
        let place = place.map_err(|busy| format!("{what}: {}", busy.message()))?;
        self.under_way.push(Box::pin(async move {
            let _place = place;
            let failure = ctx.handle.run(command).await.err()?;
            // As any caller would be told: another tenant's holders are not named.
            let status = error::status(failure, &peer.caller);
            peer.note_refusal(&ctx.config.audit, &format!("{LEASES}Session"), &status);
            Some(format!("{what}: {}", status.message()))
        }));
        Ok(())
    }

    async fn refused(&mut self, refused: Vec<String>) -> Result<(), End> {
        if refused.is_empty() {
            return Ok(());
        }
        let answer = pb::SessionResponse {
            refused,
            ..Default::default()
        };
        self.tell(answer).await
    }

    /// Begins to look for what the holders have to be told now.
    fn look_round(&mut self) {
        self.to_look_at = (self.leases.iter())
            .map(|(id, fence)| (*id, *fence))
            .collect();
        self.look_on();
    }

    fn look_on(&mut self) {
        if self.to_look_at.is_empty() {
            self.next_look = Instant::now() + DIRECT_EVERY;
            return;
        }
        let n = self.to_look_at.len().min(SESSION_LOOK);
        let some: Vec<_> = self.to_look_at.drain(..n).collect();
        let ctx = self.ctx.clone();
        self.look = Some(Box::pin(async move {
            let looked = ctx.clone();
            let look = move |state: &State, now| directives(&looked, state, now, &some);
            ctx.handle.read(look).await.ok()
        }));
    }

    /// Tells what was seen, and looks on. Where nothing could be seen, the next round comes soon.
    async fn direct(&mut self, seen: Option<Vec<pb::Directive>>) -> Result<(), End> {
        self.look = None;
        let Some(directives) = seen else {
            self.to_look_at.clear();
            self.look_on();
            return Ok(());
        };
        if !directives.is_empty() {
            let answer = pb::SessionResponse {
                directives,
                ..Default::default()
            };
            self.tell(answer).await?;
        }
        self.look_on();
        Ok(())
    }

    async fn tell(&mut self, answer: pb::SessionResponse) -> Result<(), End> {
        let hold = |n| self.ctx.hold(Kind::Stream, &self.peer.caller, n);
        let Ok(held) = hold(answer.encoded_len()) else {
            return Err(self.too_slow());
        };
        match self.down.try_send((Ok(answer), Some(held))) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(End::Reader),
            Err(TrySendError::Full(answer)) => {
                // What the client says meanwhile lies unread.
                let Ok(_unread) = hold(STREAM_WINDOW as usize) else {
                    return Err(self.too_slow());
                };
                let told = tokio::time::timeout(READER_PATIENCE, self.down.send(answer)).await;
                match told {
                    Ok(Ok(())) => Ok(()),
                    _ => Err(self.too_slow()),
                }
            }
        }
    }

    fn too_slow(&self) -> End {
        tracing::debug!(tenant = %self.peer.caller.tenant, "a session's reader does not keep up");
        End::Reader
    }
}

/// Takes out what is too much for one frame; says so.
fn shorten(frame: &mut pb::SessionRequest) -> Option<String> {
    let trials = frame.trial_offers.len().max(frame.trial_results.len());
    if frame.reports.len() <= REPORTS_MAX
        && frame.acknowledgements.len() <= ACKNOWLEDGEMENTS_MAX
        && trials <= TRIALS_MAX
    {
        return None;
    }
    (frame.reports, frame.acknowledgements) = (Vec::new(), Vec::new());
    (frame.trial_offers, frame.trial_results) = (Vec::new(), Vec::new());
    Some(format!(
        "reports: a frame has at most {REPORTS_MAX} reports, {ACKNOWLEDGEMENTS_MAX} acknowledgements, {TRIALS_MAX} offers \
         of trials and {TRIALS_MAX} results; all of this frame's were dropped"
    ))
}

/// The controller has rung, and it is time to answer. What it rings meanwhile is one ring.
async fn rung(wake: &Notify, not_before: Instant) {
    tokio::time::sleep_until(not_before).await;
    wake.notified().await;
}

/// What a look has seen, if one is under way.
async fn seen(look: &mut Option<Look>) -> Option<Vec<pb::Directive>> {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

/// What has to be told about these leases now. They were seen to be the session's, with these fences.
fn directives(
    ctx: &Context,
    state: &State,
    now: Time,
    leases: &[(LeaseId, Fence)],
) -> Vec<pb::Directive> {
    let (d, v) = (&state.durable, &state.volatile);
    let around = Around::new(d.node(), &ctx.config.gpu_sockets);
    let daemon = Daemon {
        socket: &ctx.config.socket,
    };
    let told = |(id, fence): &(LeaseId, Fence)| {
        let lease = d.leases().get(id)?;
        let directive = converge::directive(d, v, now, lease)?;
        // In quarantine the fence has risen already; its last holder is the one to be told.
        let mine = lease.fence == *fence || directive.order == Order::Release;
        mine.then(|| convert::directive(directive, lease, *fence, &around, &daemon))
    };
    leases.iter().filter_map(told).collect()
}
