//! Tests of what is read from /proc, on texts. Real trees are in `tests/reconcile`.

use std::path::Path;

use evenkeel_core::id::LeaseId;

use super::read::{marked, parse_stat};
use super::*;

#[test]
fn a_stat_line_is_read_behind_the_name_whatever_the_name_is() {
    let rest = "S 7 9 9 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 4711 1 2";
    for name in ["sh", "a b", "(sd-pam)", ") R 1 1 (", "x) Z 5 ("] {
        let text = format!("42 ({name}) {rest}");
        let (state, status) = parse_stat(42, &text).unwrap();
        assert_eq!(state, 'S', "{name}");
        assert_eq!(status.parent, 7);
        let start_time = 4711;
        assert_eq!(
            status.process,
            Process {
                pid: 42,
                start_time
            }
        );
    }
    for bad in [
        "",
        "42",
        "42 (sh)",
        "42 (sh) S",
        "42 (sh) S x",
        "42 (sh) S 1 2 3",
    ] {
        assert_eq!(parse_stat(42, bad), None, "{bad}");
    }
}

#[test]
fn a_mark_counts_only_for_the_daemon_that_it_names() {
    let socket = Path::new("/tmp/a.sock");
    let check = |environment: &str, expect: Option<u64>| {
        let bytes = environment.replace(' ', "\0");
        let found = marked(bytes.as_bytes(), socket);
        assert_eq!(found, expect.map(LeaseId), "{environment}");
    };
    check("EVENKEEL_SOCKET=/tmp/a.sock EVENKEEL_LEASE_ID=5", Some(5));
    check(
        "A=B EVENKEEL_LEASE_ID=5 EVENKEEL_SOCKET=unix:///tmp/a.sock C=",
        Some(5),
    );
    check("EVENKEEL_SOCKET=/tmp/b.sock EVENKEEL_LEASE_ID=5", None);
    // Nothing said: the default socket, which is not ours.
    check("EVENKEEL_LEASE_ID=5", None);
    check("EVENKEEL_SOCKET=/tmp/a.sock", None);
    check("EVENKEEL_SOCKET=/tmp/a.sock EVENKEEL_LEASE_ID=", None);
    check("EVENKEEL_SOCKET=/tmp/a.sock EVENKEEL_LEASE_ID=x", None);
    check("EVENKEEL_SOCKET=/tmp/a.sock XEVENKEEL_LEASE_ID=5", None);
    let default = Path::new(crate::config::DEFAULT_SOCKET);
    assert_eq!(marked(b"EVENKEEL_LEASE_ID=5\0", default), Some(LeaseId(5)));
}

#[test]
fn this_process_is_found() {
    let me = std::process::id();
    let own = holder(me).unwrap();
    let process = Process::from(&own);
    assert_eq!(own.uid, nix::unistd::getuid().as_raw());
    assert!(is_alive(process));
    assert!(descends_from(me, process));
    assert!(!descends_from(1, process));
    let later = Process {
        start_time: own.start_time + 1,
        ..process
    };
    assert!(
        !is_alive(later),
        "the same pid at another time is somebody else"
    );
    assert!(matches!(holder(u32::MAX), Err(ProcError::NoProcess(_))));
}
