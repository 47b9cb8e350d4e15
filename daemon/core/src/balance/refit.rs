//! Refitting: live rates correct the curves that were measured alone.
//!
//! Pure functions on values. Either a stage's whole curve is rescaled by measured ÷ predicted at the present
//! quota and batch, or, where it stays off its prediction after a move (so that its *shape* is wrong), the
//! measured point joins the curve. Called by `decide::rebalance`.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Measured, Trigger};
use crate::allocate::{Problem, Share};
use crate::curve::Point;
use crate::job::StageSpec;
use crate::unit::Rate;

/// Relative deviation from the prediction after a move above which a measured point joins the curve.
pub const OFF_PREDICTION: f64 = 0.05;
/// Most live points kept for a stage; the oldest go first.
pub const LEARNED_MAX: usize = 16;
/// How much a live point counts against profiled ones: it is what co-running workers really do.
const LEARNED_WEIGHT: f64 = 100.0;
/// Bounds of the refit factor: beyond a thousandfold the profile is of something else.
const SCALE_RANGE: (f64, f64) = (1e-3, 1e3);

/// New factors and live points, by stage: what `Job::scale` and `Job::learned` become.
#[derive(Clone, Debug, PartialEq)]
pub struct Refit {
    /// Live ÷ profiled rate.
    pub scale: Vec<f64>,
    /// Live points.
    pub learned: Vec<Vec<Point>>,
    /// Measured ÷ predicted before the refit, by stage; none where nothing was measured or predicted.
    pub ratio: Vec<Option<f64>>,
    /// Sentences for a person.
    pub why: Vec<String>,
}

/// Corrects factors and live points from what was measured with `shares` in force. `problem` holds the curves
/// with the present factors.
pub fn refit(
    stages: &[StageSpec],
    problem: &Problem,
    shares: &[Share],
    scale: &[f64],
    learned: &[Vec<Point>],
    measured: &Measured,
    trigger: Trigger,
) -> Refit {
    let n = stages.len();
    let mut new = Refit {
        scale: (0..n)
            .map(|i| scale.get(i).copied().unwrap_or(1.0))
            .collect(),
        learned: (0..n)
            .map(|i| learned.get(i).cloned().unwrap_or_default())
            .collect(),
        ratio: Vec::with_capacity(n),
        why: Vec::new(),
    };
    for (i, stage) in stages.iter().enumerate() {
        let now = measured.stages.get(i).copied().flatten().zip(shares.get(i));
        let Some((now, share)) = now.filter(|(m, _)| m.rate > Rate::ZERO) else {
            new.ratio.push(None);
            continue;
        };
        // Where caps overlap, a stage that is busy works with what it can reach and not with what it is promised.
        let usable = share.cap.max(share.sms);
        let beside = |j: usize| {
            let row = measured.overlap.get(i);
            row.and_then(|row| row.get(j)).copied().unwrap_or(1.0)
        };
        // The curve with the others as busy as they were while this was measured.
        let slowed = problem.slowdown_beside(i, beside);
        let predicted = problem.rate(i, share.cores, usable, now.batch).get();
        let predicted = Rate::clamped(predicted / problem.slowdown(i) * slowed);
        let ratio = (predicted > Rate::ZERO).then(|| now.rate.get() / predicted.get());
        new.ratio.push(ratio);
        let point = Point {
            cores: share.cores,
            sms: usable,
            batch: now.batch,
            replicas: stage.workers,
            rate: Rate::clamped(now.rate.get() / slowed),
            memory: share.memory,
            weight: LEARNED_WEIGHT,
        };
        let Some(ratio) = ratio else {
            learn(&mut new.learned[i], point);
            new.why.push(format!(
                "{} had no curve: its live rate of {} is its first point.",
                stage.name, now.rate
            ));
            continue;
        };
        let off = libm::fabs(ratio - 1.0);
        if trigger == Trigger::AfterMove && off > OFF_PREDICTION {
            learn(&mut new.learned[i], point);
            new.why.push(format!(
                "{} runs at {ratio:.2} times its prediction after the move: the measured point joins its curve.",
                stage.name
            ));
        } else {
            new.scale[i] = (new.scale[i] * ratio).clamp(SCALE_RANGE.0, SCALE_RANGE.1);
            for p in &mut new.learned[i] {
                p.rate = Rate::clamped(p.rate.get() * ratio);
            }
            if off > 0.005 {
                new.why.push(format!(
                    "{} runs at {ratio:.2} times its prediction: its curve is rescaled.",
                    stage.name
                ));
            }
        }
    }
    new
}

/// Adds a point; one at the same place is replaced.
fn learn(points: &mut Vec<Point>, point: Point) {
    let place = |p: &Point| (p.cores, p.sms, p.batch);
    points.retain(|p| place(p) != place(&point));
    if points.len() >= LEARNED_MAX {
        points.remove(0);
    }
    points.push(point);
}
