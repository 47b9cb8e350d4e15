//! Busy intervals as they are reported: per lane, without overlaps, merged, and bounded.
//!
//! A lane is a core or a GPU stream. Times are CLOCK_BOOTTIME nanoseconds; the client library turns them into
//! durations before the send. `busy_ns` of a merged interval is the sum of its parts: waiting in between is not in it.

use std::time::Duration;

use evenkeel_client::{BootTime, BusyInterval};

/// A gap up to this much inside a merged interval is bookkeeping between two pieces of work, not worth a message.
const MERGE_GAP_NS: u64 = 20_000_000;
/// Intervals of one lane that wait to be reported; beyond it neighbours are merged whatever the gap.
const PER_LANE_MAX: usize = 64;

/// A stretch of work on one lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lane.
    pub lane: u32,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Work units done in it.
    pub units: f64,
    /// Batch size it ran at; 1 where the stage has none.
    pub batch: u32,
    /// CPU time in it; 0: not measured.
    pub cpu_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Merged {
    first: Interval,
    busy_ns: u64,
}

/// Intervals that have not been reported yet, by lane.
#[derive(Clone, Debug, Default)]
pub struct BusyLog {
    lanes: Vec<Lane>,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    /// Where the last interval ended: the next one begins there at the earliest.
    end_ns: u64,
    waiting: Vec<Merged>,
}

impl BusyLog {
    /// Takes an interval in. What overlaps the one before it on its lane is clipped: a lane does one thing at a time.
    pub fn push(&mut self, interval: Interval) {
        let index = interval.lane as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, Lane::default);
        }
        let lane = &mut self.lanes[index];
        let start_ns = interval.start_ns.max(lane.end_ns);
        let end_ns = interval.end_ns.max(start_ns);
        let next = Interval {
            start_ns,
            end_ns,
            ..interval
        };
        let gap_ns = start_ns.saturating_sub(lane.end_ns);
        lane.end_ns = end_ns;
        let full = lane.waiting.len() >= PER_LANE_MAX;
        match lane.waiting.last_mut() {
            Some(last) if last.first.batch == next.batch && (gap_ns <= MERGE_GAP_NS || full) => {
                last.busy_ns += end_ns - start_ns;
                last.first.end_ns = end_ns;
                last.first.units += next.units;
                last.first.cpu_ns += next.cpu_ns;
            }
            // Only a lane that changes its batch size all the time comes here full: the oldest goes.
            _ => {
                if full {
                    lane.waiting.remove(0);
                }
                lane.waiting.push(Merged {
                    first: next,
                    busy_ns: end_ns - start_ns,
                });
            }
        }
    }

    /// Takes out all that waits, for a report.
    pub fn drain(&mut self) -> Vec<BusyInterval> {
        let waiting = self
            .lanes
            .iter_mut()
            .flat_map(|lane| lane.waiting.drain(..));
        waiting
            .map(|merged| BusyInterval {
                lane: merged.first.lane,
                began: BootTime::from_micros(merged.first.start_ns / 1_000),
                busy: Duration::from_nanos(merged.busy_ns),
                units: merged.first.units,
                batch: merged.first.batch,
                cpu: Duration::from_nanos(merged.first.cpu_ns),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn interval(lane: u32, start_ms: u64, end_ms: u64, units: f64) -> Interval {
        Interval {
            lane,
            start_ns: start_ms * MS,
            end_ns: end_ms * MS,
            units,
            batch: 1,
            cpu_ns: (end_ms - start_ms) * MS / 2,
        }
    }

    fn check(intervals: &[Interval], expect: &[(u32, u64, u64, f64)]) {
        let mut log = BusyLog::default();
        intervals.iter().for_each(|i| log.push(*i));
        let got: Vec<_> = log
            .drain()
            .iter()
            .map(|b| {
                (
                    b.lane,
                    b.began.as_micros() / 1_000,
                    b.busy.as_millis() as u64,
                    b.units,
                )
            })
            .collect();
        assert_eq!(got, expect);
        assert!(log.drain().is_empty(), "told once");
    }

    #[test]
    fn neighbours_are_merged_without_the_wait_between_them() {
        check(
            &[interval(0, 100, 110, 2.0), interval(0, 112, 120, 3.0)],
            &[(0, 100, 18, 5.0)],
        );
        check(
            &[interval(0, 100, 110, 2.0), interval(0, 150, 160, 3.0)],
            &[(0, 100, 10, 2.0), (0, 150, 10, 3.0)],
        );
    }

    #[test]
    fn lanes_and_batches_are_kept_apart() {
        check(
            &[interval(0, 100, 110, 1.0), interval(1, 100, 110, 1.0)],
            &[(0, 100, 10, 1.0), (1, 100, 10, 1.0)],
        );
        let other = Interval {
            batch: 2,
            ..interval(0, 110, 120, 1.0)
        };
        check(
            &[interval(0, 100, 110, 1.0), other],
            &[(0, 100, 10, 1.0), (0, 110, 10, 1.0)],
        );
    }

    #[test]
    fn an_overlap_is_clipped() {
        check(
            &[interval(0, 100, 110, 1.0), interval(0, 105, 115, 1.0)],
            &[(0, 100, 15, 2.0)],
        );
        check(
            &[interval(0, 100, 110, 1.0), interval(0, 101, 102, 1.0)],
            &[(0, 100, 10, 2.0)],
        );
    }

    #[test]
    fn what_waits_is_bounded_and_no_unit_is_lost() {
        let mut log = BusyLog::default();
        (0..1_000).for_each(|n| log.push(interval(0, n * 100, n * 100 + 10, 1.0)));
        let told = log.drain();
        assert!(told.len() <= PER_LANE_MAX, "{}", told.len());
        assert_eq!(told.iter().map(|b| b.units).sum::<f64>(), 1_000.0);
        assert_eq!(
            told.iter().map(|b| b.busy.as_millis()).sum::<u128>(),
            10_000
        );
    }
}
