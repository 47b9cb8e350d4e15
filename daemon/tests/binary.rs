//! The program `evenkeeld` itself: its command line, its exit codes, how it starts, refuses and stops. What it serves
//! is tested elsewhere.

#![allow(
    clippy::unwrap_used,
    reason = "tests, and helpers that only tests call"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn evenkeeld(config: &str, dir: &Path) -> Command {
    let path = dir.join("evenkeeld.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeeld"));
    command.arg("--config").arg(path);
    command
}

/// Says what it does, holds nothing of the machine, listens in `dir` only.
fn synthetic(dir: &Path) -> String {
    format!(
        "node.pool = \"synthetic\"\nledger = {{ path = '{0}/ledger.db', ballast_mib = 1, min_free_mib = 0 }}\n\
         listen = {{ socket = '{0}/evenkeeld.sock', rest = '' }}\nlog.format = \"json\"\n",
        dir.display()
    )
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Reads the log until a line has `what`, and returns it until there; everything after it goes on being read.
fn wait_for(daemon: &mut Child, what: &str) -> String {
    let mut log = BufReader::new(daemon.stderr.take().unwrap());
    let mut all = String::new();
    let mut line = String::new();
    while log.read_line(&mut line).unwrap() > 0 {
        let found = line.contains(what);
        all += &std::mem::take(&mut line);
        if found {
            std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
            return all;
        }
    }
    let _ = daemon.wait();
    panic!("the daemon ended before it said {what}:\n{all}");
}

#[test]
#[cfg(all(feature = "jemalloc", target_arch = "x86_64"))]
fn the_allocators_settings_are_built_in() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_evenkeeld")).unwrap();
    let settings = b"narenas:1,dirty_decay_ms:1000";
    assert!(
        program.windows(settings.len()).any(|at| at == settings),
        "cargo was started outside the repository, and did not read its .cargo/config.toml"
    );
}

#[test]
fn a_wrong_configuration_is_exit_code_2_with_every_problem_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = "[leases]\nttl = 5\n[nod]\n";
    for only in [Some("--check-config"), None] {
        let mut command = evenkeeld(wrong, dir.path());
        let (code, _, err) = text(&command.args(only).output().unwrap());
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("evenkeeld.toml:2:1"), "{err}");
        assert!(err.contains("did you mean `leases.ttl_ms`?"), "{err}");
        assert!(err.contains("did you mean `node`?"), "{err}");
    }
    let variable = evenkeeld("", dir.path())
        .arg("--check-config")
        .env("EVENKEEL__LEASES__TTL_MS", "1")
        .output()
        .unwrap();
    let (code, _, err) = text(&variable);
    assert_eq!(code, Some(2));
    assert!(err.contains("leases.ttl_ms: 1 is out of range"), "{err}");
    let missing = Command::new(env!("CARGO_BIN_EXE_evenkeeld"))
        .args(["--check-config", "--config", "/nowhere/at/all.toml"])
        .output()
        .unwrap();
    let (code, _, err) = text(&missing);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("cannot read") && err.contains("No such file"),
        "{err}"
    );
}

#[test]
fn what_is_printed_can_be_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let config = synthetic(dir.path());
    let mut command = evenkeeld(&config, dir.path());
    let (code, printed, err) = text(&command.arg("--print-config").output().unwrap());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let mut command = evenkeeld(&printed, dir.path());
    let (_, again, _) = text(&command.arg("--print-config").output().unwrap());
    assert_eq!(printed, again);
    let mut command = evenkeeld(&config, dir.path());
    let (code, node, _) = text(&command.arg("--print-node").output().unwrap());
    assert_eq!(code, Some(0));
    let node: serde_json::Value = serde_json::from_str(&node).unwrap();
    assert_eq!(node["node"]["kind"], "synthetic");
    assert_eq!(node["node"]["gpus"].as_array().unwrap().len(), 8);
}

#[test]
fn a_ledger_is_copied_while_it_is_in_use_and_put_back_while_it_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = synthetic(dir.path());
    let copy = dir.path().join("copy.db");
    let tool = |what: &str| {
        let mut command = evenkeeld(&config, dir.path());
        text(&command.arg(what).arg(&copy).output().unwrap())
    };
    let (code, _, err) = tool("backup");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("there is no ledger"), "{err}");

    let mut daemon = evenkeeld(&config, dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&mut daemon, "\"message\":\"ready\"");
    let (code, said, err) = tool("backup");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let told = format!("schema {}: 0 live leases", evenkeeld::ledger::SCHEMA);
    assert!(said.contains(&told), "{said}");
    let (code, _, err) = tool("backup");
    assert_eq!(code, Some(1));
    assert!(err.contains("exists; name another file"), "{err}");
    let (code, _, err) = tool("restore");
    assert_eq!(code, Some(1));
    assert!(err.contains("another daemon"), "{err}");

    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    let (code, said, err) = tool("restore");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(said.contains("the ledger of before is"), "{said}");
}

#[test]
fn it_starts_is_alone_on_its_ledger_and_stops_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let config = synthetic(dir.path());
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = evenkeeld(&config, dir.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(&mut daemon, "\"message\":\"ready\"");
        assert!(dir.path().join("evenkeeld.sock").exists());

        let second = evenkeeld(&config, dir.path()).output().unwrap();
        let (code, _, err) = text(&second);
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("another daemon"), "{err}");

        let asked = Instant::now();
        kill(Pid::from_raw(daemon.id() as i32), signal).unwrap();
        let status = daemon.wait().unwrap();
        assert_eq!(status.code(), Some(0));
        assert!(
            asked.elapsed() < Duration::from_secs(10),
            "{:?}",
            asked.elapsed()
        );
    }
}

/// What it logs until it is ready, and its limits of open files then.
fn started_with((soft, hard): (u64, u64), dir: &Path) -> (String, String) {
    let config = synthetic(dir);
    let daemon = evenkeeld(&config, dir);
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!(
            "ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\""
        ))
        .arg(daemon.get_program())
        .args(daemon.get_args())
        .stderr(Stdio::piped());
    let mut daemon = shell.spawn().unwrap();
    let said = wait_for(&mut daemon, "\"message\":\"ready\"");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.id())).unwrap();
    let files = limits.lines().find(|l| l.starts_with("Max open files"));
    let files = files.unwrap().split_whitespace().skip(3).take(2);
    let files = files.collect::<Vec<_>>().join(" ");
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0), "{said}");
    (said, files)
}

#[test]
fn the_limit_of_open_files_is_raised_and_connections_fit_into_it() {
    let dir = tempfile::tempdir().unwrap();
    let (said, files) = started_with((64, 512), dir.path());
    assert_eq!(files, "512 512", "{said}");
    assert!(said.contains("\"limit\":512,\"was\":64"), "{said}");
    assert!(
        said.contains("only 512 files can be open, so 336 connections are served"),
        "{said}"
    );
    assert!(said.contains("LimitNOFILE="), "{said}");

    let hard = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    if hard.unwrap().1 >= 8_192 {
        let (said, files) = started_with((1_024, 8_192), dir.path());
        assert_eq!(files, "8192 8192", "{said}");
        assert!(!said.contains("LimitNOFILE"), "{said}");
    }
}

#[test]
fn a_log_that_nobody_reads_any_more_does_not_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = evenkeeld(&synthetic(dir.path()), dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(daemon.stderr.take().unwrap());
    log.read_line(&mut String::new()).unwrap();
    drop(log);
    let socket = dir.path().join("evenkeeld.sock");
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert_eq!(daemon.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}
