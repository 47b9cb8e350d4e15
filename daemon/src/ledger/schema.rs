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
    use super::super::SCHEMA;
    use super::*;

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

    #[test]
    fn the_bookkeeping_is_where_we_look_for_it() {
        assert_eq!(OURS.table_name, BOOKKEEPING);
    }
}
