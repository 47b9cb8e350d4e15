//! What a calibration says at its end, to people and to scripts.
use serde::Serialize;

use super::NO_GPU;
use crate::args::Globals;
use crate::fail::Failure;
use crate::out;
use crate::units::counted;

/// What was done for a stage.
#[derive(Default, Serialize)]
pub(super) struct StageSummary {
    pub(super) stage: String,
    pub(super) gpu: String,
    pub(super) measured: u32,
    pub(super) does_not_fit: u32,
    pub(super) skipped: u32,
    pub(super) known_before: u32,
    /// Points of the whole grid.
    pub(super) grid: u32,
}

#[derive(Serialize)]
struct Summary {
    stages: Vec<StageSummary>,
    pairs: u32,
    interrupted: bool,
    /// Why no more was tried.
    stopped: String,
}

/// How a calibration ended.
pub(super) struct End {
    /// Trials of pairs that were stored.
    pub(super) pairs: u32,
    /// It was interrupted, and what goes on from there.
    pub(super) interrupted: Option<&'static str>,
    /// Why no more was tried.
    pub(super) stopped: String,
}

/// Says what was done, and fails if nothing was.
pub(super) fn conclude(
    globals: &Globals,
    stages: Vec<StageSummary>,
    end: End,
) -> Result<(), Failure> {
    let End {
        pairs,
        interrupted,
        stopped,
    } = end;
    // Who calibrates in a script goes on only with something to go on with.
    let got = |s: &StageSummary| s.measured + s.does_not_fit + s.known_before;
    let is_vain = stages.iter().map(got).sum::<u32>() == 0 && stages.iter().any(|s| s.skipped > 0);
    if globals.json() {
        out::json(&Summary {
            stages,
            pairs,
            interrupted: interrupted.is_some(),
            stopped,
        });
    } else {
        for s in &stages {
            out::note(format_args!(
                "{} ({}): measured {}, not fitting {}, skipped {}, known before {} of {} points; \
                 see `evenkeel calibrate show {}`",
                s.stage,
                match s.gpu.as_str() {
                    NO_GPU => "no GPU work",
                    model => model,
                },
                s.measured,
                s.does_not_fit,
                s.skipped,
                s.known_before,
                s.grid,
                s.stage
            ));
        }
        if pairs > 0 {
            let trials = counted(pairs.into(), "trial");
            out::note(format_args!("pairs: {trials} stored"));
        }
        if interrupted.is_none() {
            out::note(format_args!("stopped: {stopped}"));
        }
    }
    if is_vain && interrupted.is_none() {
        return Err(Failure::new(
            "nothing was measured: every point was skipped, for the reasons above",
        ));
    }
    if let Some(goes_on) = interrupted {
        let what = format!("interrupted; what was measured is stored, and {goes_on}");
        return Err(Failure::new(what).code(130));
    }
    Ok(())
}
