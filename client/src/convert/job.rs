//! Jobs, between the wire and the types that users see.
use evenkeel_proto::v1 as pb;

use crate::model::{
    Balance, Detector, Explanation, Job, JobPhase, JobSpec, Policy, RebalanceSpec, Role, SmMode,
    StageSpec,
};

impl From<Role> for pb::StageRole {
    fn from(r: Role) -> Self {
        match r {
            Role::Simulation => Self::Simulation,
            Role::Generation => Self::Generation,
            Role::Training => Self::Training,
            Role::Inference => Self::Inference,
            Role::Other => Self::Other,
        }
    }
}

impl From<pb::StageRole> for Role {
    fn from(w: pb::StageRole) -> Self {
        match w {
            pb::StageRole::Simulation => Self::Simulation,
            pb::StageRole::Generation => Self::Generation,
            pb::StageRole::Training => Self::Training,
            pb::StageRole::Inference => Self::Inference,
            pb::StageRole::Unspecified | pb::StageRole::Other => Self::Other,
        }
    }
}

impl From<RebalanceSpec> for pb::RebalanceSpec {
    fn from(r: RebalanceSpec) -> Self {
        Self {
            frozen: r.frozen,
            detector: match r.detector {
                Detector::Streak => "streak",
                Detector::Cusum => "cusum",
            }
            .to_owned(),
            gap: r.gap,
            windows: r.windows,
            cusum_slack: r.cusum_slack,
            cusum_threshold: r.cusum_threshold,
            cooldown_windows: r.cooldown_windows,
            horizon_ms: r.horizon_ms,
            restart_cost_ms: r.restart_cost_ms,
            min_gain: r.min_gain,
            shrink_timeout_ms: r.shrink_timeout_ms,
            escalate: r.escalate,
            refit_windows: r.refit_windows,
        }
    }
}

impl From<pb::RebalanceSpec> for RebalanceSpec {
    fn from(w: pb::RebalanceSpec) -> Self {
        Self {
            frozen: w.frozen,
            detector: match w.detector.as_str() {
                "cusum" => Detector::Cusum,
                _ => Detector::Streak,
            },
            gap: w.gap,
            windows: w.windows,
            cusum_slack: w.cusum_slack,
            cusum_threshold: w.cusum_threshold,
            cooldown_windows: w.cooldown_windows,
            horizon_ms: w.horizon_ms,
            restart_cost_ms: w.restart_cost_ms,
            min_gain: w.min_gain,
            shrink_timeout_ms: w.shrink_timeout_ms,
            escalate: w.escalate,
            refit_windows: w.refit_windows,
        }
    }
}

impl From<StageSpec> for pb::StageSpec {
    fn from(s: StageSpec) -> Self {
        Self {
            role: pb::StageRole::from(s.role).into(),
            resize: pb::ResizeMode::from(s.resize).into(),
            name: s.name,
            workers: s.workers,
            processes: s.processes,
            min_cores: s.min_cores,
            max_cores: s.max_cores.unwrap_or(0),
            // A most of 0 is no limit on the wire, of cores and of SMs; these are how a stage says that it wants none.
            no_cores: s.no_cores || s.max_cores == Some(0),
            min_sms: s.min_sms,
            max_sms: s.max_sms.unwrap_or(0),
            no_gpu: s.no_gpu || s.max_sms == Some(0),
            memory_bytes: s.memory_bytes,
            batches: s.batches,
            synchronous: s.synchronous,
            profile: s.profile.unwrap_or_default(),
        }
    }
}

impl From<pb::StageSpec> for StageSpec {
    fn from(w: pb::StageSpec) -> Self {
        Self {
            role: w.role().into(),
            resize: w.resize().into(),
            name: w.name,
            workers: w.workers.max(1),
            processes: w.processes.max(1),
            min_cores: w.min_cores,
            max_cores: Some(w.max_cores).filter(|n| *n > 0),
            no_cores: w.no_cores,
            min_sms: w.min_sms,
            max_sms: Some(w.max_sms).filter(|n| *n > 0),
            no_gpu: w.no_gpu,
            memory_bytes: w.memory_bytes,
            batches: w.batches,
            synchronous: w.synchronous,
            profile: Some(w.profile).filter(|p| !p.is_empty()),
        }
    }
}

impl From<JobSpec> for pb::JobSpec {
    fn from(s: JobSpec) -> Self {
        Self {
            name: s.name,
            unit: s.unit,
            priority: s.priority,
            weight: Some(s.weight),
            gpus: s.gpus,
            gpu_count: s.gpu_count,
            groups: s.groups,
            policy: s.policy.as_str().to_owned(),
            sm_mode: match s.sm_mode {
                SmMode::Reserve => "reserve",
                SmMode::Cap => "cap",
            }
            .to_owned(),
            rebalance: Some(s.rebalance.into()),
            stages: s.stages.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<pb::JobSpec> for JobSpec {
    fn from(w: pb::JobSpec) -> Self {
        Self {
            name: w.name,
            unit: w.unit,
            priority: w.priority,
            weight: w.weight.unwrap_or(1.0),
            gpus: w.gpus,
            gpu_count: w.gpu_count,
            groups: w.groups,
            policy: match w.policy.as_str() {
                "ebrl" => Policy::Ebrl,
                _ => Policy::Waterfill,
            },
            sm_mode: match w.sm_mode.as_str() {
                "cap" => SmMode::Cap,
                _ => SmMode::Reserve,
            },
            rebalance: w.rebalance.unwrap_or_default().into(),
            stages: w.stages.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<pb::JobPhase> for JobPhase {
    fn from(w: pb::JobPhase) -> Self {
        match w {
            pb::JobPhase::Unspecified => Self::Unknown,
            pb::JobPhase::Queued => Self::Queued,
            pb::JobPhase::Admitted => Self::Admitted,
            pb::JobPhase::Ended => Self::Ended,
        }
    }
}

impl From<pb::Balance> for Balance {
    fn from(w: pb::Balance) -> Self {
        Self {
            windows: w.windows,
            rollout_units_per_s: w.rollout_units_per_s,
            train_units_per_s: w.train_units_per_s,
            gap: w.gap,
            streak: w.streak,
            stage_units_per_s: w.stage_units_per_s,
            last: w.last,
            state: w.state,
        }
    }
}

impl From<pb::Job> for Job {
    fn from(w: pb::Job) -> Self {
        Self {
            phase: w.phase().into(),
            id: w.id,
            tenant: w.tenant,
            spec: w.spec.unwrap_or_default().into(),
            plan: w.plan.map(Into::into),
            balance: w.balance.map(Into::into),
            leases: w.leases.into_iter().map(Into::into).collect(),
            moves: w.moves,
            moving: w.moving,
        }
    }
}

impl From<pb::ExplainJobResponse> for Explanation {
    fn from(w: pb::ExplainJobResponse) -> Self {
        Self {
            job: w.job.unwrap_or_default().into(),
            sentences: w.sentences,
            decisions: w.decisions.into_iter().map(Into::into).collect(),
        }
    }
}
