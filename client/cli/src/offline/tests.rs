//! Plans without a daemon: what is chosen, what is said, what is refused.
use evenkeel_client::{ProfileKey, ProfilePoint};
use evenkeel_gpu::GpuSpec;

use super::*;
use crate::jobfile::JobFile;

const JOB: &str = "
name = 'reach'
unit = 'env_step'
[[stages]]
name = 'simulation'
role = 'simulation'
min_cores = 1
sms = 0
[[stages]]
name = 'generation'
role = 'generation'
min_sms = '10%'
memory = '20GiB'
[[stages]]
name = 'training'
role = 'training'
min_sms = 16
memory = '24GiB'
";

fn h100(cores: u32) -> Sizes {
    Sizes {
        cores,
        gpu: Some(GpuSpec::h100()),
        ..Sizes::default()
    }
}

fn job(text: &str, sizes: &Sizes) -> JobSpec {
    JobFile::parse(text, "job.toml")
        .unwrap()
        .spec(sizes.sms())
        .unwrap()
}

/// A stage that does so much for each core or SM, measured at two quotas.
fn profile(stage: &str, gpu: &str, per_core: f64, per_sm: f64) -> Profile {
    let point = |n: u32| ProfilePoint {
        cores: if per_core > 0.0 { n } else { 1 },
        sms: if per_sm > 0.0 { 12 * n } else { 0 },
        batch: 1,
        replicas: 1,
        units_per_s: f64::from(n) * (per_core + 12.0 * per_sm),
        memory_bytes: 0,
        weight: 1.0,
        ..ProfilePoint::default()
    };
    let numbers = if per_core > 0.0 { 1..=8 } else { 1..=11 };
    Profile {
        key: ProfileKey {
            stage: format!("reach/{stage}"),
            gpu: gpu.to_owned(),
        },
        points: numbers.map(point).collect(),
        ..Profile::default()
    }
}

fn profiles() -> Vec<Profile> {
    vec![
        profile("simulation", "none", 100.0, 0.0),
        profile("generation", "emulated-h100", 0.0, 10.0),
        profile("training", "emulated-h100", 0.0, 5.0),
    ]
}

#[test]
fn a_split_balances_the_stages_and_says_what_binds() {
    let sizes = h100(16);
    let planned = plan(&job(JOB, &sizes), &profiles(), &sizes).unwrap();
    let plan = planned.plan;
    assert!(planned.remarks.is_empty(), "{:?}", planned.remarks);
    let sms: Vec<u32> = plan.stages.iter().map(|s| s.sms).collect();
    // 10 for each SM against 5: a third of 132 and two thirds.
    assert_eq!(sms, [0, 44, 88]);
    assert_eq!(plan.units_per_s, 440.0);
    assert_eq!(plan.by, "waterfill");
    assert!(plan.stages[0].cores >= 5, "440 at 100 a core: {plan:?}");
    let why = plan.why.join(" ");
    for part in [
        "binds",
        "One more core would bring",
        "2 SMs",
        "one more GiB",
    ] {
        assert!(why.contains(part), "{part} is missing in {why}");
    }
}

#[test]
fn fewer_cores_make_the_simulator_bind() {
    let sizes = h100(4);
    let plan = plan(&job(JOB, &sizes), &profiles(), &sizes).unwrap().plan;
    assert_eq!(plan.binding_stage, "simulation");
    assert!(plan.units_per_s < 440.0, "{plan:?}");
}

#[test]
fn what_was_not_measured_gets_an_even_share_and_is_said_to() {
    let sizes = h100(16);
    let plan = plan(&job(JOB, &sizes), &[], &sizes).unwrap().plan;
    assert_eq!(plan.by, "even");
    assert!(plan.why[0].contains("No stage was measured"), "{plan:?}");
}

#[test]
fn profiles_of_other_hardware_are_used_and_said_to_be() {
    let sizes = h100(16);
    let spec = job(JOB, &sizes);
    let mut given = profiles();
    given.insert(1, profile("generation", "emulated-a100", 0.0, 1.0));
    let same = plan(&spec, &given, &sizes).unwrap();
    assert_eq!(same.plan.units_per_s, 440.0, "the one of this GPU is taken");
    given.remove(2);
    given.push(profile("rendering", "none", 1.0, 0.0));
    let other = plan(&spec, &given, &sizes).unwrap();
    assert!(other.plan.units_per_s < 440.0);
    assert_eq!(
        other.remarks,
        [
            "reach/generation was measured on emulated-a100; it is taken to do the same on h100",
            "the profile of reach/rendering is of no stage of this job (reach/simulation, reach/generation, \
             reach/training)",
        ]
    );
}

#[test]
fn refusals_say_what_is_short_and_what_to_do() {
    let check = |text: &str, sizes: &Sizes, what: &str, hint: &str| {
        let spec = job(
            text,
            &Sizes {
                sms: Some(132),
                ..sizes.clone()
            },
        );
        let failure = plan(&spec, &[], sizes).unwrap_err();
        assert!(failure.what.contains(what), "{failure}");
        let said = failure.hint.clone().unwrap_or_default();
        assert!(said.contains(hint), "{failure}");
    };
    let none = Sizes {
        cores: 4,
        ..Sizes::default()
    };
    check(JOB, &none, "stage generation needs a GPU", "--gpu h100");
    let small = Sizes {
        memory_bytes: Some(30 << 30),
        ..h100(16)
    };
    check(JOB, &small, "44 GiB", "--gpu-memory");
    let cores = JOB.replace("min_cores = 1", "min_cores = 8");
    check(&cores, &h100(4), "8 cores", "--cores");
    let gpus = Sizes {
        gpus: Some(1),
        ..h100(4)
    };
    let two = JOB.replace("unit =", "gpu_count = 2\nunit =");
    check(&two, &gpus, "2 GPUs", "--gpus");
}

#[test]
fn measurements_that_are_none_are_named_by_stage_and_point() {
    let sizes = h100(16);
    let mut given = profiles();
    given[2].points[3].units_per_s = -1.0;
    let failure = plan(&job(JOB, &sizes), &given, &sizes).unwrap_err();
    assert!(
        failure
            .what
            .starts_with("reach/training.points[3].units_per_s: a throughput must be"),
        "{failure}"
    );
}

#[test]
fn the_memory_of_a_known_gpu_is_its_own_less_what_a_daemon_keeps() {
    let sizes = h100(1);
    let whole = GpuSpec::h100().memory_bytes - (512 << 20);
    let text = |memory: u64| {
        format!("name='reach'\nunit='u'\n[[stages]]\nname='s'\nrole='other'\nmemory={memory}\n")
    };
    assert!(plan(&job(&text(whole), &sizes), &[], &sizes).is_ok());
    assert!(plan(&job(&text(whole + 1), &sizes), &[], &sizes).is_err());
}
