//! Profiles: what was measured, and the curves that were fitted to it.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use utoipa::ToSchema;

/// What a profile belongs to.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct ProfileKey {
    /// The stage's fingerprint, `job/stage` by default.
    stage: String,
    /// GPU model measured on; `none` for stages without a GPU.
    gpu: String,
}

impl From<pb::ProfileKey> for ProfileKey {
    fn from(k: pb::ProfileKey) -> Self {
        Self {
            stage: k.stage,
            gpu: k.gpu,
        }
    }
}

/// A profile without its points.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct ProfileSummary {
    /// What it belongs to.
    key: ProfileKey,
    /// Whose it is.
    tenant: String,
    /// Number of points.
    point_count: u32,
}

impl From<pb::Profile> for ProfileSummary {
    fn from(p: pb::Profile) -> Self {
        Self {
            key: p.key.unwrap_or_default().into(),
            tenant: p.tenant,
            point_count: p.point_count,
        }
    }
}

/// Profiles, ascending by tenant, stage and GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct ProfilePage {
    /// The profiles, without their points.
    profiles: Vec<ProfileSummary>,
    /// The `after` of the next page; empty: there is none.
    pub(in crate::api::rest) next_after: String,
}

impl ProfilePage {
    /// A page, and the cursor of the next one.
    pub(in crate::api::rest) fn new(profiles: Vec<pb::Profile>, next_after: String) -> Self {
        Self {
            profiles: profiles.into_iter().map(ProfileSummary::from).collect(),
            next_after,
        }
    }
}

/// All measurements of a stage.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Profile {
    /// What it belongs to.
    key: ProfileKey,
    /// Whose it is.
    tenant: String,
    /// In the order measured.
    points: Vec<ProfilePoint>,
    /// Number of points.
    point_count: u32,
}

/// One measurement.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct ProfilePoint {
    /// Cores that the stage had.
    cores: u32,
    /// SMs that it had on each GPU (effective, not asked).
    sms: u32,
    /// Batch size; 1 where the stage has none.
    batch: u32,
    /// Workers that ran.
    replicas: u32,
    /// Work units per second; 0: it did not fit or did not run.
    units_per_s: f64,
    /// Peak GPU memory in bytes on each GPU.
    memory_bytes: u64,
    /// How much it counts in a fit, such as its number of repeats.
    weight: f64,
    /// What ran beside it; left out: it ran alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<CoRun>,
    /// What it was measured with; left out: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<Conditions>,
}

/// What ran beside a stage when a point was measured. The point is then no part of the curve.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct CoRun {
    /// Fingerprint of the other stage.
    stage: String,
    /// SMs that the other had on each GPU.
    sms: u32,
    /// How far both could go beyond their shares: not at all, half as many SMs again, the whole GPU.
    #[schema(example = "reserve")]
    caps: &'static str,
    /// The stage's work units per second with the same share and nobody beside it.
    alone_units_per_s: f64,
    /// The share of the stage's busy time in which the other was busy, too.
    overlap: f64,
}

impl From<pb::CoRun> for CoRun {
    fn from(c: pb::CoRun) -> Self {
        Self {
            caps: match c.caps() {
                pb::CoRunCaps::Unspecified | pb::CoRunCaps::Reserve => "reserve",
                pb::CoRunCaps::HalfMore => "half_more",
                pb::CoRunCaps::None => "none",
            },
            stage: c.stage,
            sms: c.sms,
            alone_units_per_s: c.alone_units_per_s,
            overlap: c.overlap,
        }
    }
}

/// What a point was measured with; an empty text: not known.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Conditions {
    /// CPU model.
    cpu: String,
    /// Version of the GPU's driver.
    driver: String,
    /// Version of Evenkeel.
    evenkeel: String,
}

impl From<pb::ProfilePoint> for ProfilePoint {
    fn from(p: pb::ProfilePoint) -> Self {
        Self {
            cores: p.cores,
            sms: p.sms,
            batch: p.batch,
            replicas: p.replicas,
            units_per_s: p.units_per_s,
            memory_bytes: p.memory_bytes,
            weight: p.weight,
            beside: p.beside.map(CoRun::from),
            conditions: p.conditions.map(|c| Conditions {
                cpu: c.cpu,
                driver: c.driver,
                evenkeel: c.evenkeel,
            }),
        }
    }
}

impl From<pb::Profile> for Profile {
    fn from(p: pb::Profile) -> Self {
        Self {
            key: p.key.unwrap_or_default().into(),
            tenant: p.tenant,
            points: p.points.into_iter().map(ProfilePoint::from).collect(),
            point_count: p.point_count,
        }
    }
}

/// A monotone fit at one batch size and core count.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Curve {
    /// Cores; 0 for a curve along cores.
    cores: u32,
    /// Batch size.
    batch: u32,
    /// Ascending by quota.
    points: Vec<CurvePoint>,
    /// The smallest quota that reaches 95 % of the best.
    knee: u32,
    /// Workers that ran.
    replicas: u32,
    /// GPU memory in bytes on each GPU: the highest measured peak and 5 %; 0: not measured.
    memory_bytes: u64,
}

/// The fitted throughput at one quota.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct CurvePoint {
    /// SMs (or cores, for stages without a GPU).
    quota: u32,
    /// Fitted work units per second.
    units_per_s: f64,
    /// Its standard error as a share of it; 0: nothing was repeated, so that it is not known.
    relative_error: f64,
}

impl From<pb::Curve> for Curve {
    fn from(c: pb::Curve) -> Self {
        let point = |p: pb::CurvePoint| CurvePoint {
            quota: p.quota,
            units_per_s: p.units_per_s,
            relative_error: p.relative_error,
        };
        Self {
            cores: c.cores,
            batch: c.batch,
            points: c.points.into_iter().map(point).collect(),
            knee: c.knee,
            replicas: c.replicas,
            memory_bytes: c.memory_bytes,
        }
    }
}

/// One profile, as measured and as fitted.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct FittedProfile {
    /// As measured.
    #[schema(required = true)]
    profile: Option<Profile>,
    /// As fitted.
    curves: Vec<Curve>,
}

impl From<pb::GetProfileResponse> for FittedProfile {
    fn from(p: pb::GetProfileResponse) -> Self {
        Self {
            profile: p.profile.map(Profile::from),
            curves: p.curves.into_iter().map(Curve::from).collect(),
        }
    }
}
