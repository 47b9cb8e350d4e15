//! Choices of batch size and replicas that nothing else beats: more throughput costs more memory.
//!
//! Data for people and for whoever plans replicas; the allocator itself takes the replicas that a job declares.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{Curve, Point};
use crate::unit::{Bytes, Rate, Sms};

/// One choice at a quota.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Replicas.
    pub replicas: u32,
    /// Batch size.
    pub batch: u32,
    /// Throughput in work units per second.
    pub rate: Rate,
    /// GPU memory in bytes on each GPU, with its margin; zero: not measured.
    pub memory: Bytes,
}

/// A curve for each measured number of replicas.
pub fn by_replicas(points: &[Point]) -> BTreeMap<u32, Curve> {
    let counts: BTreeSet<u32> = points
        .iter()
        .filter(|p| p.rate > Rate::ZERO)
        .map(|p| p.replicas)
        .collect();
    let of = |replicas| Some((replicas, Curve::fit(points, &[], 1.0, replicas)?));
    counts.into_iter().filter_map(of).collect()
}

/// The choices at a quota of which no other is faster in as little memory, ascending by memory and throughput.
pub fn pareto(curves: &BTreeMap<u32, Curve>, cores: u32, sms: Sms) -> Vec<Choice> {
    let all = curves.iter().flat_map(|(&replicas, curve)| {
        curve.batches().map(move |batch| Choice {
            replicas,
            batch,
            rate: curve.rate(cores, sms, batch),
            memory: curve.memory(cores, batch),
        })
    });
    let mut all: Vec<Choice> = all.collect();
    // The fastest first in each memory; of equals the smaller.
    all.sort_by(|a, b| {
        let rates = b.rate.total_cmp(&a.rate);
        let size = (a.replicas, a.batch).cmp(&(b.replicas, b.batch));
        a.memory.cmp(&b.memory).then(rates).then(size)
    });
    let mut best = Rate::ZERO;
    all.retain(|choice| {
        let better = choice.rate > best;
        best = best.max(choice.rate);
        better
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::tests::point;

    #[test]
    fn a_choice_is_on_the_front_if_nothing_is_faster_in_as_little_memory() {
        let of = |replicas, batch, rate, gib| Point {
            replicas,
            memory: Bytes::gib(gib),
            ..point(1, 100, batch, rate)
        };
        let points = [
            of(1, 8, 50.0, 20),
            of(1, 16, 80.0, 40),
            of(2, 8, 90.0, 40),
            of(2, 16, 85.0, 80),
        ];
        let curves = by_replicas(&points);
        assert_eq!(curves.len(), 2);
        let front = pareto(&curves, 1, Sms(100));
        let got: Vec<(u32, u32)> = front.iter().map(|c| (c.replicas, c.batch)).collect();
        assert_eq!(got, [(1, 8), (2, 8)]);
    }
}
