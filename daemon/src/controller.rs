//! The one owner of the state: takes commands, decides a batch, commits it, and only then lets anything out.
//!
//! It decides nothing itself (that is `evenkeel_core::step`) and knows no SQL (that is `ledger`). Started by
//! `main`; everybody else holds a [`Handle`].
mod prune;
mod publish;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_core::caps::Caps;
use evenkeel_core::command::{Command, Rejection, Reply};
use evenkeel_core::converge::{Target, troubles};
use evenkeel_core::id::LeaseId;
use evenkeel_core::invariant::violations;
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeel_core::step::{BATCH_MAX, Settled, State, Step, step};
use evenkeel_core::unit::Time;
use evenkeel_core::volatile::{Volatile, without_downtime};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::handle::{Degraded, Ends, Failure, Handle, Request, pair};
use crate::ledger::{Batch, CommitError, History, Ledger, Loaded, fold};
use crate::reconcile::Targets;
use prune::Pruning;

/// How often everything is checked, not only what was touched.
const FULL_CHECK: Duration = Duration::from_secs(60);
/// How often the ledger's files and the space on their disk are looked at.
const LEDGER_CHECK: Duration = Duration::from_secs(1);
/// Of one batch, so many places are for what gives back; the rest is for what asks.
const URGENT_SHARE: usize = BATCH_MAX * 3 / 4;
/// Reads between two batches, at most: those who look must not keep those waiting who keep or give back.
const READS_MOST: usize = 64;
/// And for so long at most (one is always served): a look takes microseconds, a long one well under a millisecond.
const READS_FOR: Duration = Duration::from_millis(1);

/// Why the controller ended by itself. The process exits non-zero: the next start finds out what is true.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// Nobody knows whether the last change is on the disk.
    #[error("the last commit is in doubt")]
    InDoubt(#[source] CommitError),
    /// What the state says is not what the ledger holds.
    #[error("another program has written to the ledger")]
    Foreign(#[source] CommitError),
    /// The ledger's content breaks an invariant.
    #[error(
        "the ledger breaks the invariant {invariant}: {detail}. Restore a backup from beside it, or ask for help; nothing was changed"
    )]
    Broken {
        /// Its name.
        invariant: &'static str,
        /// What breaks it.
        detail: String,
    },
    /// What a restart of the machine ended could not be noted.
    #[error("cannot note in the ledger what the restart of the machine ended")]
    Reboot(#[source] CommitError),
}

/// What the controller needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Times and limits of the core.
    pub settings: Settings,
    /// What each tenant may have at most.
    pub caps: Caps,
    /// This boot.
    pub boot_id: String,
    /// Events older than this leave the audit trail.
    pub keep_events: Duration,
}

/// The controller. See the module's text.
pub struct Controller {
    state: State,
    ledger: Ledger,
    ends: Ends,
    config: Config,
    targets: BTreeMap<LeaseId, Target>,
    publish_targets: watch::Sender<Arc<Targets>>,
    poke: Arc<Notify>,
    /// Why grants are refused; none: they are not.
    degraded: Option<Degraded>,
    /// The ballast is in its place, as far as is known: a full disk frees it once.
    ballast: bool,
    wake: Time,
    checked: tokio::time::Instant,
    looked: tokio::time::Instant,
    pruning: Pruning,
    /// Troubles that the log has.
    troubled: BTreeSet<(&'static str, LeaseId)>,
}

/// What wakes the controller.
enum Turn {
    Stop,
    Work(Vec<Request>),
}

impl Controller {
    /// From an opened ledger. Ends what a restart of the machine has ended, before anybody can ask.
    ///
    /// # Errors
    /// When the ledger's content breaks an invariant, or cannot be written.
    pub async fn start(
        config: Config,
        mut ledger: Ledger,
        loaded: Loaded,
        history: History,
        poke: Arc<Notify>,
    ) -> Result<(Self, Handle, watch::Receiver<Arc<Targets>>), Fatal> {
        let now = clock::now();
        let same_boot = loaded.boot_id.as_deref() == Some(config.boot_id.as_str());
        let durable = Durable::load(loaded.parts);
        if let Some(v) = violations(&durable).into_iter().next() {
            return Err(Fatal::Broken {
                invariant: v.invariant,
                detail: v.detail,
            });
        }
        let unrenewed = if same_boot {
            without_downtime(&loaded.unrenewed, loaded.alive, now)
        } else {
            BTreeMap::new()
        };
        let mut volatile = Volatile::start(&durable, config.settings, now, unrenewed);
        volatile.caps = config.caps.clone();
        let mut state = State { durable, volatile };
        if !same_boot {
            let ended = step(&mut state, now, &[Command::Rebooted]);
            if !ended.events.is_empty() {
                let rows = fold(&ended.events, &state.durable, unix_ms());
                commit_at_start(&mut ledger, &rows).await?;
            }
            ended.settle(&mut state, now);
            ledger
                .set_boot_id(&config.boot_id)
                .await
                .map_err(Fatal::Reboot)?;
        }
        let since: Vec<_> = state
            .volatile
            .unrenewed
            .iter()
            .map(|(id, at)| (*id, Some(*at)))
            .collect();
        // In this order: between the two, less counts against the leases and never more.
        ledger.set_unrenewed(&since).await.map_err(Fatal::Reboot)?;
        ledger.set_alive(now).await.map_err(Fatal::Reboot)?;
        let (handle, ends) = pair(history);
        let (publish_targets, targets) = watch::channel(Arc::new(Targets {
            node: state.durable.node().clone(),
            unavailable: state.durable.unavailable().clone(),
            targets: vec![],
            at: now,
        }));
        let start = tokio::time::Instant::now();
        let mut controller = Self {
            state,
            ledger,
            ends,
            config,
            targets: BTreeMap::new(),
            publish_targets,
            poke,
            degraded: None,
            ballast: true,
            wake: now,
            checked: start,
            looked: start,
            pruning: Pruning::new(),
            troubled: BTreeSet::new(),
        };
        controller.look_at_files().await;
        controller.publish_all(now);
        Ok((controller, handle, targets))
    }

    /// Runs until `stop`, then writes nothing more and closes the ledger. Revokes nothing.
    ///
    /// # Errors
    /// When a commit is in doubt, or the ledger is not its own any more.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Fatal> {
        loop {
            match self.select(&stop).await {
                Turn::Stop => break,
                Turn::Work(requests) => self.apply(requests).await?,
            }
            self.serve_reads();
            self.housekeeping().await;
        }
        if let Err(error) = self.ledger.checkpoint().await {
            tracing::warn!(%error, "the write-ahead log was not folded in; the next start does it");
        }
        self.ledger.close().await;
        Ok(())
    }

    /// Waits for something to do: at most one batch of commands, or the timer. Reads are served while there is
    /// nothing else, one at a time: what comes meanwhile goes first.
    async fn select(&mut self, stop: &CancellationToken) -> Turn {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while batch.is_empty() {
            let sleep = Duration::from_millis(self.wake.since(clock::now()).0);
            let sleep = sleep.min(self.pruning.wait());
            tokio::select! {
                biased;
                () = stop.cancelled() => return Turn::Stop,
                Some(request) = self.ends.urgent.recv() => batch.push(request),
                Some(request) = self.ends.commands.recv() => batch.push(request),
                () = std::future::ready(()), if sleep.is_zero() => break,
                Some(read) = self.ends.reads.recv() => read(&self.state, clock::now()),
                () = tokio::time::sleep(sleep) => break,
            }
        }
        while batch.len() < URGENT_SHARE
            && let Ok(request) = self.ends.urgent.try_recv()
        {
            batch.push(request);
        }
        while batch.len() < BATCH_MAX {
            match self
                .ends
                .commands
                .try_recv()
                .or_else(|_| self.ends.urgent.try_recv())
            {
                Ok(request) => batch.push(request),
                Err(_) => break,
            }
        }
        if clock::now() >= self.wake {
            batch.push(tick());
        }
        Turn::Work(batch)
    }

    /// Serves some of the reads that wait: under a flood of commands, too, they are answered, and under a flood of
    /// reads commands are.
    fn serve_reads(&mut self) {
        let start = std::time::Instant::now();
        for _ in 0..READS_MOST {
            let Ok(read) = self.ends.reads.try_recv() else {
                return;
            };
            read(&self.state, clock::now());
            if start.elapsed() >= READS_FOR {
                return;
            }
        }
    }

    /// Decide, commit, act.
    async fn apply(&mut self, requests: Vec<Request>) -> Result<(), Fatal> {
        let (commands, replies): (Vec<_>, Vec<_>) =
            requests.into_iter().map(|r| (r.command, r.reply)).unzip();
        if self.degraded.is_some() && commands.iter().any(is_grant) {
            return Box::pin(self.apply_degraded(commands, replies)).await;
        }
        let now = clock::now();
        if commands
            .iter()
            .any(|c| matches!(c, Command::Acknowledge { .. }))
        {
            self.poke.notify_one(); // what a worker says that it has applied is worth a look at once
        }
        let step = step(&mut self.state, now, &commands);
        if step.events.is_empty() {
            let settled = step.settle(&mut self.state, now);
            self.answer(settled, replies);
            self.wake = self.state.next_wakeup(now);
            return Ok(());
        }
        match self.commit(&step).await {
            // From here on it is true: replies, deadlines and targets may go out.
            Ok(()) => {
                let now = clock::now();
                let settled = step.settle(&mut self.state, now);
                self.publish(&settled.events, now);
                self.answer(settled, replies);
                self.wake = self.state.next_wakeup(now);
                Ok(())
            }
            Err(error) => {
                step.undo(&mut self.state, now);
                self.wake = now.after(evenkeel_core::unit::Millis(10));
                self.not_committed(error, commands, replies).await
            }
        }
    }

    async fn commit(&mut self, step: &Step) -> Result<(), CommitError> {
        let rows = fold(&step.events, &self.state.durable, unix_ms());
        let start = std::time::Instant::now();
        let result = self.ledger.commit(&rows).await;
        metrics::histogram!("evenkeel_commit_seconds").record(start.elapsed().as_secs_f64());
        metrics::histogram!("evenkeel_commit_events").record(step.events.len() as f64);
        metrics::counter!("evenkeel_commits_total", "result" => if result.is_ok() { "ok" } else { "error" })
            .increment(1);
        result
    }

    /// Nothing has happened. What may be tried again is tried; what may not gets an answer that says so.
    async fn not_committed(
        &mut self,
        error: CommitError,
        commands: Vec<Command>,
        replies: Vec<oneshot::Sender<Result<Reply, Failure>>>,
    ) -> Result<(), Fatal> {
        let alone = commands.len() == 1;
        match error {
            CommitError::InDoubt { .. } | CommitError::Foreign { .. } => {
                // Neither yes nor no: whoever asks again after the start is told what is true.
                let doubt = |reply: oneshot::Sender<_>| drop(reply.send(Err(Failure::InDoubt)));
                replies.into_iter().for_each(doubt);
                return Err(match error {
                    CommitError::Foreign { .. } => Fatal::Foreign(error),
                    _ => Fatal::InDoubt(error),
                });
            }
            // The ballast is free now: what gives back fits in.
            CommitError::Full if self.degraded.is_none() || self.ballast => {
                tracing::error!(
                    "the disk of the ledger is full: grants are refused, renewals and releases go on"
                );
                self.ballast = false;
                let why = self.degraded.take().unwrap_or(Degraded::DiskFull);
                self.set_degraded(Some(why));
                return Box::pin(self.apply(again(commands, replies))).await;
            }
            CommitError::Refused { ref constraint } if alone => {
                tracing::error!(%constraint, command = ?commands.first(), "ALARM: the ledger refused a change");
                metrics::counter!("evenkeel_alarms_total", "alarm" => "ledger_refused")
                    .increment(1);
                let refusal = || Err(Rejection::Invariant("the ledger's constraints").into());
                replies.into_iter().for_each(|r| drop(r.send(refusal())));
                return Ok(());
            }
            _ if alone => {
                let what = error.to_string();
                replies
                    .into_iter()
                    .for_each(|r| drop(r.send(Err(Failure::Ledger(what.clone())))));
                return Ok(());
            }
            // One of them is to blame: each on its own.
            _ => {}
        }
        for request in again(commands, replies) {
            Box::pin(self.apply(vec![request])).await?;
        }
        Ok(())
    }

    /// While grants are refused: what would grant is refused, unless it was granted before; the rest goes on.
    async fn apply_degraded(
        &mut self,
        commands: Vec<Command>,
        replies: Vec<oneshot::Sender<Result<Reply, Failure>>>,
    ) -> Result<(), Fatal> {
        let (grants, rest): (Vec<_>, Vec<_>) = again(commands, replies)
            .into_iter()
            .partition(|r| is_grant(&r.command));
        for request in grants {
            let now = clock::now();
            let step = step(&mut self.state, now, std::slice::from_ref(&request.command));
            if step.events.is_empty() {
                let settled = step.settle(&mut self.state, now);
                self.answer(settled, vec![request.reply]);
            } else {
                step.undo(&mut self.state, now);
                let why = self.degraded.clone().unwrap_or(Degraded::DiskFull);
                drop(request.reply.send(Err(why.into())));
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            self.apply(rest).await
        }
    }

    fn answer(&self, settled: Settled, replies: Vec<oneshot::Sender<Result<Reply, Failure>>>) {
        for (answer, reply) in settled.answers.into_iter().zip(replies) {
            if let Err(Rejection::Invariant(name)) = &answer {
                tracing::error!(
                    invariant = name,
                    "ALARM: a command would have broken an invariant and was refused"
                );
                metrics::counter!("evenkeel_alarms_total", "alarm" => "invariant").increment(1);
            }
            drop(reply.send(answer.map_err(Failure::Rejected)));
        }
    }

    /// What has its own rhythm: pushing quarantined trees, full checks, space, old events.
    async fn housekeeping(&mut self) {
        let now = clock::now();
        let pushed: Vec<_> = self.state.volatile.quarantined.keys().copied().collect();
        let mut changed = false;
        for id in pushed {
            changed |= self.target_changed(id, now);
        }
        if changed {
            self.send_targets(now);
        }
        if self.checked.elapsed() >= FULL_CHECK {
            self.checked = tokio::time::Instant::now();
            for v in violations(&self.state.durable) {
                tracing::error!(
                    invariant = v.invariant,
                    detail = v.detail,
                    "ALARM: an invariant is broken"
                );
                metrics::counter!("evenkeel_alarms_total", "alarm" => "violation").increment(1);
            }
        }
        if self.looked.elapsed() >= LEDGER_CHECK {
            self.looked = tokio::time::Instant::now();
            self.look_after_ledger().await;
            self.tell_troubles(now);
        }
        if self.pruning.wait().is_zero() {
            self.prune().await;
        }
    }

    async fn prune(&mut self) {
        if self.degraded.is_some() {
            return self.pruning.put_off();
        }
        let keep = u64::try_from(self.config.keep_events.as_millis()).unwrap_or(u64::MAX);
        let before = unix_ms().saturating_sub(keep);
        self.pruning.slice(&mut self.ledger, before).await;
    }

    /// What is wrong with leases goes to the log once; it stays among the node's troubles while it lasts.
    fn tell_troubles(&mut self, now: Time) {
        let all = troubles(&self.state.durable, &self.state.volatile, now);
        let now_wrong = all.iter().map(|t| (t.name, t.lease)).collect();
        for trouble in all {
            let (name, lease) = (trouble.name, trouble.lease);
            if !self.troubled.contains(&(name, lease)) {
                tracing::error!(trouble = name, "ALARM: {}", trouble.text);
                metrics::counter!("evenkeel_alarms_total", "alarm" => name).increment(1);
            }
        }
        self.troubled = now_wrong;
    }
}

/// What a restart of the machine ended. On a full disk it is tried again: the first try has freed the ballast.
async fn commit_at_start(ledger: &mut Ledger, rows: &Batch) -> Result<(), Fatal> {
    let done = match ledger.commit(rows).await {
        Err(CommitError::Full) => ledger.commit(rows).await,
        done => done,
    };
    done.map_err(Fatal::Reboot)
}

fn again(
    commands: Vec<Command>,
    replies: Vec<oneshot::Sender<Result<Reply, Failure>>>,
) -> Vec<Request> {
    commands
        .into_iter()
        .zip(replies)
        .map(|(command, reply)| Request { command, reply })
        .collect()
}

fn tick() -> Request {
    Request {
        command: Command::Tick,
        reply: oneshot::channel().0,
    }
}

/// Whether a command takes from the pool or adds to the ledger without giving anything back.
const fn is_grant(command: &Command) -> bool {
    matches!(
        command,
        Command::Acquire(_)
            | Command::Submit { .. }
            | Command::Update { .. }
            | Command::Trial { .. }
            | Command::Import { .. }
    )
}

fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}
