//! What is not durable: deadlines, acknowledgements, timers, the balance of each job. Rebuilt at start.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use alloc::string::String;

use crate::balance::{Free, StayReason, Watch};
use crate::caps::Caps;
use crate::clock::LeaseClock;
use crate::command::Seen;
use crate::event::Event;
use crate::grant::{Ask, Resize};
use crate::id::{Fence, Generation, GpuId, JobId, LeaseId, Name, RequestId};
use crate::lease::{Lease, Phase};
use crate::settings::Settings;
use crate::state::{Durable, Effect};
use crate::unit::{Millis, Time};

mod ends;
mod fits;

pub use fits::Fits;

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
    /// What each tenant may have at most.
    pub caps: Caps,
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
    /// Since when a worker has to restart with another share; until it works with it.
    pub restarting: BTreeMap<LeaseId, Time>,
    /// Since when the holder of a lease has been told that its job is over.
    pub releasing: BTreeMap<LeaseId, Time>,
    /// Since when an admitted job has had no live lease.
    pub idle: BTreeMap<JobId, Time>,
    /// The balance of each admitted job.
    pub watches: BTreeMap<JobId, Watch>,
    /// What a step that is not settled yet decided about a job's balance, and why.
    pub rulings: BTreeMap<JobId, Ruling>,
    /// Ends in order, for forgetting.
    ends: ends::Ends,
    /// The job of each live lease that is for a job's worker.
    members: BTreeMap<LeaseId, JobId>,
    /// What planning said of the jobs that wait.
    pub fits: Fits,
    /// Leases that nobody has renewed since the first restart that saw them.
    pub unrenewed: BTreeMap<LeaseId, Time>,
    /// Leases that were there at the last start, and have not been renewed since.
    restarted: BTreeSet<LeaseId>,
    /// Since when a lease that was given back has been draining, in this life of the daemon.
    pub draining: BTreeMap<LeaseId, Time>,
    /// When a worker that has reported progress was last heard of.
    pub heard: BTreeMap<LeaseId, Time>,
    /// Leases whose contexts were seen with more than they are to have.
    pub wide: BTreeMap<LeaseId, (GpuId, Seen)>,
    /// How long this life of the daemon stood still, as far as that was credited.
    stalled: Millis,
    /// Clocks closed by the step that is not settled yet.
    closed: Vec<LeaseId>,
    /// The wake-up that the last step asked for.
    expected: Option<Time>,
    /// When it was last asked what the passing of time leads to.
    ticked: Time,
}

/// Since when leases have not been renewed, as if the daemon had never been down. `noted`: as the last life noted it;
/// `alive`: up to when it noted that it lived. Nobody can renew with a daemon that is not there, so that time is the
/// daemon's: without this, a downtime of a few TTLs would end every lease at the start.
pub fn without_downtime(
    noted: &BTreeMap<LeaseId, Time>,
    alive: Option<Time>,
    now: Time,
) -> BTreeMap<LeaseId, Time> {
    let moved = |(id, since): (&LeaseId, &Time)| {
        let unheard = alive.map_or(Millis(0), |at| at.since(*since));
        (*id, Time(now.0.saturating_sub(unheard.0)))
    };
    noted.iter().map(moved).collect()
}

impl Volatile {
    /// After a start: every live lease gets one full TTL from `now`; one that nobody has renewed while several lives
    /// of the daemon could have heard it gets no more than `unrenewed_ttls` TTLs in all. `unrenewed` says since when,
    /// moved by the times in which nobody could be heard: see [`without_downtime`].
    pub fn start(
        d: &Durable,
        settings: Settings,
        now: Time,
        unrenewed: BTreeMap<LeaseId, Time>,
    ) -> Self {
        let mut v = Self {
            settings,
            unrenewed,
            ticked: now,
            ..Self::default()
        };
        v.unrenewed.retain(|id, _| d.leases().contains_key(id));
        for lease in d.leases().values() {
            let mut deadline = now.after(lease.ttl);
            if lease.phase.is_usable() || lease.phase == Phase::Queued {
                let since = *v.unrenewed.entry(lease.id).or_insert(now);
                let ttls = Millis(lease.ttl.0.saturating_mul(settings.unrenewed_ttls));
                deadline = deadline.min(since.after(ttls));
                v.restarted.insert(lease.id);
            }
            v.start_clock(lease, deadline);
            v.members.extend(member(lease));
            match lease.phase {
                Phase::Quarantined { .. } => drop(v.quarantined.insert(lease.id, now)),
                Phase::Draining(_) => drop(v.draining.insert(lease.id, now)),
                _ => {}
            }
            if lease.held != lease.target {
                v.moving.insert(lease.id, now);
            }
            // Whether they were told in the life before, nobody knows: the whole grace again.
            if lease.phase.is_usable() && d.outlives_its_job(lease) {
                v.releasing.insert(lease.id, now);
            }
        }
        for job in d.jobs().values().filter(|j| j.plan.is_some()) {
            v.watches.insert(job.id, Watch::new(&job.spec, now));
            if crate::state::slots(job).all(|(_, s)| s.lease.is_none()) {
                v.idle.insert(job.id, now);
            }
        }
        let ended = |effect| match effect {
            Effect::Lease {
                id, end: Some(_), ..
            } => Some(id.0),
            // How long ago a job ended is not known: in front, by its number.
            Effect::Job(id) if !d.jobs().contains_key(&id) => Some(id.0),
            _ => None,
        };
        let answers = d.requests().iter();
        let mut ends: Vec<_> = answers
            .filter_map(|(tenant, request, r)| Some((ended(r.effect)?, tenant, request)))
            .collect();
        ends.sort_unstable_by_key(|(id, ..)| *id);
        for (_, tenant, request) in ends {
            v.ends
                .push(now, (tenant.clone(), request), settings.remember_ends);
        }
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
    pub fn credit_stall(&mut self, d: &Durable, now: Time) -> Millis {
        let late = self.expected.take().map_or(Millis(0), |at| now.since(at));
        if late < self.settings.stall {
            return Millis(0);
        }
        for (id, clock) in &self.clocks {
            let ttl = d.leases().get(id).map_or(self.settings.ttl, |l| l.ttl);
            clock.extend(late, now.after(ttl));
        }
        self.stalled += late;
        // Nobody was told, and nobody was heard, while it stood still.
        let since = self
            .releasing
            .values_mut()
            .chain(self.restarting.values_mut());
        since.for_each(|since| *since = since.after(late));
        late
    }
    /// Up to when this life of the daemon counts against leases that were there at its start and are not renewed:
    /// its stalls do not. None if there are no such leases. To be noted within a second or so.
    pub fn alive(&self, now: Time) -> Option<Time> {
        (!self.restarted.is_empty()).then(|| Time(now.0.saturating_sub(self.stalled.0)))
    }

    /// A step has begun: its end is expected at once.
    pub const fn began(&mut self, now: Time) {
        self.expected = Some(now);
    }

    /// It is asked what the passing of time leads to.
    pub const fn tick(&mut self, now: Time) {
        self.ticked = now;
    }

    /// By when the next tick has to come, whatever else happens meanwhile; it may be past. Counted from the last tick,
    /// not from the last step: a daemon that is never idle has ticks, too.
    pub fn next_wakeup(&mut self, now: Time) -> Time {
        /// Nothing waits longer: conditions that have no timer of their own are seen within it.
        const AT_LEAST_EVERY: Millis = Millis(1000);
        let mut at = self.ticked.after(AT_LEAST_EVERY);
        if let Some((due, _)) = self.due.first() {
            at = at.min(*due);
        }
        // A flood of ends is forgotten as fast as it comes, a bounded piece at a time.
        const FORGET_EVERY: Millis = Millis(50);
        if self.ends.is_crowded() {
            at = at.min(self.ticked.after(FORGET_EVERY));
        }
        // What is overdue already is no reason to be early.
        self.expected = Some(at.max(now));
        at
    }

    /// Requests to forget at `now`, at most `most`.
    pub fn take_forgettable(&mut self, now: Time, most: usize) -> Vec<(Name, RequestId)> {
        self.ends.take(now, &self.settings, most)
    }
    /// They were not forgotten after all.
    pub fn put_back(&mut self, keys: Vec<(Name, RequestId)>) {
        self.ends.put_back(keys, self.settings.remember_ends);
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
                    if self.restarted.contains(&lease.id)
                        && let Some(clock) = self.clocks.get(&lease.id)
                    {
                        clock.renew(lease.fence, clock.deadline()); // its time counts from the grant
                    }
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
                Event::LeaseDraining { id, fence } => {
                    self.new_fence(d, *id, *fence, now);
                    self.releasing.remove(id);
                    self.draining.insert(*id, now);
                }
                Event::LeaseQuarantined { id, fence, .. } => {
                    self.new_fence(d, *id, *fence, now);
                    self.draining.remove(id);
                    self.releasing.remove(id);
                    self.quarantined.insert(*id, now);
                }
                Event::LeaseRetargeted { id, .. } => {
                    self.retargeted(d, *id, now);
                    self.moving.remove(id); // a new target has its own time
                    self.moves(d, *id, now);
                }
                Event::LeaseHeld { id, .. } => self.moves(d, *id, now),
                Event::LeaseEnded { id, .. } => self.forget(d, *id, now),
                Event::JobAdmitted { id, .. } => {
                    if let Some(job) = d.jobs().get(id) {
                        self.watches.insert(*id, Watch::new(&job.spec, now));
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
                        self.over(d, *id, now);
                        if let Some(key) = d.request_of(*id) {
                            let most = self.settings.remember_ends;
                            self.ends.push(now, key.clone(), most);
                        }
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
    fn moves(&mut self, d: &Durable, id: LeaseId, now: Time) {
        match d.leases().get(&id) {
            Some(l) if l.held != l.target => self.moving.entry(id).or_insert(now),
            _ => &mut self.moving.remove(&id).unwrap_or_default(),
        };
    }
    /// A worker has reported: work or steps, or nothing (then it lives and waits for another stage).
    pub fn reported(&mut self, id: LeaseId, progress: bool, now: Time) {
        match self.heard.get_mut(&id) {
            Some(at) => *at = now,
            None if progress => drop(self.heard.insert(id, now)),
            None => {}
        }
    }
    /// The lease has a new target. If that takes a restart of a worker that runs, its time counts from here.
    fn retargeted(&mut self, d: &Durable, id: LeaseId, now: Time) {
        let restarts = |l: &&Lease| {
            let runs = matches!(l.phase, Phase::Attached(_) | Phase::Active { .. });
            runs && l.resize == Resize::Restart && l.held.gpus != l.target.gpus
        };
        match d.leases().get(&id).filter(restarts) {
            Some(_) => self.restarting.insert(id, now),
            None => self.restarting.remove(&id),
        };
    }
    /// The worker of a lease has done work. How long its restart took, if it has just come out of one.
    pub fn works(&mut self, lease: &Lease, now: Time) -> Option<Millis> {
        let since = *self.restarting.get(&lease.id)?;
        let confirmed = lease.held.gpus == lease.target.gpus
            && self.acknowledged.get(&lease.id) == Some(&lease.generation);
        confirmed.then(|| self.restarting.remove(&lease.id))?;
        Some(now.since(since))
    }
    /// A job is over: from here on its workers are told to give their leases back.
    fn over(&mut self, d: &Durable, id: JobId, now: Time) {
        let told = d.leases_of(id).filter(|l| l.phase.is_usable());
        self.releasing.extend(told.map(|l| (l.id, now)));
    }
    fn busy(&mut self, d: &Durable, id: LeaseId) {
        if let Some(lease) = d.leases().get(&id)
            && let Ask::Stage(of) = &lease.ask
        {
            self.idle.remove(&of.job);
            self.members.extend(member(lease));
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
        self.heard.remove(&id);
        self.wide.remove(&id);
        // Another process may hold it from here: its steps start anew.
        if let Ask::Stage(member) = lease.ask
            && let Some(watch) = self.watches.get_mut(&member.job)
        {
            watch.forget(member.stage, member.worker);
        }
    }
    /// Everything about a lease that has ended goes. Each field is named, so that none is forgotten here.
    fn forget(&mut self, d: &Durable, id: LeaseId, now: Time) {
        let Self {
            clocks,
            quarantined,
            acknowledged,
            moving,
            restarting,
            releasing,
            members,
            unrenewed,
            restarted,
            draining,
            heard,
            wide,
            // By job, or for the whole node; what is due and what was closed are looked up, and then not found.
            settings: _,
            caps: _,
            due: _,
            idle: _,
            watches: _,
            rulings: _,
            ends: _,
            fits: _,
            stalled: _,
            closed: _,
            expected: _,
            ticked: _,
        } = self;
        clocks.remove(&id);
        acknowledged.remove(&id);
        restarted.remove(&id);
        wide.remove(&id);
        let since = [
            quarantined,
            moving,
            restarting,
            releasing,
            unrenewed,
            draining,
            heard,
        ];
        for times in since {
            times.remove(&id);
        }
        let job = members.remove(&id).and_then(|id| d.jobs().get(&id));
        if let Some(key) = d.ended_key(id) {
            let most = self.settings.remember_ends;
            self.ends.push(now, key.clone(), most);
        }
        if let Some(job) = job.filter(|j| j.plan.is_some())
            && d.leases_of(job.id).all(|l| l.phase == Phase::Queued)
        {
            self.idle.entry(job.id).or_insert(now);
        }
    }
}

/// The lease of a job's worker, with the job.
const fn member(lease: &Lease) -> Option<(LeaseId, JobId)> {
    match lease.ask {
        Ask::Stage(m) => Some((lease.id, m.job)),
        Ask::Alone { .. } => None,
    }
}
