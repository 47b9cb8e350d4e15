//! A copy of the ledger, made while a daemon uses it. It does not need the daemon, and the daemon knows nothing of it: it
//! is a command of `evenkeeld` for admins. The way back is in `restore`.
//!
//! A copy is one read transaction (`VACUUM INTO`), so it is the ledger at one moment, audit trail included, whole and
//! without a write-ahead log. It is checked like a ledger at a start before it gets its name.
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_core::id::LeaseId;
use evenkeel_core::invariant::violations;
use evenkeel_core::state::Durable;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tempfile::NamedTempFile;

use super::open::{examine, integer, judge, sniff, sqlite};
use super::{Config, OpenError, SCHEMA, folder, load};

/// Leases that are named in a refusal; the others are counted.
const NAMED: usize = 10;

/// What a copy holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its schema.
    pub schema: i64,
    /// Events of the audit trail.
    pub events: u64,
    /// Live leases; none where the copy has an older schema, which only a start can read.
    pub leases: Option<BTreeSet<LeaseId>>,
    /// It is of a node that drains: a daemon on it grants nothing until that is undone.
    pub draining: bool,
}

/// Why there is no copy, or nothing was restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The ledger, or the copy, is none that may be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Nothing is there.
    #[error(
        "there is no {what} {path}; is it the right one (--config says which configuration is read)?"
    )]
    Missing {
        /// What it should be.
        what: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// A copy never replaces a file.
    #[error("{path} exists; name another file, or move it away")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The copy could not be made.
    #[error("cannot write the copy {path}; nothing was changed, and nothing is left of it")]
    Copy {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Part of the copy is in a log beside it.
    #[error(
        "{path} has a write-ahead log beside it: it was copied by hand, or is in use. Without that log it lacks the \
         newest changes; make copies with `evenkeeld backup`"
    )]
    HasLog {
        /// The file.
        path: PathBuf,
    },
    /// The copy is something else.
    #[error("{path} is no copy of a ledger that can be restored: {why}")]
    NotACopy {
        /// The copy.
        path: PathBuf,
        /// What it is.
        why: String,
    },
    /// The copy contradicts itself.
    #[error("{path} is damaged, or breaks an invariant of the ledger ({what}); use another copy")]
    Broken {
        /// The file.
        path: PathBuf,
        /// Which.
        what: String,
    },
    /// Leases would be forgotten whose holders may run.
    #[error(
        "{path} does not know {} of the present ledger as they are now: {}. Restored, it would grant their shares again \
         while their workers may still run. Let them end first (evenkeel drain; evenkeel leases), or, if their \
         processes are gone, say --forget-leases",
        count(.leases.len()), named(.leases)
    )]
    Forgets {
        /// The copy.
        path: PathBuf,
        /// The leases.
        leases: BTreeSet<LeaseId>,
    },
    /// Nobody can tell which leases would be forgotten.
    #[error(
        "which live leases {path} does not know cannot be told: {why}. Restored, it might grant shares again while \
         workers still use them. If no worker runs any more, say --forget-leases"
    )]
    Unknown {
        /// The copy.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The files could not be put in their place.
    #[error("cannot put {path} in its place; the ledger of before is beside it or still there")]
    Replace {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn count(leases: usize) -> String {
    format!("{leases} live lease{}", if leases == 1 { "" } else { "s" })
}

fn named(leases: &BTreeSet<LeaseId>) -> String {
    let first: Vec<String> = leases
        .iter()
        .take(NAMED)
        .map(|id| id.0.to_string())
        .collect();
    let more = if leases.len() > NAMED { ", …" } else { "" };
    format!("{}{more}", first.join(", "))
}

/// Copies the ledger as it is at this moment to a new file that only its owner can read. A daemon may use it meanwhile:
/// it goes on granting, and its log grows a little until the copy is made.
///
/// # Errors
/// When there is no ledger, the file exists, or the copy cannot be written or does not pass the checks of a start. Then
/// there is no new file.
pub async fn back_up(config: &Config, to: &Path) -> Result<Copied, BackupError> {
    must_exist("ledger", &config.path)?;
    sniff(&config.path, SCHEMA)?;
    let failed = |source| BackupError::Copy {
        path: to.to_owned(),
        source,
    };
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::Exists {
            path: to.to_owned(),
        });
    }
    let mut conn = read_only(&config.path, false).await?;
    judge_connected(&config.path, &mut conn).await?;
    let part = NamedTempFile::new_in(folder(to)).map_err(|e| failed(e.into()))?;
    sqlx::query("VACUUM INTO ?")
        .bind(part.path().to_string_lossy().into_owned())
        .execute(&mut conn)
        .await
        .map_err(|e| failed(e.into()))?;
    let (copied, _) = verify(part.path()).await?;
    settle(part, to)?;
    Ok(Copied {
        path: to.to_owned(),
        ..copied
    })
}

pub(super) fn must_exist(what: &'static str, path: &Path) -> Result<(), BackupError> {
    match path.metadata() {
        Ok(file) if file.is_file() => Ok(()),
        _ => Err(BackupError::Missing {
            what,
            path: path.to_owned(),
        }),
    }
}

/// `still`: nobody writes to the file, so that nothing has to be made beside it.
pub(super) async fn read_only(path: &Path, still: bool) -> Result<SqliteConnection, OpenError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .immutable(still)
        .busy_timeout(std::time::Duration::from_secs(5))
        .disable_statement_logging();
    let connected = SqliteConnection::connect_with(&options).await;
    connected.map_err(|e| sqlite(path, e))
}

/// Whether it is a ledger that we know, as its log has it, too. Its schema.
async fn judge_connected(path: &Path, conn: &mut SqliteConnection) -> Result<i64, OpenError> {
    let application = integer(path, conn, "application_id").await?;
    let schema = integer(path, conn, "user_version").await?;
    judge(path, application, schema, false, SCHEMA)?;
    Ok(schema)
}

/// Checks a file that nobody writes to as a start would, and every page of it besides. What it holds; none where it has
/// an older schema.
pub(super) async fn verify(path: &Path) -> Result<(Copied, Option<Durable>), BackupError> {
    let mut conn = read_only(path, true).await?;
    let schema = judge_connected(path, &mut conn).await?;
    let said: String = sqlx::query_scalar("PRAGMA integrity_check(1)")
        .fetch_one(&mut conn)
        .await
        .map_err(|e| sqlite(path, e))?;
    if said != "ok" {
        return Err(BackupError::Broken {
            path: path.to_owned(),
            what: said,
        });
    }
    let held = if schema == SCHEMA {
        Some(held(path, &mut conn).await?)
    } else {
        None // the next start migrates it
    };
    let (events, draining): (i64, bool) =
        sqlx::query_as("SELECT (SELECT count(*) FROM event), draining FROM node")
            .fetch_one(&mut conn)
            .await
            .map_err(|e| sqlite(path, e))?;
    let copied = Copied {
        path: path.to_owned(),
        bytes: path.metadata().map_or(0, |file| file.len()),
        schema,
        events: u64::try_from(events).unwrap_or(0),
        leases: held.as_ref().map(|d| d.leases().keys().copied().collect()),
        draining,
    };
    Ok((copied, held))
}

/// Reads all and holds every invariant against it.
pub(super) async fn held(path: &Path, conn: &mut SqliteConnection) -> Result<Durable, BackupError> {
    let rows = examine(&Config::new(path), conn).await?;
    let durable = Durable::load(load(&rows.tables).map_err(OpenError::from)?);
    if let Some(broken) = violations(&durable).into_iter().next() {
        return Err(BackupError::Broken {
            path: path.to_owned(),
            what: format!("{}: {}", broken.invariant, broken.detail),
        });
    }
    Ok(durable)
}

/// Gives a whole file its name, which must be free, and makes both last.
fn settle(part: NamedTempFile, to: &Path) -> Result<(), BackupError> {
    let failed = |source| BackupError::Replace {
        path: to.to_owned(),
        source,
    };
    // SQLite wrote to it by its name; this is the same file.
    part.as_file().sync_all().map_err(failed)?;
    part.persist_noclobber(to).map_err(|e| failed(e.error))?;
    sync_folder(folder(to)).map_err(failed)
}

/// Makes the names in a folder last.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
