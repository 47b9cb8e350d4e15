//! A seeded source of happenings that are legal on a durable state, of every kind of event, and their count.
use std::collections::BTreeMap;

use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, Member, Vector};
use evenkeel_core::id::{Fence, Generation, GpuId, JobId, LeaseId};
use evenkeel_core::job::{Job, JobPhase, Policy};
use evenkeel_core::lease::{Cause, End, Lease, Phase, PhaseName};
use evenkeel_core::node::Unavailable;
use evenkeel_core::state::{Durable, Effect, slot, slots};
use evenkeel_core::unit::{Bytes, Sms};

use super::kit::{Rng, core, holder, job, lease, name, plan, share};

/// A state and the source that changes it.
pub(crate) struct World {
    pub(crate) durable: Durable,
    pub(crate) rng: Rng,
    /// How often each kind of event has happened.
    pub(crate) seen: BTreeMap<&'static str, u32>,
}

impl World {
    pub(crate) fn new(durable: Durable, seed: u64) -> Self {
        Self {
            durable,
            rng: Rng(seed),
            seen: BTreeMap::new(),
        }
    }

    /// Some happenings, applied to the state.
    pub(crate) fn happen(&mut self, happenings: u64) -> Vec<Event> {
        let mut all = Vec::new();
        for _ in 0..happenings {
            for event in self.one() {
                self.durable.evolve(&event);
                *self.seen.entry(event.kind()).or_default() += 1;
                all.push(event);
            }
        }
        self.durable.commit();
        all
    }

    fn one(&mut self) -> Vec<Event> {
        match self.rng.below(20) {
            0..=4 => self.acquire(),
            5..=10 => self.live(),
            11 | 12 => self.end(),
            13..=15 => self.jobs(),
            16 => self.forget(),
            17 | 18 => self.profiles(),
            _ => self.node(),
        }
    }

    /// Something of what is free.
    fn vector(&mut self) -> Vector {
        let d = &self.durable;
        let n = self.rng.below(3) as u32;
        let mut v = Vector {
            cores: d.pool().free_cores().take(n),
            gpus: BTreeMap::new(),
        };
        for gpu in &d.node().gpus {
            let free = d.pool().free_on(d.node(), d.unavailable(), gpu.id);
            let sms = self.rng.below(u64::from(free.sms.0).min(20) + 1) as u32;
            let memory = Bytes(self.rng.below(free.memory.0.min(1 << 33) + 1));
            if self.rng.below(3) > 0 {
                v.gpus.insert(gpu.id, share(sms, memory));
            }
        }
        v
    }

    fn acquire(&mut self) -> Vec<Event> {
        let id = self.durable.next_lease().0;
        let queued: Vec<Lease> = self
            .durable
            .leases()
            .values()
            .filter(|l| l.phase == Phase::Queued)
            .cloned()
            .collect();
        match self.rng.below(5) {
            0 => {
                let lease = Lease {
                    phase: Phase::Queued,
                    ..lease(id, Vector::empty())
                };
                vec![Event::LeaseQueued { lease }]
            }
            1 if !queued.is_empty() => {
                let lease = self.rng.pick(&queued).unwrap();
                let target = self.vector();
                let fence = lease.fence.next();
                vec![Event::LeaseGranted {
                    lease: Lease {
                        phase: Phase::Pending,
                        target,
                        fence,
                        ..lease
                    },
                }]
            }
            2 => {
                let held = self.vector();
                let phase = Phase::Active {
                    holder: None,
                    verified: false,
                };
                let lease = Lease {
                    enforced: false,
                    phase,
                    held: held.clone(),
                    ..lease(id, held)
                };
                vec![Event::LeaseGranted { lease }]
            }
            3 => self.fill(id),
            _ => vec![Event::LeaseGranted {
                lease: lease(id, self.vector()),
            }],
        }
    }

    /// A lease for a slot that nobody fills.
    fn fill(&mut self, id: u64) -> Vec<Event> {
        let empty: Vec<(Member, Vector)> = self
            .durable
            .jobs()
            .values()
            .flat_map(slots)
            .filter(|(_, s)| s.lease.is_none())
            .map(|(m, s)| (m, s.unclaimed.clone()))
            .collect();
        let Some((member, target)) = self.rng.pick(&empty) else {
            return Vec::new();
        };
        vec![Event::LeaseGranted {
            lease: Lease {
                ask: Ask::Stage(member),
                ..lease(id, target)
            },
        }]
    }

    fn any_lease(&mut self) -> Option<Lease> {
        let ids: Vec<LeaseId> = self.durable.leases().keys().copied().collect();
        let id = self.rng.pick(&ids)?;
        self.durable.leases().get(&id).cloned()
    }

    /// A lease goes on: to its next phase, or to other shares.
    fn live(&mut self) -> Vec<Event> {
        let Some(lease) = self.any_lease() else {
            return Vec::new();
        };
        let (id, fence) = (lease.id, lease.fence.next());
        if lease.phase != Phase::Queued && self.rng.below(2) == 0 {
            if lease.held != lease.target {
                return vec![Event::LeaseHeld {
                    id,
                    held: lease.target,
                }];
            }
            let mut target = self.vector().max(&lease.target);
            if self.rng.below(2) == 0 {
                target = Vector {
                    cores: lease.target.cores.take(1),
                    gpus: BTreeMap::new(),
                };
            }
            return vec![Event::LeaseRetargeted {
                id,
                generation: Generation(lease.generation.0 + 1),
                target,
                batch: lease.batch % 64 + 1,
            }];
        }
        match lease.phase.name() {
            PhaseName::Pending | PhaseName::Attached => match self.rng.below(2) {
                0 if lease.phase.name() == PhaseName::Attached => {
                    vec![Event::LeaseActivated { id }]
                }
                _ => vec![Event::LeaseAttached {
                    id,
                    holder: holder(id.0 as u32 + 1),
                    fence,
                }],
            },
            PhaseName::Active if lease.enforced => match self.rng.below(4) {
                0 => vec![Event::LeaseVerified { id }],
                3 => vec![Event::LeaseUnverified { id }],
                1 => vec![Event::LeaseDraining { id, fence }],
                _ => vec![Event::LeaseQuarantined {
                    id,
                    fence,
                    cause: Cause::Expired,
                }],
            },
            PhaseName::Draining => vec![Event::LeaseQuarantined {
                id,
                fence,
                cause: Cause::Revoked,
            }],
            _ => Vec::new(),
        }
    }

    /// A lease ends; what its slot kept may be kept again.
    fn end(&mut self) -> Vec<Event> {
        let Some(lease) = self.any_lease() else {
            return Vec::new();
        };
        let how = self.rng.pick(&[
            End::Released,
            End::Expired,
            End::Revoked,
            End::Failed,
            End::Abandoned,
        ]);
        let fence = Fence(lease.fence.0 + 1);
        let mut events = vec![Event::LeaseEnded {
            id: lease.id,
            fence,
            how: how.unwrap(),
            reason: Some("said so".into()),
        }];
        if let Ask::Stage(member) = lease.ask
            && self
                .durable
                .jobs()
                .get(&member.job)
                .and_then(|j| slot(j, member))
                .is_some()
            && self.rng.below(2) == 0
        {
            events.push(Event::SlotReserved {
                member,
                unclaimed: lease.counted(),
            });
        }
        events
    }

    fn jobs(&mut self) -> Vec<Event> {
        let ids: Vec<JobId> = self.durable.jobs().keys().copied().collect();
        let known = self
            .rng
            .pick(&ids)
            .and_then(|id| self.durable.jobs().get(&id).cloned());
        match known {
            Some(job) if self.rng.below(3) > 0 => self.job(&job),
            _ if ids.len() < 3 => {
                let id = self.durable.next_job().0;
                vec![Event::JobSubmitted {
                    job: job(id, 1 + self.rng.below(2) as u32),
                }]
            }
            _ => Vec::new(),
        }
    }

    fn job(&mut self, job: &Job) -> Vec<Event> {
        let id = job.id;
        let leased = slots(job).any(|(_, s)| s.lease.is_some());
        match self.rng.below(7) {
            _ if job.phase != JobPhase::Admitted && self.rng.below(4) > 0 => {
                let one = self.vector();
                let stages = vec![vec![one], vec![Vector::empty()], Vec::new()];
                vec![Event::JobAdmitted {
                    id,
                    plan: plan(stages, &mut self.rng),
                    promised: self.rng.below(4) == 0,
                }]
            }
            0 if job.plan.is_some() => {
                let plan = plan(Vec::new(), &mut self.rng);
                vec![Event::JobReplanned {
                    id,
                    plan,
                    reason: "because".into(),
                }]
            }
            1 => vec![Event::JobStayed {
                id,
                reason: "it does not pay".into(),
            }],
            2 => {
                let learned = vec![vec![self.point()], Vec::new()];
                vec![Event::JobRefitted {
                    id,
                    scale: vec![self.rng.rate().get(), 1.0],
                    learned,
                    kappa: vec![vec![0.0, self.rng.rate().get()], vec![0.5, 0.0]],
                    outlook: None,
                }]
            }
            3 => {
                let rebalance = evenkeel_core::job::RebalanceSpec {
                    enabled: false,
                    ..Default::default()
                };
                vec![Event::JobUpdated {
                    id,
                    rebalance,
                    policy: Policy::Ebrl,
                }]
            }
            4 if !leased => vec![Event::JobParked { id }],
            5 if !leased => vec![Event::JobEnded { id }],
            _ => Vec::new(),
        }
    }

    /// Forgets what has ended.
    fn forget(&mut self) -> Vec<Event> {
        let over = |effect: Effect| match effect {
            Effect::Lease { id, .. } => !self.durable.leases().contains_key(&id),
            Effect::Job(id) => !self.durable.jobs().contains_key(&id),
        };
        let answers = self.durable.requests().iter();
        let requests = answers
            .filter(|(.., r)| over(r.effect))
            .take(2)
            .map(|(tenant, id, _)| (tenant.clone(), id))
            .collect();
        vec![Event::RequestsForgotten { requests }]
    }

    fn point(&mut self) -> Point {
        Point {
            cores: 2,
            sms: Sms(12),
            batch: 4,
            replicas: 1,
            rate: self.rng.rate(),
            memory: Bytes::gib(2),
            weight: self.rng.rate().get() + 0.1,
            ..Point::default()
        }
    }

    fn profiles(&mut self) -> Vec<Event> {
        let stage = self.rng.pick(&["job/sim", "job/train"]).unwrap();
        let key = ProfileKey {
            tenant: name("alice"),
            stage: name(stage),
            gpu: name("H100"),
        };
        if self.rng.below(4) > 0 {
            return vec![Event::TrialReported {
                key,
                point: self.point(),
            }];
        }
        let points = (0..self.rng.below(3)).map(|_| self.point()).collect();
        vec![Event::ProfileImported {
            profile: Profile { key, points },
        }]
    }

    fn node(&mut self) -> Vec<Event> {
        match self.rng.below(3) {
            0 => vec![Event::NodeDrained {
                draining: !self.durable.draining(),
            }],
            1 => {
                let mut node = self.durable.node().clone();
                let next = core(node.cores.len() as u32);
                node.cores = node.cores.iter().cloned().chain([next]).collect();
                vec![Event::NodeInstalled { node }]
            }
            _ => {
                let cores = self.durable.pool().free_cores().take(1);
                let gpus = [
                    (GpuId(1), (Sms(2), Bytes(0))),
                    (GpuId(9), (Sms(0), Bytes(1))),
                ];
                let gpus = gpus.into_iter().take(self.rng.below(3) as usize).collect();
                vec![Event::UnavailableChanged {
                    unavailable: Unavailable { cores, gpus },
                }]
            }
        }
    }
}
