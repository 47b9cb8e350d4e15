//! The heartbeat's loop: renew, listen, report. It keeps no promise of its own; deadlines are `held`'s.
//!
//! While the stream is down, renewals go out as unary calls at the same pace.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tonic::Status;

use super::held::Held;
use super::link::{Link, LinkEvent, Up};
use super::outbox::REPORT_INTERVALS_MAX;
use super::{Command, Reply};
use crate::client::Client;
use crate::clock::BootTime;
use crate::convert::{
    acknowledge, directive, lease_ref, trial, trial_offer, trial_result, work_report,
};
use crate::model::{LeaseRef, Renewal};
use crate::retry::{Backoff, ClientConfig};

/// The wire's limits for one frame.
const RENEWALS_MAX: usize = 1_024;
const REPORTS_MAX: usize = 64;
/// Intervals in one frame, so that it stays well below the daemon's limit for a message (64 KiB).
const FRAME_INTERVALS_MAX: usize = 2 * REPORT_INTERVALS_MAX;
/// Reports that come within this time share a frame.
const FLUSH_EVERY: Duration = Duration::from_millis(50);
/// A renewal on the stream should be answered within a heartbeat; on fast heartbeats, within this.
const ANSWER_AT_LEAST: Duration = Duration::from_millis(500);
/// The pace when there is no lease to set it.
const IDLE: Duration = Duration::from_secs(60);

/// Runs until the last guard is gone.
pub(super) async fn run(
    config: ClientConfig,
    mut commands: mpsc::UnboundedReceiver<Command>,
    work: Arc<Notify>,
) {
    let client = match Client::new(config) {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(%error, "no heartbeats");
            return;
        }
    };
    let (unary, mut unary_results) = mpsc::channel(1);
    let mut beat = Beat {
        link: Link::Down(Instant::now()),
        client,
        leases: BTreeMap::new(),
        backoff: Backoff::default(),
        next_beat: Instant::now() + IDLE,
        next_flush: None,
        last_flush: Instant::now(),
        unary,
        unary_under_way: false,
    };
    loop {
        let wake_at = beat.wake_at();
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => beat.command(command),
                None => return,
            },
            () = work.notified() => beat.work_came(),
            Some(results) = unary_results.recv() => beat.unary_answered(results),
            event = beat.link.event(), if !beat.leases.is_empty() => beat.link_event(event),
            () = tokio::time::sleep_until(wake_at) => beat.time_passed(),
        }
    }
}

type UnaryResults = (Vec<LeaseRef>, BootTime, crate::Result<Vec<Renewal>>);

struct Beat {
    client: Client,
    leases: BTreeMap<u64, Arc<Held>>,
    link: Link,
    backoff: Backoff,
    next_beat: Instant,
    next_flush: Option<Instant>,
    last_flush: Instant,
    unary: mpsc::Sender<UnaryResults>,
    unary_under_way: bool,
}

impl Beat {
    fn command(&mut self, command: Command) {
        match command {
            Command::Hold(held) => {
                let lease = held.terms.lease;
                self.leases.insert(lease.lease_id, held);
                // At once: its deadline counts from a request that may have waited in the queue.
                if matches!(self.link, Link::Up(_)) {
                    self.renew(&[lease]);
                }
                self.next_beat = self.next_beat.min(Instant::now() + self.heartbeat());
            }
            Command::Forget(held) => self.forget(&held),
            Command::Release {
                held,
                within,
                reply,
            } => self.release(&held, within, reply),
        }
    }

    /// Another guard may hold the same lease by now (after an attach under a new fence): leave that.
    fn forget(&mut self, held: &Arc<Held>) {
        let id = held.terms.lease.lease_id;
        if self.leases.get(&id).is_some_and(|h| Arc::ptr_eq(h, held)) {
            self.flush();
            self.leases.remove(&id);
        }
    }

    fn release(&mut self, held: &Arc<Held>, within: Duration, reply: Reply) {
        self.forget(held);
        let client = self.client.with_deadline(within);
        let lease = held.terms.lease;
        tokio::spawn(async move { reply(client.release(lease).await) });
    }

    /// The shortest heartbeat of all leases.
    fn heartbeat(&self) -> Duration {
        let beats = self.leases.values().map(|h| h.terms.heartbeat);
        beats.min().unwrap_or(IDLE)
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        let deadlines = self.leases.values().filter_map(|h| h.due_in());
        let first = deadlines.min().map_or(self.next_beat, |d| now + d);
        let flush = self.next_flush.unwrap_or(self.next_beat);
        first.min(self.next_beat).min(flush)
    }

    fn time_passed(&mut self) {
        let now = Instant::now();
        for held in self.leases.values() {
            held.look_at_clock();
        }
        if self.next_flush.is_some_and(|at| at <= now) {
            self.flush();
        }
        if self.next_beat <= now {
            self.next_beat = now + self.heartbeat();
            self.beat();
        }
    }

    /// Those that are worth renewing.
    fn living(&self) -> Vec<LeaseRef> {
        let living = self.leases.values().filter(|h| !h.is_lost());
        living.map(|h| h.terms.lease).collect()
    }

    fn beat(&mut self) {
        let leases = self.living();
        if leases.is_empty() {
            return;
        }
        let patience = self.heartbeat().max(ANSWER_AT_LEAST);
        if let Link::Up(up) = &self.link
            && up.unanswered.oldest(BootTime::now()) > patience
        {
            self.link_lost(None, "it does not answer");
        }
        if !self.renew(&leases) {
            self.renew_unary(leases);
        }
        self.flush();
    }

    /// Sends renewals on the stream; false if it is not up.
    fn renew(&mut self, leases: &[LeaseRef]) -> bool {
        let Link::Up(up) = &mut self.link else {
            return false;
        };
        for some in leases.chunks(RENEWALS_MAX) {
            let frame = pb::SessionRequest {
                renew: some.iter().copied().map(lease_ref).collect(),
                ..Default::default()
            };
            let sent_at = BootTime::now();
            if up.frames.try_send(frame).is_err() {
                self.link_lost(None, "it takes no more frames");
                return false;
            }
            up.unanswered.sent(some, sent_at);
        }
        true
    }

    fn renew_unary(&mut self, leases: Vec<LeaseRef>) {
        if self.unary_under_way {
            return;
        }
        self.unary_under_way = true;
        let results = self.unary.clone();
        let client = self
            .client
            .with_deadline(self.heartbeat().max(ANSWER_AT_LEAST));
        tokio::spawn(async move {
            for some in leases.chunks(RENEWALS_MAX) {
                // Before the call: the time of any of its tries is later, and so on the safe side.
                let sent_at = BootTime::now();
                let answer = client.renew(some).await;
                if results
                    .send((some.to_vec(), sent_at, answer))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            // An empty one says that all are done.
            results
                .send((Vec::new(), BootTime::now(), Ok(Vec::new())))
                .await
                .ok();
        });
    }

    fn unary_answered(&mut self, (asked, sent_at, answer): UnaryResults) {
        if asked.is_empty() {
            self.unary_under_way = false;
        }
        match answer {
            Ok(results) => {
                for (lease, renewal) in asked.into_iter().zip(results) {
                    self.renewed(lease, renewal, sent_at);
                }
            }
            Err(error) => tracing::warn!(%error, "leases were not renewed"),
        }
    }

    fn renewed(&self, asked: LeaseRef, renewal: Renewal, sent_at: BootTime) {
        let held = self.leases.get(&asked.lease_id);
        // A lease that was attached again meanwhile has another fence: not this answer's.
        if let Some(held) = held.filter(|h| h.terms.lease == asked) {
            held.renewed(renewal.status, renewal.remaining, sent_at);
        }
    }

    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Retry => self.link = Link::open(&self.client),
            LinkEvent::Opened(Ok(up)) => self.link_up(up),
            LinkEvent::Opened(Err(status)) => self.link_lost(Some(status), "it did not open"),
            LinkEvent::Closed(status) => self.link_lost(status, "it was closed"),
            LinkEvent::Answer(answer) => self.answered(answer),
        }
    }

    fn link_up(&mut self, up: Box<Up>) {
        self.link = Link::Up(up);
        for held in self.leases.values() {
            held.reopened();
        }
        let leases = self.living();
        self.renew(&leases);
        self.flush();
    }

    fn link_lost(&mut self, status: Option<Status>, what: &str) {
        let pause = self.backoff.pause();
        let why = status.as_ref().map_or("", Status::message);
        tracing::debug!(what, why, ?pause, "the session stream is down");
        self.link = Link::Down(Instant::now() + pause);
    }

    fn answered(&mut self, answer: pb::SessionResponse) {
        self.backoff.reset();
        for renewal in answer.renewals.into_iter().map(Renewal::from) {
            let Link::Up(up) = &mut self.link else { return };
            if let Some((asked, sent_at)) = up.unanswered.answered(renewal) {
                self.renewed(asked, renewal, sent_at);
            }
        }
        for (lease, directive) in answer.directives.into_iter().filter_map(directive) {
            let held = self.leases.get(&lease.lease_id);
            if let Some(held) = held.filter(|h| h.terms.lease == lease) {
                held.directed(directive);
            }
        }
        for (lease, trial) in answer.trials.into_iter().filter_map(trial) {
            let held = self.leases.get(&lease.lease_id);
            if let Some(held) = held.filter(|h| h.terms.lease == lease) {
                held.asked_for_trial(trial);
            }
        }
        for why in answer.refused {
            tracing::warn!(
                why,
                "the daemon refused a report, an acknowledgement or a trial"
            );
        }
        self.work_came();
    }

    /// Something waits to be sent: now, or with what comes within a moment.
    fn work_came(&mut self) {
        let at = self.last_flush + FLUSH_EVERY;
        if at <= Instant::now() {
            self.flush();
        } else {
            self.next_flush = Some(at);
        }
    }

    /// Sends acknowledgements and reports, as much as the stream takes; the rest waits in the outboxes.
    fn flush(&mut self) {
        self.next_flush = None;
        self.last_flush = Instant::now();
        let Link::Up(up) = &self.link else { return };
        loop {
            // The permit first: what is taken out of an outbox must be sent.
            let Ok(permit) = up.frames.try_reserve() else {
                return;
            };
            let frame = next_frame(&self.leases);
            if frame == pb::SessionRequest::default() {
                return;
            }
            permit.send(frame);
        }
    }
}

fn next_frame(leases: &BTreeMap<u64, Arc<Held>>) -> pb::SessionRequest {
    let mut frame = pb::SessionRequest::default();
    let mut room = FRAME_INTERVALS_MAX;
    let now = BootTime::now();
    for held in leases.values() {
        let lease = held.terms.lease;
        if frame.acknowledgements.len() < REPORTS_MAX
            && let Some((generation, effective)) = held.take_acknowledgement()
        {
            let acknowledgement = acknowledge(lease, generation, effective);
            frame.acknowledgements.push(acknowledgement);
        }
        if frame.trial_offers.len() < REPORTS_MAX
            && frame.trial_results.len() < REPORTS_MAX
            && let Some(told) = held.take_trials()
        {
            let offer = told.offer.map(|stage| trial_offer(lease, stage));
            frame.trial_offers.extend(offer);
            let result = told
                .answer
                .map(|(id, answer)| trial_result(lease, id, answer));
            frame.trial_results.extend(result);
        }
        if frame.reports.len() < REPORTS_MAX
            && held.has_reports()
            && let Some(batch) = held.take_report(room)
        {
            room -= batch.intervals.len();
            let report = work_report(lease, batch.lanes, &batch.intervals, &batch.steps, now);
            frame.reports.push(report);
        }
    }
    frame
}
