//! Refusals at the doors as JSON lines: who came, by which door, what was refused, and why.
//!
//! Beside the ledger's audit trail, not in it: what happened to leases and jobs is there, in the transaction that made
//! it happen. Strangers must not fill a ledger, so their lines go to a file of their own, of bounded size, at a bounded
//! rate; what was left out is counted. Nobody waits for it.
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Lines that wait for the disk; more are counted and left out.
const WAITING_MAX: usize = 1_024;
/// Lines a second that are written, over [`BURST`]: a flood of refusals is one finding, not a million.
const PER_SECOND: f64 = 50.0;
/// Lines that are written at once after a quiet time.
const BURST: f64 = 500.0;
/// A file of this size is put aside; so many of them are kept. With 300 bytes a line: some 200,000 refusals.
const FILE_MAX: u64 = 16 << 20;
const FILES_KEPT: u32 = 4;
/// How often it is looked whether somebody moved the file away.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `unix`, `tls`, `tcp` or `rest`.
    pub door: &'static str,
    /// Where the connection is from: an address, or a uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Who it is: a tenant, or what a certificate says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// What was asked: a method or a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// For machines.
    pub reason: String,
    /// For people.
    pub why: String,
}

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    unix_ms: u64,
    kind: &'static str,
    #[serde(flatten)]
    refusal: &'a Refusal,
    /// Refusals since the line before that were not written.
    #[serde(skip_serializing_if = "is_zero")]
    left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Where refusals go. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Audit(Option<SyncSender<Refusal>>);

impl Audit {
    /// Nowhere.
    pub const fn off() -> Self {
        Self(None)
    }

    /// To this file, written by a thread of its own that ends with the last clone.
    ///
    /// # Errors
    /// When the file cannot be opened: a door whose refusals nobody can read later is not opened.
    pub fn to(path: &Path) -> io::Result<Self> {
        let file = Rotating::open(path)?;
        let (lines, waiting) = sync_channel(WAITING_MAX);
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(file, &waiting))?;
        Ok(Self(Some(lines)))
    }

    /// Notes a refusal. Never waits.
    pub fn refused(&self, refusal: Refusal) {
        let labels = [
            ("door", refusal.door.to_owned()),
            ("reason", refusal.reason.clone()),
        ];
        metrics::counter!("evenkeel_door_refusals_total", &labels).increment(1);
        if let Some(lines) = &self.0
            && lines.try_send(refusal).is_err()
        {
            left_out(1);
        }
    }
}

fn left_out(n: u64) {
    metrics::counter!("evenkeel_audit_lines_left_out_total").increment(n);
}

fn write_all(mut file: Rotating, waiting: &Receiver<Refusal>) {
    let mut pace = Pace::new(Instant::now());
    let mut skipped = 0;
    while let Ok(refusal) = waiting.recv() {
        if !pace.may(Instant::now()) {
            skipped += 1;
            left_out(1);
            continue;
        }
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let line = Line {
            unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            kind: "refused",
            refusal: &refusal,
            left_out: skipped,
        };
        let Ok(mut text) = serde_json::to_vec(&line) else {
            continue;
        };
        text.push(b'\n');
        match file.write(&text) {
            Ok(()) => skipped = 0,
            // A full disk, say. The log has the first of each run of failures.
            Err(error) => {
                if skipped == 0 {
                    tracing::warn!(%error, path = %file.path.display(), "a refusal could not be written down");
                }
                skipped += 1;
                left_out(1);
            }
        }
    }
}

/// A token bucket.
struct Pace {
    tokens: f64,
    at: Instant,
}

impl Pace {
    const fn new(now: Instant) -> Self {
        Self {
            tokens: BURST,
            at: now,
        }
    }
    fn may(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * PER_SECOND;
        self.tokens = (self.tokens + more).min(BURST);
        self.at = now;
        let may = self.tokens >= 1.0;
        if may {
            self.tokens -= 1.0;
        }
        may
    }
}

/// A file that is put aside when it is large, and opened anew when somebody has moved it away.
struct Rotating {
    path: PathBuf,
    file: File,
    size: u64,
    looked: Instant,
}

impl Rotating {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        Ok(Self {
            size: file.metadata()?.len(),
            path: path.to_owned(),
            file,
            looked: Instant::now(),
        })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.size >= FILE_MAX {
            self.put_aside()?;
        } else if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            if !is_same(&self.path, &self.file) {
                *self = Self::open(&self.path)?;
            }
        }
        self.file.write_all(line)?;
        self.size += line.len() as u64;
        Ok(())
    }

    fn put_aside(&mut self) -> io::Result<()> {
        for n in (1..FILES_KEPT).rev() {
            let _ = std::fs::rename(numbered(&self.path, n), numbered(&self.path, n + 1)); // not there yet
        }
        std::fs::rename(&self.path, numbered(&self.path, 1))?;
        *self = Self::open(&self.path)?;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o640).open(path)
}

fn is_same(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(there), Ok(ours)) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        _ => false,
    }
}

fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_written_at_a_bounded_rate() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let written = |pace: &mut Pace, at| (0..10_000).filter(|_| pace.may(at)).count();
        assert_eq!(written(&mut pace, start), 500);
        assert_eq!(written(&mut pace, start + Duration::from_secs(2)), 100);
        assert_eq!(written(&mut pace, start + Duration::from_secs(3_600)), 500);
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
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        assert_eq!(read(&path).as_deref(), Some("5\n"));
        assert_eq!(read(&numbered(&path, 1)).as_deref(), Some("4\n"));
        assert_eq!(read(&numbered(&path, 4)).as_deref(), Some("1\n"));
        assert_eq!(read(&numbered(&path, 5)), None, "so many are kept");

        std::fs::remove_file(&path).unwrap();
        file.looked = Instant::now().checked_sub(LOOK_EVERY).unwrap();
        file.write(b"new\n").unwrap();
        assert_eq!(read(&path).as_deref(), Some("new\n"));
    }

    #[test]
    fn a_line_is_one_json_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (lines, waiting) = sync_channel(4);
        let refusal = Refusal {
            door: "unix",
            from: Some("uid 1003".into()),
            reason: "NO_TENANT".into(),
            why: "a \"quoted\"\nreason".into(),
            ..Refusal::default()
        };
        lines.send(refusal).unwrap();
        drop(lines);
        write_all(Rotating::open(&path).unwrap(), &waiting);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["kind"], "refused");
        assert_eq!(line["from"], "uid 1003");
        assert_eq!(line["why"], "a \"quoted\"\nreason");
        assert!(line.get("who").is_none() && line.get("left_out").is_none());
    }
}
