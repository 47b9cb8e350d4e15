//! Refusals at the doors as JSON lines: who came, by which door, what was refused, and why.
//!
//! Beside the ledger's audit trail, not in it: what happened to leases and jobs is there, in the transaction that made
//! it happen. Strangers must not fill a ledger, so their lines go to a file of their own, of bounded size (`file`), at a
//! bounded rate, of which no source takes all (`pace`); what was left out is counted. Nobody waits for it.
mod file;
mod pace;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use file::Rotating;
use pace::Paces;

/// Lines that wait for the disk; more are counted and left out.
const WAITING_MAX: usize = 1_024;
/// Bytes of what was asked and of why it was refused: a client chooses most of both, and lines are to be short.
const WORDS_MAX: usize = 256;

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
pub struct Audit(Option<Arc<Desk>>);

#[derive(Debug)]
struct Desk {
    lines: SyncSender<Refusal>,
    paces: Mutex<Paces>,
    shared: Arc<Shared>,
}

/// What the writer knows, too.
#[derive(Debug, Default)]
struct Shared {
    /// Refusals since the last line that have none.
    left_out: AtomicU64,
    /// Why lines cannot be written; none: they can.
    trouble: Mutex<Option<String>>,
}

impl Shared {
    fn leave_out(&self, n: u64) {
        self.left_out.fetch_add(n, Ordering::Relaxed);
        metrics::counter!("evenkeel_audit_lines_left_out_total").increment(n);
    }

    /// Says whether it is another than before.
    fn set_trouble(&self, trouble: Option<String>) -> bool {
        let mut now = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *now != trouble;
        *now = trouble;
        is_new
    }
}

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
        let shared = Arc::<Shared>::default();
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let writer = shared.clone();
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(file, &waiting, &writer))?;
        Ok(Self(Some(Arc::new(Desk {
            lines,
            paces: Mutex::default(),
            shared,
        }))))
    }

    /// Notes a refusal. Never waits.
    pub fn refused(&self, mut refusal: Refusal) {
        let labels = [
            ("door", refusal.door.to_owned()),
            ("reason", refusal.reason.clone()),
        ];
        metrics::counter!("evenkeel_door_refusals_total", &labels).increment(1);
        let Some(desk) = &self.0 else { return };
        let may = {
            let mut paces = desk.paces.lock().unwrap_or_else(PoisonError::into_inner);
            paces.may(refusal.from.as_deref().unwrap_or_default(), Instant::now())
        };
        cut(&mut refusal.why);
        refusal.call.iter_mut().for_each(cut);
        if !may || desk.lines.try_send(refusal).is_err() {
            desk.shared.leave_out(1);
        }
    }

    /// Why refusals are not written down just now, for a person; none: they are.
    pub fn trouble(&self) -> Option<String> {
        let desk = self.0.as_ref()?;
        let trouble = (desk.shared.trouble.lock()).unwrap_or_else(PoisonError::into_inner);
        trouble.clone()
    }
}

/// Takes off what is too much.
fn cut(text: &mut String) {
    if text.len() > WORDS_MAX {
        let end = (0..=WORDS_MAX).rev().find(|n| text.is_char_boundary(*n));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
}

fn write_all(mut file: Rotating, waiting: &Receiver<Refusal>, shared: &Shared) {
    while let Ok(refusal) = waiting.recv() {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let left_out = shared.left_out.swap(0, Ordering::Relaxed);
        let line = Line {
            unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            kind: "refused",
            refusal: &refusal,
            left_out,
        };
        let Ok(mut text) = serde_json::to_vec(&line) else {
            continue;
        };
        text.push(b'\n');
        let written = file.write(&text);
        if written.is_err() {
            // A full disk, say.
            shared.left_out.fetch_add(left_out, Ordering::Relaxed);
            shared.leave_out(1);
        }
        let path = file.path().display();
        let trouble = match (&written, file.stuck()) {
            (Err(error), _) => Some(format!(
                "refusals cannot be written down in {path}: {error}; make room for it, or set another audit.path"
            )),
            (Ok(()), Some(error)) => Some(format!(
                "the audit file {path} cannot be put aside: {error}; see to its folder, or set another audit.path"
            )),
            (Ok(()), None) => None,
        };
        // The log has the first of each run of failures.
        if let (Some(trouble), true) = (&trouble, shared.set_trouble(trouble.clone())) {
            tracing::error!("ALARM: {trouble}");
            metrics::counter!("evenkeel_alarms_total", "alarm" => "audit").increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(from: &str, why: &str) -> Refusal {
        Refusal {
            door: "unix",
            from: Some(from.into()),
            reason: "NO_TENANT".into(),
            why: why.into(),
            ..Refusal::default()
        }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_line_is_one_json_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (sender, waiting) = sync_channel(4);
        sender
            .send(refusal("uid 1003", "a \"quoted\"\nreason"))
            .unwrap();
        drop(sender);
        write_all(Rotating::open(&path).unwrap(), &waiting, &Shared::default());
        let [line] = &lines(&path)[..] else {
            panic!("not one line");
        };
        assert_eq!(line["kind"], "refused");
        assert_eq!(line["from"], "uid 1003");
        assert_eq!(line["why"], "a \"quoted\"\nreason");
        assert!(line.get("who").is_none() && line.get("left_out").is_none());
    }

    #[test]
    fn who_floods_fills_neither_the_file_nor_a_line_and_hides_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::to(&path).unwrap();
        for _ in 0..10_000 {
            audit.refused(Refusal {
                call: Some("/é".repeat(4_000)),
                ..refusal("10.0.0.9:40112", "x")
            });
        }
        audit.refused(refusal("10.0.0.7:40113", "another"));
        let desk = audit.0.clone().unwrap();
        let deadline = Instant::now() + std::time::Duration::from_secs(20);
        let is_there = |text: String| text.contains("\"another\"") && text.ends_with('\n');
        while !std::fs::read_to_string(&path).is_ok_and(is_there) {
            assert!(Instant::now() < deadline, "its line did not come");
            std::thread::yield_now();
        }
        let all = lines(&path);
        assert!(all.len() < 200, "{}", all.len());
        let of = |line: &serde_json::Value| line["left_out"].as_u64().unwrap_or(0);
        let told: u64 = all.iter().map(of).sum::<u64>() + all.len() as u64;
        let open = desk.shared.left_out.load(Ordering::Relaxed);
        assert_eq!(told + open, 10_001, "each has a line or is counted");
        assert!(
            all.iter()
                .all(|line| line.to_string().len() < 2 * WORDS_MAX)
        );
    }

    #[test]
    fn what_cannot_be_written_is_a_trouble_until_it_can() {
        let (sender, waiting) = sync_channel(4);
        let shared = Shared::default();
        sender.send(refusal("uid 1", "lost")).unwrap();
        drop(sender);
        write_all(
            Rotating::open(Path::new("/dev/full")).unwrap(),
            &waiting,
            &shared,
        );
        let trouble = shared.trouble.lock().unwrap().clone().unwrap();
        assert!(
            trouble.starts_with("refusals cannot be written down in /dev/full"),
            "{trouble}"
        );
        assert_eq!(shared.left_out.load(Ordering::Relaxed), 1);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (sender, waiting) = sync_channel(4);
        sender.send(refusal("uid 1", "written")).unwrap();
        drop(sender);
        write_all(Rotating::open(&path).unwrap(), &waiting, &shared);
        assert_eq!(*shared.trouble.lock().unwrap(), None);
        assert_eq!(lines(&path)[0]["left_out"], 1);
    }
}
