//! A disk that is really full: grants are refused for certain, releases still commit, and all is well by itself
//! once there is space.
use std::fs;

use evenkeel_core::event::Event;
use evenkeel_core::id::{Fence, LeaseId};
use evenkeel_core::lease::{End, Phase};
use evenkeel_core::state::Durable;
use evenkeeld::ledger::{self, CommitError, Config, Ledger, fold};

use super::kit::{block_on, lease, node, vector};
use super::mount::{Mounted, is_root};

/// A ledger and the state that it holds; a batch that fails is taken back.
struct Daemon {
    ledger: Ledger,
    durable: Durable,
}

impl Daemon {
    async fn commit(&mut self, events: &[Event]) -> Result<(), CommitError> {
        let mark = self.durable.mark();
        events.iter().for_each(|event| self.durable.evolve(event));
        let done = self.ledger.commit(&fold(events, &self.durable, 1)).await;
        match done {
            Ok(()) => self.durable.commit(),
            Err(_) => self.durable.undo_to(mark),
        }
        done
    }
    /// Waiting leases with long names, so that the disk fills.
    fn queue(&self, n: u64) -> Vec<Event> {
        let first = self.durable.next_lease().0;
        let tenant = super::kit::name(&"t".repeat(120));
        (first..first + n)
            .map(|id| {
                let lease = lease(id, vector([], 0));
                let phase = Phase::Queued;
                Event::LeaseQueued {
                    lease: evenkeel_core::lease::Lease {
                        tenant: tenant.clone(),
                        phase,
                        ..lease
                    },
                }
            })
            .collect()
    }
    fn end(&self, n: usize) -> Vec<Event> {
        let ids: Vec<LeaseId> = self.durable.leases().keys().take(n).copied().collect();
        let end = |id| Event::LeaseEnded {
            id,
            fence: Fence(id.0 + 1),
            how: End::Expired,
            reason: None,
        };
        ids.into_iter().map(end).collect()
    }
}

impl Daemon {
    /// Queues leases until one batch fails.
    async fn fill(&mut self) -> CommitError {
        loop {
            let events = self.queue(50);
            if let Err(error) = self.commit(&events).await {
                return error;
            }
        }
    }
    /// Everything ends and is forgotten, the trail too.
    async fn make_room(&mut self) {
        while !self.durable.leases().is_empty() {
            let events = self.end(100);
            self.commit(&events).await.unwrap();
            self.ledger.checkpoint().await.unwrap();
        }
        let answers = self.durable.requests().iter();
        let requests = answers
            .map(|(tenant, id, _)| (tenant.clone(), id))
            .collect();
        self.commit(&[Event::RequestsForgotten { requests }])
            .await
            .unwrap();
        for _ in 0..50 {
            self.ledger.prune(u64::MAX >> 1, 500).await.unwrap();
            self.ledger.checkpoint().await.unwrap();
        }
    }
}

#[test]
fn a_full_disk_refuses_grants_lets_releases_through_and_recovers() {
    if !is_root() {
        println!("skipped: a small file system can be mounted by root only");
        return;
    }
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let _mount = Mounted::tmpfs(folder.path(), "15m");
        let config = Config {
            ballast_bytes: 5 << 20, // more than the write-ahead log, which may be folded in just now
            min_free_bytes: 9 << 19, // more than is won when it is
            ..Config::new(folder.path().join("ledger.db"))
        };
        let opened = ledger::open(config.clone()).await.unwrap();
        assert_eq!(
            opened.loaded.warnings.len(),
            1,
            "tmpfs forgets, and that is said"
        );
        let durable = Durable::load(opened.loaded.parts);
        let mut daemon = Daemon {
            ledger: opened.ledger,
            durable,
        };
        daemon
            .commit(&[Event::NodeInstalled { node: node(4, 1) }])
            .await
            .unwrap();
        assert!(daemon.ledger.space().await.unwrap().enough);
        let filler = folder.path().join("filler");

        for round in 0..3 {
            fs::write(&filler, vec![1; 5 << 20]).unwrap();
            let full = daemon.fill().await;
            assert!(
                matches!(full, CommitError::Full) && full.is_absent(),
                "round {round}: {full:?}"
            );
            let space = daemon.ledger.space().await.unwrap();
            // Opening anew empties the WAL, which may be all the space that was needed.
            assert!(round > 0 || !space.enough, "{space:?}");
            let before = daemon.durable.leases().len();
            let events = daemon.end(20);
            daemon
                .commit(&events)
                .await
                .unwrap_or_else(|e| panic!("round {round}: a release: {e:?}"));
            assert_eq!(daemon.durable.leases().len(), before - 20);
            if round == 2 {
                break;
            }
            // Most leases end, the trail is pruned, somebody cleans up: there is space again.
            let _ = fs::remove_file(&filler);
            daemon.make_room().await;
            let space = daemon.ledger.space().await.unwrap();
            assert!(space.enough && space.ballast, "round {round}: {space:?}");
        }

        let wanted = format!("{:?}", daemon.durable.parts());
        daemon.ledger.close().await;
        let found = ledger::open(config).await.unwrap().loaded.parts;
        assert_eq!(
            format!("{found:?}"),
            wanted,
            "what was said is what is there"
        );
    });
}
