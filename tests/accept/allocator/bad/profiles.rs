//! Files of profiles: CSV and JSON, small and large, and files that are none.
use std::fmt::Write as _;
use std::time::Instant;

use anyhow::ensure;

use super::{Ground, Group, USAGE};
use crate::row::Row;

/// What is stored before, and would be replaced.
pub(super) const GOOD: &str = "stage,gpu,cores,sms,batch,units_per_s,repeat\n\
    kept/sim,none,1,0,1,100,1\nkept/sim,none,1,0,1,101,2\nkept/sim,none,2,0,1,198.5,1\n";
/// The columns that are needed, and a row under them.
const HEAD: &str = "stage,gpu,cores,sms,batch,units_per_s";
const ROW: &str = "kept/sim,none,4,0,1,5";

/// Rows of a large file.
const ROWS: usize = 100_000;
/// A file of 100,000 rows is answered within this time, in a debug build on two cores; in a release build it takes a tenth.
const ANSWERED_WITHIN_S: f64 = 30.0;
/// Bytes of a file that is far too large.
const HUGE: usize = 100 << 20;

/// Columns of CSV, a row under a good one, and what has to be said of it.
const CSV: &[(&str, &str, &str)] = &[
    // Wrong units.
    (
        "stage,gpu,cores,sms,batch,units_per_min",
        ROW,
        "line 1, column 6: there is no column `units_per_min`; is it meant as `units_per_s`?",
    ),
    (
        "stage,gpu,cores,sms,batch,units_per_s,memory_gib",
        ROW,
        "line 1, column 7: there is no column `memory_gib`; is it meant as `memory_bytes`?",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,1,1000/s",
        "line 3, column `units_per_s`: `1000/s` is not a number",
    ),
    (
        HEAD,
        "kept/sim,none,4,50%,1,5",
        "line 3, column `sms`: `50%` is not a whole number",
    ),
    (
        HEAD,
        "kept/sim,none,4 cores,0,1,5",
        "line 3, column `cores`: `4 cores` is not a whole number",
    ),
    // Negative, not finite, absurd.
    (
        HEAD,
        "kept/sim,none,-4,0,1,5",
        "line 3, column `cores`: `-4` is not a whole number, 0 or more",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,1,-5",
        "line 3, column `units_per_s`: -5 is not 0 to",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,1,nan",
        "line 3, column `units_per_s`: NaN is not 0 to",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,1,inf",
        "line 3, column `units_per_s`: inf is not 0 to",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,1,1e400",
        "line 3, column `units_per_s`: inf is not 0 to",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,99999999,5",
        "line 3, column `batch`: 99999999 is more than",
    ),
    (
        HEAD,
        "kept/sim,none,0,0,1,5",
        "line 3, column `cores`: a trial without cores and SMs measures nothing",
    ),
    // Missing.
    (
        "stage,gpu,cores,sms,units_per_s",
        "kept/sim,none,4,0,5",
        "line 1: the column `batch` is missing",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,5",
        "line 3: 5 fields, and the header has 6",
    ),
    (
        HEAD,
        "kept/sim,none,4,0,,5",
        "line 3, column `batch`: it is empty",
    ),
    (HEAD, ",none,4,0,1,5", "line 3, column `stage`: it is empty"),
    // Unknown columns.
    (
        "stage,gpu,cores,sms,batch,units_per_s,colour",
        ROW,
        "line 1, column 7: there is no column `colour`; known are stage,",
    ),
    (
        "stage;gpu;cores;sms;batch;units_per_s",
        ROW,
        "columns are parted by commas",
    ),
    // Weights, and what another stage did beside it.
    (
        "stage,gpu,cores,sms,batch,units_per_s,weight",
        "kept/sim,none,4,0,1,5,0",
        "line 3, column `weight`: 0.0 is not above 0",
    ),
    (
        "stage,gpu,cores,sms,batch,units_per_s,weight",
        "kept/sim,none,4,0,1,5,inf",
        "line 3, column `weight`: inf is not 0 to",
    ),
    (
        "stage,gpu,cores,sms,batch,units_per_s,beside_sms",
        "kept/sim,none,4,0,1,5,20",
        "line 3, column `beside_sms`: it is of another stage",
    ),
];

/// A good point, and what it says instead of what, with what has to be said of that; nothing instead: it is left out.
const POINT: &str = r#"{"cores": 4, "sms": 0, "batch": 1, "units_per_s": 5}"#;
const JSON: &[(&str, &str, &str)] = &[
    (
        r#""units_per_s": 5"#,
        r#""units_per_min": 5"#,
        "line 3, column 50: unknown key `units_per_min`",
    ),
    (
        r#""units_per_s": 5"#,
        r#""units_per_s": "1000/s""#,
        "line 3, column 58: the text `1000/s` is not a number without a unit",
    ),
    (
        r#""sms": 0"#,
        r#""sms": "50%""#,
        "the text `50%` is not a whole number",
    ),
    (
        r#""batch": 1"#,
        r#""batch": 1, "memory_bytes": "10 GB""#,
        "the text `10 GB` is not a whole number",
    ),
    (
        r#""cores": 4"#,
        r#""cores": -4"#,
        "line 3, column 12: `-4` is not a whole number, 0 or more",
    ),
    (
        r#""cores": 4"#,
        r#""cores": 1.5"#,
        "line 3, column 13: `1.5` is not a whole number",
    ),
    (
        r#""cores": 4"#,
        r#""cores": 99999"#,
        "points[1].cores: 99999 is more than",
    ),
    (
        r#""units_per_s": 5"#,
        r#""units_per_s": -5"#,
        "points[1].units_per_s: a throughput must be a finite number",
    ),
    (
        r#""units_per_s": 5"#,
        r#""units_per_s": NaN"#,
        "line 3, column",
    ),
    (
        r#""units_per_s": 5"#,
        r#""units_per_s": 1e400"#,
        "line 3, column",
    ),
    (r#""batch": 1, "#, "", "the key `batch` is missing"),
    (
        r#""batch": 1"#,
        r#""batch": 0"#,
        "points[1].batch: it is at least 1",
    ),
    (
        r#""batch": 1"#,
        r#""batch": 1, "weight": 0"#,
        "points[1].weight: 0.0 is not above 0",
    ),
    (
        r#""batch": 1"#,
        r#""batch": 1, "weight": -1"#,
        "points[1].weight: -1.0 is not above 0",
    ),
    (
        r#""batch": 1"#,
        r#""batch": 1, "replicas": 99999"#,
        "points[1].replicas: 99999 is more than",
    ),
    (
        r#""batch": 1"#,
        r#""batch": 1, "batch": 2"#,
        "the key `batch` is there twice",
    ),
    (r#"5}"#, "5", "line 3, column"),
];

fn profile(stage: &str, points: &str) -> String {
    format!(r#"{{"key": {{"stage": "{stage}", "gpu": "none"}}, "points": [{points}]}}"#)
}

pub(super) async fn measure(ground: &Ground) -> Vec<Row> {
    vec![
        csv(ground).await,
        json(ground).await,
        duplicates(ground).await,
        several(ground).await,
        no_files(ground).await,
        many_rows(ground).await,
    ]
}

/// An import that has to be refused.
async fn refused(
    ground: &Ground,
    name: &str,
    bytes: &[u8],
    words: &[&str],
) -> anyhow::Result<String> {
    let path = ground.file(name, bytes)?;
    let mut all = vec![name];
    all.extend(words);
    ground
        .refused(&["calibrate", "import", &path], USAGE, &all)
        .await
}

async fn csv(ground: &Ground) -> Row {
    let mut group = Group::default();
    for (head, row, word) in CSV {
        let good = match head.split([',', ';']).count() {
            6 => ROW.replace("4,0", "3,0"),
            n if n > 6 => ROW.replace("4,0", "3,0") + ",",
            _ => "kept/sim,none,3,0,5".to_owned(),
        };
        let text = format!("{head}\n{good}\n{row}\n");
        group
            .case(row, refused(ground, "bad.csv", text.as_bytes(), &[word]))
            .await;
    }
    group.row("profiles as CSV: wrong units, negative, NaN, 1e400, missing, unknown columns, weights of 0 and infinity")
}

async fn json(ground: &Ground) -> Row {
    let mut group = Group::default();
    for (from, to, word) in JSON {
        let text = profile(
            "kept/sim",
            &format!("\n{POINT},\n{}", POINT.replacen(from, to, 1)),
        );
        group
            .case(to, refused(ground, "bad.json", text.as_bytes(), &[word]))
            .await;
    }
    for (what, text, word) in [
        (
            "an unknown key",
            profile("kept/sim", POINT).replacen("\"gpu\"", "\"gpus\"", 1),
            "unknown key `gpus`; did you mean `gpu`?",
        ),
        (
            "no key",
            format!("{{\"points\": [{POINT}]}}"),
            "the key `key` is missing",
        ),
        (
            "a name with a space",
            profile("kept sim", POINT),
            "key.stage: `kept sim`",
        ),
    ] {
        group
            .case(what, refused(ground, "bad.json", text.as_bytes(), &[word]))
            .await;
    }
    group.row("profiles as JSON: the same")
}

async fn duplicates(ground: &Ground) -> Row {
    let mut group = Group::default();
    let again = format!("{HEAD}\n{ROW}\n# a remark\n{ROW}\n");
    let words = [
        "line 4, column `cores`: the same point of kept/sim is in line 2 already; repeats are numbered",
    ];
    group
        .case(
            "a row twice",
            refused(ground, "bad.csv", again.as_bytes(), &words),
        )
        .await;
    let again = format!("{HEAD},repeat\n{ROW},2\n{ROW},2\n");
    let words = ["line 3, column `cores`: the same point of kept/sim is in line 2 already"];
    group
        .case(
            "a repeat twice",
            refused(ground, "bad.csv", again.as_bytes(), &words),
        )
        .await;
    let one = profile("kept/sim", POINT);
    let again = format!("[{one},\n{one}]");
    let words = ["[1]: a second profile of kept/sim on none; the first is [0]"];
    group
        .case(
            "a profile twice",
            refused(ground, "bad.json", again.as_bytes(), &words),
        )
        .await;
    group.case("repeats", repeats()).await;
    group.row_asked(
        "the same point twice, the same profile twice",
        "refused with the place, or kept as repeats where they are said to be that; nothing lost in silence",
    )
}

/// Repeats that are said to be some are all kept, in both forms; into a daemon of its own, for this one must not change.
async fn repeats() -> anyhow::Result<String> {
    let other = Ground::start().await?;
    let numbered = format!("{HEAD},repeat\n{ROW},1\n{ROW},2\n");
    let listed = profile("kept/sim", &format!("{POINT}, {POINT}"));
    for (name, text) in [("repeats.csv", numbered), ("repeats.json", listed)] {
        let path = other.file(name, text.as_bytes())?;
        other.done(&["calibrate", "import", &path])?;
        let kept = points(&other)?;
        ensure!(kept == 2, "{name}: of two repeats {kept} are kept");
    }
    Ok("repeats numbered in CSV, and entries of JSON, are all kept".to_owned())
}

/// How many measurements are stored.
fn points(ground: &Ground) -> anyhow::Result<usize> {
    let all: serde_json::Value = serde_json::from_str(&ground.done(&["calibrate", "export"])?)?;
    let profiles = all.as_array().cloned().unwrap_or_default();
    let points = profiles.iter().filter_map(|p| p["points"].as_array());
    Ok(points.map(Vec::len).sum())
}

/// As many rows as no profile holds, over several: stored to the last one.
async fn over_several() -> anyhow::Result<String> {
    let other = Ground::start().await?;
    let before = points(&other)?;
    let mut text = format!("{HEAD},repeat\n");
    for i in 0..ROWS {
        let _ = writeln!(
            text,
            "many/s{},none,{},0,1,5,{}",
            i % 20,
            1 + i / 20 % 100,
            i / 2_000
        );
    }
    let path = other.file("many.csv", text.as_bytes())?;
    let start = Instant::now();
    other.done(&["calibrate", "import", &path])?;
    let took = start.elapsed().as_secs_f64();
    let stored = points(&other)? - before;
    ensure!(stored == ROWS, "{stored} of {ROWS} are stored");
    ensure!(took < ANSWERED_WITHIN_S, "it took {took:.1} s");
    Ok(format!(
        "{ROWS} rows over 20 profiles are stored to the last one in {took:.1} s"
    ))
}

/// One more than a daemon keeps.
fn many_profiles() -> String {
    let many: Vec<String> = (0..1_001)
        .map(|i| profile(&format!("bad/s{i}"), POINT))
        .collect();
    format!("[{}]", many.join(","))
}

async fn several(ground: &Ground) -> Row {
    let mut group = Group::default();
    let bad = format!("{HEAD}\n{ROW}\nbad/new,none,1,0,1,5\nbad/two,none,1,0,1,-5\n");
    group
        .case(
            "CSV",
            refused(
                ground,
                "bad.csv",
                bad.as_bytes(),
                &["line 4, column `units_per_s`"],
            ),
        )
        .await;
    let (new, good) = (profile("bad/new", POINT), profile("kept/sim", POINT));
    for (what, last, word) in [
        (
            "a point",
            profile("bad/two", &POINT.replace("\"batch\": 1", "\"batch\": 0")),
            "[2].points[0].batch: it is at least 1",
        ),
        (
            "replicas",
            profile("bad/two", &POINT.replace("5}", "5, \"replicas\": 99999}")),
            "[2].points[0].replicas: 99999",
        ),
        (
            "no point",
            profile("bad/two", ""),
            "[2].points: there is no measurement",
        ),
        (
            "too many",
            profile("bad/two", &vec![POINT; 10_001].join(",")),
            "[2].points: 10001 measurements; a profile holds 10000",
        ),
    ] {
        let text = format!("[{new}, {good}, {last}]");
        group
            .case(what, refused(ground, "bad.json", text.as_bytes(), &[word]))
            .await;
    }
    let made_with = POINT.replace(
        "5}",
        r#"5, "conditions": {"cpu": "a CPU with a name of fifty bytes, as many have now", "driver": "550.90.07"}}"#,
    );
    let large = profile("bad/two", &vec![made_with.as_str(); 10_000].join(","));
    let text = format!("[{new}, {large}]");
    let words = [
        "the profile of bad/two takes",
        "bytes, and 786432 are taken at once",
    ];
    let found = refused(ground, "bad.json", text.as_bytes(), &words);
    group.case("one that is larger than a message", found).await;
    let many = many_profiles();
    let words = ["1001 profiles; 1000 are kept"];
    let found = refused(ground, "bad.json", many.as_bytes(), &words);
    group.case("1,001 profiles", found).await;
    group.row("several profiles in a file, of which the last is bad")
}

async fn no_files(ground: &Ground) -> Row {
    let mut group = Group::default();
    let huge = "# nothing\n".repeat(HUGE / 10);
    let cases: [(&str, &[u8], &str); 9] = [
        ("an empty file", b"", "the column `stage` is missing"),
        (
            "a header only",
            HEAD.as_bytes(),
            "there is no measurement under the header",
        ),
        ("an empty list", b"[]", "there is no profile in it"),
        (
            "no points",
            br#"{"key": {"stage": "kept/sim", "gpu": "none"}, "points": []}"#,
            "points: there is no measurement",
        ),
        (
            "half a file",
            br#"{"key": {"stage": "kept/sim", "gpu"#,
            "line 1, column",
        ),
        (
            "latin-1",
            b"stage,gpu\n# caf\xe9\n",
            "bad.txt:2:6: this is no text in UTF-8",
        ),
        ("zeros", &[0; 64], "line 1, column 1"),
        (
            "a byte-order mark before a mistake",
            b"\xef\xbb\xbf{\"kye\": 1}",
            "line 1, column 6: unknown key `kye`",
        ),
        (
            "100 MiB of remarks",
            huge.as_bytes(),
            "the column `stage` is missing",
        ),
    ];
    for (what, bytes, word) in cases {
        group
            .case(what, refused(ground, "bad.txt", bytes, &[word]))
            .await;
    }
    for (what, path, word) in [
        ("a folder", "/", "it is a folder"),
        (
            "a device without an end",
            "/dev/zero",
            "it is larger than 256 MiB",
        ),
        ("nothing", "/no/such.csv", "No such file"),
    ] {
        let import = ["calibrate", "import", path];
        group
            .case(what, ground.refused(&import, USAGE, &[path, word]))
            .await;
    }
    group.row("files that are none: empty, half, a folder, 100 MiB, without an end, no UTF-8, a byte-order mark")
}

async fn many_rows(ground: &Ground) -> Row {
    let start = Instant::now();
    let mut group = Group::default();
    let mut text = format!("{HEAD},repeat\n");
    for i in 0..ROWS {
        let _ = writeln!(text, "{ROW},{i}");
    }
    let words = ["line 10002, column `stage`: a profile holds 10000 measurements"];
    group
        .case("CSV", refused(ground, "bad.csv", text.as_bytes(), &words))
        .await;
    let text = profile("kept/sim", &vec![POINT; ROWS].join(",\n"));
    let words = ["points: 100000 measurements; a profile holds 10000 at most"];
    group
        .case("JSON", refused(ground, "bad.json", text.as_bytes(), &words))
        .await;
    let took = start.elapsed().as_secs_f64();
    group.case("over several profiles", over_several()).await;
    let mut row = group.row(&format!(
        "{ROWS} rows of one profile, as CSV and as JSON: a named limit, quickly"
    ));
    row.measured = format!("refused both in {took:.1} s; {}", row.measured);
    row.holds = Some(row.holds == Some(true) && took < ANSWERED_WITHIN_S);
    row
}
