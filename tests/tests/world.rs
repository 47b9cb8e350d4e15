//! CI's walk through simulated worlds: over a million happenings, seed by seed, on both cores; no violation, nothing
//! unreached, the same trace twice, and every planted fault noticed. Lines that begin with `world:` are what `accept`
//! reads and judges.
#![allow(clippy::print_stdout, reason = "a run says what it counted")]
use evenkeel_tests::world::planted::Planted;
use evenkeel_tests::world::swarm::Swarm;
use evenkeel_tests::world::trace::Counts;
use evenkeel_tests::world::{Outcome, World, coverage};

/// Happenings of one seed before its faults stop.
const HAPPENINGS: u64 = 8_000;
/// Happenings within which a planted fault has to be noticed, in all worlds that are tried.
const NOTICED_WITHIN: u64 = 10_000;

fn must_hold(seed: u64, outcome: &Outcome) {
    if let Some((violation, tail)) = &outcome.violation {
        panic!(
            "{tail}seed {seed}, after {} happenings: {}: {}\nsee it again with: \
             cargo run --release -p evenkeel-tests --bin sim -- --seeds {seed} --happenings {HAPPENINGS} --trace",
            outcome.happenings, violation.invariant, violation.detail
        );
    }
}

/// Walks through the worlds of these seeds; each half of CI's seeds has to reach everything.
fn walk(seeds: std::ops::RangeInclusive<u64>) {
    let (mut counts, mut happenings, mut timers) = (Counts::default(), 0, 0);
    let (began, of) = (std::time::Instant::now(), seeds.clone().count());
    for seed in seeds {
        let outcome = World::new(seed, Swarm::draw(seed), true, false).run(HAPPENINGS);
        must_hold(seed, &outcome);
        counts.merge(&outcome.counts);
        happenings += outcome.happenings;
        timers += outcome.timers;
    }
    for (kind, name, n) in counts.iter() {
        println!("world: count {kind} {name} {n}");
    }
    println!(
        "world: walk seeds {of} happenings {happenings} timers {timers} seconds {:.1}",
        began.elapsed().as_secs_f64()
    );
    assert_eq!(
        coverage::missing(&counts),
        Vec::<String>::new(),
        "never reached: the run is vacuous"
    );
    assert!(happenings >= 500_000, "{happenings} happenings");
    assert!(
        timers * 10 <= happenings * 3,
        "{timers} of {happenings} only let time pass"
    );
}

#[test]
fn world_holds_over_the_first_half_of_the_seeds() {
    walk(1..=100);
}

#[test]
fn world_holds_over_the_second_half_of_the_seeds() {
    walk(101..=200);
}

#[test]
fn world_of_a_seed_is_the_same_twice() {
    for seed in [3, 17, 58] {
        let run = || World::new(seed, Swarm::draw(seed), false, false).run(HAPPENINGS);
        let (one, two, other) = (
            run(),
            run(),
            World::new(seed + 1, Swarm::draw(seed + 1), false, false).run(HAPPENINGS),
        );
        assert_eq!(
            (one.hash, one.happenings, &one.counts),
            (two.hash, two.happenings, &two.counts),
            "seed {seed}"
        );
        assert_ne!(one.hash, other.hash, "another seed is another world");
        println!(
            "world: trace seed {seed} hash {:#018x} after {} happenings: same",
            one.hash, one.happenings
        );
    }
}

/// Happenings of one world with a planted fault. What a world's jobs are like is drawn with its seed: where only some
/// kinds of them show the fault, several short worlds see more of it than a long one.
fn stretch(planted: Planted) -> u64 {
    match planted {
        Planted::GrowBeforeShrink => NOTICED_WITHIN / 3,
        _ => NOTICED_WITHIN,
    }
}

#[test]
fn world_notices_every_planted_fault_by_the_name_of_what_it_breaks() {
    for (planted, invariant) in Planted::ALL {
        let mut total = 0;
        let each = stretch(planted);
        let noticed = (1..=NOTICED_WITHIN / each).find_map(|seed| {
            let outcome = World::new(seed, Swarm::broken(seed, planted), false, false).run(each);
            let happenings = outcome.happenings;
            total += happenings;
            let (violation, _) = outcome.violation.filter(|_| happenings < each)?;
            Some((seed, happenings, violation.invariant))
        });
        let Some((seed, happenings, name)) = noticed else {
            panic!("{planted:?} was never noticed");
        };
        println!(
            "world: planted {planted:?} seed {seed} happenings {happenings} total {total} invariant {name}"
        );
        assert_eq!(name, invariant, "{planted:?} on seed {seed}");
    }
}

#[test]
fn world_without_a_planted_fault_holds_where_the_broken_ones_break() {
    // The same parameters: what the test above notices is the planted fault and nothing else.
    let most = (1..=12).map(|seed| (seed, Planted::QueueJumped));
    let of_their_own = (1..).zip(Planted::ALL.map(|(planted, _)| planted));
    for (seed, planted) in most.chain(of_their_own) {
        let swarm = Swarm {
            planted: None,
            ..Swarm::broken(seed, planted)
        };
        must_hold(
            seed,
            &World::new(seed, swarm, true, false).run(NOTICED_WITHIN),
        );
    }
}

#[test]
fn world_under_constant_load_moves_nothing() {
    let mut judged = 0;
    for seed in 1..=12 {
        let outcome = World::new(seed, Swarm::steady(seed), true, false).run(HAPPENINGS);
        must_hold(seed, &outcome);
        assert_eq!(
            outcome.counts.get("event", "job_replanned"),
            0,
            "seed {seed} moved shares under constant load"
        );
        judged += outcome.counts.get("event", "job_stayed");
    }
    assert!(judged > 0, "no job was ever judged");
}
