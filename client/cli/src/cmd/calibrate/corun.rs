//! Trials of pairs: two stages at once, each with its share, against what each does alone. What they lose is the
//! interference κ that the plan divides by.
//!
//! Both shares are leased and kept (`reserve`). Trials with caps beyond the shares need leases that may exceed their
//! guarantee, which only jobs have; profiles can hold such measurements all the same.
use std::time::{Duration, Instant};

use evenkeel_client::{CoRun, CoRunCaps, Gpu, Node, ProfilePoint};
use evenkeel_core::curve::Curve;
use evenkeel_core::unit::Sms;

use super::campaign;
use super::grid::Point;
use super::measure::{Run, Work, describe};
use super::trial::{self, Outcome};
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::units::show_rate;

/// How a pair shares the GPU, and the cores: two splits, so that κ does not hang on one.
const SPLITS: [[u32; 2]; 2] = [[2, 1], [1, 2]];

/// One of a pair.
struct Side<'w, 'a> {
    work: &'w Work<'a>,
    point: Point,
    /// What it does there alone, by its curve.
    alone: f64,
}

/// How one side's trial went.
struct Ran {
    outcome: Outcome,
    /// When it was measuring, by the clock of the run: the last seconds of its life.
    from: Duration,
    until: Duration,
}

/// Runs each pair of stages that work, at two splits. Says how many trials of pairs were stored.
pub(super) async fn pairs(
    run: &mut Run<'_>,
    works: &mut [Work<'_>],
    node: &Node,
    gpu: Option<&Gpu>,
) -> Result<u32, Failure> {
    let mut stored = 0;
    for first in 0..works.len() {
        for second in first + 1..works.len() {
            for split in SPLITS {
                let pair = [(first, split[0]), (second, split[1])];
                if alone(run, works, pair, node, gpu).await? {
                    let [a, b] = pair.map(|(at, thirds)| side(&works[at], thirds, node, gpu));
                    let (Some(a), Some(b)) = (a, b) else { continue };
                    stored += u32::from(together(run, &a, &b).await?);
                }
            }
        }
    }
    Ok(stored)
}

/// Sees to it that both of a pair were measured alone where they will run together: what a curve says between its points
/// is too rough to be compared with. Says whether there is anything to be run together.
async fn alone(
    run: &mut Run<'_>,
    works: &mut [Work<'_>],
    pair: [(usize, u32); 2],
    node: &Node,
    gpu: Option<&Gpu>,
) -> Result<bool, Failure> {
    let [a, b] = pair.map(|(at, thirds)| side(&works[at], thirds, node, gpu));
    let (Some(a), Some(b)) = (a, b) else {
        return Ok(false);
    };
    if is_known(&a, &b) {
        return Ok(false);
    }
    let points = [a.point, b.point];
    for ((at, _), point) in pair.into_iter().zip(points) {
        if run.over_budget(run.expected(works[at].bench)).is_some() {
            return Ok(false);
        }
        if !works[at].known.iter().any(|k| point.is_of(k)) {
            run.one(&mut works[at], point, "alone, for a trial of a pair")
                .await?;
        }
    }
    Ok(run
        .over_budget(run.expected(works[pair[0].0].bench))
        .is_none())
}

/// A stage's share of so many thirds: of the GPU the largest measured SM count within it, of the cores likewise.
fn side<'w, 'a>(
    work: &'w Work<'a>,
    thirds: u32,
    node: &Node,
    gpu: Option<&Gpu>,
) -> Option<Side<'w, 'a>> {
    let points = campaign::core(&work.known);
    let curve = Curve::fit(&points, &[], 1.0, 1)?;
    let cores = node.cores.len().saturating_sub(node.reserved_cores.len());
    let cores = u32::try_from(cores).unwrap_or(u32::MAX) * thirds / 3;
    let sms = gpu.map_or(0, |gpu| gpu.sms) * thirds / 3;
    let fits = |p: &&Point| p.cores <= cores.max(1) && p.sms <= sms && p.replicas == 1;
    // The batch that does most there: the one that a plan would take.
    let rate = |p: &Point| curve.rate(p.cores, Sms(p.sms), p.batch).get();
    let measured = |p: &&Point| curve.batches().any(|b| b == p.batch);
    let best = work.grid.iter().filter(fits).filter(measured);
    let best = best.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let alone = rate(best);
    (alone > 0.0).then_some(Side {
        work,
        point: *best,
        alone,
    })
}

/// Whether both were measured beside each other at these shares before.
fn is_known(a: &Side<'_, '_>, b: &Side<'_, '_>) -> bool {
    let knows = |own: &Side<'_, '_>, other: &Side<'_, '_>| {
        own.work.known.iter().any(|p| {
            let beside = p.beside.as_ref();
            let same =
                beside.is_some_and(|c| c.stage == other.work.key.stage && c.sms == other.point.sms);
            same && (p.cores, p.sms) == (own.point.cores, own.point.sms)
        })
    };
    knows(a, b) && knows(b, a)
}

/// One trial of a pair. Says whether it was stored.
async fn together(run: &mut Run<'_>, a: &Side<'_, '_>, b: &Side<'_, '_>) -> Result<bool, Failure> {
    let name = |s: &Side<'_, '_>| describe(&s.work.key.stage, s.point);
    let pair = format!("{} beside {}", name(a), name(b));
    run.progress.set_message(pair.clone());
    let started = Instant::now();
    let one = async |side: &Side<'_, '_>| -> Result<Ran, Failure> {
        let bench = side.work.bench;
        let outcome = trial::run(run.globals, run.job, side.work.stage, bench, side.point).await?;
        let until = started.elapsed();
        Ok(Ran {
            outcome,
            from: until.saturating_sub(bench.seconds),
            until,
        })
    };
    let (first, second) = tokio::join!(one(a), one(b));
    let (first, second) = (first?, second?);
    run.count(started);
    let say = |text: String| {
        run.progress
            .suspend(|| out::note(format_args!("{pair}: {text}")))
    };
    let (Outcome::Measured(of_a), Outcome::Measured(of_b)) = (&first.outcome, &second.outcome)
    else {
        say(
            "not measured: one of them did not run, so this says nothing of interference"
                .to_owned(),
        );
        return Ok(false);
    };
    say(format!(
        "{} and {} units/s, alone {} and {}",
        show_rate(of_a.units_per_s),
        show_rate(of_b.units_per_s),
        show_rate(a.alone),
        show_rate(b.alone)
    ));
    let told = [
        point(a, b, of_a, overlap(&first, &second)),
        point(b, a, of_b, overlap(&second, &first)),
    ];
    let mut stored = false;
    for (side, told) in [a, b].into_iter().zip(told) {
        // Two that hardly met say nothing, and none of it is stored.
        if let Some(told) = told {
            let key = side.work.key.clone();
            // Measured again only with --again, in the place of what was there.
            let answer = run.client.replace_trial(key, told).await;
            answer.doing(format_args!("store the trial of {pair}"))?;
            stored = true;
        }
    }
    Ok(stored)
}

fn point(
    own: &Side<'_, '_>,
    other: &Side<'_, '_>,
    measured: &ProfilePoint,
    overlap: f64,
) -> Option<ProfilePoint> {
    (overlap > 0.0).then(|| ProfilePoint {
        beside: Some(CoRun {
            stage: other.work.key.stage.clone(),
            sms: other.point.sms,
            caps: CoRunCaps::Reserve,
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
