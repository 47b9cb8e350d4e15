//! Job files, at the three doors that read them: `submit`, `plan --offline`, `calibrate`.
use super::{FAILED, Ground, Group, USAGE};
use crate::row::Row;

/// A job that is there before.
pub(super) const KEPT: &str = "name = 'kept'\nunit = 'env_step'\n[[stages]]\nname = 'sim'\nrole = 'simulation'\n\
    no_gpu = true\nmin_cores = 1\nmax_cores = 1\n";

/// A job without a mistake, line by line.
const JOB: &str = "name = 'bad'
unit = 'env_step'
[rebalance]
gap = 0.2
[[stages]]
name = 'sim'
role = 'simulation'
no_gpu = true
min_cores = 1
[stages.bench]
command = ['true']
seconds = '1s'
[[stages]]
name = 'train'
role = 'training'
min_sms = 16
memory = '4GiB'
[stages.bench]
command = ['true']
sms = [16, 32]
";

/// The node of `plan --offline`.
const NODE: [&str; 6] = ["--cores", "8", "--gpus", "1", "--gpu", "h100"];

/// What is written instead of what, and what has to be said of it.
type Change = (&'static str, &'static str, &'static str);

const UNITS: &[Change] = &[
    (
        "'4GiB'",
        "'4 apples'",
        "bad.toml:17:10: `4 apples` is not an amount of memory; write 10GiB, 512MiB or a number of bytes",
    ),
    (
        "'4GiB'",
        "4",
        "bad.toml:17:10: `4` would be 4 bytes; did you mean 4GiB?",
    ),
    (
        "'4GiB'",
        "-4",
        "bad.toml:17:10: `-4` is not an amount of memory",
    ),
    ("'4GiB'", "1e400", "bad.toml:17:10: "),
    (
        "min_sms = 16",
        "min_sms = '4GiB'",
        "bad.toml:16:11: `4GiB` is not a share of a GPU; write a number of SMs or 1% to 100%",
    ),
    (
        "min_sms = 16",
        "min_sms = '130%'",
        "bad.toml:16:11: `130%` is not a share of a GPU",
    ),
    (
        "min_sms = 16",
        "min_sms = -16",
        "bad.toml:16:11: `-16` is not a share of a GPU",
    ),
    (
        "min_cores = 1",
        "min_cores = '1 core'",
        "bad.toml:9:13: the text `1 core` is not a whole number, 0 or more",
    ),
    (
        "min_cores = 1",
        "min_cores = -1",
        "bad.toml:9:13: `-1` is not a whole number, 0 or more",
    ),
    (
        "min_cores = 1",
        "min_cores = 1.5",
        "bad.toml:9:13: `1.5` is not a whole number",
    ),
    (
        "gap = 0.2",
        "gap = '20%'",
        "bad.toml:4:7: the text `20%` is not a number without a unit",
    ),
    (
        "gap = 0.2",
        "gap = 20",
        "bad.toml:4:1: job bad: gap = 20 is not 0 to 1",
    ),
    (
        "gap = 0.2",
        "gap = nan",
        "bad.toml:4:1: job bad: gap = NaN is not 0 to 1",
    ),
    (
        "gap = 0.2",
        "horizon = '10 parsecs'",
        "bad.toml:4:11: `10 parsecs` is not a time; write 500ms, 30s, 10m or 2h",
    ),
    (
        "gap = 0.2",
        "horizon = -5",
        "bad.toml:4:11: `-5` is not a time",
    ),
    (
        "gap = 0.2",
        "horizon = inf",
        "bad.toml:4:11: `inf` is not a time",
    ),
    (
        "seconds = '1s'",
        "seconds = 0",
        "bad.toml:12:1: stage sim: seconds = 0 s: it is more than 0 s",
    ),
    (
        "seconds = '1s'",
        "timeout = '-5s'",
        "bad.toml:12:11: `-5s` is not a time",
    ),
    (
        "seconds = '1s'",
        "cores = [-1]",
        "bad.toml:12:10: `-1` is not a whole number",
    ),
    (
        "seconds = '1s'",
        "cores = [0]",
        "bad.toml:12:1: stage sim: cores has 0; it is 1 to",
    ),
    (
        "seconds = '1s'",
        "batches = [0]",
        "bad.toml:12:1: stage sim: batches has 0; it is 1 to",
    ),
    ("sms = [16, 32]", "sms = ['150%']", "bad.toml:20:"),
];

const MISSING: &[Change] = &[
    ("name = 'bad'\n", "", "bad.toml: the key `name` is missing"),
    (
        "unit = 'env_step'\n",
        "",
        "bad.toml: the key `unit` is missing",
    ),
    (
        "role = 'training'\n",
        "",
        "bad.toml:13:1: the key `role` is missing",
    ),
    (
        "name = 'train'\n",
        "",
        "bad.toml:13:1: the key `name` is missing",
    ),
    (
        "command = ['true']\nsms",
        "sms",
        "bad.toml:18:9: stage train: command names no program",
    ),
    (
        "command = ['true']\nsms",
        "command = []\nsms",
        "bad.toml:19:1: stage train: command names no program",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\nunit = 'token'",
        "bad.toml:3:1: duplicate key",
    ),
    (
        "name = 'train'",
        "name = 'sim'",
        "bad.toml:14:1: stage sim: its name is that of stages[",
    ),
    (
        "min_cores = 1",
        "min_cores = 4\nmax_cores = 2",
        "bad.toml:10:1: stage sim: min_cores = 4 is more than max_cores = 2",
    ),
    (
        "min_cores = 1",
        "workers = 0",
        "bad.toml:9:1: stage sim: workers = 0: it is at least 1",
    ),
    (
        "min_cores = 1",
        "workers = 5000",
        "bad.toml:9:1: stage sim: workers = 5000 is more than 1024",
    ),
    (
        "name = 'bad'",
        "name = 'two words'",
        "bad.toml:1:1: job two words: name `two words`",
    ),
    ("min_cores = 1", "min_cores =", "bad.toml:9:"),
];

const UNKNOWN: &[Change] = &[
    (
        "unit =",
        "uint =",
        "bad.toml:2:1: unknown key `uint`; did you mean `unit`?",
    ),
    (
        "gap =",
        "gpa =",
        "bad.toml:4:1: unknown key `gpa`; did you mean `gap`?",
    ),
    (
        "memory =",
        "memroy =",
        "bad.toml:17:1: unknown key `memroy`; did you mean `memory`?",
    ),
    (
        "seconds =",
        "secnds =",
        "bad.toml:12:1: unknown key `secnds`; did you mean `seconds`?",
    ),
    (
        "[rebalance]",
        "[balance]",
        "bad.toml:3:2: unknown key `balance`; did you mean `rebalance`?",
    ),
    (
        "gap = 0.2",
        "detector = 'streek'",
        "bad.toml:4:12: `streek` is not known here; did you mean `streak`?",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\npolicy = 'waterfil'",
        "bad.toml:3:10: `waterfil` is not known here; did you mean `waterfill`?",
    ),
    (
        "role = 'training'",
        "role = 'trainer'",
        "bad.toml:15:8: `trainer` is not known here; did you mean `training`?",
    ),
];

/// No file can say that a stage waits for another: the order follows from the roles.
const CIRCLES: &[Change] = &[
    (
        "no_gpu = true",
        "no_gpu = true\nafter = ['train']",
        "bad.toml:9:1: unknown key `after`; known are name, role,",
    ),
    (
        "min_sms = 16",
        "min_sms = 16\ndepends_on = 'sim'",
        "bad.toml:17:1: unknown key `depends_on`; known are name, role,",
    ),
    (
        "unit = 'env_step'",
        "unit = 'env_step'\nafter = ['bad']",
        "bad.toml:3:1: unknown key `after`; known are name, unit,",
    ),
    (
        "[rebalance]",
        "[stages_after]\nsim = 'train'\ntrain = 'sim'\n[rebalance]",
        "bad.toml:3:2: unknown key `stages_after`",
    ),
];

const WEIGHTS: &[Change] = &[
    (
        "unit =",
        "weight = 0\nunit =",
        "bad.toml:2:1: job bad: weight = 0 is not 0.001 to 1000",
    ),
    (
        "unit =",
        "weight = -1\nunit =",
        "bad.toml:2:1: job bad: weight = -1 is not 0.001 to 1000",
    ),
    (
        "unit =",
        "weight = inf\nunit =",
        "bad.toml:2:1: job bad: weight = inf is not 0.001 to 1000",
    ),
    (
        "unit =",
        "weight = nan\nunit =",
        "bad.toml:2:1: job bad: weight = NaN is not 0.001 to 1000",
    ),
    ("unit =", "weight = 1e400\nunit =", "bad.toml:2:"),
    (
        "unit =",
        "weight = '2x'\nunit =",
        "bad.toml:2:10: the text `2x` is not a number without a unit",
    ),
];

/// Least amounts that the node (an H100) does not have, and where that is asked for.
const ABOVE: &[Change] = &[
    ("min_cores = 1", "min_cores = 5000", "bad.toml:9:1: cannot"),
    ("min_sms = 16", "min_sms = 500", "bad.toml:16:1: cannot"),
    ("'4GiB'", "'900GiB'", "bad.toml:17:1: cannot"),
    ("unit =", "gpu_count = 9\nunit =", "bad.toml:2:1: cannot"),
];

pub(super) async fn measure(ground: &Ground) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, changes) in [
        (
            "job files: wrong units, negative, not finite (submit, plan --offline, calibrate)",
            UNITS,
        ),
        (
            "job files: missing keys, duplicate stages, a least above the most",
            MISSING,
        ),
        (
            "job files: unknown keys and words at every level, with the nearest known one",
            UNKNOWN,
        ),
        (
            "circular stages: no file can express one, and a key that tries is unknown",
            CIRCLES,
        ),
        ("weights of zero, below, infinity and no number", WEIGHTS),
    ] {
        rows.push(group(ground, changes).await.row(what));
    }
    rows.push(no_texts(ground).await);
    rows.push(above(ground).await);
    rows
}

/// Each file at each door.
async fn group(ground: &Ground, changes: &[Change]) -> Group {
    let mut group = Group::default();
    for (from, to, word) in changes {
        let text = JOB.replacen(from, to, 1);
        for door in ["submit", "plan", "calibrate"] {
            let words = [*word];
            let found = door_refuses(ground, door, text.as_bytes(), USAGE, &words);
            group.case(&format!("{door}, {to}"), found).await;
        }
    }
    group
}

async fn door_refuses(
    ground: &Ground,
    door: &str,
    text: &[u8],
    code: i32,
    words: &[&str],
) -> anyhow::Result<String> {
    let path = ground.file("bad.toml", text)?;
    let mut arguments = vec![door, &path];
    if door == "plan" {
        arguments.push("--offline");
        arguments.extend(NODE);
    }
    ground.refused(&arguments, code, words).await
}

async fn no_texts(ground: &Ground) -> Row {
    let mut group = Group::default();
    let huge = "# nothing\n".repeat(10 << 20);
    let cases: [(&str, &[u8], &str); 4] = [
        ("an empty file", b"", "bad.toml: the key `name` is missing"),
        (
            "latin-1",
            b"name = 'bad'\n# caf\xe9\n",
            "bad.toml:2:6: this is no text in UTF-8",
        ),
        (
            "a byte-order mark before a mistake",
            b"\xef\xbb\xbfnmae = 'bad'\n",
            "bad.toml:1:1: unknown key `nmae`",
        ),
        ("100 MiB", huge.as_bytes(), "it is larger than 1 MiB"),
    ];
    for door in ["submit", "plan", "calibrate"] {
        for (what, bytes, word) in cases {
            let words = [word];
            let found = door_refuses(ground, door, bytes, USAGE, &words);
            group.case(&format!("{door}, {what}"), found).await;
        }
        let mut arguments = vec![door, "/"];
        if door == "plan" {
            arguments.push("--offline");
            arguments.extend(NODE);
        }
        group
            .case(
                "a folder",
                ground.refused(
                    &arguments,
                    USAGE,
                    &["cannot read the job file /: it is a folder"],
                ),
            )
            .await;
    }
    group.row("job files that are none: empty, no UTF-8, a byte-order mark, 100 MiB, a folder")
}

async fn above(ground: &Ground) -> Row {
    let mut group = Group::default();
    for (from, to, place) in ABOVE {
        let text = JOB.replacen(from, to, 1);
        for door in ["submit", "plan"] {
            let words = [*place, "short by"];
            let found = door_refuses(ground, door, text.as_bytes(), FAILED, &words);
            group.case(&format!("{door}, {to}"), found).await;
        }
    }
    group.row_asked(
        "a minimum above the node: cores, SMs, memory, GPUs (submit, plan --offline)",
        "says what is short, by how much, and where it is asked for; nothing stored",
    )
}
