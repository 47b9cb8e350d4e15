//! What a tenant's cap leaves to it: on top of what is free, never instead of it. Who waits because of its own cap holds
//! up nobody (`queue`).
use alloc::format;
use alloc::string::String;

use super::fit::{enforced, wanted_sms};
use crate::allocate::{Room, TenantRoom};
use crate::caps::{Cap, Caps, Use};
use crate::command::{Rejection, Resource};
use crate::grant::GpuAsk;
use crate::id::{GpuId, Name};
use crate::job::{Job, Plan};
use crate::pool::GpuUse;
use crate::state::{Durable, slots};
use crate::unit::{Bytes, Sms};

/// A tenant's cap, and what is counted against it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ceiling {
    cap: Cap,
    used: Use,
}

impl Ceiling {
    /// Of a tenant, beside all that it has.
    pub(super) fn of(d: &Durable, caps: &Caps, tenant: &Name) -> Self {
        let cap = caps.of(tenant);
        let used = match cap.is_open() {
            true => Use::default(), // not asked for
            false => d.used_by(tenant).clone(),
        };
        Self { cap, used }
    }
    /// Of a job's tenant, beside all that it has but this job.
    pub(super) fn beside(d: &Durable, caps: &Caps, job: &Job) -> Self {
        let mut ceiling = Self::of(d, caps, &job.tenant);
        if !ceiling.is_open() {
            ceiling.forget(d, job);
        }
        ceiling
    }
    /// Of a tenant, beside all that it has but these jobs.
    pub(super) fn beside_all(d: &Durable, caps: &Caps, tenant: &Name, jobs: &[&Job]) -> Self {
        let mut ceiling = Self::of(d, caps, tenant);
        if !ceiling.is_open() {
            for job in jobs.iter().filter(|j| j.tenant == *tenant) {
                ceiling.forget(d, job);
            }
        }
        ceiling
    }
    /// What it leaves of a room; none if it bounds nothing.
    pub(super) fn room<'a>(&self, tenant: &'a Name, room: &Room) -> Option<TenantRoom<'a>> {
        let left = |id: &GpuId| self.cap.left_on(self.used.on(*id));
        let on = |(id, (sms, memory)): (&GpuId, &(Sms, Bytes))| {
            let left = left(id);
            (*id, (left.sms.min(*sms), left.memory.min(*memory)))
        };
        (!self.is_open()).then(|| TenantRoom {
            tenant,
            cores: self.cores().min(room.cores.len()),
            gpus: room.gpus.iter().map(on).collect(),
        })
    }
    /// Counts nothing of a job.
    fn forget(&mut self, d: &Durable, job: &Job) {
        for (_, slot) in slots(job) {
            self.used.remove(&slot.unclaimed);
            if let Some(lease) = slot.lease.and_then(|id| d.leases().get(&id)) {
                self.used.remove(&lease.counted());
            }
        }
    }
    /// Of a tenant that has nothing.
    pub(super) fn empty(caps: &Caps, tenant: &Name) -> Self {
        Self {
            cap: caps.of(tenant),
            used: Use::default(),
        }
    }
    pub(super) const fn is_open(&self) -> bool {
        self.cap.is_open()
    }
    /// Cores that it leaves.
    pub(super) fn cores(&self) -> u32 {
        self.cap.cores_left(self.used.cores)
    }
    /// What it leaves of what is free on a GPU.
    pub(super) fn on(&self, gpu: GpuId, free: GpuUse) -> GpuUse {
        let left = self.cap.left_on(self.used.on(gpu));
        GpuUse {
            sms: free.sms.min(left.sms),
            memory: free.memory.min(left.memory),
        }
    }
    /// Takes out of a room what is beyond it. What `own` has stays: a cap takes nothing away.
    pub(super) fn trim(&self, room: &mut Room, own: &Room) {
        if self.is_open() {
            return;
        }
        let more = self.cores().saturating_sub(own.cores.len());
        let others = room.cores.difference(&own.cores);
        if others.len() > more {
            room.cores = own.cores.union(&others.take(more));
        }
        for (id, free) in &mut room.gpus {
            let left = self.cap.left_on(self.used.on(*id));
            let has = own.gpus.get(id).copied().unwrap_or_default();
            *free = (
                free.0.min(left.sms.max(has.0)),
                free.1.min(left.memory.max(has.1)),
            );
        }
    }
    /// The refusal of a request that would fit but for this cap.
    pub(super) fn refusal(&self, d: &Durable, cores: u32, asks: &[GpuAsk]) -> Rejection {
        if cores > self.cores() {
            return self.short(
                Resource::Cores,
                cores.into(),
                self.cap.cores.map(u64::from),
                self.used.cores.into(),
            );
        }
        let named = |id| asks.iter().find(|a| a.gpu.is_none_or(|g| g == id));
        // The GPU on which the most is left says how much is short.
        let best = enforced(d)
            .filter_map(|g| Some((self.used.on(g.id), g, named(g.id)?)))
            .min_by_key(|(used, ..)| (used.sms, used.memory));
        let Some((used, gpu, ask)) = best else {
            return self.short(Resource::Gpus, asks.len() as u64, None, 0);
        };
        let left = self.cap.left_on(used);
        let sms = wanted_sms(gpu, ask.sms).unwrap_or(gpu.sms);
        if sms > left.sms {
            let cap = self.cap.sms_per_gpu.map(|Sms(n)| n.into());
            return self.short(Resource::Sms(ask.gpu), sms.0.into(), cap, used.sms.0.into());
        }
        let cap = self.cap.memory_per_gpu.map(|Bytes(n)| n);
        self.short(Resource::Memory(ask.gpu), ask.memory.0, cap, used.memory.0)
    }

    /// The refusal of a job that would fit on the node, with this plan, and never under this cap.
    pub(super) fn refusal_of(&self, plan: &Plan) -> Rejection {
        let mut wanted = Use::default();
        let workers = plan.stages.iter().flat_map(|s| &s.workers);
        workers.for_each(|share| wanted.add(share));
        let most = wanted.gpus.values();
        let (sms, memory) = most.fold((Sms(0), Bytes(0)), |(sms, memory), used| {
            (sms.max(used.sms), memory.max(used.memory))
        });
        let over = [
            (
                Resource::Cores,
                u64::from(wanted.cores),
                self.cap.cores.map(u64::from),
            ),
            (
                Resource::Sms(None),
                sms.0.into(),
                self.cap.sms_per_gpu.map(|n| n.0.into()),
            ),
            (
                Resource::Memory(None),
                memory.0,
                self.cap.memory_per_gpu.map(|n| n.0),
            ),
        ];
        let over = over
            .into_iter()
            .find(|(_, wanted, cap)| cap.is_some_and(|cap| *wanted > cap));
        let (resource, wanted, cap) = over.unwrap_or((Resource::Gpus, 1, Some(0)));
        self.short(resource, wanted, cap, 0)
    }

    fn short(&self, resource: Resource, asked: u64, cap: Option<u64>, used: u64) -> Rejection {
        let cap = cap.unwrap_or(u64::MAX);
        if asked > cap {
            return Rejection::Limit {
                what: match resource {
                    Resource::Cores => "cores of one tenant",
                    Resource::Sms(_) => "SMs of one tenant on a GPU",
                    Resource::Memory(_) => "bytes of one tenant on a GPU",
                    Resource::Gpus => "GPUs of one tenant",
                },
                limit: cap,
            };
        }
        let free = cap.saturating_sub(used);
        Rejection::Short {
            resource,
            asked,
            free,
            short_by: asked.saturating_sub(free).max(1),
            holder: Some(own_cap(cap, used)),
        }
    }
}

/// Who stands in the way: the tenant itself.
fn own_cap(cap: u64, used: u64) -> String {
    format!("your tenant's cap of {cap}, of which it has {used}")
}
