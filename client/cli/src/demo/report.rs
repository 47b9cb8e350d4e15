//! The figures of a run, as programs read them. Names and units are stable.

use serde::Serialize;

use super::seeds::Drift;
use super::talk::Observed;
use super::watch::{Rebalance, SplitShares};

/// A static split that was executed without a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Executed {
    pub(crate) split: SplitShares,
    pub(crate) units_per_s: f64,
    /// What virtual time said it would do.
    pub(crate) virtual_units_per_s: f64,
}

/// What `--full` adds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rivals {
    /// The best static split that was executed.
    pub(crate) best_static_units_per_s: f64,
    pub(crate) best_static_split: SplitShares,
    /// Best static over static.
    pub(crate) achievable_gain: f64,
    /// No caps, no binding, no daemon.
    pub(crate) unmanaged_units_per_s: f64,
    /// What the daemon's plan did over what the best static split did.
    pub(crate) plan_vs_best: f64,
    /// Gain over achievable gain, of what is above 1.
    pub(crate) realised_share_of_gain: f64,
    /// Splits that were compared in virtual time.
    pub(crate) swept: usize,
    pub(crate) executed: Vec<Executed>,
    /// The throughput between the drift and the move, under the daemon.
    pub(crate) detection_units_per_s: f64,
}

/// The figures of a run with a drift.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Always: nobody is told that it is a real GPU.
    pub(crate) gpu_is_emulated: bool,
    pub(crate) seed: u64,
    pub(crate) policy: String,
    pub(crate) drift: Drift,
    pub(crate) unit: &'static str,
    pub(crate) phase_seconds: u64,
    pub(crate) before_drift_units_per_s: f64,
    /// The old split after the drift, under the daemon, until the shares moved; with `--full` the same split without
    /// a daemon, for a whole phase.
    pub(crate) static_units_per_s: f64,
    pub(crate) rebalanced_units_per_s: f64,
    /// Rebalanced over static.
    pub(crate) gain: f64,
    /// What the daemon's plan promised.
    pub(crate) predicted_gain: f64,
    pub(crate) before_gap: f64,
    pub(crate) after_gap: f64,
    pub(crate) split_before: SplitShares,
    pub(crate) split_after: SplitShares,
    /// From the drift to the decision.
    pub(crate) detection_seconds: f64,
    pub(crate) rebalances: Vec<Rebalance>,
    pub(crate) staleness_most: u64,
    pub(crate) success_rate_first: f64,
    pub(crate) success_rate_last: f64,
    pub(crate) overcommit_seconds: f64,
    pub(crate) observer: Observed,
    pub(crate) physics_substeps: u32,
    pub(crate) run_seconds: f64,
    #[serde(flatten)]
    pub(crate) rivals: Option<Rivals>,
}

/// A managed and a static run, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Pair {
    pub(crate) managed_units_per_s: f64,
    pub(crate) static_units_per_s: f64,
    pub(crate) split: SplitShares,
    pub(crate) gap: f64,
    pub(crate) moves: u32,
}

/// The figures of a run without a drift.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SteadyFigures {
    pub(crate) gpu_is_emulated: bool,
    pub(crate) seed: u64,
    pub(crate) policy: String,
    pub(crate) unit: &'static str,
    pub(crate) phase_seconds: u64,
    /// Moves over all managed runs.
    pub(crate) moves: u32,
    /// Means over the pairs.
    pub(crate) managed_units_per_s: f64,
    pub(crate) static_units_per_s: f64,
    pub(crate) ratio: f64,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) overcommit_seconds: f64,
    /// Over all managed runs.
    pub(crate) observer: Observed,
    pub(crate) run_seconds: f64,
}
