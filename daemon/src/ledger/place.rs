//! Whether the ledger and its lock are still where they were opened. An open file outlives its name: a daemon whose
//! ledger was deleted commits on, into a file that no later start finds. The controller asks once a second.
//!
//! By device and inode: an inode is not given to another file while it is open, and both are open for as long as the
//! ledger is.
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Config;

/// What is not in its place any more, what that means, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// The next start would find another ledger, or none.
    #[error(
        "the ledger {} was deleted, moved or replaced while it is open: nothing new is granted, renewals and releases \
         go on. A restart now would forget every lease. If it was moved, move it back; if it is lost, let the jobs end \
         (evenkeel jobs, evenkeel leases) and restart the daemon only when no lease is left",
        .0.display()
    )]
    Ledger(PathBuf),
    /// The lock keeps nobody out any more.
    #[error(
        "the lock {} of the ledger was deleted, moved or replaced while it is held: a second daemon could grant the \
         same shares again, so nothing new is granted; renewals and releases go on. Move it back; or see that no \
         second daemon has this ledger, and restart this one (the leases stay)",
        .0.display()
    )]
    Lock(PathBuf),
}

/// Device and inode; none: there was nothing at the path.
type Id = Option<(u64, u64)>;

/// Both files, as they were opened.
#[derive(Debug)]
pub(super) struct Places {
    ledger: (PathBuf, Id),
    lock: (PathBuf, Id),
}

impl Places {
    /// To be made once both are open. `lock` is the open file.
    pub(super) fn of(config: &Config, lock: &fs::File) -> Self {
        Self {
            ledger: (config.path.clone(), at(&config.path)),
            lock: (config.beside(".lock"), lock.metadata().ok().map(id)),
        }
    }

    /// What is not in its place; the ledger before its lock, since its loss costs more.
    pub(super) fn misplaced(&self) -> Option<Misplaced> {
        let differs = |(path, opened): &(PathBuf, Id)| opened.is_none() || at(path) != *opened;
        if differs(&self.ledger) {
            Some(Misplaced::Ledger(self.ledger.0.clone()))
        } else if differs(&self.lock) {
            Some(Misplaced::Lock(self.lock.0.clone()))
        } else {
            None
        }
    }
}

fn at(path: &Path) -> Id {
    fs::metadata(path).ok().map(id)
}

fn id(file: Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}
