//! Trials of pairs: two stages at once, each with its share, against what each does alone. What they lose is the
//! interference κ that the plan divides by.
//!
//! Both shares are leased and kept (`reserve`), each in a lease of its own. Where the job's stages may overlap, `beyond` tries
//! them with higher caps, too.
use std::time::{Duration, Instant};

use evenkeel_client::{CoRun, CoRunCaps, Gpu, Node, ProfilePoint};
use evenkeel_core::curve::Curve;
use evenkeel_core::unit::Sms;

use super::beyond;
use super::campaign::{self, Campaign};
use super::grid::Point;
use super::measure::{Run, Work, describe};
use super::trial::Outcome;
use crate::fail::{Doing as _, Failure};
use crate::jobfile::BenchFile;
use crate::units::show_rate;

/// Rounds: each pair at the split that would be planned; then at the one that is planned with what the first round found.
const ROUNDS: usize = 2;
/// Where that is the same one, this part of the GPU moves from one to the other: κ must not hang on one split.
const MOVED: u32 = 12;

/// Where pairs are tried.
pub(super) struct Ground<'g> {
    /// Says what each stage would get.
    pub(super) planner: &'g Campaign,
    pub(super) node: &'g Node,
    pub(super) gpu: Option<&'g Gpu>,
    /// Whether the job's stages may go beyond their shares.
    pub(super) may_go_beyond: bool,
}

/// One of a pair.
pub(super) struct Side<'w, 'a> {
    pub(super) work: &'w Work<'a>,
    pub(super) point: Point,
    /// What it does there alone, as far beyond its share as its cap allows, by its curve.
    alone: f64,
}

impl Side<'_, '_> {
    pub(super) fn name(&self) -> String {
        describe(&self.work.key.stage, self.point)
    }

    /// GPU memory of its trial, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.work.stage.trial_memory(self.work.bench)
    }
}

/// How one side's trial went.
pub(super) struct Ran {
    outcome: Outcome,
    /// When it was measuring, by the clock of the run: the last seconds of its life.
    from: Duration,
    until: Duration,
}

impl Ran {
    pub(super) fn new(outcome: Outcome, until: Duration, bench: &BenchFile) -> Self {
        Self {
            outcome,
            from: until.saturating_sub(bench.seconds),
            until,
        }
    }
}

/// Runs each pair of stages that work, at two splits. Says how many trials of pairs were stored.
pub(super) async fn pairs(
    run: &mut Run<'_>,
    works: &mut [Work<'_>],
    ground: &Ground<'_>,
) -> Result<u32, Failure> {
    let mut stored = 0;
    for round in 0..ROUNDS {
        let planned = ground.points(works);
        for first in 0..works.len() {
            for second in first + 1..works.len() {
                let (Some(a), Some(b)) = (planned[first], planned[second]) else {
                    continue;
                };
                let pair = [(first, a), (second, b)];
                if let Some(pair) = ground.unknown(works, pair) {
                    stored += u32::from(kept(run, works, pair).await?);
                }
                if round == 0 && ground.may_go_beyond {
                    stored += overlapping(run, works, ground, pair).await?;
                }
            }
        }
    }
    Ok(stored)
}

/// A pair with its shares kept. Says whether anything was stored.
async fn kept(
    run: &mut Run<'_>,
    works: &mut [Work<'_>],
    pair: [(usize, Point); 2],
) -> Result<bool, Failure> {
    if !alone(run, works, pair).await? {
        return Ok(false);
    }
    let [a, b] = pair.map(|(at, point)| side(&works[at], point, point));
    let (Some(a), Some(b)) = (a, b) else {
        return Ok(false);
    };
    let told = together(run, &a, &b).await?;
    Ok(learn(works, told))
}

/// A pair with caps beyond its shares. Says how many trials were stored.
async fn overlapping(
    run: &mut Run<'_>,
    works: &mut [Work<'_>],
    ground: &Ground<'_>,
    pair: [(usize, Point); 2],
) -> Result<u32, Failure> {
    // A running worker's cap is its lease's.
    let can = |(at, point): (usize, Point)| point.sms > 0 && !works[at].bench.worker;
    if !pair.into_iter().all(can) {
        return Ok(0);
    }
    let mut stored = 0;
    for caps in beyond::CAPS {
        let [(at, a), (bt, b)] = pair;
        let reached = (
            beyond::reach(ground, caps, a),
            beyond::reach(ground, caps, b),
        );
        let (Some(reach_a), Some(reach_b)) = reached else {
            continue;
        };
        if is_known((&works[at], a), (&works[bt], b), caps)
            || !alone(run, works, [(at, reach_a), (bt, reach_b)]).await?
        {
            continue;
        }
        let (a, b) = (side(&works[at], a, reach_a), side(&works[bt], b, reach_b));
        let (Some(a), Some(b)) = (a, b) else { continue };
        let told = beyond::together(run, ground, caps, [(&a, reach_a), (&b, reach_b)]).await?;
        stored += u32::from(learn(works, told));
    }
    Ok(stored)
}

/// Keeps what was stored, each with the place of its stage among the job's. Says whether there was any.
fn learn(works: &mut [Work<'_>], told: Vec<(usize, ProfilePoint)>) -> bool {
    let any = !told.is_empty();
    for (stage, point) in told {
        let own = works.iter_mut().find(|w| w.index == stage);
        own.into_iter().for_each(|w| w.known.push(point.clone()));
    }
    any
}

/// Sees to it that both of a pair were measured alone where they will run together: what a curve says between its points
/// is too rough to be compared with. Says whether there is time for the pair.
async fn alone(
    run: &mut Run<'_>,
    works: &mut [Work<'_>],
    pair: [(usize, Point); 2],
) -> Result<bool, Failure> {
    for (at, point) in pair {
        if run.over_budget(run.expected(works[at].bench)).is_some() {
            return Ok(false);
        }
        if !works[at].known.iter().any(|k| point.is_of(k)) {
            run.one(&mut works[at], point, "alone, for a trial of a pair")
                .await?;
        }
    }
    let over = run.over_budget(run.expected(works[pair[0].0].bench));
    Ok(over.is_none())
}

impl Ground<'_> {
    /// Where each stage would run by the plan that one would get now; before there is one, with a third of everything.
    fn points(&self, works: &[Work<'_>]) -> Vec<Option<Point>> {
        match self.planner.planned(works) {
            Some(shares) => works
                .iter()
                .map(|w| {
                    let share = shares.get(w.index)?;
                    let replicas = w.grid.iter().map(|p| p.replicas).min()?;
                    (share.rate.get() > 0.0).then_some(Point {
                        cores: share.cores,
                        batch: share.batch,
                        sms: share.sms.0,
                        replicas,
                    })
                })
                .collect(),
            None => works.iter().map(|w| self.third(w)).collect(),
        }
    }

    /// The best measured point of a stage within a third of the cores and of the GPU.
    fn third(&self, work: &Work<'_>) -> Option<Point> {
        let curve = Curve::fit(&campaign::core(&work.known), &[], 1.0, 1)?;
        let (cores, sms) = (self.cores() / 3, self.sms() / 3);
        let fits = |p: &&Point| p.cores <= cores.max(1) && p.sms <= sms && p.replicas == 1;
        let rate = |p: &Point| curve.rate(p.cores, Sms(p.sms), p.batch).get();
        let measured = |p: &&Point| curve.batches().any(|b| b == p.batch);
        let best = work.grid.iter().filter(fits).filter(measured);
        best.max_by(|a, b| rate(a).total_cmp(&rate(b))).copied()
    }

    fn cores(&self) -> u32 {
        let leasable = self.node.cores.len();
        let leasable = leasable.saturating_sub(self.node.reserved_cores.len());
        u32::try_from(leasable).unwrap_or(u32::MAX)
    }

    fn sms(&self) -> u32 {
        self.gpu.map_or(0, |gpu| gpu.sms)
    }

    /// The pair where it was not tried yet: as planned, or with some SMs moved to either side.
    fn unknown(
        &self,
        works: &[Work<'_>],
        pair: [(usize, Point); 2],
    ) -> Option<[(usize, Point); 2]> {
        let [(at, a), (bt, b)] = pair;
        let step = (self.sms() / MOVED).max(1);
        let moved = |from: Point, to: Point| {
            let less = self.enforceable(from.sms.checked_sub(step).filter(|n| *n > 0)?)?;
            let more = self.enforceable(to.sms + (from.sms - less))?;
            Some((Point { sms: less, ..from }, Point { sms: more, ..to }))
        };
        let both_on_gpu = a.sms > 0 && b.sms > 0;
        let mut splits = vec![(a, b)];
        if both_on_gpu {
            splits.extend(moved(a, b));
            splits.extend(moved(b, a).map(|(b, a)| (a, b)));
        }
        let (a, b) = splits
            .into_iter()
            .find(|(a, b)| !is_known((&works[at], *a), (&works[bt], *b), CoRunCaps::Reserve))?;
        Some([(at, a), (bt, b)])
    }

    /// The largest count that the GPU can enforce within so many SMs.
    pub(super) fn enforceable(&self, sms: u32) -> Option<u32> {
        let counts = &self.gpu?.enforceable_sms;
        if counts.is_empty() {
            return Some(sms);
        }
        counts.iter().rev().find(|n| **n <= sms).copied()
    }
}

/// A stage with a share that reaches so far, if it works there.
fn side<'w, 'a>(work: &'w Work<'a>, point: Point, reach: Point) -> Option<Side<'w, 'a>> {
    let curve = Curve::fit(&campaign::core(&work.known), &[], 1.0, point.replicas)?;
    let alone = curve.rate(reach.cores, Sms(reach.sms), reach.batch).get();
    (alone > 0.0).then_some(Side { work, point, alone })
}

/// Whether both were measured beside each other at these shares, with such caps, before.
fn is_known(a: (&Work<'_>, Point), b: (&Work<'_>, Point), caps: CoRunCaps) -> bool {
    let knows = |own: (&Work<'_>, Point), other: (&Work<'_>, Point)| {
        own.0.known.iter().any(|p| {
            let beside = p.beside.as_ref();
            let same = beside.is_some_and(|c| {
                (c.stage.as_str(), c.sms, c.caps) == (other.0.key.stage.as_str(), other.1.sms, caps)
            });
            same && (p.cores, p.sms, p.batch) == (own.1.cores, own.1.sms, own.1.batch)
        })
    };
    knows(a, b) && knows(b, a)
}

/// One trial of a pair. What was stored, each with the place of its stage among the job's.
async fn together(
    run: &mut Run<'_>,
    a: &Side<'_, '_>,
    b: &Side<'_, '_>,
) -> Result<Vec<(usize, ProfilePoint)>, Failure> {
    let pair = format!("{} beside {}", a.name(), b.name());
    run.progress.set_message(pair.clone());
    let started = Instant::now();
    let one = async |side: &Side<'_, '_>| -> Result<Ran, Failure> {
        let outcome = run.trial(side.work, side.point).await?;
        Ok(Ran::new(outcome, started.elapsed(), side.work.bench))
    };
    let (first, second) = tokio::join!(one(a), one(b));
    let ran = [(a, first?), (b, second?)];
    run.count(started);
    told(run, &pair, CoRunCaps::Reserve, ran).await
}

/// Says and stores what a pair gave. What was stored, each with the place of its stage among the job's.
pub(super) async fn told(
    run: &Run<'_>,
    pair: &str,
    caps: CoRunCaps,
    [(a, first), (b, second)]: [(&Side<'_, '_>, Ran); 2],
) -> Result<Vec<(usize, ProfilePoint)>, Failure> {
    let (Outcome::Measured(of_a), Outcome::Measured(of_b)) = (&first.outcome, &second.outcome)
    else {
        run.say(format_args!(
            "{pair}: not measured: one of them did not run, so this says nothing of interference"
        ));
        return Ok(Vec::new());
    };
    run.say(format_args!(
        "{pair}: {} and {} units/s, alone {} and {}",
        show_rate(of_a.units_per_s),
        show_rate(of_b.units_per_s),
        show_rate(a.alone),
        show_rate(b.alone)
    ));
    let told = [
        (a, point((a, of_a), b, caps, overlap(&first, &second))),
        (b, point((b, of_b), a, caps, overlap(&second, &first))),
    ];
    let mut stored = Vec::new();
    for (side, told) in told {
        // Two that hardly met say nothing, and none of it is stored.
        if let Some(told) = told {
            let key = side.work.key.clone();
            // Measured again only with --again, in the place of what was there.
            let answer = run.client.replace_trial(key, told.clone()).await;
            answer.doing(format_args!("store the trial of {pair}"))?;
            stored.push((side.work.index, told));
        }
    }
    Ok(stored)
}

fn point(
    (own, measured): (&Side<'_, '_>, &ProfilePoint),
    other: &Side<'_, '_>,
    caps: CoRunCaps,
    overlap: f64,
) -> Option<ProfilePoint> {
    (overlap > 0.0).then(|| ProfilePoint {
        beside: Some(CoRun {
            stage: other.work.key.stage.clone(),
            sms: other.point.sms,
            caps,
            alone_units_per_s: own.alone,
            overlap,
        }),
        ..measured.clone()
    })
}

/// The share of one's measured time in which the other was measuring, too.
fn overlap(own: &Ran, other: &Ran) -> f64 {
    let own_time = own.until.saturating_sub(own.from).as_secs_f64();
    let both = own
        .until
        .min(other.until)
        .saturating_sub(own.from.max(other.from));
    match own_time > 0.0 {
        true => (both.as_secs_f64() / own_time).min(1.0),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_a_share_of_ones_own_time() {
        let ran = |from, until| Ran {
            outcome: Outcome::Skipped(String::new()),
            from: Duration::from_secs(from),
            until: Duration::from_secs(until),
        };
        assert_eq!(overlap(&ran(0, 10), &ran(0, 10)), 1.0);
        assert_eq!(overlap(&ran(0, 10), &ran(5, 20)), 0.5);
        assert_eq!(overlap(&ran(5, 15), &ran(0, 20)), 1.0);
        assert_eq!(overlap(&ran(0, 5), &ran(6, 20)), 0.0);
        assert_eq!(overlap(&ran(5, 5), &ran(0, 20)), 0.0);
    }
}
