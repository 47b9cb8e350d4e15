//! What a worker reports, and what it is told: busy intervals, steps, directives.
use std::collections::BTreeMap;
use std::time::Duration;

use super::amount::Vector;
use crate::clock::BootTime;

/// A stretch of work on one lane (a core or a GPU stream). Intervals of one lane never overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusyInterval {
    /// The lane, 0 to 1,023. Those from the number of lanes on, without units, are helpers: host work beside a GPU
    /// stream, say, which the worker cannot be faster than.
    pub lane: u32,
    /// When it began.
    pub began: BootTime,
    /// How long it lasted, waiting for other stages excluded.
    pub busy: Duration,
    /// Work units done in it, finite and not negative.
    pub units: f64,
    /// Batch size it ran at; 0: none.
    pub batch: u32,
    /// CPU time in it, for diagnosis; zero: not measured.
    pub cpu: Duration,
}

/// One training iteration is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 1, rising.
    pub n: u64,
    /// Distinct work units trained on.
    pub consumed_units: f64,
    /// Work units dropped: stale, masked, filtered.
    pub discarded_units: f64,
}

/// What a worker is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectiveKind {
    /// Apply the target and acknowledge.
    Target,
    /// Checkpoint at the next step boundary and restart with the target.
    Restart,
    /// Give the lease back.
    Release,
    /// Give GPU memory back that is not needed.
    ReclaimMemory,
    /// Finish what runs and give the lease back: the node is being drained.
    Drain,
}

/// One directive. The latest generation wins; it is sent again on reconnect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// What to do.
    pub kind: DirectiveKind,
    /// Rises with each new target; the acknowledgement carries it.
    pub generation: u64,
    /// What the lease is to have.
    pub target: Vector,
    /// Batch size that the plan chose for the stage; none: unchanged.
    pub batch: Option<u32>,
    /// Why, for a person.
    pub reason: String,
    /// Environment for a restarted worker.
    pub environment: BTreeMap<String, String>,
}
