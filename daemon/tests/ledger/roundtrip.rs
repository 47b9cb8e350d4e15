//! Durable memory = tables = SQLite, after any sequence of events.
use std::collections::BTreeMap;

use evenkeel_core::event::Event;
use evenkeel_core::state::Durable;
use evenkeeld::ledger::{Tables, fold, load};
use proptest::prelude::{ProptestConfig, any, proptest};

use super::happen::World;
use super::kit::{block_on, config, node, open};

/// Fails with the lines that differ.
fn same(found: &str, wanted: &str, what: &str, events: &[Event]) {
    if found != wanted {
        let pairs = found.lines().zip(wanted.lines()).enumerate();
        let differ: Vec<_> = pairs.filter(|(_, (f, w))| f != w).take(5).collect();
        let kinds: Vec<_> = events
            .iter()
            .map(|e| (e.kind(), e.lease(), e.job()))
            .collect();
        let before: Vec<_> = differ.first().map_or(Vec::new(), |(line, _)| {
            wanted
                .lines()
                .skip(line.saturating_sub(12))
                .take(12)
                .collect()
        });
        panic!("{what}: found, wanted: {differ:#?} after {before:#?}; the last events: {kinds:?}");
    }
}

/// Folds a world's events into tables and into SQLite, and compares all three all the way.
async fn lead(seed: u64) -> BTreeMap<&'static str, u32> {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let mut opened = open(&config).await;
    let mut tables = Tables::default();
    let mut world = World::new(Durable::load(opened.loaded.parts.clone()), seed);
    let mut events = vec![Event::NodeInstalled { node: node(8, 2) }];
    world.durable.evolve(&events[0]);
    for round in 0..24 {
        let batch = fold(&events, &world.durable, 1);
        tables.apply(&batch).unwrap();
        opened.ledger.commit(&batch).await.unwrap();
        let wanted = format!("{:#?}", world.durable.parts());
        same(
            &format!("{:#?}", load(&tables).unwrap()),
            &wanted,
            "tables",
            &events,
        );
        if round % 8 == 7 {
            opened.ledger.close().await;
            opened = open(&config).await;
            let found = format!("{:#?}", opened.loaded.parts);
            same(&found, &wanted, "SQLite", &events);
            assert_eq!(opened.loaded.batches, round + 1);
        }
        let happenings = 1 + world.rng.below(12);
        events = world.happen(happenings);
    }
    world.seen
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn durable_memory_tables_and_sqlite_are_equal(seed in any::<u64>()) {
        block_on(lead(seed));
    }
}

#[test]
fn every_kind_of_event_is_among_them() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..12 {
        for (kind, n) in block_on(lead(seed)) {
            *seen.entry(kind).or_default() += n;
        }
    }
    // All 25 but the one that starts every world.
    assert_eq!(seen.len(), 25, "{seen:?}");
}
