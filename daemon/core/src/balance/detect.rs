//! The detectors: when the gap between rollout and training has lasted, or its sum has grown, enough.
//!
//! - **Streak** (EBRL's rule, arXiv:2609.27547): smoothed gap above the threshold for so many consecutive windows,
//!   the same side slower throughout.
//! - **Cusum** (Page 1954): for each side the cumulative sum of what `ln T` of each single window deviates from what it was
//!   after the last refit, less a slack; two-sided. It fires only if the two sides have moved apart. (A sum of
//!   `ln(T_r/T_train)` alone adds the noise of both sides, and needs twice as many windows.) The threshold is the declared
//!   one, or more where the windows scatter so much that noise alone would reach that.
use alloc::format;
use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::Measured;
use super::window::Window;
use crate::job::Detector;
use crate::unit::{Rate, gap};

/// Windows over which noise alone may fire the sum once, in either direction.
const QUIET_WINDOWS: f64 = 800_000.0;
/// Windows that the scatter is taken over.
const NOISE_WINDOWS: f64 = 100.0;
/// Windows after which the base is known well enough.
const BASE_WINDOWS: f64 = 100.0;
/// How many windows a plan's prediction counts for, before anything was measured.
const PLANNED_WINDOWS: f64 = 16.0;
/// By how many of its standard errors the base may be off.
const BASE_SIGMAS: f64 = 2.0;

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
    /// The sums of the rollout and of training.
    sums: [Sum; 2],
}

impl Alarmist {
    /// Takes in one window: `smoothed` throughputs for the streak, the window's own for the sums.
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
                let now = [window.t_r, window.t_train];
                let planned = [planned.0, planned.1];
                if now.iter().chain(&planned).any(|rate| *rate <= Rate::ZERO) {
                    return;
                }
                for (sum, (now, planned)) in self.sums.iter_mut().zip(now.iter().zip(planned)) {
                    sum.observe(libm::log(now.get()), libm::log(planned.get()), slack);
                }
                let [r, t] = &self.sums;
                self.level.rise = r.up.max(t.down);
                self.level.fall = r.down.max(t.up);
            }
        }
    }

    pub(super) fn fires(&self, detector: &Detector) -> bool {
        match *detector {
            Detector::Streak { windows, .. } => self.level.streak >= windows.max(1),
            Detector::Cusum { slack, threshold } => {
                let [r, t] = &self.sums;
                let over = |sum: &Sum| {
                    let level = sum.up.max(sum.down);
                    level > threshold.max(sum.noise.threshold(slack))
                };
                // What slows both sides alike moves no share.
                let apart = libm::fabs(r.off() - t.off()) > slack;
                apart && (over(r) || over(t))
            }
        }
    }

    /// Windows that belong to what the alarm is about: what is measured over them is measured after the change.
    pub(super) fn windows(&self, detector: &Detector) -> u32 {
        match detector {
            Detector::Streak { .. } => self.level.streak,
            Detector::Cusum { .. } => {
                let [r, t] = &self.sums;
                let higher = if r.up.max(r.down) > t.up.max(t.down) {
                    r
                } else {
                    t
                };
                higher.base.pending.0 as u32
            }
        }
    }

    /// Counting starts anew; what is known of the load stays.
    pub(super) fn reset(&mut self) {
        self.level = Alarm::default();
        self.side = None;
        self.sums.iter_mut().for_each(Sum::reset);
    }

    /// From now on deviations are from these throughputs, as measured over so many windows.
    pub(super) fn rebase(&mut self, t_r: Rate, t_train: Rate, windows: u32) {
        self.moved();
        for (sum, rate) in self.sums.iter_mut().zip([t_r, t_train]) {
            if rate > Rate::ZERO {
                sum.base
                    .set(libm::log(rate.get()), f64::from(windows.max(1)));
            }
        }
    }

    /// The split has changed: what it is compared with is not known yet.
    pub(super) fn moved(&mut self) {
        self.reset();
        self.sums
            .iter_mut()
            .for_each(|sum| sum.base = Base::default());
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

/// The cumulative sum of one side: of `ln T`, less what it is without a drift, less a slack; both ways.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    up: f64,
    down: f64,
    base: Base,
    noise: Noise,
}

impl Sum {
    fn observe(&mut self, now: f64, planned: f64, slack: f64) {
        self.noise.observe(now);
        if self.base.n <= 0.0 {
            self.base.set(planned, PLANNED_WINDOWS);
        }
        let off = now - self.base.mean;
        // A base from few windows is off by a little in every window to come: that is no drift.
        let slack = slack + BASE_SIGMAS * self.noise.sigma() / libm::sqrt(self.base.n);
        self.up = (self.up + off - slack).max(0.0);
        self.down = (self.down - off - slack).max(0.0);
        self.base.pend(now);
        if self.up <= 0.0 && self.down <= 0.0 {
            self.base.learn();
        }
    }
    /// The mean deviation since the sums were last at zero.
    fn off(&self) -> f64 {
        let (n, sum) = self.base.pending;
        if n > 0.0 {
            sum / n - self.base.mean
        } else {
            0.0
        }
    }
    const fn reset(&mut self) {
        (self.up, self.down) = (0.0, 0.0);
        self.base.drop_pending();
    }
}

/// What `ln T` is without a drift: from the refit on learned over the first windows in which nothing adds up,
/// then kept, so that a slow drift is not learned, too.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    n: f64,
    mean: f64,
    pending: (f64, f64), // how many, and their sum
}

impl Base {
    const fn set(&mut self, mean: f64, n: f64) {
        (self.mean, self.n) = (mean, n);
    }
    fn pend(&mut self, value: f64) {
        self.pending = (self.pending.0 + 1.0, self.pending.1 + value);
    }
    const fn drop_pending(&mut self) {
        self.pending = (0.0, 0.0);
    }
    fn learn(&mut self) {
        let (n, sum) = self.pending;
        if self.n < BASE_WINDOWS && n > 0.0 {
            self.mean = (self.mean * self.n + sum) / (self.n + n);
            self.n += n;
        }
        self.drop_pending();
    }
}

/// How much `ln T` scatters from window to window, from differences of neighbours: a drift moves it, but does
/// not widen it.
#[derive(Clone, Copy, Debug, Default)]
struct Noise {
    n: f64,
    last: Option<f64>,
    variance: f64,
}

impl Noise {
    fn observe(&mut self, value: f64) {
        if let Some(last) = self.last.replace(value) {
            let half = (value - last) * (value - last) / 2.0;
            // A jump is no noise.
            let half = if self.n >= 16.0 {
                half.min(9.0 * self.variance)
            } else {
                half
            };
            self.n += 1.0;
            self.variance += (half - self.variance) / self.n.min(NOISE_WINDOWS);
        }
    }
    /// The standard deviation; of few windows somewhat more than they say.
    fn sigma(&self) -> f64 {
        let few = 1.0 + 2.0 / (self.n + 1.0);
        few * libm::sqrt(self.variance)
    }
    /// The sum that noise alone reaches once in [`QUIET_WINDOWS`] (Siegmund's approximation of a cumulative sum's run
    /// length, Sequential Analysis 1985, §2.6: `(e^{2kb} − 2kb − 1) / 2k²` with `b = h + 1.166`, in standard deviations).
    fn threshold(&self, slack: f64) -> f64 {
        let sigma = self.sigma();
        if sigma <= 0.0 || slack <= 0.0 {
            return 0.0;
        }
        let k = slack / sigma;
        let b = libm::log(2.0 * k * k * QUIET_WINDOWS + 1.0) / (2.0 * k);
        (b - 1.166).max(0.0) * sigma
    }
}
