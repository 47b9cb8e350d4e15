//! Between which rates a point that was not tried can lie, by what was measured around it.
//!
//! Two things are taken from how throughput behaves, along cores, SMs, batch size and replicas alike: more of it is not
//! slower, and twice of it is at most twice as fast. Where several points lie on one line along cores or SMs, the gain of
//! one more also shrinks along the line. Real curves keep that up to noise and to small steps, so that a bound is widened
//! by the noise; a trial that breaks it is doubted, and then believed.
use alloc::vec::Vec;

use super::Spot;
use super::known::Known;

/// A rate lies between these, in work units per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    pub low: f64,
    pub high: f64,
}

/// By how many standard errors a bound from a measured neighbour is widened.
const MARGIN: f64 = 0.5;

impl Bound {
    pub(super) const fn exactly(rate: f64) -> Self {
        Self {
            low: rate,
            high: rate,
        }
    }

    /// How little is known: the logarithm of the ratio.
    pub(super) fn gap(self) -> f64 {
        match self.high > self.low {
            true if self.low > 0.0 => libm::log(self.high / self.low),
            true => f64::INFINITY,
            false => 0.0,
        }
    }
}

/// The bounds of a point by everything that was measured elsewhere.
pub(super) fn from_others(known: &Known, spot: Spot) -> Bound {
    let mut bound = Bound {
        low: 0.0,
        high: f64::MAX,
    };
    for (other, (rate, weight)) in known.smooth.iter().filter(|m| *m.0 != spot) {
        let margin = MARGIN * known.noise / libm::sqrt(weight.max(1.0));
        let (least, most) = factors(*other, spot);
        bound.low = bound.low.max(rate * (1.0 - margin) * least);
        bound.high = bound.high.min(rate * (1.0 + margin) * most);
    }
    for axis in [Axis::Sms, Axis::Cores] {
        on_line(known, spot, axis, &mut bound);
    }
    if bound.low > bound.high {
        // Noise: neighbours contradict each other by a little, and nobody knows which is right.
        bound = Bound::exactly(libm::sqrt(bound.low) * libm::sqrt(bound.high));
    }
    bound
}

/// What the rate at `from` is multiplied by to get the least and the most at `to`.
fn factors(from: Spot, to: Spot) -> (f64, f64) {
    let pairs = [
        (from.cores, to.cores),
        (from.sms.0, to.sms.0),
        (from.batch, to.batch),
        (from.replicas, to.replicas),
    ];
    let ratio = |(a, b): &(u32, u32)| f64::from(*b) / f64::from((*a).max(1));
    let known = || pairs.iter().filter(|(a, b)| a != b).map(ratio);
    let least = known().map(|r| r.min(1.0)).product();
    let most = known().map(|r| r.max(1.0)).product();
    (least, most)
}

#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Sms,
    Cores,
}

impl Axis {
    const fn of(self, spot: Spot) -> u32 {
        match self {
            Self::Sms => spot.sms.0,
            Self::Cores => spot.cores,
        }
    }

    fn same_line(self, a: Spot, b: Spot) -> bool {
        let rest = (a.batch, a.replicas) == (b.batch, b.replicas);
        rest && match self {
            Self::Sms => a.cores == b.cores,
            Self::Cores => a.sms == b.sms,
        }
    }
}

/// Tightens a bound by the gain that shrinks along a line of measured points.
fn on_line(known: &Known, spot: Spot, axis: Axis, bound: &mut Bound) {
    let line = known
        .smooth
        .iter()
        .filter(|(s, _)| **s != spot && axis.same_line(**s, spot));
    let mut line: Vec<(f64, f64)> = line
        .map(|(s, (rate, _))| (f64::from(axis.of(*s)), *rate))
        .collect();
    line.sort_by(|a, b| a.0.total_cmp(&b.0));
    let x = f64::from(axis.of(spot));
    let at = line.partition_point(|p| p.0 < x);
    let margin = MARGIN * known.noise;
    let slope = |a: (f64, f64), b: (f64, f64)| ((b.1 - a.1) / (b.0 - a.0)).max(0.0);
    let (below, above) = line.split_at(at);
    if let ([.., a], [b, ..]) = (below, above) {
        let chord = a.1 + slope(*a, *b) * (x - a.0);
        bound.low = bound.low.max(chord * (1.0 - margin));
    }
    if let [.., a, b] = below {
        let most = b.1 + slope(*a, *b) * (x - b.0);
        bound.high = bound.high.min(most * (1.0 + margin));
    }
    if let [a, b, ..] = above {
        let most = a.1 - slope(*a, *b) * (a.0 - x);
        bound.high = bound.high.min(most * (1.0 + margin));
    }
}
