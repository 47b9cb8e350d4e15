//! Scenarios as people write them: what they say, and what is said of mistakes, with file, line and column.

use std::fs;

use super::*;
use crate::fail::USAGE;
use crate::simulate::{Wish, simulate};

const GOOD: &str = "name = 's'
seconds = '10m'
[node]
cores = 8
gpus = 1
gpu = 'h100'
[[jobs]]
units_per_iteration = 1000
interference = { training = { generation = 0.2 } }
[jobs.spec]
name = 'j'
unit = 'env_step'
[[jobs.spec.stages]]
name = 'simulation'
role = 'simulation'
no_gpu = true
[[jobs.spec.stages]]
name = 'generation'
role = 'generation'
[[jobs.spec.stages]]
name = 'training'
role = 'training'
[jobs.stages.simulation]
environments = 16
step = '5ms'
[jobs.stages.generation]
max_units_per_s = 900
knee_sms = 60
[jobs.stages.training]
points = [{ sms = 66, units_per_s = 500 }, { sms = 132, units_per_s = 800 }]
[[jobs.drifts]]
stage = 'training'
at = '1m'
factor = 1.5
";

fn read(text: &str) -> Result<Scenario, Failure> {
    Scenario::parse(text, "s.toml", Path::new("."))
}

#[test]
fn a_scenario_reads_and_says_what_it_says() {
    let scenario = read(GOOD).unwrap();
    assert_eq!((scenario.seconds, scenario.seed), (600.0, 1));
    let job = &scenario.jobs[0];
    assert_eq!(job.spec.stages.len(), 3);
    assert_eq!(job.kappa[2][1], 0.2);
    assert_eq!((job.staleness, job.overlap), (1, 1.0));
    assert_eq!(job.stages[1].restart_s, 10.0, "the job's own expectation");
    let training = &job.stages[2].law;
    assert_eq!(
        training.rate(1, 99.0, 2.0, 1),
        1_300.0,
        "between points, on two GPUs"
    );
    let simulation = &job.stages[0].law;
    assert_eq!(simulation.rate(4, 0.0, 0.0, 1), 800.0);
    assert_eq!(
        simulation.rate(64, 0.0, 0.0, 1),
        3_200.0,
        "no more cores than environments"
    );
}

/// What is written instead of what, and what is said then; nothing: it is right.
const CHANGES: &[(&str, &str, &str)] = &[
    (
        "cores = 8",
        "cors = 8",
        "s.toml:4:1: unknown key `cors`; did you mean `cores`?",
    ),
    (
        "cores = 8",
        "cores = 0",
        "s.toml:4:9: cores = 0: a node has 1 to 4096",
    ),
    (
        "gpu = 'h100'",
        "gpu = 'h1000'",
        "s.toml:6:7: `h1000` is no GPU that is known; known are a100,",
    ),
    (
        "gpu = 'h100'",
        "",
        "s.toml:3:1: the node has GPUs; say of which kind",
    ),
    ("'10m'", "'-10m'", "s.toml:2:11: `-10m` is not a time"),
    (
        "'10m'",
        "'90d'",
        "s.toml:2:11: 7776000 s is not a time from 0 s to 31 days",
    ),
    ("'10m'", "0", "s.toml:2:11: 0 s is not a time above 0 s"),
    ("= 1000", "= -1", "s.toml:8:23: -1 is not a number above 0"),
    (
        "= 1000",
        "= nan",
        "s.toml:8:23: NaN is not a number above 0",
    ),
    (
        "= 1000",
        "= inf",
        "s.toml:8:23: inf is not a number above 0",
    ),
    (
        "factor = 1.5",
        "factor = 0",
        "s.toml:34:10: 0 is not a number from 0.001 to 1000",
    ),
    (
        "stage = 'training'",
        "stage = 'trainig'",
        "s.toml:31:1: the job has no stage `trainig`; did you mean `training`?",
    ),
    (
        "{ generation = 0.2 }",
        "{ generatoin = 0.2 }",
        "s.toml:9:44: the job has no stage `generatoin`; did you mean",
    ),
    (
        "{ generation = 0.2 }",
        "{ training = 0.2 }",
        "s.toml:9:42: training does not slow itself down",
    ),
    (
        "{ generation = 0.2 }",
        "{ generation = 11 }",
        "s.toml:9:44: 11 is not a number from 0 to 10",
    ),
    (
        "step = '5ms'",
        "",
        "s.toml:23:1: environments and step belong together",
    ),
    (
        "knee_sms = 60",
        "",
        "s.toml:26:1: max_units_per_s and knee_sms belong together",
    ),
    (
        "environments = 16",
        "environments = 0",
        "s.toml:24:16: 0 is not a whole number from 1 to 65536",
    ),
    (
        "[jobs.stages.training]",
        "[jobs.stages.trianing]",
        "s.toml:29:1: the job has no stage `trianing`; did you mean",
    ),
    (
        "sms = 66",
        "sms = 132",
        "s.toml:30:45: two points at 0 cores, 132 SMs, batch 1",
    ),
    (
        "at = '1m'",
        "period = '1m'",
        "s.toml:31:1: a step has neither `over` nor `period`",
    ),
    (
        "at = '1m'",
        "kind = 'ramp'",
        "s.toml:31:1: a ramp says how long it takes",
    ),
    (
        "at = '1m'",
        "kind = 'slope'",
        "s.toml:33:8: `slope` is not known here; known are",
    ),
    (
        "role = 'training'",
        "role = 'training'\nsms = 2\nmin_sms = 3",
        "s.toml:20:1: stage training: `sms` says both",
    ),
    (
        "role = 'training'",
        "role = 'trainer'",
        "s.toml:22:8: `trainer` is not known here; did you mean `training`?",
    ),
    ("seconds = '10m'", "seconds = '10m'\nfidelity = 'chunk'", ""),
    (
        "[jobs.spec]",
        "staleness = 65\n[jobs.spec]",
        "s.toml:10:13: 65 is not a whole number from 0 to 64",
    ),
    (
        "[jobs.spec]",
        "arrives = 5\nends = 5\n[jobs.spec]",
        "s.toml:11:1: the job ends (5 s) before it arrives (5 s)",
    ),
    (
        "at = '1m'",
        "at = -5",
        "s.toml:33:6: -5 s is not a time from 0 s to 31 days",
    ),
    (
        "at = '1m'",
        "at = '20m'",
        "s.toml:33:1: the drift begins at 1200 s (`at` counts from the job's arrival), and the simulation ends at 600 s",
    ),
    (
        "[jobs.spec]",
        "ends = 30\n[jobs.spec]",
        "s.toml:34:1: the drift begins at 60 s (`at` counts from the job's arrival), and its job ends at 30 s",
    ),
    (
        "[jobs.spec]",
        "arrives = '10m'\n[jobs.spec]",
        "s.toml:10:1: the job arrives at 600 s, and the simulation ends at 600 s",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\nweight = inf",
        "s.toml:13:1: job j: weight = inf is not",
    ),
    (
        "no_gpu = true",
        "no_gpu = true\nafter = ['training']",
        "s.toml:17:1: unknown key `after`; known are name, role,",
    ),
    (
        "sms = 66",
        "sms = '50%'",
        "s.toml:30:19: the text `50%` is not a whole number",
    ),
    (
        "[jobs.spec]",
        "file = 'x.toml'\n[jobs.spec]",
        "s.toml:7:1: a job is either written here",
    ),
];

#[test]
fn mistakes_are_named_with_their_place_and_what_would_be_right() {
    let mut wrong = Vec::new();
    for (from, to, expect) in CHANGES {
        assert!(GOOD.contains(from), "{from}");
        let said = match read(&GOOD.replacen(from, to, 1)) {
            Ok(_) => String::new(),
            Err(failure) => {
                assert_eq!(failure.code, USAGE);
                failure.what
            }
        };
        if !said.starts_with(*expect) || said.is_empty() != expect.is_empty() {
            wrong.push(format!("{to}\n  gave {said}\n  not  {expect}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_job_may_be_in_a_file_beside_the_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let from = GOOD.find("[jobs.spec]").unwrap();
    let to = GOOD.find("[jobs.stages.simulation]").unwrap();
    let spec = GOOD[from..to]
        .replace("[jobs.spec]\n", "")
        .replace("jobs.spec.stages", "stages");
    fs::write(folder.path().join("job.toml"), spec).unwrap();
    let text = format!("{}file = 'job.toml'\n{}", &GOOD[..from], &GOOD[to..]);
    let path = folder.path().join("s.toml");
    fs::write(&path, text).unwrap();
    assert_eq!(
        Scenario::read(&path, None).unwrap().jobs[0].spec,
        read(GOOD).unwrap().jobs[0].spec
    );
    fs::remove_file(folder.path().join("job.toml")).unwrap();
    let failure = Scenario::read(&path, None).unwrap_err();
    assert!(
        failure
            .what
            .contains("s.toml:10:8: cannot read the job file"),
        "{failure}"
    );
}

#[test]
fn the_fine_engine_needs_a_whole_pipeline() {
    let cut = |text: &str| {
        let from = text.find("[jobs.stages.simulation]").unwrap();
        let to = text.find("[jobs.stages.generation]").unwrap();
        let points = "[jobs.stages.simulation]\npoints = [{ cores = 4, units_per_s = 100 }]\n";
        format!("{}{points}{}", &text[..from], &text[to..])
    };
    let fine = GOOD.replacen("[node]", "fidelity = 'chunk'\n[node]", 1);
    assert!(read(&fine).is_ok());
    assert!(read(&cut(GOOD)).is_ok());
    let failure = read(&cut(&fine)).unwrap_err();
    assert!(
        failure
            .what
            .contains("needs one simulation with environments"),
        "{failure}"
    );
}

#[test]
fn no_text_is_too_bad_to_be_refused() {
    let (mut refused, mut taken) = (0, 0);
    let mut state = 0x9e37_79b9_u64;
    let mut next = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    const PARTS: [&str; 12] = [
        "",
        "0",
        "-",
        "9e99",
        "nan",
        "'",
        "[",
        "\n",
        "ü",
        "= ",
        "99999999999",
        "[[jobs]]\n",
    ];
    for _ in 0..3_000 {
        let mut text = GOOD.to_owned();
        for _ in 0..=next(3) {
            let from = next(text.len());
            let to = (from + next(6)).min(text.len());
            text.replace_range(from..to, PARTS[next(PARTS.len())]);
            if !text.is_ascii() {
                break; // a second cut could fall inside a letter
            }
        }
        match read(&text) {
            Ok(scenario) => {
                taken += 1;
                let wish = Wish {
                    seconds: Some(1.0),
                    ..Wish::default()
                };
                // It may be refused still; it may not fall over.
                drop(simulate(&scenario, &wish, &|| ()));
            }
            Err(failure) => {
                refused += 1;
                assert!(failure.what.starts_with("s.toml"), "{failure}");
            }
        }
    }
    assert!(
        refused > 500 && taken > 20,
        "{refused} refused, {taken} taken"
    );
}
