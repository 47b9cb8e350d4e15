//! A ledger in use: futures that are dropped, lazy notes, statements per batch.
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use evenkeel_core::event::Event;
use evenkeel_core::id::{Fence, LeaseId};
use evenkeel_core::lease::{End, Lease};
use evenkeel_core::state::Durable;
use evenkeel_core::unit::Time;
use evenkeeld::ledger::{Batch, fold};

use super::kit::{block_on, config, lease, node, open, vector};

fn grants(durable: &mut Durable, n: u64) -> Batch {
    let first = durable.next_lease().0;
    let events: Vec<Event> = (first..first + n)
        .map(|id| Event::LeaseGranted {
            lease: lease(id, vector([id as u32], 1)),
        })
        .collect();
    events.iter().for_each(|event| durable.evolve(event));
    fold(&events, durable, 1)
}

#[test]
fn a_dropped_commit_runs_to_its_end() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let mut opened = open(&config(folder.path())).await;
        let mut durable = Durable::load(opened.loaded.parts);
        let installed = Event::NodeInstalled { node: node(100, 1) };
        durable.evolve(&installed);
        opened
            .ledger
            .commit(&fold(&[installed], &durable, 1))
            .await
            .unwrap();
        for round in 0..20 {
            let batch = grants(&mut durable, 1);
            {
                let mut commit = pin!(opened.ledger.commit(&batch));
                let _ = commit
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
            }
            assert_eq!(
                opened.ledger.batches().await,
                2 + 2 * round,
                "the next call waits for it"
            );
            let batch = grants(&mut durable, 1);
            opened.ledger.commit(&batch).await.unwrap();
        }
        opened.ledger.close().await;
        let found = open(&config(folder.path())).await.loaded.parts;
        assert_eq!(format!("{found:?}"), format!("{:?}", durable.parts()));
    });
}

#[test]
fn notes_beside_the_batches_survive_a_start() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let mut opened = open(&config).await;
        assert_eq!((opened.loaded.boot_id, opened.loaded.epoch), (None, 1));
        assert_eq!(opened.loaded.alive, None);
        let mut durable = Durable::load(opened.loaded.parts);
        let installed = Event::NodeInstalled { node: node(100, 1) };
        durable.evolve(&installed);
        opened
            .ledger
            .commit(&fold(&[installed], &durable, 1))
            .await
            .unwrap();
        opened
            .ledger
            .commit(&grants(&mut durable, 3))
            .await
            .unwrap();
        opened.ledger.set_boot_id("4d6c-boot").await.unwrap();
        let (one, two, gone) = (LeaseId(1), LeaseId(2), LeaseId(77));
        let since = [
            (one, Some(Time(5))),
            (two, Some(Time(6))),
            (gone, Some(Time(7))),
        ];
        opened.ledger.set_unrenewed(&since).await.unwrap();
        opened.ledger.set_unrenewed(&[(two, None)]).await.unwrap();
        for alive in [Time(8), Time(9)] {
            opened.ledger.set_alive(alive).await.unwrap();
        }
        // Other changes of the lease leave the note alone.
        let attached = Event::LeaseAttached {
            id: one,
            holder: super::kit::holder(9),
            fence: Fence(9),
        };
        durable.evolve(&attached);
        opened
            .ledger
            .commit(&fold(&[attached], &durable, 1))
            .await
            .unwrap();
        opened.ledger.close().await;
        let loaded = open(&config).await.loaded;
        assert_eq!(
            (loaded.boot_id.as_deref(), loaded.epoch),
            (Some("4d6c-boot"), 2)
        );
        assert_eq!(loaded.alive, Some(Time(9)));
        assert_eq!(
            loaded.unrenewed.into_iter().collect::<Vec<_>>(),
            [(one, Time(5))]
        );
    });
}

#[test]
fn a_batch_has_one_statement_per_table_that_it_touches() {
    let mut durable = Durable::new(node(300, 1));
    assert_eq!(
        fold(&[], &durable, 1).statements(),
        3,
        "BEGIN, the counter, COMMIT"
    );
    // The event, the lease, its core, its GPU share.
    assert_eq!(grants(&mut durable, 1).statements(), 3 + 4);
    assert_eq!(grants(&mut durable, 128).statements(), 3 + 4);
    // The event, the remembered answer, the lease (its shares go with it).
    let how = End::Released;
    let ends: Vec<Event> = (1..=128)
        .map(|id| Event::LeaseEnded {
            id: LeaseId(id),
            fence: Fence(id + 1),
            how,
            reason: None,
        })
        .collect();
    ends.iter().for_each(|event| durable.evolve(event));
    assert_eq!(fold(&ends, &durable, 1).statements(), 3 + 3);
}

/// What a batch writes follows what it touches, not what lives.
#[test]
fn a_batch_is_as_large_as_what_it_touches() {
    let mut durable = Durable::new(node(300, 1));
    grants(&mut durable, 100);
    let one = Event::LeaseGranted {
        lease: Lease {
            ..lease(500, vector([200, 201], 1))
        },
    };
    durable.evolve(&one);
    let batch = fold(&[one], &durable, 1);
    let rows = (
        batch.events.len(),
        batch.leases.len(),
        batch.cores.len(),
        batch.lease_gpus.len(),
    );
    assert_eq!(rows, (1, 1, 2, 1));
    assert!(batch.requests.is_empty() && batch.revectored.is_empty() && batch.node.is_none());
}
