//! Job files as people write them: what they say, and what is said of mistakes.
use super::*;

const EXAMPLE: &str = include_str!("../../../../examples/job.toml");

#[test]
fn the_example_reads_and_says_what_it_says() {
    let file = JobFile::parse(EXAMPLE, "examples/job.toml").unwrap();
    let spec = file.spec(Some(132)).unwrap();
    assert_eq!(spec.stages.len(), 3);
    assert_eq!(spec.rebalance.horizon_ms, Some(600_000));
    let generation = &spec.stages[1];
    assert_eq!(generation.memory_bytes, 20 << 30);
    assert_eq!(generation.min_sms, 14, "10 % of 132, rounded up");
    assert!(file.stages.iter().all(|s| s.bench.is_some()));
    assert!(file.spec(None).is_err(), "a percentage of an unknown GPU");
}

#[test]
fn the_laptops_example_reads_without_a_remark() {
    let text = include_str!("../../../../examples/laptop.toml");
    let file = JobFile::parse(text, "examples/laptop.toml").unwrap();
    let spec = file.spec(None).unwrap();
    assert!(spec.stages[0].no_gpu && !spec.stages[1].no_gpu);
    assert!(file.remarks().is_empty());
    assert!(file.stages.iter().all(|s| s.bench.is_some()));
}

#[test]
fn mistakes_are_named_with_their_place_and_the_nearest_key() {
    let base = "name = \"j\"\nunit = \"env_step\"\n";
    let stage = "[[stages]]\nname = \"s\"\nrole = \"training\"\n";
    for (text, expect) in [
        (
            format!("{base}polcy = \"ebrl\"\n{stage}"),
            "j.toml:3:1: unknown key `polcy`; did you mean `policy`?",
        ),
        (
            format!("{base}{stage}memroy = \"10GiB\"\n"),
            "j.toml:6:1: unknown key `memroy`; did you mean `memory`?",
        ),
        (
            format!("{base}policy = \"waterfil\"\n{stage}"),
            "j.toml:3:10: `waterfil` is not known here; did you mean `waterfill`?",
        ),
        (
            format!("{base}{stage}memory = \"10 apples\"\n"),
            "j.toml:6:10: `10 apples` is not an amount of memory; write 10GiB, 512MiB or a number of bytes",
        ),
        (
            format!("{base}{stage}sms = \"130%\"\n"),
            "j.toml:6:7: `130%` is not a share of a GPU; write a number of SMs or 1% to 100%",
        ),
        (
            format!("{base}colour = 1\n{stage}"),
            "j.toml:3:1: unknown key `colour`; known are ",
        ),
        (stage.to_owned(), "j.toml: the key `name` is missing"),
        ("name = ".to_owned(), "j.toml:1:8: "),
    ] {
        let failure = JobFile::parse(&text, "j.toml").unwrap_err();
        assert!(
            failure.what.starts_with(expect),
            "{text}\ngave {}\nnot {expect}",
            failure.what
        );
        assert_eq!(failure.code, crate::fail::USAGE);
    }
}

#[test]
fn a_stage_without_gpu_work_says_so_in_one_of_two_ways() {
    let stage = |keys: &str| {
        let text = format!("name='j'\nunit='u'\n[[stages]]\nname='s'\nrole='simulation'\n{keys}\n");
        let file = JobFile::parse(&text, "j").unwrap();
        (file.spec(Some(132)), file.remarks())
    };
    for keys in [
        "no_gpu = true",
        "sms = 0",
        "max_sms = 0",
        "min_sms = 0\nmax_sms = 0",
    ] {
        let (spec, remarks) = stage(keys);
        let stage = &spec.unwrap().stages[0];
        assert!(
            stage.no_gpu,
            "{keys}: on the wire a most of 0 SMs is no limit"
        );
        assert_eq!((stage.min_sms, stage.max_sms), (0, None), "{keys}");
        assert!(remarks.is_empty(), "{keys}: {remarks:?}");
    }
    let (spec, remarks) = stage("");
    assert!(!spec.unwrap().stages[0].no_gpu);
    assert!(remarks[0].contains("no_gpu = true"), "{remarks:?}");
    for (keys, expect) in [
        ("sms = 0\nmemory = '1GiB'", "asks for GPU memory"),
        ("no_gpu = true\nsms = 4", "asks for SMs"),
        ("min_sms = 4\nmax_sms = 0", "asks for SMs"),
        ("no_gpu = true\ncores = 0", "neither cores nor SMs"),
        ("sms = 0\nno_cores = true", "neither cores nor SMs"),
    ] {
        let failure = stage(keys).0.unwrap_err();
        assert!(failure.what.contains(expect), "{keys}: {failure}");
    }
}

#[test]
fn a_stage_without_cores_says_so_in_one_of_two_ways() {
    let stage = |keys: &str| {
        let text = format!("name='j'\nunit='u'\n[[stages]]\nname='s'\nrole='other'\n{keys}\n");
        JobFile::parse(&text, "j").unwrap().spec(Some(132))
    };
    for keys in [
        "no_cores = true",
        "cores = 0",
        "max_cores = 0",
        "min_cores = 0\nmax_cores = 0",
    ] {
        let stage = &stage(keys).unwrap().stages[0];
        assert!(
            stage.no_cores,
            "{keys}: on the wire a most of 0 cores is no limit"
        );
        assert_eq!((stage.min_cores, stage.max_cores), (0, None), "{keys}");
    }
    assert!(!stage("").unwrap().stages[0].no_cores);
    for keys in [
        "no_cores = true\ncores = 4",
        "no_cores = true\nmin_cores = 1",
        "min_cores = 4\nmax_cores = 0",
    ] {
        let failure = stage(keys).unwrap_err();
        assert!(failure.what.contains("asks for cores"), "{keys}: {failure}");
    }
}

#[test]
fn one_amount_is_the_least_and_the_most() {
    let text = "name='j'\nunit='u'\n[[stages]]\nname='s'\nrole='other'\ncores=4\nsms='50%'\nmemory='1024B'\n";
    let stage = &JobFile::parse(text, "j")
        .unwrap()
        .spec(Some(100))
        .unwrap()
        .stages[0];
    assert_eq!((stage.min_cores, stage.max_cores), (4, Some(4)));
    assert_eq!((stage.min_sms, stage.max_sms), (50, Some(50)));
    assert_eq!(stage.memory_bytes, 1024);
    let both = format!("{text}max_cores=8\n");
    assert!(JobFile::parse(&both, "j").unwrap().spec(Some(100)).is_err());
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_no_node_would_take_is_refused_with_its_place() {
    let base = "name = \"j\"\nunit = \"u\"\n";
    let sim = "[[stages]]\nname = \"s\"\nrole = \"simulation\"\nno_gpu = true\n";
    let g = "[[stages]]\nname = \"g\"\nrole = \"generation\"\n";
    let bench = "[stages.bench]\ncommand = [\"true\"]\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j.toml");
    for (text, expect) in [
        (
            format!("{base}weight = inf\n{sim}"),
            "j.toml:3:1: job j: weight = inf is not 0.001 to 1000",
        ),
        (
            format!("{base}[rebalance]\ngap = nan\n{sim}"),
            "j.toml:4:1: job j: gap = NaN is not 0 to 1",
        ),
        (
            format!("{base}{sim}{sim}"),
            "j.toml:8:1: stage s: its name is that of stages[",
        ),
        (
            format!("{base}{sim}workers = 5000\n"),
            "j.toml:7:1: stage s: workers = 5000 is more than 1024",
        ),
        (
            format!("{base}stages = [{{ name = \"s\", role = \"other\", workers = 5000 }}]"),
            "j.toml:3:41: stage s: workers = 5000 is more than",
        ),
        (
            format!("{base}{g}min_sms = \"80%\"\nmax_sms = \"20%\"\n"),
            "j.toml:7:1: stage g: min_sms = 80 is more",
        ),
        (
            format!("{base}{sim}after = [\"g\"]\n"),
            "j.toml:7:1: unknown key `after`; known are",
        ),
        (
            format!("{base}{sim}[stages.bench]\ncommand = []\n"),
            "j.toml:8:1: stage s: command names no program",
        ),
        (
            format!("{base}{sim}{bench}cores = [0]\n"),
            "j.toml:9:1: stage s: cores has 0; it is 1 to",
        ),
        (
            format!("{base}{sim}{bench}batches = [0]\n"),
            "j.toml:9:1: stage s: batches has 0; it is 1 to",
        ),
        (
            format!("{base}{sim}{bench}replicas = [0]\n"),
            "j.toml:9:1: stage s: replicas has 0; it is 1 to",
        ),
        (
            format!("{base}{sim}{bench}seconds = 0\n"),
            "j.toml:9:1: stage s: seconds = 0 s: it is more than 0 s",
        ),
        (
            format!("{base}{sim}{bench}timeout = \"20d\"\n"),
            "j.toml:9:1: stage s: timeout = 1728000 s",
        ),
        (
            format!("{base}{g}memory = \"1GiB\"\n{bench}sms = [99999]\n"),
            "j.toml:9:1: stage g: sms has 99999; it is 1 to",
        ),
        (
            format!(
                "{base}{sim}{bench}cores = {:?}\nbatches = {:?}\n",
                [1; 200], [1; 200]
            ),
            "make 40000 points; a profile holds 10000",
        ),
    ] {
        std::fs::write(&path, &text).unwrap();
        let failure = JobFile::load(&path, None).unwrap_err();
        assert!(failure.what.contains(expect), "{failure}\nnot {expect}");
        assert_eq!(failure.code, crate::fail::USAGE);
    }
    // A number and a percentage: which is more depends on the GPU.
    for keys in [
        "min_sms = 90\nmax_sms = \"80%\"",
        "min_sms = \"80%\"\nmax_sms = 90",
    ] {
        std::fs::write(&path, format!("{base}{g}{keys}\n")).unwrap();
        JobFile::load(&path, None).unwrap();
    }
}
