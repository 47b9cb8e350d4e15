//! Opening the ledger: one daemon per file, a file of ours, a SQLite that can be trusted, settings that took,
//! an up-to-date schema (backed up before it changes), rows that agree. Anything else is a refusal to start
//! that says what to do.
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};

use evenkeel_core::id::LeaseId;
use evenkeel_core::state::Parts;
use evenkeel_core::unit::Time;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::statfs;
use sqlx::migrate::MigrateError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row, SqliteConnection};

use super::ballast::Ballast;
use super::error::{CORRUPT, NOTADB, READONLY, primary};
use super::read::{self, Rows};
use super::schema::{BOOKKEEPING, Schema};
use super::write::Ledger;
use super::{APPLICATION_ID, Config, OpenError, SQLITE_LEAST, beside, hand_over, load};

/// With less free space than this an error at the start is put down to it: SQLite's index of the write-ahead log,
/// and what the first transactions add to that log.
const OPEN_NEEDS_BYTES: u64 = 1 << 20;
/// Backups kept beside the ledger.
const BACKUPS: usize = 3;
/// Statement texts kept prepared: one for each set of tables that batches touch; there are few dozen.
const STATEMENTS: usize = 256;

/// An open ledger and what it held.
#[derive(Debug)]
pub struct Opened {
    /// For writing.
    pub ledger: Ledger,
    /// As read at start.
    pub loaded: Loaded,
}

/// What the ledger held at start.
#[derive(Debug)]
pub struct Loaded {
    /// The durable state's parts. Run `invariant::violations` on what they make.
    pub parts: Parts,
    /// Leases that nobody has renewed since an earlier start, and since when (BOOTTIME of the boot in `boot_id`).
    pub unrenewed: BTreeMap<LeaseId, Time>,
    /// Up to when the last life counts against those (BOOTTIME); none: not noted.
    pub alive: Option<Time>,
    /// The boot that the ledger was last written in; none: it is new.
    pub boot_id: Option<String>,
    /// How often a daemon has started on this ledger, this start included.
    pub epoch: u64,
    /// Batches committed so far.
    pub batches: u64,
    /// What an admin should know: an unusual file system, say.
    pub warnings: Vec<String>,
}

/// Opens the ledger, creating it if there is none. The lock is held until the [`Ledger`] is dropped.
pub async fn open(config: Config) -> Result<Opened, OpenError> {
    open_with(config, &Schema::ours()).await
}

/// The same as a daemon would whose schema this is: for tests of what an upgrade does.
pub async fn open_with(mut config: Config, schema: &Schema) -> Result<Opened, OpenError> {
    make_folder(config.folder())?;
    config.path = one_name(&config)?;
    let lock = take_lock(&config)?;
    let warnings = judge_file_system(&config);
    sniff(&config.path, schema.newest())?;
    has_its_file(&config.path)?;
    let (conn, rows) = match prepare(&config, schema).await {
        Err(error) if Ballast::of(&config).give_way(OPEN_NEEDS_BYTES) => {
            tracing::warn!(%error, "the disk of the ledger is full; it is opened on the ballast's space");
            prepare(&config, schema).await?
        }
        done => done?,
    };
    let parts = load(&rows.tables)?;
    let mut ledger = Ledger::new(config, lock, conn, rows.tables.batch, rows.next_event);
    let epoch = ledger.start_epoch().await.map_err(OpenError::Epoch)?;
    let loaded = Loaded {
        parts,
        unrenewed: rows.tables.unrenewed,
        alive: rows.tables.alive,
        boot_id: rows.boot_id,
        epoch,
        batches: rows.tables.batch,
        warnings,
    };
    Ok(Opened { ledger, loaded })
}

/// Connects, brings the schema up to date, reads all.
async fn prepare(config: &Config, schema: &Schema) -> Result<(SqliteConnection, Rows), OpenError> {
    let mut conn = connect(config).await?;
    migrate(config, &mut conn, schema).await?;
    let rows = examine(config, &mut conn).await?;
    Ok((conn, rows))
}

pub(super) fn make_folder(path: &Path) -> Result<(), OpenError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|source| OpenError::Folder {
        path: path.to_owned(),
        source,
    })
}

/// The one path of the ledger, however it is named: what lies beside it (the lock, SQLite's own files) is found by the
/// path, and two daemons that come by different links must find the same.
pub(super) fn one_name(config: &Config) -> Result<PathBuf, OpenError> {
    let failed = |source| OpenError::Folder {
        path: config.path.clone(),
        source,
    };
    let path = match config.path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = config.folder().canonicalize().map_err(failed)?;
            folder.join(config.path.file_name().unwrap_or_default())
        }
        Err(error) => return Err(failed(error)),
    };
    match fs::metadata(&path) {
        Ok(file) if file.is_file() && file.nlink() > 1 => Err(OpenError::Linked { path }),
        _ => Ok(path),
    }
}

/// One daemon per ledger: an advisory lock on a file of its own. (A lock on the database itself would be lost
/// when any of its descriptors is closed.)
pub(super) fn take_lock(config: &Config) -> Result<Flock<File>, OpenError> {
    let path = config.beside(".lock");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .truncate(false)
        .open(&path);
    let mut file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly {
                path: config.path.clone(),
                source: source.into(),
            }
        }
        _ => OpenError::Lock {
            path: path.clone(),
            source,
        },
    })?;
    // Where that fails, whoever cannot open it later says so.
    let _ = hand_over(&file, config.folder());
    let mut pid = String::new();
    let _ = (&mut file).take(32).read_to_string(&mut pid);
    let mut lock =
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => OpenError::InUse {
                path: config.path.clone(),
                pid: pid.trim().to_owned(),
            },
            _ => OpenError::Lock {
                path: path.clone(),
                source: errno.into(),
            },
        })?;
    // For people only, so a failure (a full disk) changes nothing.
    let _ = lock.set_len(0).and_then(|()| {
        io::Seek::rewind(&mut *lock)?;
        writeln!(lock, "{}", std::process::id())
    });
    Ok(lock)
}

/// File systems on which SQLite's locks or `fsync` do not mean what the ledger needs them to mean.
fn judge_file_system(config: &Config) -> Vec<String> {
    let Ok(stat) = statfs(config.folder()) else {
        return Vec::new();
    };
    let (name, why) = match stat.filesystem_type().0 {
        0x6969 => ("NFS", "its locks and its order of writes are not SQLite's"),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => {
            ("SMB", "its locks and its order of writes are not SQLite's")
        }
        0x0102_1997 => ("9p", "its locks and its order of writes are not SQLite's"),
        0x794c_7630 => ("an overlay", "a container's layer goes with the container"),
        0x0102_1994 | 0x8584_58f6 => (
            "memory (tmpfs)",
            "leases will not survive a restart of the machine",
        ),
        _ => return Vec::new(),
    };
    let text = format!(
        "the ledger {} is on {name}: {why}; use a local disk",
        config.path.display()
    );
    tracing::warn!(path = %config.path.display(), file_system = name, "{text}");
    vec![text]
}

/// A log without its ledger is what was committed last before somebody lost the file. SQLite would remove it. (A new
/// ledger is never so: its first page is in the file before there is a log.)
fn has_its_file(path: &Path) -> Result<(), OpenError> {
    let is_empty = path.metadata().map_or(0, |file| file.len()) == 0;
    let log = beside(path, "-wal");
    match log.metadata() {
        Ok(found) if is_empty && found.len() > 0 => Err(OpenError::LogAlone {
            path: path.to_owned(),
            log,
        }),
        _ => Ok(()),
    }
}

/// Looks at the file's first 100 bytes before SQLite may write to it. (What an unfinished WAL says is asked
/// again through SQLite.)
pub(super) fn sniff(path: &Path, known: i64) -> Result<(), OpenError> {
    let mut header = [0; 100];
    let read = File::open(path).and_then(|mut file| file.read(&mut header));
    let length = match read {
        Ok(length) => length,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => {
            return Err(OpenError::ReadOnly {
                path: path.to_owned(),
                source: e.into(),
            });
        }
    };
    if length == 0 {
        return Ok(());
    }
    if length < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(OpenError::NotALedger {
            path: path.to_owned(),
            what: "not an SQLite database",
        });
    }
    let number = |at: usize| {
        i64::from(u32::from_be_bytes([
            header[at],
            header[at + 1],
            header[at + 2],
            header[at + 3],
        ]))
    };
    judge(path, number(68), number(60), true, known)
}

/// Whether a file with this application id and schema is one that we may open, who know schemas up to `known`.
pub(super) fn judge(
    path: &Path,
    application: i64,
    schema: i64,
    is_empty: bool,
    known: i64,
) -> Result<(), OpenError> {
    let path = path.to_owned();
    match application {
        APPLICATION_ID if schema > known => Err(OpenError::Newer {
            path,
            found: schema,
            known,
        }),
        APPLICATION_ID => Ok(()),
        0 if is_empty => Ok(()),
        _ => Err(OpenError::NotALedger {
            path,
            what: "another program's SQLite database",
        }),
    }
}

/// Settings of the writing connection: name, value to set, value to read back.
const PRAGMAS: [(&str, &str, &str); 12] = [
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", "2"), // an acknowledged grant survives a power cut
    ("foreign_keys", "ON", "1"),
    ("recursive_triggers", "ON", "1"),
    ("trusted_schema", "OFF", "0"),
    ("cell_size_check", "ON", "1"),
    ("mmap_size", "0", "0"), // an I/O error must be an error, not a signal
    ("wal_autocheckpoint", "1000", "1000"),
    ("journal_size_limit", "67108864", "67108864"),
    ("temp_store", "MEMORY", "2"),
    ("cache_size", "-8192", "-8192"), // KiB: the pages of 10,000 leases and the ends of the indices stay
    ("query_only", "OFF", "0"),
];

/// Opens the writing connection and reads its settings back. Also used after a full disk.
pub(super) async fn connect(config: &Config) -> Result<SqliteConnection, OpenError> {
    let mut options = SqliteConnectOptions::new()
        .filename(&config.path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(config.busy_timeout)
        .statement_cache_capacity(STATEMENTS)
        .thread_name(|_| "ledger".to_owned())
        .disable_statement_logging();
    for (name, value, _) in PRAGMAS {
        options = options.pragma(name, value);
    }
    let failed = |e| sqlite(&config.path, e);
    let mut conn = SqliteConnection::connect_with(&options)
        .await
        .map_err(failed)?;
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(&mut conn)
        .await
        .map_err(failed)?;
    if numbers(&version) < numbers(SQLITE_LEAST) {
        return Err(OpenError::OldSqlite { found: version });
    }
    for (name, _, wanted) in PRAGMAS {
        let found = pragma(&mut conn, name).await.map_err(failed)?;
        if found != wanted {
            return Err(OpenError::Pragma {
                name,
                wanted: wanted.to_owned(),
                found,
            });
        }
    }
    Ok(conn)
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|n| n.parse().unwrap_or(0)).collect()
}

/// A setting's value, as text.
async fn pragma(conn: &mut SqliteConnection, name: &str) -> Result<String, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!("PRAGMA {name}")))
        .fetch_one(conn)
        .await?;
    row.try_get_unchecked(0) // numbers too
}

/// A setting's value, as a number; -1 where it is none.
pub(super) async fn integer(
    path: &Path,
    conn: &mut SqliteConnection,
    name: &str,
) -> Result<i64, OpenError> {
    let text = pragma(conn, name).await.map_err(|e| sqlite(path, e))?;
    Ok(text.parse().unwrap_or(-1))
}

/// What an error of SQLite at start means.
pub(super) fn sqlite(path: &Path, source: sqlx::Error) -> OpenError {
    let path = path.to_owned();
    match primary(&source) {
        NOTADB => OpenError::NotALedger {
            path,
            what: "not an SQLite database",
        },
        CORRUPT => OpenError::Damaged {
            path,
            what: source.to_string(),
        },
        READONLY => OpenError::ReadOnly {
            path,
            source: source.into(),
        },
        _ => OpenError::Connect { path, source },
    }
}

/// Refuses foreign and newer files, backs an older one up, and brings its schema up to date.
async fn migrate(
    config: &Config,
    conn: &mut SqliteConnection,
    ours: &Schema,
) -> Result<(), OpenError> {
    let failed = |e| sqlite(&config.path, e);
    let (application, schema) = (
        integer(&config.path, conn, "application_id").await?,
        integer(&config.path, conn, "user_version").await?,
    );
    // A daemon that was killed in the first moment of a new ledger has left only the migrator's own table.
    let objects: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE tbl_name <> ?")
        .bind(BOOKKEEPING)
        .fetch_one(&mut *conn)
        .await
        .map_err(failed)?;
    judge(
        &config.path,
        application,
        schema,
        objects == 0,
        ours.newest(),
    )?;
    if objects > 0 && schema < ours.newest() {
        back_up(config, conn, schema).await?;
    }
    ours.apply(conn).await.map_err(|e| match e {
        // Damage shows at the first page that the migrator reads.
        MigrateError::Execute(e) | MigrateError::ExecuteMigration(e, _)
            if matches!(primary(&e), CORRUPT | NOTADB | READONLY) =>
        {
            failed(e)
        }
        other => OpenError::Migrate(Box::new(other)),
    })
}

/// Copies the ledger to a file beside it, whole and synced, and drops the oldest copies. A copy that has the same in it
/// is enough: a change that fails at each start would otherwise push out those of before.
async fn back_up(
    config: &Config,
    conn: &mut SqliteConnection,
    schema: i64,
) -> Result<(), OpenError> {
    let unix_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let named = |second: u64| config.beside(&format!(".backup-{second:012}-schema-{schema}"));
    let mut names = (unix_s..).map(named);
    let path = names
        .find(|path| path.symlink_metadata().is_err())
        .unwrap_or_else(|| named(unix_s));
    let part = config.beside(".backup-part");
    let failed = |source| OpenError::Backup {
        path: path.clone(),
        source,
    };
    let found = backups(config);
    let now = written(conn).await.ok();
    for (_, of_schema, copy) in found.iter().rev() {
        if *of_schema == schema && is_copy(copy, schema, now).await {
            tracing::info!(path = %copy.display(), schema, "the ledger is backed up already as it is");
            return Ok(());
        }
    }
    let _ = fs::remove_file(&part);
    sqlx::query("VACUUM INTO ?")
        .bind(part.to_string_lossy().into_owned())
        .execute(conn)
        .await
        .map_err(|e| failed(e.into()))?;
    let moved = File::open(&part)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&part, &path))
        .and_then(|()| File::open(config.folder())?.sync_all());
    moved.map_err(|e| failed(e.into()))?;
    tracing::info!(path = %path.display(), schema, "the ledger is backed up before its schema changes");
    // Those of before, less what this one takes the place of; it is not among them, wherever the clock has put it.
    let too_many = (found.len() + 1).saturating_sub(BACKUPS);
    let old = found.iter().take(too_many);
    old.for_each(|(_, _, path)| drop(fs::remove_file(path)));
    Ok(())
}

/// What tells two moments of a ledger apart: its batches, and starts on it.
async fn written(conn: &mut SqliteConnection) -> Result<(i64, i64), sqlx::Error> {
    sqlx::query_as("SELECT batch, epoch FROM counter")
        .fetch_one(conn)
        .await
}

/// Whether a file is a ledger of this schema at this moment.
async fn is_copy(path: &Path, schema: i64, now: Option<(i64, i64)>) -> bool {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .immutable(true)
        .disable_statement_logging();
    let Ok(mut conn) = SqliteConnection::connect_with(&options).await else {
        return false;
    };
    let same = integer(path, &mut conn, "user_version").await.ok() == Some(schema)
        && now.is_some()
        && written(&mut conn).await.ok() == now;
    drop(conn.close().await);
    same
}

/// Backups beside the ledger, as we name them and nobody else: when, of which schema; the oldest first.
fn backups(config: &Config) -> Vec<(u64, i64, PathBuf)> {
    let stem = config.beside(".backup-");
    let stem = stem.file_name().unwrap_or_default().to_string_lossy();
    let of = |name: &str| {
        let (second, schema) = name.strip_prefix(&*stem)?.split_once("-schema-")?;
        let (at, schema) = (second.parse().ok()?, schema.parse().ok()?);
        // Written again it is the same: no sign, no blank, no `-wal` behind it.
        (name == format!("{stem}{at:012}-schema-{schema}")).then_some((at, schema))
    };
    let listed = fs::read_dir(config.folder())
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<(u64, i64, PathBuf)> = listed
        .filter_map(|entry| {
            let name = entry.file_name();
            let (at, schema) = of(name.to_str()?)?;
            Some((at, schema, config.path.with_file_name(name)))
        })
        .collect();
    found.sort();
    found
}

/// Checks the pages of what the daemon needs, reads it, and compares the counts that triggers keep with the
/// rows that they count. (Not the audit trail: it may be large and nothing depends on it.)
pub(super) async fn examine(
    config: &Config,
    conn: &mut SqliteConnection,
) -> Result<Rows, OpenError> {
    for table in read::TABLES {
        let sql = format!("PRAGMA quick_check('{table}')");
        let said: String = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&mut *conn)
            .await
            .map_err(|e| sqlite(&config.path, e))?;
        if said != "ok" {
            return Err(OpenError::Damaged {
                path: config.path.clone(),
                what: said,
            });
        }
    }
    let rows = read::read(conn).await?;
    rows.audit()?;
    Ok(rows)
}

/// Holds the lock on the file until it is dropped, as a person with `sqlite3` could.
#[cfg(test)]
pub(crate) async fn lock_as_another(config: &Config) -> Result<SqliteConnection, OpenError> {
    let mut other = connect(config).await?;
    let locked = sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await;
    locked.map_err(|e| sqlite(&config.path, e))?;
    Ok(other)
}
