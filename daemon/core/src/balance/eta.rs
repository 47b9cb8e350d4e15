//! η: how well the rollout's stages overlap. With groups of environments `T_r` should be that of the slowest stage; what is
//! lost to waiting for each other shows only by the wall clock, and only while nothing but the rollout holds the job up.
//!
//! So it counts windows in which training waited: there the rollout's units per wall second, over what its stages do
//! while busy, is η. Volatile, like all of `balance`.
use super::window::{Flow, Window};
use crate::job::{JobSpec, Role};

/// Training that is busy for less than this share of the time waits for the rollout.
const WAITS: f64 = 0.9;
/// What is left of a window's weight a window later.
const MEMORY: f64 = 0.95;
/// Least windows, by weight, before anything is told.
const WINDOWS_MIN: f64 = 8.0;
/// Below this it is no overlap that is bad, but something else that holds the rollout up.
const ETA_MIN: f64 = 0.3;

/// Sums over windows in which the rollout alone held the job up.
#[derive(Clone, Debug, Default)]
pub(super) struct Eta {
    windows: f64,
    /// Seconds that the rollout's units take at the pace of its stages.
    needed_s: f64,
    /// Seconds that went by.
    wall_s: f64,
}

impl Eta {
    /// A window has closed.
    pub(super) fn observe(&mut self, spec: &JobSpec, window: &Window, flow: &Flow) {
        let Some(wall_us) = flow.wall_us.filter(|us| *us > 0) else {
            return;
        };
        let stages = || spec.stages.iter().enumerate();
        let training = stages().filter(|(_, s)| s.role == Role::Training);
        let busiest = training.map(|(i, _)| flow.busy_us[i]).reduce(f64::max);
        if busiest.is_none_or(|busy| busy > WAITS * wall_us as f64) {
            return; // the rollout may have waited for it
        }
        let rollout = stages().filter(|(_, s)| s.role.is_rollout());
        let needed =
            rollout.filter_map(|(i, _)| Some(flow.units[i] / window.stages[i]?.rate.get()));
        let needed_s = if spec.groups == 1 {
            needed.sum()
        } else {
            needed.fold(0.0, f64::max)
        };
        if !(needed_s > 0.0 && needed_s.is_finite()) {
            return;
        }
        let (needed_s, wall_s) = (needed_s, wall_us as f64 * 1e-6);
        self.windows = MEMORY * self.windows + 1.0;
        self.needed_s = MEMORY * self.needed_s + needed_s;
        self.wall_s = MEMORY * self.wall_s + wall_s;
    }

    /// The efficiency, above 0 and at most 1; none before enough windows told something.
    pub(super) fn told(&self) -> Option<f64> {
        let eta = self.needed_s / self.wall_s;
        (self.windows >= WINDOWS_MIN && eta >= ETA_MIN).then(|| eta.min(1.0))
    }

    /// The split has changed.
    pub(super) fn discard(&mut self) {
        *self = Self::default();
    }
}
