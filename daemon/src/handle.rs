//! The door to the controller: cheap to clone, the only thing that the API holds. Commands go in by channels and
//! answers come back by one-shots; renewals touch one atomic word and go nowhere near a disk.
//!
//! A caller that goes away changes nothing: the command is in the channel and runs exactly once.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use evenkeel_core::clock::{LeaseClock, Renewal};
use evenkeel_core::command::{Acquire, Caller, Command, Rejection, Reply};
use evenkeel_core::id::{Fence, LeaseId, Name};
use evenkeel_core::lease::{Lease, Phase};
use evenkeel_core::step::State;
use evenkeel_core::unit::{Millis, Time};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::clock;
pub use crate::ledger::{DECISIONS, EventRecord, History, HistoryError, Misplaced, PAGE_MAX, Page};

/// Commands that may wait for the controller. Beyond it, callers are told to come back: a longer line would only
/// make every answer later than its caller's patience.
pub const COMMANDS_MAX: usize = 4_096;
/// The same for releases, observations and verdicts on renewals: a flood of requests for grants cannot fill it.
pub const URGENT_MAX: usize = 4_096;
/// Reads that may wait for the controller.
pub const READS_MAX: usize = 1_024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The core refused.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Too much is waiting.
    #[error("the daemon has more requests than it can take now; try again in {}", .retry)]
    Busy {
        /// When.
        retry: Millis,
    },
    /// The ledger's disk is full, or nearly so: grants wait, everything else goes on.
    #[error(
        "the disk of the ledger is full, or nearly so: nothing new is granted; renewals and releases go on. Free space \
        on it"
    )]
    DiskFull,
    /// The ledger or its lock was deleted or replaced: grants wait, everything else goes on.
    #[error(transparent)]
    Misplaced(Misplaced),
    /// The ledger could not be written this time.
    #[error("the ledger could not be written ({0}); nothing was changed, try again")]
    Ledger(String),
    /// It may be done or not. Only the next start can tell.
    #[error(
        "nobody knows whether this was done: the disk of the ledger failed while it was written, and the daemon has to \
        start again to find out. Ask again with the same request_id: it has one effect"
    )]
    InDoubt,
    /// Waited in the queue for as long as was asked.
    #[error("no room within {waited}; {why}")]
    QueueTimeout {
        /// How long.
        waited: Millis,
        /// What was short at first.
        why: String,
    },
    /// The daemon is stopping.
    #[error("the daemon is stopping; its leases stay, and it answers again after its restart")]
    Stopping,
}

/// Why nothing new is granted, while all else goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// The ledger's disk is full, or nearly so.
    DiskFull,
    /// The ledger or its lock is not in its place.
    Misplaced(Misplaced),
}

impl From<Degraded> for Failure {
    fn from(why: Degraded) -> Self {
        match why {
            Degraded::DiskFull => Self::DiskFull,
            Degraded::Misplaced(what) => Self::Misplaced(what),
        }
    }
}

/// A command and where its answer goes.
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) reply: oneshot::Sender<Result<Reply, Failure>>,
}

type Read = Box<dyn FnOnce(&State, Time) + Send>;

/// What renewals need of a lease, published after its grant is durable.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) clock: Arc<LeaseClock>,
    pub(crate) tenant: Name,
    /// The job that it is for, by name; kept when that has ended.
    job: Option<Name>,
    pub(crate) ttl: Millis,
    /// The session that renews it, to be woken when there is a directive.
    listener: Mutex<Option<Arc<Notify>>>,
}

impl Published {
    pub(crate) fn new(
        clock: Arc<LeaseClock>,
        lease: &Lease,
        job: Option<&Name>,
        old: Option<&Self>,
    ) -> Self {
        let listener = old.and_then(|o| {
            o.listener
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
        });
        Self {
            clock,
            tenant: lease.tenant.clone(),
            job: job.cloned(),
            ttl: lease.ttl,
            listener: Mutex::new(listener),
        }
    }
    fn seen_by(&self, caller: &Caller) -> bool {
        caller.sees(&self.tenant, self.job.as_ref())
    }
    pub(crate) fn wake(&self) {
        if let Some(notify) = &*self.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            notify.notify_one();
        }
    }
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The deadline moved; so much is left.
    Until(Millis),
    /// The fence is old.
    Fenced,
    /// There is no such lease of the caller's any more.
    Lost,
}

/// What the controller's answer to a renewal that met a closing clock says about the lease. A holder who is told
/// that it is lost stops for good, so only a lease that *is* over is lost; a daemon that stops, a ledger that cannot
/// be written or a bug say nothing about it.
///
/// # Errors
/// When the answer says nothing about the lease.
pub fn verdict(answer: Result<Reply, Failure>, ttl: Millis) -> Result<Renewed, Failure> {
    match answer {
        Ok(_) => Ok(Renewed::Until(ttl)),
        Err(Failure::Rejected(Rejection::Fenced { .. } | Rejection::WrongPhase { .. })) => {
            Ok(Renewed::Fenced)
        }
        Err(Failure::Rejected(Rejection::NotFound(_) | Rejection::Lost { .. })) => {
            Ok(Renewed::Lost)
        }
        Err(failure) => Err(failure),
    }
}

/// Who waits for which entry of the queue.
type Waiters = HashMap<LeaseId, Vec<oneshot::Sender<Result<Lease, Failure>>>>;

/// Shared between all handles and the controller.
pub(crate) struct Shared {
    pub(crate) published: DashMap<LeaseId, Published>,
    pub(crate) waiters: Mutex<Waiters>,
    /// Counts commits that changed something: watchers look again.
    pub(crate) changes: watch::Sender<u64>,
    /// Why the ledger refuses grants, if it does.
    pub(crate) degraded: watch::Sender<Option<Degraded>>,
    pub(crate) history: History,
}

/// See the module's text.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Request>,
    urgent: mpsc::Sender<Request>,
    reads: mpsc::Sender<Read>,
    shared: Arc<Shared>,
}

/// The controller's ends of the channels.
pub(crate) struct Ends {
    pub(crate) commands: mpsc::Receiver<Request>,
    pub(crate) urgent: mpsc::Receiver<Request>,
    pub(crate) reads: mpsc::Receiver<Read>,
    pub(crate) shared: Arc<Shared>,
}

pub(crate) fn pair(history: History) -> (Handle, Ends) {
    let (commands_in, commands) = mpsc::channel(COMMANDS_MAX);
    let (urgent_in, urgent) = mpsc::channel(URGENT_MAX);
    let (reads_in, reads) = mpsc::channel(READS_MAX);
    let shared = Arc::new(Shared {
        published: DashMap::new(),
        waiters: Mutex::default(),
        changes: watch::channel(0).0,
        degraded: watch::channel(None).0,
        history,
    });
    let handle = Handle {
        commands: commands_in,
        urgent: urgent_in,
        reads: reads_in,
        shared: shared.clone(),
    };
    (
        handle,
        Ends {
            commands,
            urgent,
            reads,
            shared,
        },
    )
}

/// Whether a command has the separate budget: what gives back or tells the truth must not wait behind grants.
const fn is_urgent(command: &Command) -> bool {
    matches!(
        command,
        Command::Renew { .. }
            | Command::Release { .. }
            | Command::Revoke { .. }
            | Command::Clear { .. }
            | Command::Abandon { .. }
            | Command::Acknowledge { .. }
            | Command::Observe(_)
            | Command::Cancel { .. }
    )
}

impl Handle {
    /// Runs a command and waits for its answer, which is true when it comes: its commit is on the disk.
    ///
    /// # Errors
    /// When the core refuses it, or when it did not run at all.
    pub async fn run(&self, command: Command) -> Result<Reply, Failure> {
        let (reply, answer) = oneshot::channel();
        let channel = if is_urgent(&command) {
            &self.urgent
        } else {
            &self.commands
        };
        channel
            .try_send(Request { command, reply })
            .map_err(|e| match e {
                mpsc::error::TrySendError::Full(_) => Failure::Busy { retry: Millis(50) },
                mpsc::error::TrySendError::Closed(_) => Failure::Stopping,
            })?;
        answer.await.unwrap_or(Err(Failure::Stopping))
    }

    /// Like [`Handle::run`], but waits for a place in the line: for the daemon's own parts, which are few.
    pub async fn run_patiently(&self, command: Command) -> Result<Reply, Failure> {
        let (reply, answer) = oneshot::channel();
        let channel = if is_urgent(&command) {
            &self.urgent
        } else {
            &self.commands
        };
        channel
            .send(Request { command, reply })
            .await
            .map_err(|_| Failure::Stopping)?;
        answer.await.unwrap_or(Err(Failure::Stopping))
    }

    /// Asks for a lease, and waits in the queue for up to `wait` if that is what it takes.
    ///
    /// # Errors
    /// When it is refused, or when there was no room within `wait`.
    pub async fn acquire(&self, acquire: Acquire, wait: Millis) -> Result<Lease, Failure> {
        let (tenant, ttl) = (acquire.tenant.clone(), acquire.ttl);
        match self.run(Command::Acquire(Box::new(acquire))).await? {
            Reply::Lease(lease) => Ok(*lease),
            Reply::Waiting(id) => self.wait(id, &tenant, ttl, wait).await,
            _ => Err(Failure::Ledger(
                "the controller answered something else".into(),
            )),
        }
    }

    /// Waits for a queue entry to be granted. While somebody waits here, the entry does not run out.
    async fn wait(
        &self,
        id: LeaseId,
        tenant: &Name,
        ttl: Millis,
        wait: Millis,
    ) -> Result<Lease, Failure> {
        let (shared, who) = (self.shared.clone(), Caller::user(tenant.clone()));
        let (granted_in, mut granted) = oneshot::channel();
        self.read(move |state, _| match state.durable.leases().get(&id) {
            Some(l) if l.phase == Phase::Queued => {
                let mut waiters = (shared.waiters.lock()).unwrap_or_else(PoisonError::into_inner);
                let waiting = waiters.entry(id).or_default();
                waiting.retain(|w| !w.is_closed()); // who gave up and asks again waits once
                waiting.push(granted_in);
            }
            Some(l) => drop(granted_in.send(Ok(l.clone()))),
            None => drop(
                granted_in.send(Err(Rejection::Lost {
                    id,
                    how: "it left the queue",
                }
                .into())),
            ),
        })
        .await?;
        let end = tokio::time::sleep(Duration::from_millis(wait.0));
        let mut beat = tokio::time::interval(Duration::from_millis((ttl.0 / 3).max(1)));
        tokio::pin!(end);
        loop {
            tokio::select! {
                answer = &mut granted => return answer.unwrap_or(Err(Failure::Stopping)),
                _ = beat.tick() => drop(self.renew(&who, id, Fence(1), clock::now()).await),
                () = &mut end => break,
            }
        }
        self.run(Command::Abandon { lease: id }).await?;
        match granted.await {
            Ok(Ok(lease)) => Ok(lease), // granted in the last moment
            _ => Err(Failure::QueueTimeout {
                waited: wait,
                why: "what it needs is still held by others".into(),
            }),
        }
    }

    /// Moves a deadline to one TTL from `now`. Waits only if an expiry of this lease is being decided.
    ///
    /// # Errors
    /// When nobody can say what became of it: the lease may live on, and is to be renewed again.
    pub async fn renew(
        &self,
        caller: &Caller,
        id: LeaseId,
        fence: Fence,
        now: Time,
    ) -> Result<Renewed, Failure> {
        match self.renew_now(caller, id, fence, now) {
            Ok(renewed) => Ok(renewed),
            Err(ttl) => {
                let renew = Command::Renew {
                    caller: caller.clone(),
                    lease: id,
                    fence,
                };
                verdict(self.run_patiently(renew).await, ttl)
            }
        }
    }

    /// The part of [`Handle::renew`] that never waits; the error (the lease's TTL) says that it has to.
    pub fn renew_now(
        &self,
        caller: &Caller,
        id: LeaseId,
        fence: Fence,
        now: Time,
    ) -> Result<Renewed, Millis> {
        let Some(lease) = self.shared.published.get(&id).filter(|l| l.seen_by(caller)) else {
            return Ok(Renewed::Lost);
        };
        match lease.clock.renew(fence, now.after(lease.ttl)) {
            Renewal::Renewed => Ok(Renewed::Until(lease.ttl)),
            Renewal::Fenced => Ok(Renewed::Fenced),
            Renewal::Closing => Err(lease.ttl),
        }
    }

    /// Whether there is such a live lease, and it is not the caller's.
    pub fn is_anothers(&self, caller: &Caller, id: LeaseId) -> bool {
        let lease = self.shared.published.get(&id);
        lease.is_some_and(|l| !l.seen_by(caller))
    }

    /// When a live lease runs out unless it is renewed; none if there is no such lease.
    pub fn deadline(&self, id: LeaseId) -> Option<Time> {
        self.shared.published.get(&id).map(|l| l.clock.deadline())
    }

    /// Wakes `notify` when there may be a directive for this lease. The latest listener counts.
    pub fn listen(&self, caller: &Caller, id: LeaseId, notify: &Arc<Notify>) {
        if let Some(lease) = self.shared.published.get(&id).filter(|l| l.seen_by(caller)) {
            *lease
                .listener
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(notify.clone());
        }
    }

    /// Looks at the committed state, between two steps.
    ///
    /// # Errors
    /// When the controller is gone, or too many reads wait.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&State, Time) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (seen_in, seen) = oneshot::channel();
        let read: Read = Box::new(move |state, now| drop(seen_in.send(look(state, now))));
        self.reads.try_send(read).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => Failure::Busy { retry: Millis(50) },
            mpsc::error::TrySendError::Closed(_) => Failure::Stopping,
        })?;
        seen.await.map_err(|_| Failure::Stopping)
    }

    /// Waits until the controller comes round to its readers once more, for a place in their line, too: it lives, however
    /// busy it is.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn comes_round(&self) -> Result<(), Failure> {
        let (seen_in, seen) = oneshot::channel();
        let read: Read = Box::new(move |_, _| seen_in.send(()).unwrap_or_default());
        let sent = self.reads.send(read).await;
        sent.map_err(|_| Failure::Stopping)?;
        seen.await.map_err(|_| Failure::Stopping)
    }

    /// Changes whenever a commit changed something.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }
    /// Why grants are refused; none: they are not.
    pub fn degraded(&self) -> watch::Receiver<Option<Degraded>> {
        self.shared.degraded.subscribe()
    }
    /// The audit trail.
    pub fn history(&self) -> &History {
        &self.shared.history
    }

    /// Who is kept as waiting for an entry of the queue.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        let waiters = (self.shared.waiters.lock()).unwrap_or_else(PoisonError::into_inner);
        waiters.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::lease::PhaseName;

    use super::*;

    #[test]
    fn only_a_lease_that_is_over_is_lost() {
        let id = LeaseId(7);
        let given = Fence(2);
        let check = |answer: Result<Reply, Failure>, expect: Option<Renewed>| {
            let what = format!("{answer:?}");
            assert_eq!(verdict(answer, Millis(9)).ok(), expect, "{what}");
        };
        let no = |rejection: Rejection| Err(Failure::Rejected(rejection));
        check(Ok(Reply::Done), Some(Renewed::Until(Millis(9))));
        check(
            no(Rejection::NotFound("lease 7".into())),
            Some(Renewed::Lost),
        );
        let how = "it expired";
        check(no(Rejection::Lost { id, how }), Some(Renewed::Lost));
        check(no(Rejection::Fenced { id, given }), Some(Renewed::Fenced));
        let taken = Rejection::WrongPhase {
            id,
            phase: PhaseName::Quarantined,
            wanted: "",
        };
        check(no(taken), Some(Renewed::Fenced));
        // The expiry is in doubt or was not written: after a restart the lease may have a full TTL.
        check(Err(Failure::Stopping), None);
        check(Err(Failure::Ledger("I/O error".into())), None);
        check(Err(Failure::DiskFull), None);
        check(Err(Failure::Busy { retry: Millis(50) }), None);
        check(no(Rejection::Invariant("one_owner_per_core")), None);
    }
}
