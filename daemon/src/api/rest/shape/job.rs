//! Jobs as they are, and their stages.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use utoipa::ToSchema;

use super::JobPhase;
use super::lease::Lease;
use super::plan::{Plan, StagePlan};
use super::spec::{JobSpec, StageSpec};

/// A job as its owner sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Job {
    /// Its number; never reused.
    id: u64,
    /// Whose it is.
    tenant: String,
    /// As declared.
    #[schema(required = true)]
    spec: Option<JobSpec>,
    /// Where it is in its life.
    #[schema(required = true)]
    phase: Option<JobPhase>,
    /// The split in force.
    #[schema(required = true)]
    plan: Option<Plan>,
    /// Measured throughputs; null while it is not watched.
    #[schema(required = true)]
    balance: Option<Balance>,
    /// Its live leases.
    leases: Vec<Lease>,
    /// How many times its shares have moved.
    moves: u32,
    /// Whether a move is under way: shrinks or grows are unconfirmed.
    moving: bool,
}

impl From<pb::Job> for Job {
    fn from(j: pb::Job) -> Self {
        Self {
            id: j.id,
            phase: JobPhase::of(j.phase()),
            tenant: j.tenant,
            spec: j.spec.map(JobSpec::from),
            plan: j.plan.map(Plan::from),
            balance: j.balance.map(Balance::from),
            leases: j.leases.into_iter().map(Lease::from).collect(),
            moves: j.moves,
            moving: j.moving,
        }
    }
}

/// Measured throughputs of a job; nothing is measured before the first window closes.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Balance {
    /// Windows (training steps) closed so far.
    windows: u64,
    /// Rollout throughput, work units per busy second, median of 5 windows.
    rollout_units_per_s: f64,
    /// Training throughput, likewise.
    train_units_per_s: f64,
    /// 1 − min/max of the two.
    gap: f64,
    /// Consecutive windows above the threshold with the same side slower.
    streak: u32,
    /// Throughput of each stage, in the job's order.
    stage_units_per_s: Vec<f64>,
    /// What the balance did last, for a person.
    last: String,
    /// `warming up`, `refitting`, `watching`, `cooling down`, `moving` or `frozen`.
    state: String,
    /// Which stages keep anything from being measured, and for how long; empty while all of them report.
    waits_for: String,
}

impl From<pb::Balance> for Balance {
    fn from(b: pb::Balance) -> Self {
        Self {
            windows: b.windows,
            rollout_units_per_s: b.rollout_units_per_s,
            train_units_per_s: b.train_units_per_s,
            gap: b.gap,
            streak: b.streak,
            stage_units_per_s: b.stage_units_per_s,
            last: b.last,
            state: b.state,
            waits_for: b.waits_for,
        }
    }
}

/// Jobs, ascending by number.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct JobPage {
    /// The jobs.
    pub(in crate::api::rest) jobs: Vec<Job>,
    /// The `after` of the next page; 0: there is none.
    pub(in crate::api::rest) next_after_id: u64,
}

/// The stages of one job, in its order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Stages {
    /// The job's name.
    job: String,
    /// The work unit of all throughputs.
    unit: String,
    /// The stages.
    stages: Vec<Stage>,
}

/// One stage: what was declared, planned and measured, and who works for it.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Stage {
    /// Its name.
    name: String,
    /// As declared.
    spec: StageSpec,
    /// Its part of the split in force; null: the job has none yet.
    #[schema(required = true)]
    plan: Option<StagePlan>,
    /// Measured throughput, work units per busy second; null: nothing was measured.
    #[schema(required = true)]
    units_per_s: Option<f64>,
    /// The live leases of its workers.
    leases: Vec<Lease>,
}

impl From<pb::Job> for Stages {
    fn from(job: pb::Job) -> Self {
        let spec = job.spec.unwrap_or_default();
        let mut planned = job.plan.map(|p| p.stages).unwrap_or_default().into_iter();
        let balance = job.balance.filter(|b| b.windows > 0).unwrap_or_default();
        let mut measured = balance.stage_units_per_s.into_iter();
        let mut leases = job.leases;
        let mut of_stage = |name: &str| {
            let is_of = |l: &mut pb::Lease| l.member.as_ref().is_some_and(|m| m.stage == name);
            leases.extract_if(.., is_of).map(Lease::from).collect()
        };
        let mut stage = |s: pb::StageSpec| Stage {
            name: s.name.clone(),
            plan: planned.next().map(StagePlan::from),
            units_per_s: measured.next(),
            leases: of_stage(&s.name),
            spec: s.into(),
        };
        Self {
            stages: spec.stages.into_iter().map(&mut stage).collect(),
            job: spec.name,
            unit: spec.unit,
        }
    }
}
