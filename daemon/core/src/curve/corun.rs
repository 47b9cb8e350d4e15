//! What one stage loses beside another: co-run measurements, and the interference κ that follows from them.
//!
//! Not how κ is used: `allocate` divides a stage's rate by `1 + Σ κ·u`. The calibrator makes the measurements; whoever
//! plans a job calls [`kappa`].
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Point, Profile};
use crate::id::Name;
use crate::unit::{Rate, Sms};

/// How far a stage could go beyond its share of SMs in a co-run trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caps {
    /// Not at all: cap = share. What κ is derived from.
    #[default]
    Reserve,
    /// Up to half as many again.
    HalfMore,
    /// Up to the whole GPU.
    None,
}

impl Caps {
    /// All of them, the most careful one first.
    pub const ALL: [Self; 3] = [Self::Reserve, Self::HalfMore, Self::None];

    /// How far a share reaches on a GPU with so many SMs.
    pub fn reach(self, share: Sms, gpu: Sms) -> Sms {
        let reached = match self {
            Self::Reserve => share.0,
            Self::HalfMore => share.0.saturating_add(share.0 / 2),
            Self::None if share > Sms(0) => gpu.0,
            Self::None => 0,
        };
        Sms(reached.min(gpu.0).max(share.0))
    }
}

/// What was beside a stage when one of its points was measured. The point itself has the stage's own share, and its
/// rate beside the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoRun {
    /// Fingerprint of the other stage.
    pub other: Name,
    /// SMs that the other had on each GPU.
    pub other_sms: Sms,
    /// How far both could go beyond their shares.
    pub caps: Caps,
    /// The stage's rate with the same share, as far beyond it as `caps` allows, and nobody beside it.
    pub alone: Rate,
    /// The share of the stage's busy time in which the other was busy, too: above 0, at most 1.
    pub overlap: f64,
}

/// Less overlap than this says nothing about interference: it is noise, divided by nearly nothing.
pub const OVERLAP_MIN: f64 = 0.1;
/// A stage that another slows down by more than this many times was not measured well, or not at all.
const KAPPA_MAX: f64 = 100.0;

impl CoRun {
    /// κ by one measurement: `(alone / beside − 1) / overlap`, at least 0. None: it did no work, or hardly met the other.
    pub fn kappa(&self, beside: Rate) -> Option<f64> {
        let told = self.overlap >= OVERLAP_MIN && self.overlap <= 1.0;
        if !told || beside == Rate::ZERO || self.alone == Rate::ZERO {
            return None;
        }
        let lost = self.alone.get() / beside.get() - 1.0;
        Some((lost / self.overlap).clamp(0.0, KAPPA_MAX))
    }
}

impl Profile {
    /// Its co-run measurements, each with its point.
    pub fn co_runs(&self) -> impl Iterator<Item = (&Point, &CoRun)> + '_ {
        let with = |p| Some((p, Point::co_run(p)?));
        self.points.iter().filter_map(with)
    }
}

/// κ of a job's stages where all may go beyond their shares by `caps`: entry `[i][j]` is what stage `j` costs stage `i`, by the
/// trials with such caps; 0 where the pair was never tried together. With shares kept, a pair that was tried only with higher
/// caps is told by those. None: no pair was tried so, and nothing is known.
///
/// κ depends on the split: who works faster is slowed more. With `near`, the SMs on each GPU that each stage has, it is read
/// between the trials on either side of that share, and is that of the nearest one beyond them; without, it is the median.
pub fn kappa(
    profiles: &[Option<&Profile>],
    caps: Caps,
    near: Option<&[Sms]>,
) -> Option<Vec<Vec<f64>>> {
    numbers(&tried(profiles, caps, near))
}

/// What is known as numbers, unknown ones as 0; none where nothing is known.
pub fn numbers(known: &[Vec<Option<f64>>]) -> Option<Vec<Vec<f64>>> {
    let any = known.iter().flatten().any(Option::is_some);
    let row = |row: &Vec<Option<f64>>| row.iter().map(|k| k.unwrap_or(0.0)).collect();
    any.then(|| known.iter().map(row).collect())
}

/// The same, none where a pair was never tried together.
pub fn tried(
    profiles: &[Option<&Profile>],
    caps: Caps,
    near: Option<&[Sms]>,
) -> Vec<Vec<Option<f64>>> {
    let at = |i: usize, other: &Option<&Profile>| {
        let near = near.and_then(|near| near.get(i)).copied();
        of_pair(profiles[i]?, &(*other)?.key.stage, caps, near)
    };
    let row = |i: usize| profiles.iter().map(|other| at(i, other)).collect();
    (0..profiles.len()).map(row).collect()
}

fn of_pair(own: &Profile, other: &Name, caps: Caps, near: Option<Sms>) -> Option<f64> {
    let beside = |p: &&Point| p.co_run().is_some_and(|c| c.other == *other);
    let trials = told(own.points.iter().filter(beside), caps);
    match near {
        Some(near) => between(&trials, near),
        None => median(trials.into_iter().map(|(_, kappa)| kappa).collect()),
    }
}

/// κ by these co-run measurements of one pair, whatever the split.
pub fn median_of<'a>(points: impl IntoIterator<Item = &'a Point>) -> Option<f64> {
    let trials = told(points, Caps::Reserve);
    median(trials.into_iter().map(|(_, kappa)| kappa).collect())
}

/// Each trial's own share and κ: those with such caps; all, where shares are kept and nobody tried that.
fn told<'a>(points: impl IntoIterator<Item = &'a Point>, caps: Caps) -> Vec<(Sms, f64)> {
    let (mut same, mut others) = (Vec::new(), Vec::new());
    for (point, co_run) in points.into_iter().filter_map(|p| Some((p, p.co_run()?))) {
        let of_caps = if co_run.caps == caps {
            &mut same
        } else {
            &mut others
        };
        of_caps.extend(co_run.kappa(point.rate).map(|kappa| (point.sms, kappa)));
    }
    if same.is_empty() && caps == Caps::Reserve {
        others
    } else {
        same
    }
}

/// κ at a share: linear between the trials on either side of it, each the median of its repeats; flat beyond them.
fn between(trials: &[(Sms, f64)], near: Sms) -> Option<f64> {
    let at = |side: &dyn Fn(Sms) -> bool, best: fn(Sms, Sms) -> Sms| {
        let share = trials
            .iter()
            .map(|t| t.0)
            .filter(|s| side(*s))
            .reduce(best)?;
        let same = trials.iter().filter(|t| t.0 == share).map(|t| t.1);
        Some((share, median(same.collect())?))
    };
    let below = at(&|s| s <= near, Sms::max);
    let above = at(&|s| s >= near, Sms::min);
    match (below, above) {
        (Some((low, a)), Some((high, b))) if low < high => {
            let part = f64::from(near.0 - low.0) / f64::from(high.0 - low.0);
            Some(a + part * (b - a))
        }
        (Some((_, kappa)), _) | (None, Some((_, kappa))) => Some(kappa),
        (None, None) => None,
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    Some(match values.len() % 2 {
        0 => values[middle - 1] + (high - values[middle - 1]) / 2.0,
        _ => high,
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::curve::{ProfileKey, tests::point};

    fn profile(stage: &str, others: &[(&str, Caps, f64, f64)]) -> Profile {
        let co_run = |&(other, caps, beside, overlap): &(&str, Caps, f64, f64)| Point {
            beside: Some(alloc::boxed::Box::new(CoRun {
                other: Name::new(other).unwrap(),
                other_sms: Sms(66),
                caps,
                alone: Rate::clamped(100.0),
                overlap,
            })),
            ..point(1, 66, 1, beside)
        };
        Profile {
            key: ProfileKey {
                tenant: Name::new("me").unwrap(),
                stage: Name::new(stage).unwrap(),
                gpu: Name::new("H100").unwrap(),
            },
            points: others.iter().map(co_run).collect(),
        }
    }

    #[test]
    fn kappa_is_the_median_of_what_the_trials_say() {
        let lose = Caps::Reserve;
        let generation = profile(
            "j/gen",
            &[
                ("j/train", lose, 80.0, 1.0),  // 0.25
                ("j/train", lose, 80.0, 0.5),  // 0.5
                ("j/train", lose, 125.0, 1.0), // faster beside: 0
                ("j/train", Caps::None, 10.0, 1.0),
                ("j/train", lose, 50.0, 0.01), // hardly met
                ("j/train", lose, 0.0, 1.0),   // did not run
                ("elsewhere", lose, 20.0, 1.0),
            ],
        );
        let training = profile("j/train", &[("j/gen", Caps::None, 50.0, 1.0)]);
        assert_eq!(
            kappa(
                &[None, Some(&generation), Some(&training)],
                Caps::Reserve,
                None
            ),
            Some(vec![
                vec![0.0, 0.0, 0.0],
                vec![0.0, 0.0, 0.25],
                vec![0.0, 1.0, 0.0]
            ])
        );
        let uncapped = kappa(&[Some(&generation), Some(&training)], Caps::None, None);
        assert_eq!(uncapped.unwrap()[0][1], 9.0, "100 alone, 10 beside");
        assert_eq!(kappa(&[Some(&generation), None], Caps::Reserve, None), None);
        assert_eq!(kappa(&[], Caps::HalfMore, None), None);
    }

    #[test]
    fn between_two_splits_kappa_is_read_between_them() {
        let trials = [
            (Sms(40), 0.2),
            (Sms(80), 0.5),
            (Sms(80), 0.7),
            (Sms(80), 9.0),
        ];
        let check = |near, expect: f64| {
            let found = between(&trials, Sms(near)).unwrap();
            assert!(
                (found - expect).abs() < 1e-12,
                "{found} at {near}, not {expect}"
            );
        };
        check(10, 0.2);
        check(40, 0.2);
        check(60, 0.45);
        check(80, 0.7);
        check(132, 0.7);
        assert_eq!(between(&[], Sms(3)), None);
    }
}
