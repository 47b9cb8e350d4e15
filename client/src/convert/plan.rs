//! Plans and profiles.
use evenkeel_proto::v1 as pb;

use crate::model::{
    CoRun, CoRunCaps, Conditions, Curve, CurvePoint, Decision, FittedProfile, Plan, PlanRequest,
    Profile, ProfileKey, ProfilePoint, StagePlan,
};

impl From<pb::StagePlan> for StagePlan {
    fn from(w: pb::StagePlan) -> Self {
        Self {
            stage: w.stage,
            cores: w.cores,
            sms: w.sms,
            cap_sms: w.cap_sms,
            memory_bytes: w.memory_bytes,
            batch: w.batch,
            predicted_units_per_s: w.predicted_units_per_s,
            workers: w.workers.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<pb::Plan> for Plan {
    fn from(w: pb::Plan) -> Self {
        Self {
            stages: w.stages.into_iter().map(Into::into).collect(),
            gpus: w.gpus,
            rollout_units_per_s: w.rollout_units_per_s,
            train_units_per_s: w.train_units_per_s,
            units_per_s: w.units_per_s,
            binding_stage: w.binding_stage,
            by: w.by,
            why: w.why,
        }
    }
}

/// What if.
pub(crate) fn solve_request(request: PlanRequest) -> pb::SolvePlanRequest {
    pb::SolvePlanRequest {
        spec: Some(request.spec.into()),
        profiles: request.profiles.into_iter().map(Into::into).collect(),
        cores: request.cores,
        sms: request.sms,
        memory_bytes: request.memory_bytes,
    }
}

impl From<pb::Decision> for Decision {
    fn from(w: pb::Decision) -> Self {
        Self {
            event_seq: w.event_seq,
            unix_ms: w.unix_ms,
            kind: w.kind,
            reason: w.reason,
        }
    }
}

impl From<ProfileKey> for pb::ProfileKey {
    fn from(k: ProfileKey) -> Self {
        Self {
            stage: k.stage,
            gpu: k.gpu,
        }
    }
}

impl From<pb::ProfileKey> for ProfileKey {
    fn from(w: pb::ProfileKey) -> Self {
        Self {
            stage: w.stage,
            gpu: w.gpu,
        }
    }
}

impl From<ProfilePoint> for pb::ProfilePoint {
    fn from(p: ProfilePoint) -> Self {
        Self {
            cores: p.cores,
            sms: p.sms,
            batch: p.batch,
            replicas: p.replicas,
            units_per_s: p.units_per_s,
            memory_bytes: p.memory_bytes,
            weight: p.weight,
            beside: p.beside.map(Into::into),
            conditions: p.conditions.map(Into::into),
        }
    }
}

impl From<CoRun> for pb::CoRun {
    fn from(c: CoRun) -> Self {
        let caps = match c.caps {
            CoRunCaps::Reserve => pb::CoRunCaps::Reserve,
            CoRunCaps::HalfMore => pb::CoRunCaps::HalfMore,
            CoRunCaps::None => pb::CoRunCaps::None,
        };
        Self {
            stage: c.stage,
            sms: c.sms,
            caps: caps.into(),
            alone_units_per_s: c.alone_units_per_s,
            overlap: c.overlap,
        }
    }
}

impl From<pb::CoRun> for CoRun {
    fn from(w: pb::CoRun) -> Self {
        Self {
            caps: match w.caps() {
                pb::CoRunCaps::Unspecified | pb::CoRunCaps::Reserve => CoRunCaps::Reserve,
                pb::CoRunCaps::HalfMore => CoRunCaps::HalfMore,
                pb::CoRunCaps::None => CoRunCaps::None,
            },
            stage: w.stage,
            sms: w.sms,
            alone_units_per_s: w.alone_units_per_s,
            overlap: w.overlap,
        }
    }
}

impl From<Conditions> for pb::Conditions {
    fn from(c: Conditions) -> Self {
        Self {
            cpu: c.cpu,
            driver: c.driver,
            evenkeel: c.evenkeel,
        }
    }
}

impl From<pb::Conditions> for Conditions {
    fn from(w: pb::Conditions) -> Self {
        Self {
            cpu: w.cpu,
            driver: w.driver,
            evenkeel: w.evenkeel,
        }
    }
}

impl From<pb::ProfilePoint> for ProfilePoint {
    fn from(w: pb::ProfilePoint) -> Self {
        Self {
            cores: w.cores,
            sms: w.sms,
            batch: w.batch,
            replicas: w.replicas.max(1),
            units_per_s: w.units_per_s,
            memory_bytes: w.memory_bytes,
            weight: if w.weight == 0.0 { 1.0 } else { w.weight },
            beside: w.beside.map(Into::into),
            conditions: w.conditions.map(Into::into),
        }
    }
}

impl From<Profile> for pb::Profile {
    fn from(p: Profile) -> Self {
        Self {
            key: Some(p.key.into()),
            tenant: p.tenant,
            points: p.points.into_iter().map(Into::into).collect(),
            point_count: p.point_count,
        }
    }
}

impl From<pb::Profile> for Profile {
    fn from(w: pb::Profile) -> Self {
        let points: Vec<ProfilePoint> = w.points.into_iter().map(Into::into).collect();
        let counted = u32::try_from(points.len()).unwrap_or(u32::MAX);
        Self {
            key: w.key.unwrap_or_default().into(),
            tenant: w.tenant,
            points,
            point_count: w.point_count.max(counted),
        }
    }
}

impl From<pb::Curve> for Curve {
    fn from(w: pb::Curve) -> Self {
        Self {
            cores: w.cores,
            batch: w.batch,
            points: w
                .points
                .into_iter()
                .map(|p| CurvePoint {
                    quota: p.quota,
                    units_per_s: p.units_per_s,
                    relative_error: p.relative_error,
                })
                .collect(),
            knee: w.knee,
            replicas: w.replicas.max(1),
            memory_bytes: w.memory_bytes,
        }
    }
}

impl From<pb::GetProfileResponse> for FittedProfile {
    fn from(w: pb::GetProfileResponse) -> Self {
        Self {
            profile: w.profile.unwrap_or_default().into(),
            curves: w.curves.into_iter().map(Into::into).collect(),
        }
    }
}
