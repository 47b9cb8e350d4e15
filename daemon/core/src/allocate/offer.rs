//! What a whole job needs to reach a target: the Pareto set of (cores, SMs, bytes), over batch sizes, core counts and
//! quotas of its stages. Tables for `fair`; the single job's search is `waterfill`.
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;

use super::Problem;
use super::fair::{Allotment, Part};
use super::options::{Menu, Menus};
use crate::curve::spread_out;

/// Offers kept on the way and in the end. Of more, so many are taken, evenly spread along the cores.
const OFFERS_MAX: usize = 512;
/// Choices of a stage that runs in turn with others, where several do: their combinations are looked at one by one.
const IN_TURN_MAX: usize = 64;

/// Amounts with which a job reaches a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Offer {
    cores: u32,
    sms: u32,
    memory: u64,
    /// The least weighted rate of the stages that bind alone.
    low: f64,
    /// Seconds per unit of the stages that run in turn (one group); 0 with none.
    time: f64,
    level: f64,
}

impl Offer {
    pub(super) const fn part(&self, part: Part) -> u64 {
        match part {
            Part::Cores => self.cores as u64,
            Part::Sms => self.sms as u64,
            Part::Memory => self.memory,
        }
    }
    pub(super) const fn key(&self) -> (u32, u32, u64) {
        (self.sms, self.cores, self.memory)
    }
    pub(super) const fn allotment(self) -> Allotment {
        Allotment {
            cores: self.cores,
            sms: self.sms,
            memory: self.memory,
            level: self.level,
        }
    }
    /// Whether nothing of `other` is better.
    fn replaces(&self, other: &Self) -> bool {
        self.cores <= other.cores
            && self.sms <= other.sms
            && self.memory <= other.memory
            && self.time <= other.time
    }
}

/// Answers what a job offers for a level.
pub(super) struct Offers<'a> {
    problem: &'a Problem,
    menus: Menus,
    scale: f64,
    best: f64,
    /// Something was left out: what is found may not be the best.
    thinned: Cell<bool>,
}

impl<'a> Offers<'a> {
    /// None if the problem has no split on any supply.
    pub(super) fn of(problem: &'a Problem, scale: f64) -> Option<Self> {
        let menus = Menus::of(problem, None).ok()?;
        let mut offers = Self {
            problem,
            menus,
            scale,
            best: 0.0,
            thinned: Cell::new(false),
        };
        let bests: Vec<f64> = offers.menus.stages.iter().map(Menu::best).collect();
        offers.best = offers.level(problem.combine(&bests).2);
        Some(offers)
    }

    /// The highest level that it reaches with all that its menus offer.
    pub(super) const fn best(&self) -> f64 {
        self.best
    }

    /// Whether every offer was looked at.
    pub(super) const fn is_complete(&self) -> bool {
        !self.thinned.get()
    }

    /// So many at most, evenly spread.
    fn thin(&self, all: Vec<Offer>, most: usize) -> Vec<Offer> {
        self.thinned.set(self.thinned.get() || all.len() > most);
        spread_out(all, most)
    }

    /// A throughput as a level. A job of which nothing is measured has none, and is at any level.
    fn level(&self, theta: f64) -> f64 {
        theta / self.scale
    }

    /// The Pareto set of what reaches `level`.
    pub(super) fn reaching(&self, level: f64) -> Vec<Offer> {
        let mut all = vec![Offer {
            cores: 0,
            sms: 0,
            memory: 0,
            low: f64::INFINITY,
            time: 0.0,
            level: 0.0,
        }];
        let budget = self.menus.budget;
        for i in 0..self.menus.stages.len() {
            let choices = self.choices(i, level);
            let mut next = Vec::with_capacity(all.len() * choices.len());
            for before in &all {
                for choice in &choices {
                    let sum = Offer {
                        cores: before.cores.saturating_add(choice.cores),
                        sms: before.sms.saturating_add(choice.sms),
                        memory: before.memory.saturating_add(choice.memory),
                        low: before.low.min(choice.low),
                        time: before.time + choice.time,
                        level: 0.0,
                    };
                    let fits = sum.cores <= budget.cores
                        && sum.sms <= budget.sms
                        && sum.memory <= budget.memory;
                    if fits && self.rollout(&sum) >= level {
                        next.push(sum);
                    }
                }
            }
            all = self.thin(pareto(next), OFFERS_MAX);
        }
        for offer in &mut all {
            offer.level = self.rollout(offer).min(self.level(offer.low));
            offer.time = 0.0;
        }
        all.retain(|o| o.level >= level);
        pareto(all)
    }

    /// The level that the stages that run in turn reach together; infinite without any.
    fn rollout(&self, offer: &Offer) -> f64 {
        if offer.time > 0.0 {
            self.level(self.problem.rollout_factor() / offer.time)
        } else {
            f64::INFINITY
        }
    }

    /// What stage `i` can contribute: for each row the least rung that reaches the level; in a sum every rung.
    fn choices(&self, i: usize, level: f64) -> Vec<Offer> {
        let menu = &self.menus.stages[i];
        let in_sum =
            self.problem.groups == 1 && menu.balanced && self.problem.stages[i].role.is_rollout();
        let mut out = Vec::new();
        for row in &menu.rows {
            // Of a sum the same operations as `rollout`, so that what reaches a level exactly is not lost to rounding.
            let theta = |rate: f64| match in_sum {
                true => self.problem.rollout_factor() / (1.0 / rate),
                false => menu.weight * rate,
            };
            let enough = |rate: f64| !menu.balanced || self.level(theta(rate)) >= level;
            let from = row.rates.partition_point(|rate| !enough(*rate));
            let rungs = if in_sum {
                from..row.rates.len()
            } else {
                from..row.rates.len().min(from + 1)
            };
            let mut before = f64::NEG_INFINITY;
            for rung in rungs {
                let rate = row.rates[rung];
                if rate <= before {
                    continue;
                }
                before = rate;
                out.push(Offer {
                    cores: row.cores,
                    sms: menu.ladder[rung],
                    memory: row.memory,
                    low: if menu.balanced && !in_sum {
                        menu.weight * rate
                    } else {
                        f64::INFINITY
                    },
                    time: if in_sum { 1.0 / rate } else { 0.0 },
                    level: 0.0,
                });
            }
        }
        let most = if in_sum { IN_TURN_MAX } else { OFFERS_MAX };
        self.thin(pareto(out), most)
    }
}

/// Those that no other one replaces, ascending by cores, SMs, bytes. Of equal ones the fastest stays.
fn pareto(mut all: Vec<Offer>) -> Vec<Offer> {
    all.sort_by(|a, b| {
        let key = |o: &Offer| (o.cores, o.sms, o.memory);
        key(a)
            .cmp(&key(b))
            .then(a.time.total_cmp(&b.time))
            .then(b.low.total_cmp(&a.low))
    });
    let mut kept: Vec<Offer> = Vec::new();
    for offer in all {
        if !kept.iter().any(|k| k.replaces(&offer)) {
            kept.push(offer);
        }
    }
    kept
}
