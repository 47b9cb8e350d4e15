//! What is not durable: deadlines, acknowledgements, timers, the balance of each job. Rebuilt at start.
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use alloc::string::String;

use crate::balance::{Free, StayReason, Watch};
use crate::clock::LeaseClock;
use crate::event::Event;
use crate::grant::Ask;
use crate::id::{Fence, Generation, JobId, LeaseId, Name, RequestId};
use crate::lease::{Lease, Phase};
use crate::settings::Settings;
use crate::state::{Durable, Effect};
use crate::unit::{Millis, Time};

/// What was decided about a job's balance, for its watch to hear after the commit.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// What was free beside the job.
    pub free: Free,
    /// None: the shares move.
    pub stayed: Option<StayReason>,
    /// In words.
    pub detail: String,
}

/// What is not durable.
#[derive(Debug, Default)]
pub struct Volatile {
    /// Times and limits.
    pub settings: Settings,
    /// The deadline of each live lease; the daemon's handle holds the same words.
    pub clocks: BTreeMap<LeaseId, Arc<LeaseClock>>,
    /// When to look at a lease next. May be early: the look reads the clock.
    due: BTreeSet<(Time, LeaseId)>,
    /// Since when a lease is in quarantine.
    pub quarantined: BTreeMap<LeaseId, Time>,
    /// The generation that the holder says it has applied.
    pub acknowledged: BTreeMap<LeaseId, Generation>,
    /// Since when a target is unconfirmed.
    pub moving: BTreeMap<LeaseId, Time>,
    /// Since when an admitted job has had no live lease.
    pub idle: BTreeMap<JobId, Time>,
    /// The balance of each admitted job.
    pub watches: BTreeMap<JobId, Watch>,
    /// What a step that is not settled yet decided about a job's balance, and why.
    pub rulings: BTreeMap<JobId, Ruling>,
    /// Ends in order, for forgetting.
    ends: VecDeque<(Time, (Name, RequestId))>,
    /// Leases that nobody has renewed since the first restart that saw them.
    pub unrenewed: BTreeMap<LeaseId, Time>,
    /// Leases that were there at the last start, and have not been renewed since.
    restarted: BTreeSet<LeaseId>,
    /// Clocks closed by the step that is not settled yet.
    closed: Vec<LeaseId>,
    /// The wake-up that the last step asked for.
    expected: Option<Time>,
}

impl Volatile {
    /// After a start: every live lease gets one full TTL from `now`; one that nobody has renewed over several
    /// restarts gets no more than `unrenewed_ttls` TTLs in all (`unrenewed` says since when).
    pub fn start(
        d: &Durable,
        settings: Settings,
        now: Time,
        unrenewed: BTreeMap<LeaseId, Time>,
    ) -> Self {
        let mut v = Self {
            settings,
            unrenewed,
            ..Self::default()
        };
        for lease in d.leases().values() {
            let since = *v.unrenewed.entry(lease.id).or_insert(now);
            let last = since.after(Millis(lease.ttl.0.saturating_mul(settings.unrenewed_ttls)));
            let deadline = now.after(lease.ttl).min(last);
            v.start_clock(lease, deadline);
            v.restarted.insert(lease.id);
            if matches!(lease.phase, Phase::Quarantined { .. }) {
                v.quarantined.insert(lease.id, now);
            }
            if lease.held != lease.target {
                v.moving.insert(lease.id, now);
            }
        }
        for job in d.jobs().values().filter(|j| j.plan.is_some()) {
            v.watches.insert(job.id, Watch::new(&job.spec));
            if crate::state::slots(job).all(|(_, s)| s.lease.is_none()) {
                v.idle.insert(job.id, now);
            }
        }
        let ended = |(key, r): (&(Name, RequestId), &crate::state::Remembered)| match r.effect {
            Effect::Lease {
                id, end: Some(_), ..
            } => Some((id.0, key.clone())),
            // How long ago a job ended is not known: in front, by its number.
            Effect::Job(id) if !d.jobs().contains_key(&id) => Some((id.0, key.clone())),
            _ => None,
        };
        let mut ends: Vec<_> = d.requests().iter().filter_map(ended).collect();
        ends.sort_unstable_by_key(|(id, _)| *id);
        v.ends = ends.into_iter().map(|(_, key)| (now, key)).collect();
        v
    }

    fn start_clock(&mut self, lease: &Lease, deadline: Time) {
        let clock = Arc::new(LeaseClock::new(lease.fence, deadline));
        if self.clocks.get(&lease.id).is_some_and(|c| c.is_renewed()) {
            clock.renew(lease.fence, deadline); // in the queue, by the same holder
        }
        self.clocks.insert(lease.id, clock);
        self.due
            .insert((deadline.after(self.grace(lease)), lease.id));
    }

    /// Time past the deadline in which a renewal still saves the lease.
    pub fn grace(&self, lease: &Lease) -> Millis {
        match lease.phase {
            Phase::Queued | Phase::Pending => Millis(0),
            _ => self.settings.grace,
        }
    }

    /// The leases that have to be looked at by `now`. Takes them off the list: the caller puts back what stays.
    pub fn take_due(&mut self, now: Time, most: usize) -> Vec<LeaseId> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(first) = self.due.first().copied().filter(|(at, _)| *at <= now)
        {
            self.due.remove(&first);
            if !taken.contains(&first.1) {
                taken.push(first.1); // it may be on the list for several times
            }
        }
        taken
    }
    /// Looks at the lease again at `at`.
    pub fn look_again(&mut self, id: LeaseId, at: Time) {
        self.due.insert((at, id));
    }
    /// Remembers that this step closed a clock.
    pub fn closed(&mut self, id: LeaseId) {
        self.closed.push(id);
    }
    /// Clocks closed by this step so far.
    pub fn closings(&self) -> usize {
        self.closed.len()
    }
    /// What follows the first `kept` closings is not committed: those clocks open again.
    pub fn reopen(&mut self, now: Time, kept: usize) {
        for id in self.closed.split_off(kept.min(self.closed.len())) {
            if let Some(clock) = self.clocks.get(&id) {
                clock.reopen();
                self.due.insert((now, id));
            }
        }
    }

    /// If the daemon itself was late by more than the limit, everyone's deadline moves by that much. Asked at the
    /// beginning and the end of each step, whatever woke the daemon. Returns the stall.
    pub fn credit_stall(&mut self, now: Time) -> Millis {
        let late = self.expected.take().map_or(Millis(0), |at| now.since(at));
        if late < self.settings.stall {
            return Millis(0);
        }
        self.clocks.values().for_each(|c| c.extend(late));
        late
    }

    /// A step has begun: its end is expected at once.
    pub const fn began(&mut self, now: Time) {
        self.expected = Some(now);
    }

    /// When the core has to be called next.
    pub fn next_wakeup(&mut self, now: Time) -> Time {
        /// Nothing waits longer: conditions that have no timer of their own are seen within it.
        const AT_LEAST_EVERY: Millis = Millis(1000);
        let mut at = now.after(AT_LEAST_EVERY);
        if let Some((due, _)) = self.due.first() {
            at = at.min(*due);
        }
        // A flood of ends is forgotten as fast as it comes, a bounded piece at a time.
        const FORGET_EVERY: Millis = Millis(50);
        if self.ends.len() > self.settings.remember_ends as usize {
            at = at.min(now.after(FORGET_EVERY));
        }
        // What is overdue already is no reason to be early.
        self.expected = Some(at.max(now));
        at
    }

    /// Requests to forget at `now`, at most `most`.
    pub fn take_forgettable(&mut self, now: Time, most: usize) -> Vec<(Name, RequestId)> {
        let old = |v: &Self| {
            let first = v.ends.front()?;
            (v.ends.len() > v.settings.remember_ends as usize
                || first.0.after(v.settings.remember_for) <= now)
                .then_some(())
        };
        let mut keys = Vec::new();
        while keys.len() < most && old(self).is_some() {
            keys.extend(self.ends.pop_front().map(|(_, key)| key));
        }
        keys
    }
    /// They were not forgotten after all.
    pub fn put_back(&mut self, keys: Vec<(Name, RequestId)>) {
        keys.into_iter()
            .rev()
            .for_each(|key| self.ends.push_front((Time(0), key))); // due already
    }

    /// Leases that were renewed since a restart: their `unrenewed_since` can be cleared in the ledger. They are told
    /// until they are [noted](Self::noted).
    pub fn renewed(&self) -> Vec<LeaseId> {
        let is_renewed = |id: &&LeaseId| self.clocks.get(id).is_none_or(|c| c.is_renewed());
        self.restarted.iter().filter(is_renewed).copied().collect()
    }
    /// The ledger knows that these were renewed.
    pub fn noted(&mut self, renewed: &[LeaseId]) {
        for id in renewed {
            self.restarted.remove(id);
            self.unrenewed.remove(id);
        }
    }

    /// Follows committed events.
    pub fn settle(&mut self, d: &Durable, now: Time, events: &[Event]) {
        self.closed.clear();
        for event in events {
            match event {
                Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => {
                    self.start_clock(lease, now.after(lease.ttl));
                    self.busy(d, lease.id);
                }
                Event::LeaseAttached { id, fence, .. } => {
                    self.new_fence(d, *id, *fence, now);
                    if let Some(clock) = self.clocks.get(id) {
                        clock.renew(*fence, clock.deadline()); // an attach says that somebody is there
                    }
                    // The answer hands the target over: nothing is left to acknowledge.
                    if let Some(lease) = d.leases().get(id) {
                        self.acknowledged.insert(*id, lease.generation);
                    }
                }
                Event::LeaseDraining { id, fence } => self.new_fence(d, *id, *fence, now),
                Event::LeaseQuarantined { id, fence, .. } => {
                    self.new_fence(d, *id, *fence, now);
                    self.quarantined.insert(*id, now);
                }
                Event::LeaseRetargeted { id, .. } | Event::LeaseHeld { id, .. } => {
                    match d.leases().get(id) {
                        Some(l) if l.held != l.target => self.moving.entry(*id).or_insert(now),
                        _ => &mut self.moving.remove(id).unwrap_or_default(),
                    };
                }
                Event::LeaseEnded { id, .. } => self.forget(d, *id, now),
                Event::JobAdmitted { id, .. } => {
                    if let Some(job) = d.jobs().get(id) {
                        self.watches.insert(*id, Watch::new(&job.spec));
                        self.idle.insert(*id, now);
                    }
                }
                Event::JobReplanned { id, reason, .. } | Event::JobStayed { id, reason } => {
                    self.ruled(d, *id, reason, matches!(event, Event::JobReplanned { .. }));
                }
                Event::JobParked { id } | Event::JobEnded { id } => {
                    self.watches.remove(id);
                    self.idle.remove(id);
                    if matches!(event, Event::JobEnded { .. }) {
                        let mut all = d.requests().iter();
                        let key = all.find(|(_, r)| r.effect == Effect::Job(*id));
                        self.ends.extend(key.map(|(key, _)| (now, key.clone())));
                    }
                }
                _ => {}
            }
        }
    }
    /// The watch hears what came of its verdict. A move that nobody's verdict caused was asked for.
    fn ruled(&mut self, d: &Durable, id: JobId, reason: &str, moved: bool) {
        let (Some(watch), Some(job)) = (self.watches.get_mut(&id), d.jobs().get(&id)) else {
            return;
        };
        let cooldown = job.spec.rebalance.cooldown_windows;
        match self.rulings.remove(&id) {
            Some(Ruling {
                free,
                stayed: Some(why),
                detail,
            }) => watch.stayed(free, why, detail),
            Some(Ruling {
                stayed: None,
                detail,
                ..
            }) => watch.moved(cooldown, detail),
            None if moved => watch.moved(cooldown, reason.into()),
            None => {}
        }
    }
    fn busy(&mut self, d: &Durable, id: LeaseId) {
        if let Some(Ask::Stage(member)) = d.leases().get(&id).map(|l| &l.ask) {
            self.idle.remove(&member.job);
        }
    }
    fn new_fence(&mut self, d: &Durable, id: LeaseId, fence: Fence, now: Time) {
        let Some(lease) = d.leases().get(&id) else {
            return;
        };
        let deadline = now.after(lease.ttl);
        if let Some(clock) = self.clocks.get(&id) {
            clock.reset(fence, deadline);
            self.due.insert((deadline.after(self.grace(lease)), id));
        }
        self.acknowledged.remove(&id);
        // Another process may hold it from here: its steps start anew.
        if let Ask::Stage(member) = lease.ask
            && let Some(watch) = self.watches.get_mut(&member.job)
        {
            watch.forget(member.stage, member.worker);
        }
    }
    fn forget(&mut self, d: &Durable, id: LeaseId, now: Time) {
        self.clocks.remove(&id);
        self.quarantined.remove(&id);
        self.acknowledged.remove(&id);
        self.moving.remove(&id);
        self.unrenewed.remove(&id);
        self.restarted.remove(&id);
        if let Some(key) = d.ended_key(id) {
            self.ends.push_back((now, key.clone()));
        }
        for job in d.jobs().values().filter(|j| j.plan.is_some()) {
            if crate::state::slots(job).all(|(_, s)| s.lease.is_none()) {
                self.idle.entry(job.id).or_insert(now);
            }
        }
    }
}
