//! Curves: what a fit says at, between and beyond its points.
use alloc::vec::Vec;

use proptest::prelude::*;

use super::{CoRun, Curve, KNEE, Point, isotonic};
use crate::unit::{Bytes, Rate, Sms};

pub(super) fn point(cores: u32, sms: u32, batch: u32, rate: f64) -> Point {
    Point {
        cores,
        sms: Sms(sms),
        batch,
        replicas: 1,
        rate: Rate::clamped(rate),
        memory: Bytes::mib(u64::from(batch) * 100),
        weight: 1.0,
        ..Point::default()
    }
}

fn fit(points: &[Point]) -> Curve {
    Curve::fit(points, &[], 1.0, 1).unwrap()
}

#[track_caller]
fn check(points: &[Point], at: (u32, u32, u32), expect: f64) {
    let got = fit(points).rate(at.0, Sms(at.1), at.2).get();
    assert!(
        (got - expect).abs() < 1e-9,
        "{at:?}: {got}, expected {expect}"
    );
}

#[test]
fn a_rate_is_linear_between_points_linear_to_zero_and_flat_beyond() {
    let points = [point(1, 20, 1, 100.0), point(1, 60, 1, 300.0)];
    check(&points, (1, 20, 1), 100.0);
    check(&points, (1, 40, 1), 200.0);
    check(&points, (1, 10, 1), 50.0);
    check(&points, (1, 0, 1), 0.0);
    check(&points, (1, 132, 1), 300.0);
}

#[test]
fn a_stage_without_gpu_work_has_no_sm_axis() {
    let points = [point(2, 0, 1, 80.0), point(4, 0, 1, 150.0)];
    check(&points, (4, 0, 1), 150.0);
    check(&points, (4, 99, 1), 150.0);
}

#[test]
fn cores_between_measured_counts_take_the_lower_one_and_below_the_lowest_a_part() {
    let points = [point(2, 0, 1, 80.0), point(4, 0, 1, 150.0)];
    check(&points, (3, 0, 1), 80.0);
    check(&points, (64, 0, 1), 150.0);
    check(&points, (1, 0, 1), 40.0);
    check(&points, (0, 0, 1), 0.0);
}

#[test]
fn more_cores_are_never_worse_even_if_they_measured_so() {
    let points = [
        point(2, 10, 1, 80.0),
        point(2, 50, 1, 90.0),
        point(4, 30, 1, 60.0),
    ];
    check(&points, (4, 10, 1), 80.0);
    check(&points, (4, 30, 1), 85.0);
    check(&points, (4, 50, 1), 90.0);
}

#[test]
fn another_batch_size_is_answered_by_the_next_smaller_measured_one() {
    let points = [point(1, 10, 4, 80.0), point(1, 10, 16, 120.0)];
    check(&points, (1, 10, 8), 80.0);
    check(&points, (1, 10, 64), 120.0);
    check(&points, (1, 10, 1), 80.0);
    assert_eq!(
        fit(&points).memory(1, 16),
        Bytes::mib(1680),
        "the peak and 5 %"
    );
}

#[test]
fn points_that_did_not_run_say_nothing() {
    let points = [
        point(1, 10, 1, 50.0),
        point(1, 20, 1, 0.0),
        point(1, 30, 1, 150.0),
    ];
    check(&points, (1, 20, 1), 100.0);
    assert_eq!(Curve::fit(&[point(1, 10, 1, 0.0)], &[], 1.0, 1), None);
    assert_eq!(Curve::fit(&[], &[], 1.0, 1), None);
}

#[test]
fn repeated_points_are_averaged_by_weight_and_violators_pooled() {
    let mut twice = point(1, 10, 1, 90.0);
    twice.weight = 3.0;
    check(&[point(1, 10, 1, 50.0), twice.clone()], (1, 10, 1), 80.0);
    // 10 SMs measured better than 20: both become the weighted mean.
    check(&[twice, point(1, 20, 1, 50.0)], (1, 10, 1), 80.0);
}

#[test]
fn the_nearest_measured_replica_count_counts_the_smaller_first() {
    let with = |replicas, rate| Point {
        replicas,
        ..point(1, 10, 1, rate)
    };
    let points = [with(1, 10.0), with(3, 30.0), with(6, 60.0)];
    for (asked, expect) in [(1, 10.0), (2, 10.0), (4, 30.0), (9, 60.0)] {
        let curve = Curve::fit(&points, &[], 1.0, asked).unwrap();
        assert_eq!(curve.rate(1, Sms(10), 1).get(), expect, "{asked} replicas");
    }
}

#[test]
fn the_knee_is_the_smallest_quota_that_reaches_95_percent() {
    let curve = fit(&[
        point(1, 10, 1, 50.0),
        point(1, 40, 1, 96.0),
        point(1, 132, 1, 100.0),
    ]);
    let counts: Vec<Sms> = (1..=66).map(|i| Sms(2 * i)).collect();
    assert_eq!(curve.knee(1, 1, &counts), Some(Sms(40)));
    assert_eq!(curve.knee(1, 1, &[]), None);
    let flat = fit(&[point(1, 0, 1, 50.0)]);
    assert_eq!(flat.knee(1, 1, &[Sms(0), Sms(2)]), Some(Sms(0)));
}

#[test]
fn the_inverse_lookup_gives_the_smallest_enforceable_quota_or_none() {
    let curve = fit(&[point(1, 100, 1, 100.0)]);
    let counts = [Sms(16), Sms(32), Sms(48)];
    for (rate, expect) in [
        (0.0, Some(Sms(16))),
        (17.0, Some(Sms(32))),
        (48.0, Some(Sms(48))),
        (48.1, None),
    ] {
        assert_eq!(
            curve.need(1, 1, Rate::clamped(rate), &counts),
            expect,
            "{rate}"
        );
    }
}

#[test]
fn scaling_multiplies_the_profile_and_live_points_join_in_live_units() {
    let points = [point(2, 20, 1, 100.0), point(2, 60, 1, 300.0)];
    let scaled = Curve::fit(&points, &[], 0.5, 1).unwrap();
    assert_eq!(scaled.rate(2, Sms(60), 1).get(), 150.0);
    assert_eq!(fit(&points).scaled(0.5), scaled);
    assert_eq!(scaled.scaled(f64::NAN), scaled);
    let mut live = point(3, 40, 1, 60.0);
    live.weight = 100.0;
    let learned = Curve::fit(&points, &[live], 0.5, 1).unwrap();
    let at = learned.rate(3, Sms(40), 1).get();
    assert!(
        (at - 60.0).abs() < 1.0,
        "joins the slice that it was predicted from: {at}"
    );
    assert_eq!(learned.rate(3, Sms(60), 1).get(), 150.0);
}

proptest! {
    #[test]
    fn isotonic_is_monotone_keeps_the_mean_and_what_is_monotone_already(
        values in prop::collection::vec((0.0..1e6, 0.1..10.0), 0..40),
    ) {
        let fitted = isotonic(&values);
        prop_assert_eq!(fitted.len(), values.len());
        prop_assert!(fitted.windows(2).all(|w| w[0] <= w[1]));
        let mean = |f: &dyn Fn(usize) -> f64| (0..values.len()).map(|i| f(i) * values[i].1).sum::<f64>();
        let (before, after) = (mean(&|i| values[i].0), mean(&|i| fitted[i]));
        prop_assert!((before - after).abs() <= 1e-9 * before.abs().max(1.0));
        let again: Vec<_> = fitted.iter().zip(&values).map(|(f, v)| (*f, v.1)).collect();
        prop_assert_eq!(isotonic(&again), fitted);
    }

    #[test]
    fn a_curve_never_falls_with_sms_or_cores_and_its_walk_agrees(
        raw in prop::collection::vec((0u32..6, 0u32..60, 0u32..3, 1.0..1e4, 0.1..4.0), 1..40),
    ) {
        let points: Vec<Point> = raw
            .iter()
            .map(|&(cores, sms, batch, rate, weight)| Point { weight, ..point(cores, sms, 1 << batch, rate) })
            .collect();
        let curve = fit(&points);
        let counts: Vec<Sms> = (0..70).map(Sms).collect();
        for batch in [1, 2, 4] {
            for cores in 0..8 {
                let at = |c, q: &Sms| curve.rate(c, *q, batch).get();
                let rates: Vec<f64> = counts.iter().map(|q| at(cores, q)).collect();
                prop_assert!(rates.windows(2).all(|w| w[0] <= w[1]), "falls with SMs: {rates:?}");
                let fewer = |q: &Sms| at(cores, q) <= at(cores + 1, q) * (1.0 + 1e-12);
                prop_assert!(counts.iter().all(fewer), "falls with cores at {cores}, batch {batch}");
                let (slice, factor) = curve.slice(cores, batch);
                let walk: Vec<f64> = slice.rates(&counts).map(|r| r * factor).collect();
                prop_assert_eq!(&walk, &rates);
                if let Some(knee) = curve.knee(cores, batch, &counts) {
                    prop_assert!(at(cores, &knee) >= KNEE * rates[69]);
                    prop_assert!(knee == Sms(0) || at(cores, &Sms(knee.0 - 1)) < KNEE * rates[69]);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn a_fit_stays_within_its_data(
        raw in prop::collection::vec((1u32..60, 1.0..1e4, 0.1..4.0), 1..40),
    ) {
        let points: Vec<Point> = raw
            .iter()
            .map(|&(sms, rate, weight)| Point { weight, ..point(1, sms, 1, rate) })
            .collect();
        let curve = fit(&points);
        let low = raw.iter().map(|r| r.1).fold(f64::INFINITY, f64::min);
        let high = raw.iter().map(|r| r.1).fold(0.0, f64::max);
        let first = raw.iter().map(|r| r.0).min().unwrap_or(0);
        for sms in first..70 {
            let rate = curve.rate(1, Sms(sms), 1).get();
            prop_assert!(rate >= low * (1.0 - 1e-12) && rate <= high * (1.0 + 1e-12), "{rate} at {sms}");
        }
    }

    #[test]
    fn one_wild_repeat_of_five_changes_the_fit_by_less_than_a_twentieth(
        noise in prop::collection::vec(-0.05..0.05f64, 25),
        (at, which) in (0usize..5, 0usize..5),
        wild in prop::sample::select(alloc::vec![0.1, 10.0]),
    ) {
        let truth = |i: usize| 100.0 * (i + 1) as f64;
        let of = |wild: f64| -> Vec<Point> {
            let all = (0..25).map(|n| (n / 5, n % 5, noise[n]));
            all.map(|(i, repeat, noise)| {
                let factor = if (i, repeat) == (at, which) { wild } else { 1.0 };
                point(1, 20 * (i as u32 + 1), 1, truth(i) * (1.0 + noise) * factor)
            })
            .collect()
        };
        let (sane, off) = (fit(&of(1.0)), fit(&of(wild)));
        for i in 0..5 {
            let sms = Sms(20 * (i as u32 + 1));
            let (a, b) = (sane.rate(1, sms, 1).get(), off.rate(1, sms, 1).get());
            prop_assert!((b / a - 1.0).abs() < 0.05, "{a} became {b} at {sms}");
        }
    }
}

#[test]
fn confidence_comes_from_repeats_and_is_lent_to_points_without() {
    assert_eq!(fit(&[point(1, 10, 1, 50.0)]).error(1, Sms(10), 1), None);
    let points = [
        point(1, 10, 1, 98.0),
        point(1, 10, 1, 102.0),
        point(1, 20, 1, 200.0),
    ];
    let curve = fit(&points);
    let noise = curve.noise().unwrap();
    assert!((noise - 0.028_284).abs() < 1e-5, "{noise}");
    assert_eq!(curve.error(1, Sms(20), 1), Some(noise));
    let two = curve.error(1, Sms(10), 1).unwrap();
    assert!((two - 0.02).abs() < 1e-5, "{two}");
    assert_eq!(
        curve.error(1, Sms(15), 1),
        Some(noise),
        "the looser neighbour"
    );
}

#[test]
fn a_live_point_is_no_outlier_for_being_off_the_profile() {
    let repeats = [100.0, 101.0, 99.0, 100.0].map(|rate| point(1, 10, 1, rate));
    let live = Point {
        weight: 4.0,
        ..point(1, 10, 1, 50.0)
    };
    let curve = Curve::fit(&repeats, &[live], 1.0, 1).unwrap();
    assert_eq!(curve.rate(1, Sms(10), 1).get(), 75.0);
}

#[test]
fn a_refit_does_not_add_a_margin_to_a_margin() {
    let profiled = point(1, 10, 10, 100.0);
    let first = fit(core::slice::from_ref(&profiled)).memory(1, 10);
    let live = Point {
        memory: first,
        ..point(1, 10, 10, 50.0)
    };
    let curve = Curve::fit(&[profiled], &[live], 1.0, 1).unwrap();
    assert_eq!(curve.memory(1, 10), first);
}

#[test]
fn what_ran_beside_another_stage_is_not_on_the_curve() {
    let mut slow = point(1, 10, 1, 10.0);
    slow.beside = Some(alloc::boxed::Box::new(CoRun {
        other: crate::id::Name::new("j/other").unwrap(),
        other_sms: Sms(20),
        caps: super::corun::Caps::Reserve,
        alone: Rate::clamped(100.0),
        overlap: 1.0,
    }));
    let curve = fit(&[point(1, 10, 1, 100.0), slow.clone()]);
    assert_eq!(curve.rate(1, Sms(10), 1).get(), 100.0);
    assert_eq!(Curve::fit(&[slow], &[], 1.0, 1), None);
}

#[test]
fn points_of_before_there_were_co_runs_still_read() {
    let old = r#"{"cores":1,"sms":10,"batch":1,"replicas":1,"rate":5.0,"memory":7,"weight":1.0}"#;
    let point: Point = serde_json::from_str(old).unwrap();
    assert_eq!((point.rate.get(), point.beside.is_none()), (5.0, true));
    assert_eq!(serde_json::to_string(&point).unwrap(), old);
}

#[test]
fn empty_input_is_an_empty_fit() {
    assert!(isotonic(&[]).is_empty());
}
