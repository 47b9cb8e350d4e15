//! What a policy came to on one node, and on several: sums and a timeline of fixed length, never a trace, so that a day
//! of a fleet takes no more memory than a minute of one job. Filled by `run` and the engines.

use serde::Serialize;

/// Points of a timeline: as many as a picture can show.
pub(crate) const BINS: usize = 240;
/// Moves and drifts that are kept by time, of the first node.
const MARKS_MAX: usize = 400;
/// Windows over which a gap is averaged before the worst is taken: the rebalancer's own smoothing.
const GAP_WINDOWS: usize = 5;

/// Sums over jobs and time.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    horizon_s: f64,
    /// Units trained on, by job of the scenario.
    pub(super) units: Vec<f64>,
    /// Seconds in which the job was there, by job.
    pub(super) present_s: Vec<f64>,
    /// Seconds in which it waited for room, by job.
    pub(super) waited_s: Vec<f64>,
    /// Units trained on, by bin.
    pub(super) bins: Vec<f64>,
    /// SM-seconds and core-seconds that each stage held, by stage and bin.
    pub(super) held: Vec<Held>,
    /// Times that shares moved.
    pub(super) moves: u64,
    /// Seconds that pipelines stood still for moves.
    pub(super) paused_s: f64,
    /// SM-seconds in which an SM had work.
    pub(super) busy_sm_s: f64,
    /// Largest smoothed gap.
    pub(super) worst_gap: f64,
    /// Windows simulated.
    pub(super) windows: u64,
    /// Events simulated.
    pub(super) events: u64,
    /// When shares moved, and why.
    pub(super) marks: Vec<Mark>,
    recent_gaps: Vec<f64>,
}

/// What one stage held over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) sm_s: Vec<f64>,
    pub(super) core_s: Vec<f64>,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Mark {
    /// When.
    pub(crate) at_s: f64,
    /// To which job.
    pub(crate) job: String,
    /// What, and why.
    pub(crate) what: String,
}

impl Tally {
    pub(super) fn new(horizon_s: f64, jobs: usize, stages: usize) -> Self {
        let held = Held {
            sm_s: vec![0.0; BINS],
            core_s: vec![0.0; BINS],
        };
        Self {
            horizon_s,
            units: vec![0.0; jobs],
            present_s: vec![0.0; jobs],
            waited_s: vec![0.0; jobs],
            bins: vec![0.0; BINS],
            held: vec![held; stages],
            ..Self::default()
        }
    }

    /// Simulated seconds.
    pub(super) const fn horizon_s(&self) -> f64 {
        self.horizon_s
    }

    /// Units that a job trained on, evenly over a time.
    pub(super) fn credit(&mut self, job: usize, (from_s, to_s): (f64, f64), units: f64) {
        self.units[job] += units;
        spread(&mut self.bins, self.horizon_s, (from_s, to_s), units);
    }

    /// What a stage (counted over all jobs) held over a time.
    pub(super) fn hold(&mut self, stage: usize, (from_s, to_s): (f64, f64), sms: f64, cores: f64) {
        let length_s = to_s - from_s;
        let Some(held) = self.held.get_mut(stage).filter(|_| length_s > 0.0) else {
            return;
        };
        spread(
            &mut held.sm_s,
            self.horizon_s,
            (from_s, to_s),
            sms * length_s,
        );
        spread(
            &mut held.core_s,
            self.horizon_s,
            (from_s, to_s),
            cores * length_s,
        );
    }

    /// A window's gap.
    pub(super) fn gap(&mut self, gap: f64) {
        self.windows += 1;
        if self.recent_gaps.len() == GAP_WINDOWS {
            self.recent_gaps.remove(0);
        }
        self.recent_gaps.push(gap);
        if self.recent_gaps.len() == GAP_WINDOWS {
            let mean = self.recent_gaps.iter().sum::<f64>() / GAP_WINDOWS as f64;
            self.worst_gap = self.worst_gap.max(mean);
        }
    }

    /// Another job's windows follow: gaps are not averaged across jobs.
    pub(super) fn next_job(&mut self) {
        self.recent_gaps.clear();
    }

    /// Shares moved.
    pub(super) fn moved(&mut self, at_s: f64, pause_s: f64, job: &str, why: &str) {
        self.moves += 1;
        self.paused_s += pause_s.min((self.horizon_s - at_s).max(0.0));
        if self.marks.len() < MARKS_MAX {
            self.marks.push(Mark {
                at_s,
                job: job.to_owned(),
                what: why.to_owned(),
            });
        }
    }

    /// Adds another node's.
    pub(super) fn add(&mut self, other: &Self) {
        let add = |mine: &mut Vec<f64>, theirs: &[f64]| {
            mine.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
        };
        add(&mut self.units, &other.units);
        add(&mut self.present_s, &other.present_s);
        add(&mut self.waited_s, &other.waited_s);
        add(&mut self.bins, &other.bins);
        for (mine, theirs) in self.held.iter_mut().zip(&other.held) {
            add(&mut mine.sm_s, &theirs.sm_s);
            add(&mut mine.core_s, &theirs.core_s);
        }
        self.moves += other.moves;
        self.paused_s += other.paused_s;
        self.busy_sm_s += other.busy_sm_s;
        self.worst_gap = self.worst_gap.max(other.worst_gap);
        self.windows += other.windows;
        self.events += other.events;
    }
}

/// Adds an amount to bins, evenly over a time; what lies beyond the horizon is left out.
fn spread(bins: &mut [f64], horizon_s: f64, (from_s, to_s): (f64, f64), amount: f64) {
    let width_s = horizon_s / bins.len() as f64;
    let last = bins.len() - 1;
    let bin = |at_s: f64| ((at_s / width_s).max(0.0) as usize).min(last);
    let length_s = to_s - from_s;
    if length_s <= 0.0 {
        bins[bin(from_s)] += amount;
        return;
    }
    for (i, sum) in bins
        .iter_mut()
        .enumerate()
        .take(bin(to_s) + 1)
        .skip(bin(from_s))
    {
        let (start, end) = (i as f64 * width_s, (i + 1) as f64 * width_s);
        let overlap_s = (to_s.min(end) - from_s.max(start)).max(0.0);
        *sum += amount * overlap_s / length_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_spread_over_the_bins_that_they_touch() {
        let mut bins = vec![0.0; 4];
        spread(&mut bins, 8.0, (1.0, 5.0), 4.0);
        assert_eq!(bins, [1.0, 2.0, 1.0, 0.0]);
        spread(&mut bins, 8.0, (7.0, 7.0), 3.0);
        assert_eq!(bins[3], 3.0, "an instant");
        spread(&mut bins, 8.0, (7.0, 9.0), 2.0);
        assert_eq!(bins[3], 4.0, "half of it is beyond the horizon");
    }

    #[test]
    fn the_worst_gap_is_of_smoothed_ones() {
        let mut tally = Tally::new(10.0, 1, 1);
        for gap in [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0] {
            tally.gap(gap);
        }
        assert_eq!(tally.worst_gap, 0.2);
    }
}
