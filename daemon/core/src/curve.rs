//! Measured throughput: points, profiles, and the monotone curves that are fitted to them.
//!
//! Not a model of hardware: a curve says what was measured, made monotone, and little in between. `allocate`
//! asks it "what rate at this quota?"; `balance` refits it from live rates; the calibrator fills profiles.
//!
//! A curve is a set of **slices**, one for each measured (cores, batch) pair; the axis inside a slice is SMs.
//! - Along SMs: weighted isotonic regression (pool adjacent violators), linear between points, linear to zero
//!   at quota zero, flat beyond the last point. A slice whose points all have 0 SMs has no SM axis.
//! - Along cores: between measured counts the lower one counts (conservative); below the lowest, in proportion;
//!   more cores are never worse (a stage can leave a core idle).
//! - Along batch sizes: only what was measured. Another batch is answered by the nearest smaller measured one.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::id::Name;
use crate::unit::{Bytes, Rate, Sms};

/// One measurement of a stage (all its workers together, per GPU of the job for SMs).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Cores that the stage had.
    pub cores: u32,
    /// SMs that the stage had on each GPU of the job (effective, not asked).
    pub sms: Sms,
    /// Batch size, in the stage's own unit (environments, chunks, samples); 1 where it has none.
    pub batch: u32,
    /// Replicas (workers) that ran.
    pub replicas: u32,
    /// Work units per second; zero says that it did not fit or did not run.
    pub rate: Rate,
    /// Peak GPU memory in bytes on each GPU.
    pub memory: Bytes,
    /// How much the point counts in a fit: its repeats, say.
    pub weight: f64,
}

/// What a profile belongs to. Foreign hardware makes a profile foreign.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProfileKey {
    /// Whose it is.
    pub tenant: Name,
    /// The stage's fingerprint: by default `job/stage`, or what the job file declares.
    pub stage: Name,
    /// GPU model measured on; `none` for stages without a GPU.
    pub gpu: Name,
}

/// All points of one stage on one kind of hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// What it belongs to.
    pub key: ProfileKey,
    /// The points, in the order in which they were measured.
    pub points: Vec<Point>,
}

/// The share of the best throughput that the knee reaches (EBRL, arXiv:2609.27547, names a knee without a
/// figure; 95 % is this project's).
pub const KNEE: f64 = 0.95;

/// The monotone fit of a profile: throughput of a whole stage at a quota, without NaN, deterministic.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    slices: Vec<Slice>, // ascending by (batch, cores)
}

/// The fit at one measured pair of cores and batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Cores it was measured with.
    pub cores: u32,
    /// Batch size it was measured at.
    pub batch: u32,
    /// Peak GPU memory in bytes on each GPU: the most that any of its points needed. Zero: not measured.
    pub memory: Bytes,
    knots: Vec<Knot>, // ascending by SMs; rates ascending, all above zero
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Knot {
    sms: u32,
    rate: f64,
}

/// Most pairs of cores and batch size of a curve: 8 batch sizes at 64 core counts. Of more, so many are taken, evenly
/// spread: a fit is part of a decision, and everybody waits for it.
const SLICES_MAX: usize = 512;
/// Most SM counts of a slice that took over from others: more than GPUs have in steps of two. Of more, so many are
/// taken, evenly spread; between those it is linear.
const KNOTS_MAX: usize = 256;

/// At most `most` (two or more) of these, evenly spread, the first and the last among them.
pub(crate) fn spread_out<T>(all: Vec<T>, most: usize) -> Vec<T> {
    let n = all.len();
    if n <= most {
        return all;
    }
    let mut kept = (0..most).map(|i| i * (n - 1) / (most - 1)).peekable();
    let all = all.into_iter().enumerate();
    all.filter_map(|(i, t)| kept.next_if_eq(&i).map(|_| t))
        .collect()
}

/// SMs, rate, weight, memory of one point.
type Raw = (u32, f64, f64, Bytes);

/// Weighted isotonic regression by pool adjacent violators: the non-decreasing sequence with the least weighted
/// squared distance from `(value, weight)`; weights are above zero.
pub fn isotonic(values: &[(f64, f64)]) -> Vec<f64> {
    let mut blocks: Vec<(f64, f64, usize)> = Vec::with_capacity(values.len()); // mean, weight, length
    for &(value, weight) in values {
        let mut block = (value, weight, 1);
        while let Some(&(mean, w, n)) = blocks.last() {
            if mean <= block.0 {
                break;
            }
            let total = w + block.1;
            block = (
                mean + (block.0 - mean) * (block.1 / total),
                total,
                n + block.2,
            );
            blocks.pop();
        }
        blocks.push(block);
    }
    blocks
        .iter()
        .flat_map(|&(mean, _, n)| core::iter::repeat_n(mean, n))
        .collect()
}

impl Curve {
    /// Fits the points of one stage.
    ///
    /// `scale` multiplies the profile's points (live rate ÷ profiled rate; 1 if never refitted); `learned` are
    /// points measured live, already in live units, that join the slice they were predicted from. Points whose
    /// rate is zero did not fit or run and say nothing. Of the measured replica counts the one nearest to
    /// `replicas` is used, the smaller first. None: no point says anything.
    pub fn fit(points: &[Point], learned: &[Point], scale: f64, replicas: u32) -> Option<Self> {
        let usable = |p: &&Point| p.rate > Rate::ZERO && p.weight.is_finite() && p.weight > 0.0;
        let nearest = points
            .iter()
            .filter(usable)
            .map(|p| (p.replicas.abs_diff(replicas), p.replicas))
            .min();
        let mut raw: BTreeMap<(u32, u32), Vec<Raw>> = BTreeMap::new();
        for p in points
            .iter()
            .filter(usable)
            .filter(|p| Some(p.replicas) == nearest.map(|n| n.1))
        {
            raw.entry((p.batch, p.cores)).or_default().push((
                p.sms.0,
                Rate::clamped(p.rate.get() * scale).get(),
                p.weight,
                p.memory,
            ));
        }
        for p in learned.iter().filter(usable) {
            let at = raw
                .range((p.batch, 0)..=(p.batch, p.cores))
                .next_back()
                .map(|e| *e.0);
            raw.entry(at.unwrap_or((p.batch, p.cores)))
                .or_default()
                .push((p.sms.0, p.rate.get(), p.weight, p.memory));
        }
        let mut slices: Vec<Slice> = spread_out(raw.into_iter().collect(), SLICES_MAX)
            .into_iter()
            .filter_map(|((batch, cores), points)| Slice::fit(cores, batch, points))
            .collect();
        for i in 1..slices.len() {
            if let [.., fewer, more] = &mut slices[..=i]
                && fewer.batch == more.batch
            {
                more.raise_to(fewer);
            }
        }
        (!slices.is_empty()).then_some(Self { slices })
    }

    /// The same curve with every rate multiplied by `factor` (finite, above zero; else unchanged).
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let mut new = self.clone();
        if factor.is_finite() && factor > 0.0 {
            for knot in new.slices.iter_mut().flat_map(|s| &mut s.knots) {
                knot.rate = Rate::clamped(knot.rate * factor).get();
            }
        }
        new
    }

    /// The same curve of a stage that has so many bytes on each GPU, whatever its points needed.
    #[must_use]
    pub fn with_memory(mut self, memory: Bytes) -> Self {
        self.slices.iter_mut().for_each(|s| s.memory = memory);
        self
    }

    /// The slices, ascending by batch size, then cores.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// The measured batch sizes, ascending.
    pub fn batches(&self) -> impl Iterator<Item = u32> + '_ {
        self.slices
            .chunk_by(|a, b| a.batch == b.batch)
            .map(|s| s[0].batch)
    }

    /// The slices of the nearest measured batch size (the next smaller one, else the smallest).
    pub fn of_batch(&self, batch: u32) -> &[Slice] {
        let end = self.slices.partition_point(|s| s.batch <= batch);
        let found = match end.checked_sub(1) {
            Some(last) => self.slices[last].batch,
            None => self.slices[0].batch,
        };
        let from = self.slices.partition_point(|s| s.batch < found);
        let to = self.slices.partition_point(|s| s.batch <= found);
        &self.slices[from..to]
    }

    /// The slice that answers for `cores` and `batch`, and the factor that its rates take (below 1 only under
    /// the lowest measured core count).
    pub fn slice(&self, cores: u32, batch: u32) -> (&Slice, f64) {
        let slices = self.of_batch(batch);
        match slices.partition_point(|s| s.cores <= cores).checked_sub(1) {
            Some(i) => (&slices[i], 1.0),
            None => (&slices[0], f64::from(cores) / f64::from(slices[0].cores)),
        }
    }

    /// Throughput with so many cores and SMs (on each GPU) at a batch size. Never falls with cores or SMs.
    pub fn rate(&self, cores: u32, sms: Sms, batch: u32) -> Rate {
        let (slice, factor) = self.slice(cores, batch);
        Rate::clamped(slice.rate(sms) * factor)
    }

    /// GPU memory in bytes on each GPU that the stage needs; zero: not measured.
    pub fn memory(&self, cores: u32, batch: u32) -> Bytes {
        self.slice(cores, batch).0.memory
    }

    /// Inverse lookup: the smallest of `counts` (ascending) that reaches `rate`; none if none does.
    pub fn need(&self, cores: u32, batch: u32, rate: Rate, counts: &[Sms]) -> Option<Sms> {
        let at = counts.partition_point(|q| self.rate(cores, *q, batch) < rate);
        counts.get(at).copied()
    }

    /// The knee: the smallest of `counts` (ascending) that reaches 95 % of the best of them; none if empty.
    pub fn knee(&self, cores: u32, batch: u32, counts: &[Sms]) -> Option<Sms> {
        let best = self.rate(cores, *counts.last()?, batch);
        self.need(cores, batch, Rate::clamped(best.get() * KNEE), counts)
    }
}

impl Slice {
    fn fit(cores: u32, batch: u32, mut points: Vec<Raw>) -> Option<Self> {
        points.sort_by_key(|p| p.0);
        let memory = points.iter().map(|p| p.3).max()?;
        let merged: Vec<(u32, f64, f64)> = points
            .chunk_by(|a, b| a.0 == b.0)
            .map(|same| {
                let weight: f64 = same.iter().map(|p| p.2).sum();
                (
                    same[0].0,
                    same.iter().map(|p| p.1 * (p.2 / weight)).sum(),
                    weight,
                )
            })
            .collect();
        let fitted = isotonic(&merged.iter().map(|m| (m.1, m.2)).collect::<Vec<_>>());
        let knots = merged
            .iter()
            .zip(fitted)
            .map(|(m, rate)| Knot { sms: m.0, rate })
            .collect();
        Some(Self {
            cores,
            batch,
            memory,
            knots,
        })
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

    /// Raises this slice where one with fewer cores does better: a core may be left idle.
    fn raise_to(&mut self, fewer: &Self) {
        if fewer
            .knots
            .iter()
            .chain(&self.knots)
            .all(|k| self.rate(Sms(k.sms)) >= fewer.rate(Sms(k.sms)))
        {
            return;
        }
        let mut grid: Vec<u32> = self
            .knots
            .iter()
            .chain(&fewer.knots)
            .map(|k| k.sms)
            .collect();
        grid.sort_unstable();
        grid.dedup();
        self.knots = spread_out(grid, KNOTS_MAX)
            .into_iter()
            .map(|sms| Knot {
                sms,
                rate: self.rate(Sms(sms)).max(fewer.rate(Sms(sms))),
            })
            .collect();
    }
}

#[cfg(test)]
mod tests;
