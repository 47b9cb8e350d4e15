//! `evenkeel run` with real processes, against a fake daemon.
#![allow(clippy::unwrap_used, reason = "tests, and the helpers of tests")]

#[path = "../../tests/fake/mod.rs"]
mod fake;

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
fn a_moved_share_restarts_the_command_under_the_same_lease() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let log = flag(&dir, "log");
    // Goes on until its second life.
    let text = format!(
        "echo start $SHARE >> {log}; trap 'echo saved >> {log}; exit 0' TERM
         [ \"$SHARE\" = 20 ] && exit 3
         while :; do sleep 0.02; done",
        log = log.display()
    );
    fake.world()
        .environment
        .extend([("SHARE".to_owned(), "10".to_owned())]);
    let child = script(&fake, &[], &text).spawn().unwrap();
    fake.wait("a session", |w| !w.sessions.is_empty());
    until("the first life", || {
        fs::read_to_string(&log).is_ok_and(|l| l.contains("start 10"))
    });
    tell(&fake, 1, pb::DirectiveKind::Restart, |directive| {
        directive.generation = 5;
        let target = directive.target.get_or_insert_default();
        target.gpus[0].guarantee_sms = 20;
        directive.batch = 32;
        directive.reason = "training is slower".into();
        directive.environment = [("SHARE".to_owned(), "20".to_owned())].into();
    });
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "start 10\nsaved\nstart 20\n"
    );
    assert!(
        stderr(&output).contains("training is slower"),
        "{}",
        stderr(&output)
    );
    let world = fake.world();
    let acknowledged = world.acknowledgements.first().unwrap();
    assert_eq!(acknowledged.generation, 5);
    assert_eq!(
        acknowledged.effective.as_ref().unwrap().gpus[0].guarantee_sms,
        20
    );
    assert_eq!(world.leases.len(), 1, "it took another lease");
}

/// What the daemon says to move lease 1: `sms` SMs and a batch size.
fn move_to(fake: &Fake, kind: pb::DirectiveKind, generation: u64, sms: u32, batch: u32) {
    let lease = fake.world().leases[&1].clone();
    let mut target = lease.target.clone().unwrap();
    target.gpus[0].guarantee_sms = sms;
    let directive = pb::Directive {
        lease: Some(pb::LeaseRef {
            lease_id: 1,
            fence: lease.fence,
        }),
        kind: kind.into(),
        generation,
        target: Some(target),
        batch,
        ..pb::Directive::default()
    };
    fake.world().send(&pb::SessionResponse {
        directives: vec![directive],
        ..pb::SessionResponse::default()
    });
}

#[test]
fn a_signal_during_a_move_ends_the_command() {
    for (signal, user_first) in [
        (Signal::SIGTERM, false),
        (Signal::SIGINT, false),
        (Signal::SIGHUP, false),
        (Signal::SIGTERM, true),
    ] {
        let fake = Fake::start();
        let dir = tempfile::tempdir().unwrap();
        let (log, told) = (flag(&dir, "log"), flag(&dir, "told"));
        // Goes on until it was told twice, and not at all in a second life.
        let text = format!(
            "echo start >> {log}; [ -e {told}2 ] && exit 9
             n=0; trap 'n=$((n+1)); touch {told}$n' TERM INT HUP; touch {told}0
             while [ $n -lt 2 ]; do sleep 0.02; done; exit 7",
            log = log.display(),
            told = told.display()
        );
        let child = script(&fake, &[], &text).spawn().unwrap();
        until("the script is ready", there(&flag(&dir, "told0")));
        fake.wait("a session", |w| !w.sessions.is_empty());
        let restart = || move_to(&fake, pb::DirectiveKind::Restart, 5, 20, 0);
        if user_first {
            send(&child, signal);
        } else {
            restart();
        }
        until("it was told once", there(&flag(&dir, "told1")));
        if user_first {
            restart();
        } else {
            send(&child, signal);
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(7),
            "{signal}: {}",
            stderr(&output)
        );
        assert_eq!(fs::read_to_string(&log).unwrap(), "start\n", "{signal}");
        assert_eq!(phase(&fake, 1), pb::LeasePhase::Ended);
    }
}

#[test]
fn another_batch_size_restarts_the_command_with_it() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let log = flag(&dir, "log");
    let text = format!(
        "echo batch $EVENKEEL_BATCH >> {log}; trap 'exit 0' TERM
         [ \"$EVENKEEL_BATCH\" = 64 ] && exit 3
         while :; do sleep 0.02; done",
        log = log.display()
    );
    fake.world().batch = 32;
    fake.world()
        .environment
        .extend([("EVENKEEL_BATCH".to_owned(), "32".to_owned())]);
    let child = script(&fake, &[], &text).spawn().unwrap();
    until("the first life", || {
        fs::read_to_string(&log).is_ok_and(|l| l.contains("batch 32"))
    });
    fake.wait("a session", |w| !w.sessions.is_empty());
    // The same share and batch size: nothing to do but to say so.
    move_to(&fake, pb::DirectiveKind::Target, 5, 10, 32);
    fake.wait("an acknowledgement", |w| {
        w.acknowledgements.iter().any(|a| a.generation == 5)
    });
    move_to(&fake, pb::DirectiveKind::Target, 6, 10, 64);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "batch 32\nbatch 64\n",
        "{}",
        stderr(&output)
    );
    let world = fake.world();
    assert!(world.acknowledgements.iter().any(|a| a.generation == 6));
}

#[test]
fn a_lost_lease_stops_the_command() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let ready = flag(&dir, "ready");
    let text = format!("touch {}; while :; do sleep 0.02; done", ready.display());
    let child = script(&fake, &["--ttl", "1s"], &text).spawn().unwrap();
    until("the script is ready", there(&ready));
    fake.world().fence(1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("lease 1 is lost"),
        "{}",
        stderr(&output)
    );
}

/// Tells the holder of a lease something.
fn tell(fake: &Fake, id: u64, kind: pb::DirectiveKind, change: impl FnOnce(&mut pb::Directive)) {
    fake.wait("a session", |w| w.sessions.iter().any(|s| !s.is_closed()));
    let lease = fake.world().leases[&id].clone();
    let mut directive = pb::Directive {
        lease: Some(pb::LeaseRef {
            lease_id: id,
            fence: lease.fence,
        }),
        kind: kind.into(),
        target: lease.target,
        ..pb::Directive::default()
    };
    change(&mut directive);
    fake.world().send(&pb::SessionResponse {
        directives: vec![directive],
        ..pb::SessionResponse::default()
    });
}

/// Runs until it is told to end, and then says 6.
fn until_told(ready: &Path) -> String {
    let ready = ready.display();
    format!("trap 'exit 6' TERM; touch {ready}; while :; do sleep 0.02; done")
}

#[test]
fn a_lease_that_is_asked_back_is_given_back_and_the_reason_is_told() {
    let fake = Fake::start();
    let revoked = pb::Event {
        kind: "lease_quarantined".into(),
        json: r#"{"kind":"lease_quarantined","id":1,"fence":3,"cause":"revoked"}"#.into(),
        ..pb::Event::default()
    };
    for (kind, lost, reason, expect) in [
        (
            pb::DirectiveKind::Drain,
            false,
            "this node is being drained",
            "(exit code 6): lease 1: this node is being drained",
        ),
        (
            pb::DirectiveKind::Release,
            false,
            "",
            "(exit code 6): lease 2 was asked back",
        ),
        (
            pb::DirectiveKind::Unspecified,
            true,
            "",
            "(exit code 6): lease 3 was revoked, by its owner or an admin",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ready = flag(&dir, "ready");
        let mut command = script(&fake, &["--ttl", "1s"], &until_told(&ready));
        let child = command.spawn().unwrap();
        until("the script is ready", there(&ready));
        let id = fake.world().leases.len() as u64;
        if lost {
            fake.world().events.push(revoked.clone());
            fake.world().fence(id);
        } else {
            tell(&fake, id, kind, |d| d.reason = reason.into());
        }
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(expect), "{said}");
        assert!(
            said.contains(&format!("evenkeel events --lease {id}")),
            "{said}"
        );
        if !lost {
            assert_eq!(phase(&fake, id), pb::LeasePhase::Ended, "it was given back");
        }
    }
}

#[test]
fn a_stage_that_is_not_there_is_told_with_those_that_are() {
    let fake = Fake::start();
    let spec = pb::JobSpec {
        stages: vec![pb::StageSpec {
            name: "training".into(),
            ..pb::StageSpec::default()
        }],
        ..pb::JobSpec::default()
    };
    let job = pb::Job {
        spec: Some(spec),
        ..pb::Job::default()
    };
    fake.world().jobs.insert("reach".into(), job);
    for (job, expect) in [
        (
            "reach",
            "job reach has no stage train\n  Its stages are training.",
        ),
        ("grasp", "cannot find job grasp: "),
    ] {
        let mut command = evenkeel(&fake);
        command.args(["run", "--job", job, "--stage", "train", "--", "true"]);
        let output = output(command);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(expect), "{said}");
        assert!(fake.world().leases.is_empty());
    }
}

#[test]
fn a_cancelled_job_is_named_as_the_reason() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let ready = flag(&dir, "ready");
    let job = |phase: pb::JobPhase| pb::Job {
        phase: phase.into(),
        spec: Some(pb::JobSpec {
            stages: vec![pb::StageSpec {
                name: "training".into(),
                resize: pb::ResizeMode::Live.into(),
                ..pb::StageSpec::default()
            }],
            ..pb::JobSpec::default()
        }),
        ..pb::Job::default()
    };
    let admitted = job(pb::JobPhase::Admitted);
    fake.world().jobs.insert("reach".into(), admitted);
    let mut command = evenkeel(&fake);
    command
        .args(["run", "--job", "reach", "--stage", "training"])
        .args(["--", "sh", "-c", &until_told(&ready)]);
    let child = command.spawn().unwrap();
    until("the script is ready", there(&ready));
    let resize = fake.world().leases[&1].resize();
    assert_eq!(resize, pb::ResizeMode::Live, "as the stage declares it");
    fake.world()
        .jobs
        .insert("reach".into(), job(pb::JobPhase::Ended));
    tell(&fake, 1, pb::DirectiveKind::Release, |_| {});
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("the command was stopped (exit code 6): job reach was cancelled"),
        "{said}"
    );
    assert_eq!(phase(&fake, 1), pb::LeasePhase::Ended, "it was given back");
}

#[test]
fn cores_change_while_the_command_runs() {
    let fake = Fake::start();
    fake.world().cpus = "0-1".into();
    let dir = tempfile::tempdir().unwrap();
    let (ready, go) = (flag(&dir, "ready"), flag(&dir, "go"));
    // What is started from `run` after the move inherits it; the command's own processes are the daemon's to bind.
    let text = format!(
        "touch {}; while ! [ -e {} ]; do sleep 0.02; done; grep Cpus_allowed_list /proc/$PPID/status",
        ready.display(),
        go.display()
    );
    for mode in ["live", "restart", "fixed"] {
        let child = script(&fake, &["--resize", mode], &text).spawn().unwrap();
        until("the script is ready", there(&ready));
        let id = fake.world().leases.len() as u64;
        tell(&fake, id, pb::DirectiveKind::Target, |d| {
            d.generation = 5;
            let target = d.target.get_or_insert_default();
            (target.cores, target.cpus) = ("1".into(), "1".into());
        });
        fake.wait("an acknowledgement", |w| !w.acknowledgements.is_empty());
        fs::write(&go, "").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{mode}: {}", stderr(&output));
        assert_eq!(stdout(&output), "Cpus_allowed_list:\t1\n", "{mode}");
        let told = fake.world().acknowledgements.remove(0);
        assert_eq!((told.generation, &*told.effective.unwrap().cpus), (5, "1"));
        fs::remove_file(&ready).unwrap();
        fs::remove_file(&go).unwrap();
    }
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
