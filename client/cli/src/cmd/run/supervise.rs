//! Keeps a command running under its lease: signals, moves, the end. Why an end came is `why`'s.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_client::{
    BATCH_VARIABLE, Client, Directive, DirectiveKind, GuardEvent, GuardState, Lease, LeaseGuard,
    LeasePhase, ResizeMode, Vector,
};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::child::{Child, bind, exit_code};
use super::signals::Signals;
use super::{NOT_RUN, TIMED_OUT, release_trouble, show_shares, why};
use crate::fail::{Doing as _, Failure};
use crate::out;

/// How long giving the lease back may take, once the command has ended.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether what was given back is free.
const LOOK: Duration = Duration::from_millis(20);

/// A command and the lease that it runs under.
pub(super) struct Supervisor {
    pub(super) client: Client,
    pub(super) guard: LeaseGuard,
    pub(super) lease: Lease,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) command: Vec<OsString>,
    pub(super) grace: Duration,
    /// How long the command may run.
    pub(super) timeout: Option<Duration>,
    /// Whoever started this waits for its end: a signal that ends the command is followed by SIGKILL after the grace, and
    /// this ends when the share is free again.
    pub(super) with_parent: bool,
    pub(super) quiet: bool,
}

/// What happens when the command ends.
enum AtEnd {
    /// Its exit code is ours.
    PassOn,
    /// It is started again with a new share; unless somebody told it to end meanwhile.
    Restart(Directive),
    /// The lease is lost, or the daemon asked for it back, with these words: that is what our exit code says.
    Over(String),
}

impl Supervisor {
    pub(super) async fn run(mut self) -> Result<ExitCode, Failure> {
        let ended = self.supervise().await;
        let lost = !self.guard.may_work();
        let released = self.guard.release_within_async(RELEASE_WITHIN).await;
        if self.with_parent {
            until_over(&self.client, self.lease.id).await;
        }
        let (code, how) = ended?;
        if let (false, Err(error)) = (lost, &released) {
            release_trouble(error).into_iter().for_each(out::note);
        }
        match how {
            AtEnd::Over(told) => {
                let why = why::over(&self.client, &self.lease, told).await;
                Err(was_stopped(self.lease.id, code, &why))
            }
            AtEnd::PassOn | AtEnd::Restart(_) => Ok(code.into()),
        }
    }

    /// Gives the exit code of the command, and how it came to its end.
    async fn supervise(&mut self) -> Result<(u8, AtEnd), Failure> {
        let mut signals = Signals::listen()?;
        let mut child = self.start(&self.lease.target.clone())?;
        let mut at_end = AtEnd::PassOn;
        let mut kill_at: Option<Instant> = None;
        let mut told_to_end: Option<Instant> = None;
        let mut end_at = self.timeout.map(|limit| Instant::now() + limit);
        loop {
            tokio::select! {
                status = child.wait() => {
                    let status = status.doing("wait for the command").map_err(|f| f.code(NOT_RUN))?;
                    kill_at = None;
                    match std::mem::replace(&mut at_end, AtEnd::PassOn) {
                        AtEnd::Restart(directive) => child = self.restart(directive)?,
                        AtEnd::PassOn if self.timeout.is_some() && end_at.is_none() => {
                            return Ok((TIMED_OUT, AtEnd::PassOn));
                        }
                        how => return Ok((exit_code(status), how)),
                    }
                }
                signal = signals.next() => {
                    if ends(signal) {
                        // Its end is somebody's wish now, whatever the daemon wants to follow.
                        told_to_end = Some(Instant::now());
                        if matches!(at_end, AtEnd::Restart(_)) {
                            at_end = AtEnd::PassOn;
                        }
                        if self.with_parent {
                            kill_at = kill_at.or_else(|| Some(Instant::now() + self.grace));
                        }
                    }
                    match signal {
                        Signal::SIGCHLD => child.follow_stop(),
                        signal => child.signal(signal),
                    }
                }
                event = self.guard.event() => {
                    if let Some(mut next) = self.event(event) {
                        // What it was told just now it may be doing: an end is an end, and not the move's.
                        let is_ending = told_to_end.is_some_and(|at| at.elapsed() < self.grace);
                        if is_ending && matches!(next, AtEnd::Restart(_)) {
                            next = AtEnd::PassOn;
                        }
                        // The latest wins.
                        self.ask_to_end(&child, &mut kill_at);
                        // What is over is not started again.
                        if !matches!(at_end, AtEnd::Over(_)) {
                            at_end = next;
                        }
                    }
                }
                () = sleep_until(end_at) => {
                    self.say("it has run for as long as --timeout allows; stopping it");
                    (end_at, told_to_end) = (None, Some(Instant::now()));
                    self.ask_to_end(&child, &mut kill_at);
                }
                () = sleep_until(kill_at) => {
                    self.say("it did not end in time and is killed");
                    child.signal(Signal::SIGKILL);
                    kill_at = None;
                }
            }
        }
    }

    /// SIGTERM, and the time at which SIGKILL follows; a command that is ending has its time already.
    fn ask_to_end(&self, child: &Child, kill_at: &mut Option<Instant>) {
        if kill_at.is_none() {
            child.signal(Signal::SIGTERM);
            child.signal(Signal::SIGCONT);
            *kill_at = Some(Instant::now() + self.grace);
        }
    }

    fn say(&self, message: impl std::fmt::Display) {
        if !self.quiet {
            out::note(message);
        }
    }

    fn start(&self, share: &Vector) -> Result<Child, Failure> {
        if let Err(trouble) = bind(&self.lease, &share.cpus) {
            // The daemon binds the tree, too, and reads it back; where it cannot, it says so.
            out::note(trouble);
        }
        Child::start(&self.command, &self.environment)
    }

    fn restart(&mut self, directive: Directive) -> Result<Child, Failure> {
        self.environment.extend(directive.environment);
        if let Some(batch) = directive.batch {
            let value = batch.to_string();
            self.environment.insert(BATCH_VARIABLE.to_owned(), value);
            self.lease.batch = Some(batch);
        }
        let child = self.start(&directive.target)?;
        self.lease.target = directive.target.clone();
        self.lease.generation = directive.generation;
        self.guard
            .acknowledge(directive.generation, directive.target);
        self.say(format_args!(
            "started again with {}",
            share(&self.lease.target)
        ));
        Ok(child)
    }

    /// What an event means for the command: nothing, or how it shall end.
    fn event(&mut self, event: GuardEvent) -> Option<AtEnd> {
        match event {
            GuardEvent::State(GuardState::Confirmed) => {
                self.say("the daemon answers again");
                None
            }
            GuardEvent::State(GuardState::Unconfirmed) => {
                self.say("the daemon has been silent for a TTL; the command goes on");
                None
            }
            GuardEvent::State(GuardState::Lost(why)) => {
                out::note(format_args!(
                    "lease {} is lost: {why}; stopping the command",
                    self.lease.id
                ));
                Some(AtEnd::Over(why.to_string()))
            }
            GuardEvent::Directive(directive) => self.directive(directive),
        }
    }

    fn directive(&mut self, directive: Directive) -> Option<AtEnd> {
        let because = if directive.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", directive.reason)
        };
        let same_gpus = directive.target.same_gpus(&self.lease.target);
        // It read its batch size when it started.
        let same_batch = match (directive.batch, self.lease.batch) {
            (Some(new), Some(old)) => new == old,
            _ => true,
        };
        match (directive.kind, self.lease.resize) {
            (DirectiveKind::Restart, _) => {
                self.say(format_args!(
                    "its share moves to {}{because}",
                    share(&directive.target)
                ));
                Some(AtEnd::Restart(directive))
            }
            (DirectiveKind::Target, ResizeMode::Restart) if !(same_gpus && same_batch) => {
                self.say(format_args!(
                    "its share moves to {}{}{because}",
                    share(&directive.target),
                    batch_of(&directive)
                ));
                Some(AtEnd::Restart(directive))
            }
            // Cores need no co-operation: the daemon binds the tree, we bind what is started from here.
            (DirectiveKind::Target, mode) => {
                if let Err(trouble) = bind(&self.lease, &directive.target.cpus) {
                    out::note(trouble);
                }
                if same_gpus || mode == ResizeMode::Fixed {
                    let mut effective = directive.target;
                    effective.gpus.clone_from(&self.lease.target.gpus);
                    self.lease.target = effective.clone();
                    self.guard.acknowledge(directive.generation, effective);
                }
                // Else the worker itself takes up its GPU share and acknowledges.
                None
            }
            (DirectiveKind::Release | DirectiveKind::Drain, _) => {
                self.say(format_args!(
                    "the daemon asks for the lease back{because}; stopping the command"
                ));
                Some(AtEnd::Over(directive.reason))
            }
            (DirectiveKind::ReclaimMemory, _) => {
                self.say(format_args!("the daemon asks for GPU memory back{because}"));
                None
            }
        }
    }
}

/// Waits until what was given back is free: whoever started this goes on with it.
async fn until_over(client: &Client, lease: u64) {
    let began = Instant::now();
    while began.elapsed() < RELEASE_WITHIN {
        match client.lease(lease).await {
            Ok(lease) if lease.phase != LeasePhase::Ended => tokio::time::sleep(LOOK).await,
            // Over, or nobody knows.
            _ => return,
        }
    }
}

/// Whether a signal that somebody sends says that the command is to end.
const fn ends(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP)
}

/// A batch size in words, where the stage has one.
fn batch_of(directive: &Directive) -> String {
    match directive.batch {
        Some(batch) if batch > 1 => format!(", batch size {batch}"),
        _ => String::new(),
    }
}

fn was_stopped(lease: u64, code: u8, why: &str) -> Failure {
    Failure::new(format!("the command was stopped (exit code {code}): {why}"))
        .code(NOT_RUN)
        .hint(format!(
            "What happened to it: `evenkeel events --lease {lease}`."
        ))
}

fn share(vector: &Vector) -> String {
    match (vector.cores.is_empty(), vector.gpus.is_empty()) {
        (_, true) => format!("cores {}", vector.cores),
        (true, false) => show_shares(vector),
        (false, false) => format!("cores {}; {}", vector.cores, show_shares(vector)),
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
