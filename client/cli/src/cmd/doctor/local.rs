//! What a process on this machine can see by itself: the socket, what it may do, where it lives. No daemon is asked.
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use evenkeel_client::Address;
use evenkeel_rollout::affinity::Thread;
use nix::unistd::{AccessFlags, access, geteuid};

use super::Finding;
use crate::units::counted;

pub(super) fn findings(address: &Address) -> Vec<Finding> {
    let mut findings = vec![socket(address), binding()];
    findings.extend(namespace(
        &fs::read_to_string("/proc/self/status").unwrap_or_default(),
    ));
    findings
}

fn socket(address: &Address) -> Finding {
    match address {
        Address::Unix(path) => unix(path),
        Address::Https(uri) => Finding::ok(
            "socket",
            format!("{uri}, mutual TLS; to hold cores or SMs, use the Unix socket there"),
        ),
        Address::Http(uri) => Finding::warning(
            "socket",
            format!("{uri}, plain TCP"),
            "No process can hold cores or SMs over it, and everybody there is one tenant; on this machine, use the Unix \
             socket.",
        ),
    }
}

fn unix(path: &Path) -> Finding {
    let shown = path.display();
    let file = match fs::metadata(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return Finding::bad(
                "socket",
                format!(
                    "{shown} lies in a folder that user {} may not enter",
                    geteuid()
                ),
                "Ask an admin: the folder of listen.socket has to be open to those who are to lease.",
            );
        }
        Err(e) => {
            return Finding::bad(
                "socket",
                format!("{shown}: {e}"),
                "No daemon listens there. Start one, or name its socket (--socket, EVENKEEL_SOCKET).",
            );
        }
    };
    if !file.file_type().is_socket() {
        return Finding::bad(
            "socket",
            format!("{shown} is no socket"),
            "Name the daemon's socket (listen.socket in its configuration).",
        );
    }
    let mode = file.permissions().mode() & 0o777;
    match access(path, AccessFlags::W_OK) {
        Ok(()) => Finding::ok("socket", format!("{shown}, mode {mode:04o}")),
        Err(_) => Finding::bad(
            "socket",
            format!(
                "{shown} has mode {mode:04o}: user {} may not connect",
                geteuid()
            ),
            "Join the group that may, or ask an admin about listen.socket_mode.",
        ),
    }
}

/// Whether a worker could bind itself, as `evenkeel run` does. It is bound to what it may use anyway.
fn binding() -> Finding {
    let cpus = Thread::current().cpus();
    match Thread::current().bind(&cpus) {
        Ok(()) => Finding::ok(
            "binding",
            format!(
                "this process may use {} and may bind itself",
                counted(cpus.len() as u64, "CPU")
            ),
        ),
        Err(error) => Finding::bad(
            "binding",
            error.to_string(),
            "Something (a seccomp filter of a container, say) forbids sched_setaffinity: leased cores cannot be taken up \
             here.",
        ),
    }
}

/// Whether the daemon and this process can mean the same by a pid, by `/proc/self/status`.
fn namespace(status: &str) -> Option<Finding> {
    let pids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    let depth = pids.split_whitespace().count();
    (depth > 1).then(|| {
        Finding::warning(
            "pids",
            format!("this process is {} pid namespaces deep: it is in a container", depth - 1),
            "A daemon outside finds it by the kernel's word. One inside must be in the same namespace (docker run --pid \
             host, hostPID) to bind it.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_socket_is_told_from_what_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        assert_eq!(unix(&path).state, State::Bad, "nothing there");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(unix(&path).state, State::Ok);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(unix(&file).found.ends_with("is no socket"));
        let tcp = socket(&Address::Http("http://127.0.0.1:1".into()));
        assert_eq!(tcp.state, State::Warning);
    }

    #[test]
    fn a_test_may_bind_itself_and_a_container_is_seen() {
        assert_eq!(binding().state, State::Ok);
        assert_eq!(namespace("Name:\tx\nNSpid:\t7\n"), None);
        assert_eq!(namespace(""), None);
        let inside = namespace("NSpid:\t700\t7\n").unwrap();
        assert!(inside.found.contains("1 pid namespaces deep"), "{inside:?}");
    }
}
