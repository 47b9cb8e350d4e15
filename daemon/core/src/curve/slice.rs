//! One slice of a curve: throughput along SMs at one pair of cores and batch size, made monotone.
//!
//! It knows nothing of other cores or batch sizes: `Curve` puts slices together.
use alloc::vec::Vec;

use super::repeats::{Centre, centre};
use super::{memory_with_margin, spread_out};
use crate::unit::{Bytes, Rate, Sms};

/// Most SM counts of a slice that took over from others: more than GPUs have in steps of two. Of more, so many are
/// taken, evenly spread; between those it is linear.
const KNOTS_MAX: usize = 256;

/// The fit at one measured pair of cores and batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Cores it was measured with.
    pub cores: u32,
    /// Batch size it was measured at.
    pub batch: u32,
    /// GPU memory in bytes on each GPU: the highest peak of any of its points, with a margin
    /// ([`memory_with_margin`]). Zero: not measured.
    pub memory: Bytes,
    pub(super) knots: Vec<Knot>, // ascending by SMs; rates ascending, all above zero
}

/// The fit at one measured quota.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Knot {
    pub sms: u32,
    pub rate: f64,
    /// Weight of the measurements behind it: those of all points that were pooled with it.
    pub weight: f64,
}

/// One usable measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    pub sms: u32,
    pub rate: f64,
    pub weight: f64,
    pub memory: Bytes,
    /// Measured in the running job. Such a point is no outlier for being off the profile: that is why it is there.
    pub live: bool,
}

/// Weighted isotonic regression by pool adjacent violators: the non-decreasing sequence with the least weighted
/// squared distance from `(value, weight)`; weights are above zero.
pub fn isotonic(values: &[(f64, f64)]) -> Vec<f64> {
    let blocks = pools(values);
    let spread = |&(mean, _, n): &(f64, f64, usize)| core::iter::repeat_n(mean, n);
    blocks.iter().flat_map(spread).collect()
}

/// The pools of [`isotonic`]: mean, weight, length.
pub fn pools(values: &[(f64, f64)]) -> Vec<(f64, f64, usize)> {
    let mut blocks: Vec<(f64, f64, usize)> = Vec::with_capacity(values.len());
    for &(value, weight) in values {
        let mut block = (value, weight, 1);
        while let Some(&(mean, w, n)) = blocks.last() {
            if mean <= block.0 {
                break;
            }
            let total = w + block.1;
            let pooled = mean + (block.0 - mean) * (block.1 / total);
            block = (pooled, total, n + block.2);
            blocks.pop();
        }
        blocks.push(block);
    }
    blocks
}

impl Slice {
    /// The fit, and what the repeats of its points say of the noise. None: there is no point.
    pub(super) fn fit(cores: u32, batch: u32, mut points: Vec<Raw>) -> Option<(Self, Vec<Centre>)> {
        points.sort_by_key(|p| p.sms);
        // A live point has what the stage was given, margin included; a profiled one, what it took at most.
        let needs = |p: &Raw| match p.live {
            true => p.memory,
            false => memory_with_margin(p.memory),
        };
        let memory = points.iter().map(needs).max()?;
        let mut centres = Vec::new();
        let mut merged: Vec<(u32, f64, f64)> = Vec::new();
        for same in points.chunk_by(|a, b| a.sms == b.sms) {
            let of = |live: bool| {
                let some = same.iter().filter(move |p| p.live == live);
                some.map(|p| (p.rate, p.weight)).collect::<Vec<_>>()
            };
            let profiled = centre(&of(false));
            centres.extend(profiled);
            let all = of(true)
                .into_iter()
                .chain(profiled.map(|c| (c.rate, c.weight)));
            let all: Vec<(f64, f64)> = all.collect();
            let weight: f64 = all.iter().map(|m| m.1).sum();
            let rate = all.iter().map(|m| m.0 * (m.1 / weight)).sum();
            merged.push((same[0].sms, rate, weight));
        }
        let values: Vec<(f64, f64)> = merged.iter().map(|m| (m.1, m.2)).collect();
        let pools = pools(&values);
        let pooled = pools
            .iter()
            .flat_map(|&(rate, weight, n)| core::iter::repeat_n((rate, weight), n));
        let knots = merged
            .iter()
            .zip(pooled)
            .map(|(m, (rate, weight))| Knot {
                sms: m.0,
                rate,
                weight,
            })
            .collect();
        let slice = Self {
            cores,
            batch,
            memory,
            knots,
        };
        Some((slice, centres))
    }

    /// The measured SM counts, ascending, with their fitted rates in work units per second.
    pub fn knots(&self) -> impl Iterator<Item = (Sms, f64)> + '_ {
        self.knots.iter().map(|k| (Sms(k.sms), k.rate))
    }

    /// Throughput of the stage at a quota of SMs on each GPU, in work units per second.
    pub fn rate(&self, sms: Sms) -> f64 {
        self.rate_at(self.knots.partition_point(|k| k.sms <= sms.0), sms.0)
    }

    /// Throughput at each of `counts` (ascending): the same numbers as [`Slice::rate`], in one walk.
    pub fn rates<'a>(&'a self, counts: &'a [Sms]) -> impl Iterator<Item = f64> + 'a {
        let mut above = 0;
        counts.iter().map(move |sms| {
            while self.knots.get(above).is_some_and(|k| k.sms <= sms.0) {
                above += 1;
            }
            self.rate_at(above, sms.0)
        })
    }

    /// The weight of the measurements behind the rate at a quota: that of the less known of the two knots around it.
    pub(super) fn weight(&self, sms: Sms) -> f64 {
        let above = self.knots.partition_point(|k| k.sms <= sms.0);
        let around = [above.checked_sub(1), Some(above)];
        let knots = around
            .into_iter()
            .flatten()
            .filter_map(|i| self.knots.get(i));
        match above.checked_sub(1).map(|i| self.knots[i]) {
            Some(exact) if exact.sms == sms.0 => exact.weight,
            _ => knots.map(|k| k.weight).fold(f64::INFINITY, f64::min),
        }
    }

    /// Throughput at `sms`, where `above` is the first knot beyond it.
    fn rate_at(&self, above: usize, sms: u32) -> f64 {
        let low = above.checked_sub(1).map(|i| self.knots[i]);
        match (low, self.knots.get(above)) {
            (None, None) => 0.0,
            (Some(last), None) => last.rate,
            (None, Some(first)) => first.rate * (f64::from(sms) / f64::from(first.sms)),
            (Some(a), Some(b)) => {
                let t = f64::from(sms - a.sms) / f64::from(b.sms - a.sms);
                (a.rate + (b.rate - a.rate) * t).min(b.rate)
            }
        }
    }

    /// Multiplies every rate; `factor` is finite and above zero.
    pub(super) fn scale(&mut self, factor: f64) {
        for knot in &mut self.knots {
            knot.rate = Rate::clamped(knot.rate * factor).get();
        }
    }

    /// Raises this slice where one with fewer cores does better: a core may be left idle.
    pub(super) fn raise_to(&mut self, fewer: &Self) {
        let all = || fewer.knots.iter().chain(&self.knots);
        if all().all(|k| self.rate(Sms(k.sms)) >= fewer.rate(Sms(k.sms))) {
            return;
        }
        let mut grid: Vec<u32> = all().map(|k| k.sms).collect();
        grid.sort_unstable();
        grid.dedup();
        let raised = |sms: u32| {
            let (own, other) = (self.rate(Sms(sms)), fewer.rate(Sms(sms)));
            let source: &Self = if own >= other { &*self } else { fewer };
            Knot {
                sms,
                rate: own.max(other),
                weight: source.weight(Sms(sms)),
            }
        };
        self.knots = spread_out(grid, KNOTS_MAX)
            .into_iter()
            .map(raised)
            .collect();
    }
}
