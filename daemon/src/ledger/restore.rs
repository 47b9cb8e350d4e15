//! Putting a copy in the ledger's place, for `evenkeeld restore`: no daemon may have the ledger meanwhile, and what is
//! there is kept beside it.
//!
//! The ledger that is there is read first. A share that a worker may use now must be counted in the copy, too, and no
//! number that was given (of a lease, a job, an event) is given again. What a crash leaves is said at [`put`].
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use evenkeel_core::lease::{Lease, Phase};
use evenkeel_core::state::Durable;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tempfile::NamedTempFile;

use super::backup::{BackupError, Copied, held, must_exist, read_only, sync_folder, verify};
use super::open::{make_folder, one_name, sniff, sqlite, take_lock};
use super::{Config, OpenError, SCHEMA, beside, hand_over};

/// What SQLite keeps beside a file and applies to whatever has that file's name at the next open.
const LOGS: [&str; 2] = ["-wal", "-journal"];
/// The index of the log, which SQLite makes again.
const INDEX: &str = "-shm";

/// What was restored, and what was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The ledger now.
    pub ledger: Copied,
    /// The ledger of before; none: there was none. Where only its log was left, the name that it would have had.
    pub aside: Option<PathBuf>,
    /// Why the ledger of before could not be read, so that its leases are forgotten and its numbers may come again.
    pub unread: Option<String>,
}

/// Puts a copy in the ledger's place. No daemon may have the ledger; what is there is kept beside it. `forget`: also if
/// live leases of the present ledger are unknown to the copy, or if nobody can tell.
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
    if has_log(from) {
        return Err(BackupError::HasLog {
            path: from.to_owned(),
        });
    }
    sniff(from, SCHEMA).map_err(|e| about(e.into(), from))?;
    make_folder(config.folder())?;
    config.path = one_name(&config)?;
    let _lock = take_lock(&config)?;
    let part = take_in(&config, from)?;
    let (copied, known) = verify(part.path()).await.map_err(|e| about(e, from))?;
    let present = Present::read(&config.path).await;
    if !forget {
        present.is_known_to(from, known.as_ref())?;
    }
    // What nobody can read keeps its log as it is: folding it in would change what is to be looked into.
    if let Present::Read(..) = present {
        fold(&config.path).await;
    }
    let failed = |source| BackupError::Replace {
        path: config.path.clone(),
        source,
    };
    if let Some(counters) = present.counters() {
        raise(part.path(), counters)
            .await
            .map_err(|e| about(e.into(), from))?;
    }
    // SQLite wrote to it by its name; this is the same file.
    part.as_file().sync_all().map_err(failed)?;
    let aside = put(&config, part).map_err(failed)?;
    Ok(Restored {
        ledger: Copied {
            path: config.path,
            ..copied
        },
        aside,
        unread: match present {
            Present::Unread(why) => Some(why),
            _ => None,
        },
    })
}

/// Whether part of what a file holds is in a log beside it.
fn has_log(path: &Path) -> bool {
    let holds = |end| beside(path, end).metadata().is_ok_and(|log| log.len() > 0);
    LOGS.into_iter().any(holds)
}

/// The numbers that a ledger has given: batch, next event, lease and job, starts.
type Counters = (i64, i64, i64, i64, i64);

/// What is in the ledger's place.
enum Present {
    Nothing,
    Read(Box<Durable>, Counters),
    /// And why.
    Unread(String),
}

impl Present {
    async fn read(path: &Path) -> Self {
        match path.metadata().map(|file| file.len()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Self::Nothing,
            // Opened, SQLite would remove the log of an empty file.
            Ok(0) if has_log(path) => return Self::Unread("it is empty, beside its log".into()),
            Ok(0) => return Self::Nothing,
            _ => {}
        }
        let read = async {
            // What a start refuses is none, whatever its log would make of it; a newer one may be readable.
            sniff(path, i64::MAX)?;
            let mut conn = read_only(path, false).await?;
            let read = whole(path, &mut conn).await;
            // Not just dropped: its end would come later, and leave a log beside the file.
            drop(conn.close().await);
            read
        };
        match read.await {
            Ok((durable, counters)) => Self::Read(Box::new(durable), counters),
            Err(error) => Self::Unread(error.to_string()),
        }
    }

    fn counters(&self) -> Option<Counters> {
        match self {
            Self::Read(_, counters) => Some(*counters),
            Self::Nothing | Self::Unread(_) => None,
        }
    }

    /// Whether the copy counts every share that somebody may use now.
    fn is_known_to(&self, from: &Path, copy: Option<&Durable>) -> Result<(), BackupError> {
        let unknown = |why| BackupError::Unknown {
            path: from.to_owned(),
            why,
        };
        let present = match self {
            Self::Nothing => return Ok(()),
            Self::Unread(why) => {
                return Err(unknown(format!(
                    "the present ledger cannot be read ({why})"
                )));
            }
            Self::Read(durable, _) => durable.leases(),
        };
        if present.is_empty() {
            return Ok(());
        }
        let Some(copy) = copy else {
            return Err(unknown(format!(
                "the copy has an older schema, whose leases only a start can read, and the present ledger has live \
                 ones ({})",
                present.len()
            )));
        };
        let is_unknown = |now: &&Lease| !knows(copy.leases().get(&now.id), now);
        let leases = present.values().filter(is_unknown).map(|now| now.id);
        match leases.collect::<std::collections::BTreeSet<_>>() {
            none if none.is_empty() => Ok(()),
            leases => Err(BackupError::Forgets {
                path: from.to_owned(),
                leases,
            }),
        }
    }
}

async fn whole(
    path: &Path,
    conn: &mut SqliteConnection,
) -> Result<(Durable, Counters), BackupError> {
    let durable = held(path, conn).await?;
    let counters =
        sqlx::query_as("SELECT batch, next_event, next_lease, next_job, epoch FROM counter")
            .fetch_one(conn)
            .await
            .map_err(|e| sqlite(path, e))?;
    Ok((durable, counters))
}

/// Whether a lease as it was `then` keeps from others what it has `now`. The number alone says nothing: a lease that
/// still waited then has a worker now.
fn knows(then: Option<&Lease>, now: &Lease) -> bool {
    let Some(then) = then else {
        return false;
    };
    // Before somebody holds it a lease can be granted anew: no worker uses it.
    let is_unused = matches!(now.phase, Phase::Queued | Phase::Pending);
    (&now.tenant, now.request) == (&then.tenant, then.request)
        && (is_unused
            || (now.fence == then.fence
                && now.phase.holder() == then.phase.holder()
                && now.counted().fits_in(&then.counted())))
}

/// The copy in the ledger's folder, under no name of its own yet; for whoever owns that folder.
fn take_in(config: &Config, from: &Path) -> Result<NamedTempFile, BackupError> {
    let taken = || -> io::Result<NamedTempFile> {
        let prefix = unfinished(config);
        forget_unfinished(config, &prefix);
        let mut part = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".part")
            .tempfile_in(config.folder())?;
        io::copy(&mut File::open(from)?, part.as_file_mut())?;
        hand_over(part.as_file(), config.folder())?;
        Ok(part)
    };
    taken().map_err(|source| BackupError::Copy {
        path: config.path.clone(),
        source: source.into(),
    })
}

/// How the name of a copy begins that is not whole yet.
fn unfinished(config: &Config) -> String {
    let name = config.path.file_name().unwrap_or_default();
    format!(".{}.restore-", name.to_string_lossy())
}

/// Removes what restores have left that were killed. Only one runs at a time: it has the ledger's lock.
fn forget_unfinished(config: &Config, prefix: &str) {
    let entries = fs::read_dir(config.folder()).into_iter().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(".part") {
            let _ = fs::remove_file(entry.path()); // the next one tries again
        }
    }
}

/// An error about the file that a person named, not about the one that we made of it.
fn about(error: BackupError, from: &Path) -> BackupError {
    let path = from.to_owned();
    let why = match error {
        BackupError::Broken { what, .. } | BackupError::Open(OpenError::Damaged { what, .. }) => {
            return BackupError::Broken { path, what };
        }
        BackupError::Open(OpenError::NotALedger { what, .. }) => format!("it is {what}"),
        BackupError::Open(OpenError::ReadOnly { source, .. }) => {
            format!("it cannot be read: {source}")
        }
        BackupError::Open(OpenError::Newer { found, known, .. }) => format!(
            "it has schema {found}, and this daemon knows up to {known}; restore it with the newer daemon"
        ),
        other => return other,
    };
    BackupError::NotACopy { path, why }
}

/// Folds a ledger's log into it, if that can be done.
async fn fold(path: &Path) {
    let options = SqliteConnectOptions::new().filename(path);
    if let Ok(mut conn) = SqliteConnection::connect_with(&options).await {
        let folded = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut conn);
        drop(folded.await);
        drop(conn.close().await); // the last one that closes removes the log
    }
}

/// Numbers go on from whichever ledger has given more: a worker, a client or a log may still name one of them.
async fn raise(path: &Path, to: Counters) -> Result<(), OpenError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .disable_statement_logging();
    let done = async {
        let mut conn = SqliteConnection::connect_with(&options).await?;
        let sql = "UPDATE counter SET batch = max(batch, ?), next_event = max(next_event, ?),
                next_lease = max(next_lease, ?), next_job = max(next_job, ?), epoch = max(epoch, ?)";
        let (batch, event, lease, job, epoch) = to;
        let numbers = [batch, event, lease, job, epoch].into_iter();
        let raised = numbers.fold(sqlx::query(sql), |query, n| query.bind(n));
        raised.execute(&mut conn).await?;
        conn.close().await
    };
    done.await.map_err(|e| sqlite(path, e))
}

/// Puts a file that is whole and on the disk in the ledger's place; where what was there is now.
///
/// A crash leaves, after each step, a ledger with its own log or one that no daemon takes, and everything that was there:
///
/// - *No ledger.* (1) The log that one has left is kept aside, too; (2) it goes, since SQLite would apply it to whatever
///   gets the name; (3) the new ledger has its name. Until then there was none, and there is none.
/// - *A ledger without a log.* (1) The new one is named as the old one will be: the old one is in its place. (2) Both
///   change names in one step of the file system: the new one is in its place. (A hard link would do as well, but a
///   ledger with two names is one that no daemon opens.)
/// - *A ledger with a log* (damaged, or else it would have been folded in). No step takes both away, so a stub goes
///   first: (1) the log is kept aside; (2) stub and ledger change names: a daemon refuses the stub, and `restore` can
///   be run again; (3) the log goes from beside the stub; (4) the new ledger has the stub's name.
fn put(config: &Config, part: NamedTempFile) -> io::Result<Option<PathBuf>> {
    let path = &config.path;
    let is_there = path.symlink_metadata().is_ok();
    let aside = free(config);
    if !has_log(path) {
        remove_logs(path)?; // empty ones, and the index
        if !is_there {
            part.persist_noclobber(path).map_err(|e| e.error)?;
            sync_folder(config.folder())?;
            return Ok(None);
        }
        part.persist_noclobber(&aside).map_err(|e| e.error)?;
        swap(config, &aside, exchange)?;
        return Ok(Some(aside));
    }
    keep_logs(path, &aside)?;
    if is_there {
        stub(config)?
            .persist_noclobber(&aside)
            .map_err(|e| e.error)?;
        swap(config, &aside, exchange)?;
    }
    sync_folder(config.folder())?;
    remove_logs(path)?;
    sync_folder(config.folder())?;
    part.persist(path).map_err(|e| e.error)?;
    sync_folder(config.folder())?;
    Ok(Some(aside))
}

/// A name beside the ledger that nothing has, the log's neither: two restores in a second are two.
fn free(config: &Config) -> PathBuf {
    let unix_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let is_free = |path: &PathBuf| {
        let none = |end| beside(path, end).symlink_metadata().is_err();
        none("") && LOGS.into_iter().all(none)
    };
    let first = config.beside(&format!(".before-restore-{unix_s:012}"));
    let mut names =
        std::iter::once(first.clone()).chain((2u64..).map(|n| beside(&first, &format!("-{n}"))));
    names.find(is_free).unwrap_or(first)
}

/// What a daemon refuses, and a person can read.
fn stub(config: &Config) -> io::Result<NamedTempFile> {
    let mut stub = NamedTempFile::new_in(config.folder())?;
    writeln!(
        stub,
        "`evenkeeld restore` was cut off here. The ledger of before and its log are beside this file, under names with \
         `before-restore`. Run it again."
    )?;
    hand_over(stub.as_file(), config.folder())?;
    stub.as_file().sync_all()?;
    Ok(stub)
}

/// Both names in one step: what has one name has the other afterwards.
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let flags = RenameFlags::RENAME_EXCHANGE;
    Ok(renameat2(AT_FDCWD, one, AT_FDCWD, other, flags)?)
}

/// The file at `aside` comes into the ledger's place, and the ledger to `aside`; both last. Where the file system cannot
/// exchange names (NFS, some of FUSE's) a copy of the ledger is kept: a crash leaves it as `….before-restore-part…`.
fn swap(
    config: &Config,
    aside: &Path,
    exchange: fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let (path, folder) = (&config.path, config.folder());
    sync_folder(folder)?;
    if exchange(aside, path).is_err() {
        let name = config.beside(".before-restore-part");
        let prefix = name.file_name().unwrap_or_default();
        let mut kept = tempfile::Builder::new()
            .prefix(prefix)
            .tempfile_in(folder)?;
        io::copy(&mut File::open(path)?, kept.as_file_mut())?;
        hand_over(kept.as_file(), folder)?;
        kept.as_file().sync_all()?;
        sync_folder(folder)?;
        fs::rename(aside, path)?;
        kept.persist_noclobber(aside).map_err(|e| e.error)?;
    }
    sync_folder(folder)
}

/// Gives the ledger's logs a second name, as `aside` has it; where links fail, a copy.
fn keep_logs(path: &Path, aside: &Path) -> io::Result<()> {
    for end in LOGS {
        let (from, to) = (beside(path, end), beside(aside, end));
        if from.symlink_metadata().is_err() || fs::hard_link(&from, &to).is_ok() {
            continue;
        }
        let mut kept = File::create_new(&to)?;
        io::copy(&mut File::open(&from)?, &mut kept)?;
        kept.sync_all()?;
    }
    Ok(())
}

fn remove_logs(path: &Path) -> io::Result<()> {
    for end in LOGS.into_iter().chain([INDEX]) {
        match fs::remove_file(beside(path, end)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_names_cannot_be_exchanged_the_old_one_is_kept_as_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(folder.path().join("ledger.db"));
        let aside = free(&config);
        for (way, how) in [
            ("exchanged", exchange as fn(&Path, &Path) -> _),
            ("copied", |_, _| Err(io::ErrorKind::Unsupported.into())),
        ] {
            fs::write(&config.path, "old").unwrap();
            fs::write(&aside, "new").unwrap();
            swap(&config, &aside, how).unwrap();
            assert_eq!(fs::read_to_string(&config.path).unwrap(), "new", "{way}");
            assert_eq!(fs::read_to_string(&aside).unwrap(), "old", "{way}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "{way}");
            assert_ne!(free(&config), aside, "{way}: it is never replaced");
        }
    }
}
