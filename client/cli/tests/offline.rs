//! Planning without a daemon, as it is typed; and what is measured, exported and imported gives the same plan.
#![allow(clippy::unwrap_used, reason = "tests, and the helpers of tests")]

#[path = "../../tests/fake/mod.rs"]
mod fake;

use std::fs;
use std::process::{Command, Output, Stdio};

use evenkeel_proto::v1 as pb;
use fake::Fake;
use serde_json::Value;
use tempfile::TempDir;

const JOB: &str = "name = 'reach'\nunit = 'env_step'\n\
    [[stages]]\nname = 'simulation'\nrole = 'simulation'\nno_gpu = true\nmin_cores = 1\n\
    [[stages]]\nname = 'generation'\nrole = 'generation'\nmin_sms = '10%'\n\
    [[stages]]\nname = 'training'\nrole = 'training'\nmemory = '24GiB'\n";

/// The node to plan with.
const NODE: [&str; 6] = ["--cores", "16", "--gpus", "1", "--gpu", "h100"];

fn evenkeel(socket: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .env("EVENKEEL_SOCKET", socket)
        .env_remove("EVENKEEL_LOG")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What it printed, having succeeded without a word on the side.
fn printed(socket: &str, arguments: &[&str]) -> String {
    let output = evenkeel(socket, arguments);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    text(&output.stdout)
}

fn refused(arguments: &[&str]) -> (i32, String) {
    let output = evenkeel("/nowhere", arguments);
    (output.status.code().unwrap(), text(&output.stderr))
}

fn file(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn plan(job: &str, profiles: &str) -> Value {
    let mut arguments = vec![
        "plan",
        "--offline",
        job,
        "--profiles",
        profiles,
        "-o",
        "json",
    ];
    arguments.extend(NODE);
    serde_json::from_str(&printed("/nowhere", &arguments)).unwrap()
}

/// Measurements with fractions, weights, repeats, a batch size, and one that did not fit.
fn measured(fake: &Fake) {
    let store = |stage: &str, gpu: &str, points: Vec<(u32, u32, f64, f64)>| {
        let key = (format!("reach/{stage}"), gpu.to_owned());
        let point = |(cores, sms, units_per_s, weight)| pb::ProfilePoint {
            cores,
            sms,
            batch: 16,
            replicas: 1,
            units_per_s,
            memory_bytes: if sms > 0 { (3 << 30) + 7 } else { 0 },
            weight,
            ..Default::default()
        };
        let profile = pb::Profile {
            key: Some(pb::ProfileKey {
                stage: key.0.clone(),
                gpu: key.1.clone(),
            }),
            tenant: "test".into(),
            point_count: points.len() as u32,
            points: points.into_iter().map(point).collect(),
        };
        fake.world().profiles.insert(key, profile);
    };
    let cores = (1..=8).map(|n| (n, 0, 100.0 / 3.0 * f64::from(n), 1.0));
    store("simulation", "none", cores.collect());
    let sms = |per_sm: f64| {
        let at = move |n: u32| (1, 12 * n, per_sm * f64::from(12 * n), 2.5);
        let mut points: Vec<_> = (1..=11).map(at).collect();
        points.push((1, 60, per_sm * 57.0, 0.5));
        points.push((1, 6, 0.0, 1.0));
        points
    };
    store("generation", "emulated-h100", sms(7.0 / 3.0));
    store("training", "emulated-h100", sms(0.1 + 0.2));
}

#[test]
fn what_is_exported_and_imported_gives_the_same_plan() {
    let fake = Fake::start();
    let socket = fake.socket.to_str().unwrap().to_owned();
    measured(&fake);
    let dir = tempfile::tempdir().unwrap();
    let job = file(&dir, "job.toml", JOB);
    let before = fake.world().profiles.clone();
    let exported = printed(&socket, &["calibrate", "export"]);
    let points: Value = serde_json::from_str(&exported).unwrap();
    let point = points[0]["points"][0].as_object().unwrap();
    let columns: Vec<&str> = point.keys().map(String::as_str).collect();
    for unit in ["units_per_s", "memory_bytes", "cores", "sms"] {
        assert!(columns.contains(&unit), "{columns:?}");
    }
    let all = file(&dir, "all.json", &exported);
    let planned = plan(&job, &all);
    assert_eq!(planned["by"], "waterfill", "{planned}");

    fake.world().profiles.clear();
    let output = evenkeel(&socket, &["calibrate", "import", &all]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fake.world().profiles, before, "to the last bit");
    let again = printed(&socket, &["calibrate", "export"]);
    assert_eq!(again, exported);
    assert_eq!(plan(&job, &file(&dir, "again.json", &again)), planned);

    // One by one they are the same profiles.
    let mut arguments = vec!["plan", "--offline", &*job, "-o", "json"];
    let one = |stage: &str| {
        let text = printed(&socket, &["calibrate", "export", &format!("reach/{stage}")]);
        file(&dir, &format!("{stage}.json"), &text)
    };
    let files = ["simulation", "generation", "training"].map(one);
    files
        .iter()
        .for_each(|f| arguments.extend(["--profiles", f]));
    arguments.extend(NODE);
    let single: Value = serde_json::from_str(&printed("/nowhere", &arguments)).unwrap();
    assert_eq!(single, planned);
}

#[test]
fn the_table_says_what_binds_and_what_more_would_bring() {
    let fake = Fake::start();
    measured(&fake);
    let dir = tempfile::tempdir().unwrap();
    let exported = printed(fake.socket.to_str().unwrap(), &["calibrate", "export"]);
    let all = file(&dir, "all.json", &exported);
    let job = file(&dir, "job.toml", JOB);
    let mut arguments = vec!["plan", "--offline", &*job, "--profiles", &*all];
    arguments.extend(NODE);
    let shown = printed("/nowhere", &arguments);
    for part in [
        "STAGE",
        "PREDICTED/S",
        "env_step/s",
        "training binds",
        "One more core would bring",
        "2 SMs more",
    ] {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
}

#[test]
fn a_check_refuses_what_the_daemon_would_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let path = file(&dir, "job.toml", text);
        let output = evenkeel("/nowhere", &["submit", &path, "--check"]);
        (output.status.code().unwrap(), self::text(&output.stderr))
    };
    let (code, said) = check(JOB);
    assert_eq!(code, 0, "{said}");
    let job = |old: &str, new: &str| {
        assert!(JOB.contains(old), "{old}");
        JOB.replacen(old, new, 1)
    };
    for (text, expect) in [
        (
            job("min_cores = 1", "max_cores = 0"),
            "job.toml:3:1: stage simulation: it may have neither cores nor SMs",
        ),
        (
            job("min_cores = 1", "workers = 5000"),
            "job.toml:7:1: stage simulation: workers = 5000 is more than 1024",
        ),
        (
            job("min_cores = 1", "min_cores = 4\nmax_cores = 2"),
            "job.toml:8:1: stage simulation: min_cores = 4 is more than max_cores = 2",
        ),
        (
            job("no_gpu = true", "no_gpu = true\nbatches = [0]"),
            "job.toml:7:1: stage simulation: a batch size",
        ),
        (
            job("'generation'", "'two words'"),
            "job.toml:9:1: stage two words: name `two words`",
        ),
        (
            job("'training'", "'simulation'"),
            "job.toml:13:1: stage simulation: its name is that of stages[",
        ),
        (
            job("[[stages]]", "[rebalance]\ngap = 15\n[[stages]]"),
            "job.toml:4:1: job reach: gap = 15 is not 0 to 1",
        ),
        (
            job("unit =", "gpus = [0, 0]\nunit ="),
            "job.toml:2:1: job reach: gpu 0 is named twice",
        ),
        (
            job("unit =", "groups = 3\nunit ="),
            "job.toml:2:1: job reach: 3 groups",
        ),
    ] {
        let (code, said) = check(&text);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(expect), "{expect} is missing in {said}");
    }
}

#[test]
fn mistakes_are_told_with_a_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let job = file(&dir, "job.toml", JOB);
    let bad = file(&dir, "bad.json", "{\"key\": 1}");
    let offline = |more: &[&str]| {
        let mut arguments = vec!["plan", "--offline", &*job];
        arguments.extend(more);
        refused(&arguments)
    };
    let cases: [(&[&str], i32, &[&str]); 6] = [
        (&[], 2, &["--cores"]),
        (&["--cores", "4"], 2, &["of what?", "--offline --gpu"]),
        (
            &["--cores", "4", "--gpu", "gtx"],
            2,
            &["known are a100", "--sms"],
        ),
        (
            &["--cores", "4", "--gpu", "h100", "--gpu-memory", "20GiB"],
            1,
            &["cannot plan job reach", "24 GiB", "--gpu-memory"],
        ),
        (
            &[
                "--cores",
                "4",
                "--gpu",
                "h100",
                "--profiles",
                "/no/such.json",
            ],
            2,
            &["cannot read the profiles /no/such.json"],
        ),
        (
            &["--cores", "4", "--gpu", "h100", "--profiles", &bad],
            2,
            &["is not a file of profiles", "calibrate export"],
        ),
    ];
    for (more, code, parts) in cases {
        let (got, said) = offline(more);
        assert_eq!(got, code, "{more:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{more:?}: {part} is missing in {said}");
        }
    }
}
