//! The scenario as people write it, in TOML: only shapes and defaults. `docs/simulate.md` explains every key. What the
//! numbers may be is in `fields`, what they mean together in `check`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::Fidelity;
use super::fields;
use crate::jobfile::JobFile;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    pub(super) name: String,
    #[serde(default)]
    pub(super) about: String,
    #[serde(deserialize_with = "fields::some_time")]
    pub(super) seconds: f64,
    #[serde(default = "one")]
    pub(super) seed: u64,
    #[serde(default)]
    pub(super) fidelity: Fidelity,
    pub(super) node: Spanned<NodeFile>,
    pub(super) jobs: Vec<Spanned<JobEntry>>,
}

/// What each node has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeFile {
    /// Nodes like this one, each with jobs of its own.
    #[serde(default = "one_node", deserialize_with = "fields::nodes")]
    pub(super) count: u32,
    pub(super) cores: Spanned<u32>,
    #[serde(default)]
    pub(super) gpus: Option<Spanned<u16>>,
    #[serde(default)]
    pub(super) gpu: Option<Spanned<String>>,
    /// How much stages differ from node to node: coefficient of variation of their cost.
    #[serde(default, deserialize_with = "fields::part")]
    pub(super) variety: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobEntry {
    /// The job as `evenkeel submit` takes it, written here …
    pub(super) spec: Option<Spanned<JobFile>>,
    /// … or in a file beside the scenario.
    pub(super) file: Option<Spanned<PathBuf>>,
    #[serde(default, deserialize_with = "fields::time")]
    pub(super) arrives: f64,
    #[serde(default, deserialize_with = "fields::maybe_some_time")]
    pub(super) ends: Option<f64>,
    /// Arrivals and drifts come up to so much later, differently on each node.
    #[serde(default, deserialize_with = "fields::time")]
    pub(super) jitter: f64,
    #[serde(deserialize_with = "fields::units")]
    pub(super) units_per_iteration: f64,
    #[serde(default = "one", deserialize_with = "fields::staleness")]
    pub(super) staleness: u64,
    #[serde(default, deserialize_with = "fields::time")]
    pub(super) weight_sync: f64,
    /// Share of the rollout's units that training does not use.
    #[serde(default, deserialize_with = "fields::part")]
    pub(super) discarded: f64,
    /// How well the rollout's stages overlap.
    #[serde(default = "whole", deserialize_with = "fields::efficiency")]
    pub(super) overlap: f64,
    /// The planner is told of the overlap.
    #[serde(default)]
    pub(super) overlap_known: bool,
    /// By stage that is slowed down, by stage that slows it down.
    #[serde(default)]
    pub(super) interference: BTreeMap<String, BTreeMap<String, Spanned<Kappa>>>,
    /// The planner is told of the interference.
    #[serde(default)]
    pub(super) interference_known: bool,
    /// What it takes to pass a turn on, where stages take turns; else by memory.
    #[serde(default, deserialize_with = "fields::maybe_time")]
    pub(super) switch: Option<f64>,
    /// What the stages really do, by name.
    pub(super) stages: BTreeMap<String, Spanned<TruthFile>>,
    #[serde(default)]
    pub(super) drifts: Vec<Spanned<DriftFile>>,
}

/// A stage's slow-down by another one.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Kappa(#[serde(deserialize_with = "fields::kappa")] pub(super) f64);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TruthFile {
    // Environments on cores.
    #[serde(default, deserialize_with = "fields::maybe_environments")]
    pub(super) environments: Option<u32>,
    #[serde(default = "one_step", deserialize_with = "fields::chunk")]
    pub(super) chunk: u32,
    #[serde(default, deserialize_with = "fields::maybe_some_time")]
    pub(super) step: Option<f64>,
    #[serde(default)]
    pub(super) distribution: Distribution,
    #[serde(default, deserialize_with = "fields::spread")]
    pub(super) spread: f64,
    #[serde(default)]
    pub(super) stragglers: Stragglers,
    #[serde(default)]
    pub(super) resets: Resets,
    // A family of curves.
    #[serde(default, deserialize_with = "fields::maybe_rate")]
    pub(super) max_units_per_s: Option<f64>,
    #[serde(default, deserialize_with = "fields::maybe_knee")]
    pub(super) knee_sms: Option<f64>,
    #[serde(default = "whole", deserialize_with = "fields::exponent")]
    pub(super) exponent: f64,
    #[serde(default, deserialize_with = "fields::batch_half")]
    pub(super) batch_half: f64,
    // Measured.
    #[serde(default)]
    pub(super) points: Option<Vec<Spanned<PointFile>>>,
    pub(super) profile: Option<Spanned<PathBuf>>,
    // All kinds.
    #[serde(default, deserialize_with = "fields::spread")]
    pub(super) variation: f64,
    #[serde(default, deserialize_with = "fields::spread")]
    pub(super) noise: f64,
    #[serde(default, deserialize_with = "fields::maybe_time")]
    pub(super) restart: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Distribution {
    #[default]
    Lognormal,
    Gamma,
    Constant,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stragglers {
    #[serde(deserialize_with = "fields::share")]
    pub(super) share: f64,
    #[serde(deserialize_with = "fields::factor")]
    pub(super) times: f64,
}

impl Default for Stragglers {
    fn default() -> Self {
        Self {
            share: 0.0,
            times: 1.0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resets {
    #[serde(deserialize_with = "fields::share")]
    pub(super) probability: f64,
    #[serde(deserialize_with = "fields::time")]
    pub(super) cost: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PointFile {
    #[serde(default)]
    pub(super) cores: u32,
    #[serde(default)]
    pub(super) sms: u32,
    #[serde(default = "one_step", deserialize_with = "fields::chunk")]
    pub(super) batch: u32,
    #[serde(deserialize_with = "fields::rate")]
    pub(super) units_per_s: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DriftFile {
    pub(super) stage: String,
    #[serde(default)]
    pub(super) kind: DriftKind,
    #[serde(default, deserialize_with = "fields::time")]
    pub(super) at: f64,
    #[serde(deserialize_with = "fields::factor")]
    pub(super) factor: f64,
    #[serde(default, deserialize_with = "fields::maybe_some_time")]
    pub(super) over: Option<f64>,
    #[serde(default, deserialize_with = "fields::maybe_some_time")]
    pub(super) period: Option<f64>,
    #[serde(default)]
    pub(super) square: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DriftKind {
    #[default]
    Step,
    Ramp,
    Swing,
}

const fn one() -> u64 {
    1
}
const fn one_node() -> u32 {
    1
}
const fn one_step() -> u32 {
    1
}
const fn whole() -> f64 {
    1.0
}
