//! Plans: what a job gets, what it would get, and why.
use serde::{Deserialize, Serialize};

use super::amount::Vector;
use super::job::{Job, JobSpec};
use super::profile::Profile;

/// One stage's part of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StagePlan {
    /// The stage's name.
    pub stage: String,
    /// Cores of the whole stage.
    pub cores: u32,
    /// SMs on each GPU of the job.
    pub sms: u32,
    /// Cap on each GPU of the job.
    pub cap_sms: u32,
    /// Bytes on each GPU of the job.
    pub memory_bytes: u64,
    /// Batch size; 1 where the stage has none.
    pub batch: u32,
    /// Predicted throughput in the job's work units per second.
    pub predicted_units_per_s: f64,
    /// One vector for each worker, by index.
    pub workers: Vec<Vector>,
}

/// A job's split and why it is so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// One for each stage, in the job's order.
    pub stages: Vec<StagePlan>,
    /// The GPUs it is on.
    pub gpus: Vec<u32>,
    /// Predicted rollout throughput, in work units per second.
    pub rollout_units_per_s: f64,
    /// Predicted training throughput, in work units per second.
    pub train_units_per_s: f64,
    /// Predicted throughput of the job, in work units per second: the lower of the two.
    pub units_per_s: f64,
    /// Name of the stage that binds.
    pub binding_stage: String,
    /// Who computed it: `waterfill`, `ebrl`, `even` (a first guess), `declared`.
    pub by: String,
    /// Sentences for a person.
    pub why: Vec<String>,
}

/// What if.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// The job; it need not be submitted.
    pub spec: JobSpec,
    /// Profiles to use instead of the stored ones.
    pub profiles: Vec<Profile>,
    /// Cores to plan with; none: those that are free or the job's own.
    pub cores: Option<u32>,
    /// SMs of each GPU to plan with; none: likewise.
    pub sms: Option<u32>,
    /// Memory of each GPU in bytes to plan with; none: likewise.
    pub memory_bytes: Option<u64>,
}

/// One decision about a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The event's number.
    pub event_seq: u64,
    /// Wall-clock time of the record, milliseconds since 1970; for people only.
    pub unix_ms: u64,
    /// `admitted`, `moved`, `stayed`.
    pub kind: String,
    /// Why, for a person.
    pub reason: String,
}

/// Why a job's shares are as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// As it is.
    pub job: Job,
    /// Sentences for a person.
    pub sentences: Vec<String>,
    /// Newest first, at most 20.
    pub decisions: Vec<Decision>,
}
