//! Several measurements of one point: their centre, which of them are outliers, and how much they scatter.
//!
//! Not a fit along an axis: that is `slice`. Called by the fit, and by whoever plans the next trial.
use alloc::vec::Vec;

/// A measurement this many robust standard deviations from the median is an outlier (Hampel's identifier).
const OUTLIER: f64 = 3.0;
/// Makes the median absolute deviation of normal noise its standard deviation.
const MAD_TO_SD: f64 = 1.4826;
/// Repeats that happen to agree to the last digit must not make outliers of all others: the scatter is taken as at least
/// so much of the median.
const LEAST_SCATTER: f64 = 0.02;

/// What the repeats of one point say together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Centre {
    /// Work units per second: the weighted mean of what is no outlier.
    pub rate: f64,
    /// How much it counts: the weights of what is no outlier.
    pub weight: f64,
    /// Weighted sum of squared relative deviations from the centre.
    pub squares: f64,
    /// Degrees of freedom behind `squares`: measurements that are no outliers, less one.
    pub freedom: f64,
}

/// The centre of `(rate, weight)`; rates and weights are above zero. Two measurements are averaged: nobody knows which
/// is the outlier. None: there is nothing.
pub fn centre(measured: &[(f64, f64)]) -> Option<Centre> {
    let middle = median(measured.to_vec())?;
    let apart = |rate: f64| (rate - middle).abs();
    let limit = match measured.len() {
        0..=2 => f64::INFINITY,
        _ => {
            let deviations = measured.iter().map(|m| (apart(m.0), m.1)).collect();
            let scatter = median(deviations)? * MAD_TO_SD;
            OUTLIER * scatter.max(middle * LEAST_SCATTER)
        }
    };
    let kept = || measured.iter().filter(|m| apart(m.0) <= limit);
    let weight: f64 = kept().map(|m| m.1).sum();
    let rate: f64 = kept().map(|m| m.0 * (m.1 / weight)).sum();
    let relative = |m: &(f64, f64)| (m.0 - rate) / rate;
    Some(Centre {
        rate,
        weight,
        squares: kept().map(|m| m.1 * relative(m) * relative(m)).sum(),
        freedom: kept().count().saturating_sub(1) as f64,
    })
}

/// The weighted median: the mean of the two in the middle where the weights are split evenly.
fn median(mut values: Vec<(f64, f64)>) -> Option<f64> {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half: f64 = values.iter().map(|v| v.1).sum::<f64>() / 2.0;
    let mut before = 0.0;
    for (i, (value, weight)) in values.iter().enumerate() {
        before += weight;
        if before > half {
            return Some(*value);
        }
        if before == half {
            let next = values.get(i + 1).map_or(*value, |n| n.0);
            return Some(value + (next - value) / 2.0);
        }
    }
    values.last().map(|v| v.0)
}

/// The relative standard deviation of a measurement of weight 1, pooled over points. None: nothing was repeated.
pub fn pooled<'a>(centres: impl IntoIterator<Item = &'a Centre>) -> Option<f64> {
    let sum = |(s, f): (f64, f64), c: &Centre| (s + c.squares, f + c.freedom);
    let (squares, freedom) = centres.into_iter().fold((0.0, 0.0), sum);
    (freedom > 0.0).then(|| libm::sqrt(squares / freedom))
}
