//! What a worker has done and not reported yet: busy intervals and steps, shared between the loop that works and the
//! thread that reports.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_client::{BusyInterval, Step};

use crate::busy::{BusyLog, Interval};

/// Steps that wait to be reported: hours of them. Beyond it the oldest go.
const STEPS_MAX: usize = 4_096;

/// The counters of one worker.
#[derive(Debug)]
pub struct Meter {
    lanes: AtomicU32,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    busy: BusyLog,
    steps: Vec<Step>,
}

/// One report's worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drained {
    pub(crate) lanes: u32,
    pub(crate) busy: Vec<BusyInterval>,
    pub(crate) steps: Vec<Step>,
}

impl Meter {
    /// A meter for so many lanes.
    pub fn new(lanes: u32) -> Self {
        Self {
            lanes: AtomicU32::new(lanes),
            log: Mutex::new(Log::default()),
        }
    }

    /// The worker has another number of lanes now. What was measured on the old ones and not reported is dropped:
    /// one report has one number of lanes.
    pub fn set_lanes(&self, lanes: u32) {
        let mut log = self.lock();
        if self.lanes.swap(lanes, Ordering::SeqCst) != lanes {
            log.busy = BusyLog::default();
        }
    }

    /// Takes an interval of host work in, done beside what the lanes do: it carries no units, and the worker cannot be
    /// faster than it.
    pub fn push_host(&self, start_ns: u64, end_ns: u64) {
        let mut log = self.lock();
        let interval = Interval {
            lane: self.lanes.load(Ordering::SeqCst), // the first behind them
            start_ns,
            end_ns,
            units: 0.0,
            batch: 1,
            cpu_ns: 0,
        };
        log.busy.push(interval);
    }

    /// Takes an interval in; one of a lane that is gone by now is dropped.
    pub fn push(&self, interval: Interval) {
        let mut log = self.lock();
        if interval.lane < self.lanes.load(Ordering::SeqCst) {
            log.busy.push(interval);
        }
    }

    /// A training step is over.
    pub fn step(&self, step: Step) {
        let mut log = self.lock();
        if log.steps.len() >= STEPS_MAX {
            log.steps.remove(0);
        }
        log.steps.push(step);
    }

    pub(crate) fn drain(&self) -> Drained {
        let mut log = self.lock();
        Drained {
            lanes: self.lanes.load(Ordering::SeqCst),
            busy: log.busy.drain(),
            steps: std::mem::take(&mut log.steps),
        }
    }

    /// Units and busy nanoseconds of all lanes (not of host work beside them) since the last call of this or of the reporting thread: what a worker
    /// that holds no lease can read instead of reporting.
    pub fn take_totals(&self) -> (f64, u64) {
        let drained = self.drain();
        let on_lanes = || drained.busy.iter().filter(|b| b.lane < drained.lanes);
        let units = on_lanes().map(|b| b.units).sum();
        let busy: u128 = on_lanes().map(|b| b.busy.as_nanos()).sum();
        (units, u64::try_from(busy).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
