//! The detectors: when the gap between rollout and training has lasted, or its sum has grown, enough.
//!
//! - **Streak** (EBRL's rule, arXiv:2609.27547): smoothed gap above the threshold for so many consecutive windows,
//!   the same side slower throughout.
//! - **Cusum** (Page 1954): the cumulative sum of what `ln(T_r/T_train)` of each single window deviates from the
//!   plan's prediction, less a slack; two-sided.
use alloc::format;
use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::Measured;
use super::window::Window;
use crate::job::Detector;
use crate::unit::{Rate, gap};

/// A side of the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Simulation, generation, inference.
    Rollout,
    /// Training.
    Training,
}

/// How far the detector has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Alarm {
    /// Consecutive windows with a gap above the threshold, the same side slower.
    pub streak: u32,
    /// Cumulative sum in log units towards "training is slower than planned".
    pub rise: f64,
    /// Cumulative sum in log units towards "the rollout is slower than planned".
    pub fall: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alarmist {
    level: Alarm,
    side: Option<Side>,
}

impl Alarmist {
    /// Takes in one window: `smoothed` throughputs for the streak, the window's own for the sum.
    pub(super) fn observe(
        &mut self,
        detector: &Detector,
        smoothed: (Rate, Rate),
        window: &Window,
        planned: (Rate, Rate),
    ) {
        match *detector {
            Detector::Streak { gap: threshold, .. } => {
                let side = if smoothed.0 < smoothed.1 {
                    Side::Rollout
                } else {
                    Side::Training
                };
                if gap(smoothed.0, smoothed.1) <= threshold {
                    self.reset();
                } else if self.side == Some(side) {
                    self.level.streak = self.level.streak.saturating_add(1);
                } else {
                    self.side = Some(side);
                    self.level.streak = 1;
                }
            }
            Detector::Cusum { slack, .. } => {
                let (Some(now), Some(planned)) = (
                    log_ratio(window.t_r, window.t_train),
                    log_ratio(planned.0, planned.1),
                ) else {
                    return;
                };
                let off = now - planned;
                self.level.rise = (self.level.rise + off - slack).max(0.0);
                self.level.fall = (self.level.fall - off - slack).max(0.0);
            }
        }
    }

    pub(super) fn fires(&self, detector: &Detector) -> bool {
        match *detector {
            Detector::Streak { windows, .. } => self.level.streak >= windows.max(1),
            Detector::Cusum { threshold, .. } => {
                self.level.rise > threshold || self.level.fall > threshold
            }
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(super) const fn level(&self) -> Alarm {
        self.level
    }

    pub(super) fn sentence(&self, detector: &Detector, measured: &Measured) -> String {
        let slower = match measured.slower() {
            Side::Rollout => "the rollout is slower",
            Side::Training => "training is slower",
        };
        let (t_r, t_train, gap) = (measured.t_r, measured.t_train, 100.0 * measured.gap());
        match *detector {
            Detector::Streak { gap: threshold, .. } => format!(
                "The gap was above {:.0} % for {} windows and is {gap:.0} % now: {slower} (rollout {t_r}, training {t_train}).",
                100.0 * threshold,
                self.level.streak
            ),
            Detector::Cusum { threshold, .. } => format!(
                "The deviation from the plan added up to {:.2} (threshold {threshold:.2}); the gap is {gap:.0} % now: {slower} (rollout {t_r}, training {t_train}).",
                self.level.rise.max(self.level.fall)
            ),
        }
    }
}

fn log_ratio(a: Rate, b: Rate) -> Option<f64> {
    (a > Rate::ZERO && b > Rate::ZERO).then(|| libm::log(a.get() / b.get()))
}
