//! One lease as this process holds it: its deadline, what it was told, what it has to say.
//!
//! Shared between the guard (the worker's threads) and the hub (the heartbeat's thread). It makes no calls.
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::outbox::{Batch, Outbox};
use super::trials::{Offered, Told};
use crate::clock::BootTime;
use crate::model::{
    BusyInterval, Directive, DirectiveKind, LeaseRef, RenewalStatus, Step, Trial, TrialAnswer,
    Vector,
};

/// Whether the lease may still be used, as far as this process can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// The daemon confirmed it, and the deadline counted from that request has not passed.
    Confirmed,
    /// The daemon has been silent past the deadline. It may have given the lease to others, or be down.
    Unconfirmed,
    /// It is over. Stop using it.
    Lost(LossReason),
}

/// Why a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The right to use it has ended or gone to another process.
    Fenced,
    /// The daemon does not have it any more.
    Gone,
    /// The daemon was silent past the deadline, and the guard was told to stop then.
    Silence,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fenced => "it expired, was revoked, or went to another process",
            Self::Gone => "the daemon does not have it any more",
            Self::Silence => "the daemon was silent past its deadline",
        })
    }
}

/// What to do when the daemon has been silent past the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDaemonLost {
    /// Go on: while the daemon is down, what it enforced stands, and nobody else is granted anything.
    #[default]
    Continue,
    /// Count the lease as lost.
    Stop,
}

/// What a guard tells its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardEvent {
    /// The lease may, may not, or may perhaps be used.
    State(GuardState),
    /// The daemon asks for something.
    Directive(Directive),
}

/// Called on the heartbeat's thread with each event; it must not block.
pub type Callback = Arc<dyn Fn(&GuardEvent) + Send + Sync>;

/// The terms on which a lease is held.
pub(crate) struct Terms {
    pub(crate) lease: LeaseRef,
    pub(crate) ttl: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) on_daemon_lost: OnDaemonLost,
    pub(crate) callback: Option<Callback>,
}

/// A lease that this process holds.
pub(crate) struct Held {
    pub(crate) terms: Terms,
    shared: Mutex<Shared>,
    arrived: Condvar,
    arrived_async: Notify,
}

struct Shared {
    deadline: BootTime,
    /// What was announced last; `state()` also looks at the clock.
    announced: GuardState,
    /// At most one state and one directive of each kind: newer ones replace older ones.
    inbox: VecDeque<GuardEvent>,
    delivered: Vec<(DirectiveKind, u64)>,
    acknowledged: Option<(u64, Vector)>,
    acknowledgement_due: bool,
    outbox: Outbox,
    trials: Offered,
}

impl Held {
    pub(crate) fn new(terms: Terms, deadline: BootTime) -> Self {
        let announced = state(&terms, deadline, GuardState::Confirmed, BootTime::now());
        Self {
            terms,
            shared: Mutex::new(Shared {
                deadline,
                announced,
                inbox: VecDeque::new(),
                delivered: Vec::new(),
                acknowledged: None,
                acknowledgement_due: false,
                outbox: Outbox::default(),
                trials: Offered::default(),
            }),
            arrived: Condvar::new(),
            arrived_async: Notify::new(),
        }
    }

    /// A worker's panic in its own thread leaves what is in here whole: each change is complete by itself.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> GuardState {
        let shared = self.lock();
        state(
            &self.terms,
            shared.deadline,
            shared.announced,
            BootTime::now(),
        )
    }

    pub(crate) fn deadline(&self) -> BootTime {
        self.lock().deadline
    }

    /// The next event, waiting for at most `timeout`.
    pub(crate) fn wait_event(&self, timeout: Duration) -> Option<GuardEvent> {
        self.wait_for(timeout, |shared| shared.inbox.pop_front())
    }

    /// The next event.
    pub(crate) async fn event(&self) -> GuardEvent {
        loop {
            // `notify_one` keeps a permit for whoever comes late, so nothing is missed in between.
            if let Some(event) = self.lock().inbox.pop_front() {
                return event;
            }
            self.arrived_async.notified().await;
        }
    }

    pub(crate) fn offer_trials(&self, stage: Option<String>) {
        self.lock().trials.offer(stage);
    }

    pub(crate) fn answer_trial(&self, id: u64, answer: TrialAnswer) {
        self.lock().trials.answer(id, answer);
    }

    /// The next trial, waiting for at most `timeout`.
    pub(crate) fn wait_trial(&self, timeout: Duration) -> Option<Trial> {
        self.wait_for(timeout, |shared| shared.trials.take())
    }

    /// What is there to be taken, waiting for at most `timeout`.
    fn wait_for<T>(&self, timeout: Duration, take: impl Fn(&mut Shared) -> Option<T>) -> Option<T> {
        let until = Instant::now() + timeout;
        let mut shared = self.lock();
        loop {
            if let Some(taken) = take(&mut shared) {
                return Some(taken);
            }
            let left = until.checked_duration_since(Instant::now())?;
            shared = self
                .arrived
                .wait_timeout(shared, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The daemon asks for a trial.
    pub(super) fn asked_for_trial(&self, trial: Trial) {
        if self.lock().trials.ask(trial) {
            self.arrived.notify_all();
        }
    }

    /// What is to be told of trials.
    pub(super) fn take_trials(&self) -> Option<Told> {
        self.lock().trials.tell()
    }

    fn announce(&self, mut shared: MutexGuard<'_, Shared>, event: GuardEvent) {
        let replaced = |old: &GuardEvent| match (old, &event) {
            (GuardEvent::State(_), GuardEvent::State(_)) => true,
            (GuardEvent::Directive(a), GuardEvent::Directive(b)) => {
                a.kind == b.kind || (is_target(a.kind) && is_target(b.kind))
            }
            _ => false,
        };
        shared.inbox.retain(|old| !replaced(old));
        shared.inbox.push_back(event.clone());
        drop(shared);
        self.arrived.notify_all();
        self.arrived_async.notify_one();
        if let Some(callback) = &self.terms.callback {
            callback(&event);
        }
    }

    fn set_state(&self, mut shared: MutexGuard<'_, Shared>, new: GuardState) {
        if shared.announced != new {
            shared.announced = new;
            self.announce(shared, GuardEvent::State(new));
        }
    }

    /// The daemon answered a renewal that was sent at `sent_at`.
    pub(super) fn renewed(&self, status: RenewalStatus, remaining: Duration, sent_at: BootTime) {
        let mut shared = self.lock();
        if matches!(shared.announced, GuardState::Lost(_)) {
            return;
        }
        let new = match status {
            RenewalStatus::Renewed => {
                // Counted from when we asked: the daemon counts from when it heard, which is later.
                let deadline = sent_at.after(remaining.min(self.terms.ttl));
                shared.deadline = shared.deadline.max(deadline);
                let now = BootTime::now();
                state(&self.terms, shared.deadline, GuardState::Confirmed, now)
            }
            RenewalStatus::Fenced => GuardState::Lost(LossReason::Fenced),
            RenewalStatus::Lost => GuardState::Lost(LossReason::Gone),
        };
        self.set_state(shared, new);
    }

    /// Looks at the clock, and announces a deadline that has passed.
    pub(super) fn look_at_clock(&self) {
        let shared = self.lock();
        let new = state(
            &self.terms,
            shared.deadline,
            shared.announced,
            BootTime::now(),
        );
        self.set_state(shared, new);
    }

    /// When the clock should be looked at, as a time from now; none if there is nothing to see.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let shared = self.lock();
        (shared.announced == GuardState::Confirmed).then(|| shared.deadline.since(BootTime::now()))
    }

    /// Whether there is any use in renewing it.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.lock().announced, GuardState::Lost(_))
    }

    /// The daemon asks for something, perhaps not for the first time.
    pub(super) fn directed(&self, directive: Directive) {
        let mut shared = self.lock();
        let newest = shared
            .acknowledged
            .as_ref()
            .map(|(generation, _)| *generation);
        if is_target(directive.kind) && newest >= Some(directive.generation) {
            // Done already; the daemon has not heard it.
            shared.acknowledgement_due = true;
            return;
        }
        let key = (directive.kind, directive.generation);
        if shared.delivered.contains(&key) {
            return;
        }
        shared.delivered.retain(|(kind, _)| *kind != directive.kind);
        shared.delivered.push(key);
        self.announce(shared, GuardEvent::Directive(directive));
    }

    pub(crate) fn acknowledge(&self, generation: u64, effective: Vector) {
        let mut shared = self.lock();
        shared.acknowledged = Some((generation, effective));
        shared.acknowledgement_due = true;
    }

    pub(crate) fn report(&self, lanes: u32, intervals: &[BusyInterval], steps: &[Step]) {
        self.lock().outbox.add(lanes, intervals, steps);
    }

    /// What is to be acknowledged; once taken it is not due until a new stream opens.
    pub(super) fn take_acknowledgement(&self) -> Option<(u64, Vector)> {
        let mut shared = self.lock();
        std::mem::take(&mut shared.acknowledgement_due)
            .then(|| shared.acknowledged.clone())
            .flatten()
    }

    pub(super) fn take_report(&self, room: usize) -> Option<Batch> {
        self.lock().outbox.take(room)
    }

    pub(super) fn has_reports(&self) -> bool {
        !self.lock().outbox.is_empty()
    }

    /// A new stream is open: what the last one may have swallowed is said again.
    pub(super) fn reopened(&self) {
        let mut shared = self.lock();
        shared.acknowledgement_due = shared.acknowledged.is_some();
        shared.trials.reopened();
    }
}

const fn is_target(kind: DirectiveKind) -> bool {
    matches!(kind, DirectiveKind::Target | DirectiveKind::Restart)
}

fn state(terms: &Terms, deadline: BootTime, announced: GuardState, now: BootTime) -> GuardState {
    match (announced, terms.on_daemon_lost) {
        (GuardState::Lost(_), _) => announced,
        _ if now < deadline => GuardState::Confirmed,
        (_, OnDaemonLost::Continue) => GuardState::Unconfirmed,
        (_, OnDaemonLost::Stop) => GuardState::Lost(LossReason::Silence),
    }
}
