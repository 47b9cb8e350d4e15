//! Measured throughput: points, profiles, and the monotone curves that are fitted to them.
//!
//! Not a model of hardware: a curve says what was measured, made monotone, and little in between. `allocate`
//! asks it "what rate at this quota?"; `balance` refits it from live rates; the calibrator fills profiles.
//!
//! A curve is a set of **slices**, one for each measured (cores, batch) pair; the axis inside a slice is SMs.
//! - Repeats of one point: the weighted mean of what is no outlier (`repeats`).
//! - Along SMs: weighted isotonic regression (pool adjacent violators), linear between points, linear to zero
//!   at quota zero, flat beyond the last point. A slice whose points all have 0 SMs has no SM axis.
//! - Confidence: the noise of one measurement, pooled over all repeats, over the root of how many are behind a knot.
//! - Along cores: between measured counts the lower one counts (conservative); below the lowest, in proportion;
//!   more cores are never worse (a stage can leave a core idle).
//! - Along batch sizes: only what was measured. Another batch is answered by the nearest smaller measured one.
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::id::Name;
use crate::unit::{Bytes, Rate, Sms};

pub mod conditions;
pub mod corun;
pub mod front;
pub mod guess;
pub mod repeats;
mod slice;

pub use conditions::Conditions;
pub use corun::CoRun;
use slice::Raw;
pub use slice::{Slice, isotonic, pools};

/// One measurement of a stage (all its workers together, per GPU of the job for SMs).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Another stage ran beside it. Such a point tells of interference, and is not part of the curve. Rows of before
    /// there were any read as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Box<CoRun>>,
    /// What it was measured with, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Box<Conditions>>,
}

impl Point {
    /// What ran beside it.
    pub fn co_run(&self) -> Option<&CoRun> {
        self.beside.as_deref()
    }

    /// Whether another point was measured at the same place: cores, SMs, batch size, replicas, and the stage beside it.
    pub fn same_place(&self, other: &Self) -> bool {
        let place = |p: &Self| (p.cores, p.sms, p.batch, p.replicas);
        let beside = |p: &Self| {
            let co_run = p.co_run()?;
            Some((co_run.other.clone(), co_run.other_sms, co_run.caps))
        };
        place(self) == place(other) && beside(self) == beside(other)
    }

    /// Whether it says anything of the stage's curve: it was measured alone, and did work.
    pub fn is_on_curve(&self) -> bool {
        let counts = self.weight.is_finite() && self.weight > 0.0;
        self.rate > Rate::ZERO && counts && self.beside.is_none()
    }
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
    noise: Option<f64>,
}

/// Most pairs of cores and batch size of a curve: 8 batch sizes at 64 core counts. Of more, so many are taken, evenly
/// spread: a fit is part of a decision, and everybody waits for it.
const SLICES_MAX: usize = 512;
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

/// What a measured peak of GPU memory is multiplied by, in percent: an allocator's peak varies from run to run with the
/// order of its requests, and a limit that is hit kills the worker.
pub const MEMORY_MARGIN_PERCENT: u64 = 105;

/// A peak with its margin.
pub fn memory_with_margin(peak: Bytes) -> Bytes {
    let more = u128::from(peak.0) * u128::from(MEMORY_MARGIN_PERCENT) / 100;
    Bytes(u64::try_from(more).unwrap_or(u64::MAX))
}

impl Curve {
    /// Fits the points of one stage.
    ///
    /// `scale` multiplies the profile's points (live rate ÷ profiled rate; 1 if never refitted); `learned` are
    /// points measured live, already in live units, that join the slice they were predicted from. Points whose
    /// rate is zero did not fit or run and say nothing. Of the measured replica counts the one nearest to
    /// `replicas` is used, the smaller first. None: no point says anything.
    pub fn fit(points: &[Point], learned: &[Point], scale: f64, replicas: u32) -> Option<Self> {
        let usable = |p: &&Point| p.is_on_curve();
        let nearest = points
            .iter()
            .filter(usable)
            .map(|p| (p.replicas.abs_diff(replicas), p.replicas))
            .min();
        let mut raw: BTreeMap<(u32, u32), Vec<Raw>> = BTreeMap::new();
        let of_point = |p: &Point, rate: f64, live: bool| Raw {
            sms: p.sms.0,
            rate,
            weight: p.weight,
            memory: p.memory,
            live,
        };
        for p in points
            .iter()
            .filter(usable)
            .filter(|p| Some(p.replicas) == nearest.map(|n| n.1))
        {
            let rate = Rate::clamped(p.rate.get() * scale).get();
            let same = raw.entry((p.batch, p.cores)).or_default();
            same.push(of_point(p, rate, false));
        }
        for p in learned.iter().filter(usable) {
            let at = raw
                .range((p.batch, 0)..=(p.batch, p.cores))
                .next_back()
                .map(|e| *e.0);
            let same = raw.entry(at.unwrap_or((p.batch, p.cores))).or_default();
            same.push(of_point(p, p.rate.get(), true));
        }
        let mut centres = Vec::new();
        let mut slices: Vec<Slice> = Vec::with_capacity(raw.len().min(SLICES_MAX));
        for ((batch, cores), points) in spread_out(raw.into_iter().collect(), SLICES_MAX) {
            if let Some((slice, repeats)) = Slice::fit(cores, batch, points) {
                slices.push(slice);
                centres.extend(repeats);
            }
        }
        for i in 1..slices.len() {
            if let [.., fewer, more] = &mut slices[..=i]
                && fewer.batch == more.batch
            {
                more.raise_to(fewer);
            }
        }
        let noise = repeats::pooled(&centres);
        (!slices.is_empty()).then_some(Self { slices, noise })
    }

    /// The same curve with every rate multiplied by `factor` (finite, above zero; else unchanged).
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let mut new = self.clone();
        if factor.is_finite() && factor > 0.0 {
            new.slices.iter_mut().for_each(|s| s.scale(factor));
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

    /// The relative standard deviation of one measurement, pooled over all points that were repeated; None: none was.
    pub const fn noise(&self) -> Option<f64> {
        self.noise
    }

    /// The relative standard error of [`Curve::rate`]: a tenth means that one time in three it is off by more than 10 %.
    /// A point without repeats takes its noise from those with; None: nothing was repeated, so that nobody knows.
    pub fn error(&self, cores: u32, sms: Sms, batch: u32) -> Option<f64> {
        let weight = self.slice(cores, batch).0.weight(sms);
        self.noise.map(|noise| noise / libm::sqrt(weight))
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

#[cfg(test)]
mod tests;
