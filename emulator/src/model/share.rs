//! How kernels that run at the same time share the GPU: SMs in proportion where their caps overlap, bandwidth
//! max-min fair. Pure functions of the running launches; nothing is remembered here.

use super::kernel::Launch;
use crate::spec::GpuSpec;

/// Nanoseconds from one launch to the next for each of `running`, while exactly these run. Never below the period
/// that the launch has alone.
///
/// 1. Launch k occupies `a = sms × time / period` SMs on average (its launch gaps occupy none). Where `Σ a` exceeds
///    the GPU's SMs, everyone is slowed by `Σ a / SMs`: caps are caps, not reservations.
/// 2. At that pace k draws `bytes / period` of bandwidth. Where these demands exceed the memory's bandwidth, it is
///    shared max-min: nobody gets more than it asks for, and those who are cut get the same.
pub(crate) fn periods_ns(spec: &GpuSpec, running: &[Launch]) -> Vec<f64> {
    let sms = f64::from(spec.sms);
    let occupied: f64 = running.iter().map(occupancy).sum();
    let slowdown = (occupied / sms).max(1.0);
    let paced: Vec<f64> = running
        .iter()
        .map(|launch| launch.period_ns * slowdown)
        .collect();

    let bandwidth_per_ns = spec.memory_bandwidth_bytes_per_s as f64 / 1e9;
    let demands: Vec<f64> = running
        .iter()
        .zip(&paced)
        .map(|(launch, period)| launch.bytes / period)
        .collect();
    let Some(level) = fair_level(&demands, bandwidth_per_ns) else {
        return paced;
    };
    let throttled = |((launch, period), demand): ((&Launch, f64), &f64)| {
        if *demand > level {
            launch.bytes / level
        } else {
            period
        }
    };
    running
        .iter()
        .zip(paced)
        .zip(&demands)
        .map(throttled)
        .collect()
}

/// SMs that a launch occupies on average when it runs alone.
pub(crate) fn occupancy(launch: &Launch) -> f64 {
    f64::from(launch.sms) * launch.time_ns / launch.period_ns
}

/// The max-min level: the amount that those get who ask for more. `None` if all demands fit into `capacity`.
fn fair_level(demands: &[f64], capacity: f64) -> Option<f64> {
    if demands.iter().sum::<f64>() <= capacity {
        return None;
    }
    let mut ascending = demands.to_vec();
    ascending.sort_by(f64::total_cmp);
    let mut left = capacity;
    for (index, demand) in ascending.iter().enumerate() {
        let even = left / (ascending.len() - index) as f64;
        if *demand > even {
            return Some(even);
        }
        left -= demand;
    }
    // Only by rounding: the sum is a hair above the capacity. Nobody needs to be cut.
    None
}

#[cfg(test)]
mod tests {
    use super::fair_level;

    #[test]
    fn bandwidth_is_max_min_fair() {
        let check = |demands: &[f64], expect: Option<f64>| {
            assert_eq!(fair_level(demands, 12.0), expect, "{demands:?}")
        };
        check(&[], None);
        check(&[12.0], None);
        check(&[20.0], Some(12.0));
        check(&[10.0, 10.0], Some(6.0));
        check(&[2.0, 10.0, 10.0], Some(5.0)); // the small one is served, the rest is halved
        check(&[10.0, 3.0, 4.0], Some(5.0));
        check(&[4.0, 4.0, 4.0], None);
    }
}
