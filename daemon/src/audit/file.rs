//! A file of lines that is put aside when it is large, and opened anew when somebody has moved it away. What fails is
//! tried again and destroys nothing; meanwhile lines go where they went before.
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file of this size is put aside; so many of them are kept. With 300 bytes a line: some 200,000 refusals.
const FILE_MAX: u64 = 16 << 20;
const FILES_KEPT: u32 = 4;
/// One that cannot be put aside grows to this size and no further.
const FILE_LIMIT: u64 = 2 * FILE_MAX;
/// How often it is looked whether somebody moved the file away, and tried to put it aside.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// See the module's text.
pub(super) struct Rotating {
    path: PathBuf,
    lines: Lines<File>,
    size: u64,
    looked: Option<Instant>,
    stuck: Option<String>,
}

impl Rotating {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        Ok(Self {
            size: file.metadata()?.len(),
            path: path.to_owned(),
            lines: Lines::behind(file),
            looked: None,
            stuck: None,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Why the file is not where it should be; none: it is.
    pub(super) fn stuck(&self) -> Option<&str> {
        self.stuck.as_deref()
    }

    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let is_time = self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if is_time || (self.size >= FILE_MAX && self.stuck.is_none()) {
            self.looked = Some(Instant::now());
            self.stuck = self.look().err().map(|error| error.to_string());
        }
        if self.size >= FILE_LIMIT {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.lines.write(line)?;
        self.size += line.len() as u64;
        Ok(())
    }

    /// Sees to it that the path is this file, and not too large.
    fn look(&mut self) -> io::Result<()> {
        if !is_same(&self.path, &self.lines.to) {
            let file = open(&self.path)?;
            self.size = file.metadata()?.len();
            self.lines = Lines::behind(file);
        }
        if self.size >= FILE_MAX {
            self.put_aside()?;
        }
        Ok(())
    }

    fn put_aside(&mut self) -> io::Result<()> {
        // First: without a new file, the old one stays in its place.
        let new = named(&self.path, "new");
        let file = open(&new)?;
        // Up to a gap, which a try that failed may have left: what was moved then is not moved once more.
        let gap = (1..FILES_KEPT).find(|n| !numbered(&self.path, *n).exists());
        for n in (1..gap.unwrap_or(FILES_KEPT)).rev() {
            rename(&numbered(&self.path, n), &numbered(&self.path, n + 1))?;
        }
        rename(&self.path, &numbered(&self.path, 1))?;
        std::fs::rename(&new, &self.path)?;
        self.size = file.metadata()?.len();
        self.lines = Lines::behind(file);
        Ok(())
    }
}

/// What is not there has been moved already.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Lines, each by itself: one that was written in part only, on a full disk say, does not become the beginning of the
/// next.
struct Lines<W> {
    to: W,
    torn: bool,
}

impl Lines<File> {
    /// Behind what is in the file: a daemon that was killed may have left a part of a line.
    fn behind(mut file: File) -> Self {
        let mut last = [b'\n'];
        let is_regular = file.metadata().is_ok_and(|m| m.is_file());
        if is_regular && file.seek(SeekFrom::End(-1)).is_ok() {
            let _ = file.read_exact(&mut last); // nothing of it is known, then
        }
        Self {
            to: file,
            torn: last != [b'\n'],
        }
    }
}

impl<W: Write> Lines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.to.write_all(b"\n")?;
        }
        self.torn = true;
        self.to.write_all(line)?;
        self.torn = false;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.create(true).append(true).read(true).mode(0o640);
    options.open(path)
}

fn is_same(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(there), Ok(ours)) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        _ => false,
    }
}

fn numbered(path: &Path, n: u32) -> PathBuf {
    named(path, &n.to_string())
}

fn named(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    #[test]
    fn a_large_file_is_put_aside_and_a_moved_one_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut file = Rotating::open(&path).unwrap();
        for n in 0..6 {
            file.size = FILE_MAX;
            file.write(format!("{n}\n").as_bytes()).unwrap();
        }
        assert_eq!(read(&path).as_deref(), Some("5\n"));
        assert_eq!(read(&numbered(&path, 1)).as_deref(), Some("4\n"));
        assert_eq!(read(&numbered(&path, 4)).as_deref(), Some("1\n"));
        assert_eq!(read(&numbered(&path, 5)), None, "so many are kept");

        std::fs::remove_file(&path).unwrap();
        file.looked = None;
        file.write(b"new\n").unwrap();
        assert_eq!(read(&path).as_deref(), Some("new\n"));
    }

    #[test]
    fn what_cannot_be_put_aside_is_tried_again_and_destroys_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for n in 1..=FILES_KEPT {
            std::fs::write(numbered(&path, n), format!("old {n}\n")).unwrap();
        }
        let mut file = Rotating::open(&path).unwrap();
        // Nothing can be opened there: it is a folder.
        let new = named(&path, "new");
        std::fs::create_dir(&new).unwrap();
        for n in 0..3 {
            (file.size, file.looked) = (FILE_MAX, None);
            file.write(format!("{n}\n").as_bytes()).unwrap();
            assert!(file.stuck().is_some());
        }
        assert_eq!(read(&path).as_deref(), Some("0\n1\n2\n"));
        for n in 1..=FILES_KEPT {
            let old = format!("old {n}\n");
            assert_eq!(read(&numbered(&path, n)), Some(old));
        }
        file.size = FILE_LIMIT;
        assert!(file.write(b"too much\n").is_err());
        std::fs::remove_dir(&new).unwrap();
        file.looked = None;
        file.write(b"3\n").unwrap();
        assert_eq!(file.stuck(), None);
        assert_eq!(read(&path).as_deref(), Some("3\n"));
        assert_eq!(read(&numbered(&path, 1)).as_deref(), Some("0\n1\n2\n"));
        assert_eq!(read(&numbered(&path, 2)).as_deref(), Some("old 1\n"));
    }

    #[test]
    fn a_try_that_failed_halfway_moves_nothing_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        // As it is when the old ones were moved, and the file itself could not be.
        for n in 2..=FILES_KEPT {
            std::fs::write(numbered(&path, n), format!("old {n}\n")).unwrap();
        }
        let mut file = Rotating::open(&path).unwrap();
        file.size = FILE_MAX;
        file.write(b"new\n").unwrap();
        for n in 2..=FILES_KEPT {
            let old = format!("old {n}\n");
            assert_eq!(read(&numbered(&path, n)), Some(old));
        }
    }

    /// Takes so many bytes, and then nothing until it has room again.
    struct Disk {
        has: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= n;
            self.has.extend(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_part_of_a_line_does_not_begin_the_next() {
        let (has, room) = (Vec::new(), 4);
        let mut lines = Lines {
            to: Disk { has, room },
            torn: false,
        };
        assert!(lines.write(b"first\n").is_err());
        assert!(lines.write(b"second\n").is_err());
        lines.to.room = 100;
        lines.write(b"third\n").unwrap();
        lines.write(b"fourth\n").unwrap();
        assert_eq!(lines.to.has, b"firs\nthird\nfourth\n");

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, "killed in the mid").unwrap();
        Rotating::open(&path).unwrap().write(b"next\n").unwrap();
        assert_eq!(read(&path).as_deref(), Some("killed in the mid\nnext\n"));
    }
}
