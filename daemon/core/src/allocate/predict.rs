//! What shares yield: each stage's rate with the others as busy as they then are.
//!
//! A search takes every stage as busy all the time, which is so where all are in balance, and too careful elsewhere. Here a
//! stage that is faster than the job is busy only in `Θ / T_j` of the time, and slows the others by no more. Used for what
//! a plan says, and to compare two splits.
use alloc::vec::Vec;

use super::{Problem, Share};
use crate::unit::Rate;

/// Rounds of the fixed point: it gains a digit each or so.
const ROUNDS: usize = 40;
/// Where a round changes less, it is found.
const CLOSE: f64 = 1e-12;

/// Throughputs that follow from shares, in work units per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// By stage; zero for one that was never measured.
    pub rates: Vec<Rate>,
    /// The rollout's.
    pub t_r: Rate,
    /// Training's.
    pub t_train: Rate,
    /// The job's.
    pub theta: Rate,
}

impl Problem {
    /// What these shares (one for each stage) yield.
    pub fn predict(&self, shares: &[Share]) -> Prediction {
        let busy = |(i, s): (usize, &Share)| {
            let usable = self.reach(i, s.sms);
            self.rate(i, s.cores, usable, s.batch).get()
        };
        let mut rates: Vec<f64> = shares.iter().enumerate().map(busy).collect();
        if self.kappa.is_some() {
            let alone: Vec<f64> = rates
                .iter()
                .enumerate()
                .map(|(i, r)| r / self.slowdown(i))
                .collect();
            let mut theta = self.combine(&rates).2;
            for _ in 0..ROUNDS {
                let units = |j: usize| match self.stages[j].role.is_rollout() {
                    true => theta / self.yielded,
                    false => theta,
                };
                let before = rates.clone();
                let u = |j: usize| match self.balanced(j) && before[j] > 0.0 {
                    true => units(j) / before[j],
                    false => 1.0,
                };
                for (i, rate) in rates.iter_mut().enumerate() {
                    *rate = Rate::clamped(alone[i] * self.slowdown_beside(i, u)).get();
                }
                let next = self.combine(&rates).2;
                let is_close = libm::fabs(next - theta) <= CLOSE * next;
                theta = next;
                if is_close {
                    break;
                }
            }
        }
        let (t_r, t_train, theta) = self.combine(&rates);
        Prediction {
            rates: rates.into_iter().map(Rate::clamped).collect(),
            t_r: Rate::clamped(t_r),
            t_train: Rate::clamped(t_train),
            theta: Rate::clamped(theta),
        }
    }
}
