//! The coupling of rollout and training (A1): how far generation may run ahead, and which weights it runs with.
//!
//! With a bound of 1, rollout *i* may begin once training has finished *i − 1* iterations (numbers from 0): it runs
//! while training works on rollout *i − 1*, and what it makes is at most one version old when it is trained on.

use std::sync::Arc;

/// One batch's place in the stream of rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The rollout it belongs to, from 0.
    pub rollout: u64,
    /// Its place in that rollout, from 0.
    pub index: u64,
}

/// Decides when generation may make the next batch.
#[derive(Clone, Debug)]
pub struct StalenessGate {
    per_rollout: u64,
    bound: u64,
    issued: u64,
}

impl StalenessGate {
    /// Rollouts of `per_rollout` batches (at least 1); weights may be `bound` versions old when their data are used.
    pub fn new(per_rollout: u64, bound: u64) -> Self {
        Self {
            per_rollout: per_rollout.max(1),
            bound,
            issued: 0,
        }
    }

    /// Takes the next batch's place, if it may be made after `trained` finished iterations.
    pub fn issue(&mut self, trained: u64) -> Option<Slot> {
        let slot = self.next();
        if slot.rollout > trained.saturating_add(self.bound) {
            return None;
        }
        self.issued += 1;
        Some(slot)
    }

    /// The place of the next batch, whether or not it may be made yet.
    pub fn next(&self) -> Slot {
        Slot {
            rollout: self.issued / self.per_rollout,
            index: self.issued % self.per_rollout,
        }
    }
}

/// Weights with the number of training iterations behind them.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Finished training iterations.
    pub version: u64,
    /// The values.
    pub values: Arc<Vec<f32>>,
}

impl Weights {
    /// Untrained weights.
    pub fn initial(values: Vec<f32>) -> Self {
        Self {
            version: 0,
            values: Arc::new(values),
        }
    }

    /// Takes newer weights in; an older version (a repeated or overtaken message) changes nothing. Whether it did.
    pub fn update(&mut self, newer: Self) -> bool {
        let is_newer = newer.version > self.version;
        if is_newer {
            *self = newer;
        }
        is_newer
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::{Item, TrajectoryQueue};

    #[test]
    fn a_rollout_waits_for_the_training_before_the_last() {
        let mut gate = StalenessGate::new(2, 1);
        let slots: Vec<Slot> = core::iter::from_fn(|| gate.issue(0)).collect();
        assert_eq!(
            slots.last(),
            Some(&Slot {
                rollout: 1,
                index: 1
            }),
            "rollouts 0 and 1"
        );
        assert_eq!(gate.issue(0), None);
        assert_eq!(
            gate.issue(1),
            Some(Slot {
                rollout: 2,
                index: 0
            })
        );
    }

    #[test]
    fn a_bound_of_zero_is_synchronous() {
        let mut gate = StalenessGate::new(1, 0);
        assert!(gate.issue(0).is_some());
        assert_eq!(gate.issue(0), None);
        assert!(gate.issue(1).is_some());
    }

    #[test]
    fn older_weights_change_nothing() {
        let mut weights = Weights::initial(vec![0.0]);
        let version = |version| Weights {
            version,
            values: Arc::new(vec![version as f32]),
        };
        assert!(weights.update(version(2)));
        assert!(!weights.update(version(1)), "overtaken");
        assert!(!weights.update(version(2)), "repeated");
        assert_eq!(weights.values[0], 2.0);
    }

    /// One happening of the random world: a batch is issued, one in flight arrives, training takes a rollout or
    /// finishes it, weights arrive at generation.
    fn world(choices: &[u8], per_rollout: u64, bound: u64) -> (u64, u64, u64) {
        let mut gate = StalenessGate::new(per_rollout, bound);
        let mut queue = TrajectoryQueue::new(per_rollout as f64, bound);
        let (mut flight, mut trained, mut known) = (Vec::new(), 0, 0);
        let (mut at_bound, mut blocked, mut rollouts) = (0, 0, 0);
        for &choice in choices {
            match choice % 4 {
                0 => match gate.issue(known) {
                    Some(slot) => flight.push((slot, known)),
                    None => blocked += 1,
                },
                1 if !flight.is_empty() => {
                    let at = usize::from(choice / 4) % flight.len();
                    let (slot, version) = flight.swap_remove(at);
                    queue.push(Item {
                        rollout: slot.rollout,
                        version,
                        units: 1.0,
                        value: (),
                    });
                }
                2 => {
                    if let Some(batch) = queue.take(trained) {
                        for item in &batch {
                            let staleness = trained - item.version;
                            assert!(staleness <= bound, "{staleness} versions old");
                            at_bound += u64::from(staleness == bound);
                        }
                        rollouts += 1;
                        trained += 1;
                    }
                }
                _ => known = trained,
            }
        }
        assert_eq!(
            queue.discarded(),
            0.0,
            "the gate keeps everything fresh enough"
        );
        (at_bound, blocked, rollouts)
    }

    #[test]
    fn staleness_never_exceeds_the_bound() {
        // Counted over all cases: a property that never sees its interesting case is vacuous.
        let seen = std::cell::Cell::new((0, 0, 0));
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let cases = (
            proptest::collection::vec(any::<u8>(), 400),
            1..6_u64,
            1..3_u64,
        );
        runner
            .run(&cases, |(choices, per_rollout, bound)| {
                let (a, b, c) = world(&choices, per_rollout, bound);
                let (x, y, z) = seen.get();
                seen.set((x + a, y + b, z + c));
                Ok(())
            })
            .unwrap();
        let (at_bound, blocked, rollouts) = seen.get();
        assert!(
            at_bound > 100 && blocked > 100 && rollouts > 100,
            "{at_bound} {blocked} {rollouts}"
        );
    }
}
