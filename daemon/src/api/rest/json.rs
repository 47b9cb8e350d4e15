//! The objects of the wire as JSON: the same names, units in them; enumerations as words in lower case; 64-bit
//! numbers as numbers; an absent message as `null`.
use evenkeel_proto::v1 as pb;
use serde_json::{Value, json};

/// `LEASE_PHASE_ACTIVE` becomes `active`; what is not said becomes `null`.
fn word(name: &str, prefix: &str) -> Value {
    match name.strip_prefix(prefix) {
        Some("UNSPECIFIED") | None => Value::Null,
        Some(word) => word.to_lowercase().into(),
    }
}

fn vector(v: Option<&pb::ResourceVector>) -> Value {
    let Some(v) = v else { return Value::Null };
    let share = |s: &pb::GpuShare| {
        json!({
            "gpu": s.gpu,
            "gpu_uuid": s.gpu_uuid,
            "guarantee_sms": s.guarantee_sms,
            "cap_sms": s.cap_sms,
            "cap_percent": s.cap_percent,
            "memory_bytes": s.memory_bytes,
            "emulated_socket": s.emulated_socket,
        })
    };
    json!({
        "cores": v.cores,
        "cpus": v.cpus,
        "gpus": v.gpus.iter().map(share).collect::<Vec<_>>(),
    })
}

pub(super) fn lease(l: &pb::Lease) -> Value {
    let member = l.member.as_ref();
    json!({
        "id": l.id,
        "tenant": l.tenant,
        "request_id": l.request_id,
        "fence": l.fence,
        "generation": l.generation,
        "phase": word(l.phase().as_str_name(), "LEASE_PHASE_"),
        "end": word(l.end().as_str_name(), "LEASE_END_"),
        "held": vector(l.held.as_ref()),
        "target": vector(l.target.as_ref()),
        "ttl_ms": l.ttl_ms,
        "remaining_ms": l.remaining_ms,
        "member": member.map(|m| json!({ "job": m.job, "stage": m.stage, "worker": m.worker })),
        "pid": l.pid,
        "enforced": l.enforced,
        "share_kind": l.share_kind,
        "resize": word(l.resize().as_str_name(), "RESIZE_MODE_"),
        "suspect": l.suspect,
        "batch": l.batch,
    })
}

pub(super) fn job(j: &pb::Job) -> Value {
    json!({
        "id": j.id,
        "tenant": j.tenant,
        "spec": j.spec.as_ref().map(spec),
        "phase": word(j.phase().as_str_name(), "JOB_PHASE_"),
        "plan": j.plan.as_ref().map(plan),
        "balance": j.balance.as_ref().map(balance),
        "leases": j.leases.iter().map(lease).collect::<Vec<_>>(),
        "moves": j.moves,
        "moving": j.moving,
    })
}

fn spec(s: &pb::JobSpec) -> Value {
    json!({
        "name": s.name,
        "unit": s.unit,
        "priority": s.priority,
        "gpus": s.gpus,
        "gpu_count": s.gpu_count,
        "groups": s.groups,
        "policy": s.policy,
        "sm_mode": s.sm_mode,
        "rebalance": s.rebalance.as_ref().map(rebalance),
        "stages": s.stages.iter().map(stage).collect::<Vec<_>>(),
    })
}

fn stage(s: &pb::StageSpec) -> Value {
    json!({
        "name": s.name,
        "role": word(s.role().as_str_name(), "STAGE_ROLE_"),
        "workers": s.workers,
        "processes": s.processes,
        "min_cores": s.min_cores,
        "max_cores": s.max_cores,
        "no_cores": s.no_cores,
        "min_sms": s.min_sms,
        "max_sms": s.max_sms,
        "no_gpu": s.no_gpu,
        "memory_bytes": s.memory_bytes,
        "batches": s.batches,
        "synchronous": s.synchronous,
        "resize": word(s.resize().as_str_name(), "RESIZE_MODE_"),
        "profile": s.profile,
    })
}

fn rebalance(r: &pb::RebalanceSpec) -> Value {
    json!({
        "frozen": r.frozen,
        "detector": r.detector,
        "gap": r.gap,
        "windows": r.windows,
        "cusum_slack": r.cusum_slack,
        "cusum_threshold": r.cusum_threshold,
        "cooldown_windows": r.cooldown_windows,
        "horizon_ms": r.horizon_ms,
        "restart_cost_ms": r.restart_cost_ms,
        "min_gain": r.min_gain,
        "shrink_timeout_ms": r.shrink_timeout_ms,
        "escalate": r.escalate,
        "refit_windows": r.refit_windows,
    })
}

fn plan(p: &pb::Plan) -> Value {
    let stage = |s: &pb::StagePlan| {
        json!({
            "stage": s.stage,
            "cores": s.cores,
            "sms": s.sms,
            "cap_sms": s.cap_sms,
            "memory_bytes": s.memory_bytes,
            "batch": s.batch,
            "predicted_units_per_s": s.predicted_units_per_s,
            "workers": s.workers.iter().map(|v| vector(Some(v))).collect::<Vec<_>>(),
        })
    };
    json!({
        "stages": p.stages.iter().map(stage).collect::<Vec<_>>(),
        "gpus": p.gpus,
        "rollout_units_per_s": p.rollout_units_per_s,
        "train_units_per_s": p.train_units_per_s,
        "units_per_s": p.units_per_s,
        "binding_stage": p.binding_stage,
        "by": p.by,
        "why": p.why,
    })
}

fn balance(b: &pb::Balance) -> Value {
    json!({
        "windows": b.windows,
        "rollout_units_per_s": b.rollout_units_per_s,
        "train_units_per_s": b.train_units_per_s,
        "gap": b.gap,
        "streak": b.streak,
        "stage_units_per_s": b.stage_units_per_s,
        "last": b.last,
        "state": b.state,
    })
}

pub(super) fn node(n: &pb::Node) -> Value {
    let gpu = |g: &pb::Gpu| {
        json!({
            "id": g.id,
            "uuid": g.uuid,
            "model": g.model,
            "sms": g.sms,
            "memory_bytes": g.memory_bytes,
            "leasable_memory_bytes": g.leasable_memory_bytes,
            "used_sms": g.used_sms,
            "used_memory_bytes": g.used_memory_bytes,
            "unavailable_sms": g.unavailable_sms,
            "unavailable_memory_bytes": g.unavailable_memory_bytes,
            "backend": g.backend,
            "mode": g.mode,
            "enforceable_sms": g.enforceable_sms,
            "numa": g.numa,
            "emulated_socket": g.emulated_socket,
        })
    };
    json!({
        "name": n.name,
        "kind": n.kind,
        "cores": n.cores,
        "reserved_cores": n.reserved_cores,
        "used_cores": n.used_cores,
        "unavailable_cores": n.unavailable_cores,
        "gpus": n.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "draining": n.draining,
        "version": n.version,
        "live_leases": n.live_leases,
        "queued": n.queued,
        "uptime_ms": n.uptime_ms,
        "troubles": n.troubles,
        "degraded": n.degraded,
    })
}

pub(super) fn event(e: &pb::Event) -> Value {
    json!({
        "seq": e.seq,
        "unix_ms": e.unix_ms,
        "kind": e.kind,
        "lease_id": e.lease_id,
        "job_id": e.job_id,
        "tenant": e.tenant,
        // The event itself, not a text that holds it.
        "json": serde_json::from_str::<Value>(&e.json).unwrap_or(Value::Null),
    })
}
