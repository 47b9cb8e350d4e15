//! Reads single facts from /proc. A process that is gone, or not ours to read, is `None` or empty: both are ordinary.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_core::id::LeaseId;

use super::Process;

/// The variable that marks the processes of a lease. The daemon hands it out; children inherit it.
pub const LEASE_MARK: &str = "EVENKEEL_LEASE_ID";
/// The variable that says which daemon a marked process belongs to: lease numbers are each daemon's own.
pub const SOCKET_MARK: &str = "EVENKEEL_SOCKET";

/// An environment that is larger is not searched further. The kernel allows a quarter of the stack limit: 2 MiB.
const ENVIRONMENT_MAX: u64 = 4 << 20;

/// What /proc/PID/stat says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Who it is.
    pub process: Process,
    /// Its parent's pid; 0 for init.
    pub parent: u32,
}

/// A live process; none if there is none, or if only its exit status is left (a zombie).
pub fn status(pid: u32) -> Option<Status> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (state, status) = parse_stat(pid, &text)?;
    // A leader that has ended is a zombie while its other threads run: the process lives.
    let dead = matches!(state, 'Z' | 'X' | 'x') && threads(pid).len() <= 1;
    (!dead).then_some(status)
}

/// The state's letter, and the rest.
pub(super) fn parse_stat(pid: u32, text: &str) -> Option<(char, Status)> {
    // The name is in parentheses and may hold anything, parentheses and spaces too: what counts is after the last.
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // Fields 3 and 4 are read; the start time is field 22.
    let start_time = fields.nth(22 - 5)?.parse().ok()?;
    let process = Process { pid, start_time };
    Some((state, Status { process, parent }))
}

/// The process's user.
pub(super) fn uid(pid: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// The thread ids of a process; empty if it is gone.
pub fn threads(pid: u32) -> Vec<u32> {
    numbers(Path::new(&format!("/proc/{pid}/task"))).unwrap_or_default()
}

/// All pids.
pub(super) fn pids() -> std::io::Result<Vec<u32>> {
    numbers(Path::new("/proc"))
}

fn numbers(dir: &Path) -> std::io::Result<Vec<u32>> {
    let entries = fs::read_dir(dir)?;
    let number = |entry: std::io::Result<fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<u32>().ok()
    };
    Ok(entries.filter_map(number).collect())
}

/// Whether the kernel lists children (CONFIG_PROC_CHILDREN; every distribution has it).
pub(super) fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// The children of all threads of a process. Without kernel support: empty, and everyone's parent has to be read.
pub fn children(pid: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for tid in threads(pid) {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
        let list = list.unwrap_or_default();
        children.extend(
            list.split_ascii_whitespace()
                .filter_map(|c| c.parse::<u32>().ok()),
        );
    }
    children
}

/// The lease that a process's environment names, if it names one of the daemon at `socket`. Unreadable for other
/// users' processes, unless the daemon is root.
pub(super) fn mark(pid: u32, socket: &Path) -> Option<LeaseId> {
    let mut environment = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_MAX)
        .read_to_end(&mut environment)
        .ok()?;
    marked(&environment, socket)
}

/// The same from the bytes of an environment. A socket that is not named is the default one.
pub(super) fn marked(environment: &[u8], socket: &Path) -> Option<LeaseId> {
    let value = |name: &str| {
        environment.split(|b| *b == 0).find_map(|variable| {
            variable
                .strip_prefix(name.as_bytes())?
                .strip_prefix(b"=".as_slice())
        })
    };
    let lease: u64 = std::str::from_utf8(value(LEASE_MARK)?).ok()?.parse().ok()?;
    let names = value(SOCKET_MARK).map_or_else(
        || PathBuf::from(crate::config::DEFAULT_SOCKET),
        |bytes| {
            PathBuf::from(OsStr::from_bytes(
                bytes.strip_prefix(b"unix://").unwrap_or(bytes),
            ))
        },
    );
    (names == socket).then_some(LeaseId(lease))
}
