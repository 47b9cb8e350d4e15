//! Commands about one lease: acquire, attach, renew, release, revoke, clear, abandon.
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use super::{Answer, Decision, find, find_fenced, queue};
use crate::command::{Acquire, Caller, Rejection, Reply};
use crate::event::Event;
use crate::grant::{Ask, GpuAsk, Member, Resize, SmAsk, Vector};
use crate::id::{Fence, Generation, LeaseId};
use crate::job::{Plan, StageSpec};
use crate::lease::{Cause, End, Holder, Lease, Phase};
use crate::node::PoolKind;
use crate::state::{Durable, Effect};
use crate::unit::{Bytes, Millis, Time};
use crate::volatile::Volatile;

/// Least and most TTL. Below a second, a heartbeat costs more than the lease; above an hour it is no heartbeat.
pub const TTL_MIN: Millis = Millis::secs(1);
/// See [`TTL_MIN`].
pub const TTL_MAX: Millis = Millis::secs(3600);
/// Most GPUs of one lease.
pub const LEASE_GPUS_MAX: usize = 16;
/// Most processes of one worker.
pub const PROCESSES_MAX: u32 = 1024;

pub(super) fn acquire(d: &Durable, v: &mut Volatile, a: &Acquire) -> Result<Decision, Rejection> {
    if let Some(answer) = remembered(d, a)? {
        return Ok(answer);
    }
    check(d, v, a)?;
    let lease = new_lease(d, a);
    if let Some((id, plan)) = queue::unpark(d, v, &lease) {
        let target = share_in(&plan, &a.ask);
        let granted = Lease {
            batch: batch_in(Some(&plan), &a.ask),
            ..granted(d, &lease, target)
        };
        let events = [
            Event::JobAdmitted {
                id,
                plan,
                promised: false,
            },
            Event::LeaseGranted { lease: granted },
        ];
        return Ok(Decision::about(lease.id, events));
    }
    match queue::room(d, v, &lease) {
        Ok(target) => {
            let granted = granted(d, &lease, target);
            Ok(Decision::about(
                lease.id,
                [Event::LeaseGranted { lease: granted }],
            ))
        }
        Err(Rejection::Short { .. } | Rejection::JobQueued(_) | Rejection::SlotTaken { .. })
            if a.wait =>
        {
            check_queue(d, v, a)?;
            let id = lease.id;
            Ok(Decision {
                events: vec![Event::LeaseQueued { lease }],
                reply: Answer::Reply(Reply::Waiting(id)),
            })
        }
        Err(refusal) => Err(refusal),
    }
}

fn share_in(plan: &Plan, ask: &Ask) -> Vector {
    let Ask::Stage(m) = ask else {
        return Vector::empty();
    };
    let stage = plan.stages.get(usize::from(m.stage.0));
    stage
        .and_then(|s| s.workers.get(m.worker.0 as usize))
        .cloned()
        .unwrap_or_default()
}

/// The batch size that a plan has for a request; 1 where it has none.
fn batch_in(plan: Option<&Plan>, ask: &Ask) -> u32 {
    let (Some(plan), Ask::Stage(m)) = (plan, ask) else {
        return 1;
    };
    plan.stages
        .get(usize::from(m.stage.0))
        .map_or(1, |s| s.batch)
}

/// The answer to a request that was made before.
fn remembered(d: &Durable, a: &Acquire) -> Result<Option<Decision>, Rejection> {
    let Some(r) = d.requests().get(&a.tenant, a.request) else {
        return Ok(None);
    };
    if r.body != a.body {
        return Err(Rejection::OtherBody(a.request));
    }
    let Effect::Lease { id, fence, end } = r.effect else {
        return Err(Rejection::OtherBody(a.request));
    };
    let reply = match (d.leases().get(&id), end) {
        (Some(l), _) if l.phase == Phase::Queued => Reply::Waiting(id),
        (Some(l), _) => Reply::Lease(Lease { fence, ..l.clone() }.into()),
        (None, Some((how, last))) => {
            let stub = Lease {
                fence: last,
                phase: Phase::Ended(how),
                ..new_lease(d, a)
            };
            Reply::Lease(Lease { id, ..stub }.into())
        }
        (None, None) => return Err(Rejection::NotFound(id.to_string())),
    };
    Ok(Some(Decision {
        events: vec![],
        reply: Answer::Reply(reply),
    }))
}

fn new_lease(d: &Durable, a: &Acquire) -> Lease {
    let (resize, processes) = match stage_of(d, a) {
        Some(stage) => (stage.resize, stage.processes),
        None => (a.resize.unwrap_or_default(), a.processes.unwrap_or(1)),
    };
    Lease {
        id: d.next_lease(),
        tenant: a.tenant.clone(),
        request: a.request,
        body: a.body,
        ask: a.ask.clone(),
        enforced: a.enforced,
        resize,
        processes,
        ttl: a.ttl,
        priority: a.priority,
        fence: Fence(1),
        generation: Generation(1),
        held: Vector::empty(),
        target: Vector::empty(),
        batch: 1,
        phase: Phase::Queued,
    }
}

/// The lease with its share, and with what the plan in force has for its stage.
pub(super) fn granted(d: &Durable, lease: &Lease, target: Vector) -> Lease {
    let phase = if lease.enforced {
        Phase::Pending
    } else {
        Phase::Active {
            holder: None,
            verified: false,
        }
    };
    let held = if lease.enforced {
        Vector::empty()
    } else {
        target.clone()
    };
    let plan = match &lease.ask {
        Ask::Stage(m) => d.jobs().get(&m.job).and_then(|j| j.plan.as_ref()),
        Ask::Alone { .. } => None,
    };
    Lease {
        held,
        target,
        batch: batch_in(plan, &lease.ask),
        phase,
        ..lease.clone()
    }
}

/// Everything about a request that does not depend on what is free.
fn check(d: &Durable, v: &Volatile, a: &Acquire) -> Result<(), Rejection> {
    let invalid = |field, why: String| Err(Rejection::Invalid { field, why });
    if d.draining() {
        return Err(Rejection::Draining);
    }
    let own = d.tally(&a.tenant).leases;
    at_most("live leases", d.leases().len(), v.settings.leases_max)?;
    at_most(
        "live leases of one tenant",
        own,
        v.caps
            .of(&a.tenant)
            .leases
            .unwrap_or(u32::MAX)
            .min(v.settings.tenant_leases_max),
    )?;
    if a.ttl < TTL_MIN || a.ttl > TTL_MAX {
        return invalid(
            "ttl_ms",
            format!("{} is not between {TTL_MIN} and {TTL_MAX}", a.ttl),
        );
    }
    if let Some(n) = a.processes.filter(|n| !(1..=PROCESSES_MAX).contains(n)) {
        let why = format!("{n} is not between 1 and {PROCESSES_MAX}");
        return invalid("processes", why);
    }
    match (d.node().kind, a.enforced) {
        (PoolKind::Local, false) => {
            return invalid(
                "unenforced",
                "this pool is real: every lease on it is enforced; leave the field out".into(),
            );
        }
        (PoolKind::Synthetic, true) => {
            return invalid(
                "unenforced",
                "this pool is synthetic: its leases are entries in the ledger, and nothing can be bound to one (over gRPC, ask with \
                 unenforced = true)"
                    .into(),
            );
        }
        _ => {}
    }
    match &a.ask {
        Ask::Alone { cores, gpus } => check_alone(*cores, gpus),
        Ask::Stage(member) => check_terms(find_member(d, a, *member)?, a),
    }
}

/// A limit that is not reached yet.
pub(super) fn at_most(what: &'static str, has: usize, limit: u32) -> Result<(), Rejection> {
    let limit = u64::from(limit);
    if (has as u64) < limit {
        Ok(())
    } else {
        Err(Rejection::Limit { what, limit })
    }
}

fn check_queue(d: &Durable, v: &Volatile, a: &Acquire) -> Result<(), Rejection> {
    let own = d.tally(&a.tenant).queued;
    at_most("requests in the queue", d.queue_len(), v.settings.queue_max)?;
    let most = v.settings.tenant_queue_max;
    at_most("requests of one tenant in the queue", own, most)
}

/// How a worker's share changes and is divided is declared with its stage, and planned by that: a request may leave it
/// out or say the same.
fn check_terms(stage: &StageSpec, a: &Acquire) -> Result<(), Rejection> {
    let (resize, processes) = (a.resize.unwrap_or(stage.resize), a.processes);
    let mode = |r: Resize| match r {
        Resize::Live => "live",
        Resize::Restart => "restart",
        Resize::Fixed => "fixed",
    };
    let declared = |field, given: String, declared: String| {
        let why = format!(
            "{given} is asked, and stage {} is declared with {declared}; leave it out, or submit the job with it",
            stage.name
        );
        Err(Rejection::Invalid { field, why })
    };
    if resize != stage.resize {
        return declared("resize", mode(resize).into(), mode(stage.resize).into());
    }
    match processes {
        Some(n) if n != stage.processes => {
            declared("processes", n.to_string(), stage.processes.to_string())
        }
        _ => Ok(()),
    }
}

/// The stage whose worker a request is for.
fn stage_of<'a>(d: &'a Durable, a: &Acquire) -> Option<&'a StageSpec> {
    let Ask::Stage(m) = a.ask else { return None };
    let job = d.jobs().get(&m.job).filter(|j| j.tenant == a.tenant)?;
    job.spec.stages.get(usize::from(m.stage.0))
}

fn check_alone(cores: u32, gpus: &[GpuAsk]) -> Result<(), Rejection> {
    let invalid = |field, why: &str| {
        Err(Rejection::Invalid {
            field,
            why: why.into(),
        })
    };
    if cores == 0 && gpus.is_empty() {
        return invalid(
            "cores",
            "nothing is asked; ask for cores, for a GPU share, or for a job's stage",
        );
    }
    if gpus.len() > LEASE_GPUS_MAX {
        return Err(Rejection::Limit {
            what: "GPUs of one lease",
            limit: LEASE_GPUS_MAX as u64,
        });
    }
    for ask in gpus {
        match ask.sms {
            SmAsk::Percent(p) if !(1..=100).contains(&p) => {
                return invalid("percent", "a percentage is 1 to 100");
            }
            SmAsk::Count(n) if n.0 == 0 => {
                return invalid("sms", "a GPU share needs at least one SM");
            }
            _ => {}
        }
        if ask.memory == Bytes(0) {
            return invalid(
                "memory_bytes",
                "a GPU share needs memory: even an empty context takes some",
            );
        }
        if ask.gpu.is_some() && gpus.iter().filter(|g| g.gpu == ask.gpu).count() > 1 {
            return invalid("gpu", "a GPU is named twice");
        }
    }
    Ok(())
}

fn find_member<'a>(d: &'a Durable, a: &Acquire, m: Member) -> Result<&'a StageSpec, Rejection> {
    let job = d.jobs().get(&m.job).filter(|j| j.tenant == a.tenant);
    let job = job.ok_or_else(|| Rejection::NotFound(m.job.to_string()))?;
    let stage = job
        .spec
        .stages
        .get(usize::from(m.stage.0))
        .ok_or_else(|| Rejection::NotFound(m.stage.to_string()))?;
    if m.worker.0 >= stage.workers {
        let why = format!(
            "stage {} has {} worker{}; indices start at 0",
            stage.name,
            stage.workers,
            if stage.workers == 1 { "" } else { "s" }
        );
        return Err(Rejection::Invalid {
            field: "worker",
            why,
        });
    }
    Ok(stage)
}

pub(super) fn attach(
    d: &Durable,
    caller: &Caller,
    id: LeaseId,
    fence: Fence,
    holder: &Holder,
) -> Result<Decision, Rejection> {
    let lease = find(d, caller, id)?;
    if lease.phase.is_usable()
        && lease.phase.holder() == Some(holder)
        && fence.next() == lease.fence
    {
        return Ok(Decision::about(id, [])); // said again: the answer was lost
    }
    let lease = find_fenced(d, caller, id, fence)?;
    let phase = lease.phase.name();
    let wrong = |wanted| Err(Rejection::WrongPhase { id, phase, wanted });
    match &lease.phase {
        _ if !lease.enforced => return wrong("nobody enforces it, so nobody attaches to it"),
        Phase::Pending => {}
        Phase::Attached(h)
        | Phase::Active {
            holder: Some(h), ..
        } if h == holder => {}
        Phase::Attached(_) | Phase::Active { .. } => return wrong("another process tree holds it"),
        _ => return wrong("only a pending lease can be attached to"),
    }
    Ok(Decision::about(
        id,
        [Event::LeaseAttached {
            id,
            holder: holder.clone(),
            fence: fence.next(),
        }],
    ))
}

/// A renewal that came while its clock was closing: by now the expiry is committed or the clock is open again.
pub(super) fn renew(
    d: &Durable,
    v: &Volatile,
    now: Time,
    caller: &Caller,
    id: LeaseId,
    fence: Fence,
) -> Result<Decision, Rejection> {
    let lease = find_fenced(d, caller, id, fence)?;
    if !lease.phase.is_usable() && lease.phase != Phase::Queued {
        return Err(Rejection::WrongPhase {
            id,
            phase: lease.phase.name(),
            wanted: "it can be renewed no more",
        });
    }
    if let Some(clock) = v.clocks.get(&id) {
        clock.renew(fence, now.after(lease.ttl));
    }
    Ok(Decision::about(id, []))
}

pub(super) fn release(
    d: &Durable,
    caller: &Caller,
    id: LeaseId,
    fence: Fence,
) -> Result<Decision, Rejection> {
    if let Some((_, End::Released, last)) = d.ended_seen_by(id, caller)
        && fence <= last
    {
        return Ok(Decision::done()); // said again: it is released
    }
    let lease = find(d, caller, id)?;
    let current = fence == lease.fence;
    match lease.phase {
        // Said again: it is being released.
        Phase::Draining(_) if current || fence.next() == lease.fence => Ok(Decision::about(id, [])),
        Phase::Quarantined { .. } if current => Err(Rejection::WrongPhase {
            id,
            phase: lease.phase.name(),
            wanted: "it was taken back, and ends when its processes are gone",
        }),
        _ if current => Ok(Decision::about(id, [give_back(lease)])),
        _ => Err(Rejection::Fenced { id, given: fence }),
    }
}

/// The event by which a usable lease (or a queue entry) is given back.
pub(super) fn give_back(lease: &Lease) -> Event {
    match lease.phase.holder() {
        Some(_) => Event::LeaseDraining {
            id: lease.id,
            fence: lease.fence.next(),
        },
        None => ended(lease, End::Released, None),
    }
}

pub(super) fn ended(lease: &Lease, how: End, reason: Option<String>) -> Event {
    Event::LeaseEnded {
        id: lease.id,
        fence: lease.fence.next(),
        how,
        reason,
    }
}

pub(super) fn revoke(d: &Durable, caller: &Caller, id: LeaseId) -> Result<Decision, Rejection> {
    let lease = find(d, caller, id)?;
    if matches!(lease.phase, Phase::Quarantined { .. }) {
        return Ok(Decision::about(id, []));
    }
    Ok(Decision::about(id, [revoked(lease)]))
}

/// The event by which a lease is taken back: its share is free when its tree is proved gone; at once without a tree.
pub(super) fn revoked(lease: &Lease) -> Event {
    match lease.phase.holder() {
        None => ended(lease, End::Revoked, None),
        Some(_) => Event::LeaseQuarantined {
            id: lease.id,
            fence: lease.fence.next(),
            cause: Cause::Revoked,
        },
    }
}

pub(super) fn clear(
    d: &Durable,
    caller: &Caller,
    id: LeaseId,
    reason: &str,
) -> Result<Decision, Rejection> {
    if !caller.admin {
        return Err(Rejection::NotAdmin);
    }
    let lease = find(d, caller, id)?;
    let how = match &lease.phase {
        Phase::Quarantined { cause, .. } => cause.end(),
        Phase::Draining(_) => End::Released,
        p => {
            return Err(Rejection::WrongPhase {
                id,
                phase: p.name(),
                wanted: "only a quarantined or draining lease can be cleared; revoke it first",
            });
        }
    };
    Ok(Decision::about(
        id,
        [ended(lease, how, Some(reason.into()))],
    ))
}

pub(super) fn abandon(d: &Durable, id: LeaseId) -> Decision {
    match d.leases().get(&id) {
        Some(l) if l.phase == Phase::Queued => Decision::of([ended(l, End::Abandoned, None)]),
        _ => Decision::done(),
    }
}
