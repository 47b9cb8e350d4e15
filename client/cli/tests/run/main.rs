//! `evenkeel run` with real processes, against a fake daemon.
#![allow(clippy::unwrap_used, reason = "tests, and the helpers of tests")]

#[path = "../../../tests/fake/mod.rs"]
mod fake;
mod moves;
mod over;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use evenkeel_proto::v1 as pb;
use fake::{Fake, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn evenkeel(fake: &Fake) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command
        .arg("--socket")
        .arg(&fake.socket)
        .env_remove("EVENKEEL_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A shell script under a lease of one core and a share of a GPU.
fn script(fake: &Fake, options: &[&str], script: &str) -> Command {
    let mut command = evenkeel(fake);
    command
        .args(["run", "--cores", "1", "--sm", "10%", "--gpu-memory", "1GiB"])
        .args(options)
        .args(["--", "sh", "-c", script]);
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn phase(fake: &Fake, id: u64) -> pb::LeasePhase {
    fake.world().leases[&id].phase()
}

/// A file that a script makes when it has got so far.
fn flag(dir: &tempfile::TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

fn there(path: &Path) -> impl Fn() -> bool {
    move || path.exists()
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

#[test]
fn the_exit_code_is_the_commands() {
    let fake = Fake::start();
    for (text, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let output = output(script(&fake, &[], text));
        assert_eq!(
            output.status.code(),
            Some(code),
            "{text}: {}",
            stderr(&output)
        );
    }
    let leases = fake.world().leases.clone();
    assert_eq!(leases.len(), 4);
    assert!(leases.values().all(|l| l.end() == pb::LeaseEnd::Released));
}

#[test]
fn the_command_finds_its_lease_its_share_and_its_cores() {
    let fake = Fake::start();
    fake.world().cpus = "0".into();
    let share = (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(),
        "10".to_owned(),
    );
    fake.world().environment.extend([share]);
    let output = output(script(
        &fake,
        &[],
        "echo $EVENKEEL_LEASE_ID $EVENKEEL_LEASE_FENCE $EVENKEEL_SOCKET $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
         grep Cpus_allowed_list /proc/self/status",
    ));
    let lines = stdout(&output);
    let expect = format!("1 2 {} 10", fake.socket.display());
    assert_eq!(
        lines.lines().next(),
        Some(expect.as_str()),
        "{}",
        stderr(&output)
    );
    assert_eq!(lines.lines().nth(1), Some("Cpus_allowed_list:\t0"));
    assert!(stderr(&output).starts_with("evenkeel: lease 1: cores 0; gpu 0: 10 SMs, 1 GiB"));
}

#[test]
fn signals_are_passed_on_and_the_commands_answer_is_ours() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    for (name, signal, code) in [
        ("TERM", Signal::SIGTERM, 9),
        ("INT", Signal::SIGINT, 10),
        ("USR1", Signal::SIGUSR1, 11),
        ("HUP", Signal::SIGHUP, 12),
    ] {
        let ready = flag(&dir, name);
        let text = format!(
            "trap 'exit {code}' {name}; touch {}; while :; do sleep 0.02; done",
            ready.display()
        );
        let child = script(&fake, &[], &text).spawn().unwrap();
        until("the script is ready", there(&ready));
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{name}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn what_cannot_be_run_is_said_as_a_shell_would() {
    let fake = Fake::start();
    let mut command = evenkeel(&fake);
    command.args(["run", "--cores", "1", "--", "/no/such/program"]);
    let output = output(command);
    assert_eq!(output.status.code(), Some(127));
    let said = stderr(&output);
    assert!(
        said.contains("evenkeel: cannot run /no/such/program: No such file"),
        "{said}"
    );
    assert_eq!(
        phase(&fake, 1),
        pb::LeasePhase::Ended,
        "the lease was given back"
    );
}

#[test]
fn without_a_daemon_nothing_runs_and_the_way_out_is_told() {
    let mut fake = Fake::start();
    fake.stop();
    let output = output(script(&fake, &[], "echo ran"));
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(stdout(&output), "");
    let said = stderr(&output);
    assert!(said.contains(&fake.socket.display().to_string()), "{said}");
    assert!(said.contains("Is it running?"), "{said}");
    assert!(said.lines().count() <= 2, "{said}");
}

#[test]
fn a_refusal_is_told_with_what_is_short() {
    let fake = Fake::start();
    let details = [
        ("resource", "cores"),
        ("short_by", "2"),
        ("holder", "job reach"),
    ];
    let short = fake::leases::refusal(
        tonic::Code::ResourceExhausted,
        "SHORT",
        &details,
        "2 cores are missing",
    );
    fake.world().refuse.push(short);
    let output = output(script(&fake, &[], "true"));
    assert_eq!(output.status.code(), Some(125));
    let said = stderr(&output);
    assert!(
        said.contains("cannot get a lease: 2 cores are missing"),
        "{said}"
    );
    assert!(said.contains("--wait 10m"), "{said}");
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_its_grace() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let ready = flag(&dir, "ready");
    let text = format!(
        "trap '' TERM; touch {}; while :; do sleep 0.02; done",
        ready.display()
    );
    let child = script(&fake, &["--ttl", "1s", "--grace", "100ms"], &text)
        .spawn()
        .unwrap();
    until("the script is ready", there(&ready));
    fake.world().fence(1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("killed"), "{}", stderr(&output));
}

#[test]
fn a_command_ends_at_its_timeout_whether_it_listens_or_not() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let ended = flag(&dir, "ended");
    let deaf = "trap '' TERM; while :; do sleep 0.05; done";
    let polite = format!(
        "trap 'touch {}; exit 3' TERM; while :; do sleep 0.05; done",
        ended.display()
    );
    for (command, timeout, grace, expect) in [
        (deaf, "200ms", "200ms", 124),
        (polite.as_str(), "3s", "30s", 124),
        ("exit 5", "30s", "30s", 5),
    ] {
        let options = ["--timeout", timeout, "--grace", grace];
        let output = output(script(&fake, &options, command));
        assert_eq!(output.status.code(), Some(expect), "{}", stderr(&output));
    }
    assert!(there(&ended)(), "it could checkpoint");
}

#[test]
fn the_command_does_not_outlive_its_supervisor() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let (ready, ended) = (flag(&dir, "ready"), flag(&dir, "ended"));
    let text = format!(
        "trap 'touch {}; exit 0' TERM; touch {}; while :; do sleep 0.02; done",
        ended.display(),
        ready.display()
    );
    let mut child = script(&fake, &[], &text).spawn().unwrap();
    until("the script is ready", there(&ready));
    send(&child, Signal::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    until("the command got SIGTERM", there(&ended));
}

#[test]
fn the_command_goes_on_while_the_daemon_restarts() {
    let mut fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let (ready, go) = (flag(&dir, "ready"), flag(&dir, "go"));
    let text = format!(
        "touch {}; while ! [ -e {} ]; do sleep 0.02; done; exit 4",
        ready.display(),
        go.display()
    );
    let child = script(&fake, &["--ttl", "1s"], &text).spawn().unwrap();
    until("the script is ready", there(&ready));
    fake.stop();
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    fake.restart();
    let before = fake.world().renewals;
    fake.wait("renewals again", |w| w.renewals > before);
    fs::write(&go, "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert_eq!(phase(&fake, 1), pb::LeasePhase::Ended);
}
