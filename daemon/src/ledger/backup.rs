//! A copy of the ledger, made while a daemon uses it; and the way back. Neither needs the daemon, and the daemon knows
//! nothing of either: they are commands of `evenkeeld` for admins.
//!
//! A copy is one read transaction (`VACUUM INTO`), so it is the ledger at one moment, audit trail included, whole and
//! without a write-ahead log. It is checked like a ledger at a start before it gets its name. Restoring puts a copy in
//! the ledger's place and keeps what was there beside it.
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_core::id::LeaseId;
use evenkeel_core::invariant::violations;
use evenkeel_core::state::Durable;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tempfile::NamedTempFile;

use super::open::{examine, integer, judge, make_folder, one_name, sniff, sqlite, take_lock};
use super::{Config, OpenError, SCHEMA, beside, folder, hand_over, load};

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
}

/// What was restored, and what was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The ledger now.
    pub ledger: Copied,
    /// The ledger of before; none: there was none.
    pub aside: Option<PathBuf>,
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
        "{path} does not know {} of the present ledger: {}. Restored, it would grant their shares again while their \
         workers may still run. Let them end first (evenkeel drain; evenkeel leases), or, if their processes are gone, \
         say --forget-leases",
        count(.leases.len()), named(.leases)
    )]
    Forgets {
        /// The copy.
        path: PathBuf,
        /// The leases.
        leases: BTreeSet<LeaseId>,
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
    let copied = verify(part.path()).await?;
    settle(part, to)?;
    Ok(Copied {
        path: to.to_owned(),
        ..copied
    })
}

/// Puts a copy in the ledger's place. No daemon may have the ledger; what is there is kept beside it. `forget`: also if
/// live leases of the present ledger are unknown to the copy.
///
/// # Errors
/// When a daemon has the ledger, the copy is none, newer than this daemon, or broken, or leases would be forgotten.
/// Then the ledger is as it was.
pub async fn restore(
    mut config: Config,
    from: &Path,
    forget: bool,
) -> Result<Restored, BackupError> {
    must_exist("copy", from)?;
    let log = beside(from, "-wal");
    if log.metadata().is_ok_and(|log| log.len() > 0) {
        return Err(BackupError::HasLog {
            path: from.to_owned(),
        });
    }
    sniff(from, SCHEMA)?;
    make_folder(config.folder())?;
    config.path = one_name(&config)?;
    let _lock = take_lock(&config)?;
    let part = take_in(&config, from)?;
    let copied = verify(part.path()).await.map_err(|e| about(e, from))?;
    if !forget {
        forgets_nothing(&config.path, from, copied.leases.as_ref()).await?;
    }
    let aside = set_aside(&config).await?;
    settle(part, &config.path)?;
    Ok(Restored {
        ledger: Copied {
            path: config.path,
            ..copied
        },
        aside,
    })
}

fn must_exist(what: &'static str, path: &Path) -> Result<(), BackupError> {
    match path.metadata() {
        Ok(file) if file.is_file() => Ok(()),
        _ => Err(BackupError::Missing {
            what,
            path: path.to_owned(),
        }),
    }
}

/// `still`: nobody writes to the file, so that nothing has to be made beside it.
async fn read_only(path: &Path, still: bool) -> Result<SqliteConnection, OpenError> {
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

/// Checks a file that nobody writes to as a start would, and every page of it besides.
async fn verify(path: &Path) -> Result<Copied, BackupError> {
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
    let leases = if schema == SCHEMA {
        Some(leases_of(path, &mut conn).await?)
    } else {
        None // the next start migrates it
    };
    let events: i64 = sqlx::query_scalar("SELECT count(*) FROM event")
        .fetch_one(&mut conn)
        .await
        .map_err(|e| sqlite(path, e))?;
    Ok(Copied {
        path: path.to_owned(),
        bytes: path.metadata().map_or(0, |file| file.len()),
        schema,
        events: u64::try_from(events).unwrap_or(0),
        leases,
    })
}

/// Reads all and holds every invariant against it; the live leases.
async fn leases_of(
    path: &Path,
    conn: &mut SqliteConnection,
) -> Result<BTreeSet<LeaseId>, BackupError> {
    let rows = examine(&Config::new(path), conn).await?;
    let durable = Durable::load(load(&rows.tables).map_err(OpenError::from)?);
    if let Some(broken) = violations(&durable).into_iter().next() {
        return Err(BackupError::Broken {
            path: path.to_owned(),
            what: format!("{}: {}", broken.invariant, broken.detail),
        });
    }
    Ok(durable.leases().keys().copied().collect())
}

/// The copy in the ledger's folder, under no name of its own yet; for whoever owns that folder.
fn take_in(config: &Config, from: &Path) -> Result<NamedTempFile, BackupError> {
    let folder = config.folder();
    let taken = || -> io::Result<NamedTempFile> {
        let mut part = NamedTempFile::new_in(folder)?;
        io::copy(&mut File::open(from)?, part.as_file_mut())?;
        hand_over(part.as_file(), folder)?;
        Ok(part)
    };
    taken().map_err(|source| BackupError::Copy {
        path: config.path.clone(),
        source: source.into(),
    })
}

/// An error about the file that a person named, not about the one that we made of it.
fn about(error: BackupError, from: &Path) -> BackupError {
    match error {
        BackupError::Broken { what, .. } | BackupError::Open(OpenError::Damaged { what, .. }) => {
            BackupError::Broken {
                path: from.to_owned(),
                what,
            }
        }
        other => other,
    }
}

/// Whether the copy knows every live lease of the present ledger, as far as that can be read: a ledger that cannot is
/// why one restores.
async fn forgets_nothing(
    ledger: &Path,
    from: &Path,
    known: Option<&BTreeSet<LeaseId>>,
) -> Result<(), BackupError> {
    let (Some(known), Ok(())) = (known, must_exist("ledger", ledger)) else {
        return Ok(());
    };
    let present = async {
        let mut conn = read_only(ledger, false).await?;
        leases_of(ledger, &mut conn).await
    };
    match present.await {
        Ok(present) => {
            let leases: BTreeSet<LeaseId> = present.difference(known).copied().collect();
            if leases.is_empty() {
                return Ok(());
            }
            Err(BackupError::Forgets {
                path: from.to_owned(),
                leases,
            })
        }
        Err(error) => {
            tracing::warn!(%error, "the present ledger cannot be read, so nobody knows which leases the copy lacks");
            Ok(())
        }
    }
}

/// Moves the present ledger to a name of its own beside it. Its log is folded in first; where that fails (a damaged
/// file), it goes along.
async fn set_aside(config: &Config) -> Result<Option<PathBuf>, BackupError> {
    if must_exist("ledger", &config.path).is_err() {
        return Ok(None);
    }
    let options = SqliteConnectOptions::new().filename(&config.path);
    if let Ok(mut conn) = SqliteConnection::connect_with(&options).await {
        let folded = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut conn);
        drop(folded.await);
        drop(conn.close().await); // the last one that closes removes the log
    }
    let unix_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let aside = config.beside(&format!(".before-restore-{unix_s:012}"));
    for suffix in ["-wal", "-shm", ""] {
        let (from, to) = (config.beside(suffix), beside(&aside, suffix));
        match fs::rename(&from, &to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            moved => moved.map_err(|source| BackupError::Replace { path: from, source })?,
        }
    }
    Ok(Some(aside))
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
    File::open(folder(to))
        .and_then(|opened| opened.sync_all())
        .map_err(failed)
}
