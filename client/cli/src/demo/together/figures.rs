//! The figures of a run with two jobs, as programs read them. Names and units are stable.

use serde::Serialize;

use crate::demo::talk::Observed;
use crate::demo::watch::SplitShares;

/// One job over one measured stretch of time, from training step to training step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Phase {
    pub(crate) measured_units_per_s: f64,
    /// By the plan that was in force when the stretch began: what it was expected to do when it was made.
    pub(crate) predicted_units_per_s: f64,
    pub(crate) measured_over_predicted: f64,
    /// The best that the curves, as they were refitted by then, allow with what the job has and what is free.
    pub(crate) refitted_units_per_s: f64,
    pub(crate) measured_over_refitted: f64,
    /// Measured over what the first job did alone; both do the same work.
    pub(crate) level: f64,
    /// The same of what was predicted.
    pub(crate) predicted_level: f64,
    pub(crate) split: SplitShares,
    /// How far the slower of rollout and training was behind, at the end.
    pub(crate) gap: f64,
    /// Training steps in it.
    pub(crate) steps: usize,
    pub(crate) staleness_most: u64,
    /// Moves of the job's shares since the job began.
    pub(crate) moves: u32,
    /// And those within the stretch, after which the split and the predictions were others.
    pub(crate) moves_meanwhile: u32,
}

impl Phase {
    /// With its levels, by what the first job did alone.
    pub(crate) fn levelled(self, alone: &Self) -> Self {
        let over = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Self {
            level: over(self.measured_units_per_s, alone.measured_units_per_s),
            predicted_level: over(self.predicted_units_per_s, alone.predicted_units_per_s),
            ..self
        }
    }
}

/// The second job came. Seconds are counted from its submission.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Arrival {
    /// Until the daemon promised it its part; none: the audit trail does not say.
    pub(crate) second_admitted_seconds: Option<f64>,
    /// Until the first job had confirmed its smaller share.
    pub(crate) first_confirmed_seconds: f64,
    /// Until the second job had done its first training step, the start of its processes included.
    pub(crate) second_runs_seconds: f64,
    /// From then on: until the curves of both were refitted and their shares at rest.
    pub(crate) settled_seconds: f64,
    pub(crate) first_split_before: SplitShares,
    pub(crate) first_split_after: SplitShares,
    pub(crate) second_split: SplitShares,
    /// The daemon's sentence on why the first job gave something up.
    pub(crate) first_reason: String,
    /// And on what part the second has.
    pub(crate) second_reason: String,
}

/// The second job ended. Seconds are counted from when its workers were told to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Departure {
    /// Until its workers were gone and the job was cancelled.
    pub(crate) second_ended_seconds: f64,
    /// Until the first job had confirmed its larger share.
    pub(crate) first_confirmed_seconds: f64,
    /// Whether that is no less than it had alone.
    pub(crate) everything_back: bool,
    pub(crate) first_split_before: SplitShares,
    pub(crate) first_split_after: SplitShares,
    /// The daemon's sentence on why.
    pub(crate) first_reason: String,
}

/// The figures of a run with two jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Always: nobody is told that it is a real GPU.
    pub(crate) gpu_is_emulated: bool,
    pub(crate) jobs: u8,
    pub(crate) seed: u64,
    pub(crate) policy: String,
    pub(crate) unit: &'static str,
    pub(crate) phase_seconds: u64,
    pub(crate) first_job: &'static str,
    pub(crate) second_job: &'static str,
    pub(crate) first_alone: Phase,
    pub(crate) arrival: Arrival,
    pub(crate) first_shared: Phase,
    pub(crate) second_shared: Phase,
    pub(crate) departure: Departure,
    pub(crate) first_after: Phase,
    pub(crate) overcommit_seconds: f64,
    /// Over the whole run, both jobs' processes.
    pub(crate) observer: Observed,
    pub(crate) physics_substeps: u32,
    pub(crate) run_seconds: f64,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run as it might have been.
    pub(in crate::demo::together) fn figures() -> Figures {
        let split = |simulation_cores, generation_sms, training_sms| SplitShares {
            simulation_cores,
            generation_sms,
            training_sms,
        };
        let (whole, half) = (split(2, 56, 76), split(1, 24, 42));
        let phase = |measured, predicted, split| Phase {
            measured_units_per_s: measured,
            predicted_units_per_s: predicted,
            measured_over_predicted: measured / predicted,
            refitted_units_per_s: measured,
            measured_over_refitted: 1.0,
            split,
            ..Phase::default()
        };
        let alone = phase(3_120.0, 3_100.0, whole);
        Figures {
            gpu_is_emulated: true,
            jobs: 2,
            seed: 1,
            policy: "waterfill".to_owned(),
            unit: "env_step",
            phase_seconds: 20,
            first_job: "reach",
            second_job: "reach-2",
            first_alone: alone.clone().levelled(&alone),
            arrival: Arrival {
                second_admitted_seconds: Some(0.01),
                first_confirmed_seconds: 0.384,
                second_runs_seconds: 2.916,
                settled_seconds: 9.0,
                first_split_before: whole,
                first_split_after: half,
                second_split: half,
                first_reason:
                    "job reach-2 came: from 3100 to 1700, 55 % of what it would do alone \
                               by its weight."
                        .to_owned(),
                second_reason: "2 jobs share the node: this one does 55 % of what it would do \
                                alone."
                    .to_owned(),
            },
            first_shared: phase(1_710.0, 1_700.0, half).levelled(&alone),
            second_shared: phase(1_690.0, 1_700.0, half).levelled(&alone),
            departure: Departure {
                second_ended_seconds: 0.21,
                first_confirmed_seconds: 0.52,
                everything_back: true,
                first_split_before: half,
                first_split_after: whole,
                first_reason:
                    "there is room that a job has left: from 1700 to 3100, 100 % of what \
                               it would do alone by its weight."
                        .to_owned(),
            },
            first_after: phase(3_110.0, 3_100.0, whole).levelled(&alone),
            overcommit_seconds: 0.0,
            observer: Observed {
                looks: 4_321,
                ..Observed::default()
            },
            physics_substeps: 9,
            run_seconds: 120.0,
        }
    }

    #[test]
    fn the_json_has_the_documented_names() {
        let json = serde_json::to_value(figures()).unwrap();
        for (path, expect) in [
            ("/gpu_is_emulated", serde_json::json!(true)),
            ("/jobs", serde_json::json!(2)),
            ("/first_alone/level", serde_json::json!(1.0)),
            ("/first_shared/split/generation_sms", serde_json::json!(24)),
            (
                "/second_shared/measured_units_per_s",
                serde_json::json!(1_690.0),
            ),
            ("/arrival/first_confirmed_seconds", serde_json::json!(0.384)),
            ("/arrival/second_runs_seconds", serde_json::json!(2.916)),
            ("/departure/everything_back", serde_json::json!(true)),
            ("/first_after/predicted_level", serde_json::json!(1.0)),
            ("/observer/looks", serde_json::json!(4_321)),
        ] {
            assert_eq!(json.pointer(path), Some(&expect), "{path} in {json}");
        }
    }

    #[test]
    fn levels_are_by_what_the_first_job_did_alone() {
        let of = |measured_units_per_s, predicted_units_per_s| Phase {
            measured_units_per_s,
            predicted_units_per_s,
            ..Phase::default()
        };
        let levels = |phase: Phase, alone| {
            let phase = phase.levelled(&alone);
            (phase.level, phase.predicted_level)
        };
        assert_eq!(levels(of(50.0, 60.0), of(100.0, 120.0)), (0.5, 0.5));
        assert_eq!(levels(of(50.0, 60.0), of(0.0, 0.0)), (0.0, 0.0));
    }
}
