//! What a solve may cost: a bound on combinations, on choices, and on a curve's size; and an answer that says so.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
use evenkeel_core::allocate::{CHOICES_MAX, Infeasible, Problem, Stage, Supply, rules, solve};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::id::Name;
use evenkeel_core::job::{Policy, Role, SmMode};
use evenkeel_core::unit::{Bytes, Rate, Sms};

fn point(cores: u32, sms: u32, batch: u32, rate: f64, memory: u64) -> Point {
    Point {
        cores,
        sms: Sms(sms),
        batch,
        replicas: 1,
        rate: Rate::new(rate).unwrap(),
        memory: Bytes(memory),
        weight: 1.0,
        ..Point::default()
    }
}

fn stage(i: usize, points: &[Point]) -> Stage {
    Stage {
        name: Name::new(&format!("stage-{i}")).unwrap(),
        role: if i == 0 {
            Role::Training
        } else {
            Role::Generation
        },
        workers: 1,
        cores: (1, 64),
        sms: (Sms(0), Sms(0)),
        batches: vec![],
        memory: Bytes(0),
        synchronous: false,
        curve: Curve::fit(points, &[], 1.0, 1),
        scale: 1.0,
        learned: 0,
        fixed: false,
    }
}

fn problem(stages: Vec<Stage>, cores: u32, memory: u64) -> Problem {
    Problem {
        supply: Supply {
            cores,
            gpus: 1,
            sms: Sms(100),
            enforceable: (1..=100).map(Sms).collect(),
            memory: Bytes(memory),
        },
        stages,
        groups: 2,
        eta: None,
        yielded: 1.0,
        kappa: None,
        sm_mode: SmMode::Reserve,
        policy: Policy::Waterfill,
        caps: Default::default(),
    }
}

/// Each core more takes a byte less: every choice of eight stages costs 65 of both together, and the supply has one
/// too little for that. Nothing fits, and only looking at everything would show it.
fn riddle() -> Problem {
    let trade: Vec<Point> = (1..=64)
        .map(|c| point(c, 0, 1, f64::from(c), u64::from(65 - c)))
        .collect();
    problem((0..8).map(|i| stage(i, &trade)).collect(), 260, 259)
}

#[test]
fn a_search_without_an_end_says_that_it_does_not_know() {
    let refusal = solve(&riddle(), None).unwrap_err();
    assert!(
        matches!(refusal, Infeasible::Unfinished { .. }),
        "{refusal}"
    );
    assert!(
        refusal
            .to_string()
            .contains("none fits; nobody knows about the rest")
    );
}

#[test]
fn a_search_that_is_cut_short_answers_with_what_it_found_and_says_so() {
    let mut p = riddle();
    // One stage can also do with little, at a low rate: that fits, and whether anything better does nobody will know.
    let mut points: Vec<Point> = (1..=64)
        .map(|c| point(c, 0, 1, f64::from(c), u64::from(65 - c)))
        .collect();
    points.push(point(1, 0, 2, 0.5, 1));
    p.stages[3] = stage(3, &points);
    let found = solve(&p, None).unwrap();
    assert!(!found.exact);
    assert_eq!((found.theta.get(), found.stages[3].batch), (0.5, 2));
    assert_eq!(rules::broken(&p, &found), []);
    assert!(
        found.why.iter().any(|w| w.contains("reached its limit")),
        "{:?}",
        found.why
    );
    assert_eq!(
        solve(&p, Some(&found)).as_ref(),
        Ok(&found),
        "and again the same"
    );
}

#[test]
fn of_ten_thousand_measured_batch_sizes_some_are_chosen_from() {
    let many: Vec<Point> = (1..=10_000)
        .map(|b| point(1, 0, b, f64::from(b), 1))
        .collect();
    let p = problem(vec![stage(0, &many), stage(1, &many)], 4, 10);
    let choices = p.stages[0].choices();
    assert_eq!(choices.len(), CHOICES_MAX);
    assert_eq!((choices[0], choices[CHOICES_MAX - 1]), (1, 10_000));
    let found = solve(&p, None).unwrap();
    assert!(found.exact);
    assert_eq!(found.stages[0].batch, 10_000, "the best is among them");
}

#[test]
fn a_curve_of_ten_thousand_odd_points_stays_small() {
    // Slower with every core: each slice has to take over what those with fewer cores do, at all their SM counts.
    let odd: Vec<Point> = (1..=10_000)
        .map(|c| point(c, 20_000 - c, 1, 1e6 / f64::from(c), 1))
        .collect();
    let curve = Curve::fit(&odd, &[], 1.0, 1).unwrap();
    assert_eq!(curve.slices().len(), 512);
    let rate = |cores| curve.rate(cores, Sms(20_000), 1).get();
    assert_eq!(
        (rate(1), rate(10_000)),
        (1e6, 1e6),
        "more cores are never worse"
    );
}
