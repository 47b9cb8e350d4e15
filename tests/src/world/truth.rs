//! What really happened, kept beside the product: every committed event, every answer that left the daemon, every
//! renewal that was acknowledged. Judges the product by it; the product never sees it.
use std::collections::BTreeMap;

use evenkeel_core::command::{Caller, Command, Rejection, Reply};
use evenkeel_core::event::Event;
use evenkeel_core::grant::Ask;
use evenkeel_core::id::{Fence, Generation, JobId, LeaseId, Name, RequestId};
use evenkeel_core::invariant::{Violation, violations};
use evenkeel_core::job::ShrinkFallback;
use evenkeel_core::lease::{Cause, End, Lease, Phase};
use evenkeel_core::node::{Node, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::state::{Durable, Parts};
use evenkeel_core::unit::{Millis, Time};

use super::floors::{Floors, Life, UNNOTED, UNRENEWED_TTLS};
use super::hardware::Hardware;
use super::{queueing, reality};

/// Nothing, or what is broken.
pub type Verdict = Result<(), Violation>;

/// A violation.
pub fn broken(invariant: &'static str, detail: impl Into<String>) -> Verdict {
    Err(Violation {
        invariant,
        detail: detail.into(),
    })
}

/// What is known for certain.
#[derive(Debug)]
pub struct Truth {
    /// The fold of the committed events.
    pub fold: Durable,
    acked: BTreeMap<LeaseId, Fence>,
    acked_jobs: BTreeMap<JobId, ()>,
    effects: BTreeMap<(Name, RequestId), LeaseId>,
    owners: BTreeMap<LeaseId, Name>,
    marks: BTreeMap<LeaseId, (Fence, Generation)>,
    ended: BTreeMap<LeaseId, End>,
    ended_jobs: BTreeMap<JobId, ()>,
    floors: BTreeMap<LeaseId, Floors>,
    /// Queue entries that somebody has given up: they may end at any time.
    pub given_up: BTreeMap<LeaseId, ()>,
    /// Leases that an admin has vouched for.
    pub cleared: BTreeMap<LeaseId, ()>,
    /// Leases that somebody who may has asked to be taken back.
    revoked: BTreeMap<LeaseId, ()>,
    /// Since when the holders of a cancelled job's leases could know of it; and later by the daemon's stalls since.
    told: BTreeMap<LeaseId, (Time, Time)>,
    grace: Millis,
    release_grace: Millis,
    /// When the newest stall began: what was decided before it stands.
    stalled_at: Time,
    /// When this life of the daemon began.
    started: Time,
    /// How long it has stood still in this life.
    stood_still: Millis,
}

/// A node that has nothing, before the first discovery.
fn nothing() -> Node {
    Node {
        kind: PoolKind::Local,
        cores: Default::default(),
        reserved_cores: Default::default(),
        gpus: Vec::new(),
    }
}

impl Truth {
    /// Nothing has happened.
    pub fn new(settings: &Settings) -> Self {
        Self {
            fold: Durable::new(nothing()),
            acked: BTreeMap::new(),
            acked_jobs: BTreeMap::new(),
            effects: BTreeMap::new(),
            owners: BTreeMap::new(),
            marks: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_jobs: BTreeMap::new(),
            floors: BTreeMap::new(),
            given_up: BTreeMap::new(),
            cleared: BTreeMap::new(),
            revoked: BTreeMap::new(),
            told: BTreeMap::new(),
            grace: settings.grace,
            release_grace: settings.release_grace,
            stalled_at: Time(0),
            started: Time(0),
            stood_still: Millis(0),
        }
    }
    /// Whose a lease is or was.
    pub fn owner(&self, id: LeaseId) -> Option<&Name> {
        self.owners.get(&id)
    }
    /// Whether a lease's holder was told that its job is over.
    pub fn was_told(&self, id: LeaseId) -> bool {
        self.told.contains_key(&id)
    }
    /// A command reached the daemon.
    pub fn asked(&mut self, command: &Command) {
        if let Command::Revoke { caller, lease } = command
            && (caller.admin || self.owners.get(lease) == Some(&caller.tenant))
        {
            self.revoked.insert(*lease, ());
        }
    }
    /// How a lease ended.
    pub fn end_of(&self, id: LeaseId) -> Option<End> {
        self.ended.get(&id).copied()
    }

    /// Events became durable. Each is judged on the state before it, and then applied.
    pub fn commit(&mut self, events: &[Event], decided_at: Time, hw: &Hardware) -> Verdict {
        for event in events {
            self.judge(event, decided_at, hw)?;
            self.fold.evolve(event);
            self.remember(event, decided_at);
        }
        self.fold.commit();
        queueing::queue_is_served(&self.fold)?;
        reality::reality_is_counted(&self.fold, hw)
    }

    fn judge(&self, event: &Event, at: Time, hw: &Hardware) -> Verdict {
        match event {
            Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => {
                self.one_effect_per_request(lease)?;
                if matches!(event, Event::LeaseGranted { .. }) {
                    queueing::backfill_delays_nobody(&self.fold, lease)?;
                }
            }
            Event::JobAdmitted { id, plan, .. } => {
                queueing::admission_delays_nobody(&self.fold, *id, plan)?
            }
            Event::LeaseAttached { id, fence, .. } | Event::LeaseDraining { id, fence } => {
                self.fence_rises(*id, *fence)?;
            }
            Event::LeaseQuarantined { id, fence, cause } => {
                self.fence_rises(*id, *fence)?;
                match cause {
                    Cause::Expired => self.may_expire(*id, at)?,
                    Cause::Revoked => self.may_revoke(*id, at)?,
                }
            }
            Event::LeaseRetargeted { id, generation, .. } => {
                let last = self.marks.get(id).map(|m| m.1).unwrap_or_default();
                if *generation <= last {
                    return broken(
                        "generations_rise_with_each_target",
                        format!("{id}: {generation} after {last}"),
                    );
                }
            }
            Event::LeaseEnded { id, fence, how, .. } => {
                self.fence_rises(*id, *fence)?;
                self.freed_only_when_proved_gone(*id, *how, hw)?;
                let waited = self
                    .fold
                    .leases()
                    .get(id)
                    .is_some_and(|l| l.phase == Phase::Queued);
                let by_time = *how == End::Abandoned && waited && !self.given_up.contains_key(id);
                let unenforced = Phase::Active {
                    holder: None,
                    verified: false,
                };
                if *how == End::Revoked && self.phase(*id) == Some(&unenforced) {
                    self.may_revoke(*id, at)?;
                }
                let quarantined = matches!(self.phase(*id), Some(Phase::Quarantined { .. }));
                if (*how == End::Expired && !quarantined) || by_time {
                    self.may_expire(*id, at)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn phase(&self, id: LeaseId) -> Option<&Phase> {
        self.fold.leases().get(&id).map(|l| &l.phase)
    }

    fn one_effect_per_request(&self, lease: &Lease) -> Verdict {
        let key = (lease.tenant.clone(), lease.request);
        match self.effects.get(&key) {
            Some(id) if *id != lease.id => broken(
                "one_effect_per_request",
                format!("request {} of {} made {id} and {}", key.1, key.0, lease.id),
            ),
            _ => Ok(()),
        }
    }

    fn fence_rises(&self, id: LeaseId, fence: Fence) -> Verdict {
        let last = self.marks.get(&id).map(|m| m.0).unwrap_or_default();
        if fence > last {
            return Ok(());
        }
        broken(
            "fences_rise_with_each_change_of_hands",
            format!("{id}: {fence} after {last}"),
        )
    }

    /// A share that a holder had is free only when its tree is dead and no context of it is left, or when it is off its
    /// cores and off every GPU.
    fn freed_only_when_proved_gone(&self, id: LeaseId, how: End, hw: &Hardware) -> Verdict {
        let lease = self.fold.leases().get(&id);
        let Some((lease, holder)) = lease.and_then(|l| Some((l, l.phase.holder()?))) else {
            return Ok(());
        };
        if self.cleared.contains_key(&id) {
            return Ok(());
        }
        let Some(tree) = hw.tree(holder) else {
            let why = format!("{id} ended ({how:?}) and contexts of its tree {holder:?} are left");
            return match hw.left_of(holder) {
                0 => Ok(()),
                _ => broken("freed_only_when_proved_gone", why),
            };
        };
        let draining = matches!(lease.phase, Phase::Draining(_));
        let off_cores = self
            .fold
            .node()
            .cpus_of(&lease.counted().cores)
            .is_disjoint(&tree.cpus)
            || tree.cpus == hw.shared;
        if draining && off_cores && tree.contexts.is_empty() {
            return Ok(());
        }
        broken(
            "freed_only_when_proved_gone",
            format!(
                "{id} ended ({how:?}) and its tree {:?} lives: {tree:?}",
                lease.phase.holder()
            ),
        )
    }

    fn may_expire(&self, id: LeaseId, at: Time) -> Verdict {
        let Some(floors) = self.floors.get(&id) else {
            return Ok(());
        };
        let held = self.phase(id).is_some_and(|p| p.holder().is_some());
        let grace = if held { self.grace } else { Millis(0) };
        for (floor, invariant) in [
            (floors.restarted, "a_restart_gives_one_ttl"),
            (floors.renewed, "no_expiry_before_the_ttl"),
            (floors.credited, "a_stall_is_credited"),
        ] {
            let decided_before = invariant == "a_stall_is_credited" && at <= self.stalled_at;
            if at < floor.after(grace) && !decided_before {
                let why = format!(
                    "{id} expired at {at:?}, and was good until {:?}",
                    floor.after(grace)
                );
                return broken(invariant, why);
            }
        }
        Ok(())
    }

    /// A lease is taken back on somebody's word, after its job's grace, or for a shrink that its job does not wait for.
    fn may_revoke(&self, id: LeaseId, at: Time) -> Verdict {
        if self.revoked.contains_key(&id) {
            return Ok(());
        }
        if let Some((told, credited)) = self.told.get(&id) {
            // What was decided before a stall stands.
            let told = if at <= self.stalled_at {
                told
            } else {
                credited
            };
            let until = told.after(self.release_grace);
            if at >= until {
                return Ok(());
            }
            let why = format!("{id} was taken at {at:?}, and had time until {until:?}");
            return broken("a_cancelled_worker_is_told_first", why);
        }
        let lease = self.fold.leases().get(&id);
        let job = lease.and_then(|l| match l.ask {
            Ask::Stage(m) => self.fold.jobs().get(&m.job),
            Ask::Alone { .. } => None,
        });
        if job.is_some_and(|j| j.spec.rebalance.fallback == ShrinkFallback::Escalate) {
            return Ok(());
        }
        broken("nobody_is_revoked_without_a_reason", format!("{lease:?}"))
    }

    fn remember(&mut self, event: &Event, at: Time) {
        match event {
            Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => {
                self.effects
                    .insert((lease.tenant.clone(), lease.request), lease.id);
                self.owners.insert(lease.id, lease.tenant.clone());
                self.marks.insert(lease.id, (lease.fence, lease.generation));
                self.good_until(lease.id, at.after(lease.ttl), at);
            }
            Event::LeaseAttached { id, .. } => {
                if let Some(ttl) = self.fold.leases().get(id).map(|l| l.ttl) {
                    self.good_until(*id, at.after(ttl), at);
                }
            }
            Event::LeaseEnded { id, how, .. } => {
                self.ended.insert(*id, *how);
                self.floors.remove(id);
                self.told.remove(id);
                self.revoked.remove(id);
            }
            Event::RequestsForgotten { requests } => {
                requests.iter().for_each(|key| {
                    self.effects.remove(key);
                });
            }
            Event::JobEnded { id } => {
                self.ended_jobs.insert(*id, ());
                let of_job = |l: &&Lease| matches!(l.ask, Ask::Stage(m) if m.job == *id);
                let leases = self.fold.leases().values().filter(of_job);
                self.told.extend(
                    leases
                        .filter(|l| l.phase.is_usable())
                        .map(|l| (l.id, (at, at))),
                );
            }
            _ => {}
        }
        let lease = event.lease().and_then(|id| self.fold.leases().get(&id));
        if let Some(l) = lease {
            self.marks.insert(l.id, (l.fence, l.generation));
        }
    }

    fn good_until(&mut self, id: LeaseId, until: Time, at: Time) {
        let floors = self.floors.entry(id).or_insert(Floors {
            began: at,
            ..Floors::default()
        });
        (floors.heard, floors.acked) = (floors.heard.max(at), floors.acked.max(at));
        floors.renewed = floors.renewed.max(until);
        floors.credited = floors.credited.max(until);
    }
    /// The handle acknowledged a renewal.
    pub fn renewed(&mut self, id: LeaseId, fence: Fence, now: Time) -> Verdict {
        if let Some(l) = self.fold.leases().get(&id) {
            if l.fence != fence {
                let why = format!("{id} was renewed with {fence}, and it is {}", l.fence);
                return broken("an_old_fence_renews_nothing", why);
            }
            let ttl = l.ttl;
            self.good_until(id, now.after(ttl), now);
        }
        Ok(())
    }
    /// It stands still for so long, whether or not that is long enough for a credit.
    pub fn stood_still(&mut self, by: Millis) {
        self.stood_still += by;
        self.floors.values_mut().for_each(|f| f.acked = Time(0)); // it may end before it can note anything
    }
    /// The daemon stood still for so long.
    pub fn stalled(&mut self, now: Time, by: Millis) {
        self.stalled_at = now;
        // Its timer may have been set for up to a second after the last step.
        let credit = Millis(by.0.saturating_sub(1_000));
        for floors in self.floors.values_mut() {
            floors.credited = floors.credited.max(floors.renewed).after(credit);
        }
        for (_, credited) in self.told.values_mut() {
            *credited = credited.after(credit);
        }
    }
    /// The daemon started. `unrenewed` is what its ledger said before; it went down at `ended`.
    pub fn restarted(
        &mut self,
        now: Time,
        ended: Time,
        same_boot: bool,
        unrenewed: &BTreeMap<LeaseId, Time>,
    ) -> Verdict {
        let life = Life {
            started: self.started,
            ended,
            stood_still: self.stood_still,
        };
        (self.started, self.stood_still) = (now, Millis(0));
        self.told.values_mut().for_each(|told| *told = (now, now)); // they get the whole grace again
        for lease in self.fold.leases().values() {
            let floors = self.floors.entry(lease.id).or_default();
            if !same_boot {
                *floors = Floors {
                    began: now,
                    restarted: now.after(lease.ttl),
                    ..Floors::default()
                };
                continue;
            }
            let noted = unrenewed.get(&lease.id).copied();
            let waits = lease.phase == Phase::Queued || lease.phase.is_usable();
            let long_ago = floors.acked.after(lease.ttl.max(UNNOTED)) < ended;
            if waits && floors.acked > noted.unwrap_or(now) && long_ago {
                let why = format!(
                    "{}: renewed at {:?}, unrenewed since {noted:?}",
                    lease.id, floors.acked
                );
                return broken("a_renewal_is_noted_soon", why);
            }
            floors.lived(lease.ttl, life);
            // Nobody is immortal in a crash loop, but only the time in which the daemon was there counts. The price: a
            // renewal that the ledger has not noted yet.
            let all = Millis(UNRENEWED_TTLS * lease.ttl.0);
            if waits && floors.ignored > all + self.grace {
                let why = format!("{}: {floors:?}", lease.id);
                return broken("nobody_is_immortal_in_a_crash_loop", why);
            }
            let last = Time(now.after(all).0.saturating_sub(floors.unheard.0));
            floors.restarted = now.after(lease.ttl).min(last);
            floors.renewed = floors.renewed.min(floors.restarted);
            floors.credited = floors.renewed;
            floors.acked = Time(0); // what the last life has not noted, nobody will
        }
        Ok(())
    }
    /// A renewal was answered with the loss of its lease, or of the right to it.
    pub fn said_lost(&self, id: LeaseId, fence: Fence) -> Verdict {
        let lease = self.fold.leases().get(&id);
        let lives =
            |l: &&Lease| l.fence == fence && (l.phase.is_usable() || l.phase == Phase::Queued);
        match lease.filter(lives) {
            None => Ok(()),
            Some(l) => broken(
                "only_what_is_over_is_lost",
                format!("{id} is {:?}", l.phase),
            ),
        }
    }

    /// An answer leaves the daemon.
    pub fn said(&mut self, command: &Command, answer: &Result<Reply, Rejection>) -> Verdict {
        self.no_tenant_sees_anothers(command, answer)?;
        match answer {
            Ok(Reply::Lease(l)) => {
                let (known, fence) = (self.marks.get(&l.id).map(|m| m.0), l.fence);
                if known.is_none_or(|k| k < fence) && !self.ended.contains_key(&l.id) {
                    let why = format!("{} with {fence}, committed is {known:?}", l.id);
                    return broken("nothing_is_said_before_its_commit", why);
                }
                let fence = self.acked.entry(l.id).or_default();
                *fence = l.fence.max(*fence);
            }
            Ok(Reply::Waiting(id)) => drop(self.acked.entry(*id).or_default()),
            Ok(Reply::Job(id)) => drop(self.acked_jobs.insert(*id, ())),
            _ => {}
        }
        Ok(())
    }

    fn no_tenant_sees_anothers(
        &self,
        command: &Command,
        answer: &Result<Reply, Rejection>,
    ) -> Verdict {
        let asked = about(command).filter(|(caller, _)| !caller.admin);
        let owner = asked.and_then(|(_, id)| self.owners.get(&id));
        if let (Some((caller, id)), Some(owner)) = (asked, owner)
            && *owner != caller.tenant
            && !matches!(answer, Err(Rejection::NotFound(_)))
        {
            let why = format!(
                "{} asked about {id} of {owner} and heard {answer:?}",
                caller.tenant
            );
            return broken("no_tenant_sees_anothers", why);
        }
        match (command, answer) {
            (Command::Acquire(a), Ok(Reply::Lease(l))) if l.tenant != a.tenant => broken(
                "no_tenant_sees_anothers",
                format!("{} got {} of {}", a.tenant, l.id, l.tenant),
            ),
            _ => Ok(()),
        }
    }

    /// After a start: everything that was ever answered is there, or its end is committed.
    pub fn acknowledged_effects_survive(&self, d: &Durable) -> Verdict {
        for (id, fence) in &self.acked {
            let there = d.leases().get(id).is_some_and(|l| l.fence >= *fence);
            if !there && !self.ended.contains_key(id) {
                let why = format!(
                    "{id} was answered with {fence} and is {:?}",
                    d.leases().get(id)
                );
                return broken("acknowledged_effects_survive", why);
            }
        }
        for id in self.acked_jobs.keys() {
            if !d.jobs().contains_key(id) && !self.ended_jobs.contains_key(id) {
                return broken("acknowledged_effects_survive", format!("{id} is not there"));
            }
        }
        Ok(())
    }

    /// What nobody has been told of is there only for whoever asks again with the same request.
    pub fn found_by_its_request(d: &Durable) -> Verdict {
        use evenkeel_core::state::Effect;
        for l in d.leases().values() {
            let effect = d.requests().get(&l.tenant, l.request).map(|r| r.effect);
            if !matches!(effect, Some(Effect::Lease { id, end: None, .. }) if id == l.id) {
                let why = format!("{} of request {}: {effect:?}", l.id, l.request);
                return broken("found_by_its_request", why);
            }
        }
        Ok(())
    }

    /// Memory is what the tables hold and what the events add up to.
    pub fn memory_is_fold(&self, d: &Durable, invariant: &'static str) -> Verdict {
        match difference(&d.parts(), &self.fold.parts()) {
            None => Ok(()),
            Some(what) => broken(invariant, what),
        }
    }
    /// The tables hold what the events add up to.
    pub fn tables_are_fold(&self, tables: &Parts) -> Verdict {
        match difference(tables, &self.fold.parts()) {
            None => Ok(()),
            Some(what) => broken("memory_tables_and_fold_agree", what),
        }
    }
}

/// The state's own invariants.
pub fn sound(d: &Durable) -> Verdict {
    violations(d).into_iter().next().map_or(Ok(()), Err)
}

/// Who asks about which lease.
const fn about(command: &Command) -> Option<(&Caller, LeaseId)> {
    match command {
        Command::Attach { caller, lease, .. }
        | Command::Renew { caller, lease, .. }
        | Command::Release { caller, lease, .. }
        | Command::Revoke { caller, lease }
        | Command::Acknowledge { caller, lease, .. }
        | Command::Report { caller, lease, .. } => Some((caller, *lease)),
        _ => None,
    }
}

/// The first thing in which two states differ.
fn difference(a: &Parts, b: &Parts) -> Option<String> {
    fn of<T: PartialEq + std::fmt::Debug>(what: &str, a: &[T], b: &[T]) -> Option<String> {
        if a == b {
            return None;
        }
        let first = a.iter().zip(b).find(|(x, y)| x != y);
        Some(format!(
            "{what}: {} and {} of them; first {first:?}",
            a.len(),
            b.len()
        ))
    }
    let whole = (
        &a.node,
        &a.unavailable,
        a.draining,
        a.next_lease,
        a.next_job,
    ) != (
        &b.node,
        &b.unavailable,
        b.draining,
        b.next_lease,
        b.next_job,
    );
    of("leases", &a.leases, &b.leases)
        .or_else(|| of("requests", &a.requests, &b.requests))
        .or_else(|| of("jobs", &a.jobs, &b.jobs))
        .or_else(|| of("profiles", &a.profiles, &b.profiles))
        .or_else(|| whole.then(|| "the node, or the counters".into()))
}
