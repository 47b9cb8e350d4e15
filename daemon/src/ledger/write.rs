//! Committing: one connection, one transaction per batch, and a certain answer or none.
//!
//! **Errors.** Before COMMIT nothing is there: any error means *absent*. At COMMIT a full disk means *absent*
//! once the connection was opened anew and the batch number was read back; any other error is *in doubt*, since
//! SQLite may find the frames in its WAL after a restart; the process has to exit. After everything but a
//! refusal by the schema the connection is dropped and opened anew: SQLite may have rolled back by itself, and
//! a failed write may have left pages that the next one must not build on. An event whose number is taken means that
//! another program writes to the ledger; the process has to exit then, too.
//!
//! **Cancelling.** A commit runs in a task of its own that holds the connection's lock. Dropping the future of
//! [`Ledger::commit`] does not stop it; it runs to its end, and the next call waits for it.
use std::fs::File;
use std::io;
use std::sync::Arc;

use evenkeel_core::id::LeaseId;
use evenkeel_core::unit::Time;
use futures::StreamExt;
use nix::fcntl::Flock;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, Connection, Either, Executor, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::ballast::{Ballast, Space};
use super::error::{CONSTRAINT, EVENT_TAKEN, FULL, primary};
use super::fold::Batch;
use super::open::connect;
use super::place::{Misplaced, Places};
use super::sql::{Encoded, encode};
use super::{CommitError, Config, Corrupt, OpenError};

/// The ledger, open for writing. The controller owns it.
#[derive(Debug)]
pub struct Ledger {
    writer: Arc<Mutex<Writer>>,
    config: Config,
    /// See [`Ledger::switch_off`].
    off: bool,
}

/// The connection and what it has committed.
#[derive(Debug)]
struct Writer {
    conn: Option<SqliteConnection>,
    config: Config,
    ballast: Ballast,
    places: Places,
    batch: u64,
    next_event: u64,
    /// A commit is in doubt, or another program writes here: nothing more is written.
    doubt: Option<String>,
    /// One daemon per ledger, until this is dropped.
    _lock: Flock<File>,
}

impl Ledger {
    pub(super) fn new(
        config: Config,
        lock: Flock<File>,
        conn: SqliteConnection,
        batch: u64,
        next_event: u64,
    ) -> Self {
        let ballast = Ballast::of(&config);
        match ballast.make() {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                "no room for the ledger's ballast; it is made when there is, and on a full disk even releases wait"
            ),
            Err(error) => {
                tracing::warn!(%error, "no ballast beside the ledger; on a full disk even releases will wait");
            }
        }
        let writer = Writer {
            conn: Some(conn),
            places: Places::of(&config, &lock),
            config: config.clone(),
            ballast,
            batch,
            next_event,
            doubt: None,
            _lock: lock,
        };
        Self {
            writer: Arc::new(Mutex::new(writer)),
            config,
            off: false,
        }
    }

    /// From now on no batch is written, and each commit succeeds at once: what the rest of the daemon costs is what is
    /// left. For benchmarks alone, which call the library; no setting of the daemon leads here.
    #[doc(hidden)]
    pub const fn switch_off(&mut self) {
        self.off = true;
    }

    /// Commits a batch: all of it or nothing, on the disk before this returns.
    ///
    /// On an error that [`is_absent`](CommitError::is_absent) the caller takes the step back; on any other it
    /// exits without a yes or a no. After [`CommitError::Full`] the ballast is gone: releases and expiries will fit,
    /// and grants wait until [`Ledger::space`] says that there is enough. If the future is dropped the
    /// transaction runs to its end all the same.
    pub async fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        if self.off {
            return Ok(());
        }
        let writer = self.writer.clone().lock_owned().await;
        let encoded = encode(batch, writer.batch + 1, writer.next_event).map_err(|e| {
            CommitError::Refused {
                constraint: format!("its rows do not become JSON: {e}"),
            }
        })?;
        run(writer, encoded, true).await
    }

    /// Notes since when nobody has renewed a lease (BOOTTIME; none: it was renewed). Leases that are gone are
    /// ignored. Not part of a batch: callers do this lazily, within one TTL of what it says.
    pub async fn set_unrenewed(
        &mut self,
        since: &[(LeaseId, Option<Time>)],
    ) -> Result<(), CommitError> {
        let mut encoded = Encoded::new();
        encoded
            .add(
                "UPDATE lease SET unrenewed_since_ms = new.since FROM
                (SELECT value->>0 AS id, value->>1 AS since FROM jsonb_each(?)) AS new
                WHERE lease_id = new.id;\n",
                since.iter(),
            )
            .map_err(|e| CommitError::Refused {
                constraint: e.to_string(),
            })?;
        self.aside(encoded).await
    }

    /// Notes up to when (BOOTTIME, its stalls taken off) this life of the daemon counts against leases that are not
    /// renewed. Not part of a batch: noted each second while there are such leases.
    pub async fn set_alive(&mut self, alive: Time) -> Result<(), CommitError> {
        let mut encoded = Encoded::new();
        encoded.sql.push_str(
            "INSERT INTO meta (key, value) VALUES ('alive_ms', ?)
            ON CONFLICT DO UPDATE SET value = excluded.value;\n",
        );
        encoded.args.push(alive.0.to_string());
        self.aside(encoded).await
    }

    /// Notes the boot that the ledger's times belong to. Call it after what a reboot ended was committed.
    pub async fn set_boot_id(&mut self, boot_id: &str) -> Result<(), CommitError> {
        let mut encoded = Encoded::new();
        encoded.sql.push_str(
            "INSERT INTO meta (key, value) VALUES ('boot_id', ?)
            ON CONFLICT DO UPDATE SET value = excluded.value;\n",
        );
        encoded.args.push(boot_id.to_owned());
        self.aside(encoded).await
    }

    /// Deletes events older than `before_unix_ms`, at most `limit` of them, oldest first; returns how many. While it
    /// is `limit` there may be more. Events are in order, so what comes before an old one is old, whatever the clock
    /// said at that time.
    pub async fn prune(&mut self, before_unix_ms: u64, limit: u32) -> Result<u64, CommitError> {
        let mut encoded = Encoded::new();
        encoded
            .add(
                "DELETE FROM event WHERE seq <= (SELECT max(seq) FROM jsonb_each(?) CROSS JOIN event
                WHERE seq < (SELECT min(seq) FROM event) + (value->>1) AND unix_ms < value->>0);\n",
                [(before_unix_ms, limit)].iter(),
            )
            .map_err(|e| CommitError::Refused {
                constraint: e.to_string(),
            })?;
        self.aside(encoded).await?;
        self.writer.lock().await.number("SELECT changes()").await
    }

    pub(super) async fn start_epoch(&mut self) -> Result<u64, CommitError> {
        let mut encoded = Encoded::new();
        encoded
            .sql
            .push_str("UPDATE counter SET epoch = epoch + 1;\n");
        self.aside(encoded).await?;
        let mut writer = self.writer.lock().await;
        writer.number("SELECT epoch FROM counter").await
    }

    /// A transaction that is not a batch. On a full disk it is tried a second time: the first one has freed the
    /// ballast.
    async fn aside(&mut self, mut encoded: Encoded) -> Result<(), CommitError> {
        encoded.sql.push_str("COMMIT");
        let writer = self.writer.clone().lock_owned().await;
        match run(writer, encoded.clone(), false).await {
            Err(CommitError::Full) => {
                run(self.writer.clone().lock_owned().await, encoded, false).await
            }
            done => done,
        }
    }

    /// Looks at the disk, and makes the ballast again if there is room. Blocks for one `statvfs`, or for as
    /// long as the file system needs to reserve the ballast.
    pub async fn space(&mut self) -> io::Result<Space> {
        let writer = self.writer.lock().await;
        let had = writer.ballast.space()?.ballast;
        match writer.ballast.make() {
            Ok(true) if !had => tracing::info!("the ledger's ballast is in its place again"),
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "no room for the ledger's ballast"),
        }
        writer.ballast.space()
    }

    /// What of the ledger is not where it was opened any more. Two `stat`s.
    pub async fn misplaced(&self) -> Option<Misplaced> {
        self.writer.lock().await.places.misplaced()
    }

    /// How many batches are committed.
    pub async fn batches(&self) -> u64 {
        self.writer.lock().await.batch
    }

    /// Where the ledger is and what it keeps.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Moves the WAL into the database and truncates it. Only a matter of speed: of the next start, of copies.
    pub async fn checkpoint(&mut self) -> Result<(), CommitError> {
        let mut writer = self.writer.lock().await;
        writer
            .number("PRAGMA wal_checkpoint(TRUNCATE)")
            .await
            .map(drop)
    }

    /// Closes the connection and gives the lock back. What is committed needs no closing; this is for a tidy
    /// shutdown: it leaves one file without a WAL.
    pub async fn close(self) {
        let mut writer = self.writer.lock().await;
        if let Some(conn) = writer.conn.take()
            && let Err(error) = conn.close().await
        {
            tracing::warn!(%error, "the ledger did not close cleanly; the next start recovers it");
        }
    }
}

/// Runs a transaction to its end, whether or not anybody still waits for it.
async fn run(
    mut writer: OwnedMutexGuard<Writer>,
    encoded: Encoded,
    is_batch: bool,
) -> Result<(), CommitError> {
    let task = tokio::spawn(async move {
        let done = writer.transact(encoded, is_batch).await;
        if let Err(CommitError::InDoubt { what } | CommitError::Foreign { what }) = &done {
            writer.doubt.get_or_insert_with(|| what.clone());
        }
        done
    });
    match task.await {
        Ok(done) => done,
        Err(error) => Err(CommitError::InDoubt {
            what: error.to_string(),
        }),
    }
}

impl Writer {
    async fn transact(&mut self, encoded: Encoded, is_batch: bool) -> Result<(), CommitError> {
        if let Some(what) = &self.doubt {
            return Err(CommitError::InDoubt { what: what.clone() });
        }
        let events = encoded.events;
        let done = self.execute(encoded).await;
        if is_batch && done.is_ok() {
            self.batch += 1;
            self.next_event += events;
        }
        done
    }

    /// BEGIN, the statements and COMMIT, as one text: SQLite's thread runs it in one go.
    async fn execute(&mut self, encoded: Encoded) -> Result<(), CommitError> {
        let mut args = SqliteArguments::default();
        // BEGIN and COMMIT frame the statements; those without a parameter are counted by their semicolons.
        let statements = encoded.statements();
        for arg in encoded.args {
            args.add(arg).map_err(|e| CommitError::Refused {
                constraint: e.to_string(),
            })?;
        }
        let conn = self.connection().await?;
        let query = sqlx::query_with(AssertSqlSafe(encoded.sql), args);
        let mut results = conn.fetch_many(query);
        let (mut done, mut failed) = (0, None);
        while let Some(result) = results.next().await {
            match result {
                Ok(Either::Left(_)) => done += 1,
                Ok(Either::Right(_)) => {}
                Err(error) => failed = Some(error),
            }
        }
        drop(results);
        match failed {
            None if done == statements => Ok(()),
            None => {
                self.conn = None;
                Err(CommitError::InDoubt {
                    what: format!("{done} of {statements} statements were run"),
                })
            }
            Some(error) => self.recover(error, done + 1 >= statements).await,
        }
    }

    /// After an error: what it means for the transaction, and a connection that can be used again.
    async fn recover(&mut self, error: sqlx::Error, at_commit: bool) -> Result<(), CommitError> {
        let (code, what) = (primary(&error), error.to_string());
        if error.as_database_error().is_none() {
            // The thread is gone, or sqlx gave up: nobody knows how far it came.
            self.conn = None;
            return Err(CommitError::InDoubt { what });
        }
        if code == CONSTRAINT && what.contains(EVENT_TAKEN) {
            self.conn = None;
            return Err(CommitError::Foreign { what });
        }
        if code == CONSTRAINT && !at_commit && self.roll_back().await {
            return Err(CommitError::Refused { constraint: what });
        }
        self.conn = None;
        if code == FULL {
            let freed = self.ballast.free();
            tracing::warn!(ballast_freed = freed, "the disk of the ledger is full");
            return self.settle(what).await;
        }
        match at_commit {
            true => Err(CommitError::InDoubt { what }),
            false => Err(CommitError::Unavailable { what }),
        }
    }

    /// After a full disk: opens anew and looks at the batch number. It is what we know, so the batch is absent.
    async fn settle(&mut self, what: String) -> Result<(), CommitError> {
        let found = match self.number("SELECT batch FROM counter").await {
            Ok(found) => found,
            Err(e) => {
                return Err(CommitError::InDoubt {
                    what: format!("{what}; then: {e}"),
                });
            }
        };
        match found == self.batch {
            true => Err(CommitError::Full),
            false => Err(CommitError::InDoubt {
                what: format!("{what}; batch {found} is there"),
            }),
        }
    }

    /// Whether the transaction is rolled back and the connection is as good as new.
    async fn roll_back(&mut self) -> bool {
        let Some(conn) = &mut self.conn else {
            return false;
        };
        conn.execute("ROLLBACK").await.is_ok()
    }

    /// The connection; opened anew if the last error took it.
    async fn connection(&mut self) -> Result<&mut SqliteConnection, CommitError> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => self.reconnect().await?,
        };
        Ok(self.conn.insert(conn))
    }

    /// Only to the file that was open before: what else lies at its path now is not ours to write to, and where there
    /// is nothing SQLite would make an empty ledger.
    async fn reconnect(&self) -> Result<SqliteConnection, CommitError> {
        if let Some(Misplaced::Ledger(path)) = self.places.misplaced() {
            let what = format!("{} is another file now, or none", path.display());
            return Err(CommitError::Unavailable { what });
        }
        connect(&self.config).await.map_err(unavailable)
    }

    /// The first column of the first row of a statement, as a number.
    async fn number(&mut self, sql: &'static str) -> Result<u64, CommitError> {
        let conn = self.connection().await?;
        let read: Result<i64, _> = sqlx::query_scalar(sql).fetch_one(conn).await;
        let read = read.map_err(|e| {
            self.conn = None;
            CommitError::Unavailable {
                what: e.to_string(),
            }
        })?;
        u64::try_from(read).map_err(|_| CommitError::Unavailable {
            what: Corrupt {
                what: format!("`{sql}` is {read}"),
            }
            .to_string(),
        })
    }
}

fn unavailable(error: OpenError) -> CommitError {
    let source = std::error::Error::source(&error)
        .map(|s| format!(": {s}"))
        .unwrap_or_default();
    CommitError::Unavailable {
        what: format!("{error}{source}"),
    }
}
