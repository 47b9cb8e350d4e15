//! Jobs as they were declared.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use utoipa::ToSchema;

use super::{ResizeMode, StageRole};

/// A job as declared.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct JobSpec {
    /// Unique among the tenant's live jobs.
    pub(super) name: String,
    /// The work unit of all throughputs, such as `env_step` or `token`.
    pub(super) unit: String,
    /// Higher goes first in the queue.
    priority: i32,
    /// What the job counts for when jobs share the node.
    weight: f64,
    /// GPUs it runs on; empty: any `gpu_count`.
    gpus: Vec<u32>,
    /// How many GPUs, where `gpus` is empty; 0 means 1 if a stage needs one.
    gpu_count: u32,
    /// Groups of environments that overlap simulation with generation: 1 or 2.
    groups: u32,
    /// `waterfill` or `ebrl`.
    policy: String,
    /// `reserve` or `cap`.
    sm_mode: String,
    /// When shares move.
    #[schema(required = true)]
    rebalance: Option<RebalanceSpec>,
    /// The stages, in data-flow order.
    pub(super) stages: Vec<StageSpec>,
}

impl From<pb::JobSpec> for JobSpec {
    fn from(s: pb::JobSpec) -> Self {
        Self {
            name: s.name,
            unit: s.unit,
            priority: s.priority,
            weight: s.weight.unwrap_or(1.0),
            gpus: s.gpus,
            gpu_count: s.gpu_count,
            groups: s.groups,
            policy: s.policy,
            sm_mode: s.sm_mode,
            rebalance: s.rebalance.map(RebalanceSpec::from),
            stages: s.stages.into_iter().map(StageSpec::from).collect(),
        }
    }
}

/// One stage as declared.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct StageSpec {
    /// Unique in the job.
    pub(super) name: String,
    /// What it does.
    #[schema(required = true)]
    role: Option<StageRole>,
    /// Worker processes (trees); 0 means 1.
    workers: u32,
    /// Processes of one worker that share its GPU memory; 0 means 1.
    processes: u32,
    /// Least cores for the whole stage.
    min_cores: u32,
    /// Most cores for the whole stage; 0 with `no_cores` unset: no limit of its own.
    max_cores: u32,
    /// The stage gets no core: its hosts run in the shared set.
    no_cores: bool,
    /// Least SMs on each GPU of the job.
    min_sms: u32,
    /// Most SMs on each GPU of the job; 0 with `no_gpu` unset: no limit of its own.
    max_sms: u32,
    /// The stage does no GPU work.
    no_gpu: bool,
    /// GPU memory in bytes on each GPU for the whole stage, where its profile does not say.
    memory_bytes: u64,
    /// Batch sizes it can run at.
    batches: Vec<u32>,
    /// Its workers advance together, so that the slowest counts.
    synchronous: bool,
    /// How its GPU share can change.
    #[schema(required = true)]
    resize: Option<ResizeMode>,
    /// Fingerprint under which its profile is kept; empty: `job/stage`.
    profile: String,
}

impl From<pb::StageSpec> for StageSpec {
    fn from(s: pb::StageSpec) -> Self {
        Self {
            role: StageRole::of(s.role()),
            resize: ResizeMode::of(s.resize()),
            name: s.name,
            workers: s.workers,
            processes: s.processes,
            min_cores: s.min_cores,
            max_cores: s.max_cores,
            no_cores: s.no_cores,
            min_sms: s.min_sms,
            max_sms: s.max_sms,
            no_gpu: s.no_gpu,
            memory_bytes: s.memory_bytes,
            batches: s.batches,
            synchronous: s.synchronous,
            profile: s.profile,
        }
    }
}

/// When and how a job's shares may move.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct RebalanceSpec {
    /// Never move.
    frozen: bool,
    /// `streak` or `cusum`.
    detector: String,
    /// streak: threshold of the gap, 0 to 1.
    gap: Option<f64>,
    /// streak: consecutive windows.
    windows: Option<u32>,
    /// cusum: slack per window in log units.
    cusum_slack: Option<f64>,
    /// cusum: sum in log units at which it fires.
    cusum_threshold: Option<f64>,
    /// Windows after a move in which nothing is judged.
    cooldown_windows: Option<u32>,
    /// A move must pay for itself within so many milliseconds.
    horizon_ms: Option<u64>,
    /// Expected pause of a stage that has to restart, in milliseconds, until one was measured.
    restart_cost_ms: Option<u64>,
    /// Least relative gain that is worth a move.
    min_gain: Option<f64>,
    /// How long a shrink may stay unconfirmed, in milliseconds.
    shrink_timeout_ms: Option<u64>,
    /// Escalate an unconfirmed shrink (restart, then revoke) instead of waiting.
    escalate: bool,
    /// Windows after start and after each move after which curves are refitted once; 0: never.
    refit_windows: Option<u32>,
}

impl From<pb::RebalanceSpec> for RebalanceSpec {
    fn from(r: pb::RebalanceSpec) -> Self {
        Self {
            frozen: r.frozen,
            detector: r.detector,
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
