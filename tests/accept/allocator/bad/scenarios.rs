//! Scenarios of `evenkeel simulate`.
use super::{FAILED, Ground, Group, USAGE};
use crate::row::Row;

/// A scenario without a mistake, line by line.
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

/// What is written instead of what, and what has to be said of it.
type Change = (&'static str, &'static str, &'static str);

const NUMBERS: &[Change] = &[
    (
        "cores = 8",
        "cores = -8",
        "bad.toml:4:9: `-8` is not a whole number, 0 or more",
    ),
    (
        "cores = 8",
        "cores = '8 cores'",
        "bad.toml:4:9: the text `8 cores` is not a whole number",
    ),
    (
        "cores = 8",
        "cores = 8.5",
        "bad.toml:4:9: `8.5` is not a whole number",
    ),
    (
        "cores = 8",
        "cores = 0",
        "bad.toml:4:9: cores = 0: a node has 1 to 4096",
    ),
    (
        "'10m'",
        "'10 parsecs'",
        "bad.toml:2:11: `10 parsecs` is not a time; write 500ms, 30s, 10m or 2h",
    ),
    ("'10m'", "[1]", "bad.toml:2:11: "),
    ("'5ms'", "'fast'", "bad.toml:25:8: `fast` is not a time"),
    (
        "environments = 16",
        "environments = '16'",
        "bad.toml:24:16: the text `16` is not a whole number",
    ),
    (
        "= 900",
        "= '900/s'",
        "bad.toml:27:19: the text `900/s` is not a number without a unit",
    ),
    (
        "= 900",
        "= -900",
        "bad.toml:27:19: -900 is not a number above 0",
    ),
    (
        "= 900",
        "= nan",
        "bad.toml:27:19: NaN is not a number above 0",
    ),
    (
        "= 900",
        "= inf",
        "bad.toml:27:19: inf is not a number above 0",
    ),
    ("= 900", "= 1e400", "bad.toml:27:19: "),
    (
        "sms = 66",
        "sms = '50%'",
        "bad.toml:30:19: the text `50%` is not a whole number",
    ),
    (
        "units_per_s = 500",
        "units_per_s = -500",
        "bad.toml:30:37: -500 is not a number above 0",
    ),
    (
        "factor = 1.5",
        "factor = 0",
        "bad.toml:34:10: 0 is not a number from 0.001 to 1000",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\nweight = 0",
        "bad.toml:13:1: job j: weight = 0 is not 0.001 to 1000",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\nweight = inf",
        "bad.toml:13:1: job j: weight = inf is not 0.001 to 1000",
    ),
];

const KEYS: &[Change] = &[
    (
        "seconds",
        "secnds",
        "bad.toml:2:1: unknown key `secnds`; did you mean `seconds`?",
    ),
    (
        "gpus = 1",
        "gpuz = 1",
        "bad.toml:5:1: unknown key `gpuz`; did you mean `gpu`?",
    ),
    (
        "[jobs.spec]",
        "arives = 1\n[jobs.spec]",
        "bad.toml:10:1: unknown key `arives`; did you mean `arrives`?",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\nprioritiy = 1",
        "bad.toml:13:1: unknown key `prioritiy`; did you mean `priority`?",
    ),
    (
        "step = '5ms'",
        "stpe = '5ms'",
        "bad.toml:25:1: unknown key `stpe`; did you mean `step`?",
    ),
    (
        "step = '5ms'",
        "step = '5ms'\nstragglers = { share = 0.1, time = 3 }",
        "bad.toml:26:29: unknown key `time`; did you mean `times`?",
    ),
    (
        "at = '1m'",
        "att = '1m'",
        "bad.toml:33:1: unknown key `att`; did you mean `at`?",
    ),
    (
        "sms = 66",
        "smss = 66",
        "bad.toml:30:13: unknown key `smss`; did you mean `sms`?",
    ),
    (
        "units_per_iteration = 1000\n",
        "",
        "bad.toml:7:1: the key `units_per_iteration` is missing",
    ),
    (
        "sms = 66, units_per_s = 500",
        "sms = 66",
        "bad.toml:30:11: the key `units_per_s` is missing",
    ),
    (
        "max_units_per_s = 900\n",
        "",
        "bad.toml:26:1: max_units_per_s and knee_sms belong together",
    ),
    // Circles: stages wait for each other by their roles alone, and nothing slows itself down.
    (
        "no_gpu = true",
        "no_gpu = true\nafter = ['training']",
        "bad.toml:17:1: unknown key `after`; known are name, role,",
    ),
    (
        "generation = 0.2",
        "training = 0.2",
        "bad.toml:9:42: training does not slow itself down",
    ),
];

const NAMES: &[Change] = &[
    (
        "stage = 'training'",
        "stage = 'trainig'",
        "bad.toml:31:1: the job has no stage `trainig`; did you mean `training`?",
    ),
    (
        "[jobs.stages.training]",
        "[jobs.stages.trianing]",
        "bad.toml:29:1: the job has no stage `trianing`; did you mean `training`?",
    ),
    (
        "[jobs.stages.generation]\nmax_units_per_s = 900\nknee_sms = 60\n",
        "",
        "bad.toml:7:1: what stage generation really does is missing: add [jobs.stages.generation]",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\npolicy = 'best'",
        "bad.toml:13:10: `best` is not known here; known are waterfill, ebrl",
    ),
    (
        "max_units_per_s = 900\nknee_sms = 60",
        "profile = 'nowhere.json'",
        "bad.toml:27:11: cannot read the profiles",
    ),
    (
        "name = 'generation'",
        "name = 'training'",
        "bad.toml:21:1: stage training: its name is that of stages[",
    ),
    (
        "sms = 66",
        "sms = 132",
        "bad.toml:30:45: two points at 0 cores, 132 SMs, batch 1",
    ),
    (
        "gpu = 'h100'",
        "gpu = 'h1000'",
        "bad.toml:6:7: `h1000` is no GPU that is known; known are a100",
    ),
];

const TIMES: &[Change] = &[
    ("'10m'", "0", "bad.toml:2:11: 0 s is not a time above 0 s"),
    ("'10m'", "'-10m'", "bad.toml:2:11: `-10m` is not a time"),
    (
        "'10m'",
        "'90d'",
        "bad.toml:2:11: 7776000 s is not a time from 0 s to 31 days",
    ),
    (
        "at = '1m'",
        "at = -5",
        "bad.toml:33:6: -5 s is not a time from 0 s to 31 days",
    ),
    (
        "at = '1m'",
        "at = '20m'",
        "bad.toml:33:1: the drift begins at 1200 s (`at` counts from the job's arrival), and the simulation ends at 600 s",
    ),
    (
        "[jobs.spec]",
        "ends = 30\n[jobs.spec]",
        "bad.toml:34:1: the drift begins at 60 s (`at` counts from the job's arrival), and its job ends at 30 s",
    ),
    (
        "[jobs.spec]",
        "arrives = '10m'\n[jobs.spec]",
        "bad.toml:10:1: the job arrives at 600 s, and the simulation ends at 600 s",
    ),
    (
        "[jobs.spec]",
        "arrives = 5\nends = 5\n[jobs.spec]",
        "bad.toml:11:1: the job ends (5 s) before it arrives (5 s)",
    ),
    (
        "at = '1m'",
        "kind = 'ramp'\nover = 0",
        "bad.toml:34:8: 0 s is not a time above 0 s",
    ),
];

pub(super) async fn measure(ground: &Ground) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, changes) in [
        (
            "scenarios: wrong units, negative, not finite, weights of zero and infinity",
            NUMBERS,
        ),
        (
            "scenarios: unknown and missing keys at every level; circles",
            KEYS,
        ),
        (
            "scenarios: a stage, a policy, a file or a GPU that is not there; duplicates",
            NAMES,
        ),
        (
            "scenarios: drifts in the past and beyond the end, no length, jobs after the end",
            TIMES,
        ),
    ] {
        let mut group = Group::default();
        for (from, to, word) in changes {
            let text = GOOD.replacen(from, to, 1);
            group.case(to, refused(ground, &text, USAGE, word)).await;
        }
        rows.push(group.row(what));
    }
    rows.push(more(ground).await);
    rows
}

async fn refused(ground: &Ground, text: &str, code: i32, word: &str) -> anyhow::Result<String> {
    let path = ground.file("bad.toml", text.as_bytes())?;
    ground.refused(&["simulate", &path], code, &[word]).await
}

/// The job is in another file, which is not there.
fn elsewhere() -> String {
    let (before, spec) = GOOD.split_once("[jobs.spec]").unwrap_or((GOOD, ""));
    let after = spec.find("[jobs.stages").map_or("", |at| &spec[at..]);
    format!("{before}file = 'nowhere.toml'\n{after}")
}

/// Files that are none, too much, and what no node has.
async fn more(ground: &Ground) -> Row {
    let mut group = Group::default();
    let points = (0..100_000).map(|i| format!("{{ cores = {i}, units_per_s = 5 }},"));
    let many = points.fold(String::from("points = ["), |all, one| all + &one);
    let trains = |key: &str| {
        let role = "role = 'training'";
        GOOD.replacen(role, &format!("{role}\n{key}"), 1)
    };
    let twice = &GOOD[GOOD.find("[[jobs]]").unwrap_or(0)..];
    for (what, text, code, word) in [
        (
            "an empty file",
            String::new(),
            USAGE,
            "bad.toml: the key `name` is missing",
        ),
        (
            "no job",
            GOOD[..GOOD.len() - twice.len()].to_owned(),
            USAGE,
            "bad.toml: the key `jobs` is missing",
        ),
        (
            "a job in a file that is not there",
            elsewhere(),
            USAGE,
            "bad.toml:10:8: cannot read the job file",
        ),
        (
            "a job twice",
            format!("{GOOD}{twice}"),
            USAGE,
            "bad.toml:35:1: two jobs are called j",
        ),
        (
            "100,000 points",
            GOOD.replacen("points = [", &many, 1),
            USAGE,
            "points; at most 4096 are taken",
        ),
        (
            "100 MiB",
            "# nothing\n".repeat(10 << 20),
            USAGE,
            "it is larger than 8 MiB",
        ),
        (
            "a least of cores",
            GOOD.replacen("no_gpu = true", "no_gpu = true\nmin_cores = 100", 1),
            FAILED,
            "short by",
        ),
        (
            "a least of SMs",
            trains("min_sms = 500"),
            FAILED,
            "short by",
        ),
        (
            "a least of memory",
            trains("memory = '900GiB'"),
            FAILED,
            "short by",
        ),
    ] {
        group.case(what, refused(ground, &text, code, word)).await;
    }
    group.row("scenarios: empty, without a job, 100,000 points, 100 MiB, a minimum above the node")
}
