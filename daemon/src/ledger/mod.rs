//! The ledger: what must survive a crash, in one SQLite file. The only SQL of the project is below here.
//!
//! Not decisions (the core makes them) and not truth about hardware (backends look). The controller opens it,
//! folds each step's events into a [`Batch`] and commits that as one transaction before anything of the step
//! leaves the daemon. Plain tables are the truth; events are an audit trail; start-up is SELECT, never replay.
//!
//! ```text
//! let Opened { mut ledger, loaded } = ledger::open(config).await?;   // lock, check, migrate, read, audit
//! let batch = ledger::fold(&step.events, &state.durable, unix_ms);   // pure: events -> rows
//! match ledger.commit(&batch).await {                                // one transaction, one thread hop
//!     Ok(()) => publish(step),
//!     Err(e) if e.is_absent() => step.undo(),                        // full, refused, unavailable
//!     Err(_) => exit(1),                                             // in doubt: start-up finds out
//! }
//! ```
mod backup;
mod ballast;
mod error;
mod fold;
mod history;
mod load;
mod open;
mod place;
mod read;
mod restore;
mod rows;
mod schema;
mod sql;
mod tables;
mod write;

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use backup::{BackupError, Copied, back_up};
pub use ballast::Space;
pub use error::{CommitError, HistoryError, OpenError};
pub use fold::{Batch, NodeRows, fold};
pub use history::{DECISIONS, EventRecord, History, PAGE_MAX, Page};
pub use load::{Corrupt, load};
pub use open::{Loaded, Opened, open, open_with};
pub use place::Misplaced;
pub use restore::{Restored, restore};
pub use rows::{
    CoreOwnerRow, EndedRow, EventRow, JobRow, LeaseGpuRow, LeaseRow, NodeRow, PointRow, RequestKey,
    RequestRow, SlotGpuRow, SlotRow, UnavailableGpuRow,
};
pub use schema::Schema;
pub use tables::{Refusal, Tables};
pub use write::Ledger;

#[cfg(test)]
pub(crate) use open::lock_as_another;

/// The oldest SQLite that may be linked: before it, two connections that checkpoint and commit at once could
/// lose commits (the WAL-reset bug, 3.7.0 to 3.51.2).
pub const SQLITE_LEAST: &str = "3.51.3";
/// "EVKL", in the file's header: this is a ledger of ours.
pub const APPLICATION_ID: i64 = 0x4556_4b4c;
/// The newest schema that this daemon knows: the number of the last file in `migrations/`.
pub const SCHEMA: i64 = 3;

/// Where the ledger is and what it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The SQLite file. Its lock, ballast and backups lie beside it.
    pub path: PathBuf,
    /// Size of the file that is deleted when the disk is full; 0: none.
    pub ballast_bytes: u64,
    /// Below so many free bytes [`Space::enough`] is false, and the controller, which looks at the start and
    /// each second, grants nothing.
    pub min_free_bytes: u64,
    /// How long another process's lock on the file is waited for (a person with `sqlite3`, say).
    pub busy_timeout: Duration,
}

impl Config {
    /// A ledger at `path` with the defaults: 64 MiB of ballast (over a million releases), grants stop below
    /// 256 MiB (a WAL that a reader pins, and a backup, fit in), locks are waited for 5 s.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            ballast_bytes: 64 << 20,
            min_free_bytes: 256 << 20,
            busy_timeout: Duration::from_secs(5),
        }
    }
    /// A file beside the ledger: its name with `suffix`.
    fn beside(&self, suffix: &str) -> PathBuf {
        beside(&self.path, suffix)
    }
    fn folder(&self) -> &Path {
        folder(&self.path)
    }
}

/// A file beside another: its name with `suffix`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// What root makes beside the ledger (a lock, a restored ledger) belongs to whoever owns the folder: the daemon, which may
/// be another user.
fn hand_over(file: &File, folder: &Path) -> io::Result<()> {
    let (own, owner) = (file.metadata()?, folder.metadata()?);
    if (own.uid(), own.gid()) == (owner.uid(), owner.gid()) || !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}
