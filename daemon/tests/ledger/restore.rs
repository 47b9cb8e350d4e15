//! The way back: what is there is read and kept, a log never meets another's ledger, and no crash leaves nothing.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel_core::event::Event;
use evenkeel_core::id::{Fence, LeaseId};
use evenkeel_core::lease::Phase;
use evenkeel_core::state::Durable;
use evenkeeld::ledger::{BackupError, Config, OpenError, back_up, open as start, restore};
use sqlx::{AssertSqlSafe, Connection, Executor, SqliteConnection};

use super::backup::{Desk, leases, trail};
use super::kit::{block_on, config, holder, lease, open, vector};

const FOLDER: &str = "EVENKEEL_TEST_RESTORE";
/// Kills while one copy after the other is restored.
const KILLS: usize = 6;
/// Restores before each of them.
const RESTORES: usize = 5;

/// A ledger with so many leases, closed; its folder is the caller's.
async fn with_leases(config: &Config, n: usize) {
    let mut desk = Desk::new(config).await;
    for _ in 0..n {
        desk.grant().await;
    }
    desk.ledger.close().await;
}

/// A copy of a ledger with so many leases.
async fn copy_with(folder: &Path, n: usize) -> PathBuf {
    let elsewhere = tempfile::tempdir().unwrap();
    let config = config(elsewhere.path());
    with_leases(&config, n).await;
    let copy = folder.join(format!("copy-{n}.db"));
    back_up(&config, &copy).await.unwrap();
    copy
}

async fn by_hand(path: &Path, sql: &str) {
    let url = format!("sqlite://{}", path.display());
    let mut conn = SqliteConnection::connect(&url).await.unwrap();
    conn.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
    conn.close().await.unwrap();
}

async fn live(config: &Config) -> usize {
    let opened = open(config).await;
    let live = opened.loaded.parts.leases.len();
    opened.ledger.close().await;
    live
}

/// Files beside the ledger with this in their names.
fn named(config: &Config, part: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(config.path.parent().unwrap()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().contains(part))
        .collect();
    found.sort();
    found
}

fn beside(path: &Path, end: &str) -> PathBuf {
    format!("{}{end}", path.display()).into()
}

/// A ledger that was not closed, as a kill leaves it: its newest changes are in its log. Returns that log.
async fn with_log(config: &Config, n: usize) -> Vec<u8> {
    let mut desk = Desk::new(config).await;
    for _ in 0..n {
        desk.grant().await;
    }
    let log = fs::read(beside(&config.path, "-wal")).unwrap();
    assert!(log.len() > 4096);
    desk.ledger.close().await;
    fs::write(beside(&config.path, "-wal"), &log).unwrap();
    log
}

#[test]
fn a_log_without_its_ledger_is_not_applied_to_the_copy() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let copy = copy_with(folder.path(), 1).await;
        let log = with_log(&config, 7).await;
        fs::write(beside(&config.path, "-shm"), [7; 32768]).unwrap();
        fs::remove_file(&config.path).unwrap();

        let restored = restore(config.clone(), &copy, false).await.unwrap();
        assert!(!beside(&config.path, "-wal").exists());
        assert!(!beside(&config.path, "-shm").exists());
        assert_eq!(live(&config).await, 1);
        let aside = beside(&restored.aside.unwrap(), "-wal");
        assert_eq!(fs::read(aside).unwrap(), log, "kept");
    });
}

#[test]
fn a_damaged_ledger_is_kept_with_its_log_and_is_not_passed_over_in_silence() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let copy = copy_with(folder.path(), 1).await;
        let log = with_log(&config, 7).await;
        fs::write(&config.path, "no ledger any more").unwrap();
        let error = restore(config.clone(), &copy, false).await.unwrap_err();
        assert!(matches!(error, BackupError::Unknown { .. }), "{error}");
        assert!(error.to_string().contains("--forget-leases"), "{error}");
        assert_eq!(fs::read(&config.path).unwrap(), b"no ledger any more");
        assert_eq!(fs::read(beside(&config.path, "-wal")).unwrap(), log);

        let restored = restore(config.clone(), &copy, true).await.unwrap();
        assert!(restored.unread.is_some());
        let aside = restored.aside.unwrap();
        assert_eq!(fs::read(&aside).unwrap(), b"no ledger any more");
        assert_eq!(fs::read(beside(&aside, "-wal")).unwrap(), log);
        assert!(!beside(&config.path, "-wal").exists());
        assert_eq!(live(&config).await, 1);
    });
}

#[test]
fn a_copy_in_which_a_lease_still_waited_does_not_know_its_worker() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let path = |name: &str| folder.path().join(name);
        let mut desk = Desk::new(&config).await;
        let mut queued = lease(desk.durable.next_lease().0, vector([], 0));
        queued.phase = Phase::Queued;
        let id = queued.id;
        desk.commit(Event::LeaseQueued { lease: queued }).await;
        back_up(&config, &path("queued.db")).await.unwrap();
        let granted = lease(id.0, vector([3], 0));
        desk.commit(Event::LeaseGranted { lease: granted }).await;
        back_up(&config, &path("pending.db")).await.unwrap();
        let attach = |pid, fence| Event::LeaseAttached {
            id,
            holder: holder(pid),
            fence: Fence(id.0 + fence),
        };
        desk.commit(attach(77, 1)).await;
        back_up(&config, &path("attached.db")).await.unwrap();
        desk.commit(Event::LeaseActivated { id }).await;
        desk.ledger.close().await;

        let try_all = async |knowing: &str| {
            for copy in ["queued.db", "pending.db", "attached.db"] {
                let restored = restore(config.clone(), &path(copy), false).await;
                if copy == knowing {
                    let aside = restored.unwrap().aside.unwrap();
                    restore(config.clone(), &aside, true).await.unwrap();
                    continue;
                }
                match restored {
                    Err(BackupError::Forgets { leases: found, .. }) => {
                        assert_eq!(found, leases(&[id]), "{copy}");
                    }
                    other => panic!("{copy}: {other:?}"),
                }
            }
        };
        try_all("attached.db").await;
        // Another process has it since.
        let opened = open(&config).await;
        let durable = Durable::load(opened.loaded.parts);
        let mut desk = Desk {
            ledger: opened.ledger,
            durable,
        };
        desk.commit(attach(78, 2)).await;
        desk.ledger.close().await;
        try_all("none").await;
    });
}

#[test]
fn no_number_is_given_again_after_the_copy_is_back() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let copy = copy_with(folder.path(), 1).await;
        let mut desk = Desk::new(&config).await;
        for _ in 0..9 {
            let id = desk.grant().await;
            desk.end(id).await;
        }
        let next = desk.durable.next_lease();
        assert_eq!(next, LeaseId(10));
        let batches = desk.ledger.batches().await;
        desk.ledger.close().await;
        let last = trail(&config.path).await.last().unwrap().0;
        live(&config).await; // a second start

        restore(config.clone(), &copy, false).await.unwrap();
        let opened = open(&config).await;
        assert_eq!(opened.loaded.parts.leases.len(), 1);
        assert_eq!(opened.loaded.parts.next_lease, next);
        assert!(opened.loaded.batches >= batches);
        assert!(opened.loaded.epoch > 2, "starts: {}", opened.loaded.epoch);
        let durable = Durable::load(opened.loaded.parts);
        let mut desk = Desk {
            ledger: opened.ledger,
            durable,
        };
        assert_eq!(desk.grant().await, next);
        desk.ledger.close().await;
        let newest = trail(&config.path).await.last().unwrap().0;
        assert!(newest > last, "{newest} was another event's number: {last}");
    });
}

#[test]
fn an_older_schema_tells_no_leases_and_that_is_asked_about() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let copy = copy_with(folder.path(), 1).await;
        by_hand(&copy, "PRAGMA user_version = 0").await;
        with_leases(&config, 1).await;
        let error = restore(config.clone(), &copy, false).await.unwrap_err();
        assert!(matches!(error, BackupError::Unknown { .. }), "{error}");
        assert!(error.to_string().contains("older schema"), "{error}");
        restore(config.clone(), &copy, true).await.unwrap();
    });
    // Where no lease lives none can be forgotten.
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let copy = copy_with(folder.path(), 1).await;
        by_hand(&copy, "PRAGMA user_version = 0").await;
        with_leases(&config, 0).await;
        restore(config.clone(), &copy, false).await.unwrap();
    });
}

#[test]
fn restores_in_one_second_keep_a_ledger_each() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        with_leases(&config, 5).await;
        let mut kept = Vec::new();
        for n in 0..4 {
            let copy = copy_with(folder.path(), n).await;
            let restored = restore(config.clone(), &copy, true).await.unwrap();
            kept.push(restored.aside.unwrap());
        }
        for (aside, events) in kept.iter().zip([6, 1, 2, 3]) {
            assert_eq!(trail(aside).await.len(), events, "{}", aside.display());
        }
    });
}

#[test]
fn a_copy_of_a_node_that_drains_says_so() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let mut desk = Desk::new(&config).await;
        let copy = |name: &str| folder.path().join(name);
        assert!(!back_up(&config, &copy("a.db")).await.unwrap().draining);
        desk.commit(Event::NodeDrained { draining: true }).await;
        assert!(back_up(&config, &copy("b.db")).await.unwrap().draining);
        desk.ledger.close().await;
        let restored = restore(config, &copy("b.db"), false).await.unwrap();
        assert!(restored.ledger.draining);
    });
}

/// Not a test by itself: what the next one starts and kills.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let folder = PathBuf::from(folder);
    block_on(async {
        let config = config(&folder);
        for n in (1..=2).cycle() {
            let copy = folder.join(format!("copy-{n}.db"));
            restore(config.clone(), &copy, true).await.unwrap();
        }
    });
}

/// Lets a child restore again and again, and kills it when it has for some times.
fn kill_in_the_middle(config: &Config) {
    let before = named(config, "before-restore").len();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restore::child", "--nocapture"])
        .env(FOLDER, config.path.parent().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while named(config, "before-restore").len() < before + RESTORES {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_kill_in_the_middle_leaves_one_ledger_or_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    block_on(async {
        for n in 1..=2 {
            copy_with(folder.path(), n).await;
        }
        with_leases(&config, 1).await;
    });
    for kill in 0..KILLS {
        kill_in_the_middle(&config);
        block_on(async {
            let live = live(&config).await;
            assert!((1..=2).contains(&live), "kill {kill}: {live} leases");
            // Each that was there is whole, whatever it is named.
            for aside in named(&config, "before-restore") {
                let events = trail(&aside).await.len();
                assert!((2..=3).contains(&events), "{}", aside.display());
            }
        });
    }
}

#[test]
fn a_restore_that_was_cut_off_over_a_log_is_refused_by_a_start_and_can_be_run_again() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let copy = copy_with(folder.path(), 1).await;
        with_log(&config, 7).await;
        // The moment in which the stub has the ledger's name, and its log is still there.
        fs::write(&config.path, "`evenkeeld restore` was cut off here.").unwrap();
        let error = start(config.clone()).await.unwrap_err();
        assert!(matches!(error, OpenError::NotALedger { .. }), "{error}");
        restore(config.clone(), &copy, true).await.unwrap();
        assert_eq!(live(&config).await, 1);
    });
}
