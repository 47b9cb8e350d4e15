//! Plans, and why they are so.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use utoipa::ToSchema;

use super::job::Job;
use super::vector::ResourceVector;

/// A job's split and why it is so.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Plan {
    /// One for each stage, in the job's order.
    pub(super) stages: Vec<StagePlan>,
    /// The GPUs it is on.
    gpus: Vec<u32>,
    /// Predicted rollout throughput, in work units per second.
    rollout_units_per_s: f64,
    /// Predicted training throughput, in work units per second.
    train_units_per_s: f64,
    /// Predicted throughput of the job, in work units per second: the lower of the two.
    units_per_s: f64,
    /// Name of the stage that binds.
    binding_stage: String,
    /// Who computed it: `waterfill`, `ebrl`, `even` (a first guess), `declared`.
    by: String,
    /// Sentences for a person: what binds, what one more core, SM or GiB would bring, what is a guess.
    why: Vec<String>,
}

/// One stage's part of a plan.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct StagePlan {
    /// The stage's name.
    stage: String,
    /// Cores of the whole stage.
    cores: u32,
    /// SMs on each GPU of the job.
    sms: u32,
    /// Cap on each GPU of the job.
    cap_sms: u32,
    /// Bytes on each GPU of the job.
    memory_bytes: u64,
    /// Batch size; 1 where the stage has none.
    batch: u32,
    /// Predicted throughput in the job's work units per second.
    predicted_units_per_s: f64,
    /// One vector for each worker, by index.
    workers: Vec<ResourceVector>,
}

impl From<pb::Plan> for Plan {
    fn from(p: pb::Plan) -> Self {
        Self {
            stages: p.stages.into_iter().map(StagePlan::from).collect(),
            gpus: p.gpus,
            rollout_units_per_s: p.rollout_units_per_s,
            train_units_per_s: p.train_units_per_s,
            units_per_s: p.units_per_s,
            binding_stage: p.binding_stage,
            by: p.by,
            why: p.why,
        }
    }
}

impl From<pb::StagePlan> for StagePlan {
    fn from(s: pb::StagePlan) -> Self {
        Self {
            stage: s.stage,
            cores: s.cores,
            sms: s.sms,
            cap_sms: s.cap_sms,
            memory_bytes: s.memory_bytes,
            batch: s.batch,
            predicted_units_per_s: s.predicted_units_per_s,
            workers: s.workers.into_iter().map(ResourceVector::from).collect(),
        }
    }
}

/// The split of one job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct PlanOfJob {
    /// The job's name.
    job: String,
    /// The work unit of all throughputs.
    unit: String,
    /// The split in force; null: the job has none yet.
    #[schema(required = true)]
    plan: Option<Plan>,
}

impl From<pb::Job> for PlanOfJob {
    fn from(job: pb::Job) -> Self {
        let spec = job.spec.unwrap_or_default();
        Self {
            job: spec.name,
            unit: spec.unit,
            plan: job.plan.map(Plan::from),
        }
    }
}

/// Why a job's shares are as they are, and what moved them last.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Explanation {
    /// As it is.
    #[schema(required = true)]
    job: Option<Job>,
    /// Sentences for a person.
    sentences: Vec<String>,
    /// Newest first, at most 20.
    decisions: Vec<Decision>,
}

/// One decision about a job's shares.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Decision {
    /// The number of its event.
    pub(super) event_seq: u64,
    /// Wall-clock time of the record, milliseconds since 1970; for people only.
    pub(super) unix_ms: u64,
    /// `admitted`, `moved`, `stayed` or `refitted`.
    pub(super) kind: String,
    /// Why, for a person.
    pub(super) reason: String,
}

impl From<pb::Decision> for Decision {
    fn from(d: pb::Decision) -> Self {
        Self {
            event_seq: d.event_seq,
            unix_ms: d.unix_ms,
            kind: d.kind,
            reason: d.reason,
        }
    }
}

impl From<pb::ExplainJobResponse> for Explanation {
    fn from(e: pb::ExplainJobResponse) -> Self {
        Self {
            job: e.job.map(Job::from),
            sentences: e.sentences,
            decisions: e.decisions.into_iter().map(Decision::from).collect(),
        }
    }
}
