//! How each event changes the durable state. Nothing else changes it.
use alloc::vec::Vec;

use super::{Durable, Effect, Remembered, Undo, slot};
use crate::curve::Profile;
use crate::event::Event;
use crate::grant::{Ask, Member, Vector};
use crate::id::{Fence, LeaseId};
use crate::job::{Job, JobPhase, Slot};
use crate::lease::{End, Lease, Phase};

impl Durable {
    /// Applies an event. Total: an event about something unknown changes nothing.
    pub fn evolve(&mut self, event: &Event) {
        match event {
            Event::NodeInstalled { node } => self.put_node(node.clone()),
            Event::UnavailableChanged { unavailable } => self.put_unavailable(unavailable.clone()),
            Event::NodeDrained { draining } => {
                self.journal.push(Undo::Draining(self.draining));
                self.draining = *draining;
            }
            Event::LeaseQueued { lease } | Event::LeaseGranted { lease } => self.enter(lease),
            Event::LeaseEnded { id, fence, how, .. } => self.end(*id, *fence, *how),
            Event::RequestsForgotten { requests } => {
                requests
                    .iter()
                    .for_each(|key| self.put_request(key.clone(), None));
            }
            Event::JobSubmitted { job } => {
                let remembered = Remembered {
                    body: job.body,
                    effect: Effect::Job(job.id),
                };
                self.put_request((job.tenant.clone(), job.request), Some(remembered));
                self.advance_next(None, Some(job.id));
                self.put_job(job.id, Some(job.clone()));
            }
            Event::JobEnded { id } => self.put_job(*id, None),
            Event::TrialReported { key, point } => {
                if let Some(p) = self.profiles.get_mut(key) {
                    p.points.push(point.clone());
                    self.journal.push(Undo::PopPoint(key.clone()));
                } else {
                    let profile = Profile {
                        key: key.clone(),
                        points: [point.clone()].into(),
                    };
                    self.put_profile(key.clone(), Some(profile));
                }
            }
            Event::ProfileImported { profile } => {
                self.put_profile(profile.key.clone(), Some(profile.clone()));
            }
            other => self.evolve_existing(other),
        }
    }

    /// Events that change one lease or one job that exists.
    fn evolve_existing(&mut self, event: &Event) {
        if let Some(mut lease) = event.lease().and_then(|id| self.leases.get(&id)).cloned() {
            let old = (lease.phase.name(), lease.fence, lease.generation);
            evolve_lease(&mut lease, event);
            if old.0 != lease.phase.name() && !old.0.may_become(lease.phase.name()) {
                self.broken = Some(("legal_transitions", lease.id));
            }
            if lease.fence < old.1 || lease.generation < old.2 {
                self.broken = Some(("fences_only_rise", lease.id));
            }
            self.put_lease(lease.id, Some(lease));
        }
        if let Event::SlotReserved { member, unclaimed } = event {
            self.with_slot(*member, |slot| slot.unclaimed = unclaimed.clone());
        } else if let Some(mut job) = event.job().and_then(|id| self.jobs.get(&id)).cloned() {
            evolve_job(&mut job, event);
            self.put_job(job.id, Some(job));
        }
    }

    /// A lease enters, or leaves the queue: remembered, numbered, and in its slot.
    fn enter(&mut self, lease: &Lease) {
        let effect = Effect::Lease {
            id: lease.id,
            fence: lease.fence,
            end: None,
        };
        let key = (lease.tenant.clone(), lease.request);
        self.put_request(
            key,
            Some(Remembered {
                body: lease.body,
                effect,
            }),
        );
        self.advance_next(Some(lease.id), None);
        if let (Ask::Stage(member), true) = (&lease.ask, lease.phase != Phase::Queued) {
            self.with_slot(*member, |slot| {
                *slot = Slot {
                    lease: Some(lease.id),
                    unclaimed: Vector::empty(),
                }
            });
        }
        self.put_lease(lease.id, Some(lease.clone()));
    }
    fn end(&mut self, id: LeaseId, fence: Fence, how: End) {
        let Some(lease) = self.leases.get(&id).cloned() else {
            return;
        };
        let key = (lease.tenant.clone(), lease.request);
        if let Some(mut r) = self.requests.get(&key.0, key.1).cloned()
            && let Effect::Lease { end, .. } = &mut r.effect
        {
            *end = Some((how, fence));
            self.lease_is_over(&lease);
            self.put_request(key, Some(r));
        }
        if let Ask::Stage(member) = lease.ask {
            self.with_slot(member, |slot| {
                if slot.lease == Some(id) {
                    slot.lease = None;
                }
            });
        }
        self.put_lease(id, None);
    }
    fn with_slot(&mut self, member: Member, change: impl FnOnce(&mut Slot)) {
        let job = self.jobs.get(&member.job);
        if let Some(mut new) = job.and_then(|j| slot(j, member)).cloned() {
            change(&mut new);
            self.put_slot(member, new);
        }
    }
}

fn evolve_lease(lease: &mut Lease, event: &Event) {
    match event {
        Event::LeaseAttached { holder, fence, .. } => {
            lease.fence = *fence;
            lease.held = lease.counted(); // told what it is to have: it may use it from here on
            lease.phase = Phase::Attached(holder.clone());
        }
        Event::LeaseActivated { .. } => {
            let holder = lease.phase.holder().cloned();
            lease.phase = Phase::Active {
                holder,
                verified: false,
            };
        }
        Event::LeaseVerified { .. } | Event::LeaseUnverified { .. } => {
            if let Phase::Active { verified, .. } = &mut lease.phase {
                *verified = matches!(event, Event::LeaseVerified { .. });
            }
        }
        Event::LeaseRetargeted {
            generation,
            target,
            batch,
            ..
        } => {
            lease.generation = *generation;
            lease.batch = *batch;
            if lease.phase != Phase::Pending {
                lease.held = lease.counted(); // what it was to have may be in use, seen or not
            }
            lease.target = target.clone();
        }
        Event::LeaseHeld { held, .. } => lease.held = held.clone(),
        Event::LeaseDraining { fence, .. } => {
            lease.fence = *fence;
            lease.held = lease.counted();
            lease.target = Vector::empty();
            if let Some(holder) = lease.phase.holder().cloned() {
                lease.phase = Phase::Draining(holder);
            }
        }
        Event::LeaseQuarantined { fence, cause, .. } => {
            lease.fence = *fence;
            if let Some(holder) = lease.phase.holder().cloned() {
                lease.phase = Phase::Quarantined {
                    holder,
                    cause: *cause,
                };
            }
        }
        _ => {}
    }
}

fn evolve_job(job: &mut Job, event: &Event) {
    match event {
        Event::JobAdmitted { plan, promised, .. } => {
            job.phase = JobPhase::Admitted;
            job.slots = plan
                .stages
                .iter()
                .map(|s| {
                    s.workers
                        .iter()
                        .map(|v| Slot {
                            lease: None,
                            unclaimed: match promised {
                                true => Vector::empty(),
                                false => v.clone(),
                            },
                        })
                        .collect()
                })
                .collect();
            job.plan = Some(plan.clone());
        }
        Event::JobReplanned { plan, .. } => {
            job.plan = Some(plan.clone());
            job.moves += 1;
        }
        Event::JobRefitted {
            scale,
            learned,
            kappa,
            outlook,
            ..
        } => {
            job.scale.clone_from(scale);
            job.learned.clone_from(learned);
            job.kappa.clone_from(kappa);
            if let (Some(plan), Some(outlook)) = (&mut job.plan, outlook) {
                plan.expect(outlook);
            }
        }
        Event::JobUpdated {
            rebalance, policy, ..
        } => {
            job.spec.rebalance = rebalance.clone();
            job.spec.policy = *policy;
        }
        Event::JobParked { .. } => {
            job.phase = JobPhase::Parked;
            job.plan = None;
            job.slots = Vec::new();
        }
        _ => {}
    }
}
