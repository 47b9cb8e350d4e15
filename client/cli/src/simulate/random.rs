//! Seeded chance: a stream of numbers for each purpose, and the distributions that scenarios name. No entropy: the same
//! seed and the same names give the same numbers each time, under any number of threads. Used by the engines.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// A stream of chance that belongs to one purpose.
#[derive(Clone, Debug)]
pub(super) struct Chance(SmallRng);

/// What chance is drawn for. Streams of different purposes are independent, so that one more draw here changes nothing
/// there, and all policies meet the same weather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// How a node differs from the scenario's.
    Variety = 1,
    /// When this node's drifts and arrivals come.
    Jitter = 2,
    /// How much work a window really holds.
    Work = 3,
    /// What a meter shows instead of it.
    Meter = 4,
    /// What environments take.
    Environments = 5,
    /// What restarts take.
    Restarts = 6,
}

/// One step of SplitMix64 (Steele, Lea and Flood, 2014): mixes numbers into a seed.
const fn mix(state: u64, with: u64) -> u64 {
    let mut z = state ^ with.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Chance {
    /// The stream of a purpose of a job (by its place in the scenario) on a node.
    pub(super) fn of(seed: u64, node: u32, job: usize, purpose: Purpose) -> Self {
        let mixed = mix(mix(mix(seed, u64::from(node)), job as u64), purpose as u64);
        Self(SmallRng::seed_from_u64(mixed))
    }

    /// Evenly in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        self.0.random::<f64>()
    }

    /// The standard normal distribution (Box and Muller, 1958).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A factor of mean 1 with this coefficient of variation, always above zero: lognormal.
    pub(super) fn factor(&mut self, variation: f64) -> f64 {
        if variation <= 0.0 {
            return 1.0;
        }
        let variance = (1.0 + variation * variation).ln();
        (variance.sqrt() * self.normal() - variance / 2.0).exp()
    }

    /// The same, gamma-distributed (Marsaglia and Tsang, 2000): a thinner tail than the lognormal's.
    pub(super) fn gamma_factor(&mut self, variation: f64) -> f64 {
        if variation <= 0.0 {
            return 1.0;
        }
        let shape = 1.0 / (variation * variation);
        // Shapes below 1 are those above with a power of an even draw.
        let (boosted, power) = if shape < 1.0 {
            (shape + 1.0, (1.0 - self.unit()).powf(1.0 / shape))
        } else {
            (shape, 1.0)
        };
        let d = boosted - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - self.unit();
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v * power / shape;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_the_mean_and_the_spread_that_were_asked_for() {
        for (name, draw) in [
            ("lognormal", Chance::factor as fn(&mut Chance, f64) -> f64),
            ("gamma", Chance::gamma_factor),
        ] {
            for variation in [0.1, 0.5, 1.5] {
                let mut chance = Chance::of(7, 0, 0, Purpose::Work);
                let n = 200_000;
                let drawn: Vec<f64> = (0..n).map(|_| draw(&mut chance, variation)).collect();
                let mean = drawn.iter().sum::<f64>() / f64::from(n);
                let square = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
                assert!((mean - 1.0).abs() < 0.02, "{name} {variation}: mean {mean}");
                let found = square.sqrt();
                let off = (found / variation - 1.0).abs();
                assert!(off < 0.1, "{name} {variation}: variation {found}");
                assert!(drawn.iter().all(|x| *x > 0.0), "{name}");
            }
            assert_eq!(draw(&mut Chance::of(7, 0, 0, Purpose::Work), 0.0), 1.0);
        }
    }

    #[test]
    fn streams_are_repeatable_and_apart() {
        let first = |seed, node, job, purpose| Chance::of(seed, node, job, purpose).unit();
        let one = first(1, 2, 3, Purpose::Work);
        assert_eq!(one, first(1, 2, 3, Purpose::Work));
        for other in [
            first(2, 2, 3, Purpose::Work),
            first(1, 3, 3, Purpose::Work),
            first(1, 2, 4, Purpose::Work),
            first(1, 2, 3, Purpose::Meter),
        ] {
            assert_ne!(one, other);
        }
    }
}
