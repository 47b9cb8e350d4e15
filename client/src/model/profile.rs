//! Profiles: measured throughput of stages at different quotas and batch sizes.
use serde::{Deserialize, Serialize};

/// What a profile belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileKey {
    /// The stage's fingerprint, `job/stage` by default.
    pub stage: String,
    /// GPU model measured on; `none` for stages without a GPU.
    pub gpu: String,
}

/// How far stages could go beyond their shares of SMs in a co-run trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoRunCaps {
    /// Not at all: cap = share.
    #[default]
    Reserve,
    /// Up to half as many again.
    HalfMore,
    /// Up to the whole GPU.
    None,
}

/// What was beside a stage when a point was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoRun {
    /// Fingerprint of the other stage.
    pub stage: String,
    /// SMs that the other had on each GPU.
    pub sms: u32,
    /// How far both could go beyond their shares.
    #[serde(default)]
    pub caps: CoRunCaps,
    /// The stage's work units per second with the same share and nobody beside it.
    pub alone_units_per_s: f64,
    /// The share of the stage's busy time in which the other was busy, too: above 0, at most 1.
    pub overlap: f64,
}

/// What a measurement was made with; an empty text: not known. Each at most 128 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Conditions {
    /// CPU model.
    pub cpu: String,
    /// Version of the GPU's driver.
    pub driver: String,
    /// Version of Evenkeel.
    pub evenkeel: String,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// What ran beside it. Such a point tells of interference, and is not part of the curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<CoRun>,
    /// What it was measured with, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
}

impl Default for ProfilePoint {
    fn default() -> Self {
        Self {
            cores: 0,
            sms: 0,
            batch: 1,
            replicas: one(),
            units_per_s: 0.0,
            memory_bytes: 0,
            weight: one_weight(),
            beside: None,
            conditions: None,
        }
    }
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
    /// Its standard error as a share of it; 0: nothing was repeated, so that it is not known.
    #[serde(default)]
    pub relative_error: f64,
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
    /// Workers that ran.
    #[serde(default = "one")]
    pub replicas: u32,
    /// GPU memory in bytes on each GPU: the highest measured peak and 5 %; 0: not measured.
    #[serde(default)]
    pub memory_bytes: u64,
}

/// A profile as measured, and as fitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FittedProfile {
    /// As measured.
    pub profile: Profile,
    /// As fitted.
    pub curves: Vec<Curve>,
}
