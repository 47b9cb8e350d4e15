//! Scenarios: what is simulated, read from TOML and checked. `file` has the shapes, `fields` what numbers may be, `check`
//! what they mean together; here is what comes out, which is trusted from then on.

mod check;
mod fields;
mod file;
#[cfg(test)]
mod tests;

use std::path::Path;

use evenkeel_core::job::{Detector, JobSpec};
use evenkeel_gpu::GpuSpec;
use serde::{Deserialize, Serialize};

use super::drift::Drift;
use super::law::Law;
use crate::fail::Failure;
use crate::files;

/// The largest scenario that is read: 64 jobs of eight stages with a hundred points each have some 4 MiB.
const FILE_MAX: u64 = 8 << 20;

/// How finely the pipeline is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fidelity {
    /// An event for each training iteration, with rates from formulas: for days, and for fleets.
    #[default]
    Step,
    /// An event for each chunk of an environment, each batch and each iteration: for small scenarios and for checks.
    Chunk,
}

/// A scenario that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    pub(crate) fidelity: Fidelity,
    pub(crate) nodes: Nodes,
    pub(crate) jobs: Vec<Job>,
}

/// The nodes: all alike.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub(crate) count: u32,
    pub(crate) cores: u32,
    pub(crate) gpus: u16,
    pub(crate) gpu: Option<GpuSpec>,
    pub(crate) variety: f64,
}

/// A job of each node.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) spec: JobSpec,
    /// Both detectors with the job's settings of each.
    pub(super) detectors: Detectors,
    pub(crate) arrives_s: f64,
    pub(crate) ends_s: Option<f64>,
    pub(crate) jitter_s: f64,
    /// What training consumes in one iteration.
    pub(crate) units_per_iteration: f64,
    pub(crate) staleness: u64,
    pub(crate) weight_sync_s: f64,
    pub(crate) discarded: f64,
    pub(crate) overlap: f64,
    pub(crate) overlap_known: bool,
    /// κ: by stage that is slowed down, then by stage that slows it down.
    pub(crate) kappa: Vec<Vec<f64>>,
    pub(crate) kappa_known: bool,
    pub(crate) switch_s: Option<f64>,
    /// The truth of each stage, in the job's order.
    pub(crate) stages: Vec<Truth>,
    pub(super) drifts: Vec<Drift>,
}

/// The detectors that are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detectors {
    pub(super) streak: Detector,
    pub(super) cusum: Detector,
}

/// What a stage really does.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    pub(super) law: Law,
    /// Coefficient of variation of the work of a window: it costs time.
    pub(super) variation: f64,
    /// Coefficient of variation of what meters show of it: it costs nothing.
    pub(super) noise: f64,
    /// Pause when its GPU share changes and it has to restart.
    pub(super) restart_s: f64,
}

impl Scenario {
    /// Reads a file. `seconds` is another length than its own, if one is wished for: what is beyond both is a mistake.
    pub(crate) fn read(path: &Path, seconds: Option<f64>) -> Result<Self, Failure> {
        let text = files::read(path, "scenario", FILE_MAX)?;
        let beside = path.parent().unwrap_or_else(|| Path::new("."));
        let name = &path.display().to_string();
        check::Reader {
            text: &text,
            name,
            beside,
            seconds,
        }
        .scenario()
    }

    /// Reads a text. `name` is what it is called in messages; other files that it names are looked for in `beside`.
    #[cfg(test)]
    pub(crate) fn parse(text: &str, name: &str, beside: &Path) -> Result<Self, Failure> {
        let seconds = None;
        check::Reader {
            text,
            name,
            beside,
            seconds,
        }
        .scenario()
    }
}
