//! Trials by a running worker: what it is asked for, and what it answers.
use std::time::Duration;

/// One trial, as a worker that offered itself is asked for it: it uses so much of its lease, works for the warm-up, and
/// measures for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Its number; the answer carries it.
    pub id: u64,
    /// Cores to use, of the lease's.
    pub cores: u32,
    /// SMs to use on each GPU, of the lease's.
    pub sms: u32,
    /// Batch size; 1 where the stage has none.
    pub batch: u32,
    /// Workers to run side by side; at least 1.
    pub replicas: u32,
    /// How long to work before anything is measured: caches, clocks and compilers settle.
    pub warmup: Duration,
    /// How long to measure.
    pub measure: Duration,
}

/// What a trial gave.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialAnswer {
    /// It works.
    Measured {
        /// Work units per second, of all replicas together; finite and not negative.
        units_per_s: f64,
        /// Peak GPU memory in bytes on each GPU; 0: not measured.
        memory_bytes: u64,
    },
    /// It does not work at this share: out of memory, say.
    Failed {
        /// Why, for a person; what is beyond 500 bytes is cut off.
        why: String,
    },
}

/// A trial that a calibration wants from a running worker.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialRequest {
    /// Fingerprint of the stage's profile, `job/stage` by default.
    pub stage: String,
    /// What to measure; the number is the daemon's to give.
    pub trial: Trial,
    /// How long the answer may take beyond warm-up and measurement; then the trial has failed.
    pub patience: Duration,
}
