//! Stages whose GPU share can never change: a new split leaves them what they have of it. Called by `plan` and by
//! `decide::rebalance`, before and after the search.
use super::{Problem, Solution};

/// Narrows the pinned stages (by index; shorter lists pin nobody else) to the SMs, the bytes and the batch size that
/// they have now. Their cores may still change.
pub fn pin(problem: &mut Problem, pinned: &[bool], now: &Solution) {
    let stages = problem.stages.iter_mut().zip(&now.stages).zip(pinned);
    for ((stage, share), _) in stages.filter(|(_, pinned)| **pinned) {
        stage.sms = (share.sms, share.sms);
        stage.batches = [share.batch].into();
        stage.memory = share.memory;
        stage.curve = stage.curve.take().map(|c| c.with_memory(share.memory));
    }
}

/// Gives the pinned stages of a new split the caps that they have now: caps may overlap, so nobody loses by it.
pub fn keep_caps(solution: &mut Solution, pinned: &[bool], now: &Solution) {
    let stages = solution.stages.iter_mut().zip(&now.stages).zip(pinned);
    for ((share, had), _) in stages.filter(|(_, pinned)| **pinned) {
        share.cap = had.cap;
    }
}
