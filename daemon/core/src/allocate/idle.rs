//! Splits that leave a stage without work: a job with one would be predicted at 0 units/s, hold its share and do
//! nothing. Not part of the search, which knows no reason to refuse a split that fits. Called by `plan`.
use alloc::format;
use alloc::string::String;

use super::{Amount, Inputs, Problem, Resource, Share, Solution, Stage};
use crate::id::Name;
use crate::job::Role;
use crate::unit::{Rate, Sms};

/// A stage that would do no work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stage {stage} would do 0 units/s: {why}")]
pub struct Idle {
    /// The stage.
    pub stage: Name,
    /// Why, and what to do about it.
    pub why: String,
}

/// The first stage of the balance that would do no work with its share of `solution`.
pub(super) fn idle(inputs: &Inputs<'_>, problem: &Problem, solution: &Solution) -> Option<Idle> {
    let stages = problem.stages.iter().zip(&solution.stages).enumerate();
    let mut counted = stages.filter(|(_, (stage, _))| stage.role != Role::Other);
    counted.find_map(|(i, (stage, share))| {
        let profile = inputs.profiles.get(i).copied().flatten();
        let points = profile.map_or(0, |p| p.points.len());
        Some(Idle {
            stage: stage.name.clone(),
            why: why(stage, share, points)?,
        })
    })
}

/// Why a stage would do no work; none if it would, or if nobody knows: what was never measured is no zero.
fn why(stage: &Stage, share: &Share, points: usize) -> Option<String> {
    if stage.curve.is_some() {
        return (share.rate == Rate::ZERO).then(|| {
            format!(
                "its profile says so for all that it can have here, {} and {}; allow it more, or let the other \
                 stages' least leave more",
                Amount(Resource::Cores, share.cores.into()),
                share.sms
            )
        });
    }
    if points > 0 {
        return Some(format!(
            "none of the {points} measurements of its profile did any work; calibrate it again"
        ));
    }
    (stage.sms.1 > Sms(0) && share.sms == Sms(0)).then(|| {
        format!(
            "it is declared to work on a GPU and no SM can be given to each of its workers ({}{}); allow it more, let \
             the other stages' least leave more, or declare that it needs no GPU",
            stage.workers,
            match stage.sms.1 {
                Sms(u32::MAX) => String::new(),
                most => format!(", {most} at most"),
            }
        )
    })
}
