//! Properties of the allocator: waterfill equals exhaustive search, ebrl never beats it, every solution keeps the
//! rules and explains itself, and solving again changes nothing.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod oracle;

use evenkeel_core::allocate::{Infeasible, Problem, Solution, rules, solve};
use evenkeel_core::job::{Policy, SmMode};
use oracle::made::made;
use oracle::{cases, exhaustive, problem};

const SEED: u64 = 0x5eed;

fn fixed(s: &Solution) -> impl Fn(usize) -> Option<(u32, evenkeel_core::unit::Sms, u32)> + '_ {
    |i| Some((s.stages[i].cores, s.stages[i].sms, s.stages[i].batch))
}

/// Θ as the search sees it: every stage busy all the time.
fn searched(p: &Problem, s: &Solution) -> f64 {
    let shares = s.stages.iter().enumerate();
    let rate =
        |(i, x): (usize, &evenkeel_core::allocate::Share)| p.rate(i, x.cores, x.sms, x.batch).get();
    let rates: Vec<f64> = shares.map(rate).collect();
    p.combine(&rates).2
}

/// Counts of the interesting cases: a property that never sees them proves nothing.
#[derive(Debug, Default)]
struct Seen {
    solved: u64,
    infeasible: u64,
    one_group: u64,
    caps: u64,
    sms_bind: u64,
    cores_bind: u64,
    memory_binds: u64,
    batch_matters: u64,
    ebrl_lost: u64,
    /// Sum of the shares of throughput that ebrl lost, and the most.
    ebrl_loss: f64,
    ebrl_most: f64,
    ebrl_worst: u64,
}

impl Seen {
    /// What `ebrl` got where `most` was to be had.
    fn lost(&mut self, i: u64, got: f64, most: f64) {
        self.ebrl_lost += u64::from(got < most);
        if most > 0.0 {
            let loss = 1.0 - got / most;
            self.ebrl_loss += loss;
            if loss > self.ebrl_most {
                (self.ebrl_most, self.ebrl_worst) = (loss, i);
            }
        }
    }
}

#[test]
fn waterfill_equals_exhaustive_search_and_ebrl_never_beats_it() {
    let mut seen = Seen::default();
    for i in 0..cases(5_000) {
        check(&problem(SEED.wrapping_add(i)), i, &mut seen);
    }
    println!("{seen:?}");
    for (what, n) in [
        ("solved", seen.solved),
        ("infeasible", seen.infeasible),
        ("one group", seen.one_group),
        ("cap mode", seen.caps),
        ("SMs bind", seen.sms_bind),
        ("cores bind", seen.cores_bind),
        ("memory binds", seen.memory_binds),
        ("batch matters", seen.batch_matters),
        ("ebrl lost", seen.ebrl_lost),
    ] {
        assert!(n > 0, "no case in which: {what}");
    }
}

#[test]
fn problems_made_by_hand_are_solved_exactly() {
    let mut seen = Seen::default();
    (0..200).for_each(|i| check(&made(i), i, &mut seen));
    println!("made: {seen:?}");
    assert_eq!(seen.solved + seen.infeasible, 200);
    assert!(
        seen.memory_binds > 0 && seen.batch_matters > 0 && seen.ebrl_lost > 0,
        "{seen:?}"
    );
}

/// Neither the order of a job's measurements nor that of its stages changes what it gets.
#[test]
fn the_order_of_the_input_does_not_matter() {
    let mut turned = 0;
    for i in 0..cases(5_000) / 10 {
        let p = problem(SEED.wrapping_add(i));
        // Even shares of what was never measured go round from the first stage on.
        let measured = p.stages.iter().all(|s| s.curve.is_some());
        let Some(s) = solve(&p, None).ok().filter(|_| measured) else {
            continue;
        };
        let mut back = p.clone();
        back.stages.reverse();
        back.kappa = p.kappa.as_ref().map(|k| {
            k.iter()
                .rev()
                .map(|row| row.iter().rev().copied().collect())
                .collect()
        });
        let b = solve(&back, None).unwrap();
        // The sum of a group's times is rounded in the order of its stages.
        let close = (searched(&back, &b) - searched(&p, &s)).abs() <= 1e-9 * searched(&p, &s);
        assert!(
            close,
            "case {i}: {} {}",
            searched(&back, &b),
            searched(&p, &s)
        );
        turned += 1;
    }
    assert!(turned > 0);
}

fn check(p: &Problem, i: u64, seen: &mut Seen) {
    let best = match solve(p, None) {
        Ok(s) => s,
        Err(e) => {
            assert!(!matches!(e, Infeasible::Malformed(_)), "case {i}: {e}");
            let measured = p.stages.iter().all(|s| s.curve.is_some());
            assert_eq!(
                exhaustive(p, |_| None).filter(|_| measured),
                None,
                "case {i}: refused ({e}), but something fits"
            );
            seen.infeasible += 1;
            return;
        }
    };
    assert!(best.exact, "case {i}");
    assert_eq!(rules::broken(p, &best), [], "case {i}: {p:#?}");
    let oracle = exhaustive(p, fixed(&best)).unwrap();
    assert_eq!(searched(p, &best), oracle, "case {i}: {p:#?}\n{best:#?}");
    assert!(
        best.theta.get() >= oracle * (1.0 - 1e-12),
        "case {i}: who waits slows nobody"
    );
    assert_eq!(
        solve(p, Some(&best)).as_ref(),
        Ok(&best),
        "case {i}: not idempotent {p:#?}"
    );

    let published = Problem {
        policy: Policy::Ebrl,
        ..p.clone()
    };
    let ebrl = solve(&published, None).unwrap();
    assert_eq!(rules::broken(&published, &ebrl), [], "case {i}");
    assert!(
        searched(&published, &ebrl) <= searched(p, &best),
        "case {i}: ebrl {} waterfill {}",
        ebrl.theta,
        best.theta
    );
    assert_eq!(
        solve(&published, Some(&ebrl)).as_ref(),
        Ok(&ebrl),
        "case {i}"
    );

    seen.solved += 1;
    seen.one_group += u64::from(p.groups == 1);
    seen.caps += u64::from(p.sm_mode == SmMode::Cap);
    seen.sms_bind += u64::from(best.marginals.sms > 0.0);
    seen.cores_bind += u64::from(best.marginals.core > 0.0);
    seen.lost(i, searched(p, &ebrl), searched(p, &best));
    let roomy = |f: fn(&mut Problem)| {
        let mut p = p.clone();
        f(&mut p);
        let more = solve(&p, None).unwrap();
        searched(&p, &more) > searched(&p, &best)
    };
    seen.memory_binds += u64::from(roomy(|p| p.supply.memory.0 += 1000));
    let mut smallest = p.clone();
    smallest
        .stages
        .iter_mut()
        .for_each(|s| s.batches = s.choices()[..1].to_vec());
    seen.batch_matters += u64::from(
        solve(&smallest, None).map_or(true, |s| searched(&smallest, &s) < searched(p, &best)),
    );
}

#[test]
fn the_nearest_of_equal_splits_is_kept() {
    // Solving a slightly different problem from a split keeps every stage that need not change.
    let (mut kept, mut solved) = (0, 0);
    for i in 0..cases(5_000) / 4 {
        let p = problem(SEED.wrapping_add(i));
        let Ok(s) = solve(&p, None) else { continue };
        let mut more = p.clone();
        more.supply.memory.0 += 2;
        more.supply.cores += 1;
        let Ok(again) = solve(&more, Some(&s)) else {
            panic!("case {i}: more memory, no split")
        };
        assert!(searched(&more, &again) >= searched(&p, &s), "case {i}");
        solved += 1;
        if searched(&more, &again) == searched(&p, &s) {
            assert!(
                again.same_shares(&s),
                "case {i}: moved for nothing\n{s:#?}\n{again:#?}"
            );
            kept += 1;
        }
    }
    assert!(kept > solved / 2 && kept < solved, "{kept} of {solved}");
}
