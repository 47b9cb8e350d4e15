//! A job: the training run of a tenant, its stages, and the plan that says what each worker gets.
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::curve::Point;
use crate::curve::corun::Caps;
use crate::grant::{Resize, Vector};
use crate::id::{BodyHash, GpuId, JobId, LeaseId, Name, RequestId, StageId};
use crate::unit::{Bytes, Millis, Rate, Sms};

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Steps environments. Part of the rollout.
    Simulation,
    /// Turns observations into actions (or tokens). Part of the rollout.
    Generation,
    /// Updates the policy.
    Training,
    /// Log-probabilities and the like. Part of the rollout.
    Inference,
    /// Anything else: gets what it asks for and does not take part in the balance.
    Other,
}

impl Role {
    /// Whether the stage's throughput counts on the rollout side.
    pub const fn is_rollout(self) -> bool {
        matches!(self, Self::Simulation | Self::Generation | Self::Inference)
    }
}

/// Which allocator plans the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Bisection on the target throughput (default).
    #[default]
    Waterfill,
    /// As published: the simulator at its knee, then a binary search between generation and training.
    Ebrl,
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detector {
    /// Gap above `gap` for `windows` consecutive windows, the same side slower throughout.
    Streak {
        /// Threshold of the gap, 0 to 1.
        gap: f64,
        /// Consecutive windows.
        windows: u32,
    },
    /// Cumulative sum on the deviation of `ln(T_r/T_train)` from the plan's prediction.
    Cusum {
        /// Slack per window, in log units: deviations below it are noise.
        slack: f64,
        /// Sum, in log units, at which it fires.
        threshold: f64,
    },
}

impl Default for Detector {
    fn default() -> Self {
        Self::Streak {
            gap: 0.15,
            windows: 20,
        }
    }
}

/// What to do when a shrink is not confirmed in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShrinkFallback {
    /// Ask again; the grows wait (default).
    #[default]
    Wait,
    /// Live, then restart, then revoke.
    Escalate,
}

/// When and how a job's shares may move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebalanceSpec {
    /// False freezes the shares.
    pub enabled: bool,
    /// Watches the gap.
    pub detector: Detector,
    /// Windows after a move in which nothing is judged.
    pub cooldown_windows: u32,
    /// The gain must pay for itself within so much time.
    pub horizon: Millis,
    /// Expected pause of a stage that has to restart, until one was measured.
    pub restart_cost: Millis,
    /// The least relative gain in predicted throughput that is worth a move.
    pub min_gain: f64,
    /// How long a shrink may stay unconfirmed.
    pub shrink_timeout: Millis,
    /// What happens then.
    pub fallback: ShrinkFallback,
    /// Windows after start and after each move after which curves are refitted once from co-running rates.
    pub refit_windows: u32,
}

impl Default for RebalanceSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            detector: Detector::default(),
            cooldown_windows: 5,
            horizon: Millis::secs(600),
            restart_cost: Millis::secs(10),
            min_gain: 0.02,
            shrink_timeout: Millis::secs(60),
            fallback: ShrinkFallback::Wait,
            refit_windows: 8,
        }
    }
}

/// One stage as declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageSpec {
    /// Name, unique in the job.
    pub name: Name,
    /// What it does.
    pub role: Role,
    /// Number of worker processes (trees).
    pub workers: u32,
    /// Processes of one worker that share its GPU memory (limits are per process).
    pub processes: u32,
    /// Least and most cores for the whole stage.
    pub cores: (u32, u32),
    /// Least and most SMs on each GPU of the job; (0, 0) for a stage without GPU work.
    pub sms: (Sms, Sms),
    /// GPU memory in bytes on each GPU for the whole stage, where the profile does not say.
    pub memory: Bytes,
    /// Batch sizes it can run at; empty: it has none.
    pub batches: Vec<u32>,
    /// Workers advance together, so that the slowest rank counts.
    pub synchronous: bool,
    /// How its GPU share can change.
    pub resize: Resize,
    /// Fingerprint under which its profile is kept; none: `job/stage`.
    pub profile: Option<Name>,
}

/// A job as declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Name, unique among the tenant's live jobs.
    pub name: Name,
    /// The work unit of all its throughputs, such as `env_step` or `token`.
    pub unit: Name,
    /// Higher goes first in the queue.
    pub priority: i32,
    /// What it counts for when jobs share a node: with a weight of 2 it gets twice the part of what it would do alone.
    /// Above zero.
    #[serde(default = "one")]
    pub weight: f64,
    /// GPUs it runs on; one SM split for all of them. Empty: any `gpu_count`.
    pub gpus: Vec<GpuId>,
    /// How many GPUs, where `gpus` is empty.
    pub gpu_count: u16,
    /// Groups of environments that overlap simulation with generation: 1 or 2.
    pub groups: u32,
    /// Which allocator.
    pub policy: Policy,
    /// Reserve or overlap.
    pub sm_mode: SmMode,
    /// When shares move.
    pub rebalance: RebalanceSpec,
    /// The stages, in data-flow order; at most [`STAGES_MAX`].
    pub stages: Vec<StageSpec>,
}

const fn one() -> f64 {
    1.0
}

/// Least and most that a job may weigh: beyond a thousandfold a part is nothing.
pub const WEIGHT_RANGE: (f64, f64) = (1e-3, 1e3);
/// Most stages of a job: the exact search covers so many.
pub const STAGES_MAX: usize = 8;
/// Most workers of a stage.
pub const WORKERS_MAX: u32 = 1024;
/// Batch sizes of one stage: the allocator looks at each.
pub const BATCHES_MAX: usize = 64;
/// Largest batch size.
pub const BATCH_MAX: u32 = 1 << 24;
/// Processes of one worker, and replicas of one measurement.
pub const PROCESSES_MAX: u32 = 1_024;
/// Cores that a stage or a measurement may name: larger than any server, and no sum of them overflows.
pub const CORES_MAX: u32 = 1 << 16;
/// SMs that a stage or a measurement may name; likewise.
pub const SMS_MAX: u32 = 1 << 16;
/// Bytes of GPU memory that a stage or a measurement may name (1 PiB); likewise.
pub const MEMORY_MAX: u64 = 1 << 50;
/// Longest time of a rule, in milliseconds: a year. A sum of such times cannot overflow.
pub const RULE_MS_MAX: u64 = 365 * 24 * 3_600_000;
/// Most windows of a rule: months of training.
pub const RULE_WINDOWS_MAX: u32 = 1_000_000;

/// What one stage gets, and what that is predicted to yield.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagePlan {
    /// One vector for each worker, by index.
    pub workers: Vec<Vector>,
    /// Cores of the whole stage.
    pub cores: u32,
    /// SMs on each GPU of the job (guarantee).
    pub sms: Sms,
    /// Cap on each GPU of the job.
    pub cap: Sms,
    /// Bytes on each GPU of the job.
    pub memory: Bytes,
    /// Chosen batch size; 1 where there is none.
    pub batch: u32,
    /// Predicted throughput of the stage.
    pub predicted: Rate,
}

/// A job's split: quotas, batch sizes, predictions, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// One for each stage.
    pub stages: Vec<StagePlan>,
    /// The GPUs it is on.
    pub gpus: Vec<GpuId>,
    /// Predicted rollout throughput.
    pub t_r: Rate,
    /// Predicted training throughput.
    pub t_train: Rate,
    /// Predicted throughput of the job: the lower of the two.
    pub theta: Rate,
    /// The stage that binds.
    pub binding: StageId,
    /// Who computed it: a policy's name, `declared` without profiles, `even` as a first guess.
    pub by: Name,
    /// Sentences for a person: what binds, what one more core, SM or GiB would bring, what is a guess.
    pub why: Vec<String>,
    /// How far stages may go beyond their guarantees, as trials of such caps did best. Plans of before there were any read as
    /// not at all.
    #[serde(default)]
    pub caps: Caps,
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// Waits for room.
    Queued,
    /// Its quotas count in the ledger.
    Admitted,
    /// Nobody used it for long, so its quotas are free; its next worker asks for them anew.
    Parked,
    /// Over.
    Ended,
}

/// One worker's place in an admitted job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The live lease that fills it.
    pub lease: Option<LeaseId>,
    /// What is kept for it while no lease fills it; empty while one does.
    pub unclaimed: Vector,
}

/// A job in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Whose it is.
    pub tenant: Name,
    /// The request that submitted it.
    pub request: RequestId,
    /// Digest of that request.
    pub body: BodyHash,
    /// The number that the next lease had when it was submitted: it comes after the requests that were there.
    pub arrival: LeaseId,
    /// As declared.
    pub spec: JobSpec,
    /// Where it is in its life.
    pub phase: JobPhase,
    /// The split in force (admitted jobs).
    pub plan: Option<Plan>,
    /// Workers' places, by stage and index (admitted jobs).
    pub slots: Vec<Vec<Slot>>,
    /// Factors by which live rates differ from the profile, by stage: measured/predicted. 1 until refitted.
    pub scale: Vec<f64>,
    /// Points measured live that joined the profile of a stage, by stage.
    pub learned: Vec<Vec<Point>>,
    /// What a busy stage j costs stage i, `[i][j]`, as it was when `scale` was measured; empty: not known, taken as 0.
    pub kappa: Vec<Vec<f64>>,
    /// How many times its shares have moved.
    pub moves: u32,
}
