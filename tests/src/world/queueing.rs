//! Order and justice of the queue, by brute force: who may go first, and whether a refusal was true.
use evenkeel_core::command::{Acquire, Rejection};
use evenkeel_core::grant::{Ask, GpuAsk, SmAsk};
use evenkeel_core::id::{GpuId, JobId, LeaseId};
use evenkeel_core::job::{JobPhase, Plan};
use evenkeel_core::lease::Lease;
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

/// An entry of the queue that waits for a kind of resource that these amounts use.
fn waits_for_the_same(entry: &Lease, cores: bool, on: impl Fn(Option<GpuId>) -> bool) -> bool {
    match &entry.ask {
        Ask::Alone { cores: n, gpus } => (*n > 0 && cores) || gpus.iter().any(|g| on(g.gpu)),
        Ask::Stage(_) => false,
    }
}

fn before(d: &Durable, priority: i32, id: LeaseId) -> impl Iterator<Item = &Lease> {
    d.queue().filter(move |q| {
        q.id != id && (q.priority > priority || (q.priority == priority && q.id < id))
    })
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
    match before(d, lease.priority, lease.id).find(|q| waits_for_the_same(q, cores, on)) {
        None => Ok(()),
        Some(q) => broken(
            "backfill_delays_nobody",
            format!("{} went ahead of {}", lease.id, q.id),
        ),
    }
}

/// A job is admitted on what nobody of at least its priority waits for.
pub fn admission_delays_nobody(d: &Durable, id: JobId, plan: &Plan) -> Verdict {
    let Some(job) = d.jobs().get(&id).filter(|j| j.phase == JobPhase::Queued) else {
        return Ok(());
    };
    let cores = plan.stages.iter().any(|s| s.cores > 0);
    let gpus = plan.stages.iter().any(|s| s.sms > Sms(0));
    let on = |gpu: Option<GpuId>| gpus && gpu.is_none_or(|g| plan.gpus.contains(&g));
    let waiting = d.queue().filter(|q| q.priority >= job.spec.priority);
    match waiting
        .into_iter()
        .find(|q| waits_for_the_same(q, cores, on))
    {
        None => Ok(()),
        Some(q) => broken(
            "backfill_delays_nobody",
            format!("{id} went ahead of {}", q.id),
        ),
    }
}

/// Nobody waits for what is there: not the head of the queue for what is free, and no worker for its own place.
pub fn queue_is_served(d: &Durable) -> Verdict {
    if d.draining() {
        return Ok(());
    }
    if let Some(head) = d.queue().next()
        && let Ask::Alone { cores, gpus } = &head.ask
        && fits(d, *cores, gpus)
    {
        return broken(
            "queue_is_served",
            format!("{} waits and would fit", head.id),
        );
    }
    for entry in d.queue() {
        let Ask::Stage(member) = entry.ask else {
            continue;
        };
        let place = d.jobs().get(&member.job).and_then(|job| slot(job, member));
        if place.is_some_and(|s| s.lease.is_none() && !s.unclaimed.is_empty()) {
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
    let mine = |q: &&Lease| q.tenant == a.tenant && q.request == a.request;
    let first = d.queue().filter(|q| q.priority >= a.priority && !mine(q));
    if first
        .into_iter()
        .any(|q| waits_for_the_same(q, *cores > 0, on))
    {
        return Ok(());
    }
    broken(
        "a_refusal_is_justified",
        format!("{a:?} would fit now; refused with {refusal:?}"),
    )
}
