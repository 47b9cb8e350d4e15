//! A small file system that can be filled: a tmpfs of its own (needs root).
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A mounted tmpfs.
pub(crate) struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one with some times the ballast that the daemons of this program keep, and more than the space below which
    /// they grant nothing.
    pub(crate) fn new() -> anyhow::Result<Self> {
        const SIZE: &str = "size=512m";
        let dir = tempfile::tempdir()?;
        mount(
            Some("tmpfs"),
            dir.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(SIZE),
        )
        .context("cannot mount a tmpfs; this line needs root")?;
        Ok(Self { dir })
    }
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
    /// Fills it to the last byte.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        let mut file = fs::File::create(self.path().join("filler"))?;
        for size in [1 << 20, 1 << 12, 1] {
            while file.write_all(&vec![0u8; size]).is_ok() {}
        }
        Ok(())
    }
    /// Gives the space back.
    pub(crate) fn free(&self) -> anyhow::Result<()> {
        fs::remove_file(self.path().join("filler")).context("cannot free the disk")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(self.dir.path(), MntFlags::MNT_DETACH);
    }
}
