//! Somebody who tries what is not allowed: other tenants' leases, old fences, numbers that make no sense.
use evenkeel_core::balance::{Busy, Report};
use evenkeel_core::command::{Acquire, Caller, Command};
use evenkeel_core::curve::{Point, ProfileKey};
use evenkeel_core::grant::{Ask, GpuAsk, Member, SmAsk, Vector};
use evenkeel_core::id::{
    BodyHash, Fence, Generation, JobId, LeaseId, Name, RequestId, StageId, WorkerId,
};
use evenkeel_core::job::{JobPhase, JobSpec};
use evenkeel_core::lease::{Holder, Phase};
use evenkeel_core::node::PoolKind;
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms};

use super::agent::{Call, What};
use super::rng::Rng;
use super::shell::{Said, Who};
use super::{Happening, World};

/// What the mischievous one remembers.
#[derive(Debug)]
pub struct Mischief {
    rng: Rng,
    asked: u64,
    heard: u64,
}

impl Mischief {
    /// Has done nothing yet.
    pub const fn new(rng: Rng) -> Self {
        Self {
            rng,
            asked: 0,
            heard: 0,
        }
    }
    /// An answer: only counted, the truth has judged it.
    pub const fn hear(&mut self, _: &Said) {
        self.heard += 1;
    }
}

impl World {
    /// Something is tried.
    pub(super) fn make_mischief(&mut self) {
        let tenant = self.any_tenant();
        let caller = Caller::user(tenant);
        let next = self.truth.fold.next_lease().0;
        let lease = LeaseId(self.mischief.rng.range(next.saturating_sub(12), next + 1));
        let real = self
            .truth
            .fold
            .leases()
            .get(&lease)
            .map_or(Fence(1), |l| l.fence);
        // An owner's own lease is not touched: its own client does that.
        let owner = self.truth.owner(lease) == Some(&caller.tenant);
        let kind = self.mischief.rng.below(13);
        // Another process of the same tenant, with the right fence: refused once somebody holds the lease, and once
        // nobody does any more.
        let phase = self.truth.fold.leases().get(&lease).map(|l| &l.phase);
        let taken = phase.is_some_and(|p| !matches!(p, Phase::Queued | Phase::Pending));
        let over =
            phase.is_some_and(|p| matches!(p, Phase::Draining(_) | Phase::Quarantined { .. }));
        let refused = (kind == 0 && taken) || (kind == 1 && over);
        let fence = if (owner && !refused) || self.mischief.rng.chance(300) {
            Fence(real.0.saturating_sub(1))
        } else {
            real
        };
        let what = match kind {
            0..=5 => self.about_a_lease(kind, caller, lease, fence, owner),
            6..=9 => self.a_bad_acquire(kind, caller),
            _ => self.about_a_job(kind, caller),
        };
        self.trace.line(self.now, format_args!("mischief {kind}"));
        if let Some(what) = what {
            self.tokens += 1;
            let token = self.tokens;
            self.at(
                1,
                Happening::Arrive(Call {
                    who: Who::Mischief,
                    token,
                    what,
                }),
            );
        }
        self.again(Happening::Mischief);
    }

    fn about_a_lease(
        &mut self,
        kind: u64,
        caller: Caller,
        lease: LeaseId,
        fence: Fence,
        owner: bool,
    ) -> Option<What> {
        let rng = &mut self.mischief.rng;
        let command = match kind {
            0 => {
                let holder = Holder {
                    pid: 7,
                    start_time: 7,
                    uid: rng.below(9) as u32,
                };
                Command::Attach {
                    caller,
                    lease,
                    fence,
                    holder,
                }
            }
            1 => Command::Release {
                caller,
                lease,
                fence,
            },
            2 if !owner => Command::Revoke { caller, lease },
            2 => return Some(What::Renew(caller, lease, fence)),
            3 => {
                let effective = Vector::empty();
                let generation = Generation(rng.below(9));
                Command::Acknowledge {
                    caller,
                    lease,
                    fence,
                    generation,
                    effective,
                }
            }
            4 => {
                let busy = Busy {
                    dur_us: 9,
                    units: f64::NAN,
                    batch: 1,
                    ..Busy::default()
                };
                let report = Box::new(Report {
                    lanes: 1,
                    busy: vec![busy],
                    ..Report::default()
                });
                Command::Report {
                    caller,
                    lease,
                    fence,
                    report,
                }
            }
            _ if rng.chance(500) => Command::Clear {
                caller,
                lease,
                reason: "please".into(),
            },
            _ => Command::Drain {
                caller,
                draining: true,
            },
        };
        Some(What::Command(command))
    }

    fn a_bad_acquire(&mut self, kind: u64, caller: Caller) -> Option<What> {
        let rng = &mut self.mischief.rng;
        self.mischief.asked += 1;
        let d = &self.truth.fold;
        let mut acquire = Acquire {
            tenant: caller.tenant,
            request: RequestId(u128::from(self.mischief.asked) | 1 << 100),
            body: BodyHash(1),
            ask: Ask::Alone {
                cores: 0,
                gpus: vec![],
            },
            enforced: d.node().kind == PoolKind::Local,
            resize: None,
            processes: None,
            ttl: Millis(3_000),
            wait: rng.chance(300),
            priority: 5,
        };
        match kind {
            6 => {
                let known: Vec<_> = d.requests().of(&acquire.tenant).collect();
                acquire.request = known.get(rng.below(known.len() as u64) as usize)?.0;
                acquire.body = BodyHash(u64::MAX);
            }
            7 => {
                let gpus = d.node().gpus.len() + 1;
                let ask = GpuAsk {
                    gpu: None,
                    sms: SmAsk::Count(Sms(1)),
                    memory: Bytes(1),
                };
                acquire.ask = Ask::Alone {
                    cores: 0,
                    gpus: vec![ask; gpus],
                };
            }
            8 => {
                let jobs: Vec<_> = d.jobs().values().collect();
                let job = jobs.get(rng.below(jobs.len() as u64) as usize)?;
                // A place that is taken, or a job that waits. It never asks for a free one of its own.
                let taken = job
                    .slots
                    .first()
                    .and_then(|s| s.first())
                    .is_some_and(|s| s.lease.is_some());
                if !taken && job.phase != JobPhase::Queued {
                    return None;
                }
                (acquire.tenant, acquire.wait) = (job.tenant.clone(), false);
                let (stage, worker) = (StageId(0), WorkerId(0));
                acquire.ask = Ask::Stage(Member {
                    job: job.id,
                    stage,
                    worker,
                });
            }
            _ => {
                let (stage, worker) = (StageId(9), WorkerId(9));
                acquire.ask = Ask::Stage(Member {
                    job: JobId(rng.below(9)),
                    stage,
                    worker,
                });
            }
        }
        Some(What::Command(Command::Acquire(Box::new(acquire))))
    }

    fn about_a_job(&mut self, kind: u64, caller: Caller) -> Option<What> {
        let rng = &mut self.mischief.rng;
        let command = match kind {
            10 => {
                let jobs: Vec<_> = self.truth.fold.jobs().values().collect();
                let job = jobs.get(rng.below(jobs.len() as u64) as usize)?;
                self.mischief.asked += 1;
                Command::Submit {
                    caller: Caller::user(job.tenant.clone()),
                    request: RequestId(u128::from(self.mischief.asked) | 1 << 101),
                    body: BodyHash(2),
                    spec: Box::new(JobSpec {
                        groups: 1 + 2 * rng.below(2) as u32,
                        ..job.spec.clone()
                    }),
                }
            }
            11 => Command::Cancel {
                caller,
                job: Name::new("no-such-job").ok()?,
            },
            _ => {
                let key = ProfileKey {
                    tenant: caller.tenant,
                    stage: Name::new("x/y").ok()?,
                    gpu: Name::new("none").ok()?,
                };
                let point = Box::new(Point {
                    cores: rng.below(2) as u32,
                    sms: Sms(0),
                    batch: 1,
                    replicas: 1,
                    rate: Rate::ZERO,
                    memory: Bytes(0),
                    weight: 1.0,
                    ..Point::default()
                });
                let replaces = rng.below(2) == 0;
                Command::Trial {
                    key,
                    point,
                    replaces,
                }
            }
        };
        Some(What::Command(command))
    }
}
