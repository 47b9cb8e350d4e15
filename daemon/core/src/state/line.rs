//! The one queue: jobs and requests that wait for room, in order, and which kinds of resource each may take. Derived
//! from leases and jobs, kept up to date by [`Durable`], never stored by itself. Who of them fits is decided in
//! `decide::queue`.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Bound;

use super::Durable;
use crate::grant::{Ask, Vector};
use crate::id::{GpuId, JobId, LeaseId};
use crate::job::{Job, JobPhase, JobSpec, StageSpec};
use crate::lease::{Lease, Phase};
use crate::unit::{Bytes, Sms};

/// Who waits. A job that was submitted before a lease was asked for comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiter {
    /// A job in phase `Queued`.
    Job(JobId),
    /// A lease in phase `Queued`.
    Lease(LeaseId),
}

impl core::fmt::Display for Waiter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Job(id) => id.fmt(f),
            Self::Lease(id) => id.fmt(f),
        }
    }
}

/// A place in the queue: by priority, then by arrival (the number that the next lease had then).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    priority: Reverse<i32>,
    arrival: LeaseId,
    who: Waiter,
}

impl Place {
    /// Of a job.
    pub const fn of_job(job: &Job) -> Self {
        Self {
            priority: Reverse(job.spec.priority),
            arrival: job.arrival,
            who: Waiter::Job(job.id),
        }
    }
    /// Of a request.
    pub const fn of_lease(lease: &Lease) -> Self {
        Self {
            priority: Reverse(lease.priority),
            arrival: lease.id,
            who: Waiter::Lease(lease.id),
        }
    }
    /// Behind everybody of this priority.
    pub const fn last_of(priority: i32) -> Self {
        Self {
            priority: Reverse(priority),
            arrival: LeaseId(u64::MAX),
            who: Waiter::Lease(LeaseId(u64::MAX)),
        }
    }
    /// Whose it is.
    pub const fn who(&self) -> Waiter {
        self.who
    }
}

/// A kind of resource that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Cores.
    Cores,
    /// A share of this GPU.
    Gpu(GpuId),
    /// A share of some GPU.
    AnyGpu,
}

impl Kind {
    /// What a request for amounts may take.
    pub fn of_ask(ask: &Ask) -> BTreeSet<Self> {
        let Ask::Alone { cores, gpus } = ask else {
            return BTreeSet::new();
        };
        let cores = (*cores > 0).then_some(Self::Cores);
        let gpus = gpus.iter().map(|g| g.gpu.map_or(Self::AnyGpu, Self::Gpu));
        cores.into_iter().chain(gpus).collect()
    }
    /// What a job may take.
    pub fn of_spec(spec: &JobSpec) -> BTreeSet<Self> {
        let cores = spec.stages.iter().any(|s| s.cores.1 > 0);
        let uses_gpu = |s: &StageSpec| s.sms.1 > Sms(0) || s.memory > Bytes(0);
        let on_gpu = spec.gpu_count > 0 || spec.stages.iter().any(uses_gpu);
        let any = (on_gpu && spec.gpus.is_empty()).then_some(Self::AnyGpu);
        let named = spec.gpus.iter().copied().map(Self::Gpu);
        let cores = cores.then_some(Self::Cores);
        cores.into_iter().chain(any).chain(named).collect()
    }
    /// The kinds whose waiters have to go before somebody who takes `wanted`.
    pub fn of_vector(wanted: &Vector) -> BTreeSet<Self> {
        let cores = (!wanted.cores.is_empty()).then_some(Self::Cores);
        let any = (!wanted.gpus.is_empty()).then_some(Self::AnyGpu);
        let gpus = wanted.gpus.keys().copied().map(Self::Gpu);
        cores.into_iter().chain(any).chain(gpus).collect()
    }
}

/// The queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    places: BTreeSet<Place>,
    by_kind: BTreeMap<Kind, BTreeSet<Place>>,
    /// Workers of jobs: what they wait for depends on where their job is.
    workers: BTreeSet<Place>,
    leases: usize,
    jobs: usize,
}

impl Line {
    pub(super) fn lease(&mut self, old: Option<&Lease>, new: Option<&Lease>) {
        let waits = |l: &&Lease| l.phase == Phase::Queued;
        let (old, new) = (old.filter(waits), new.filter(waits));
        if old.is_some() == new.is_some() {
            return; // a request does not change while it waits
        }
        self.leases = self.leases + usize::from(new.is_some()) - usize::from(old.is_some());
        let come = new.is_some();
        let Some(l) = new.or(old) else { return };
        let place = Place::of_lease(l);
        self.change(place, Kind::of_ask(&l.ask), come);
        if matches!(l.ask, Ask::Stage(_)) {
            match come {
                true => self.workers.insert(place),
                false => self.workers.remove(&place),
            };
        }
    }
    pub(super) fn job(&mut self, old: Option<&Job>, new: Option<&Job>) {
        let waits = |j: &&Job| j.phase == JobPhase::Queued;
        let (old, new) = (old.filter(waits), new.filter(waits));
        if old.is_some() == new.is_some() {
            return; // nor does what a job declares of its needs
        }
        self.jobs = self.jobs + usize::from(new.is_some()) - usize::from(old.is_some());
        if let Some(j) = new.or(old) {
            self.change(Place::of_job(j), Kind::of_spec(&j.spec), new.is_some());
        }
    }
    fn change(&mut self, place: Place, kinds: BTreeSet<Kind>, come: bool) {
        match come {
            true => self.places.insert(place),
            false => self.places.remove(&place),
        };
        for kind in kinds {
            let waiting = self.by_kind.entry(kind).or_default();
            match come {
                true => waiting.insert(place),
                false => waiting.remove(&place),
            };
            if waiting.is_empty() {
                self.by_kind.remove(&kind);
            }
        }
    }
}

impl Durable {
    /// Everybody who waits for room, first come first: by priority, then by arrival.
    pub fn line(&self) -> impl Iterator<Item = Place> + '_ {
        self.line.places.iter().copied()
    }
    /// Those before `end` who wait for a kind of resource, in order; without the workers of parked jobs.
    pub fn waiting_for(&self, kind: Kind, end: Place) -> impl Iterator<Item = Place> + '_ {
        let all = self.line.by_kind.get(&kind).into_iter();
        all.flat_map(move |s| s.range((Bound::Unbounded, Bound::Excluded(end))))
            .copied()
    }
    /// The kinds that somebody waits for; without the workers of parked jobs.
    pub fn kinds_waited_for(&self) -> Vec<Kind> {
        self.line.by_kind.keys().copied().collect()
    }
    /// The workers that wait, in order: for their place, or for the whole of their parked job.
    pub fn waiting_workers(&self) -> impl Iterator<Item = (Place, &Lease)> {
        let lease = |p: &Place| match p.who {
            Waiter::Lease(id) => self.leases.get(&id),
            Waiter::Job(_) => None,
        };
        self.line
            .workers
            .iter()
            .filter_map(move |p| Some((*p, lease(p)?)))
    }
    /// Requests that wait for room, first come first: by priority, then by number.
    pub fn queue(&self) -> impl Iterator<Item = &Lease> {
        self.line.places.iter().filter_map(|p| match p.who {
            Waiter::Lease(id) => self.leases.get(&id),
            Waiter::Job(_) => None,
        })
    }
    /// How many requests wait for room.
    pub const fn queue_len(&self) -> usize {
        self.line.leases
    }
    /// Whether a job waits for room.
    pub const fn a_job_waits(&self) -> bool {
        self.line.jobs > 0
    }
}
