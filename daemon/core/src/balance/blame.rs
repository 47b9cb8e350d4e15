//! How much of what a stage does less than its profile is a neighbour's fault: κ from live intervals and from co-run trials,
//! made to agree with the curves that were measured alone.
//!
//! Pure functions on values; `decide::rebalance` calls them before it refits. A slope over busy intervals says how a unit's
//! time follows a neighbour, but only over those phases of an iteration in which the neighbour happened to wait: often the
//! same ones each time. The profile says what is lost in all. Where both agree within a factor, the profile's total is taken.
use alloc::vec::Vec;

use super::Measured;
use crate::allocate::{Problem, Share};
use crate::curve::corun::numbers;
use crate::unit::{Rate, Sms};

/// By how much the total may correct a κ that is known, up or down: a curve that is further off than that is not taken at
/// its word, and the rest becomes the refit factor's.
const CORRECTED: f64 = 2.0;
/// The same of curves that are as profiled: the loss is theirs to tell, the slope tells whose fault it is.
const CORRECTED_FRESH: f64 = 8.0;
/// A loss below this is noise, or a profile that is a little old: nobody is blamed for it.
const LOSS_MIN: f64 = 0.03;
/// Nobody is made responsible who was busy in less than this share of the time.
const BESIDE_MIN: f64 = 0.1;
/// Larger losses are not interference but starvation.
const KAPPA_MAX: f64 = 20.0;

/// What is known of the interference. `fresh`: what live intervals say, over what co-run trials said before. Later, what was
/// made to agree with the curves goes before a slope; a pair of which nothing was found takes the slope. None: nothing at all.
pub fn known(
    stages: usize,
    before: &[Vec<Option<f64>>],
    live: &[Vec<Option<f64>>],
    fresh: bool,
) -> Vec<Vec<Option<f64>>> {
    let of = |k: &[Vec<Option<f64>>], i: usize, j: usize| k.get(i)?.get(j).copied().flatten();
    let at = |i: usize, j: usize| {
        let (live, before) = (of(live, i, j), of(before, i, j));
        match fresh {
            true => live.or(before),
            false => before.filter(|k| *k > 0.0).or(live).or(before),
        }
    };
    (0..stages)
        .map(|i| (0..stages).map(|j| at(i, j)).collect())
        .collect()
}

/// κ with which the curves alone and what was measured agree as far as interference can explain it. Known values are
/// corrected within bounds. `fresh`: the curves are as they were profiled, so that where nothing is known of
/// a stage, all that it does less is put down to those that share its GPU. Nothing changes where the overlap is not known.
pub fn attribute(
    problem: &Problem,
    shares: &[Share],
    measured: &Measured,
    known: &[Vec<Option<f64>>],
    fresh: bool,
) -> Option<Vec<Vec<f64>>> {
    let mut all = known.to_vec();
    for (i, row) in all.iter_mut().enumerate() {
        let Some(lost) = loss(problem, shares, measured, i) else {
            continue;
        };
        let beside = |j: usize| {
            let row = measured.overlap.get(i);
            row.and_then(|row| row.get(j)).copied().unwrap_or(0.0)
        };
        let shares_gpu = |j: usize| {
            let on_gpu = |s: usize| shares.get(s).is_some_and(|s| s.cap.max(s.sms) > Sms(0));
            i != j && on_gpu(i) && on_gpu(j) && problem.balanced(j) && !problem.in_turn(i, j)
        };
        let neighbours: Vec<usize> = (0..row.len())
            .filter(|j| shares_gpu(*j) && beside(*j) >= BESIDE_MIN)
            .collect();
        let explained: f64 = neighbours
            .iter()
            .map(|j| row[*j].unwrap_or(0.0) * beside(*j))
            .sum();
        let unknown: Vec<usize> = (neighbours.iter().copied())
            .filter(|j| fresh && row[*j].is_none())
            .collect();
        if !unknown.is_empty() && lost > explained + LOSS_MIN {
            // As much to each in the time in which it was there.
            let time: f64 = unknown.iter().map(|j| beside(*j)).sum();
            let kappa = ((lost - explained) / time).min(KAPPA_MAX);
            unknown.iter().for_each(|j| row[*j] = Some(kappa));
        } else if explained > LOSS_MIN {
            let most = if fresh { CORRECTED_FRESH } else { CORRECTED };
            let factor = (lost / explained).clamp(1.0 / most, most);
            for j in neighbours {
                row[j] = row[j].map(|k| (k * factor).min(KAPPA_MAX));
            }
        }
    }
    numbers(&all)
}

/// By how much longer a unit takes than alone, 0.5 for half as long again; none where either was never measured.
fn loss(problem: &Problem, shares: &[Share], measured: &Measured, i: usize) -> Option<f64> {
    let (now, share) = measured
        .stages
        .get(i)
        .copied()
        .flatten()
        .zip(shares.get(i))?;
    let usable = share.cap.max(share.sms);
    let alone = problem.rate(i, share.cores, usable, now.batch).get() / problem.slowdown(i);
    let measured = now.rate > Rate::ZERO && alone > 0.0;
    measured.then(|| (alone / now.rate.get() - 1.0).max(0.0))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn live_values_go_before_trials_and_after_what_was_made_to_agree() {
        let before = vec![vec![Some(0.0), Some(0.5)], vec![Some(0.2), Some(0.0)]];
        let live = vec![vec![None, Some(0.7)], vec![None, None]];
        let told = |fresh| numbers(&known(2, &before, &live, fresh));
        assert_eq!(told(true), Some(vec![vec![0.0, 0.7], vec![0.2, 0.0]]));
        assert_eq!(told(false), numbers(&before));
        assert_eq!(numbers(&known(2, &[], &[], true)), None);
        let of_nothing = known(2, &vec![vec![Some(0.0); 2]; 2], &live, false);
        assert_eq!(
            of_nothing[0][1],
            Some(0.7),
            "a slope where nothing was found"
        );
    }
}
