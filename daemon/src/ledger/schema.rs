//! What the schema has been and is: every change of it, in order, as the files of `migrations/` have them. A start brings
//! an older ledger up to the newest one, a change at a time, each in a transaction of its own.
use std::borrow::Cow;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqliteConnection};

static OURS: Migrator = sqlx::migrate!("../migrations");
/// The migrator's own table: which changes were made.
pub(super) const BOOKKEEPING: &str = "_sqlx_migrations";

/// The changes that a daemon knows. It opens ledgers with a schema up to the newest of them, and refuses newer ones.
#[derive(Debug)]
pub struct Schema(Vec<Migration>);

impl Schema {
    /// Those of this daemon.
    pub fn ours() -> Self {
        Self(OURS.iter().cloned().collect())
    }

    /// Those of a daemon to come, which has changed the schema once more. The SQL has to set `user_version` to
    /// [`Schema::newest`] of the result, as each of ours does.
    #[must_use]
    pub fn and_then(mut self, name: &'static str, sql: String) -> Self {
        let change = Migration::new(
            self.newest() + 1,
            Cow::Borrowed(name),
            MigrationType::Simple,
            AssertSqlSafe(sql).into_sql_str(),
            false, // in a transaction
        );
        self.0.push(change);
        self
    }

    /// The newest schema.
    pub fn newest(&self) -> i64 {
        self.0
            .iter()
            .map(|change| change.version)
            .max()
            .unwrap_or(0)
    }

    /// Makes the changes that a ledger lacks. Killed in the middle of one, the ledger is as before that one.
    pub(super) async fn apply(&self, conn: &mut SqliteConnection) -> Result<(), MigrateError> {
        let migrator = Migrator::with_migrations(self.0.clone());
        migrator.run(conn).await
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{Connection as _, Executor as _};

    use super::super::{Config, SCHEMA};
    use super::*;
    use crate::ledger;

    #[test]
    fn the_newest_migration_is_the_schema_that_we_know() {
        assert_eq!(
            Schema::ours().newest(),
            SCHEMA,
            "raise SCHEMA with each migration"
        );
        let next = Schema::ours().and_then("next", String::new());
        assert_eq!(next.newest(), SCHEMA + 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_ledger_of_the_first_schema_keeps_its_gpus() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(folder.path().join("ledger.db"));
        let options = SqliteConnectOptions::new()
            .filename(&config.path)
            .create_if_missing(true);
        let mut conn = SqliteConnection::connect_with(&options).await.unwrap();
        let first = Schema::ours().0.into_iter().filter(|m| m.version == 1);
        Schema(first.collect()).apply(&mut conn).await.unwrap();
        conn.execute(
            "INSERT INTO gpu VALUES (3, 'GPU-3', 'H100', 132, 1000, 0, '[2,4,132]', 0, 'none', 'enforce', 0, 0);
            INSERT INTO job VALUES (1, 'alice', zeroblob(16), 0, 1, '{}', 'queued', NULL, '[]', '[]', '[]', 0, 1);
            INSERT INTO slot VALUES (1, 0, 0, NULL);
            INSERT INTO slot_gpu VALUES (1, 0, 0, 3, 4, 4, 10);
            DELETE FROM job;",
        )
        .await
        .unwrap();
        conn.close().await.unwrap();
        let opened = ledger::open(config).await.unwrap();
        let node = &opened.loaded.parts.node;
        let counts: Vec<u32> = node.gpus[0].enforceable.iter().map(|s| s.0).collect();
        assert_eq!((node.gpus[0].sms.0, counts), (132, vec![2, 4, 132]));
        opened.ledger.close().await;
    }

    #[test]
    fn the_bookkeeping_is_where_we_look_for_it() {
        assert_eq!(OURS.table_name, BOOKKEEPING);
    }
}
