//! The commands as they are typed, against a fake daemon: results, messages, exit codes.
#![allow(clippy::unwrap_used, reason = "tests, and the helpers of tests")]

#[path = "../../tests/fake/mod.rs"]
mod fake;

use std::fs;
use std::process::{Command, Output, Stdio};

use evenkeel_proto::v1 as pb;
use fake::Fake;
use serde_json::Value;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/job.toml");

fn evenkeel(fake: &Fake, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .env("EVENKEEL_SOCKET", &fake.socket)
        .env_remove("EVENKEEL_LOG")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// What it printed, having succeeded.
fn text(fake: &Fake, arguments: &[&str]) -> String {
    let output = evenkeel(fake, arguments);
    let (out, err) = said(&output);
    assert!(output.status.success(), "{arguments:?}: {err}");
    out + &err
}

fn json(fake: &Fake, arguments: &[&str]) -> Value {
    let mut all = arguments.to_vec();
    all.extend(["--output", "json"]);
    let output = evenkeel(fake, &all);
    let (out, err) = said(&output);
    assert!(output.status.success(), "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// How it failed: exit code and message, which is short, plain and starts with our name.
fn failure(fake: &Fake, arguments: &[&str]) -> (i32, String) {
    let output = evenkeel(fake, arguments);
    let (_, err) = said(&output);
    assert!(err.starts_with("evenkeel: "), "{arguments:?}: {err}");
    assert!(err.lines().count() <= 2, "{arguments:?}: {err}");
    for ugly in [
        "Some(",
        "Err(",
        "Status {",
        "code:",
        "panicked",
        "RUST_BACKTRACE",
    ] {
        assert!(!err.contains(ugly), "{arguments:?}: {err}");
    }
    (output.status.code().unwrap(), err)
}

#[test]
fn a_job_is_submitted_shown_changed_explained_and_cancelled() {
    let fake = Fake::start();
    let shown = text(&fake, &["submit", EXAMPLE]);
    assert!(
        shown.contains("job reach (admitted)") && shown.contains("generation"),
        "{shown}"
    );
    let spec = fake.world().jobs["reach"].spec.clone().unwrap();
    assert_eq!(spec.stages[1].min_sms, 14, "10 % of the daemon's GPU");
    let jobs = json(&fake, &["jobs"]);
    assert_eq!(jobs["jobs"][0]["spec"]["name"], "reach");
    assert_eq!(jobs["jobs"][0]["phase"], "admitted");
    let one = json(&fake, &["jobs", "reach"]);
    assert_eq!(one["spec"]["stages"][1]["memory_bytes"], 20_u64 << 30);
    text(&fake, &["rebalance", "reach", "--freeze"]);
    let rules = fake.world().jobs["reach"]
        .spec
        .clone()
        .unwrap()
        .rebalance
        .unwrap();
    assert!(
        rules.frozen && rules.horizon_ms == Some(600_000),
        "the other rules stay"
    );
    let why = text(&fake, &["explain", "reach"]);
    assert!(
        why.contains("One more SM") && why.contains("there is room"),
        "{why}"
    );
    text(&fake, &["cancel", "reach"]);
    assert_eq!(json(&fake, &["jobs", "reach"])["phase"], "ended");
}

#[test]
fn what_is_not_there_has_its_exit_code() {
    let fake = Fake::start();
    for arguments in [
        &["jobs", "nope"][..],
        &["explain", "nope"],
        &["cancel", "nope"],
        &["leases", "show", "7"],
        &["leases", "revoke", "7"],
        &["calibrate", "show", "nope/stage"],
    ] {
        assert_eq!(failure(&fake, arguments).0, 4, "{arguments:?}");
    }
    let (code, message) = failure(&fake, &["leases", "clear", "7", "--reason", "x"]);
    assert_eq!(code, 1);
    assert!(message.contains("only admins clear leases"), "{message}");
}

#[test]
fn mistakes_in_a_file_are_named_with_their_line() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.toml");
    fs::write(
        &file,
        "name = 'j'\nuint = 'env_step'\n[[stages]]\nname='s'\nrole='other'\n",
    )
    .unwrap();
    let path = file.to_str().unwrap();
    for command in ["submit", "plan", "calibrate"] {
        let (code, message) = failure(&fake, &[command, path]);
        assert_eq!(code, 2);
        assert!(
            message.contains("job.toml:2:1: unknown key `uint`; did you mean `unit`?"),
            "{message}"
        );
    }
    let (code, message) = failure(&fake, &["submit", "/no/such/job.toml"]);
    assert_eq!(code, 2);
    assert!(
        message.contains("cannot read the job file /no/such/job.toml"),
        "{message}"
    );
}

#[test]
fn an_absent_daemon_is_named_by_its_socket_in_every_command() {
    let mut fake = Fake::start();
    fake.stop();
    let socket = fake.socket.display().to_string();
    for arguments in [
        &["node"][..],
        &["jobs"],
        &["leases"],
        &["events"],
        &["top", "-n", "1"],
        &["drain"],
        &["submit", EXAMPLE],
        &["plan", EXAMPLE],
        &["calibrate", EXAMPLE],
        &["calibrate", "show"],
    ] {
        let (code, message) = failure(&fake, arguments);
        assert_eq!(code, 3, "{arguments:?}");
        assert!(
            message.contains(&socket) && message.contains("Is it running?"),
            "{message}"
        );
    }
}

#[test]
fn node_leases_events_and_top_are_shown() {
    let fake = Fake::start();
    text(&fake, &["run", "--cores", "2", "--quiet", "--", "true"]);
    let node = json(&fake, &["node"]);
    assert_eq!(
        (&node["gpus"][0]["sms"], &node["cores"]),
        (&132.into(), &"0-7".into())
    );
    assert!(text(&fake, &["node"]).contains("H100"));
    let leases = json(&fake, &["leases"]);
    assert_eq!(leases["leases"][0]["end"], "released");
    assert_eq!(leases["leases"][0]["ttl_ms"], 30_000);
    assert!(text(&fake, &["leases"]).contains("ended (released)"));
    let events = text(&fake, &["events"]);
    assert_eq!(events.lines().count(), 3, "{events}");
    let output = evenkeel(&fake, &["events", "--after", "2", "-o", "json"]);
    let line: Value = serde_json::from_str(said(&output).0.trim()).unwrap();
    assert_eq!(line["event"]["lease_granted"]["lease"], 3);
    let top = text(&fake, &["top", "-n", "2", "-d", "100ms"]);
    assert_eq!(top.matches("gpu 0").count(), 2, "{top}");
    assert!(text(&fake, &["drain"]).contains("grants nothing new"));
    assert!(text(&fake, &["drain", "--undo"]).contains("grants again"));
}

#[test]
fn a_plan_is_asked_for_with_other_sizes_and_profiles() {
    let fake = Fake::start();
    let plan = json(&fake, &["plan", EXAMPLE, "--cores", "16", "--sms", "100"]);
    assert_eq!(plan["stages"][1]["sms"], 10, "10 % of 100");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.json");
    fs::write(&file, "{\"key\": 1}").unwrap();
    let (code, message) = failure(
        &fake,
        &["plan", EXAMPLE, "--profiles", file.to_str().unwrap()],
    );
    assert_eq!(code, 2);
    assert!(message.contains("is not a file of profiles"), "{message}");
}

/// A job whose benchmark measures as many units as it has cores, and fails with three of them.
fn calibratable(dir: &tempfile::TempDir, command: &str) -> String {
    let file = dir.path().join("job.toml");
    let text = format!(
        "name='j'\nunit='u'\n[[stages]]\nname='s'\nrole='simulation'\nno_gpu=true\n\
         [stages.bench]\ncores=[1,2,3]\ncommand=['sh', '-c', '''{command}''']\ntimeout='30s'\n"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

const BENCH: &str =
    "echo warming up; [ $EVENKEEL_TRIAL_CORES = 3 ] && { echo out of memory >&2; exit 1; }
    echo \"{\\\\\"units_per_s\\\\\": ${EVENKEEL_TRIAL_CORES}00, \\\\\"memory_bytes\\\\\": 5}\"";

#[test]
fn stages_are_measured_stored_shown_exported_and_imported() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let bench = BENCH.replace("\\\\", "\\");
    let file = calibratable(&dir, &bench);
    let once = ["calibrate", &file, "--repeats", "1"];
    let said = text(&fake, &once);
    assert!(
        said.contains("does not fit: exit code 1: out of memory"),
        "{said}"
    );
    let points = fake.world().profiles[&("j/s".into(), "none".into())]
        .points
        .clone();
    let measured: Vec<(u32, f64)> = points.iter().map(|p| (p.cores, p.units_per_s)).collect();
    // The most that it can have, the least because that failed, and what is between.
    assert_eq!(measured, [(3, 0.0), (1, 100.0), (2, 200.0)]);
    // Each ran in a lease of its own, and gave it back.
    assert_eq!(fake.world().leases.len(), 3);
    // What is known is not measured again.
    let summary = json(&fake, &once);
    assert_eq!(summary["stages"][0]["known_before"], 3);
    assert_eq!(fake.world().leases.len(), 3);

    let shown = text(&fake, &["calibrate", "show", "j/s"]);
    assert!(
        shown.contains("does not fit") && shown.contains("66"),
        "{shown}"
    );
    let exported = dir.path().join("profile.json");
    fs::write(&exported, text(&fake, &["calibrate", "export", "j/s"])).unwrap();
    fake.world().profiles.clear();
    text(&fake, &["calibrate", "import", exported.to_str().unwrap()]);
    let list = json(&fake, &["calibrate", "show"]);
    assert_eq!(list["profiles"][0]["key"]["stage"], "j/s");
    assert_eq!(
        fake.world().profiles.values().next().unwrap().points.len(),
        3
    );
    let (_, message) = failure(&fake, &["calibrate", "show", "j/t"]);
    assert!(message.contains("Did you mean j/s?"), "{message}");
    let (svg, png) = (dir.path().join("s.svg"), dir.path().join("s.png"));
    let (to_svg, to_png) = (svg.to_str().unwrap(), png.to_str().unwrap());
    let show = ["calibrate", "show", "j/s", "--svg", to_svg, "--png", to_png];
    text(&fake, &show);
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg"));
    assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));

    let csv = dir.path().join("profile.csv");
    let rows = text(&fake, &["calibrate", "export", "j/s", "--csv"]);
    fs::write(&csv, &rows).unwrap();
    fake.world().profiles.clear();
    text(&fake, &["calibrate", "import", csv.to_str().unwrap()]);
    let points = |fake: &Fake| {
        fake.world().profiles[&("j/s".into(), "none".into())]
            .points
            .clone()
    };
    let again = points(&fake);
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|p| p.conditions.is_some()), "{again:?}");
    // A second profile with a mistake: the first is not stored either.
    let bad = format!("{rows}j/t,none,1,0,1,-3,1,1,0,1,,,,,,,,\n");
    fs::write(&csv, bad.replace("100", "111")).unwrap();
    let (code, message) = failure(&fake, &["calibrate", "import", csv.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(
        message.contains("line 5, column `units_per_s`: -3"),
        "{message}"
    );
    assert_eq!(points(&fake), again);
}

#[test]
fn what_is_measured_again_replaces_what_was_measured_before() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let bench = BENCH.replace("\\\\", "\\");
    text(&fake, &["calibrate", &calibratable(&dir, &bench)]);
    let key = ("j/s".to_owned(), "none".to_owned());
    let foreign = |cores, replicas| pb::ProfilePoint {
        cores,
        replicas,
        batch: 1,
        units_per_s: 5.0,
        weight: 1.0,
        ..Default::default()
    };
    // A point outside the grid, and one of two workers: neither is measured again, and both stay.
    let kept = [foreign(8, 1), foreign(1, 2)];
    let profile = |fake: &Fake| fake.world().profiles[&key].points.clone();
    let mut world = fake.world();
    world
        .profiles
        .get_mut(&key)
        .unwrap()
        .points
        .extend(kept.clone());
    drop(world);

    // A benchmark that is broken by now replaces nothing.
    let before = profile(&fake);
    let broken = calibratable(&dir, "exit 1");
    let output = evenkeel(&fake, &["calibrate", &broken, "--again"]);
    assert!(!output.status.success());
    assert!(said(&output).1.contains("nothing of it is stored"));
    assert_eq!(profile(&fake), before);

    let faster = calibratable(&dir, &bench.replace("}00", "}50"));
    let again = ["calibrate", &faster, "--again", "--full", "--repeats", "2"];
    text(&fake, &again);
    let points = profile(&fake);
    let of = |cores| {
        let own = |p: &&pb::ProfilePoint| p.cores == cores && p.replicas == 1;
        let rates = points.iter().filter(own).map(|p| p.units_per_s);
        rates.collect::<Vec<_>>()
    };
    assert_eq!(of(1), [150.0, 150.0], "repeats of one run stand together");
    assert_eq!((of(2), of(3)), (vec![250.0, 250.0], vec![0.0, 0.0]));
    assert!(kept.iter().all(|k| points.contains(k)), "{points:?}");
}

#[test]
fn a_running_worker_is_asked_where_there_is_no_command() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.toml");
    let job = |name: &str, bench: &str| {
        let text = format!(
            "name='{name}'\nunit='u'\n[[stages]]\nname='s'\nrole='simulation'\nno_gpu=true\n\
             [stages.bench]\ncores=[1,2,3]\n{bench}\n"
        );
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let once = |file: &str| text(&fake, &["calibrate", file, "--repeats", "1"]);
    let said = once(&job("j", "worker=true"));
    assert!(said.contains("does not fit: out of memory"), "{said}");
    let points = fake.world().profiles[&("j/s".into(), "none".into())]
        .points
        .clone();
    let measured: Vec<(u32, f64)> = points.iter().map(|p| (p.cores, p.units_per_s)).collect();
    assert_eq!(measured, [(3, 0.0), (1, 100.0), (2, 200.0)]);
    assert_eq!(fake.world().leases.len(), 0, "no lease was taken");
    for bench in ["worker=true\ncommand=['true']", "worker=false"] {
        let (code, message) = failure(&fake, &["calibrate", &job("j", bench)]);
        assert_eq!(code, 2);
        assert!(
            message.contains("stage s: command") && message.contains("job.toml:"),
            "{message}"
        );
    }
}

#[test]
fn what_a_benchmark_leaves_behind_holds_nothing_up() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("left");
    // It keeps the pipes open, as a daemon does that forgot to close them; and says something that is no text.
    let bench = format!(
        "setsid sleep 600 & echo $! >> {}; printf \"caf\\\\351\\n\"; echo \"{{\\\"units_per_s\\\": 5}}\"",
        left.display()
    );
    let file = calibratable(&dir, &bench.replace("\\\\", "\\"));
    let said = text(&fake, &["calibrate", &file, "--repeats", "1"]);
    let pids = fs::read_to_string(&left).unwrap();
    for pid in pids.lines() {
        Command::new("kill").arg(pid).status().unwrap();
    }
    assert!(said.contains("at 3 cores: 5.00 units/s"), "{said}");
    assert!(!pids.trim().is_empty());
}

#[test]
fn a_benchmark_that_cannot_be_run_stores_nothing() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let file = calibratable(&dir, "exit 127");
    let (code, message) = failure(&fake, &["calibrate", &file]);
    assert_eq!(code, 2, "{message}");
    assert!(fake.world().profiles.is_empty());
}
