//! The row-writing fold: which rows of which tables a batch of events changes.
//!
//! Pure: no SQL, no clock, no I/O. It looks at the events and at the state *after* them, and its cost follows
//! what the batch touches, not how many leases live. The controller calls it between `step` and `commit`; the
//! simulated world drives the same code with [`super::tables::Tables`] as its disk.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_core::curve::ProfileKey;
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, Member, Vector};
use evenkeel_core::id::{JobId, LeaseId};
use evenkeel_core::job::{Job, Slot};
use evenkeel_core::lease::{Lease, Phase};
use evenkeel_core::node::{Core, Gpu};
use evenkeel_core::pool::Owner;
use evenkeel_core::state::{Durable, Effect, slot, slots};

use super::rows::{
    CoreOwnerRow, EndedRow, EventRow, JobRow, LeaseGpuRow, LeaseRow, NodeRow, PointRow, RequestKey,
    RequestRow, SlotGpuRow, SlotRow, UnavailableGpuRow,
};

/// Row changes of one transaction, in the order in which they apply: what goes, then what comes. (Every share
/// that changes is first taken out and then put in, so that no order of leases can overdraw the pool on the
/// way to a state that fits.)
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Wall-clock time, for people; milliseconds since 1970.
    pub unix_ms: u64,
    /// The audit trail.
    pub events: Vec<EventRow>,
    /// Leases that go, with their shares; `request` remembers them.
    pub ended: Vec<EndedRow>,
    /// Jobs that go, with their slots; `request` remembers them.
    pub ended_jobs: Vec<JobId>,
    /// Jobs all of whose slots are written anew.
    pub reslotted: Vec<JobId>,
    /// Leases whose shares are written anew.
    pub revectored: Vec<LeaseId>,
    /// Slots whose shares are written anew.
    pub refilled: Vec<Member>,
    /// Answers that are no longer remembered in `request`.
    pub forgotten: Vec<RequestKey>,
    /// Profiles all of whose points are written anew.
    pub reprofiled: Vec<ProfileKey>,
    /// The node, all of it, if anything about it changed.
    pub node: Option<NodeRows>,
    /// Leases that come or change.
    pub leases: Vec<LeaseRow>,
    /// Jobs that come or change.
    pub jobs: Vec<JobRow>,
    /// Slots that come or change.
    pub slots: Vec<SlotRow>,
    /// Cores that get an owner.
    pub cores: Vec<CoreOwnerRow>,
    /// GPU shares of leases that come.
    pub lease_gpus: Vec<LeaseGpuRow>,
    /// GPU shares of slots that come.
    pub slot_gpus: Vec<SlotGpuRow>,
    /// Answers that are remembered without a live lease or job.
    pub requests: Vec<RequestRow>,
    /// Profiles that come or have new points.
    pub profiles: Vec<ProfileKey>,
    /// Points that come.
    pub points: Vec<PointRow>,
    /// The next lease's number after this batch.
    pub next_lease: LeaseId,
    /// The next job's number after this batch.
    pub next_job: JobId,
}

/// The node's rows, all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRows {
    /// The one row of `node`.
    pub node: NodeRow,
    /// Rows of `core`; others go. None: unchanged.
    pub cores: Option<Arc<[Core]>>,
    /// Rows of `gpu`; others go. None: unchanged.
    pub gpus: Option<Vec<Gpu>>,
    /// Rows of `unavailable_gpu`; others go.
    pub unavailable: Vec<UnavailableGpuRow>,
}

/// Which rows `events` change, where `after` is the state that they led to.
///
/// `unix_ms` is the wall clock, for the audit trail only. The batch is complete: applied to tables that equal
/// the state before, it makes them equal to `after`.
pub fn fold(events: &[Event], after: &Durable, unix_ms: u64) -> Batch {
    let mut touched = Touched::default();
    let mut batch = Batch {
        unix_ms,
        next_lease: after.next_lease(),
        next_job: after.next_job(),
        ..Batch::default()
    };
    events.iter().for_each(|event| touched.add(event));
    batch.events = events
        .iter()
        .map(|event| touched.event_row(event, after))
        .collect();
    touched.leases(after, &mut batch);
    touched.jobs(after, &mut batch);
    touched.requests(after, &mut batch);
    touched.profiles(after, &mut batch);
    touched.node(after, &mut batch);
    batch
}

/// What a batch touches.
#[derive(Default)]
struct Touched<'a> {
    entered: BTreeMap<LeaseId, &'a Lease>,
    leases: BTreeSet<LeaseId>,
    revectored: BTreeSet<LeaseId>,
    ended: BTreeMap<LeaseId, EndedRow>,
    submitted: BTreeMap<JobId, &'a Job>,
    jobs: BTreeSet<JobId>,
    reslotted: BTreeSet<JobId>,
    ended_jobs: BTreeSet<JobId>,
    slots: BTreeSet<Member>,
    forgotten: BTreeSet<RequestKey>,
    /// Points that joined since the start of the batch, or since an import.
    points: BTreeMap<&'a ProfileKey, usize>,
    imported: BTreeSet<&'a ProfileKey>,
    node: bool,
    hardware: bool,
}

impl<'a> Touched<'a> {
    fn add(&mut self, event: &'a Event) {
        match event {
            Event::NodeInstalled { .. } => (self.node, self.hardware) = (true, true),
            Event::UnavailableChanged { .. } | Event::NodeDrained { .. } => self.node = true,
            Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => self.enter(lease),
            Event::LeaseActivated { id }
            | Event::LeaseVerified { id }
            | Event::LeaseUnverified { id }
            | Event::LeaseQuarantined { id, .. } => drop(self.leases.insert(*id)),
            Event::LeaseAttached { id, .. }
            | Event::LeaseRetargeted { id, .. }
            | Event::LeaseHeld { id, .. }
            | Event::LeaseDraining { id, .. } => {
                self.leases.insert(*id);
                self.revectored.insert(*id);
            }
            Event::LeaseEnded { id, fence, how, .. } => {
                self.ended.insert(
                    *id,
                    EndedRow {
                        lease: *id,
                        how: *how,
                        fence: *fence,
                    },
                );
            }
            Event::RequestsForgotten { requests } => {
                self.forgotten.extend(requests.iter().cloned());
            }
            Event::JobSubmitted { job } => {
                self.submitted.insert(job.id, job);
                self.jobs.insert(job.id);
                self.reslotted.insert(job.id);
            }
            Event::JobAdmitted { id, .. } | Event::JobParked { id } => {
                self.jobs.insert(*id);
                self.reslotted.insert(*id);
            }
            Event::JobReplanned { id, .. }
            | Event::JobRefitted { id, .. }
            | Event::JobUpdated { id, .. } => drop(self.jobs.insert(*id)),
            Event::JobStayed { .. } => {}
            Event::SlotReserved { member, .. } => drop(self.slots.insert(*member)),
            Event::JobEnded { id } => drop(self.ended_jobs.insert(*id)),
            Event::TrialReported { key, .. } => *self.points.entry(key).or_default() += 1,
            Event::ProfileImported { profile } => {
                self.imported.insert(&profile.key);
            }
        }
    }

    fn enter(&mut self, lease: &'a Lease) {
        self.entered.insert(lease.id, lease);
        self.leases.insert(lease.id);
        self.revectored.insert(lease.id);
        if let Ask::Stage(member) = lease.ask
            && lease.phase != Phase::Queued
        {
            self.slots.insert(member);
        }
    }

    fn leases(&self, after: &Durable, batch: &mut Batch) {
        batch.ended = self.ended.values().copied().collect();
        for lease in self.leases.iter().filter_map(|id| after.leases().get(id)) {
            batch.leases.push(lease_row(lease, after));
            if self.revectored.contains(&lease.id) {
                // A lease that enters has no shares yet: from the queue neither.
                if !self.entered.contains_key(&lease.id) {
                    batch.revectored.push(lease.id);
                }
                vector_rows(lease, batch);
            }
        }
    }

    fn jobs(&self, after: &Durable, batch: &mut Batch) {
        batch.ended_jobs = self.ended_jobs.iter().copied().collect();
        for job in self.jobs.iter().filter_map(|id| after.jobs().get(id)) {
            batch.jobs.push(job_row(job, after));
        }
        for job in self.reslotted.iter().filter_map(|id| after.jobs().get(id)) {
            if !self.submitted.contains_key(&job.id) {
                batch.reslotted.push(job.id);
            }
            slots(job).for_each(|(member, slot)| slot_rows(member, slot, batch));
        }
        for member in self
            .slots
            .iter()
            .filter(|m| !self.reslotted.contains(&m.job))
        {
            if let Some(slot) = after
                .jobs()
                .get(&member.job)
                .and_then(|job| slot(job, *member))
            {
                batch.refilled.push(*member);
                slot_rows(*member, slot, batch);
            }
        }
    }

    fn requests(&self, after: &Durable, batch: &mut Batch) {
        let explicit = |key: &RequestKey| {
            after
                .requests()
                .get(&key.0, key.1)
                .filter(|r| !is_implied(r.effect, after))
                .cloned()
        };
        batch.forgotten = self
            .forgotten
            .iter()
            .filter(|key| explicit(key).is_none())
            .cloned()
            .collect();
        // What entered and ended in this batch has no row that could be remembered from.
        let leases = self.entered.values().map(|l| (&l.tenant, l.request));
        let jobs = self.submitted.values().map(|j| (&j.tenant, j.request));
        let keys: BTreeSet<RequestKey> = leases.chain(jobs).map(|(t, r)| (t.clone(), r)).collect();
        batch.requests = keys
            .into_iter()
            .filter_map(|key| {
                explicit(&key).map(|r| RequestRow {
                    key,
                    body: r.body,
                    effect: r.effect,
                })
            })
            .collect();
    }

    fn profiles(&self, after: &Durable, batch: &mut Batch) {
        let keys: BTreeSet<&ProfileKey> = self
            .points
            .keys()
            .chain(self.imported.iter())
            .copied()
            .collect();
        for profile in keys.into_iter().filter_map(|key| after.profiles().get(key)) {
            let all = profile.points.len();
            let new = match self.imported.contains(&profile.key) {
                true => all,
                false => self.points.get(&profile.key).copied().unwrap_or(0).min(all),
            };
            if self.imported.contains(&profile.key) {
                batch.reprofiled.push(profile.key.clone());
            }
            batch.profiles.push(profile.key.clone());
            let points = (0..).zip(&profile.points).skip(all - new);
            batch.points.extend(points.map(|(n, point)| PointRow {
                key: profile.key.clone(),
                n,
                point: point.clone(),
            }));
        }
    }

    fn node(&self, after: &Durable, batch: &mut Batch) {
        if self.node {
            let (node, unavailable) = (after.node(), after.unavailable());
            batch.node = Some(NodeRows {
                node: NodeRow {
                    kind: node.kind,
                    reserved_cores: node.reserved_cores.clone(),
                    unavailable_cores: unavailable.cores.clone(),
                    draining: after.draining(),
                },
                cores: self.hardware.then(|| node.cores.clone()),
                gpus: self.hardware.then(|| node.gpus.clone()),
                unavailable: unavailable
                    .gpus
                    .iter()
                    .map(|(&gpu, &(sms, memory))| UnavailableGpuRow { gpu, sms, memory })
                    .collect(),
            });
        }
    }

    fn event_row(&self, event: &Event, after: &Durable) -> EventRow {
        let lease = event
            .lease()
            .and_then(|id| after.leases().get(&id).or(self.entered.get(&id).copied()));
        let job = event
            .job()
            .and_then(|id| after.jobs().get(&id).or(self.submitted.get(&id).copied()));
        let key = match event {
            Event::TrialReported { key, .. } => Some(key),
            Event::ProfileImported { profile } => Some(&profile.key),
            _ => None,
        };
        let member = lease.and_then(|l| match l.ask {
            Ask::Stage(member) => Some(member.job),
            Ask::Alone { .. } => None,
        });
        let tenant = lease
            .map(|l| &l.tenant)
            .or(job.map(|j| &j.tenant))
            .or(key.map(|k| &k.tenant));
        EventRow {
            lease: event.lease(),
            job: event.job().or(member),
            tenant: tenant.cloned(),
            event: event.clone(),
        }
    }
}

/// Whether a live lease's or job's own row remembers this effect.
fn is_implied(effect: Effect, after: &Durable) -> bool {
    match effect {
        Effect::Lease { id, end, .. } => end.is_none() && after.leases().contains_key(&id),
        Effect::Job(id) => after.jobs().contains_key(&id),
    }
}

fn lease_row(lease: &Lease, after: &Durable) -> LeaseRow {
    let granted_fence = match after.requests().get(&lease.tenant, lease.request) {
        Some(r) => match r.effect {
            Effect::Lease {
                id,
                fence,
                end: None,
            } if id == lease.id => Some(fence),
            _ => None,
        },
        None => None,
    };
    LeaseRow {
        id: lease.id,
        tenant: lease.tenant.clone(),
        request: lease.request,
        body: lease.body,
        granted_fence,
        ask: lease.ask.clone(),
        enforced: lease.enforced,
        resize: lease.resize,
        processes: lease.processes,
        ttl: lease.ttl,
        priority: lease.priority,
        fence: lease.fence,
        generation: lease.generation,
        batch: lease.batch,
        phase: lease.phase.clone(),
    }
}

fn vector_rows(lease: &Lease, batch: &mut Batch) {
    let (held, target) = (&lease.held, &lease.target);
    batch.cores.extend(
        held.cores
            .union(&target.cores)
            .iter()
            .map(|core| CoreOwnerRow {
                core,
                owner: Owner::Lease(lease.id),
                held: held.cores.contains(core),
                target: target.cores.contains(core),
            }),
    );
    let gpus: BTreeSet<_> = held
        .gpus
        .keys()
        .chain(target.gpus.keys())
        .copied()
        .collect();
    batch
        .lease_gpus
        .extend(gpus.into_iter().map(|gpu| LeaseGpuRow {
            lease: lease.id,
            gpu,
            held: held.gpus.get(&gpu).copied(),
            target: target.gpus.get(&gpu).copied(),
        }));
}

fn job_row(job: &Job, after: &Durable) -> JobRow {
    JobRow {
        id: job.id,
        tenant: job.tenant.clone(),
        request: job.request,
        body: job.body,
        arrival: job.arrival,
        remembered: after
            .requests()
            .get(&job.tenant, job.request)
            .is_some_and(|r| r.effect == Effect::Job(job.id)),
        spec: job.spec.clone(),
        phase: job.phase,
        plan: job.plan.clone(),
        shape: job
            .slots
            .iter()
            .map(|s| u32::try_from(s.len()).unwrap_or(u32::MAX))
            .collect(),
        scale: job.scale.clone(),
        learned: job.learned.clone(),
        kappa: job.kappa.clone(),
        moves: job.moves,
    }
}

fn slot_rows(member: Member, slot: &Slot, batch: &mut Batch) {
    batch.slots.push(SlotRow {
        member,
        lease: slot.lease,
    });
    let Vector { cores, gpus } = &slot.unclaimed;
    batch.cores.extend(cores.iter().map(|core| CoreOwnerRow {
        core,
        owner: Owner::Slot(member),
        held: false,
        target: true,
    }));
    batch.slot_gpus.extend(
        gpus.iter()
            .map(|(&gpu, &share)| SlotGpuRow { member, gpu, share }),
    );
}
