//! The audit trail: pages, filters, decisions, and its pruning by age.
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_core::event::Event;
use evenkeel_core::grant::Vector;
use evenkeel_core::id::{Fence, JobId, LeaseId};
use evenkeel_core::lease::End;
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeeld::clock::Clock;
use evenkeeld::controller::{self, Controller};
use evenkeeld::ledger::{History, Ledger, Page, fold};

use tokio_util::sync::CancellationToken;

use super::kit::{Rng, block_on, config, job, lease, name, node, open, plan, vector};

/// A ledger with seven events, one a second, and its history.
struct Trail {
    ledger: Ledger,
    durable: Durable,
    history: History,
    _folder: tempfile::TempDir,
}

impl Trail {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let opened = open(&config).await;
        let durable = Durable::load(opened.loaded.parts);
        let history = History::new(&config);
        let mut trail = Self {
            ledger: opened.ledger,
            durable,
            history,
            _folder: folder,
        };
        let (id, fence, how) = (LeaseId(3), Fence(9), End::Released);
        let plan = plan(vec![vec![Vector::empty()]], &mut Rng(3));
        let steps = [
            Event::NodeInstalled { node: node(100, 1) },
            Event::LeaseGranted {
                lease: lease(3, vector([4], 1)),
            },
            Event::JobSubmitted { job: job(1, 1) },
            Event::JobAdmitted {
                id: JobId(1),
                plan,
                promised: false,
            },
            Event::JobStayed {
                id: JobId(1),
                reason: "it does not pay".into(),
            },
            Event::LeaseEnded {
                id,
                fence,
                how,
                reason: None,
            },
            Event::JobEnded { id: JobId(1) },
        ];
        for (second, event) in (1..).zip(steps) {
            trail.happen(event, second * 1000).await;
        }
        trail
    }
    async fn happen(&mut self, event: Event, unix_ms: u64) {
        self.durable.evolve(&event);
        self.ledger
            .commit(&fold(&[event], &self.durable, unix_ms))
            .await
            .unwrap();
    }
    async fn first(&self) -> Option<u64> {
        Some(
            self.history
                .page(&Page::default())
                .await
                .unwrap()
                .first()?
                .seq,
        )
    }
    async fn check(&self, page: Page, kinds: &[&str]) {
        let found = self.history.page(&page).await.unwrap();
        assert_eq!(
            found.iter().map(|e| e.kind.as_str()).collect::<Vec<_>>(),
            kinds,
            "{page:?}"
        );
    }
}

#[test]
fn pages_answer_what_is_asked() {
    block_on(async {
        let trail = Trail::new().await;
        let newest = Page {
            newest_first: true,
            limit: 2,
            ..Page::default()
        };
        trail
            .check(newest.clone(), &["job_ended", "lease_ended"])
            .await;
        trail
            .check(
                Page {
                    after: Some(3),
                    ..newest
                },
                &["lease_granted", "node_installed"],
            )
            .await;
        let of_lease = Page {
            lease: Some(LeaseId(3)),
            ..Page::default()
        };
        trail
            .check(of_lease.clone(), &["lease_granted", "lease_ended"])
            .await;
        trail
            .check(
                Page {
                    tenant: Some(name("bob")),
                    ..of_lease
                },
                &[],
            )
            .await;
        let far = Page {
            after: Some(u64::MAX),
            ..Page::default()
        };
        trail.check(far, &[]).await;
        let decisions = trail.history.decisions(JobId(1), 10).await.unwrap();
        let decisions: Vec<_> = decisions.iter().map(|e| e.kind.as_str()).collect();
        assert_eq!(decisions, ["job_stayed", "job_admitted"]);
    });
}

#[test]
fn an_event_is_whole_and_has_an_owner_even_after_that_is_gone() {
    block_on(async {
        let trail = Trail::new().await;
        let all = trail.history.page(&Page::default()).await.unwrap();
        assert_eq!(
            all.iter().map(|e| e.seq).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6, 7]
        );
        assert_eq!((all[1].batch, all[1].unix_ms), (2, 2000));
        assert_eq!(all[5].tenant, Some(name("alice")), "of a lease that ended");
        assert_eq!(all[6].tenant, Some(name("alice")), "of a job that ended");
        let event: serde_json::Value = serde_json::from_str(&all[1].json).unwrap();
        let granted = Event::LeaseGranted {
            lease: lease(3, vector([4], 1)),
        };
        assert_eq!(event, serde_json::to_value(granted).unwrap());
    });
}

#[test]
fn pruning_takes_the_oldest_and_no_number_comes_back() {
    block_on(async {
        let mut trail = Trail::new().await;
        assert_eq!(trail.ledger.prune(5000, 3).await.unwrap(), 3);
        assert_eq!(trail.first().await, Some(4), "three at most");
        assert_eq!(trail.ledger.prune(5000, 3).await.unwrap(), 1);
        assert_eq!(trail.first().await, Some(5));
        assert_eq!(trail.ledger.prune(u64::MAX >> 1, 100).await.unwrap(), 3);
        assert_eq!(trail.first().await, None);
        assert_eq!(trail.ledger.prune(u64::MAX >> 1, 100).await.unwrap(), 0);
        trail
            .happen(Event::NodeDrained { draining: true }, 8000)
            .await;
        assert_eq!(trail.first().await, Some(8));
        trail.history.close().await;
        assert_eq!(trail.first().await, Some(8), "opened anew");
    });
}

#[test]
fn a_clock_that_was_ahead_does_not_hold_up_the_pruning() {
    block_on(async {
        let mut trail = Trail::new().await;
        trail.ledger.prune(u64::MAX >> 1, 100).await.unwrap();
        for (draining, unix_ms) in [
            (true, 9_000_000),
            (false, 2000),
            (true, 3000),
            (false, 8000),
        ] {
            trail.happen(Event::NodeDrained { draining }, unix_ms).await;
        }
        assert_eq!(trail.ledger.prune(5000, 10).await.unwrap(), 3);
        assert_eq!(trail.first().await, Some(11), "only the last is new");
    });
}

/// Old events of a former life: several minutes' worth of what was once pruned at most.
const BACKLOG: u64 = 12_000;
/// Ten times what it takes to prune them on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_backlog_goes_in_slices_while_nothing_else_happens() {
    block_on(async {
        let mut trail = Trail::new().await;
        let drains: Vec<Event> = (0..100)
            .map(|i| Event::NodeDrained {
                draining: i % 2 == 0,
            })
            .collect();
        for _ in 0..BACKLOG / 100 {
            drains.iter().for_each(|e| trail.durable.evolve(e));
            let batch = fold(&drains, &trail.durable, 9000);
            trail.ledger.commit(&batch).await.unwrap();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = now.as_millis() as u64;
        trail
            .happen(Event::NodeDrained { draining: false }, now)
            .await;
        let kept = BACKLOG + 8;
        let Trail {
            ledger,
            history,
            _folder: folder,
            ..
        } = trail;
        ledger.close().await;

        let config = config(folder.path());
        let opened = open(&config).await;
        let rules = controller::Config {
            settings: Settings::default(),
            boot_id: Clock::open().unwrap().boot_id().to_owned(),
            caps: Default::default(),
            keep_events: Duration::from_secs(3600),
        };
        let own = History::new(&config);
        let started =
            Controller::start(rules, opened.ledger, opened.loaded, own, Arc::default()).await;
        let (controller, _handle, _targets) = started.unwrap();
        let stop = CancellationToken::new();
        let owner = tokio::spawn(controller.run(stop.clone()));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = history.page(&Page::default()).await.unwrap();
            if page.first().is_some_and(|e| e.seq >= kept) {
                break;
            }
            assert!(Instant::now() < deadline, "{:?} is left", page.first());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        owner.await.unwrap().unwrap();
        let left = history.page(&Page::default()).await.unwrap();
        assert_eq!(left.first().unwrap().unix_ms, now, "what is new stays");
    });
}

#[test]
fn a_page_of_long_events_is_short_and_the_next_one_goes_on() {
    block_on(async {
        let mut trail = Trail::new().await;
        trail
            .happen(Event::JobSubmitted { job: job(2, 1) }, 8_000)
            .await;
        for second in 9..49 {
            let reason = "it does not pay ".repeat(8 << 10);
            let event = Event::JobStayed {
                id: JobId(2),
                reason,
            };
            trail.happen(event, second * 1_000).await;
        }
        let (mut after, mut pages) = (Some(8), Vec::new());
        loop {
            let page = Page {
                after,
                limit: 1_000,
                ..Page::default()
            };
            let page = trail.history.page(&page).await.unwrap();
            let Some(last) = page.last() else {
                break;
            };
            after = Some(last.seq);
            pages.push(page.len());
        }
        // 128 KiB each, and 2 MiB a page.
        assert_eq!(pages, [16, 16, 8]);
    });
}
