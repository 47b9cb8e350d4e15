//! Holding a lease: heartbeats on a thread of their own, what the daemon asks, what the worker reports.
use std::env;
use std::fmt;
use std::mem;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::address::SOCKET_VARIABLE;
use crate::clock::BootTime;
use crate::error::{Error, Result};
use crate::model::{BusyInterval, Lease, LeaseRef, Step, Trial, TrialAnswer, Vector};
use crate::retry::ClientConfig;
use crate::session::{Callback, GuardEvent, GuardState, Held, Hub, OnDaemonLost, Terms};

/// The daemon's default heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Heartbeats in one TTL, at least: five may be lost.
const BEATS_PER_TTL: u32 = 6;
/// How long an explicit release is tried: a daemon's restart fits into it.
const RELEASE_WITHIN: Duration = Duration::from_secs(30);
/// How long dropping a guard may take.
const DROP_WITHIN: Duration = Duration::from_secs(1);

/// Where `evenkeel run` (through the daemon) tells a worker which lease it runs under.
pub const LEASE_VARIABLE: &str = "EVENKEEL_LEASE_ID";
/// And under which fence.
pub const FENCE_VARIABLE: &str = "EVENKEEL_LEASE_FENCE";
/// And at which batch size its stage is to run; a stage that has none need not look.
pub const BATCH_VARIABLE: &str = "EVENKEEL_BATCH";

/// How a lease is held.
#[derive(Clone)]
pub struct GuardOptions {
    /// Time between renewals; none: 5 s, or a sixth of the TTL if that is less.
    pub heartbeat: Option<Duration>,
    /// What to do when the daemon has been silent past the deadline.
    pub on_daemon_lost: OnDaemonLost,
    /// Give the lease back when the guard is dropped: best effort, for at most a second.
    pub release_on_drop: bool,
    /// Called on the heartbeat's thread with each event, beside [`LeaseGuard::wait_event`]; it must not block.
    pub on_event: Option<Callback>,
}

impl Default for GuardOptions {
    fn default() -> Self {
        Self {
            heartbeat: None,
            on_daemon_lost: OnDaemonLost::default(),
            release_on_drop: true,
            on_event: None,
        }
    }
}

impl fmt::Debug for GuardOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardOptions")
            .field("heartbeat", &self.heartbeat)
            .field("on_daemon_lost", &self.on_daemon_lost)
            .field("release_on_drop", &self.release_on_drop)
            .finish_non_exhaustive()
    }
}

/// A lease that is kept alive for as long as this lives.
///
/// Needs no runtime and may be used from any thread. All guards of a process share one thread and one
/// stream. In a child after a fork it does nothing: the lease stays the parent's.
pub struct LeaseGuard {
    hub: Arc<Hub>,
    held: Arc<Held>,
    release_on_drop: bool,
}

impl LeaseGuard {
    /// Keeps a lease alive that this process acquired (and attached, where leases are enforced).
    ///
    /// # Errors
    /// [`Error::Start`] if there can be no thread for the heartbeats.
    pub fn start(config: &ClientConfig, lease: &Lease, options: GuardOptions) -> Result<Self> {
        let ttl = lease.ttl().max(Duration::from_millis(1));
        let heartbeat = options.heartbeat.unwrap_or(HEARTBEAT);
        let terms = Terms {
            lease: lease.handle(),
            ttl,
            heartbeat: heartbeat.min(ttl / BEATS_PER_TTL),
            on_daemon_lost: options.on_daemon_lost,
            callback: options.on_event,
        };
        let hub = Hub::of(config)?;
        let held = Arc::new(Held::new(terms, lease.deadline));
        hub.hold(Arc::clone(&held));
        Ok(Self {
            hub,
            held,
            release_on_drop: options.release_on_drop,
        })
    }

    /// Joins the lease under which `evenkeel run` started this process: reports and directives are for
    /// the worker, the lease itself stays its supervisor's (it is not released on drop). None outside a lease.
    ///
    /// # Errors
    /// The lease is not there any more, or the daemon was not reached.
    pub fn from_env(options: GuardOptions) -> Result<Option<Self>> {
        let number = |name| env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
        let (Some(lease_id), Some(fence)) = (number(LEASE_VARIABLE), number(FENCE_VARIABLE)) else {
            return Ok(None);
        };
        let config = ClientConfig::from_env()?;
        let client = crate::blocking::Client::new(config.clone())?;
        let lease = client.lease(lease_id)?;
        if lease.fence != fence {
            return Err(Error::Fenced {
                message: format!(
                    "lease {lease_id} has gone on to fence {}; this process was started under {fence} \
                     (see {LEASE_VARIABLE}, {FENCE_VARIABLE} and {SOCKET_VARIABLE})",
                    lease.fence
                ),
            });
        }
        let options = GuardOptions {
            release_on_drop: false,
            ..options
        };
        Self::start(&config, &lease, options).map(Some)
    }

    /// The lease and the right to it.
    pub fn lease(&self) -> LeaseRef {
        self.held.terms.lease
    }

    /// Whether the lease may still be used, as far as this process can know. Looks at the clock.
    pub fn state(&self) -> GuardState {
        self.held.state()
    }

    /// Whether the worker should go on: true until the lease is lost.
    pub fn may_work(&self) -> bool {
        !matches!(self.state(), GuardState::Lost(_))
    }

    /// Until when the lease is confirmed: when the last renewal that counted was sent, plus the TTL.
    pub fn deadline(&self) -> BootTime {
        self.held.deadline()
    }

    /// Whether this is a child that was forked from the process that holds the lease.
    pub fn is_inert(&self) -> bool {
        self.hub.is_inert()
    }

    /// The next event, waiting for at most `timeout`. Newer states and targets replace older ones that
    /// nobody took.
    pub fn wait_event(&self, timeout: Duration) -> Option<GuardEvent> {
        if self.is_inert() {
            return None;
        }
        self.held.wait_event(timeout)
    }

    /// The next event.
    pub async fn event(&self) -> GuardEvent {
        self.held.event().await
    }

    /// Says that a directive is applied, and what the worker really has now. Said again on each new stream.
    pub fn acknowledge(&self, generation: u64, effective: Vector) {
        if !self.is_inert() {
            self.held.acknowledge(generation, effective);
            self.hub.wake();
        }
    }

    /// Reports what was done. Never blocks: while the daemon is away reports wait, bounded and merged.
    ///
    /// `lanes` is the number of lanes that carry the worker's units side by side, from 0; intervals without units on
    /// higher lanes are those of helpers. A report without intervals and steps says that the worker lives and waits for
    /// another stage: one a minute keeps the daemon from calling it stalled.
    pub fn report(&self, lanes: u32, intervals: &[BusyInterval], steps: &[Step]) {
        if !self.is_inert() {
            self.held.report(lanes, intervals, steps);
            self.hub.wake();
        }
    }

    /// Offers this worker for trials of a stage (the fingerprint of its profile, `job/stage` by default): from here on a
    /// calibration may ask for some seconds of work at shares up to the lease's, one trial at a time. Said again on each
    /// new stream. [`wait_trial`](Self::wait_trial) gives what is asked, [`answer_trial`](Self::answer_trial) answers.
    pub fn offer_trials(&self, stage: &str) {
        self.trials(Some(stage.to_owned()));
    }

    /// Takes the offer back.
    pub fn withdraw_trials(&self) {
        self.trials(None);
    }

    fn trials(&self, stage: Option<String>) {
        if !self.is_inert() {
            self.held.offer_trials(stage);
            self.hub.wake();
        }
    }

    /// The next trial that is asked for, waiting for at most `timeout`.
    pub fn wait_trial(&self, timeout: Duration) -> Option<Trial> {
        if self.is_inert() {
            return None;
        }
        self.held.wait_trial(timeout)
    }

    /// Answers a trial. What comes after the daemon was away is not waited for any more, and lost.
    pub fn answer_trial(&self, trial: &Trial, answer: TrialAnswer) {
        if !self.is_inert() {
            self.held.answer_trial(trial.id, answer);
            self.hub.wake();
        }
    }

    /// Gives the lease back and waits for the daemon's word, for at most 30 s.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it was lost before; [`Error::Unavailable`] if the daemon was not reached: the
    /// lease then ends by itself at its TTL.
    pub fn release(self) -> Result<Lease> {
        self.release_within(RELEASE_WITHIN)
    }

    /// [`release`](Self::release) with a time limit of its own.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn release_within(mut self, within: Duration) -> Result<Lease> {
        let (reply, result) = mpsc::sync_channel(1);
        self.send_release(within, move |lease| drop(reply.send(lease)))?;
        result.recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// [`release`](Self::release) without blocking the thread.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub async fn release_async(self) -> Result<Lease> {
        self.release_within_async(RELEASE_WITHIN).await
    }

    /// [`release_async`](Self::release_async) with a time limit of its own.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub async fn release_within_async(mut self, within: Duration) -> Result<Lease> {
        let (reply, result) = oneshot::channel();
        self.send_release(within, move |lease| drop(reply.send(lease)))?;
        result.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Stops renewing without a word: the lease ends at its TTL, or goes on under another guard.
    pub fn forget(mut self) {
        self.release_on_drop = false;
    }

    fn send_release(
        &mut self,
        within: Duration,
        reply: impl FnOnce(Result<Lease>) + Send + 'static,
    ) -> Result<()> {
        if self.is_inert() {
            return Err(self.gone());
        }
        self.release_on_drop = false;
        let held = Arc::clone(&self.held);
        self.hub.release(held, within, Box::new(reply));
        Ok(())
    }

    fn gone(&self) -> Error {
        let why = if self.is_inert() {
            "it is the parent's of this forked process"
        } else {
            "its heartbeat's thread is gone"
        };
        Error::NotHeld {
            lease_id: self.lease().lease_id,
            why,
        }
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseGuard")
            .field("lease", &self.lease())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if self.is_inert() {
            // The thread, its channel and its locks are the parent's: with a count that never comes
            // back, dropping our copies touches none of them.
            mem::forget((Arc::clone(&self.hub), Arc::clone(&self.held)));
            return;
        }
        let lost = !self.may_work();
        let hub = Arc::clone(&self.hub);
        let held = Arc::clone(&self.held);
        if self.release_on_drop && !lost {
            let (reply, result) = mpsc::sync_channel(1);
            hub.release(held, DROP_WITHIN, Box::new(move |r| drop(reply.send(r))));
            match result.recv_timeout(DROP_WITHIN) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "a lease was not given back"),
                Err(_) => tracing::warn!("a lease was not given back in time"),
            }
        } else {
            hub.forget(held);
        }
    }
}
