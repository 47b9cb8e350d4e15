//! The daemon's part of the world: messages in, steps, commits and their fates, looks, crashes, stalls.
use evenkeel_core::command::{Command, Rejection, Reply};
use evenkeel_core::decide::Answer;
use evenkeel_core::event::Event;
use evenkeel_core::invariant::Violation;
use evenkeel_core::lease::Cause;
use evenkeel_core::state::Durable;
use evenkeel_core::unit::Millis;
use evenkeeld::handle::{Failure, Renewed, verdict};
use evenkeeld::ledger::load;

use super::agent::{Call, What};
use super::planted::Planted;
use super::shell::{Fate, Landed, Outcome, Said, Ticket, Who};
use super::truth::{Truth, Verdict, broken, sound};
use super::{Happening, Kind, World, queueing, reality};

/// Commits between two comparisons of memory, tables and fold.
const COMPARE_EVERY: u64 = 16;

impl World {
    /// The daemon starts on what is on the disk.
    pub(super) fn start(&mut self) -> Verdict {
        if self.shell.is_up() {
            return Ok(());
        }
        let same_boot = self.noted_boot == self.boots;
        let now = self.clock();
        let unrenewed = self.shell.disk.unrenewed.clone();
        self.shell.start(now, same_boot)?;
        self.trace.line(
            self.now,
            format_args!("the daemon starts, same boot: {same_boot}"),
        );
        self.truth
            .restarted(now, self.down_at, same_boot, &unrenewed)?;
        if let Some(state) = self.shell.state() {
            let d = &state.durable;
            self.truth
                .memory_is_fold(d, "memory_tables_and_fold_agree")?;
            sound(d)?;
            self.truth.acknowledged_effects_survive(d)?;
            Truth::found_by_its_request(d)?;
        }
        let epoch = self.shell.epoch;
        self.looked.clear();
        self.scan(self.node.clone());
        self.at(0, Happening::Wake { epoch });
        if same_boot {
            self.at(1, Happening::Look { epoch }); // else when the restart is noted
        }
        Ok(())
    }

    /// It ends without a word, and comes back after a while; at times after a restart of the machine.
    pub(super) fn crash(&mut self, point: &'static str) {
        if !self.shell.is_up() && point == "between steps" {
            return;
        }
        self.counts.add("crash", point);
        let reboot = !self.calm && self.fates.chance(self.swarm.reboot);
        self.trace.line(
            self.now,
            format_args!("the daemon ends {point}, and the machine: {reboot}"),
        );
        self.shell.crash();
        self.looked.clear();
        (self.down_at, self.stalled_until) = (self.clock(), self.now);
        if reboot {
            self.counts.add("crash", "with a restart of the machine");
            self.hw.reboot();
            self.boot_at = self.now;
            self.boots += 1;
        }
        let long = !self.calm && self.fates.chance(self.swarm.long_down);
        let down = if long {
            self.fates.range(5_000, 120_000)
        } else {
            self.fates.range(1, 1_500)
        };
        self.at(down, Happening::Start);
    }

    /// The daemon stands still: it neither hears nor acts.
    pub(super) fn stall(&mut self) {
        if self.shell.is_up() && self.now >= self.stalled_until {
            let by = self.fates.range(500, 40_000);
            self.stalled_until = self.now + by;
            self.truth.stood_still(Millis(by));
            self.counts.add("fault", "stall");
            self.trace.line(
                self.now,
                format_args!("the daemon stands still for {by} ms"),
            );
            if Millis(by) >= Millis(self.swarm.settings.stall.0 + 1_000) {
                let now = self.clock();
                self.truth.stalled(now, Millis(by));
            }
        }
        self.again(Happening::Stall);
    }

    /// A message arrives at the daemon.
    pub(super) fn arrive(&mut self, call: Call) -> Result<Kind, Violation> {
        let Call { who, token, what } = call;
        if !self.shell.is_up() {
            self.answer(who, token, Said::Unavailable);
            return Ok(Kind::Happened);
        }
        let command = match what {
            What::Command(command) => {
                self.truth.asked(&command);
                command
            }
            What::Renew(caller, lease, fence) => {
                let now = self.clock();
                match self.shell.renew(&caller, lease, fence, now) {
                    Some(said) => {
                        self.trace.line(
                            self.now,
                            format_args!("{who:?} renews {lease}: {}", super::brief(&said)),
                        );
                        if matches!(said, Said::Renewed(_)) {
                            self.counts.add("handle", "renewed");
                            self.truth.renewed(lease, fence, now)?;
                        }
                        self.answer(who, token, said);
                        return Ok(Kind::Happened);
                    }
                    None => {
                        self.counts.add("handle", "closing");
                        Command::Renew {
                            caller,
                            lease,
                            fence,
                        }
                    }
                }
            }
        };
        self.shell.inbox.push_back(Ticket {
            who,
            token,
            command,
        });
        let epoch = self.shell.epoch;
        self.at(0, Happening::Wake { epoch });
        Ok(Kind::Happened)
    }

    /// The controller's turn: a batch of what waits, and the timer if it is due.
    pub(super) fn wake(&mut self, epoch: u32) -> Result<Kind, Violation> {
        let due = self.clock() >= self.shell.wake_at;
        let idle = self.shell.inbox.is_empty() && !due;
        if !self.shell.is_up() || epoch != self.shell.epoch || self.shell.is_busy() || idle {
            return Ok(Kind::Nothing);
        }
        let most = self.chance.range(1, self.swarm.batch) as usize;
        let most = most.min(self.shell.inbox.len());
        let mut batch: Vec<Ticket> = self.shell.inbox.drain(..most).collect();
        let timer = batch.is_empty();
        if due {
            let at = if self.chance.chance(500) {
                0
            } else {
                batch.len()
            };
            batch.insert(
                at,
                Ticket {
                    who: Who::Timer,
                    token: 0,
                    command: Command::Tick,
                },
            );
        }
        let now = self.clock();
        self.shell.begin(now, batch);
        self.decided()?;
        let eventful = self.shell.has_events();
        self.fate = self.draw_fate(eventful);
        if self.swarm.planted == Some(Planted::ReplyBeforeCommit) && eventful {
            for (ticket, said) in self.shell.early_answers() {
                self.reply(ticket, said)?;
            }
        }
        if !eventful {
            self.end_commit()?;
            return Ok(if timer { Kind::Timer } else { Kind::Happened });
        }
        let (slow, _) = self.while_closing();
        let slow = !self.calm && self.fates.chance(slow);
        let after = if slow {
            self.fates.range(100, 1_500)
        } else {
            self.fates.range(0, 5)
        };
        self.at(after, Happening::Commit { epoch });
        Ok(Kind::Happened)
    }

    /// What a step is about to do is sound, and what it refuses it refuses with reason.
    fn decided(&self) -> Verdict {
        let Some(state) = self.shell.state() else {
            return Ok(());
        };
        if self.shell.has_events() {
            sound(&state.durable)?;
        }
        let [(ticket, answer)] = self.shell.intended()[..] else {
            return Ok(());
        };
        let Command::Acquire(a) = &ticket.command else {
            return Ok(());
        };
        match answer {
            Err(e) => queueing::refusal_is_justified(&state.durable, a, Some(e)),
            Ok(Answer::Reply(Reply::Waiting(_))) => {
                queueing::refusal_is_justified(&state.durable, a, None)
            }
            Ok(_) => Ok(()),
        }
    }

    fn draw_fate(&mut self, eventful: bool) -> Fate {
        let (_, fault) = self.while_closing();
        if self.calm || !eventful || !self.fates.chance(fault) {
            return Fate::Durable;
        }
        if self.fates.chance(self.swarm.full) {
            return Fate::Full;
        }
        *self.fates.pick(&[
            Fate::CrashBefore,
            Fate::DoubtLost,
            Fate::DoubtKept,
            Fate::CrashAfter,
        ])
    }

    /// Chances that a commit is slow, and that it meets a fault. Those of expiries meet more: renewals wait for their
    /// verdict. Not so often that no expiry ever comes through, unless that is what has to be noticed.
    fn while_closing(&self) -> (u32, u32) {
        let (slow, fault) = (self.swarm.slow_commit, self.swarm.commit_fault);
        let state = self.shell.state();
        if state.is_none_or(|s| s.volatile.closings() == 0) {
            return (slow, fault);
        }
        match self.swarm.planted {
            Some(Planted::LostWhenStopping) => (1_000, 600),
            _ => (slow.max(400), (fault * 20).clamp(fault, 300)),
        }
    }

    /// A commit ends.
    pub(super) fn commit(&mut self, epoch: u32) -> Result<Kind, Violation> {
        if !self.shell.is_up() || epoch != self.shell.epoch || !self.shell.is_busy() {
            return Ok(Kind::Nothing);
        }
        self.end_commit()?;
        Ok(Kind::Happened)
    }

    fn end_commit(&mut self) -> Verdict {
        let (fate, now, eventful) = (self.fate, self.clock(), self.shell.has_events());
        if eventful {
            self.counts.add("commit", fate.name());
        }
        let waiting = self.shell.renewals();
        match self.shell.finish(now, fate)? {
            Outcome::Settled(landed, said) => {
                self.landed(landed)?;
                self.deadlines_are_near()?;
                reality::what_is_seen_is_counted(&self.truth.fold, &said)?;
                if said
                    .iter()
                    .any(|(t, _)| matches!(t.command, Command::Rebooted))
                {
                    self.noted_boot = self.boots;
                    let epoch = self.shell.epoch;
                    self.at(1, Happening::Look { epoch });
                }
                if eventful
                    && (self.swarm.planted.is_some()
                        || self.committed.is_multiple_of(COMPARE_EVERY))
                {
                    self.compare()?;
                }
                for (ticket, said) in said {
                    if self.swarm.planted == Some(Planted::ReplyBeforeCommit) && eventful {
                        continue; // it was said before
                    }
                    self.reply(ticket, said)?;
                }
            }
            Outcome::Undone(said) => {
                self.trace.line(self.now, format_args!("the disk is full"));
                if let Some(state) = self.shell.state() {
                    self.truth
                        .memory_is_fold(&state.durable, "undo_is_complete")?;
                    sound(&state.durable)?;
                }
                let unnoted = said
                    .iter()
                    .any(|(t, _)| matches!(t.command, Command::Rebooted));
                said.into_iter()
                    .for_each(|(t, s)| self.answer(t.who, t.token, s));
                if unnoted {
                    self.crash("disk full at the start"); // it does not serve before that is noted
                }
            }
            Outcome::Crashed(landed) => {
                if let Some(landed) = landed {
                    self.landed(landed)?;
                }
                // In doubt it exits; killed, it says nothing any more.
                if matches!(fate, Fate::DoubtLost | Fate::DoubtKept) {
                    waiting.into_iter().try_for_each(|t| {
                        self.counts.add("handle", "stopped while closing");
                        self.renewal(t, Err(Failure::Stopping))
                    })?;
                }
                self.crash(fate.name());
            }
        }
        let epoch = self.shell.epoch;
        let after = self.shell.wake_at.since(now).0;
        self.at(after, Happening::Wake { epoch });
        if !self.shell.inbox.is_empty() {
            self.at(0, Happening::Wake { epoch });
        }
        Ok(())
    }

    /// Events became durable.
    fn landed(&mut self, (events, decided_at): Landed) -> Verdict {
        if events.is_empty() {
            return Ok(());
        }
        self.committed += 1;
        for event in &events {
            self.counts.add("event", event.kind());
            let told = event.lease().is_some_and(|id| self.truth.was_told(id));
            match event {
                Event::LeaseDraining { .. } if told => self.counts.add("cancel", "given back"),
                Event::LeaseQuarantined {
                    cause: Cause::Revoked,
                    ..
                } if told => self.counts.add("cancel", "taken after the grace"),
                Event::JobAdmitted { promised: true, .. } => {
                    self.counts.add("sharing", "promised");
                }
                _ => {}
            }
            self.trace
                .line(self.now, format_args!("{} {}", event.kind(), detail(event)));
        }
        self.truth.commit(&events, decided_at, &self.hw)?;
        if self.swarm.planted == Some(Planted::ExpiredFreedAtOnce) {
            self.forge_proof(&events);
        }
        Ok(())
    }

    /// Memory, tables and the fold of the events are the same.
    pub(super) fn compare(&self) -> Verdict {
        let Some(state) = self.shell.state() else {
            return Ok(());
        };
        self.truth
            .memory_is_fold(&state.durable, "memory_tables_and_fold_agree")?;
        let parts = load(&self.shell.disk).map_err(|e| Violation {
            invariant: "memory_tables_and_fold_agree",
            detail: e.to_string(),
        })?;
        self.truth.tables_are_fold(&Durable::load(parts).parts())?;
        Truth::found_by_its_request(&state.durable)
    }

    fn reply(&mut self, ticket: Ticket, said: Said) -> Verdict {
        if let Said::Answer(answer) = &said {
            let name = answer.as_ref().map_or_else(Rejection::reason, |_| "ok");
            self.counts.add("answer", name);
            if let (Err(Rejection::Invariant(name)), None) = (answer, self.swarm.planted) {
                let why = format!("{:?} would have broken {name}", ticket.command);
                return broken("no_command_raises_the_alarm", why);
            }
            self.truth.said(&ticket.command, answer)?;
            if matches!(ticket.command, Command::Renew { .. }) {
                let answer = answer.clone().map_err(Failure::Rejected);
                return self.renewal(ticket, answer);
            }
        }
        self.answer(ticket.who, ticket.token, said);
        Ok(())
    }

    /// What the handle says to a renewal that waited for a verdict, and got this.
    fn renewal(&mut self, ticket: Ticket, answer: Result<Reply, Failure>) -> Verdict {
        let Command::Renew { lease, fence, .. } = ticket.command else {
            return Ok(());
        };
        let renewed = match (verdict(answer, Millis(0)), self.swarm.planted) {
            (Err(_), Some(Planted::LostWhenStopping)) => Ok(Renewed::Lost),
            (renewed, _) => renewed,
        };
        let said = match renewed {
            Ok(Renewed::Until(_)) => Said::Renewed(None),
            Ok(Renewed::Fenced | Renewed::Lost) => {
                self.truth.said_lost(lease, fence)?;
                Said::Refused
            }
            Err(_) => Said::Unavailable,
        };
        self.answer(ticket.who, ticket.token, said);
        Ok(())
    }

    /// Nobody's deadline is further away than one TTL, whatever was credited.
    fn deadlines_are_near(&self) -> Verdict {
        let now = self.clock();
        let Some(state) = self.shell.state() else {
            return Ok(());
        };
        for lease in state.durable.leases().values() {
            let clock = state.volatile.clocks.get(&lease.id);
            let deadline = clock.map_or(now, |c| c.deadline());
            if deadline > now.after(lease.ttl) {
                let why = format!("{} at {now:?}: {deadline:?}", lease.id);
                return broken("no_deadline_is_beyond_one_ttl", why);
            }
        }
        Ok(())
    }
}

/// An event in a few words, for the trace.
fn detail(event: &Event) -> String {
    match event {
        Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => {
            format!(
                "{} {} of {}: cores {} {:?}",
                lease.id,
                lease.phase.name().as_str(),
                lease.tenant,
                lease.target.cores,
                lease.target.gpus
            )
        }
        Event::LeaseRetargeted {
            id,
            generation,
            target,
            batch,
        } => {
            let (cores, gpus) = (&target.cores, &target.gpus);
            format!("{id} {generation} cores {cores} {gpus:?} batch {batch}")
        }
        Event::LeaseHeld { id, held } => format!("{id} cores {} {:?}", held.cores, held.gpus),
        Event::LeaseAttached { id, fence, holder } => format!("{id} {fence} by {}", holder.pid),
        Event::LeaseQuarantined { id, fence, cause } => format!("{id} {fence} {cause:?}"),
        Event::LeaseEnded { id, how, .. } => format!("{id} {how:?}"),
        Event::JobReplanned { id, reason, .. } | Event::JobStayed { id, reason } => {
            format!("{id} {reason}")
        }
        Event::SlotReserved { member, unclaimed } => {
            format!("{member:?} cores {} {:?}", unclaimed.cores, unclaimed.gpus)
        }
        other => format!("{:?} {:?}", other.lease(), other.job()),
    }
}
