//! Overlapping caps: what a stage is measured at is what it could use, and not what it is promised.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
use evenkeel_core::allocate::{Inputs, Share, Supply, problem_for};
use evenkeel_core::balance::{Measured, StageMeasure, Trigger, refit};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::grant::Resize;
use evenkeel_core::id::Name;
use evenkeel_core::job::{JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::unit::{Bytes, Rate, Sms};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn stage(of: &str, role: Role) -> StageSpec {
    StageSpec {
        name: name(of),
        role,
        workers: 1,
        processes: 1,
        cores: (1, 1),
        sms: (Sms(0), Sms(100)),
        memory: Bytes(1),
        batches: vec![],
        synchronous: false,
        resize: Resize::Live,
        profile: None,
    }
}

/// Ten units a second for each SM, up to 100.
fn profile(of: &str) -> Profile {
    let key = ProfileKey {
        tenant: name("t"),
        stage: name(of),
        gpu: name("g"),
    };
    let point = Point {
        cores: 1,
        sms: Sms(100),
        batch: 1,
        replicas: 1,
        rate: Rate::new(1_000.0).unwrap(),
        memory: Bytes(1),
        weight: 1.0,
    };
    Profile {
        key,
        points: vec![point],
    }
}

/// The factors, and the SMs of a point that is learned after a move, of stages that are measured at these rates.
fn refitted(shares: [(u32, u32); 2], rates: [f64; 2]) -> (Vec<f64>, Vec<u32>) {
    let spec = JobSpec {
        name: name("j"),
        unit: name("u"),
        priority: 0,
        weight: 1.0,
        gpus: vec![],
        gpu_count: 1,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Cap,
        rebalance: RebalanceSpec::default(),
        stages: vec![
            stage("gen", Role::Generation),
            stage("train", Role::Training),
        ],
    };
    let (generation, training) = (profile("gen"), profile("train"));
    let profiles = [Some(&generation), Some(&training)];
    let inputs = Inputs {
        profiles: &profiles,
        ..Inputs::declared(&spec)
    };
    let supply = Supply {
        cores: 4,
        gpus: 1,
        sms: Sms(100),
        enforceable: (1..=100).map(Sms).collect(),
        memory: Bytes(10),
    };
    let problem = problem_for(&inputs, supply).unwrap();
    let shares = shares.map(|(sms, cap)| Share {
        cores: 1,
        sms: Sms(sms),
        cap: Sms(cap),
        memory: Bytes(1),
        batch: 1,
        rate: Rate::ZERO,
    });
    let rates = rates.map(|r| Rate::new(r).unwrap());
    let measured = Measured {
        stages: rates
            .map(|rate| Some(StageMeasure { rate, batch: 1 }))
            .to_vec(),
        t_r: rates[0],
        t_train: rates[1],
        yielded: 1.0,
        windows: 5,
        error: 0.0,
        overlap: Vec::new(),
    };
    let run = |trigger| {
        let (scale, learned) = ([1.0, 1.0], [vec![], vec![]]);
        refit(
            &spec.stages,
            &problem,
            &shares,
            &scale,
            &learned,
            &measured,
            trigger,
        )
    };
    let learned = run(Trigger::AfterMove).learned;
    let learned = learned.iter().flatten().map(|p| p.sms.0).collect();
    (run(Trigger::Start).scale, learned)
}

#[test]
fn a_stage_that_works_at_its_cap_as_predicted_is_not_rescaled() {
    // 20 and 40 SMs are promised, and each may use the 40 that nobody is promised.
    assert_eq!(
        refitted([(20, 60), (40, 80)], [600.0, 800.0]),
        (vec![1.0, 1.0], vec![])
    );
    // Half of it: the other one was in the way.
    assert_eq!(
        refitted([(20, 60), (40, 80)], [300.0, 800.0]),
        (vec![0.5, 1.0], vec![60])
    );
    // Where nothing overlaps, the cap is the guarantee.
    assert_eq!(
        refitted([(60, 60), (40, 40)], [600.0, 200.0]),
        (vec![1.0, 0.5], vec![40])
    );
}
