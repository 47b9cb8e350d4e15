//! Profiles: measured throughput of stages at different quotas and batch sizes.
use serde::{Deserialize, Serialize};

/// What a profile belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileKey {
    /// The stage's fingerprint, `job/stage` by default.
    pub stage: String,
    /// GPU model measured on; `none` for stages without a GPU.
    pub gpu: String,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfilePoint {
    /// Cores that the stage had.
    pub cores: u32,
    /// SMs that it had on each GPU (effective, not asked).
    pub sms: u32,
    /// Batch size; 1 where the stage has none.
    pub batch: u32,
    /// Workers that ran.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Work units per second; 0: it did not fit or did not run.
    pub units_per_s: f64,
    /// Peak GPU memory in bytes on each GPU.
    #[serde(default)]
    pub memory_bytes: u64,
    /// How much it counts in a fit, such as its number of repeats.
    #[serde(default = "one_weight")]
    pub weight: f64,
}

const fn one() -> u32 {
    1
}
const fn one_weight() -> f64 {
    1.0
}

/// All measurements of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it belongs to.
    pub key: ProfileKey,
    /// Whose it is; ignored when it is imported.
    #[serde(default)]
    pub tenant: String,
    /// In the order measured; at most 10,000.
    pub points: Vec<ProfilePoint>,
    /// How many points there are (`points` is left out in listings).
    #[serde(default)]
    pub point_count: u32,
}

/// The fitted throughput at one quota.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// SMs (or cores, for stages without a GPU).
    pub quota: u32,
    /// Fitted work units per second.
    pub units_per_s: f64,
}

/// A monotone fit at one batch size and core count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Cores.
    pub cores: u32,
    /// Batch size.
    pub batch: u32,
    /// Ascending by quota.
    pub points: Vec<CurvePoint>,
    /// The smallest quota that reaches 95 % of the best.
    pub knee: u32,
}

/// A profile as measured, and as fitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FittedProfile {
    /// As measured.
    pub profile: Profile,
    /// As fitted.
    pub curves: Vec<Curve>,
}
