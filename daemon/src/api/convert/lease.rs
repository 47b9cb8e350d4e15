//! Leases and directives for the wire.
use evenkeel_core::converge::{self, Order};
use evenkeel_core::grant::{Ask, Resize};
use evenkeel_core::id::{Fence, LeaseId, Name};
use evenkeel_core::lease::{Cause, End, Lease, Phase};
use evenkeel_core::node::GpuBackend;
use evenkeel_core::step::State;
use evenkeel_core::unit::{Millis, Time};
use evenkeel_proto::v1 as pb;

use super::environment::{Daemon, environment};
use super::resize_mode;
use super::vector::{Around, vector};

/// What is left of a lease's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct LeaseTimes {
    remaining: Millis,
    suspect: bool,
}

impl LeaseTimes {
    /// By its deadline; none: it has ended.
    pub(in crate::api) fn new(lease: &Lease, deadline: Option<Time>, now: Time) -> Self {
        let remaining = deadline.map_or(Millis(0), |at| at.since(now));
        let held = lease.phase.is_usable() && lease.phase != Phase::Pending;
        Self {
            remaining,
            suspect: held && deadline.is_some_and(|at| at < now),
        }
    }
}

/// A lease for the wire.
pub(in crate::api) fn lease(
    l: &Lease,
    around: &Around<'_>,
    member: Option<pb::Member>,
    times: LeaseTimes,
) -> pb::Lease {
    pb::Lease {
        id: l.id.0,
        tenant: l.tenant.to_string(),
        request_id: l.request.to_string(),
        fence: l.fence.0,
        generation: l.generation.0,
        phase: phase(&l.phase).into(),
        end: end(&l.phase).into(),
        held: Some(vector(&l.held, around)),
        target: Some(vector(&l.target, around)),
        ttl_ms: l.ttl.0,
        remaining_ms: times.remaining.0,
        member,
        pid: l.phase.holder().map_or(0, |h| h.pid),
        enforced: l.enforced,
        share_kind: share_kind(l, around).into(),
        resize: resize_mode(l.resize).into(),
        suspect: times.suspect,
        batch: match l.ask {
            Ask::Stage(_) => l.batch,
            Ask::Alone { .. } => 0,
        },
    }
}

/// A lease for the wire, with what the state knows about it.
pub(in crate::api) fn lease_in(
    state: &State,
    now: Time,
    l: &Lease,
    around: &Around<'_>,
) -> pb::Lease {
    let deadline = state.volatile.clocks.get(&l.id).map(|c| c.deadline());
    let times = LeaseTimes::new(l, deadline, now);
    lease(l, around, member_names(state, &l.ask), times)
}

/// A lease that has ended, of which only how is remembered.
pub(in crate::api) fn ended_lease(id: LeaseId, tenant: &Name, how: End, fence: Fence) -> pb::Lease {
    pb::Lease {
        id: id.0,
        tenant: tenant.to_string(),
        fence: fence.0,
        phase: pb::LeasePhase::Ended.into(),
        end: end_wire(how).into(),
        share_kind: "none".into(),
        ..Default::default()
    }
}

fn member_names(state: &State, ask: &Ask) -> Option<pb::Member> {
    let Ask::Stage(m) = ask else { return None };
    let spec = &state.durable.jobs().get(&m.job)?.spec;
    let stage = spec.stages.get(usize::from(m.stage.0))?;
    Some(pb::Member {
        job: spec.name.to_string(),
        stage: stage.name.to_string(),
        worker: m.worker.0,
    })
}

const fn phase(phase: &Phase) -> pb::LeasePhase {
    match phase {
        Phase::Queued => pb::LeasePhase::Queued,
        Phase::Pending => pb::LeasePhase::Pending,
        Phase::Attached(_) => pb::LeasePhase::Attached,
        Phase::Active { .. } => pb::LeasePhase::Active,
        Phase::Draining(_) => pb::LeasePhase::Draining,
        Phase::Quarantined { .. } => pb::LeasePhase::Quarantined,
        Phase::Ended(_) => pb::LeasePhase::Ended,
    }
}

const fn end(phase: &Phase) -> pb::LeaseEnd {
    match phase {
        Phase::Ended(how) => end_wire(*how),
        _ => pb::LeaseEnd::Unspecified,
    }
}

const fn end_wire(how: End) -> pb::LeaseEnd {
    match how {
        End::Released => pb::LeaseEnd::Released,
        End::Expired => pb::LeaseEnd::Expired,
        End::Revoked => pb::LeaseEnd::Revoked,
        End::Failed => pb::LeaseEnd::Failed,
        End::Abandoned => pb::LeaseEnd::Abandoned,
    }
}

/// What the GPU share is. It is only called what it is asked to be once the worker's context was seen.
fn share_kind(l: &Lease, around: &Around<'_>) -> &'static str {
    let share = l.held.gpus.keys().chain(l.target.gpus.keys()).next();
    let Some(gpu) = share
        .and_then(|id| around.node.gpu(*id))
        .filter(|_| l.enforced)
    else {
        return "none";
    };
    match (&l.phase, gpu.backend) {
        (_, GpuBackend::None) => "none",
        (_, GpuBackend::Mig) => "reserved",
        (Phase::Active { verified: true, .. }, _) if l.resize == Resize::Live => "co-operative",
        (Phase::Active { verified: true, .. }, _) => "capped",
        _ => "unverified",
    }
}

/// A directive for the wire, as the one with the right `fence` is told it.
pub(in crate::api) fn directive(
    d: converge::Directive,
    l: &Lease,
    fence: Fence,
    around: &Around<'_>,
    daemon: &Daemon<'_>,
) -> pb::Directive {
    let lease = pb::LeaseRef {
        lease_id: d.lease.0,
        fence: fence.0,
    };
    let plain = |kind: pb::DirectiveKind, reason: &str| pb::Directive {
        lease: Some(lease),
        kind: kind.into(),
        generation: l.generation.0,
        target: Some(vector(&l.target, around)),
        reason: reason.into(),
        ..Default::default()
    };
    match d.order {
        Order::Target { batch, .. } => pb::Directive {
            batch,
            ..plain(pb::DirectiveKind::Target, "the plan of its job has changed")
        },
        Order::Restart { batch, .. } => pb::Directive {
            batch,
            environment: environment(l, around, daemon),
            ..plain(
                pb::DirectiveKind::Restart,
                "the plan of its job has changed, and this share changes by a restart",
            )
        },
        Order::Release => plain(
            pb::DirectiveKind::Release,
            match l.phase {
                Phase::Quarantined {
                    cause: Cause::Expired,
                    ..
                } => "it was not renewed in time",
                Phase::Quarantined { .. } => "it was taken back",
                _ => "its job is over; what is not given back soon is taken back",
            },
        ),
        Order::Drain => plain(pb::DirectiveKind::Drain, "this node is being drained"),
    }
}

/// Time left, for a renewal's answer.
pub(in crate::api) const fn remaining(
    id: u64,
    status: pb::RenewStatus,
    remaining: Millis,
) -> pb::RenewResult {
    pb::RenewResult {
        lease_id: id,
        status: status as i32,
        remaining_ms: remaining.0,
    }
}
