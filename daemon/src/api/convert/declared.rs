//! What a job declares, told back: every default filled in, so that it reads back as the same.
use evenkeel_core::id::Name;
use evenkeel_core::job::{
    Detector, JobSpec, Policy, RebalanceSpec, Role, ShrinkFallback, SmMode, StageSpec,
};
use evenkeel_core::unit::Sms;
use evenkeel_proto::v1 as pb;

use super::resize_mode;
use super::spec::NO_LIMIT;

/// A job's declaration for the wire, every default filled in.
pub(super) fn spec_wire(s: &JobSpec) -> pb::JobSpec {
    pb::JobSpec {
        name: s.name.to_string(),
        unit: s.unit.to_string(),
        priority: s.priority,
        weight: Some(s.weight),
        gpus: s.gpus.iter().map(|g| g.0.into()).collect(),
        gpu_count: s.gpu_count.into(),
        groups: s.groups,
        policy: match s.policy {
            Policy::Waterfill => "waterfill",
            Policy::Ebrl => "ebrl",
        }
        .into(),
        sm_mode: match s.sm_mode {
            SmMode::Reserve => "reserve",
            SmMode::Cap => "cap",
        }
        .into(),
        rebalance: Some(rebalance_wire(&s.rebalance)),
        stages: s.stages.iter().map(stage_wire).collect(),
    }
}

fn stage_wire(s: &StageSpec) -> pb::StageSpec {
    let limit = |n: u32| if n == NO_LIMIT { 0 } else { n };
    let role = match s.role {
        Role::Simulation => pb::StageRole::Simulation,
        Role::Generation => pb::StageRole::Generation,
        Role::Training => pb::StageRole::Training,
        Role::Inference => pb::StageRole::Inference,
        Role::Other => pb::StageRole::Other,
    };
    pb::StageSpec {
        name: s.name.to_string(),
        role: role.into(),
        workers: s.workers,
        processes: s.processes,
        min_cores: s.cores.0,
        max_cores: limit(s.cores.1),
        no_cores: s.cores.1 == 0,
        min_sms: s.sms.0.0,
        max_sms: limit(s.sms.1.0),
        no_gpu: s.sms.1 == Sms(0),
        memory_bytes: s.memory.0,
        batches: s.batches.clone(),
        synchronous: s.synchronous,
        resize: resize_mode(s.resize).into(),
        profile: s.profile.as_ref().map(Name::to_string).unwrap_or_default(),
    }
}

fn rebalance_wire(r: &RebalanceSpec) -> pb::RebalanceSpec {
    let (detector, gap, windows, slack, threshold) = match r.detector {
        Detector::Streak { gap, windows } => ("streak", Some(gap), Some(windows), None, None),
        Detector::Cusum { slack, threshold } => ("cusum", None, None, Some(slack), Some(threshold)),
    };
    pb::RebalanceSpec {
        frozen: !r.enabled,
        detector: detector.into(),
        gap,
        windows,
        cusum_slack: slack,
        cusum_threshold: threshold,
        cooldown_windows: Some(r.cooldown_windows),
        horizon_ms: Some(r.horizon.0),
        restart_cost_ms: Some(r.restart_cost.0),
        min_gain: Some(r.min_gain),
        shrink_timeout_ms: Some(r.shrink_timeout.0),
        escalate: r.fallback == ShrinkFallback::Escalate,
        refit_windows: Some(r.refit_windows),
    }
}
