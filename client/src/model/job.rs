//! Jobs as declared and as they run.
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::lease::{Lease, ResizeMode};
use super::plan::Plan;

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Steps environments.
    Simulation,
    /// Turns observations into actions, or prompts into tokens.
    Generation,
    /// Updates the policy.
    Training,
    /// Log-probabilities and the like.
    Inference,
    /// Anything else; does not take part in the balance.
    Other,
}

/// Which allocator plans a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Bisection on the target throughput.
    #[default]
    Waterfill,
    /// The simulator at its knee, then a binary search between generation and training.
    Ebrl,
}

impl Policy {
    /// The wire's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waterfill => "waterfill",
            Self::Ebrl => "ebrl",
        }
    }
}

/// Whether SM caps equal the guarantees or may overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SmMode {
    /// Cap = guarantee.
    #[default]
    Reserve,
    /// Caps inside the job may overlap.
    Cap,
}

/// Which detector watches the gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detector {
    /// Gap above a threshold for so many consecutive windows, the same side slower throughout.
    #[default]
    Streak,
    /// Cumulative sum on the deviation from what the plan predicted.
    Cusum,
}

/// When and how a job's shares may move. What is none takes the daemon's documented default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RebalanceSpec {
    /// Never move.
    pub frozen: bool,
    /// Which detector.
    pub detector: Detector,
    /// streak: threshold of the gap, 0 to 1.
    pub gap: Option<f64>,
    /// streak: consecutive windows.
    pub windows: Option<u32>,
    /// cusum: slack per window in log units.
    pub cusum_slack: Option<f64>,
    /// cusum: sum in log units at which it fires.
    pub cusum_threshold: Option<f64>,
    /// Windows after a move in which nothing is judged.
    pub cooldown_windows: Option<u32>,
    /// A move must pay for itself within so many milliseconds.
    pub horizon_ms: Option<u64>,
    /// Expected pause of a stage that has to restart, in milliseconds, until one was measured.
    pub restart_cost_ms: Option<u64>,
    /// Least relative gain that is worth a move.
    pub min_gain: Option<f64>,
    /// How long a shrink may stay unconfirmed, in milliseconds.
    pub shrink_timeout_ms: Option<u64>,
    /// Escalate an unconfirmed shrink (restart, then revoke) instead of waiting.
    pub escalate: bool,
    /// Windows after start and after each move after which curves are refitted once; 0: never.
    pub refit_windows: Option<u32>,
}

/// One stage as declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageSpec {
    /// Unique in the job.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// Worker processes (trees).
    pub workers: u32,
    /// Processes of one worker that share its GPU memory.
    pub processes: u32,
    /// Least cores for the whole stage.
    pub min_cores: u32,
    /// Most cores for the whole stage; none: no limit of its own; 0: it gets no core, as `no_cores` says.
    pub max_cores: Option<u32>,
    /// The stage gets no core: its hosts run in the shared set.
    pub no_cores: bool,
    /// Least SMs on each GPU of the job.
    pub min_sms: u32,
    /// Most SMs on each GPU of the job; none: no limit of its own; 0: it does no GPU work, as `no_gpu` says.
    pub max_sms: Option<u32>,
    /// The stage does no GPU work.
    pub no_gpu: bool,
    /// GPU memory in bytes on each GPU for the whole stage, where its profile does not say.
    pub memory_bytes: u64,
    /// Batch sizes it can run at.
    pub batches: Vec<u32>,
    /// Its workers advance together, so that the slowest counts.
    pub synchronous: bool,
    /// How its GPU share can change.
    pub resize: ResizeMode,
    /// Fingerprint under which its profile is kept; none: `job/stage`.
    pub profile: Option<String>,
}

impl StageSpec {
    /// One worker of one process, no limits of its own.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self {
            name: name.into(),
            role,
            workers: 1,
            processes: 1,
            min_cores: 0,
            max_cores: None,
            no_cores: false,
            min_sms: 0,
            max_sms: None,
            no_gpu: false,
            memory_bytes: 0,
            batches: Vec::new(),
            synchronous: false,
            resize: ResizeMode::default(),
            profile: None,
        }
    }
}

const fn one() -> f64 {
    1.0
}

/// A job as declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Unique among the tenant's live jobs.
    pub name: String,
    /// The work unit of all throughputs, such as `env_step` or `token`.
    pub unit: String,
    /// Higher goes first in the queue.
    pub priority: i32,
    /// What it counts for when jobs share the node: with 2 it gets twice the part of what it would do alone.
    #[serde(default = "one")]
    pub weight: f64,
    /// GPUs it runs on; empty: any `gpu_count`.
    pub gpus: Vec<u32>,
    /// How many GPUs, where `gpus` is empty; 0: one, if a stage needs one.
    pub gpu_count: u32,
    /// Groups of environments that overlap simulation with generation: 1 or 2.
    pub groups: u32,
    /// Which allocator.
    pub policy: Policy,
    /// Reserve or overlap.
    pub sm_mode: SmMode,
    /// When shares move.
    pub rebalance: RebalanceSpec,
    /// At most 8, in data-flow order.
    pub stages: Vec<StageSpec>,
}

impl JobSpec {
    /// A job with the defaults and no stage yet.
    pub fn new(name: impl Into<String>, unit: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            unit: unit.into(),
            priority: 0,
            weight: one(),
            gpus: Vec::new(),
            gpu_count: 0,
            groups: 2,
            policy: Policy::default(),
            sm_mode: SmMode::default(),
            rebalance: RebalanceSpec::default(),
            stages: Vec::new(),
        }
    }
    /// A fresh id for one logical submission.
    pub fn request_id() -> Uuid {
        Uuid::now_v7()
    }
    /// The fingerprint under which a stage's profile is kept.
    pub fn fingerprint(&self, stage: &StageSpec) -> String {
        stage
            .profile
            .clone()
            .unwrap_or_else(|| format!("{}/{}", self.name, stage.name))
    }
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// The daemon said something that this client does not know.
    #[default]
    Unknown,
    /// Waits for room.
    Queued,
    /// Its quotas count in the ledger.
    Admitted,
    /// Over.
    Ended,
}

impl JobPhase {
    /// The name in lower case, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Queued => "queued",
            Self::Admitted => "admitted",
            Self::Ended => "ended",
        }
    }
}

/// Measured throughputs of a job; nothing is measured before the first window closes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    /// Windows (training steps) closed so far.
    pub windows: u64,
    /// Rollout throughput, work units per busy second, median of 5 windows.
    pub rollout_units_per_s: f64,
    /// Training throughput, likewise.
    pub train_units_per_s: f64,
    /// 1 − min/max of the two.
    pub gap: f64,
    /// Consecutive windows above the threshold with the same side slower.
    pub streak: u32,
    /// Throughput of each stage, in the job's order.
    pub stage_units_per_s: Vec<f64>,
    /// What the balance did last, for a person.
    pub last: String,
    /// `warming up`, `refitting`, `watching`, `cooling down`, `moving`, `frozen`.
    pub state: String,
}

/// A job as its owner sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its number; never reused.
    pub id: u64,
    /// Whose it is.
    pub tenant: String,
    /// As declared.
    pub spec: JobSpec,
    /// Where it is in its life.
    pub phase: JobPhase,
    /// The split in force.
    pub plan: Option<Plan>,
    /// Measured throughputs.
    pub balance: Option<Balance>,
    /// Its live leases.
    pub leases: Vec<Lease>,
    /// How many times its shares have moved.
    pub moves: u32,
    /// Whether a move is under way: shrinks or grows are unconfirmed.
    pub moving: bool,
}

/// A change of how a job is rebalanced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobUpdate {
    /// New rules; none: unchanged.
    pub rebalance: Option<RebalanceSpec>,
    /// New policy; none: unchanged.
    pub policy: Option<Policy>,
    /// Plan anew from the profiles that are stored now, and move if the plan differs.
    pub replan: bool,
}
