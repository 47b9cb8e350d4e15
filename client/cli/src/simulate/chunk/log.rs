//! Who was busy when since the last window, lane by lane, by the pipeline's own clock: what the fine engine tells meters.
//! The simulator's lanes are numbered from the lowest free one, as cores are taken.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{GENERATION, SIMULATION, TRAINING};
use crate::simulate::meter::{Done, Spell};

/// A time in which a lane was busy.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    lane: u32,
    from_ns: u64,
    to_ns: u64,
    units: f64,
}

/// What each stage did since the last window.
#[derive(Debug, Default)]
pub(super) struct Log {
    stretches: [Vec<Stretch>; 3],
    free: BinaryHeap<Reverse<u32>>,
    lanes: u32,
    /// The lane of each environment that is on one, and since when.
    on_lane: Vec<(u32, u64)>,
}

impl Log {
    pub(super) fn of(environments: usize) -> Self {
        Self {
            on_lane: vec![(0, 0); environments],
            ..Self::default()
        }
    }

    /// An environment takes a lane.
    pub(super) fn takes_lane(&mut self, env: usize, now_ns: u64) {
        let lane = self.free.pop().map_or(self.lanes, |Reverse(lane)| lane);
        self.lanes = self.lanes.max(lane + 1);
        self.on_lane[env] = (lane, now_ns);
    }

    /// An environment has run its chunk.
    pub(super) fn leaves_lane(&mut self, env: usize, now_ns: u64, units: f64) {
        let (lane, from_ns) = self.on_lane[env];
        self.free.push(Reverse(lane));
        self.stretches[SIMULATION].push(Stretch {
            lane,
            from_ns,
            to_ns: now_ns,
            units,
        });
    }

    /// A batch was served.
    pub(super) fn generated(&mut self, span_ns: (u64, u64), units: f64) {
        self.stretches[GENERATION].push(on_gpu(span_ns, units));
    }

    /// An iteration was trained.
    pub(super) fn trained(&mut self, span_ns: (u64, u64), units: f64) {
        self.stretches[TRAINING].push(on_gpu(span_ns, units));
    }

    /// What a stage with so many lanes did, times from `offset_s` on, and its units a busy second: 0 for one that did
    /// nothing, which is silent then, as a worker would be.
    pub(super) fn take(&mut self, which: usize, lanes: u32, offset_s: f64) -> (f64, Done) {
        let told = std::mem::take(&mut self.stretches[which]);
        // Right after a core is taken away its last chunk may be on a lane that is no more.
        let used = told.iter().map(|stretch| stretch.lane + 1).max();
        let lanes = lanes.max(used.unwrap_or(1));
        let spells = told.into_iter().map(|stretch| Spell {
            lane: stretch.lane,
            from_s: offset_s + stretch.from_ns as f64 * 1e-9,
            to_s: offset_s + stretch.to_ns as f64 * 1e-9,
            units: stretch.units,
        });
        let spells: Vec<Spell> = spells.collect();
        let busy_s: f64 = spells.iter().map(|s| s.to_s - s.from_s).sum();
        let units: f64 = spells.iter().map(|s| s.units).sum();
        let rate = if busy_s > 0.0 {
            units * f64::from(lanes) / busy_s
        } else {
            0.0
        };
        (rate, Done { lanes, spells })
    }
}

const fn on_gpu((from_ns, to_ns): (u64, u64), units: f64) -> Stretch {
    Stretch {
        lane: 0,
        from_ns,
        to_ns,
        units,
    }
}
