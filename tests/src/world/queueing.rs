//! Order and justice of the queue, by brute force: who may go first, and whether a refusal was true.
use std::cmp::Reverse;

use evenkeel_core::allocate::{Inputs, Room, plan};
use evenkeel_core::command::{Acquire, Rejection};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::decide::job::{profiles_of, settled};
use evenkeel_core::grant::{Ask, GpuAsk, Member, SmAsk};
use evenkeel_core::id::{GpuId, JobId, LeaseId};
use evenkeel_core::job::{Job, JobPhase, Plan, Slot, StageSpec};
use evenkeel_core::lease::{Lease, Phase};
use evenkeel_core::node::{Gpu, GpuMode};
use evenkeel_core::state::{Durable, slot};
use evenkeel_core::unit::{Bytes, Sms};

use super::truth::{Verdict, broken};

/// SMs and bytes that are free on a GPU.
type Free = Vec<(GpuId, Sms, Bytes)>;

fn free(d: &Durable) -> Free {
    let of = |g: &Gpu| {
        let f = d.pool().free_on(d.node(), d.unavailable(), g.id);
        (g.id, f.sms, f.memory)
    };
    d.node()
        .gpus
        .iter()
        .filter(|g| g.mode == GpuMode::Enforce)
        .map(of)
        .collect()
}

/// The smallest count that the GPU can enforce and that is enough.
fn needed(gpu: &Gpu, ask: SmAsk) -> Option<Sms> {
    let exact = match ask {
        SmAsk::Count(n) => n,
        SmAsk::Percent(p) => Sms((gpu.sms.0 * u32::from(p)).div_ceil(100)),
    };
    let last = gpu.enforceable.last().copied();
    let enough = gpu.enforceable.iter().copied().find(|s| *s >= exact);
    enough.or(last.filter(|_| matches!(ask, SmAsk::Percent(_))))
}

/// Whether each of the asks can have a GPU of its own: all assignments are tried.
fn gpus_fit(d: &Durable, asks: &[GpuAsk], free: &Free, used: u64) -> bool {
    let Some((ask, rest)) = asks.split_first() else {
        return true;
    };
    free.iter().enumerate().any(|(i, (id, sms, memory))| {
        used & (1 << i) == 0
            && ask.gpu.is_none_or(|named| named == *id)
            && ask.memory <= *memory
            && d.node()
                .gpu(*id)
                .and_then(|g| needed(g, ask.sms))
                .is_some_and(|n| n <= *sms)
            && gpus_fit(d, rest, free, used | 1 << i)
    })
}

/// Whether a placement exists now.
fn fits(d: &Durable, cores: u32, gpus: &[GpuAsk]) -> bool {
    cores <= d.pool().free_cores().len() && gpus_fit(d, gpus, &free(d), 0)
}

/// Whether a placement would exist on an empty node.
fn could_fit(d: &Durable, cores: u32, gpus: &[GpuAsk]) -> bool {
    let all = d.node().gpus.iter().filter(|g| g.mode == GpuMode::Enforce);
    let all: Free = all.map(|g| (g.id, g.sms, g.leasable_memory())).collect();
    cores <= d.node().leasable_cores().len() && gpus_fit(d, gpus, &all, 0)
}

/// Who waits for room.
#[derive(Clone, Copy, Debug)]
enum Entry<'a> {
    Lease(&'a Lease),
    Job(&'a Job),
}

impl<'a> Entry<'a> {
    /// By priority, then by arrival; a job that came before a lease has the number that this lease got.
    fn place(&self) -> (Reverse<i32>, LeaseId, u8, u64) {
        match self {
            Self::Lease(l) => (Reverse(l.priority), l.id, 1, l.id.0),
            Self::Job(j) => (Reverse(j.spec.priority), j.arrival, 0, j.id.0),
        }
    }
    /// The job that waits: itself, or the parked one whose worker it is.
    fn job(&self, d: &'a Durable) -> Option<&'a Job> {
        match self {
            Self::Job(j) => Some(j),
            Self::Lease(l) => match l.ask {
                Ask::Stage(m) => d.jobs().get(&m.job).filter(|j| j.phase == JobPhase::Parked),
                Ask::Alone { .. } => None,
            },
        }
    }
    /// Whether it may take a kind of resource that these amounts use.
    fn wants(&self, d: &Durable, cores: bool, on: impl Fn(Option<GpuId>) -> bool) -> bool {
        if let Some(job) = self.job(d) {
            let stages = &job.spec.stages;
            let gpu = |s: &StageSpec| s.sms.1 > Sms(0) || s.memory > Bytes(0);
            let gpus = job.spec.gpu_count > 0 || stages.iter().any(gpu);
            let named = job.spec.gpus.iter().any(|g| on(Some(*g)));
            return stages.iter().any(|s| s.cores.1 > 0) && cores
                || named
                || gpus && job.spec.gpus.is_empty() && on(None);
        }
        match self {
            Self::Lease(l) => match &l.ask {
                Ask::Alone { cores: n, gpus } => {
                    (*n > 0 && cores) || gpus.iter().any(|g| on(g.gpu))
                }
                Ask::Stage(_) => false,
            },
            Self::Job(_) => false,
        }
    }
    /// Whether it would fit on all that is available: else nothing that others take delays it.
    fn is_possible(&self, d: &Durable) -> bool {
        if let Some(job) = self.job(d) {
            return job_fits(d, job, &available(d), open_cores(d));
        }
        match self {
            Self::Lease(l) => match &l.ask {
                Ask::Alone { cores, gpus } => {
                    *cores <= open_cores(d).len() && gpus_fit(d, gpus, &available(d), 0)
                }
                Ask::Stage(_) => false,
            },
            Self::Job(_) => false,
        }
    }
}

fn open_cores(d: &Durable) -> CpuSet {
    d.node().leasable_cores().difference(&d.unavailable().cores)
}

/// What can be leased of each GPU, whoever has it.
fn available(d: &Durable) -> Free {
    let all = d.node().gpus.iter().filter(|g| g.mode == GpuMode::Enforce);
    let of = |g: &Gpu| {
        let lost = d.unavailable().gpus.get(&g.id).copied();
        let (sms, memory) = lost.unwrap_or_default();
        (g.id, g.sms - sms, g.leasable_memory() - memory)
    };
    all.map(of).collect()
}

/// Whether a job that has nothing would get a plan on so much.
fn job_fits(d: &Durable, job: &Job, gpus: &Free, cores: CpuSet) -> bool {
    let profiles = profiles_of(d, &job.tenant, &job.spec);
    let inputs = Inputs {
        scale: &job.scale,
        learned: &job.learned,
        profiles: &profiles,
        ..Inputs::declared(&job.spec)
    };
    let gpus = gpus.iter().map(|(id, sms, memory)| (*id, (*sms, *memory)));
    let room = Room {
        cores,
        gpus: gpus.collect(),
    };
    plan(&inputs, d.node(), &room, None).is_ok()
}

/// Everybody who waits for room, in order.
fn line(d: &Durable) -> Vec<Entry<'_>> {
    let jobs = d.jobs().values().filter(|j| j.phase == JobPhase::Queued);
    let leases = d.leases().values().filter(|l| l.phase == Phase::Queued);
    let mut all: Vec<_> = leases
        .map(Entry::Lease)
        .chain(jobs.map(Entry::Job))
        .collect();
    all.sort_by_key(Entry::place);
    all
}

/// Somebody before `end` who waits for a kind of resource that these amounts use, and could get it one day.
fn delayed<'a>(
    d: &'a Durable,
    before: impl Fn(&Entry<'a>) -> bool,
    cores: bool,
    on: impl Fn(Option<GpuId>) -> bool,
) -> Option<Entry<'a>> {
    let first = line(d).into_iter().filter(before);
    let mut wants = first.filter(|e| e.wants(d, cores, &on));
    wants.find(|e| e.is_possible(d))
}

/// Who comes later takes nothing of what an earlier one waits for.
pub fn backfill_delays_nobody(d: &Durable, lease: &Lease) -> Verdict {
    if !matches!(lease.ask, Ask::Alone { .. }) {
        return Ok(());
    }
    let cores = !lease.target.cores.is_empty();
    let on = |gpu: Option<GpuId>| match gpu {
        Some(id) => lease.target.gpus.contains_key(&id),
        None => !lease.target.gpus.is_empty(),
    };
    let mine = Entry::Lease(lease).place();
    match delayed(d, |e| e.place() < mine, cores, on) {
        None => Ok(()),
        Some(e) => broken(
            "backfill_delays_nobody",
            format!("{} went ahead of {e:?}", lease.id),
        ),
    }
}

/// A job is admitted on what nobody before it waits for.
pub fn admission_delays_nobody(d: &Durable, id: JobId, plan: &Plan) -> Verdict {
    let Some(job) = d.jobs().get(&id).filter(|j| j.phase == JobPhase::Queued) else {
        return Ok(());
    };
    let cores = plan.stages.iter().any(|s| s.cores > 0);
    let gpus = plan.stages.iter().any(|s| s.sms > Sms(0));
    let on = |gpu: Option<GpuId>| gpus && gpu.is_none_or(|g| plan.gpus.contains(&g));
    let mine = Entry::Job(job).place();
    match delayed(d, |e| e.place() < mine, cores, on) {
        None => Ok(()),
        Some(e) => broken(
            "backfill_delays_nobody",
            format!("{id} went ahead of {e:?}"),
        ),
    }
}

/// Nobody waits for what is there: not the head of the queue for what is free, and no worker for its own place.
pub fn queue_is_served(d: &Durable) -> Verdict {
    if d.draining() {
        return Ok(());
    }
    let fits_now = |e: &Entry<'_>| match e {
        Entry::Lease(l) => match &l.ask {
            Ask::Alone { cores, gpus } => fits(d, *cores, gpus),
            Ask::Stage(_) => false,
        },
        // What a plan that is on its way will take is not for a second one.
        Entry::Job(j) => {
            let admitted = d.jobs().values().filter(|j| j.phase == JobPhase::Admitted);
            let all_settled = admitted.into_iter().all(|j| settled(d, j));
            all_settled && job_fits(d, j, &free(d), d.pool().free_cores().clone())
        }
    };
    let for_room = |e: &Entry<'_>| match e {
        Entry::Lease(l) if matches!(l.ask, Ask::Stage(_)) => e.job(d).is_some(),
        _ => true,
    };
    if let Some(head) = line(d).into_iter().find(for_room).filter(fits_now) {
        return broken("queue_is_served", format!("{head:?} waits and would fit"));
    }
    for entry in d.queue() {
        let Ask::Stage(member) = entry.ask else {
            continue;
        };
        let place = d.jobs().get(&member.job).and_then(|job| slot(job, member));
        let is_kept = |s: &Slot| s.lease.is_none() && !s.unclaimed.is_empty();
        // A part of a place is not yet the place, while somebody still has to give up the rest.
        if place.is_some_and(|s| is_kept(s) && (is_whole(d, member, s) || !somebody_gives(d))) {
            return broken(
                "queue_is_served",
                format!("{} waits for its place, which is kept", entry.id),
            );
        }
    }
    Ok(())
}

/// A request that was refused, or has to wait, could not have been served. `d` is the state that it was refused on.
pub fn refusal_is_justified(d: &Durable, a: &Acquire, refusal: Option<&Rejection>) -> Verdict {
    let Ask::Alone { cores, gpus } = &a.ask else {
        return Ok(());
    };
    if d.draining() {
        return Ok(()); // a retry of what waits is told so
    }
    if let Some(Rejection::Never { .. }) = refusal {
        return if could_fit(d, *cores, gpus) {
            broken(
                "a_refusal_is_justified",
                format!("{a:?} would fit on an empty node"),
            )
        } else {
            Ok(())
        };
    }
    if !matches!(refusal, None | Some(Rejection::Short { .. })) || !fits(d, *cores, gpus) {
        return Ok(());
    }
    let on = |gpu: Option<GpuId>| {
        gpus.iter()
            .any(|g| g.gpu.is_none() || gpu.is_none() || g.gpu == gpu)
    };
    let first = |e: &Entry<'_>| match e {
        Entry::Lease(l) => {
            l.priority >= a.priority && !(l.tenant == a.tenant && l.request == a.request)
        }
        Entry::Job(j) => j.spec.priority >= a.priority,
    };
    if delayed(d, first, *cores > 0, on).is_some() {
        return Ok(());
    }
    broken(
        "a_refusal_is_justified",
        format!("{a:?} would fit now; refused with {refusal:?}"),
    )
}

/// Whether all that the plan gives a worker is kept for it.
fn is_whole(d: &Durable, member: Member, place: &Slot) -> bool {
    let stage = usize::from(member.stage.0);
    let plan = d.jobs().get(&member.job).and_then(|j| j.plan.as_ref());
    let planned = plan.and_then(|p| p.stages.get(stage)?.workers.get(member.worker.0 as usize));
    planned == Some(&place.unclaimed)
}

/// Whether a worker of any job still has more than it is told to have.
fn somebody_gives(d: &Durable) -> bool {
    let of_job = |l: &&Lease| matches!(&l.ask, Ask::Stage(m) if d.jobs().contains_key(&m.job));
    let mut workers = d.leases().values().filter(of_job);
    workers.any(|l| !l.held.fits_in(&l.target))
}
