//! What a worker reports, and what no report may claim. Times are microseconds before the report was sent, so
//! that no clock is shared.
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::id::{StageId, WorkerId};
use crate::unit::Time;

/// Most lanes of one worker, its helpers among them: cores and GPU streams of a large node. The wire's limit, too.
pub const LANES_MAX: u32 = 1_024;
/// Most busy intervals in one report: workers merge more than that.
pub const BUSY_MAX: usize = 8192;
/// Most steps in one report.
pub const STEPS_MAX: usize = 1024;
/// Longest time that a report may reach back: one day. Older work says nothing about now.
pub const AGE_MAX_US: u64 = 86_400_000_000;
/// Most work units of one interval or step: beyond 2^53 a count is no longer exact.
pub const UNITS_MAX: f64 = 9_007_199_254_740_992.0;
/// Largest batch size.
pub const BATCH_MAX: u32 = 1 << 24;

/// What a worker of a stage did since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its stage.
    pub stage: StageId,
    /// Its index in the stage.
    pub worker: WorkerId,
    /// When the report came in.
    pub at: Time,
    /// Lanes that carry its work in parallel (cores, GPU streams): numbers 0 to `lanes − 1`. Higher numbers are
    /// helpers (host work beside a GPU stream): they carry no units, and bound the rate each by itself.
    pub lanes: u32,
    /// Busy intervals, in any order.
    pub busy: Vec<Busy>,
    /// Steps finished, ascending. Only training workers report steps.
    pub steps: Vec<StepReport>,
}

/// A time in which a lane worked. Includes throttling; excludes waiting for another stage. Neighbours may be
/// merged into one: `dur_us` is then the sum of the parts, and so are the units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// The lane.
    pub lane: u32,
    /// Its start, in microseconds before the report was sent.
    pub start_us_ago: u64,
    /// Busy microseconds; it ends before the report was sent.
    pub dur_us: u64,
    /// Work units done; 0 on a helper lane.
    pub units: f64,
    /// Batch size it ran at; 1 where the stage has none.
    pub batch: u32,
}

/// A finished training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Its number; rises by one.
    pub n: u64,
    /// Distinct rollout units that it trained on.
    pub consumed: f64,
    /// Rollout units thrown away since the step before: stale, masked, filtered.
    pub discarded: f64,
}

/// Why a report is refused. Nothing of it was taken in.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BadReport {
    /// A worker that the job does not declare.
    #[error("the job declares no {worker} of {stage}")]
    Unknown {
        /// The stage.
        stage: StageId,
        /// The worker.
        worker: WorkerId,
    },
    /// Too many intervals.
    #[error(
        "{0} busy intervals in one report, the most is {BUSY_MAX}; merge neighbours or report more often"
    )]
    TooManyIntervals(usize),
    /// Too many steps.
    #[error("{0} steps in one report, the most is {STEPS_MAX}; report more often")]
    TooManySteps(usize),
    /// No lanes, or too many.
    #[error("{0} lanes; a worker has 1 to {LANES_MAX}")]
    Lanes(u32),
    /// A lane number that is too high.
    #[error("lane {0} is too high: lanes and helpers together are at most {LANES_MAX}")]
    Lane(u32),
    /// A number of units that is none.
    #[error("{units} work units on lane {lane}; a count is finite, zero or more, at most 2^53")]
    Units {
        /// The lane.
        lane: u32,
        /// The number.
        units: f64,
    },
    /// A helper lane with units.
    #[error("lane {lane} is a helper (lanes are 0 to {lanes} less one) but carries work units")]
    HelperUnits {
        /// The lane.
        lane: u32,
        /// Lanes declared.
        lanes: u32,
    },
    /// A batch size that is none.
    #[error("batch size {0}; it is 1 to {BATCH_MAX}")]
    Batch(u32),
    /// An interval that ends after the report was sent, or reaches back too far.
    #[error(
        "an interval of {dur_us} µs that began {start_us_ago} µs ago: it must have ended, and begun within a day"
    )]
    Interval {
        /// Start.
        start_us_ago: u64,
        /// Duration.
        dur_us: u64,
    },
    /// Two intervals of one lane overlap.
    #[error("two intervals on lane {0} overlap: a lane does one thing at a time")]
    Overlap(u32),
    /// Step counts that are none.
    #[error("step {0}: consumed and discarded are finite, zero or more, at most 2^53")]
    StepUnits(u64),
    /// Steps out of order.
    #[error("step {0} does not come after the one before it")]
    StepOrder(u64),
}

fn countable(units: f64) -> bool {
    (0.0..=UNITS_MAX).contains(&units)
}

impl Report {
    /// Checks everything that can be checked without knowing the job.
    pub fn check(&self) -> Result<(), BadReport> {
        if self.busy.len() > BUSY_MAX {
            return Err(BadReport::TooManyIntervals(self.busy.len()));
        }
        if self.steps.len() > STEPS_MAX {
            return Err(BadReport::TooManySteps(self.steps.len()));
        }
        if !(1..=LANES_MAX).contains(&self.lanes) {
            return Err(BadReport::Lanes(self.lanes));
        }
        self.busy.iter().try_for_each(|b| self.check_interval(b))?;
        let mut spans: Vec<(u32, u64, u64)> = self
            .busy
            .iter()
            .filter(|b| b.dur_us > 0)
            .map(|b| {
                (
                    b.lane,
                    AGE_MAX_US - b.start_us_ago,
                    AGE_MAX_US - b.start_us_ago + b.dur_us,
                )
            })
            .collect();
        spans.sort_unstable();
        if let Some(w) = spans
            .windows(2)
            .find(|w| w[0].0 == w[1].0 && w[1].1 < w[0].2)
        {
            return Err(BadReport::Overlap(w[0].0));
        }
        if let Some(s) = self
            .steps
            .iter()
            .find(|s| !countable(s.consumed) || !countable(s.discarded))
        {
            return Err(BadReport::StepUnits(s.n));
        }
        match self.steps.windows(2).find(|w| w[0].n >= w[1].n) {
            Some(w) => Err(BadReport::StepOrder(w[1].n)),
            None => Ok(()),
        }
    }

    fn check_interval(&self, b: &Busy) -> Result<(), BadReport> {
        let (lane, units) = (b.lane, b.units);
        if lane >= LANES_MAX {
            return Err(BadReport::Lane(lane));
        }
        if !countable(units) {
            return Err(BadReport::Units { lane, units });
        }
        if lane >= self.lanes && units > 0.0 {
            return Err(BadReport::HelperUnits {
                lane,
                lanes: self.lanes,
            });
        }
        if !(1..=BATCH_MAX).contains(&b.batch) {
            return Err(BadReport::Batch(b.batch));
        }
        if b.dur_us > b.start_us_ago || b.start_us_ago > AGE_MAX_US {
            return Err(BadReport::Interval {
                start_us_ago: b.start_us_ago,
                dur_us: b.dur_us,
            });
        }
        Ok(())
    }
}
