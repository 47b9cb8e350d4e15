//! Bisection on the target throughput Θ, exact on the grid of attainable rates.
//!
//! `fits(Θ)`: each stage offers, for each (cores, batch) row, the smallest quota that reaches Θ; feasible if one
//! combination fits the supply (depth-first search with pruning). A feasible target is raised at once to what the
//! combination found really attains, and the last question is always "is anything strictly better?", so the
//! answer equals exhaustive search without any tolerance. Called by `solve`; `ebrl` uses it for one side.
use alloc::vec;
use alloc::vec::Vec;

use super::finish;
use super::options::{Budget, Menu, Menus, Row};
use super::{Problem, Solution};

/// One stage's choice: a row of its menu and a rung of its ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pick {
    pub row: usize,
    pub rung: usize,
}

/// Most combinations that one solve may look at, its marginals included: some ten milliseconds. Beyond it, the answer
/// is the best found so far, and says so. Three stages with eight batch sizes look at a few thousand.
pub(super) const NODES_MAX: u64 = 1_000_000;

/// How a combination ranks among those that reach a target: distance to the previous split, then SMs, cores,
/// bytes. Every part only grows as stages are added, so that a partial sum is a bound.
type Rank = (u64, u32, u32, u64);

/// Answers questions about one problem, and counts them.
pub(super) struct Search<'a> {
    pub problem: &'a Problem,
    pub menus: &'a Menus,
    /// Questions asked so far.
    pub evaluations: u32,
    /// Combinations that may still be looked at.
    nodes_left: u64,
    options: Vec<Vec<Opt>>,
    /// Of each stage, the rows that no other row can replace where bytes are not short.
    useful: Vec<Vec<bool>>,
    /// What the largest rows of all stages take together: with so many bytes none is short.
    ample: u64,
    /// Of each stage, the highest rate on its menu.
    bests: Vec<f64>,
}

#[derive(Clone, Copy)]
struct Opt {
    pick: Pick,
    cores: u32,
    sms: u32,
    memory: u64,
}

/// The question of one descent.
struct Descent<'q> {
    problem: &'q Problem,
    menus: &'q [Menu],
    options: &'q [Vec<Opt>],
    /// Least cores, SMs and bytes of the stages from here on, one at a time.
    floor: Vec<(u32, u32, u64)>,
    /// Rollout stages that share one sum (one group): the target binds their sum, not each.
    harmonic: Option<Harmonic>,
    previous: Option<&'q Solution>,
    rank_all: bool,
    nodes_left: u64,
    picks: Vec<Pick>,
    rates: Vec<f64>,
    found: Option<(Rank, Vec<Pick>)>,
}

struct Harmonic {
    target: f64,
    /// The last rollout stage: its quota follows from the others.
    last: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(problem: &'a Problem, menus: &'a Menus) -> Self {
        let options = vec![Vec::new(); menus.stages.len()];
        Self {
            problem,
            menus,
            evaluations: 0,
            nodes_left: NODES_MAX,
            options,
            useful: useful(problem, menus),
            ample: ample(menus),
            bests: menus.stages.iter().map(Menu::best).collect(),
        }
    }

    /// Whether there is nothing left to look with: what was not found may exist.
    pub(super) const fn is_spent(&self) -> bool {
        self.nodes_left == 0
    }

    /// The rates of a combination, in the order of the stages.
    pub(super) fn rates(&self, picks: &[Pick]) -> Vec<f64> {
        self.menus
            .stages
            .iter()
            .zip(picks)
            .map(|(m, p)| m.rows[p.row].rates[p.rung])
            .collect()
    }

    /// Θ of a combination.
    pub(super) fn theta(&self, picks: &[Pick]) -> f64 {
        self.problem.combine(&self.rates(picks)).2
    }

    /// A combination that fits `budget` and reaches `target`: the first found, or with `ranked` the best ranked.
    pub(super) fn fits(
        &mut self,
        target: f64,
        budget: Budget,
        ranked: Option<Option<&Solution>>,
    ) -> Option<Vec<Pick>> {
        self.evaluations += 1;
        let one_group = self.problem.groups == 1;
        let rollout =
            |i: &usize| self.menus.stages[*i].balanced && self.problem.stages[*i].role.is_rollout();
        let last = (0..self.menus.stages.len()).rev().find(rollout);
        let harmonic = last
            .filter(|_| one_group)
            .map(|last| Harmonic { target, last });
        for (i, (menu, options)) in self.menus.stages.iter().zip(&mut self.options).enumerate() {
            options.clear();
            let in_sum = one_group && menu.balanced && self.problem.stages[i].role.is_rollout();
            let is_last = harmonic.as_ref().is_some_and(|h| h.last == i);
            // In a sum every rung from the least useful one up is a choice; else only the least.
            let all_rungs = in_sum && !is_last;
            let least = if in_sum {
                self.problem.least_in_sum(i, &self.bests, target)
            } else {
                0.0
            };
            // Which of two rows that do the same is nearer to the previous split is for the ranking to say.
            let all_rows = ranked.is_some() || budget.memory < self.ample;
            let rows = |row: usize| all_rows || self.useful[i][row];
            let most = all_rungs.then_some(budget.sms);
            offer(menu, rows, (target, least), most, options);
            if options.is_empty() {
                return None;
            }
            options.sort_unstable_by_key(|o| (o.sms, o.cores, o.memory, o.pick));
        }
        let mut descent = Descent {
            problem: self.problem,
            menus: &self.menus.stages,
            options: &self.options,
            floor: floors(&self.options),
            harmonic,
            previous: ranked.flatten(),
            rank_all: ranked.is_some(),
            nodes_left: self.nodes_left,
            picks: Vec::with_capacity(self.options.len()),
            rates: Vec::with_capacity(self.options.len()),
            found: None,
        };
        descent.go(0, budget, (0, 0, 0, 0));
        let (left, found) = (descent.nodes_left, descent.found);
        self.nodes_left = left;
        found.map(|(_, picks)| picks)
    }

    /// The greatest Θ that fits `budget`, with a combination that attains it; `from` is a known lower bound.
    pub(super) fn maximise(
        &mut self,
        budget: Budget,
        from: Option<f64>,
    ) -> Option<(f64, Vec<Pick>)> {
        let mut best = match from {
            Some(low) => self.fits(low.next_up(), budget, None)?,
            None => self.fits(0.0, budget, None)?,
        };
        let mut low = self.theta(&best);
        let mut high = self.problem.combine(&self.bests).2;
        let mut strict = false;
        while low < high && !self.is_spent() {
            // Halve while the range is wide; near the end (and at zero, which no halving reaches) ask for anything better at all, which ends the search.
            strict = !strict && (low <= 0.0 || high - low <= high * 2e-3);
            let target = if strict {
                low.next_up()
            } else {
                low + (high - low) / 2.0
            };
            let target = target.max(low.next_up());
            match self.fits(target, budget, None) {
                Some(picks) => {
                    low = self.theta(&picks);
                    best = picks;
                }
                None if strict => break,
                None => high = target.next_down(),
            }
        }
        Some((low, best))
    }
}

fn ample(menus: &Menus) -> u64 {
    let most = |menu: &Menu| menu.rows.iter().map(|row| row.memory).max().unwrap_or(0);
    menus.stages.iter().map(most).fold(0, u64::saturating_add)
}

/// The rows that a search for any combination has to look at while bytes are [`ample`]: a row that takes no more cores
/// than another and is nowhere slower replaces it. Only for one group, whose search goes over the rungs of every row;
/// elsewhere looking for such rows takes longer than searching them.
fn useful(problem: &Problem, menus: &Menus) -> Vec<Vec<bool>> {
    let replaces =
        |a: &Row, b: &Row| a.cores <= b.cores && a.rates.iter().zip(&b.rates).all(|(a, b)| a >= b);
    let of = |menu: &Menu| -> Vec<bool> {
        let rows = &menu.rows;
        let is_useful = |at: usize| {
            // Of two that replace each other the first one stays.
            let mut others = rows.iter().enumerate().filter(|(i, _)| *i != at);
            !others
                .any(|(i, row)| replaces(row, &rows[at]) && (i < at || !replaces(&rows[at], row)))
        };
        let looks = problem.groups == 1 && menu.balanced;
        (0..rows.len()).map(|at| !looks || is_useful(at)).collect()
    };
    menus.stages.iter().map(of).collect()
}

/// The rows' options at a target: for each the least rung that reaches it (and in a sum, `least`), or, with `most`, every
/// useful rung from there up to so many SMs.
fn offer(
    menu: &Menu,
    rows: impl Fn(usize) -> bool,
    (target, least): (f64, f64),
    most: Option<u32>,
    out: &mut Vec<Opt>,
) {
    for (row, r) in menu.rows.iter().enumerate().filter(|(row, _)| rows(*row)) {
        let from = if menu.balanced {
            let too_slow = |rate: &f64| menu.weight * rate < target || *rate < least;
            r.rates.partition_point(too_slow)
        } else {
            0
        };
        let mut before = f64::NEG_INFINITY;
        for (rung, rate) in r.rates.iter().enumerate().skip(from) {
            if most.is_some_and(|most| menu.ladder[rung] > most) {
                break;
            }
            if *rate > before {
                let pick = Pick { row, rung };
                out.push(Opt {
                    pick,
                    cores: r.cores,
                    sms: menu.ladder[rung],
                    memory: r.memory,
                });
                before = *rate;
            }
            if most.is_none() {
                break;
            }
        }
    }
}

fn floors(options: &[Vec<Opt>]) -> Vec<(u32, u32, u64)> {
    let mut floor: Vec<(u32, u32, u64)> = vec![(0, 0, 0); options.len() + 1];
    for i in (0..options.len()).rev() {
        let least = |f: fn(&Opt) -> u64| options[i].iter().map(f).min().unwrap_or(0);
        let (c, s, m) = floor[i + 1];
        let cores = least(|o| o.cores.into()) as u32;
        let sms = least(|o| o.sms.into()) as u32;
        let memory = least(|o| o.memory);
        floor[i] = (
            c.saturating_add(cores),
            s.saturating_add(sms),
            m.saturating_add(memory),
        );
    }
    floor
}

impl Descent<'_> {
    fn go(&mut self, i: usize, left: Budget, rank: Rank) {
        let (cores, sms, memory) = self.floor[i];
        if left.minus(cores, sms, memory).is_none() || self.nodes_left == 0 {
            return;
        }
        if self
            .found
            .as_ref()
            .is_some_and(|(best, _)| !self.rank_all || rank > *best)
        {
            return;
        }
        if i == self.options.len() {
            let better = match &self.found {
                None => true,
                Some((best, picks)) => (rank, &self.picks) < (*best, picks),
            };
            if better && self.reaches_together() {
                self.found = Some((rank, self.picks.clone()));
            }
            return;
        }
        for at in 0..self.options[i].len() {
            self.nodes_left = self.nodes_left.saturating_sub(1);
            let option = self.options[i][at];
            let Some(option) = self.lift(i, option) else {
                continue;
            };
            let Some(rest) = left.minus(option.cores, option.sms, option.memory) else {
                continue;
            };
            let rank = (
                rank.0 + self.distance(i, &option),
                rank.1 + option.sms,
                rank.2 + option.cores,
                rank.3 + option.memory,
            );
            self.picks.push(option.pick);
            self.rates
                .push(self.menus[i].rows[option.pick.row].rates[option.pick.rung]);
            self.go(i + 1, rest, rank);
            self.picks.pop();
            self.rates.pop();
            if self.found.is_some() && !self.rank_all {
                return;
            }
        }
    }

    /// In one group the last rollout stage has to make up for the others: the least rung at which the sum
    /// reaches the target. Elsewhere the option as it is.
    fn lift(&self, i: usize, option: Opt) -> Option<Opt> {
        let Some(h) = self.harmonic.as_ref().filter(|h| h.last == i) else {
            return Some(option);
        };
        let menu = &self.menus[i];
        let rates = &menu.rows[option.pick.row].rates;
        // The same operations in the same order as `Problem::combine`, so that the sums are the same to the last bit.
        let (before, factor) = (self.sum_before(i), self.problem.rollout_factor());
        let short = |rate: &f64| factor / (before + 1.0 / *rate) < h.target;
        let from = option.pick.rung;
        let rung = from + rates[from..].partition_point(short);
        let sms = *menu.ladder.get(rung)?;
        Some(Opt {
            pick: Pick {
                row: option.pick.row,
                rung,
            },
            sms,
            ..option
        })
    }

    /// The time per unit of the rollout stages before stage `i`, one after the other, in seconds.
    fn sum_before(&self, i: usize) -> f64 {
        let rates = self.rates.iter().take(i).enumerate();
        rates
            .filter(|(j, _)| self.menus[*j].balanced && self.problem.stages[*j].role.is_rollout())
            .fold(0.0, |sum, (_, r)| sum + 1.0 / r)
    }

    fn reaches_together(&self) -> bool {
        let Some(h) = &self.harmonic else { return true };
        self.problem.combine(&self.rates).0 >= h.target
    }

    /// How far an option is from what the stage had: cores that change owner, SMs that it would need on top, and
    /// a changed batch size.
    fn distance(&self, i: usize, option: &Opt) -> u64 {
        let Some(had) = self.previous.and_then(|p| p.stages.get(i)) else {
            return 0;
        };
        let row = &self.menus[i].rows[option.pick.row];
        u64::from(row.cores.abs_diff(had.cores))
            + u64::from(option.sms.saturating_sub(had.sms.0))
            + u64::from(row.batch != had.batch)
    }
}

/// The best split: Θ first, then nearest to `previous`, then the least SMs, cores and bytes; spare SMs are given
/// out by `finish`.
pub(super) fn solve(search: &mut Search<'_>, previous: Option<&Solution>) -> Option<Vec<Pick>> {
    let budget = search.menus.budget;
    let (theta, first) = search.maximise(budget, None)?;
    if let Some(kept) = previous.and_then(|p| finish::kept(search, p, theta)) {
        return Some(kept);
    }
    let evaluations = search.evaluations; // a tie-break is no further evaluation: the count follows the problem
    let picks = search.fits(theta, budget, Some(previous)).unwrap_or(first);
    search.evaluations = evaluations;
    Some(finish::spread(search, picks, previous))
}
