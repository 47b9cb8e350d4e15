//! The queue between rollout and training: trajectories by rollout, whole rollouts out, nothing staler than the bound.

use std::collections::BTreeMap;

/// Rollouts that may lie here unfinished at a time. The staleness gate admits `bound + 2` at most; this only bounds
/// what a sender without a gate can make the process remember.
const ROLLOUTS_MAX: usize = 64;

/// A trajectory (or a batch of them) on its way to training.
#[derive(Clone, Debug, PartialEq)]
pub struct Item<T> {
    /// The rollout it belongs to, from 0.
    pub rollout: u64,
    /// Version of the weights that made it.
    pub version: u64,
    /// Work units in it.
    pub units: f64,
    /// The data.
    pub value: T,
}

/// Trajectories that wait for training.
#[derive(Debug)]
pub struct TrajectoryQueue<T> {
    per_rollout: f64,
    bound: u64,
    bins: BTreeMap<u64, Bin<T>>,
    /// The rollout whose turn it is.
    next: u64,
    discarded: f64,
}

#[derive(Debug)]
struct Bin<T> {
    units: f64,
    items: Vec<Item<T>>,
}

impl<T> TrajectoryQueue<T> {
    /// A rollout is complete at `per_rollout` work units; data may be `bound` versions old when they are trained on.
    pub fn new(per_rollout: f64, bound: u64) -> Self {
        Self {
            per_rollout,
            bound,
            bins: BTreeMap::new(),
            next: 0,
            discarded: 0.0,
        }
    }

    /// Takes a trajectory in. Beyond the limit of unfinished rollouts it is discarded.
    pub fn push(&mut self, item: Item<T>) {
        if self.bins.len() >= ROLLOUTS_MAX && !self.bins.contains_key(&item.rollout) {
            self.discarded += item.units;
            return;
        }
        let bin = self.bins.entry(item.rollout).or_insert(Bin {
            units: 0.0,
            items: Vec::new(),
        });
        bin.units += item.units;
        bin.items.push(item);
    }

    /// The rollout whose turn it is, if it is complete, for the training iteration that starts with weights of
    /// `version`. Data that are too old by now are dropped and counted; a rollout that has lost some of them is
    /// trained on with the rest. A rollout that never comes is given up when the queue is full.
    pub fn take(&mut self, version: u64) -> Option<Vec<Item<T>>> {
        loop {
            let full = self.bins.len() >= ROLLOUTS_MAX;
            let oldest = self.bins.first_entry()?;
            let is_early = *oldest.key() > self.next && !full;
            if is_early || oldest.get().units < self.per_rollout {
                return None;
            }
            self.next = oldest.key() + 1;
            let (fresh, stale): (Vec<_>, Vec<_>) = oldest
                .remove()
                .items
                .into_iter()
                .partition(|item| version.saturating_sub(item.version) <= self.bound);
            self.discarded += stale.iter().map(|item| item.units).sum::<f64>();
            if !fresh.is_empty() {
                return Some(fresh);
            }
        }
    }

    /// Units that were dropped since the start: too old, or too many.
    pub fn discarded(&self) -> f64 {
        self.discarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(rollout: u64, version: u64) -> Item<u64> {
        Item {
            rollout,
            version,
            units: 1.0,
            value: rollout,
        }
    }

    #[test]
    fn whole_rollouts_come_out_in_order() {
        let mut queue = TrajectoryQueue::new(2.0, 1);
        queue.push(item(1, 0));
        queue.push(item(1, 0));
        assert_eq!(queue.take(0), None, "1 is complete, but it is not its turn");
        queue.push(item(0, 0));
        assert_eq!(queue.take(0), None, "rollout 0 lacks one");
        queue.push(item(0, 0));
        let values: Vec<u64> = queue.take(0).unwrap().iter().map(|i| i.value).collect();
        assert_eq!(values, [0, 0]);
        assert_eq!(queue.take(1).unwrap().len(), 2);
        assert_eq!(queue.take(2), None);
    }

    #[test]
    fn what_is_too_old_is_dropped_and_counted() {
        let mut queue = TrajectoryQueue::new(2.0, 1);
        queue.push(item(0, 3));
        queue.push(item(0, 4));
        assert_eq!(
            queue.take(5).unwrap(),
            [item(0, 4)],
            "3 is two versions old"
        );
        assert_eq!(queue.discarded(), 1.0);
        queue.push(item(1, 0));
        queue.push(item(1, 0));
        assert_eq!(queue.take(5), None, "all of it is too old");
        assert_eq!(queue.discarded(), 3.0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut queue = TrajectoryQueue::new(2.0, 1);
        (0..1_000).for_each(|rollout| queue.push(item(rollout, 0)));
        assert_eq!(queue.bins.len(), ROLLOUTS_MAX);
        assert_eq!(queue.discarded(), (1_000 - ROLLOUTS_MAX) as f64);
    }
}
