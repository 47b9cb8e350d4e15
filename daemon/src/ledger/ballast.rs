//! Space on the ledger's disk: how much is left, and a file that is there to be deleted when none is.
//!
//! On a full disk nothing can be granted, but what ends must still end. Deleting the ballast gives SQLite room
//! to commit releases and expiries; it is made again when there is enough space for both.
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::posix_fallocate;
use nix::sys::statvfs::statvfs;

use super::Config;

/// Space on the ledger's disk, as seen just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that the daemon's user can still write.
    pub free_bytes: u64,
    /// Inodes left, as a share of 1000; 1000 where the file system has no such limit.
    pub free_inodes_permille: u64,
    /// Whether the ballast is in its place.
    pub ballast: bool,
    /// Whether there is enough for grants: `min_free_bytes`, 1 % of the inodes, and the ballast.
    pub enough: bool,
}

/// Grants stop when fewer inodes than this are left: SQLite and the backups need some.
const INODES_PERMILLE: u64 = 10;

/// The file.
#[derive(Clone, Debug)]
pub(super) struct Ballast {
    path: PathBuf,
    bytes: u64,
    min_free: u64,
}

impl Ballast {
    /// Beside the ledger.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            path: config.beside(".ballast"),
            bytes: config.ballast_bytes,
            min_free: config.min_free_bytes,
        }
    }
    fn is_there(&self) -> bool {
        self.bytes == 0 || fs::metadata(&self.path).is_ok_and(|m| m.len() == self.bytes)
    }
    /// Makes the file, if that leaves `min_free` beside it. Says whether it is there now.
    pub(super) fn make(&self) -> io::Result<bool> {
        if self.is_there() {
            return Ok(true);
        }
        if free(&self.path)?.0 < self.bytes.saturating_add(self.min_free) {
            return Ok(false);
        }
        let made = File::create(&self.path).and_then(|file| {
            let bytes = i64::try_from(self.bytes).map_err(io::Error::other)?;
            posix_fallocate(&file, 0, bytes).map_err(io::Error::from)
        });
        if made.is_err() {
            let _ = fs::remove_file(&self.path);
        }
        made.map(|()| true)
    }
    /// Deletes the file; says whether it was there.
    pub(super) fn free(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }
    /// Deletes the file if there is less space than `needed`; says whether that made room.
    pub(super) fn give_way(&self, needed: u64) -> bool {
        free(&self.path).is_ok_and(|(bytes, _)| bytes < needed) && self.free()
    }
    /// Looks.
    pub(super) fn space(&self) -> io::Result<Space> {
        let (free_bytes, free_inodes_permille) = free(&self.path)?;
        let ballast = self.is_there();
        Ok(Space {
            free_bytes,
            free_inodes_permille,
            ballast,
            enough: ballast
                && free_bytes >= self.min_free
                && free_inodes_permille >= INODES_PERMILLE,
        })
    }
}

/// Free bytes and inodes (in 1000ths) of the file system that `file` is to be on.
fn free(file: &Path) -> io::Result<(u64, u64)> {
    let stat = statvfs(file.parent().unwrap_or(Path::new(".")))?;
    let bytes = stat.blocks_available().saturating_mul(stat.fragment_size());
    let inodes = match stat.files() {
        0 => 1000,
        all => stat.files_available().saturating_mul(1000) / all,
    };
    Ok((bytes, inodes))
}
