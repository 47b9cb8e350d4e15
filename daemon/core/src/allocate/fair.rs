//! Several jobs on one supply: lexicographic weighted max-min fairness of `Θ / (weight · Θ alone)`.
//!
//! The lowest level is raised as far as it goes, then the next lowest, and so on. Amounts only: `together` makes plans
//! of them. Which level is possible is one question ([`Arena::fits`]): each job offers the Pareto set of the (cores,
//! SMs, bytes) that reach its target, and one offer of each has to fit every limit at once.
//!
//! Exact for a few jobs (no other allocation is lexicographically better, proved against exhaustive search in
//! `tests/fair.rs`). Of more, levels are taken from a grid and offers by a greedy repair: labelled, and measured.
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;

use super::Problem;
use super::offer::{Offer, Offers};

/// Jobs whose allocation is searched exactly.
pub const EXACT_JOBS: usize = 3;
/// Levels that are told apart where there are more jobs.
const GRID: u32 = 64;
/// Combinations of offers that one question may look at.
const LOOKS_MAX: u32 = 200_000;

/// Which part of an offer a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Cores.
    Cores,
    /// SMs on a GPU.
    Sms,
    /// Bytes on a GPU.
    Memory,
}

/// One job that wants a share.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// What it may choose from; its supply is the most that it may have.
    pub problem: &'a Problem,
    /// Its weight times its throughput alone: what its throughput is measured by. Above zero.
    pub scale: f64,
    /// The limits (by index) that it counts against, and with what.
    pub counts: Vec<(usize, Part)>,
}

/// What one job may take, and the level that it reaches with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allotment {
    /// Cores.
    pub cores: u32,
    /// SMs on each of its GPUs.
    pub sms: u32,
    /// Bytes on each of its GPUs.
    pub memory: u64,
    /// `Θ / (weight · Θ alone)`.
    pub level: f64,
}

/// Everybody's allotment.
#[derive(Clone, Debug, PartialEq)]
pub struct Allotments {
    /// In the order of the claims.
    pub of: Vec<Allotment>,
    /// Whether no other allocation is lexicographically better.
    pub exact: bool,
    /// Questions that were asked.
    pub evaluations: u32,
}

/// The fairest allotments within `limits`; none if not everybody's least fits.
pub fn allot(claims: &[Claim<'_>], limits: &[u64]) -> Option<Allotments> {
    allot_with(claims, limits, EXACT_JOBS)
}

/// The same, searched exactly for up to so many jobs: how much the heuristic loses is measured with it.
pub fn allot_with(claims: &[Claim<'_>], limits: &[u64], exact_jobs: usize) -> Option<Allotments> {
    let mut arena = Arena::new(claims, limits)?;
    arena.exact_levels = claims.len() <= exact_jobs;
    let start = vec![Stand::default(); claims.len()];
    let best = arena.fits(&start)?;
    let found = if arena.exact_levels {
        arena.raise(start, best)
    } else {
        arena.raise_on_grid(start, best)
    };
    Some(Allotments {
        of: found,
        exact: arena.exact_levels && arena.exact && arena.offers.iter().all(Offers::is_complete),
        evaluations: arena.evaluations,
    })
}

/// Whether a job still rises, and the level that it has for sure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stand {
    level: f64,
    settled: bool,
}

/// What everybody has taken: of each job's offers one, and what that makes of each limit.
struct Taken<'t> {
    offered: &'t [Rc<Vec<Offer>>],
    picks: &'t [usize],
    used: &'t [u64],
}

struct Arena<'a> {
    claims: &'a [Claim<'a>],
    limits: &'a [u64],
    offers: Vec<Offers<'a>>,
    /// Of each job and level, what it offers; the same questions come again and again.
    known: BTreeMap<(usize, u64), Rc<Vec<Offer>>>,
    /// The highest level that anybody reaches at all.
    top: f64,
    exact_levels: bool,
    exact: bool,
    evaluations: u32,
}

impl<'a> Arena<'a> {
    fn new(claims: &'a [Claim<'a>], limits: &'a [u64]) -> Option<Self> {
        let offers: Option<Vec<Offers<'a>>> = claims
            .iter()
            .map(|c| Offers::of(c.problem, c.scale))
            .collect();
        let offers = offers?;
        let top = offers.iter().map(Offers::best).fold(0.0, f64::max);
        Some(Self {
            claims,
            limits,
            offers,
            known: BTreeMap::new(),
            top,
            exact_levels: true,
            exact: true,
            evaluations: 0,
        })
    }

    /// What job `j` offers for a level, the least wanting first.
    fn offered(&mut self, j: usize, level: f64) -> Rc<Vec<Offer>> {
        if let Some(known) = self.known.get(&(j, level.to_bits())) {
            return Rc::clone(known);
        }
        let mut all = self.offers[j].reaching(level);
        let weigh = |o: &Offer| {
            let shares = self.claims[j].counts.iter().map(|(limit, part)| {
                let most = self.limits[*limit].max(1);
                o.part(*part) as f64 / most as f64
            });
            shares.fold(0.0, f64::max)
        };
        all.sort_by(|a, b| weigh(a).total_cmp(&weigh(b)).then(a.key().cmp(&b.key())));
        let all = Rc::new(all);
        self.known.insert((j, level.to_bits()), Rc::clone(&all));
        all
    }

    /// An offer of each job that reaches its level, all within the limits; none if there is none.
    fn fits(&mut self, stands: &[Stand]) -> Option<Vec<Allotment>> {
        self.evaluations += 1;
        let offered: Vec<Rc<Vec<Offer>>> = stands
            .iter()
            .enumerate()
            .map(|(j, s)| self.offered(j, s.level))
            .collect();
        if offered.iter().any(|o| o.is_empty()) {
            return None;
        }
        let picks = if self.exact_levels {
            self.search(&offered)
        } else {
            self.least(&offered)
        }?;
        let chosen = picks.iter().zip(&offered).map(|(at, offers)| offers[*at]);
        Some(chosen.map(Offer::allotment).collect())
    }

    /// Depth first over the offers, with the least of those to come as bound.
    fn search(&mut self, offered: &[Rc<Vec<Offer>>]) -> Option<Vec<usize>> {
        let mut floors = vec![vec![0_u64; self.limits.len()]; offered.len() + 1];
        for j in (0..offered.len()).rev() {
            floors[j] = floors[j + 1].clone();
            for (limit, part) in &self.claims[j].counts {
                let least = offered[j].iter().map(|o| o.part(*part)).min().unwrap_or(0);
                floors[j][*limit] = floors[j][*limit].saturating_add(least);
            }
        }
        let mut looks = LOOKS_MAX;
        let mut picks = Vec::with_capacity(offered.len());
        let found = self.descend(
            offered,
            &floors,
            &mut self.limits.to_vec(),
            &mut picks,
            &mut looks,
        );
        self.exact &= looks > 0;
        found.then_some(picks)
    }

    fn descend(
        &self,
        offered: &[Rc<Vec<Offer>>],
        floors: &[Vec<u64>],
        left: &mut Vec<u64>,
        picks: &mut Vec<usize>,
        looks: &mut u32,
    ) -> bool {
        let j = picks.len();
        if floors[j]
            .iter()
            .zip(left.iter())
            .any(|(floor, left)| floor > left)
        {
            return false;
        }
        let Some(offers) = offered.get(j) else {
            return true;
        };
        for (at, offer) in offers.iter().enumerate() {
            if *looks == 0 {
                return false;
            }
            *looks -= 1;
            if !self.take(left, j, offer) {
                continue;
            }
            picks.push(at);
            if self.descend(offered, floors, left, picks, looks) {
                return true;
            }
            picks.pop();
            self.give_back(left, j, offer);
        }
        false
    }

    /// Takes an offer out of what is left, or nothing of it.
    fn take(&self, left: &mut [u64], j: usize, offer: &Offer) -> bool {
        let counts = &self.claims[j].counts;
        if counts.iter().any(|(l, part)| left[*l] < offer.part(*part)) {
            return false;
        }
        for (limit, part) in counts {
            left[*limit] -= offer.part(*part);
        }
        true
    }
    fn give_back(&self, left: &mut [u64], j: usize, offer: &Offer) {
        for (limit, part) in &self.claims[j].counts {
            left[*limit] += offer.part(*part);
        }
    }

    /// Everybody's least wanting offer, repaired.
    fn least(&self, offered: &[Rc<Vec<Offer>>]) -> Option<Vec<usize>> {
        let mut picks = vec![0_usize; offered.len()];
        let mut used = self.used(offered, &picks);
        self.repair(offered, &mut picks, &mut used).then_some(picks)
    }

    fn used(&self, offered: &[Rc<Vec<Offer>>], picks: &[usize]) -> Vec<u64> {
        let mut used = vec![0_u64; self.limits.len()];
        for ((offers, at), claim) in offered.iter().zip(picks).zip(self.claims) {
            for (limit, part) in &claim.counts {
                used[*limit] += offers[*at].part(*part);
            }
        }
        used
    }

    /// While a limit is exceeded: the exchange that takes most off what is over for the least that it adds elsewhere. It may
    /// miss what a search would find.
    fn repair(&self, offered: &[Rc<Vec<Offer>>], picks: &mut [usize], used: &mut [u64]) -> bool {
        loop {
            let over = (0..used.len())
                .filter(|l| used[*l] > self.limits[*l])
                .max_by(|a, b| {
                    let excess = |l: usize| used[l] as f64 / self.limits[l].max(1) as f64;
                    excess(*a).total_cmp(&excess(*b))
                });
            let Some(over) = over else { return true };
            let Some((j, at)) = self.exchange(offered, picks, used, over) else {
                return false;
            };
            for (limit, part) in &self.claims[j].counts {
                used[*limit] -= offered[j][picks[j]].part(*part);
                used[*limit] += offered[j][at].part(*part);
            }
            picks[j] = at;
        }
    }

    /// Whether job `j` alone could have `level` beside what all have: a test for each job of a round, so it starts from
    /// what is there.
    fn could_rise(&mut self, now: &Taken<'_>, j: usize, level: f64) -> bool {
        let more = self.offered(j, level);
        if more.is_empty() {
            return false;
        }
        let (mut offered, mut picks) = (now.offered.to_vec(), now.picks.to_vec());
        let mut used = now.used.to_vec();
        for (limit, part) in &self.claims[j].counts {
            used[*limit] -= offered[j][picks[j]].part(*part);
            used[*limit] += more[0].part(*part);
        }
        (offered[j], picks[j]) = (more, 0);
        self.repair(&offered, &mut picks, &mut used)
    }

    /// The job and its offer that take most off limit `over`, per what they add to others, without breaking another.
    fn exchange(
        &self,
        offered: &[Rc<Vec<Offer>>],
        picks: &[usize],
        used: &[u64],
        over: usize,
    ) -> Option<(usize, usize)> {
        let mut best: Option<(f64, usize, usize)> = None;
        for (j, offers) in offered.iter().enumerate() {
            let counts = &self.claims[j].counts;
            let Some((_, part)) = counts.iter().find(|(l, _)| *l == over) else {
                continue;
            };
            let now = offers[picks[j]];
            for (at, offer) in offers.iter().enumerate() {
                let saved = now.part(*part).saturating_sub(offer.part(*part));
                if saved == 0 {
                    continue;
                }
                let mut added = 0.0;
                let breaks = counts.iter().any(|(l, p)| {
                    let (old, new) = (now.part(*p), offer.part(*p));
                    added += new.saturating_sub(old) as f64 / self.limits[*l].max(1) as f64;
                    new > old && used[*l] - old + new > self.limits[*l]
                });
                let worth = saved as f64 / self.limits[over].max(1) as f64 / (added + 1e-6);
                if !breaks && best.is_none_or(|(b, ..)| worth > b) {
                    best = Some((worth, j, at));
                }
            }
        }
        best.map(|(_, j, at)| (j, at))
    }

    /// Raises those who are not settled together, exactly, and settles who is stuck; where nobody is stuck by itself
    /// but all are together, each is tried as the one that stays behind.
    fn raise(&mut self, mut stands: Vec<Stand>, mut best: Vec<Allotment>) -> Vec<Allotment> {
        if stands.iter().all(|s| s.settled) {
            return best;
        }
        let lowest = |stands: &[Stand], best: &[Allotment]| {
            let rising = best.iter().zip(stands).filter(|(_, s)| !s.settled);
            rising.map(|(a, _)| a.level).fold(f64::INFINITY, f64::min)
        };
        let at = |stands: &[Stand], level: f64| -> Vec<Stand> {
            let to = |s: &Stand| if s.settled { *s } else { Stand { level, ..*s } };
            stands.iter().map(to).collect()
        };
        let (mut low, mut high, mut strict) = (lowest(&stands, &best), self.top, false);
        while low < high {
            strict = !strict && (low <= 0.0 || high - low <= high * 2e-3);
            let target = if strict {
                low.next_up()
            } else {
                low + (high - low) / 2.0
            };
            let target = target.max(low.next_up());
            match self.fits(&at(&stands, target)) {
                Some(found) => {
                    low = lowest(&stands, &found);
                    best = found;
                }
                None if strict => break,
                None => high = target.next_down(),
            }
        }
        stands = at(&stands, low);
        let mut free = Vec::new();
        let rising: Vec<usize> = (0..stands.len()).filter(|j| !stands[*j].settled).collect();
        for j in &rising {
            let mut more = stands.clone();
            more[*j].level = low.next_up();
            match self.fits(&more) {
                Some(_) => free.push(*j),
                None => stands[*j].settled = true,
            }
        }
        if free.len() < rising.len() {
            return self.raise(stands, best);
        }
        // Nobody is stuck by itself: one has to stay, and who that is decides what the others reach. Where it decides
        // nothing, the latest stays.
        let tries = free.iter().rev().map(|j| {
            let mut one = stands.clone();
            one[*j].settled = true;
            self.raise(one, best.clone())
        });
        let tries: Vec<Vec<Allotment>> = tries.collect();
        tries
            .into_iter()
            .reduce(|a, b| if fairer(&b, &a) { b } else { a })
            .unwrap_or(best)
    }

    /// The same on a grid of levels, for many jobs.
    fn raise_on_grid(
        &mut self,
        mut stands: Vec<Stand>,
        mut best: Vec<Allotment>,
    ) -> Vec<Allotment> {
        let level = |rung: u32, top: f64| top * f64::from(rung) / f64::from(GRID);
        let mut low = 0;
        while stands.iter().any(|s| !s.settled) {
            let at = |stands: &[Stand], rung: u32, top: f64, most: &[Offers<'_>]| -> Vec<Stand> {
                let to = |(s, offers): (&Stand, &Offers<'_>)| match s.settled {
                    true => *s,
                    false => Stand {
                        level: level(rung, top).min(offers.best()),
                        ..*s
                    },
                };
                stands.iter().zip(most).map(to).collect()
            };
            let mut high = GRID;
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                match self.fits(&at(&stands, middle, self.top, &self.offers)) {
                    Some(found) => (low, best) = (middle, found),
                    None => high = middle - 1,
                }
            }
            stands = at(&stands, low, self.top, &self.offers);
            let next = level(low + 1, self.top);
            let rising: Vec<usize> = (0..stands.len()).filter(|j| !stands[*j].settled).collect();
            let offered: Vec<Rc<Vec<Offer>>> = stands
                .iter()
                .enumerate()
                .map(|(j, s)| self.offered(j, s.level))
                .collect();
            let Some(picks) = self.least(&offered) else {
                return best;
            };
            let used = self.used(&offered, &picks);
            let now = Taken {
                offered: &offered,
                picks: &picks,
                used: &used,
            };
            let mut stuck = 0;
            for j in &rising {
                let more = next.min(self.offers[*j].best());
                let rises = more > stands[*j].level && self.could_rise(&now, *j, more);
                if !rises {
                    stands[*j].settled = true;
                    stuck += 1;
                }
            }
            if let (0, Some(last)) = (stuck, rising.last()) {
                stands[*last].settled = true; // none by itself, all together: the latest stays behind
            }
        }
        best
    }
}

/// Whether the levels of `a`, sorted, are lexicographically above those of `b`.
pub fn fairer(a: &[Allotment], b: &[Allotment]) -> bool {
    let sorted = |all: &[Allotment]| -> Vec<f64> {
        let mut levels: Vec<f64> = all.iter().map(|x| x.level).collect();
        levels.sort_by(f64::total_cmp);
        levels
    };
    let (a, b) = (sorted(a), sorted(b));
    let differ = a.iter().zip(&b).find(|(x, y)| x != y);
    differ.is_some_and(|(x, y)| x > y)
}
