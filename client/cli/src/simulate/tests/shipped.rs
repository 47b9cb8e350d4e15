//! The scenarios that ship: each reads, runs, says something, and no split in it beats the clairvoyant; the demo's is what
//! the demo's load gives, and predicts what the demo's own virtual pipeline does.

use std::fs;
use std::path::PathBuf;

use evenkeel_gpu::GpuSpec;
use evenkeel_rollout::pipeline::{Split, run};

use super::super::policy::Policy;
use super::super::{Wish, demo, demo_scenario, simulate};
use super::*;
use crate::demo::load::Load;

/// So many of them at least: one for each case that the project names.
const SHIPPED: usize = 12;
/// Long enough for windows, short enough for a test.
const SECONDS: f64 = 240.0;
/// Chance favours now one and now another split; and a clairvoyant does not know it.
const CHANCE: f64 = 1.03;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../config/scenarios")
}

#[test]
fn all_of_them_run_and_none_of_their_splits_beats_the_clairvoyant() {
    let mut files: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= SHIPPED, "only {} scenarios", files.len());
    for file in files {
        let mut scenario = Scenario::read(&file, None).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(
            file.file_stem().unwrap().to_str().unwrap(),
            scenario.name,
            "its name is its file's"
        );
        assert!(!scenario.about.is_empty(), "{} says nothing", scenario.name);
        scenario.nodes.count = scenario.nodes.count.min(2);
        let wish = Wish {
            seconds: Some(SECONDS),
            ..Wish::default()
        };
        let report = simulate(&scenario, &wish, &|| ()).unwrap_or_else(|f| panic!("{f}"));
        for row in report.policies.iter().filter(|row| row.policy.is_split()) {
            let share = row.of_clairvoyant.unwrap_or_else(|| panic!("{row:?}"));
            assert!(share > 0.0 && share < CHANCE, "{}: {row:?}", scenario.name);
        }
    }
}

#[test]
fn the_demos_scenario_is_what_the_demos_load_gives() {
    let file = folder().join("demo.toml");
    let given = demo_scenario(1).unwrap();
    if std::env::var_os("EVENKEEL_BLESS").is_some() {
        fs::write(&file, &given).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap();
    assert_eq!(
        written, given,
        "evenkeel simulate --print-demo 1 > config/scenarios/demo.toml"
    );
}

#[test]
fn the_demos_scenario_predicts_the_demos_virtual_pipeline() {
    let text = demo_scenario(1).unwrap();
    let scenario = Scenario::parse(&text, "demo.toml", Path::new(".")).unwrap();
    let world = World::new(&scenario, 1, 0).unwrap();
    let pipeline = Load::base(8).pipeline(GpuSpec::h100(), demo::STEP_NS);
    for generate_sms in [44, 58, 74, 92] {
        let split = Split {
            generate_sms,
            train_sms: 132 - generate_sms,
            cores: 1,
        };
        let expect = run(&pipeline, split, 4, 12).unwrap().units_per_s;
        let mut layout = planned(&world);
        layout.holds[0].cores = split.cores;
        for (stage, sms) in [(1, split.generate_sms), (2, split.train_sms)] {
            layout.holds[stage].sms = f64::from(sms);
            layout.holds[stage].cap = f64::from(sms);
        }
        for fidelity in [Fidelity::Step, Fidelity::Chunk] {
            let found = throughput(&world, &layout, fidelity, 30.0);
            near(&format!("{fidelity:?} {split:?}"), found, expect, 0.03);
        }
    }
}

#[test]
fn policies_have_a_row_each_in_the_table() {
    let scenario = Scenario::read(&folder().join("two-jobs.toml"), None).unwrap();
    let wish = Wish {
        seconds: Some(SECONDS),
        ..Wish::default()
    };
    let report = simulate(&scenario, &wish, &|| ()).unwrap();
    let table = report.table().to_string();
    for policy in Policy::all() {
        assert!(table.contains(policy.name()), "{table}");
    }
}
