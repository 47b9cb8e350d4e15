//! First guesses where nothing was measured: a straight line through the even share. Labelled as guesses wherever a
//! person meets them, and gone with the first measurement. Called by `together`, which has to compare jobs.
use alloc::vec::Vec;

use super::{Problem, Solution};
use crate::curve::{Curve, Point};
use crate::unit::Rate;

/// The throughput of a job of which nothing at all is known: any number does, since it is compared with itself.
const ANY: f64 = 1.0;

/// The problem with a guessed curve for each stage that has none: at the share that it gets `alone` it keeps up with
/// the others, and with less it does less in proportion. None if every stage of the balance was measured.
pub(super) fn filled_in(problem: &Problem, alone: &Solution) -> Option<Problem> {
    if problem.balanced_throughout() {
        return None;
    }
    let missing = (0..problem.stages.len()).filter(|i| problem.is_unmeasured(*i));
    let missing: Vec<usize> = missing.collect();
    let theta = if alone.theta > Rate::ZERO {
        alone.theta.get()
    } else {
        ANY
    };
    let mut guessed = problem.clone();
    for i in missing {
        let (stage, share) = (&mut guessed.stages[i], &alone.stages[i]);
        let keeps_up = if stage.role.is_rollout() {
            theta / problem.rollout_factor()
        } else {
            theta
        };
        let point = Point {
            cores: share.cores,
            sms: share.sms,
            batch: share.batch,
            replicas: stage.workers,
            rate: Rate::clamped(keeps_up),
            memory: stage.memory,
            weight: 1.0,
            ..Point::default()
        };
        stage.curve = Curve::fit(&[point], &[], 1.0, stage.workers);
    }
    Some(guessed)
}
