//! Measured throughput: points, profiles, and the monotone curves that are fitted to them.
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::id::Name;
use crate::unit::{Bytes, Rate, Sms};

/// One measurement of a stage (all its workers together, per GPU of the job for SMs).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Cores that the stage had.
    pub cores: u32,
    /// SMs that the stage had on each GPU of the job (effective, not asked).
    pub sms: Sms,
    /// Batch size, in the stage's own unit (environments, chunks, samples); 1 where it has none.
    pub batch: u32,
    /// Replicas (workers) that ran.
    pub replicas: u32,
    /// Work units per second; zero says that it did not fit or did not run.
    pub rate: Rate,
    /// Peak GPU memory in bytes on each GPU.
    pub memory: Bytes,
    /// How much the point counts in a fit: its repeats, say.
    pub weight: f64,
}

/// What a profile belongs to. Foreign hardware makes a profile foreign.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProfileKey {
    /// Whose it is.
    pub tenant: Name,
    /// The stage's fingerprint: by default `job/stage`, or what the job file declares.
    pub stage: Name,
    /// GPU model measured on; `none` for stages without a GPU.
    pub gpu: Name,
}

/// All points of one stage on one kind of hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// What it belongs to.
    pub key: ProfileKey,
    /// The points, in the order in which they were measured.
    pub points: Vec<Point>,
}
