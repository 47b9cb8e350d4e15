//! "What if": the plan that a job would get, from given or stored profiles, on this pool or on one of other sizes.
//! The planning is the core's; what is gathered here is what it plans with. Nothing is changed.
use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::allocate::{self, Inputs, Refusal, Room};
use evenkeel_core::command::{Caller, Rejection, Resource};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::Profile;
use evenkeel_core::decide::job::{inputs_of, profiles_of};
use evenkeel_core::grant::Vector;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{Job, JobSpec, MEMORY_MAX, Plan};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node};
use evenkeel_core::state::{Durable, slots};
use evenkeel_core::step::State;
use evenkeel_core::unit::{Bytes, Sms};
use evenkeel_proto::v1 as pb;
use tonic::Status;

use super::convert::{self, Around, Bad};
use super::error;
use super::limits::{PLAN_CORES_MAX, PLAN_PROFILES_MAX, PLAN_SMS_MAX};
use crate::handle::Failure;

/// What is asked.
pub(super) struct Question {
    caller: Caller,
    spec: JobSpec,
    profiles: Vec<Profile>,
    cores: Option<u32>,
    sms: Option<u32>,
    memory: Option<Bytes>,
}

/// All that the plan depends on.
pub(super) struct Gathered {
    caller: Caller,
    spec: JobSpec,
    node: Node,
    room: Room,
    profiles: Vec<Option<Profile>>,
    /// What was learned live of the job.
    live: Option<Job>,
    previous: Option<Plan>,
}

impl Question {
    pub(super) fn parse(w: &pb::SolvePlanRequest, caller: &Caller) -> Result<Self, Bad> {
        let spec = w.spec.as_ref();
        let spec = spec.ok_or_else(|| Bad::new("spec", "is missing; declare the job"))?;
        if w.profiles.len() > PLAN_PROFILES_MAX {
            let why = format!("{} profiles; at most {PLAN_PROFILES_MAX}", w.profiles.len());
            return Err(Bad::new("profiles", why));
        }
        let profile = |(i, p): (usize, &pb::Profile)| {
            let parsed = convert::profile(Some(p), &caller.tenant);
            parsed.map_err(|bad| bad.within(format!("profiles[{i}]")))
        };
        let sized = |field, given: Option<u32>, most| match given {
            Some(n) if n == 0 || n > most => {
                Err(Bad::new(field, format!("{n} is not 1 to {most}")))
            }
            given => Ok(given),
        };
        if w.memory_bytes == Some(0) {
            return Err(Bad::new(
                "memory_bytes",
                "a GPU has memory; leave it out for what is free",
            ));
        }
        Ok(Self {
            caller: caller.clone(),
            spec: convert::spec(spec).map_err(|bad| bad.within("spec"))?,
            profiles: w
                .profiles
                .iter()
                .enumerate()
                .map(profile)
                .collect::<Result<_, _>>()?,
            cores: sized("cores", w.cores, PLAN_CORES_MAX)?,
            sms: sized("sms", w.sms, PLAN_SMS_MAX)?,
            memory: w.memory_bytes.map(|n| Bytes(n.min(MEMORY_MAX))),
        })
    }

    /// Copies what the plan depends on out of the state.
    pub(super) fn gather(self, state: &State) -> Gathered {
        let d = &state.durable;
        let job = d.job_named(&self.caller.tenant, &self.spec.name);
        let same = job.filter(|j| {
            let names = |s: &JobSpec| s.stages.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
            names(&j.spec) == names(&self.spec)
        });
        let (node, room) = self.pool(d, job);
        let stored = profiles_of(d, &self.caller.tenant, &self.spec);
        let given = |i: usize| self.given(i).cloned();
        let profiles: Vec<Option<Profile>> = (stored.into_iter().enumerate())
            .map(|(i, stored)| given(i).or_else(|| stored.cloned()))
            .collect();
        // What was learned live belongs to the stored profiles and to this pool.
        let live = same.filter(|_| self.profiles.is_empty());
        Gathered {
            profiles,
            node,
            room,
            live: live.cloned(),
            previous: same
                .filter(|_| self.cores.is_none() && self.sms.is_none() && self.memory.is_none())
                .and_then(|j| j.plan.clone()),
            caller: self.caller,
            spec: self.spec,
        }
    }

    /// The given profile of a stage, by its fingerprint.
    fn given(&self, stage: usize) -> Option<&Profile> {
        let s = self.spec.stages.get(stage)?;
        let own = s.profile.as_ref().map(Name::to_string);
        let key = own.unwrap_or_else(|| format!("{}/{}", self.spec.name, s.name));
        self.profiles.iter().find(|p| p.key.stage.as_str() == key)
    }

    /// The pool to plan with: what is free or the job's own, with the sizes that were given instead.
    fn pool(&self, d: &Durable, job: Option<&Job>) -> (Node, Room) {
        let mut node = d.node().clone();
        let mut room = free_or_own(d, job);
        if let Some(n) = self.cores {
            let core = |id| Core {
                id,
                cpus: CpuSet::range(id, id),
                numa: 0,
                package: 0,
            };
            node.cores = (0..n).map(core).collect();
            node.reserved_cores = CpuSet::new();
            room.cores = CpuSet::range(0, n - 1);
        }
        if self.sms.is_none() && self.memory.is_none() {
            return (node, room);
        }
        if node.gpus.is_empty() {
            node.gpus = imagined(&self.spec);
        }
        for gpu in &mut node.gpus {
            let left = room.gpus.get(&gpu.id).copied();
            let (mut sms, mut memory) = left.unwrap_or((gpu.sms, gpu.leasable_memory()));
            if let Some(n) = self.sms {
                sms = Sms(n);
                gpu.enforceable = counts(gpu, sms);
                gpu.sms = sms;
            }
            if let Some(bytes) = self.memory {
                (gpu.memory, gpu.reserved_memory) = (bytes, Bytes(0));
                memory = bytes;
            }
            room.gpus.insert(gpu.id, (sms, memory));
        }
        (node, room)
    }
}

/// What is free, and what the job has itself.
fn free_or_own(d: &Durable, job: Option<&Job>) -> Room {
    let free = |gpu: &Gpu| {
        let free = d.pool().free_on(d.node(), d.unavailable(), gpu.id);
        (gpu.id, (free.sms, free.memory))
    };
    let mut room = Room {
        cores: d.pool().free_cores().clone(),
        gpus: d.node().gpus.iter().map(free).collect::<BTreeMap<_, _>>(),
    };
    let mut own = |v: &Vector| {
        room.cores = room.cores.union(&v.cores);
        for (id, share) in &v.gpus {
            let left = room.gpus.entry(*id).or_default();
            left.0 += share.guarantee;
            left.1 += share.memory;
        }
    };
    for (_, slot) in job.into_iter().flat_map(slots) {
        own(&slot.unclaimed);
        let lease = slot.lease.and_then(|id| d.leases().get(&id));
        if let Some(lease) = lease.filter(|l| l.phase.is_usable()) {
            own(&lease.counted());
        }
    }
    room
}

/// GPUs for a node that has none, as many as the job wants; each SM can be given by itself.
fn imagined(spec: &JobSpec) -> Vec<Gpu> {
    let wanted = spec
        .gpus
        .last()
        .map_or(spec.gpu_count.max(1), |g| g.0.saturating_add(1));
    let name = |text: &str| Name::new(text).unwrap_or_else(|_| Name::unknown());
    let gpu = |id| Gpu {
        id: GpuId(id),
        uuid: name(&format!("imagined-{id}")),
        model: name("imagined"),
        sms: Sms(132),
        memory: Bytes::gib(80),
        reserved_memory: Bytes(0),
        enforceable: (1..=132).map(Sms).collect(),
        numa: 0,
        backend: GpuBackend::None,
        mode: GpuMode::Enforce,
    };
    (0..wanted.min(64)).map(gpu).collect()
}

/// The counts that a GPU of another size could enforce: multiples of this one's granule.
fn counts(gpu: &Gpu, sms: Sms) -> Arc<[Sms]> {
    let steps = gpu
        .enforceable
        .windows(2)
        .map(|two| two[1].0.saturating_sub(two[0].0));
    let first = gpu.enforceable.first().map(|c| c.0);
    let granule = steps.chain(first).filter(|n| *n > 0).min().unwrap_or(1);
    (1..)
        .map(|i| i * granule)
        .take_while(|n| *n <= sms.0)
        .map(Sms)
        .collect()
}

impl Gathered {
    /// Solves. May take a moment for many stages.
    pub(super) fn solve(self) -> Result<pb::Plan, Status> {
        let profiles: Vec<Option<&Profile>> = self.profiles.iter().map(Option::as_ref).collect();
        let learned = self.live.as_ref().map(|job| inputs_of(job, &profiles, &[]));
        let inputs = Inputs {
            profiles: &profiles,
            spec: &self.spec,
            ..learned.unwrap_or(Inputs::declared(&self.spec))
        };
        let solved = allocate::plan(&inputs, &self.node, &self.room, self.previous.as_ref());
        let (mut plan, _) = solved.map_err(|refusal| self.refused(&refusal))?;
        plan.stages.iter_mut().for_each(|s| s.workers.clear());
        let sockets = super::config::GpuSockets::new();
        Ok(convert::plan(
            &self.spec,
            &plan,
            &Around::new(&self.node, &sockets),
        ))
    }

    fn refused(&self, refusal: &Refusal) -> Status {
        use evenkeel_core::allocate::Resource as Scarce;
        let Some(short) = refusal.shortage() else {
            return error::invalid("spec", &refusal.to_string());
        };
        let resource = match short.resource {
            Scarce::Cores => Resource::Cores,
            Scarce::Sms => Resource::Sms(short.gpu),
            Scarce::Memory => Resource::Memory(short.gpu),
            Scarce::Gpus => Resource::Gpus,
        };
        let rejection = Rejection::Never {
            resource,
            asked: short.needed,
            has: short.available,
        };
        let status = error::status(Failure::Rejected(rejection), &self.caller);
        error::reworded(status, &format!("no split fits: {refusal}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_imagined_gpu_keeps_the_granule() {
        let gpu = Gpu {
            enforceable: [Sms(4), Sms(6), Sms(8)].into(),
            ..imagined(&JobSpec {
                gpu_count: 1,
                ..spec()
            })
            .remove(0)
        };
        assert_eq!(*counts(&gpu, Sms(7)), [2, 4, 6].map(Sms));
    }

    fn spec() -> JobSpec {
        let name = |text: &str| Name::new(text).unwrap();
        JobSpec {
            name: name("j"),
            unit: name("u"),
            priority: 0,
            weight: 1.0,
            gpus: vec![],
            gpu_count: 0,
            groups: 2,
            policy: Default::default(),
            sm_mode: Default::default(),
            rebalance: Default::default(),
            stages: vec![],
        }
    }
}
