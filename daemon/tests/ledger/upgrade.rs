//! A newer daemon with another schema: it is killed in the middle of the change, again and again, and nothing is lost.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel_core::event::Event;
use evenkeel_core::state::Durable;
use evenkeeld::ledger::{Config, OpenError, SCHEMA, Schema, back_up, fold, open_with, restore};
use sqlx::{Connection, Executor, SqliteConnection};

use super::kit::{Rng, block_on, config, lease, node, open, vector};

const FOLDER: &str = "EVENKEEL_TEST_UPGRADE";
/// Kills in the middle of the change.
const KILLS: usize = 4;

/// A change that touches every lease and every event, and takes a second or so.
fn next() -> Schema {
    let version = SCHEMA + 1;
    let sql = format!(
        "ALTER TABLE lease ADD COLUMN note TEXT NOT NULL DEFAULT 'old';
         UPDATE lease SET note = 'new';
         CREATE TABLE trail (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, json TEXT NOT NULL) STRICT;
         INSERT INTO trail SELECT seq, kind, json FROM event;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
         INSERT INTO trail SELECT -i, 'padding', '{{}}' FROM n WHERE i % 100 = 0;
         PRAGMA user_version = {version};"
    );
    Schema::ours().and_then("a trail of its own", sql)
}

/// Not a test by itself: what the tests start and kill.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    block_on(async {
        let opened = open_with(config(folder.as_ref()), &next()).await.unwrap();
        opened.ledger.close().await;
    });
}

/// Some leases, and how they came.
async fn fill(config: &Config) {
    let mut opened = open(config).await;
    let mut durable = Durable::load(opened.loaded.parts);
    let mut commit = async |event: Event| {
        durable.evolve(&event);
        let batch = fold(&[event], &durable, 1);
        opened.ledger.commit(&batch).await.unwrap();
        durable.next_lease().0
    };
    let mut next = commit(Event::NodeInstalled { node: node(100, 1) }).await;
    for core in 1..=40 {
        let lease = lease(next, vector([core], 0));
        next = commit(Event::LeaseGranted { lease }).await;
    }
    opened.ledger.close().await;
}

async fn connect(path: &Path) -> SqliteConnection {
    let url = format!("sqlite://{}", path.display());
    SqliteConnection::connect(&url).await.unwrap()
}

async fn schema(path: &Path) -> i64 {
    let mut conn = connect(path).await;
    let row = sqlx::query_scalar("PRAGMA user_version");
    let found = row.fetch_one(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    found
}

type Trail = Vec<(i64, String, String)>;

async fn trail(path: &Path) -> Trail {
    let mut conn = connect(path).await;
    let rows = sqlx::query_as("SELECT seq, kind, json FROM event ORDER BY seq");
    let rows = rows.fetch_all(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    rows
}

/// The copies beside the ledger, and whether one is being made.
fn copies(config: &Config) -> Vec<PathBuf> {
    let entries = fs::read_dir(config.path.parent().unwrap()).unwrap();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".backup-0"))
        .collect();
    found.sort();
    found
}

/// Starts the newer daemon and kills it once it has made its copy, that is, while it changes the schema.
fn kill_in_the_middle(config: &Config, rng: &mut Rng) {
    let before = copies(config);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "upgrade::child", "--nocapture"])
        .env(FOLDER, config.path.parent().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while copies(config) == before {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    // Somewhere in it, not at once: the change takes a hundred times as long.
    std::thread::sleep(std::time::Duration::from_micros(rng.below(10_000)));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_upgrade_that_is_killed_in_its_middle_starts_again_with_nothing_lost() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    block_on(fill(&config));
    let (parts, events) = block_on(async {
        let opened = open(&config).await;
        let parts = format!("{:?}", opened.loaded.parts);
        opened.ledger.close().await;
        (parts, trail(&config.path).await)
    });
    assert!(events.len() > 40);
    let mut rng = Rng(3);
    for kill in 0..KILLS {
        // The name of a copy has its second in it: one is needed for each.
        copies(&config)
            .iter()
            .for_each(|path| fs::remove_file(path).unwrap());
        kill_in_the_middle(&config, &mut rng);
        block_on(async {
            assert_eq!(
                schema(&config.path).await,
                SCHEMA,
                "kill {kill}: it was too late"
            );
            assert_eq!(trail(&config.path).await, events, "kill {kill}");
        });
    }
    block_on(async {
        let opened = open_with(config.clone(), &next()).await.unwrap();
        assert_eq!(format!("{:?}", opened.loaded.parts), parts);
        opened.ledger.close().await;
        assert_eq!(schema(&config.path).await, SCHEMA + 1);
        assert_eq!(trail(&config.path).await, events);
        let copy = copies(&config).pop().unwrap();
        assert_eq!(schema(&copy).await, SCHEMA);
        assert_eq!(trail(&copy).await, events, "the copy of before");
    });
}

#[test]
fn the_way_back_is_the_copy_that_the_upgrade_has_made() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    block_on(async {
        fill(&config).await;
        let events = trail(&config.path).await;
        open_with(config.clone(), &next())
            .await
            .unwrap()
            .ledger
            .close()
            .await;

        let before = fs::read(&config.path).unwrap();
        let refused = evenkeeld::ledger::open(config.clone()).await.unwrap_err();
        let said = refused.to_string();
        assert!(
            matches!(refused, OpenError::Newer { found, known, .. } if found == SCHEMA + 1 && known == SCHEMA)
        );
        assert!(
            said.contains("install the newer daemon again, or restore the backup"),
            "{said}"
        );
        let refused = back_up(&config, &folder.path().join("copy.db"))
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("has schema"), "{refused}");
        assert_eq!(
            fs::read(&config.path).unwrap(),
            before,
            "an older daemon changes nothing"
        );

        let copy = copies(&config).pop().unwrap();
        restore(config.clone(), &copy, false).await.unwrap();
        let opened = open(&config).await;
        assert_eq!(opened.loaded.parts.leases.len(), 40);
        opened.ledger.close().await;
        assert_eq!(trail(&config.path).await, events);
    });
}

#[test]
fn the_newest_copies_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let old = |second: u32| {
        config
            .path
            .with_file_name(format!("ledger.db.backup-{second:012}-schema-0"))
    };
    block_on(async {
        fill(&config).await;
        (1..=4).for_each(|second| fs::write(old(second), "older").unwrap());
        open_with(config.clone(), &next())
            .await
            .unwrap()
            .ledger
            .close()
            .await;
        let kept = copies(&config);
        assert_eq!(kept.len(), 3);
        assert_eq!(kept[..2], [old(3), old(4)]);
        assert_eq!(schema(&kept[2]).await, SCHEMA);
    });
}

/// A schema that only counts on, as far as `version`.
fn up_to(version: i64) -> Schema {
    (SCHEMA + 1..=version).fold(Schema::ours(), |schema, version| {
        schema.and_then("the next", format!("PRAGMA user_version = {version}"))
    })
}

#[test]
fn each_upgrade_has_its_copy_and_what_only_looks_like_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let beside = |name: &str| config.path.with_file_name(name);
    // Of a clock that was wrong once; and files that a person has named.
    let ahead = beside("ledger.db.backup-999999999998-schema-0");
    let foreign = [
        "ledger.db.backup-000000000001-schema-1.mine",
        "ledger.db.backup-1-schema-1",
        "ledger.db.backup-000000000001-schema-1-wal",
        "ledger.db.backup-before-the-move",
    ];
    block_on(async {
        fill(&config).await;
        for second in 7..=9 {
            let name = format!("ledger.db.backup-99999999999{second}-schema-0");
            fs::write(beside(&name), "older").unwrap();
        }
        foreign
            .iter()
            .for_each(|name| fs::write(beside(name), "mine").unwrap());
        for version in SCHEMA + 1..=SCHEMA + 5 {
            let opened = open_with(config.clone(), &up_to(version)).await.unwrap();
            opened.ledger.close().await;
            let end = format!("-schema-{}", version - 1);
            let made = copies(&config)
                .into_iter()
                .find(|path| path.to_string_lossy().ends_with(&end));
            let made =
                made.expect("the copy just made is there, though its name is not the newest");
            assert_eq!(schema(&made).await, version - 1);
        }
    });
    for name in foreign {
        assert_eq!(fs::read_to_string(beside(name)).unwrap(), "mine", "{name}");
    }
    assert!(ahead.exists());
}

#[test]
fn an_upgrade_that_fails_at_each_start_pushes_no_older_copy_out() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let broken = || up_to(SCHEMA + 3).and_then("no SQL", "this is no SQL".into());
    block_on(async {
        fill(&config).await;
        for version in SCHEMA + 1..=SCHEMA + 2 {
            let opened = open_with(config.clone(), &up_to(version)).await.unwrap();
            opened.ledger.close().await;
        }
        for start in 0..5 {
            open_with(config.clone(), &broken()).await.unwrap_err();
            let schemas = copies(&config).into_iter().map(|path| {
                let name = path.to_string_lossy().into_owned();
                name.rsplit('-').next().unwrap().parse::<i64>().unwrap()
            });
            // The changes before the broken one stand: the second start copies what they have made, once.
            let most = [SCHEMA + 2, SCHEMA + 3];
            let schemas: Vec<i64> = schemas.collect();
            assert!(schemas.len() <= 3, "start {start}: {schemas:?}");
            assert!(
                schemas.contains(&(SCHEMA + 1)),
                "start {start}: {schemas:?}"
            );
            assert!(
                most.contains(schemas.last().unwrap()),
                "start {start}: {schemas:?}"
            );
        }
    });
}

#[test]
fn a_new_ledger_whose_first_moment_was_cut_off_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    block_on(async {
        // What the migrator writes before its first change, outside of any transaction of ours.
        let url = format!("sqlite://{}?mode=rwc", config.path.display());
        let mut conn = SqliteConnection::connect(&url).await.unwrap();
        let table = "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
                     installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, \
                     checksum BLOB NOT NULL, execution_time BIGINT NOT NULL)";
        conn.execute(table).await.unwrap();
        conn.close().await.unwrap();
        open(&config).await.ledger.close().await;
        assert_eq!(schema(&config.path).await, SCHEMA);
    });
}
