//! Copies of a ledger that is in use, and the way back: whole, checked, and never over something else.
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use evenkeel_core::event::Event;
use evenkeel_core::id::{Fence, LeaseId};
use evenkeel_core::lease::End;
use evenkeel_core::state::Durable;
use evenkeeld::ledger::{BackupError, Config, Ledger, OpenError, Restored, back_up, fold, restore};
use sqlx::{AssertSqlSafe, Connection, Executor, SqliteConnection};

use super::kit::{block_on, config, lease, node, open, vector};

/// A ledger in use.
pub(crate) struct Desk {
    pub(crate) ledger: Ledger,
    pub(crate) durable: Durable,
}

impl Desk {
    pub(crate) async fn new(config: &Config) -> Self {
        let opened = open(config).await;
        let mut desk = Self {
            ledger: opened.ledger,
            durable: Durable::load(opened.loaded.parts),
        };
        desk.commit(Event::NodeInstalled { node: node(100, 1) })
            .await;
        desk
    }

    pub(crate) async fn commit(&mut self, event: Event) {
        self.durable.evolve(&event);
        let batch = fold(&[event], &self.durable, 1);
        self.ledger.commit(&batch).await.unwrap();
    }

    pub(crate) async fn grant(&mut self) -> LeaseId {
        let id = self.durable.next_lease();
        let lease = lease(id.0, vector([id.0 as u32 % 100], 0));
        self.commit(Event::LeaseGranted { lease }).await;
        id
    }

    pub(crate) async fn end(&mut self, id: LeaseId) {
        let (fence, how) = (Fence(id.0 + 1), End::Released);
        self.commit(Event::LeaseEnded {
            id,
            fence,
            how,
            reason: None,
        })
        .await;
    }
}

/// The audit trail of a file, row by row.
pub(crate) async fn trail(path: &Path) -> Vec<(i64, String, String)> {
    let url = format!("sqlite://{}", path.display());
    let mut conn = SqliteConnection::connect(&url).await.unwrap();
    let rows = sqlx::query_as("SELECT seq, kind, json FROM event ORDER BY seq");
    let rows = rows.fetch_all(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    rows
}

/// What the durable state is, as text: all of it.
async fn state(config: &Config) -> String {
    let opened = open(config).await;
    let parts = format!("{:?}", opened.loaded.parts);
    opened.ledger.close().await;
    parts
}

pub(crate) fn leases(ids: &[LeaseId]) -> BTreeSet<LeaseId> {
    ids.iter().copied().collect()
}

#[test]
fn a_copy_made_under_load_is_the_ledger_of_one_moment() {
    block_on(async {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = config(folder.path());
        let mut desk = Desk::new(&config).await;
        let copy = other.path().join("copy.db");
        let (settings, to) = (config.clone(), copy.clone());
        let copying = tokio::spawn(async move { back_up(&settings, &to).await });
        // It goes on granting and taking back until the copy is there, and once after it.
        let mut moments = Vec::new();
        let mut last = false;
        while !last {
            last = copying.is_finished();
            let id = desk.grant().await;
            moments.push(format!("{:?}", desk.durable.parts()));
            desk.end(id).await;
            moments.push(format!("{:?}", desk.durable.parts()));
        }
        let copied = copying.await.unwrap().unwrap();
        assert_eq!(copied.path, copy);
        assert_eq!(
            copy.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "it has everybody's leases in it"
        );
        desk.ledger.close().await;

        let elsewhere = Config {
            path: other.path().join("there/ledger.db"),
            ..config.clone()
        };
        let restored = restore(elsewhere.clone(), &copy, false).await.unwrap();
        assert_eq!(restored.aside, None);
        assert_eq!(restored.ledger.leases, copied.leases);
        let (whole, part) = (trail(&config.path).await, trail(&elsewhere.path).await);
        assert_eq!(part.len() as u64, copied.events);
        assert_eq!(
            part,
            whole[..part.len()],
            "the trail until then, and all of it"
        );
        let found = state(&elsewhere).await;
        assert!(
            part.len() <= 1 || moments.contains(&found),
            "a state that was never there: {found}"
        );
        assert_eq!(
            fs::read_dir(other.path()).unwrap().count(),
            2,
            "no parts are left"
        );
    });
}

#[test]
fn what_was_there_is_kept_beside_it_and_leases_are_not_forgotten_in_silence() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let copy = folder.path().join("copy.db");
        let mut desk = Desk::new(&config).await;
        let one = desk.grant().await;
        let copied = back_up(&config, &copy).await.unwrap();
        assert_eq!(copied.leases, Some(leases(&[one])));
        let two = desk.grant().await;
        let before = trail(&config.path).await;

        let error = restore(config.clone(), &copy, true).await.unwrap_err();
        assert!(
            matches!(error, BackupError::Open(OpenError::InUse { .. })),
            "{error}"
        );
        desk.ledger.close().await;
        match restore(config.clone(), &copy, false).await {
            Err(BackupError::Forgets { leases: found, .. }) => assert_eq!(found, leases(&[two])),
            other => panic!("{other:?}"),
        }
        assert_eq!(trail(&config.path).await, before, "as it was");

        let Restored { aside, .. } = restore(config.clone(), &copy, true).await.unwrap();
        let aside = aside.unwrap();
        assert_eq!(trail(&config.path).await, trail(&copy).await);
        assert_eq!(trail(&aside).await, before);
        // The way back is the same way.
        restore(config.clone(), &aside, false).await.unwrap();
        assert_eq!(trail(&config.path).await, before);
    });
}

#[test]
fn what_is_no_copy_is_refused_and_changes_nothing() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let path = |name: &str| folder.path().join(name);
        let error = back_up(&config, &path("copy.db")).await.unwrap_err();
        assert!(matches!(error, BackupError::Missing { .. }), "{error}");

        let mut desk = Desk::new(&config).await;
        desk.grant().await;
        desk.ledger.checkpoint().await.unwrap();
        desk.ledger.close().await;
        back_up(&config, &path("copy.db")).await.unwrap();
        let error = back_up(&config, &path("copy.db")).await.unwrap_err();
        assert!(matches!(error, BackupError::Exists { .. }), "{error}");
        let error = back_up(&config, &path("nowhere/copy.db"))
            .await
            .unwrap_err();
        assert!(matches!(error, BackupError::Copy { .. }), "{error}");

        let before = fs::read(&config.path).unwrap();
        let refused = async |name: &str, says: &str| {
            let error = restore(config.clone(), &path(name), true)
                .await
                .unwrap_err();
            assert!(error.to_string().contains(says), "{name}: {error}");
            assert_eq!(fs::read(&config.path).unwrap(), before, "{name}");
        };
        refused("nothing.db", "there is no copy").await;
        fs::write(path("text.db"), "to whom it may concern\n".repeat(20)).unwrap();
        refused("text.db", "text.db is no copy of a ledger").await;
        fs::write(path("empty.db"), "").unwrap();
        refused("empty.db", "empty.db is no copy of a ledger").await;

        let by_hand = async |name: &str, sql: &str| {
            fs::copy(path("copy.db"), path(name)).unwrap();
            let url = format!("sqlite://{}", path(name).display());
            let mut conn = SqliteConnection::connect(&url).await.unwrap();
            let sql = format!("PRAGMA foreign_keys = OFF; {sql}");
            conn.execute(AssertSqlSafe(sql)).await.unwrap();
            conn.close().await.unwrap();
        };
        by_hand("newer.db", "PRAGMA user_version = 999").await;
        refused("newer.db", "has schema 999").await;
        by_hand("torn.db", "DELETE FROM lease").await;
        refused("torn.db", "which is not there").await;

        fs::copy(path("copy.db"), path("used.db")).unwrap();
        fs::write(path("used.db-wal"), "x").unwrap();
        refused("used.db", "write-ahead log").await;

        let mut bytes = fs::read(path("copy.db")).unwrap();
        let at = bytes.len() / 2;
        bytes[at..at + 4096].fill(0xab);
        fs::write(path("damaged.db"), bytes).unwrap();
        refused("damaged.db", "").await;
    });
}
