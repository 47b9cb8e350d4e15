//! Opening: what is refused at the door, each with a message of its own, and nothing is changed by the refusal.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evenkeel_core::event::Event;
use evenkeel_core::state::Durable;
use evenkeeld::ledger::{self, Config, OpenError, fold};
use sqlx::{AssertSqlSafe, Connection, Executor, SqliteConnection};

use super::kit::{block_on, config, lease, node, open, vector};
use super::mount::{Mounted, is_root};

/// A closed ledger with one lease, in `folder`.
async fn ledger_with_a_lease(config: &Config) {
    let mut opened = open(config).await;
    let mut durable = Durable::load(opened.loaded.parts);
    let events = [
        Event::NodeInstalled { node: node(4, 1) },
        Event::LeaseGranted {
            lease: lease(1, vector([1, 2], 12)),
        },
    ];
    events.iter().for_each(|event| durable.evolve(event));
    opened
        .ledger
        .commit(&fold(&events, &durable, 1))
        .await
        .unwrap();
    opened.ledger.checkpoint().await.unwrap();
    opened.ledger.close().await;
}

/// Changes a ledger by hand, checks switched off.
async fn by_hand(config: &Config, sql: &str) {
    let url = format!("sqlite://{}", config.path.display());
    let mut conn = SqliteConnection::connect(&url).await.unwrap();
    conn.execute(AssertSqlSafe(format!("PRAGMA foreign_keys = OFF; {sql}")))
        .await
        .unwrap();
    conn.close().await.unwrap();
}

async fn refused(config: &Config) -> OpenError {
    match ledger::open(config.clone()).await {
        Err(error) => error,
        Ok(_) => panic!("it opened"),
    }
}

#[test]
fn a_second_daemon_is_refused_and_told_whom_it_meets() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let first = open(&config).await;
        let error = refused(&config).await;
        let OpenError::InUse { pid, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*pid, std::process::id().to_string());
        drop(first);
        assert_eq!(
            open(&config).await.loaded.epoch,
            2,
            "the lock goes with its holder"
        );
    });
}

#[test]
fn a_second_daemon_is_refused_by_whatever_name_it_comes() {
    block_on(async {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let real = config(folder.path());
        let first = open(&real).await;
        let file = config(elsewhere.path());
        std::os::unix::fs::symlink(&real.path, &file.path).unwrap();
        let linked_folder = elsewhere.path().join("folder");
        std::os::unix::fs::symlink(folder.path(), &linked_folder).unwrap();
        for other in [&file, &config(&linked_folder)] {
            let error = refused(other).await;
            assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        }
        drop(first);
        // A hard link cannot be told from the file itself.
        fs::hard_link(&real.path, elsewhere.path().join("hard")).unwrap();
        let error = refused(&real).await;
        assert!(matches!(error, OpenError::Linked { .. }), "{error}");
    });
}

#[test]
fn foreign_files_and_newer_schemas_are_left_alone() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        fs::write(&config.path, "to whom it may concern\n".repeat(20)).unwrap();
        assert!(matches!(
            refused(&config).await,
            OpenError::NotALedger { .. }
        ));
        assert!(
            fs::read_to_string(&config.path)
                .unwrap()
                .starts_with("to whom")
        );

        fs::remove_file(&config.path).unwrap();
        let url = format!("sqlite://{}?mode=rwc", config.path.display());
        let mut conn = SqliteConnection::connect(&url).await.unwrap();
        conn.execute("CREATE TABLE diary (day TEXT)").await.unwrap();
        conn.close().await.unwrap();
        let error = refused(&config).await.to_string();
        assert!(error.contains("another program's"), "{error}");

        fs::remove_file(&config.path).unwrap();
        ledger_with_a_lease(&config).await;
        by_hand(&config, "PRAGMA user_version = 999").await;
        let error = refused(&config).await;
        assert!(
            matches!(error, OpenError::Newer { found: 999, .. }),
            "{error:?}"
        );
    });
}

#[test]
fn a_log_without_its_ledger_is_kept() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        ledger_with_a_lease(&config).await;
        let log = folder.path().join("ledger.db-wal");
        fs::write(&log, "what was committed last").unwrap();
        fs::remove_file(&config.path).unwrap();
        for _ in 0..2 {
            let error = refused(&config).await;
            assert!(matches!(error, OpenError::LogAlone { .. }), "{error:?}");
            assert_eq!(fs::read_to_string(&log).unwrap(), "what was committed last");
            // Nor beside an empty one.
            fs::write(&config.path, "").unwrap();
        }
        fs::remove_file(&log).unwrap();
        open(&config).await.ledger.close().await;
    });
}

#[test]
fn a_damaged_file_is_noticed() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        ledger_with_a_lease(&config).await;
        let whole = fs::read(&config.path).unwrap();
        let mut noticed = 0;
        for page in 1..whole.len() / 4096 {
            let mut bytes = whole.clone();
            bytes[page * 4096..page * 4096 + 200].fill(0xa5);
            fs::write(&config.path, &bytes).unwrap();
            // The pages of the audit trail and of sqlx's own table do not matter to a start.
            noticed += u32::from(ledger::open(config.clone()).await.is_err());
            for suffix in ["-wal", "-shm"] {
                let _ = fs::remove_file(folder.path().join(format!("ledger.db{suffix}")));
            }
        }
        assert!(
            noticed >= 15,
            "{noticed} of {} damaged pages were noticed",
            whole.len() / 4096
        );
        fs::write(&config.path, &whole[..whole.len() / 2]).unwrap();
        let error = refused(&config).await;
        assert!(
            matches!(error, OpenError::Damaged { .. } | OpenError::Connect { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn rows_that_contradict_each_other_are_noticed() {
    block_on(async {
        for (sql, why) in [
            ("UPDATE gpu SET used_sms = used_sms + 1", "gpu 0 counts"),
            ("DELETE FROM lease", "is not there"),
            (
                "UPDATE lease SET lease_id = 50; UPDATE core_owner SET lease_id = 50; DELETE FROM lease_gpu",
                "above",
            ),
            ("UPDATE lease SET tenant = 'two words'", "table lease"),
            (
                "PRAGMA ignore_check_constraints = ON; UPDATE lease SET phase = 'zombie'",
                "lease",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let config = config(folder.path());
            ledger_with_a_lease(&config).await;
            by_hand(&config, sql).await;
            let error = refused(&config).await.to_string();
            assert!(error.contains(why), "{sql}: {error}");
        }
    });
}

#[test]
fn a_read_only_place_is_named() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("place");
        fs::create_dir(&place).unwrap();
        let config = config(&place);
        // Root may write anywhere but on a read-only mount.
        let mount = is_root().then(|| Mounted::tmpfs(&place, "8m"));
        ledger_with_a_lease(&config).await;
        match &mount {
            Some(mount) => mount.read_only(),
            None => fs::set_permissions(&place, fs::Permissions::from_mode(0o500)).unwrap(),
        }
        fs::metadata(&config.path).unwrap();
        if mount.is_none() {
            fs::remove_file(place.join("ledger.db.lock")).unwrap_err();
            fs::set_permissions(
                place.join("ledger.db.lock"),
                fs::Permissions::from_mode(0o400),
            )
            .unwrap();
        }
        let error = refused(&config).await;
        assert!(matches!(error, OpenError::ReadOnly { .. }), "{error:?}");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700))
            .or_else(only_read_only)
            .unwrap();
    });
}

fn only_read_only(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        std::io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        _ => Err(error),
    }
}

#[test]
fn an_older_schema_is_backed_up_before_it_changes() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        ledger_with_a_lease(&config).await;
        by_hand(&config, "PRAGMA user_version = 0").await;
        for n in 1..=4 {
            fs::write(
                folder
                    .path()
                    .join(format!("ledger.db.backup-00000000000{n}-schema-0")),
                "old",
            )
            .unwrap();
        }
        open(&config).await.ledger.close().await;
        let backups: Vec<String> = names(folder.path(), ".backup-");
        assert_eq!(backups.len(), 3, "{backups:?}");
        let newest = folder.path().join(&backups[2]);
        assert!(
            fs::read(&newest).unwrap().starts_with(b"SQLite format 3"),
            "{newest:?}"
        );
        let copy = super::kit::config(&folder.path().join("copy"));
        fs::create_dir(folder.path().join("copy")).unwrap();
        fs::copy(&newest, &copy.path).unwrap();
        assert_eq!(
            open(&copy).await.loaded.parts.leases.len(),
            1,
            "the backup holds the lease"
        );
    });
}

fn names(folder: &Path, part: &str) -> Vec<String> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|name| name.contains(part)).collect();
    names.sort();
    names
}
