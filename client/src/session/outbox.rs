//! What a worker has reported and the daemon has not heard yet: bounded, merged where it must be.
use std::collections::VecDeque;

use crate::model::{BusyInterval, Step};

/// Intervals that wait for one lease. Beyond this, neighbours on a lane are merged: sums stay right,
/// and only the resolution in time is lost.
const INTERVALS_MAX: usize = 4_096;
/// Steps that wait for one lease; beyond this the two oldest become one.
const STEPS_MAX: usize = 1_024;
/// Lanes on the wire, helpers included.
const LANES_MAX: u32 = 1_024;
/// The wire's limits for one report.
pub(super) const REPORT_INTERVALS_MAX: usize = 512;
const REPORT_STEPS_MAX: usize = 64;

/// The reports of one lease.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    lanes: u32,
    /// With the number of lanes that the worker had then: rates are per lane, and one report has one number.
    intervals: VecDeque<(u32, BusyInterval)>,
    steps: VecDeque<Step>,
    /// There was nothing to report, and the worker has said so.
    waits: bool,
}

/// One report's worth.
#[derive(Debug, PartialEq)]
pub(super) struct Batch {
    pub(super) lanes: u32,
    pub(super) intervals: Vec<BusyInterval>,
    pub(super) steps: Vec<Step>,
}

impl Outbox {
    /// Adds to it. Values that are not finite or negative are left out: the daemon would refuse the whole frame. A
    /// lane beyond `lanes` that carries units is a lane all the same; one that carries none is a helper.
    /// With nothing in it, it says that the worker lives and waits for another stage.
    pub(super) fn add(&mut self, lanes: u32, intervals: &[BusyInterval], steps: &[Step]) {
        self.waits |= lanes > 0 && intervals.is_empty() && steps.is_empty();
        let amount = |x: f64| x.is_finite() && x >= 0.0;
        let counted = || {
            let told = intervals.iter();
            told.filter(|i| amount(i.units) && i.lane < LANES_MAX)
        };
        let carrying = counted().filter(|i| i.units > 0.0);
        self.lanes = carrying.map(|i| i.lane + 1).fold(lanes, u32::max);
        self.intervals.extend(counted().map(|i| (self.lanes, *i)));
        let whole = |s: &&Step| amount(s.consumed_units) && amount(s.discarded_units);
        self.steps.extend(steps.iter().filter(whole).copied());
        if self.intervals.len() > INTERVALS_MAX {
            self.merge_intervals();
        }
        while self.steps.len() > STEPS_MAX {
            self.merge_oldest_steps();
        }
    }

    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.intervals.is_empty() && self.steps.is_empty() && !self.waits
    }

    /// Takes the oldest, as much as one report may hold and `room` allows.
    pub(super) fn take(&mut self, room: usize) -> Option<Batch> {
        let lanes = self
            .intervals
            .front()
            .map_or(self.lanes, |(lanes, _)| *lanes);
        let most = REPORT_INTERVALS_MAX.min(room);
        let same = self.intervals.iter().take(most);
        let intervals = same.take_while(|(l, _)| *l == lanes).count();
        // A step closes a window over the intervals before it: they must go first, or with it.
        let steps = if intervals == self.intervals.len() {
            self.steps.len().min(REPORT_STEPS_MAX)
        } else {
            0
        };
        let waits = std::mem::take(&mut self.waits);
        if intervals == 0 && steps == 0 && !waits {
            return None;
        }
        Some(Batch {
            lanes,
            intervals: self.intervals.drain(..intervals).map(|(_, i)| i).collect(),
            steps: self.steps.drain(..steps).collect(),
        })
    }

    /// Merges pairs of neighbours on a lane with the same batch size. If too little can be merged, the oldest go.
    fn merge_intervals(&mut self) {
        let mut open: Vec<Option<usize>> = vec![None; LANES_MAX as usize];
        let mut merged: Vec<(u32, BusyInterval)> = Vec::with_capacity(self.intervals.len());
        for (lanes, next) in self.intervals.drain(..) {
            let slot = &mut open[next.lane as usize];
            match *slot {
                Some(i) if merged[i].1.batch == next.batch && merged[i].0 == lanes => {
                    let first = &mut merged[i].1;
                    first.busy += next.busy;
                    first.units += next.units;
                    first.cpu += next.cpu;
                    // A pair, not a run: the newest stay as fine as they can.
                    *slot = None;
                }
                _ => {
                    *slot = Some(merged.len());
                    merged.push((lanes, next));
                }
            }
        }
        let excess = merged.len().saturating_sub(INTERVALS_MAX);
        self.intervals = merged.split_off(excess).into();
    }

    fn merge_oldest_steps(&mut self) {
        if let (Some(old), Some(next)) = (self.steps.pop_front(), self.steps.front_mut()) {
            next.consumed_units += old.consumed_units;
            next.discarded_units += old.discarded_units;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::BootTime;

    #[test]
    fn a_worker_with_nothing_to_report_can_say_so_once() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.take(9), None);
        outbox.add(2, &[], &[]);
        outbox.add(2, &[], &[]);
        assert!(!outbox.is_empty());
        let word = outbox
            .take(9)
            .map(|b| (b.lanes, b.intervals.len(), b.steps.len()));
        assert_eq!(word, Some((2, 0, 0)));
        assert_eq!((outbox.take(9), outbox.is_empty()), (None, true));
        // Work says it, too.
        outbox.add(2, &[], &[]);
        outbox.add(2, &[interval(0, 1, 3.0)], &[]);
        let word = outbox.take(9).map(|b| b.intervals.len());
        assert_eq!((word, outbox.take(9)), (Some(1), None));
    }

    fn interval(lane: u32, at_ms: u64, units: f64) -> BusyInterval {
        BusyInterval {
            lane,
            began: BootTime::from_micros(at_ms * 1_000),
            busy: Duration::from_millis(1),
            units,
            batch: 8,
            cpu: Duration::ZERO,
        }
    }

    #[test]
    fn nothing_that_was_done_is_lost_while_the_daemon_is_away() {
        let mut outbox = Outbox::default();
        let count = 10 * INTERVALS_MAX as u64;
        for i in 0..count {
            outbox.add(2, &[interval((i % 2) as u32, i, 3.0)], &[]);
        }
        assert!(outbox.intervals.len() <= INTERVALS_MAX);
        let (mut units, mut busy) = (0.0, Duration::ZERO);
        let mut last = [BootTime::default(); 2];
        while let Some(batch) = outbox.take(usize::MAX) {
            assert!(batch.intervals.len() <= REPORT_INTERVALS_MAX);
            for i in batch.intervals {
                let lane = &mut last[i.lane as usize];
                assert!(i.began >= *lane, "intervals of a lane overlap");
                *lane = i.began.after(i.busy);
                units += i.units;
                busy += i.busy;
            }
        }
        assert_eq!(units, 3.0 * count as f64);
        assert_eq!(busy, Duration::from_millis(count));
    }

    #[test]
    fn a_report_has_the_lanes_that_its_work_was_done_on() {
        let mut outbox = Outbox::default();
        outbox.add(1, &[interval(0, 0, 1.0)], &[]);
        outbox.add(2, &[interval(0, 1, 1.0), interval(1, 1, 1.0)], &[]);
        outbox.add(1, &[interval(0, 2, 1.0), interval(0, 3, 1.0)], &[]); // a core was taken back
        let told: Vec<_> = std::iter::from_fn(|| outbox.take(usize::MAX))
            .map(|batch| (batch.lanes, batch.intervals.len()))
            .collect();
        assert_eq!(told, [(1, 1), (2, 2), (1, 2)]);
    }

    #[test]
    fn a_helper_is_no_lane() {
        let mut outbox = Outbox::default();
        let host = interval(1, 0, 0.0);
        outbox.add(1, &[interval(0, 0, 1.0), host], &[]);
        outbox.add(1, &[interval(5_000, 1, 1.0)], &[]); // no such lane on the wire
        let told = outbox.take(usize::MAX).unwrap();
        assert_eq!((told.lanes, told.intervals.len()), (1, 2));
        assert_eq!(told.intervals[1], host);
        assert!(outbox.is_empty());
        // What waits for long is merged lane by lane, helpers, too.
        for i in 0..INTERVALS_MAX as u64 {
            outbox.add(1, &[interval(0, i, 1.0), interval(1, i, 0.0)], &[]);
        }
        assert!(outbox.intervals.len() <= INTERVALS_MAX);
        assert_eq!(outbox.lanes, 1);
    }

    #[test]
    fn steps_go_with_or_after_the_work_before_them() {
        let mut outbox = Outbox::default();
        let many: Vec<_> = (0..600).map(|i| interval(0, i, 1.0)).collect();
        let step = Step {
            n: 1,
            consumed_units: 1.0,
            discarded_units: 0.0,
        };
        outbox.add(1, &many, &[step]);
        assert!(outbox.take(usize::MAX).unwrap().steps.is_empty());
        assert_eq!(outbox.take(usize::MAX).unwrap().steps, vec![step]);
        assert!(outbox.take(usize::MAX).is_none() && outbox.is_empty());
    }

    #[test]
    fn steps_are_merged_beyond_the_limit_and_nonsense_is_left_out() {
        let mut outbox = Outbox::default();
        for n in 1..=(STEPS_MAX as u64 + 5) {
            let step = Step {
                n,
                consumed_units: 2.0,
                discarded_units: 1.0,
            };
            outbox.add(1, &[interval(0, n, f64::NAN)], &[step]);
        }
        assert!(outbox.intervals.is_empty());
        assert_eq!(outbox.steps.len(), STEPS_MAX);
        let consumed: f64 = outbox.steps.iter().map(|s| s.consumed_units).sum();
        assert_eq!(consumed, 2.0 * (STEPS_MAX as f64 + 5.0));
    }
}
