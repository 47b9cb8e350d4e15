//! Which trial teaches most: the order in which a job's stages are measured, and when to stop.
//!
//! Pure: [`next`] is a function of a [`Campaign`], which is the job, the grid of each stage, and what was measured so
//! far. It runs nothing, knows no clock and no daemon; `evenkeel calibrate` asks it before each trial, tests replay it
//! against curves that they know.
//!
//! The goal is the plan, not the curve: a point that no good plan comes near is not worth a trial. So the allocator is
//! asked twice. Once with curves as good as the measurements still allow (`bounds`): no plan can be better than that.
//! And once with the curves of what was measured, which is the plan one would get now. While the first promises more than
//! a tolerance over the second, the promise is tested: of the points that the promising plan rests on, the least known
//! one is next. Either it holds, and the plan becomes better, or it does not, and the promise shrinks. Then points that
//! the plan rests on are repeated until their estimates are tight.
use alloc::vec::Vec;

use crate::allocate::{Problem, Share, Solution, solve};
use crate::curve::{Curve, Point};
use crate::unit::{Bytes, Rate, Sms};

mod bounds;
mod known;

use bounds::Bound;
use known::Known;
pub use known::Spot;

/// What was measured of a stage, and what may be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// What may be tried. Empty: the stage is not measured in this campaign.
    pub grid: Vec<Spot>,
    /// What was measured, one point for each trial; a rate of zero did not fit.
    pub points: Vec<Point>,
}

impl Sampled {
    /// Trials that the campaign has made of the stage: alone, and only where it has a grid to measure.
    pub fn trials(&self) -> usize {
        let alone = self.points.iter().filter(|p| p.beside.is_none());
        if self.grid.is_empty() {
            0
        } else {
            alone.count()
        }
    }
}

/// A campaign of trials for one job.
#[derive(Clone, Copy, Debug)]
pub struct Campaign<'a> {
    /// The job on all that it may ever get. Curves in it count only for stages without points and grid.
    pub problem: &'a Problem,
    /// By stage.
    pub stages: &'a [Sampled],
    /// When it is enough.
    pub rules: Rules,
}

/// When it is enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// It stops when no plan can be better than the present one by more than this share.
    pub tolerance: f64,
    /// The relative standard error at which the estimate of a point that the plan rests on is tight.
    pub tight: f64,
    /// Most trials of one point.
    pub repeats: u32,
    /// Most trials of the campaign, those made before included ([`Sampled::trials`]).
    pub most: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            tolerance: 0.02,
            tight: 0.015,
            repeats: 4,
            most: u32::MAX,
        }
    }
}

/// A point whose trials contradict each other is tried so often at least: the median of five survives two outliers.
const DOUBTS_MOST: u32 = 5;

/// The next trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The stage's index.
    pub stage: usize,
    /// What it gets.
    pub spot: Spot,
    /// What it is for.
    pub why: Why,
}

/// What a trial is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// The most that the stage can have: everything else is judged by it.
    Corner,
    /// A plan that rests on this point could be better than the present one by this share.
    Promise(f64),
    /// It contradicts what was measured around it.
    Doubt,
    /// The plan rests on it, and its relative standard error is still this.
    Loose(f64),
    /// Another number of replicas with the most that the stage can have: a choice for a person to see.
    Replicas,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// A trial.
    Try(Trial),
    /// No trial is worth its time.
    Stop(Stop),
}

/// Why it stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// No plan can be better than the present one by more than this share, as far as curves are as they usually are.
    Tight(f64),
    /// Everything on the grids was tried.
    All,
    /// As many trials were made as were allowed. A plan could still be better by this share.
    Spent(f64),
    /// No stage works anywhere, so there is nothing to plan with.
    Nothing,
}

/// The trial that teaches most about the best plan, or why none does.
pub fn next(campaign: &Campaign<'_>) -> Next {
    let known: Vec<Known> = campaign.stages.iter().map(Known::of).collect();
    let made: usize = campaign.stages.iter().map(Sampled::trials).sum();
    let is_spent = made >= usize::try_from(campaign.rules.most).unwrap_or(usize::MAX);
    let first = corner(campaign, &known).or_else(|| doubt(campaign, &known));
    if let (Some(trial), false) = (first, is_spent) {
        return Next::Try(trial);
    }
    if known.iter().all(|k| k.measured().next().is_none()) {
        return Next::Stop(Stop::Nothing);
    }
    let bounds: Vec<Vec<Bound>> = known.iter().map(Known::bounds).collect();
    let now = plan(campaign, |i| campaign.stages[i].points.clone());
    let hope = plan(campaign, |i| known[i].hoped_for(&bounds[i]));
    let promise = match (&now, &hope) {
        (Some(now), Some(hope)) => hope.1.theta.get() / now.1.theta.get() - 1.0,
        (None, Some(_)) => f64::INFINITY,
        (_, None) => 0.0,
    };
    if is_spent {
        return Next::Stop(Stop::Spent(promise.max(0.0)));
    }
    let trial = match &hope {
        Some(hope) if promise > campaign.rules.tolerance => {
            promising(&known, &bounds, now.as_ref().map(|n| &n.0), hope, promise)
        }
        _ => None,
    };
    let trial = trial
        .or_else(|| loose(campaign, &known, now.as_ref()?))
        .or_else(|| replicas(&known));
    match trial {
        Some(trial) => Next::Try(trial),
        None if now.is_none() => rest(&known),
        None if known.iter().all(|k| k.untried().next().is_none()) => Next::Stop(Stop::All),
        None => Next::Stop(Stop::Tight(promise.max(0.0))),
    }
}

/// The plan that one would get now, by the curves of what was measured; none before every stage that counts works.
pub fn planned(campaign: &Campaign<'_>) -> Option<Solution> {
    plan(campaign, |i| campaign.stages[i].points.clone()).map(|(_, plan)| plan)
}

/// With a stage's most: the largest batch first, the next smaller one while that does not fit.
fn corner(campaign: &Campaign<'_>, known: &[Known]) -> Option<Trial> {
    let of = |(stage, k): (usize, &Known)| {
        if k.measured().next().is_some() {
            return None;
        }
        let workers = campaign.problem.stages.get(stage)?.workers;
        k.corner(workers).map(|spot| Trial {
            stage,
            spot,
            why: Why::Corner,
        })
    };
    known.iter().enumerate().find_map(of)
}

/// A point that is off what was measured around it, or whose two trials contradict each other. The first trial of a
/// stage, with cold caches, is what it finds most.
fn doubt(campaign: &Campaign<'_>, known: &[Known]) -> Option<Trial> {
    let most = campaign.rules.repeats.max(DOUBTS_MOST);
    let of = |(stage, k): (usize, &Known)| {
        k.doubtful(most).map(|spot| Trial {
            stage,
            spot,
            why: Why::Doubt,
        })
    };
    known.iter().enumerate().find_map(of)
}

/// A plan from such points, and the problem with their curves. None: there is none.
fn plan(
    campaign: &Campaign<'_>,
    points: impl Fn(usize) -> Vec<Point>,
) -> Option<(Problem, Solution)> {
    let mut problem = campaign.problem.clone();
    for (i, stage) in problem.stages.iter_mut().enumerate() {
        let Some(sampled) = campaign.stages.get(i) else {
            continue;
        };
        if sampled.grid.is_empty() && sampled.points.is_empty() {
            continue;
        }
        stage.curve = Curve::fit(&points(i), &[], 1.0, stage.workers);
    }
    let solution = solve(&problem, None).ok()?;
    (solution.theta.get() > 0.0).then_some((problem, solution))
}

/// Of the points that the promising plan rests on, the least known one.
fn promising(
    known: &[Known],
    bounds: &[Vec<Bound>],
    now: Option<&Problem>,
    (problem, hope): &(Problem, Solution),
    promise: f64,
) -> Option<Trial> {
    let mut best: Option<(f64, Trial)> = None;
    for (stage, share) in hope.stages.iter().enumerate() {
        let (Some(k), true) = (known.get(stage), problem.balanced(stage)) else {
            continue;
        };
        // What is known to be fast enough there needs no trial.
        let sure = now.map_or(0.0, |now| {
            let rate = now.rate(stage, share.cores, share.sms, share.batch);
            problem.weighted(stage, rate.get())
        });
        if problem.groups != 1 && sure >= hope.theta.get() {
            continue;
        }
        for at in k.around(share, problem.stages[stage].workers) {
            let gap = bounds[stage][at].gap();
            let better = best.as_ref().is_none_or(|(most, _)| gap > *most);
            if !k.is_tried(at) && better {
                let why = Why::Promise(promise);
                let spot = k.grid[at];
                best = Some((gap, Trial { stage, spot, why }));
            }
        }
    }
    best.map(|b| b.1)
}

/// Of the points that the present plan rests on, the one with the loosest estimate, if that is too loose.
fn loose(
    campaign: &Campaign<'_>,
    known: &[Known],
    (problem, now): &(Problem, Solution),
) -> Option<Trial> {
    let rules = &campaign.rules;
    let noise = known::noise(known);
    let mut best: Option<(f64, Trial)> = None;
    for (stage, share) in now.stages.iter().enumerate() {
        let (Some(k), true) = (known.get(stage), problem.balanced(stage)) else {
            continue;
        };
        let spare = problem.weighted(stage, share.rate.get()) / now.theta.get() - 1.0;
        if problem.groups != 1 && spare > 3.0 * noise {
            continue; // it does not bind, whatever its noise
        }
        let around = k.around(share, problem.stages[stage].workers);
        let parts = parts(around.iter().map(|at| k.grid[*at].sms), share.sms);
        let errors = around.iter().zip(parts).map(|(at, part)| {
            let trials = k.trials(*at);
            let error = part * noise / libm::sqrt(f64::from(trials.max(1)));
            (error, *at, trials)
        });
        let errors: Vec<(f64, usize, u32)> = errors.collect();
        let whole = libm::sqrt(errors.iter().map(|e| e.0 * e.0).sum());
        if whole <= rules.tight {
            continue;
        }
        let may = |e: &&(f64, usize, u32)| e.2 > 0 && e.2 < rules.repeats;
        let worst = errors.iter().filter(may).max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((error, at, _)) = worst
            && best.as_ref().is_none_or(|(most, _)| error > most)
        {
            let (spot, why) = (k.grid[*at], Why::Loose(whole));
            best = Some((*error, Trial { stage, spot, why }));
        }
    }
    best.map(|b| b.1)
}

/// What each of one or two points on the SM axis contributes to the rate between them.
fn parts(points: impl Iterator<Item = Sms>, at: Sms) -> Vec<f64> {
    let points: Vec<f64> = points.map(|q| f64::from(q.0)).collect();
    match points[..] {
        [a, b] if b > a => {
            let t = (f64::from(at.0) - a) / (b - a);
            [1.0 - t, t].into()
        }
        _ => points.iter().map(|_| 1.0).collect(),
    }
}

/// Each other number of replicas once.
fn replicas(known: &[Known]) -> Option<Trial> {
    let of = |(stage, k): (usize, &Known)| {
        k.other_replicas().map(|spot| Trial {
            stage,
            spot,
            why: Why::Replicas,
        })
    };
    known.iter().enumerate().find_map(of)
}

/// Nothing can be planned yet (memory, say): the least known points of all.
fn rest(known: &[Known]) -> Next {
    let mut best: Option<(f64, Trial)> = None;
    for (stage, k) in known.iter().enumerate() {
        let bounds = k.bounds();
        for at in k.untried() {
            let gap = bounds[at].gap();
            if best.as_ref().is_none_or(|(most, _)| gap > *most) {
                let (spot, why) = (k.grid[at], Why::Promise(f64::INFINITY));
                best = Some((gap, Trial { stage, spot, why }));
            }
        }
    }
    best.map_or(Next::Stop(Stop::All), |b| Next::Try(b.1))
}

impl Spot {
    /// The point of a trial here.
    fn point(self, rate: f64, memory: Bytes) -> Point {
        Point {
            cores: self.cores,
            sms: self.sms,
            batch: self.batch,
            replicas: self.replicas,
            rate: Rate::clamped(rate),
            memory,
            weight: 1.0,
            ..Point::default()
        }
    }

    /// Where a point was measured.
    pub const fn of(point: &Point) -> Self {
        Self {
            batch: point.batch,
            replicas: point.replicas,
            cores: point.cores,
            sms: point.sms,
        }
    }
}

/// The nearest grid values around `x`: the last at most it and the first at least it.
fn around(values: impl Iterator<Item = u32> + Clone, x: u32) -> [Option<u32>; 2] {
    let below = values.clone().filter(|v| *v <= x).max();
    let above = values.filter(|v| *v >= x).min();
    [below, above]
}

/// The grid points that a share's rate is interpolated from.
fn corners_of(grid: &[Spot], share: &Share, replicas: u32) -> Vec<usize> {
    let fits = |s: &&Spot| s.batch == share.batch && s.replicas == replicas;
    let cores = || grid.iter().filter(fits).map(|s| s.cores);
    let level = cores().filter(|c| *c <= share.cores).max();
    let Some(level) = level.or_else(|| cores().min()) else {
        return Vec::new();
    };
    let on_level = |s: &&Spot| fits(s) && s.cores == level;
    let counts = grid.iter().filter(on_level).map(|s| s.sms.0);
    let wanted = around(counts, share.sms.0);
    let at = |sms: u32| {
        let is = |s: &Spot| on_level(&s) && s.sms == Sms(sms);
        grid.iter().position(is)
    };
    let mut found: Vec<usize> = wanted.into_iter().flatten().filter_map(at).collect();
    found.dedup();
    found
}
