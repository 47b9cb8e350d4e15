//! Leases, renewals, directives and reports.
use std::time::Duration;

use evenkeel_proto::v1 as pb;

use crate::clock::{BootTime, micros, millis};
use crate::model::{
    Ask, BusyInterval, Directive, DirectiveKind, GpuAsk, GpuShare, Lease, LeaseEnd, LeasePhase,
    LeaseRef, LeaseRequest, Member, Renewal, RenewalStatus, ResizeMode, SmAsk, Step, Vector,
};

impl From<pb::GpuShare> for GpuShare {
    fn from(w: pb::GpuShare) -> Self {
        Self {
            gpu: w.gpu,
            gpu_uuid: w.gpu_uuid,
            guarantee_sms: w.guarantee_sms,
            cap_sms: w.cap_sms,
            cap_percent: w.cap_percent,
            memory_bytes: w.memory_bytes,
            emulated_socket: w.emulated_socket,
        }
    }
}

impl From<GpuShare> for pb::GpuShare {
    fn from(s: GpuShare) -> Self {
        Self {
            gpu: s.gpu,
            guarantee_sms: s.guarantee_sms,
            cap_sms: s.cap_sms,
            memory_bytes: s.memory_bytes,
            cap_percent: s.cap_percent,
            gpu_uuid: s.gpu_uuid,
            emulated_socket: s.emulated_socket,
        }
    }
}

impl From<pb::ResourceVector> for Vector {
    fn from(w: pb::ResourceVector) -> Self {
        Self {
            cores: w.cores.parse().unwrap_or_default(),
            cpus: w.cpus.parse().unwrap_or_default(),
            gpus: w.gpus.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<Vector> for pb::ResourceVector {
    fn from(v: Vector) -> Self {
        Self {
            cores: v.cores.to_string(),
            cpus: v.cpus.to_string(),
            gpus: v.gpus.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<pb::LeasePhase> for LeasePhase {
    fn from(w: pb::LeasePhase) -> Self {
        match w {
            pb::LeasePhase::Unspecified => Self::Unknown,
            pb::LeasePhase::Queued => Self::Queued,
            pb::LeasePhase::Pending => Self::Pending,
            pb::LeasePhase::Attached => Self::Attached,
            pb::LeasePhase::Active => Self::Active,
            pb::LeasePhase::Draining => Self::Draining,
            pb::LeasePhase::Quarantined => Self::Quarantined,
            pb::LeasePhase::Ended => Self::Ended,
        }
    }
}

fn end(w: pb::LeaseEnd) -> Option<LeaseEnd> {
    match w {
        pb::LeaseEnd::Unspecified => None,
        pb::LeaseEnd::Released => Some(LeaseEnd::Released),
        pb::LeaseEnd::Expired => Some(LeaseEnd::Expired),
        pb::LeaseEnd::Revoked => Some(LeaseEnd::Revoked),
        pb::LeaseEnd::Failed => Some(LeaseEnd::Failed),
        pb::LeaseEnd::Abandoned => Some(LeaseEnd::Abandoned),
    }
}

impl From<pb::ResizeMode> for ResizeMode {
    fn from(w: pb::ResizeMode) -> Self {
        match w {
            pb::ResizeMode::Live => Self::Live,
            pb::ResizeMode::Unspecified | pb::ResizeMode::Restart => Self::Restart,
            pb::ResizeMode::Fixed => Self::Fixed,
        }
    }
}

impl From<ResizeMode> for pb::ResizeMode {
    fn from(m: ResizeMode) -> Self {
        match m {
            ResizeMode::Live => Self::Live,
            ResizeMode::Restart => Self::Restart,
            ResizeMode::Fixed => Self::Fixed,
        }
    }
}

impl From<pb::Member> for Member {
    fn from(w: pb::Member) -> Self {
        Self {
            job: w.job,
            stage: w.stage,
            worker: w.worker,
        }
    }
}

impl From<Member> for pb::Member {
    fn from(m: Member) -> Self {
        Self {
            job: m.job,
            stage: m.stage,
            worker: m.worker,
        }
    }
}

impl From<pb::Lease> for Lease {
    fn from(w: pb::Lease) -> Self {
        Self {
            phase: w.phase().into(),
            end: end(w.end()),
            resize: w.resize().into(),
            id: w.id,
            tenant: w.tenant,
            request_id: w.request_id,
            fence: w.fence,
            generation: w.generation,
            held: w.held.unwrap_or_default().into(),
            target: w.target.unwrap_or_default().into(),
            ttl_ms: w.ttl_ms,
            remaining_ms: w.remaining_ms,
            member: w.member.map(Into::into),
            pid: w.pid,
            enforced: w.enforced,
            share_kind: w.share_kind,
            suspect: w.suspect,
            batch: Some(w.batch).filter(|b| *b > 0),
            deadline: BootTime::default(),
        }
    }
}

fn gpu_request(ask: GpuAsk) -> pb::GpuRequest {
    let (sms, percent) = match ask.sms {
        SmAsk::Count(n) => (n, 0),
        SmAsk::Percent(p) => (0, p),
    };
    pb::GpuRequest {
        gpu: ask.gpu,
        sms,
        percent,
        memory_bytes: ask.memory_bytes,
    }
}

/// A request for a lease, as sent each time it is tried.
pub(crate) fn acquire_request(request: &LeaseRequest) -> pb::AcquireLeaseRequest {
    let (member, cores, gpus) = match &request.ask {
        Ask::Worker(member) => (Some(member.clone().into()), 0, Vec::new()),
        Ask::Amounts { cores, gpus } => (
            None,
            *cores,
            gpus.iter().copied().map(gpu_request).collect(),
        ),
    };
    pb::AcquireLeaseRequest {
        request_id: request.request_id.to_string(),
        member,
        cores,
        gpus,
        ttl_ms: request.ttl.map_or(0, millis),
        wait_ms: millis(request.wait),
        resize: request
            .resize
            .map_or(pb::ResizeMode::Unspecified, Into::into)
            .into(),
        processes: request.processes.unwrap_or(0),
        priority: request.priority,
        unenforced: request.unenforced,
    }
}

/// A lease and its fence.
pub(crate) fn lease_ref(lease: LeaseRef) -> pb::LeaseRef {
    pb::LeaseRef {
        lease_id: lease.lease_id,
        fence: lease.fence,
    }
}

impl From<pb::RenewResult> for Renewal {
    fn from(w: pb::RenewResult) -> Self {
        Self {
            lease_id: w.lease_id,
            status: match w.status() {
                pb::RenewStatus::Renewed => RenewalStatus::Renewed,
                pb::RenewStatus::Fenced => RenewalStatus::Fenced,
                // A daemon that does not say that it renewed has not.
                pb::RenewStatus::Lost | pb::RenewStatus::Unspecified => RenewalStatus::Lost,
            },
            remaining: Duration::from_millis(w.remaining_ms),
        }
    }
}

/// A directive with its lease; none if this client does not know its kind.
pub(crate) fn directive(w: pb::Directive) -> Option<(LeaseRef, Directive)> {
    let kind = match w.kind() {
        pb::DirectiveKind::Unspecified => return None,
        pb::DirectiveKind::Target => DirectiveKind::Target,
        pb::DirectiveKind::Restart => DirectiveKind::Restart,
        pb::DirectiveKind::Release => DirectiveKind::Release,
        pb::DirectiveKind::ReclaimMemory => DirectiveKind::ReclaimMemory,
        pb::DirectiveKind::Drain => DirectiveKind::Drain,
    };
    let lease = w.lease?;
    let lease = LeaseRef {
        lease_id: lease.lease_id,
        fence: lease.fence,
    };
    let directive = Directive {
        kind,
        generation: w.generation,
        target: w.target.unwrap_or_default().into(),
        batch: Some(w.batch).filter(|b| *b > 0),
        reason: w.reason,
        environment: w.environment.into_iter().collect(),
    };
    Some((lease, directive))
}

fn interval(i: &BusyInterval, now: BootTime) -> pb::BusyInterval {
    let began_us_ago = micros(now.since(i.began));
    pb::BusyInterval {
        lane: i.lane,
        began_us_ago,
        // An interval cannot be longer than it is ago; a caller's rounding must not make it so.
        busy_us: micros(i.busy).min(began_us_ago),
        units: i.units,
        batch: i.batch,
        cpu_us: micros(i.cpu),
    }
}

/// What one worker did, as durations before `now`, the time of sending.
pub(crate) fn work_report(
    lease: LeaseRef,
    lanes: u32,
    intervals: &[BusyInterval],
    steps: &[Step],
    now: BootTime,
) -> pb::WorkReport {
    pb::WorkReport {
        lease: Some(lease_ref(lease)),
        lanes,
        intervals: intervals.iter().map(|i| interval(i, now)).collect(),
        steps: steps
            .iter()
            .map(|s| pb::StepReport {
                n: s.n,
                consumed_units: s.consumed_units,
                discarded_units: s.discarded_units,
            })
            .collect(),
    }
}

/// The worker has applied a directive.
pub(crate) fn acknowledge(lease: LeaseRef, generation: u64, effective: Vector) -> pb::Acknowledge {
    pb::Acknowledge {
        lease: Some(lease_ref(lease)),
        generation,
        effective: Some(effective.into()),
    }
}
