//! What each seed of the demo does: the load that drifts, by how much, and when. Fixed, so that figures can be
//! compared; the drift is a scripted change of the task and is said to be one.

use serde::{Deserialize, Serialize};

/// A stage of the demo's pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// Physics of the reaching arm, on cores.
    Simulation,
    /// The denoising policy, on the emulated GPU.
    Generation,
    /// The policy's update, on the emulated GPU.
    Training,
}

impl Stage {
    /// All of them, in data-flow order.
    pub(crate) const ALL: [Self; 3] = [Self::Simulation, Self::Generation, Self::Training];

    /// Its name in the job.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Simulation => "simulation",
            Self::Generation => "generation",
            Self::Training => "training",
        }
    }
}

/// A scripted change of the task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Drift {
    /// Whose work grows.
    pub(crate) stage: Stage,
    /// By how much.
    pub(crate) factor: f64,
}

/// What a seed stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Script {
    /// What changes.
    pub(crate) drift: Drift,
    /// How much faster one core simulates than the GPU can use, before the drift.
    pub(crate) simulator_headroom: f64,
}

/// The script of a seed; seeds above 5 repeat the five drifts with other environments and noise.
pub(crate) fn script(seed: u64) -> Script {
    let (stage, factor) = match seed % 5 {
        1 => (Stage::Generation, 1.5),
        2 => (Stage::Generation, 2.0),
        3 => (Stage::Training, 1.5),
        4 => (Stage::Training, 2.0),
        _ => (Stage::Simulation, 1.5),
    };
    // With a simulator that drifts, one core is just enough before and too little after, and a core may turn out a
    // tenth slower or faster than it was when it was tried: 1.13 × 0.9 is enough before, 1.13 × 1.1 / 1.5 leaves a
    // gap of 17 % after. Elsewhere the GPU binds.
    let simulator_headroom = if stage == Stage::Simulation {
        1.13
    } else {
        3.0
    };
    Script {
        drift: Drift { stage, factor },
        simulator_headroom,
    }
}

impl Drift {
    /// In words.
    pub(crate) fn describe(&self) -> String {
        let (factor, what) = (self.factor, self.stage.name());
        let how = match self.stage {
            Stage::Simulation => "a finer time step of the physics",
            Stage::Generation => "more denoising steps for each chunk of actions",
            Stage::Training => "more epochs over each rollout",
        };
        format!("{what} becomes {factor} times as heavy ({how})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_five_drifts_are_the_documented_ones() {
        let drift = |seed| (script(seed).drift.stage, script(seed).drift.factor);
        assert_eq!(drift(1), (Stage::Generation, 1.5));
        assert_eq!(drift(2), (Stage::Generation, 2.0));
        assert_eq!(drift(3), (Stage::Training, 1.5));
        assert_eq!(drift(4), (Stage::Training, 2.0));
        assert_eq!(drift(5), (Stage::Simulation, 1.5));
        assert_eq!(drift(6), drift(1));
    }
}
