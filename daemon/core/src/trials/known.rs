//! What is known of one stage: its trials by grid point, which of them failed, and which cannot be right.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::bounds::{self, Bound};
use super::{Sampled, corners_of};
use crate::allocate::Share;
use crate::curve::repeats::{Centre, centre};
use crate::curve::{Point, pools};
use crate::unit::{Bytes, Rate, Sms};

/// A place on a stage's grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// Batch size; 1 where the stage has none.
    pub batch: u32,
    /// Replicas.
    pub replicas: u32,
    /// Cores of the stage.
    pub cores: u32,
    /// SMs on each GPU.
    pub sms: Sms,
}

/// The noise of one trial before anything was repeated, as a relative standard deviation...
const NOISE: f64 = 0.03;
/// ... and for how many repeats that guess counts.
const NOISE_COUNTS: f64 = 3.0;
/// Where trials scatter more than this, it is not noise: something disturbed them. It must not make the planner think that
/// everything else is as uncertain.
const NOISE_MOST: f64 = 0.05;
/// A trial so many standard deviations off what was measured around it is repeated.
const DOUBT: f64 = 4.0;

/// The trials of one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tried {
    /// What they say together; none: most of them failed.
    pub centre: Option<Centre>,
    /// How many there were.
    pub trials: u32,
    /// The highest peak.
    pub memory: Bytes,
    /// The relative standard deviation of those that are no outliers.
    scatter: f64,
}

/// One stage.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Ascending, each once.
    pub grid: Vec<Spot>,
    /// On the grid or not.
    pub tried: BTreeMap<Spot, Tried>,
    /// What was measured and worked, made monotone along SMs: rate, and the weight behind it.
    pub smooth: BTreeMap<Spot, (f64, f64)>,
    /// The noise of a trial.
    pub noise: f64,
    repeats: Vec<Centre>,
}

/// The relative standard deviation of one trial: a guess that repeats outweigh.
pub(super) fn noise(known: &[Known]) -> f64 {
    noise_of(known.iter().flat_map(|k| &k.repeats))
}

fn noise_of<'a>(repeats: impl Iterator<Item = &'a Centre>) -> f64 {
    let guess = (NOISE_COUNTS * NOISE * NOISE, NOISE_COUNTS);
    let add = |(s, f): (f64, f64), c: &Centre| (s + c.squares, f + c.freedom);
    let (squares, freedom) = repeats.fold(guess, add);
    libm::sqrt(squares / freedom).min(NOISE_MOST)
}

impl Known {
    pub(super) fn of(sampled: &Sampled) -> Self {
        let mut grid = sampled.grid.clone();
        grid.sort_unstable();
        grid.dedup();
        let mut by_spot: BTreeMap<Spot, Vec<&Point>> = BTreeMap::new();
        for p in sampled
            .points
            .iter()
            .filter(|p| p.weight > 0.0 && p.beside.is_none())
        {
            by_spot.entry(Spot::of(p)).or_default().push(p);
        }
        let tried: BTreeMap<Spot, Tried> = by_spot
            .into_iter()
            .map(|(spot, points)| (spot, Tried::of(&points)))
            .collect();
        let repeats: Vec<Centre> = tried.values().filter_map(|t| t.centre).collect();
        let smooth = smooth(&tried);
        Self {
            grid,
            tried,
            smooth,
            noise: noise_of(repeats.iter()),
            repeats,
        }
    }

    /// What was measured and worked.
    pub(super) fn measured(&self) -> impl Iterator<Item = (&Spot, &Centre, &Tried)> + '_ {
        let works = self.tried.iter();
        works.filter_map(|(s, t)| Some((s, t.centre.as_ref()?, t)))
    }

    /// Whether the stage is known not to run there: it failed there, or with no larger batch, no more replicas and no
    /// smaller quota. Where it worked with as much and a smaller quota, the quota is not what it failed for.
    pub(super) fn fails(&self, spot: Spot) -> bool {
        let no_more = |a: &Spot, b: &Spot| a.batch <= b.batch && a.replicas <= b.replicas;
        let no_less = |a: &Spot, b: &Spot| a.cores >= b.cores && a.sms >= b.sms;
        let failed = |(bad, t): (&Spot, &Tried)| {
            t.centre.is_none() && no_more(bad, &spot) && no_less(bad, &spot)
        };
        let worked = |good: &Spot| no_more(&spot, good) && no_less(&spot, good);
        if let Some(tried) = self.tried.get(&spot) {
            return tried.centre.is_none();
        }
        self.tried.iter().any(failed) && !self.measured().any(|(good, ..)| worked(good))
    }

    pub(super) fn is_tried(&self, at: usize) -> bool {
        self.tried.contains_key(&self.grid[at]) || self.fails(self.grid[at])
    }

    /// Grid points that were never tried and are not known to fail.
    pub(super) fn untried(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.grid.len()).filter(|at| !self.is_tried(*at))
    }

    /// Trials that worked at a grid point.
    pub(super) fn trials(&self, at: usize) -> u32 {
        let tried = self.tried.get(&self.grid[at]);
        tried.map_or(0, |t| if t.centre.is_some() { t.trials } else { 0 })
    }

    /// The grid's number of replicas that is nearest to the workers declared, the smaller first.
    pub(super) fn replicas(&self, workers: u32) -> Option<u32> {
        let all = self.grid.iter().map(|s| s.replicas);
        all.min_by_key(|r| (r.abs_diff(workers), *r))
    }

    /// The most that the stage can have that is not known to fail, at the largest batch; where no batch runs with the
    /// most, the least of everything, once: then it is given up.
    pub(super) fn corner(&self, workers: u32) -> Option<Spot> {
        let replicas = self.replicas(workers)?;
        let all = || self.grid.iter().filter(|s| s.replicas == replicas);
        let most = all()
            .filter(|s| self.is_largest(**s) && !self.tried.contains_key(s) && !self.fails(**s))
            .max_by_key(|s| s.batch);
        let least = all().min_by_key(|s| (s.batch, s.cores, s.sms));
        let least = least.filter(|s| !self.tried.contains_key(s));
        most.or(least).copied()
    }

    /// Whether no more cores or SMs are on the grid.
    fn is_largest(&self, spot: Spot) -> bool {
        let more = |s: &Spot| s.cores > spot.cores || s.sms > spot.sms;
        !self.grid.iter().any(more)
    }

    /// The grid points that a share's rate is interpolated from.
    pub(super) fn around(&self, share: &Share, workers: u32) -> Vec<usize> {
        let replicas = self.replicas(workers);
        replicas.map_or_else(Vec::new, |r| corners_of(&self.grid, share, r))
    }

    /// A number of replicas of which nothing was tried, with the most that the stage can have.
    pub(super) fn other_replicas(&self) -> Option<Spot> {
        let seen = |r: u32| self.tried.keys().any(|s| s.replicas == r);
        let untried = self.untried().map(|at| self.grid[at]);
        untried
            .filter(|s| !seen(s.replicas))
            .max_by_key(|s| (core::cmp::Reverse(s.replicas), s.cores, s.sms, s.batch))
    }

    /// A point that is far off what was measured around it, or whose trials are far apart; tried fewer than `most` times.
    pub(super) fn doubtful(&self, most: u32) -> Option<Spot> {
        let on_grid = |s: &Spot| self.grid.binary_search(s).is_ok();
        let limit = DOUBT * self.noise;
        let found = self.measured().find(|(spot, centre, tried)| {
            if tried.trials >= most || !on_grid(spot) {
                return false;
            }
            let others = bounds::from_others(self, **spot);
            let rate = centre.rate;
            let off = rate > others.high * (1.0 + limit) || rate < others.low * (1.0 - limit);
            tried.scatter > limit / core::f64::consts::SQRT_2 || (off && tried.trials < 2)
        });
        found.map(|(spot, ..)| *spot)
    }

    /// Bounds of each grid point's rate.
    pub(super) fn bounds(&self) -> Vec<Bound> {
        let of = |spot: &Spot| match self.tried.get(spot) {
            Some(Tried {
                centre: Some(c), ..
            }) => Bound::exactly(self.smooth.get(spot).map_or(c.rate, |s| s.0)),
            _ if self.fails(*spot) => Bound::exactly(0.0),
            _ => bounds::from_others(self, *spot),
        };
        self.grid.iter().map(of).collect()
    }

    /// Points that are as good as the measurements still allow.
    pub(super) fn hoped_for(&self, bounds: &[Bound]) -> Vec<Point> {
        let off_grid = self
            .measured()
            .filter(|(s, ..)| self.grid.binary_search(s).is_err());
        let seen = off_grid.map(|(s, c, t)| s.point(c.rate, t.memory));
        let hoped = self.grid.iter().zip(bounds).map(|(spot, bound)| {
            let measured = self.tried.get(spot).map(|t| t.memory);
            let memory = measured.unwrap_or_else(|| self.least_memory(*spot));
            spot.point(bound.high, memory)
        });
        seen.chain(hoped).collect()
    }

    /// The least memory that a point can need: at least that of smaller batches; between two, on the line through them.
    fn least_memory(&self, spot: Spot) -> Bytes {
        let same = self
            .measured()
            .filter(|(s, ..)| s.replicas == spot.replicas);
        let all: Vec<(u32, u64)> = same.map(|(s, _, t)| (s.batch, t.memory.0)).collect();
        let peak = |batch: u32| {
            let of = all.iter().filter(|m| m.0 == batch);
            of.map(|m| m.1).max().unwrap_or(0)
        };
        let below = all.iter().map(|m| m.0).filter(|b| *b <= spot.batch).max();
        let above = all.iter().map(|m| m.0).filter(|b| *b >= spot.batch).min();
        match (below, above) {
            (Some(a), Some(b)) if b > a => {
                let t = f64::from(spot.batch - a) / f64::from(b - a);
                let (low, high) = (peak(a), peak(b));
                Bytes(low + (high.saturating_sub(low) as f64 * t) as u64)
            }
            (Some(a), _) => Bytes(peak(a)),
            (None, _) => Bytes(0),
        }
    }
}

/// Measured rates made monotone along SMs, with the weight of all that were pooled.
fn smooth(tried: &BTreeMap<Spot, Tried>) -> BTreeMap<Spot, (f64, f64)> {
    let works = tried.iter().filter_map(|(s, t)| Some((*s, t.centre?)));
    let works: Vec<(Spot, Centre)> = works.collect();
    let line = |s: &Spot| (s.batch, s.replicas, s.cores);
    let mut smooth = BTreeMap::new();
    for line in works.chunk_by(|a, b| line(&a.0) == line(&b.0)) {
        let values: Vec<(f64, f64)> = line.iter().map(|(_, c)| (c.rate, c.weight)).collect();
        let pools = pools(&values);
        let pooled = pools
            .iter()
            .flat_map(|&(rate, weight, n)| core::iter::repeat_n((rate, weight), n));
        smooth.extend(line.iter().map(|l| l.0).zip(pooled));
    }
    smooth
}

impl Tried {
    fn of(points: &[&Point]) -> Self {
        let works = || points.iter().filter(|p| p.rate > Rate::ZERO);
        let rates: Vec<(f64, f64)> = works().map(|p| (p.rate.get(), p.weight)).collect();
        let failed = points.len() - rates.len();
        let centre = centre(&rates).filter(|_| failed < rates.len());
        let scatter = |c: Centre| match c.freedom > 0.0 {
            true => libm::sqrt(c.squares / c.freedom),
            false => 0.0,
        };
        Self {
            centre,
            trials: u32::try_from(points.len()).unwrap_or(u32::MAX),
            memory: points.iter().map(|p| p.memory).max().unwrap_or_default(),
            scatter: centre.map_or(0.0, scatter),
        }
    }
}
