//! What can go wrong with the ledger: opening it, committing to it, reading its history.
use std::path::PathBuf;

use super::load::Corrupt;

/// Why the ledger did not open. One variant per operation; the daemon does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder could not be made or looked at.
    #[error(
        "cannot use the ledger's folder {path}; make it, writable for the daemon's user, or set ledger.path"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder or the file can only be read.
    #[error(
        "the ledger {path} can only be read; the daemon's user needs to write the file and its folder"
    )]
    ReadOnly {
        /// The ledger.
        path: PathBuf,
        /// What the system said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was committed last is there, and what it belongs to is not.
    #[error(
        "the ledger {path} is not there or empty, and its log {log} has what was committed last: put the file back where \
         it was, or restore a copy (`evenkeeld restore`, which keeps the log). To begin anew, move the log away"
    )]
    LogAlone {
        /// The ledger.
        path: PathBuf,
        /// Its log.
        log: PathBuf,
    },
    /// The file has another name elsewhere, by which another daemon could open it.
    #[error(
        "the ledger {path} has more than one hard link, and SQLite's log belongs to one name; remove the other link, \
         or copy the file (a backup, say) to a place of its own"
    )]
    Linked {
        /// The ledger.
        path: PathBuf,
    },
    /// Another daemon has it.
    #[error(
        "another daemon (pid {pid}) has the ledger {path}; stop it first, or give this one a ledger of its own"
    )]
    InUse {
        /// The ledger.
        path: PathBuf,
        /// Who has it, as far as its lock file says.
        pid: String,
    },
    /// The lock could not be taken for another reason.
    #[error("cannot lock {path}; it guards the ledger against a second daemon")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("{path} is not a ledger: {what}; move it away, or set ledger.path")]
    NotALedger {
        /// The file.
        path: PathBuf,
        /// What it is, as far as one can tell.
        what: &'static str,
    },
    /// A newer daemon wrote it.
    #[error(
        "the ledger {path} has schema {found} and this daemon knows up to {known}; install the newer daemon \
        again, or restore the backup that it made beside the ledger before it migrated"
    )]
    Newer {
        /// The ledger.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// SQLite could not open it.
    #[error("cannot open the ledger {path} with SQLite")]
    Connect {
        /// The ledger.
        path: PathBuf,
        /// What SQLite said.
        source: sqlx::Error,
    },
    /// A setting did not take.
    #[error(
        "SQLite's {name} is {found:?} on the ledger, and has to be {wanted:?}; is this an unusual file system or build?"
    )]
    Pragma {
        /// The setting.
        name: &'static str,
        /// What it has to be.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// The library is too old.
    #[error(
        "SQLite {found} is linked; at least {} is needed (older ones can lose commits)",
        super::SQLITE_LEAST
    )]
    OldSqlite {
        /// Its version.
        found: String,
    },
    /// The file is damaged.
    #[error(
        "the ledger {path} is damaged ({what}); keep a copy, and restore the newest backup beside it"
    )]
    Damaged {
        /// The ledger.
        path: PathBuf,
        /// What SQLite found.
        what: String,
    },
    /// No backup before a migration: it is not migrated.
    #[error("cannot back the ledger up to {path} before its schema changes; nothing was changed")]
    Backup {
        /// The copy.
        path: PathBuf,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The schema could not be brought up to date.
    #[error("cannot bring the ledger's schema up to date; it is as it was before")]
    Migrate(#[source] Box<sqlx::migrate::MigrateError>),
    /// A table could not be read.
    #[error("cannot read the ledger's table {table}")]
    Read {
        /// The table.
        table: &'static str,
        /// What was wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Rows contradict each other.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The start could not be noted.
    #[error("cannot write to the ledger at start")]
    Epoch(#[source] CommitError),
}

/// Why a batch is not committed, or may not be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The disk is full. The batch is absent for sure. Grants have to wait; the ballast is free for releases.
    #[error("the disk of the ledger is full; grants wait until there is space again")]
    Full,
    /// The schema refused it: a bug of the daemon, or somebody else's change. The batch is absent for sure.
    #[error(
        "the ledger refused a change: {constraint}; this is a bug of the daemon, or the ledger was changed by hand"
    )]
    Refused {
        /// What SQLite named: a CHECK, a key or a trigger.
        constraint: String,
    },
    /// Not possible now. The batch is absent for sure and may be tried again.
    #[error(
        "the ledger cannot be written now ({what}); the change was not made and can be tried again"
    )]
    Unavailable {
        /// What SQLite said.
        what: String,
    },
    /// Another program has written to the ledger: what is remembered is not what is there. The batch is absent for
    /// sure, but there is nothing to go on from: the process must exit, non-zero.
    #[error(
        "the number of a new event is taken ({what}), and only this daemon gives numbers: another program has written \
         to the ledger. The change was not made; find that program (a second daemon whose lock was deleted, somebody \
         with sqlite3), end it, and start the daemon again, which reads what is there"
    )]
    Foreign {
        /// What SQLite said.
        what: String,
    },
    /// It may or may not be there. Only a new start can tell: the process must exit, non-zero, and say
    /// neither yes nor no.
    #[error(
        "nobody knows whether the last change reached the disk ({what}); the daemon has to start again to find out"
    )]
    InDoubt {
        /// What SQLite said.
        what: String,
    },
}

impl CommitError {
    /// Whether the batch is absent for sure and the state is right without it: undo it, and go on. Otherwise exit.
    pub const fn is_absent(&self) -> bool {
        !matches!(self, Self::InDoubt { .. } | Self::Foreign { .. })
    }
}

/// Why the history cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The second connection did not open.
    #[error("cannot open the ledger {path} for reading its history")]
    Connect {
        /// The ledger.
        path: PathBuf,
        /// What SQLite said.
        source: sqlx::Error,
    },
    /// A page could not be read.
    #[error("cannot read the ledger's events; ask again")]
    Page(#[source] sqlx::Error),
}

/// SQLite's result code, without the detail; zero if the error is not SQLite's.
pub(super) fn primary(error: &sqlx::Error) -> i32 {
    error
        .as_database_error()
        .and_then(|e| e.code()?.parse::<i32>().ok())
        .map_or(0, |code| code & 0xff)
}

/// What SQLite says when the number of an event is taken already.
pub(super) const EVENT_TAKEN: &str = "UNIQUE constraint failed: event.seq";
/// `SQLITE_FULL`
pub(super) const FULL: i32 = 13;
/// `SQLITE_CONSTRAINT`
pub(super) const CONSTRAINT: i32 = 19;
/// `SQLITE_CORRUPT`
pub(super) const CORRUPT: i32 = 11;
/// `SQLITE_NOTADB`
pub(super) const NOTADB: i32 = 26;
/// `SQLITE_READONLY`
pub(super) const READONLY: i32 = 8;
