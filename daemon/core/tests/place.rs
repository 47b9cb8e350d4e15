//! Placement and the way from a job to a plan: who gets which core ids and which share of which GPU.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
use std::collections::BTreeMap;

use evenkeel_core::allocate::{
    Inputs, Refusal, Resource, Room, gpus_of_worker, ladder, plan, split_sms,
};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{JobSpec, Plan, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::unit::{Bytes, Rate, Sms};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

/// Two NUMA nodes of eight cores; GPU 0 on the first, GPU 1 on the second; 132 SMs in steps of 2.
fn node(gpus: u16) -> Node {
    let core = |id| Core {
        id,
        cpus: CpuSet::range(id, id),
        numa: (id / 8) as u16,
        package: 0,
    };
    let gpu = |i| Gpu {
        id: GpuId(i),
        uuid: name(&format!("GPU-{i}")),
        model: name("H100"),
        sms: Sms(132),
        memory: Bytes::gib(80),
        reserved_memory: Bytes::mib(512),
        enforceable: (1..=66).map(|n| Sms(2 * n)).collect(),
        numa: i,
        backend: GpuBackend::Emulated,
        mode: GpuMode::Enforce,
    };
    Node {
        kind: PoolKind::Local,
        cores: (0..16).map(core).collect(),
        reserved_cores: CpuSet::new(),
        gpus: (0..gpus).map(gpu).collect(),
    }
}

fn room(node: &Node, cores: &str) -> Room {
    Room {
        cores: cores.parse().unwrap(),
        gpus: node
            .gpus
            .iter()
            .map(|g| (g.id, (g.sms, g.leasable_memory())))
            .collect(),
    }
}

fn stage(role: Role, workers: u32, cores: (u32, u32), sms: (u32, u32), gib: u64) -> StageSpec {
    StageSpec {
        name: name(&format!("{role:?}").to_lowercase()),
        role,
        workers,
        processes: 1,
        cores,
        sms: (Sms(sms.0), Sms(sms.1)),
        memory: Bytes::gib(gib),
        batches: Vec::new(),
        synchronous: false,
        resize: Resize::Restart,
        profile: None,
    }
}

fn job(stages: Vec<StageSpec>) -> JobSpec {
    JobSpec {
        name: name("pick"),
        unit: name("env_step"),
        priority: 0,
        weight: 1.0,
        gpus: Vec::new(),
        gpu_count: 1,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec::default(),
        stages,
    }
}

fn usual() -> JobSpec {
    job(vec![
        stage(Role::Simulation, 2, (2, 8), (0, 0), 0),
        stage(Role::Generation, 1, (1, 1), (8, 132), 10),
        stage(Role::Training, 1, (1, 1), (8, 132), 20),
    ])
}

fn cores_of(plan: &Plan) -> Vec<Vec<String>> {
    plan.stages
        .iter()
        .map(|s| s.workers.iter().map(|w| w.cores.to_string()).collect())
        .collect()
}

fn profile(points: &[(u32, u32, f64)]) -> Profile {
    let point = |&(cores, sms, rate): &(u32, u32, f64)| Point {
        cores,
        sms: Sms(sms),
        batch: 1,
        replicas: 1,
        rate: Rate::new(rate).unwrap(),
        memory: Bytes::gib(10),
        weight: 1.0,
    };
    let key = ProfileKey {
        tenant: name("t"),
        stage: name("s"),
        gpu: name("H100"),
    };
    Profile {
        key,
        points: points.iter().map(point).collect(),
    }
}

#[test]
fn without_profiles_the_split_is_even_and_says_so() {
    let node = node(1);
    let spec = usual();
    let (plan, _) = plan(&Inputs::declared(&spec), &node, &room(&node, "0-15"), None).unwrap();
    assert_eq!(plan.by.as_str(), "even");
    assert_eq!(cores_of(&plan), [vec!["0-3", "4-7"], vec!["8"], vec!["9"]]);
    assert_eq!(plan.stages[1].sms, Sms(66));
    assert_eq!(plan.stages[2].sms, Sms(66));
    assert!(plan.why[0].contains("first guess"), "{:?}", plan.why);
}

#[test]
fn cores_are_taken_near_the_gpu_and_stay_where_they_were() {
    let node = node(2);
    let mut spec = usual();
    spec.gpus = vec![GpuId(1)];
    spec.stages[0].cores = (4, 4);
    let inputs = Inputs::declared(&spec);
    let (first, _) = plan(&inputs, &node, &room(&node, "0-15"), None).unwrap();
    assert_eq!(
        cores_of(&first),
        [vec!["8-9", "10-11"], vec!["12"], vec!["13"]]
    );

    // One core less for the first simulator, one more for the second: nobody else moves.
    let mut bigger = spec.clone();
    bigger.stages[0].cores = (7, 7);
    let (grown, _) = plan(
        &Inputs::declared(&bigger),
        &node,
        &room(&node, "0-15"),
        Some(&first),
    )
    .unwrap();
    assert_eq!(
        cores_of(&grown),
        [vec!["8-9,14-15", "0,10-11"], vec!["12"], vec!["13"]]
    );
    let (again, _) = plan(
        &Inputs::declared(&bigger),
        &node,
        &room(&node, "0-15"),
        Some(&grown),
    )
    .unwrap();
    assert_eq!(again, grown, "placing again moves nothing");
    let (shrunk, _) = plan(&inputs, &node, &room(&node, "0-15"), Some(&grown)).unwrap();
    assert_eq!(
        cores_of(&shrunk),
        cores_of(&first),
        "the cores far from the GPU go first"
    );
}

#[test]
fn a_core_that_is_gone_is_replaced_and_the_rest_stays() {
    let node = node(1);
    let mut spec = usual();
    spec.stages[0].cores = (4, 4);
    let inputs = Inputs::declared(&spec);
    let (first, _) = plan(&inputs, &node, &room(&node, "0-15"), None).unwrap();
    assert_eq!(cores_of(&first), [vec!["0-1", "2-3"], vec!["4"], vec!["5"]]);
    let (second, _) = plan(&inputs, &node, &room(&node, "0,2-15"), Some(&first)).unwrap();
    assert_eq!(
        cores_of(&second),
        [vec!["0,6", "2-3"], vec!["4"], vec!["5"]]
    );
}

#[test]
fn what_is_short_is_named_with_the_amount() {
    let node = node(1);
    let spec = usual();
    #[track_caller]
    fn check(spec: &JobSpec, node: &Node, room: &Room, resource: Resource, short_by: u64) {
        let refusal = plan(&Inputs::declared(spec), node, room, None).unwrap_err();
        let shortage = refusal.shortage().unwrap_or_else(|| panic!("{refusal}"));
        assert_eq!(
            (shortage.resource, shortage.short_by()),
            (resource, short_by),
            "{refusal}"
        );
    }
    check(&spec, &node, &room(&node, "0-2"), Resource::Cores, 1);
    let mut less = room(&node, "0-15");
    less.gpus.insert(GpuId(0), (Sms(12), Bytes::gib(80)));
    check(&spec, &node, &less, Resource::Sms, 4);
    less.gpus.insert(GpuId(0), (Sms(132), Bytes::gib(29)));
    check(&spec, &node, &less, Resource::Memory, 1 << 30);
    let two = JobSpec {
        gpu_count: 2,
        ..spec.clone()
    };
    check(&two, &node, &room(&node, "0-15"), Resource::Gpus, 1);
    let refusal = plan(&Inputs::declared(&spec), &node, &room(&node, "0-2"), None).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the least of all 3 stages needs 4 cores, only 3 cores free: short by 1 core"
    );
}

#[test]
fn a_bad_refit_factor_is_refused() {
    let (node, spec) = (node(1), usual());
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let inputs = Inputs {
            scale: &[1.0, factor],
            ..Inputs::declared(&spec)
        };
        let refusal = plan(&inputs, &node, &room(&node, "0-15"), None).unwrap_err();
        assert!(matches!(refusal, Refusal::Problem(_)), "{refusal}");
    }
}

#[test]
fn a_measured_job_is_balanced_and_explained() {
    let (node, mut spec) = (node(1), usual());
    spec.stages[0].workers = 1;
    let sim = profile(&[(2, 0, 100.0), (4, 0, 190.0), (8, 0, 360.0)]);
    let generation = profile(&[(1, 132, 660.0)]);
    let training = profile(&[(1, 132, 336.0)]);
    let profiles = [Some(&sim), Some(&generation), Some(&training)];
    let inputs = Inputs {
        profiles: &profiles,
        ..Inputs::declared(&spec)
    };
    let (plan, solution) = plan(&inputs, &node, &room(&node, "0-15"), None).unwrap();
    // Generation does 5 a second per SM and training 2.55: 44 of 132 SMs bring generation to 220, 88 training to 224.
    assert_eq!((plan.stages[1].sms, plan.stages[2].sms), (Sms(44), Sms(88)));
    assert_eq!((plan.theta.get(), plan.by.as_str()), (220.0, "waterfill"));
    assert_eq!(plan.stages[0].cores, 8);
    assert!(solution.marginals.sms > 0.0 && solution.marginals.core == 0.0);
    assert!(
        plan.why[0].starts_with("generation (1 core, 44 SMs, batch 1) binds"),
        "{:?}",
        plan.why
    );
    let shares = &plan.stages[1].workers[0].gpus;
    assert_eq!(shares[&GpuId(0)].guarantee, Sms(44));
    assert_eq!(shares[&GpuId(0)].memory, Bytes::gib(10));
}

#[test]
fn synchronous_ranks_get_equal_shares_of_every_gpu() {
    let node = node(2);
    let mut training = stage(Role::Training, 4, (4, 8), (8, 132), 40);
    training.synchronous = true;
    let spec = JobSpec {
        gpu_count: 2,
        ..job(vec![training])
    };
    let (plan, _) = plan(&Inputs::declared(&spec), &node, &room(&node, "0-15"), None).unwrap();
    let shares: Vec<BTreeMap<GpuId, (Sms, Bytes)>> = plan.stages[0]
        .workers
        .iter()
        .map(|w| {
            w.gpus
                .iter()
                .map(|(id, s)| (*id, (s.guarantee, s.memory)))
                .collect()
        })
        .collect();
    let on = |gpu| BTreeMap::from([(GpuId(gpu), (Sms(66), Bytes::gib(20)))]);
    assert_eq!(shares, [on(0), on(0), on(1), on(1)]);
    assert_eq!(cores_of(&plan), [vec!["0-1", "2-3", "8-9", "10-11"]]);
}

#[test]
fn workers_and_gpus_pair_up_in_blocks() {
    let of = |workers, gpus| {
        (0..workers)
            .map(|w| gpus_of_worker(w, workers, gpus))
            .collect::<Vec<_>>()
    };
    assert_eq!(gpus_of_worker(0, 1, 2), 0..2);
    assert_eq!(of(2, 4), [0..2, 2..4]);
    assert_eq!(of(4, 2), [0..1, 0..1, 1..2, 1..2]);
    assert_eq!(of(3, 2), [0..1, 0..1, 1..2]);
    assert_eq!(
        of(5, 4),
        [0..1, 0..1, 1..2, 2..3, 3..4],
        "no GPU is left empty"
    );
    assert_eq!(of(6, 4), [0..1, 0..1, 1..2, 1..2, 2..3, 3..4]);
    for (workers, gpus) in (1..40).flat_map(|w| (1..9).map(move |g| (w, g))) {
        let all = of(workers, gpus);
        let on = |gpu| all.iter().filter(|r| r.contains(&gpu)).count();
        let counts: Vec<usize> = (0..gpus).map(on).collect();
        let most = (workers as usize).div_ceil(gpus);
        let least = (workers as usize / gpus).max(1);
        assert!(
            counts.iter().all(|n| (least..=most).contains(n)),
            "{workers} workers on {gpus} GPUs: {counts:?}"
        );
    }
    assert_eq!(of(2, 0), [0..0, 0..0]);
}

#[test]
fn five_workers_on_four_gpus_share_the_first() {
    let node = node(4);
    let spec = JobSpec {
        gpu_count: 4,
        ..job(vec![stage(Role::Generation, 5, (5, 5), (20, 20), 10)])
    };
    let (plan, _) = plan(&Inputs::declared(&spec), &node, &room(&node, "0-15"), None).unwrap();
    let shares = plan.stages[0].workers.iter().map(|w| {
        let of = |(id, s): (&GpuId, &evenkeel_core::grant::GpuShare)| (id.0, s.guarantee.0);
        w.gpus.iter().map(of).collect::<Vec<_>>()
    });
    let expect = [(0, 10), (0, 10), (1, 20), (2, 20), (3, 20)];
    assert_eq!(shares.flatten().collect::<Vec<_>>(), expect);
}

#[test]
fn a_job_runs_only_on_gpus_that_are_leased() {
    let mut node = node(2);
    let spec = usual();
    for mode in [GpuMode::Observe, GpuMode::Advise] {
        node.gpus[0].mode = mode;
        let room = room(&node, "0-15");
        let (found, _) = plan(&Inputs::declared(&spec), &node, &room, None).unwrap();
        assert_eq!(found.gpus, [GpuId(1)], "{mode:?}");
        let named = JobSpec {
            gpus: vec![GpuId(0)],
            ..usual()
        };
        let refusal = plan(&Inputs::declared(&named), &node, &room, None).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "job pick needs 1 GPU, only 0 GPUs free: short by 1 GPU"
        );
    }
}

#[test]
fn a_pinned_stage_keeps_its_share_of_the_gpu_and_its_batch_size() {
    let (node, mut spec) = (node(1), usual());
    spec.sm_mode = SmMode::Cap;
    spec.stages[2].sms.1 = Sms(60);
    let generation = profile(&[(1, 60, 600.0)]);
    let training = profile(&[(1, 132, 336.0)]);
    let profiles = [None, Some(&generation), Some(&training)];
    let inputs = Inputs {
        profiles: &profiles,
        ..Inputs::declared(&spec)
    };
    let room = room(&node, "0-15");
    let (first, _) = plan(&inputs, &node, &room, None).unwrap();
    let share = |p: &Plan, stage: usize| p.stages[stage].workers[0].gpus[&GpuId(0)];
    let before = share(&first, 1);
    assert!(before.cap > before.guarantee, "caps overlap: {before:?}");
    // It does half as much, with other memory, at another batch size.
    let mut slower = profile(&[(1, 60, 300.0)]);
    slower.points[0].memory = Bytes::gib(7);
    slower.points[0].batch = 4;
    let profiles = [None, Some(&slower), Some(&training)];
    for (pinned, same) in [([false, true], true), ([false, false], false)] {
        let inputs = Inputs {
            profiles: &profiles,
            pinned: &pinned,
            ..inputs
        };
        let (second, _) = plan(&inputs, &node, &room, Some(&first)).unwrap();
        assert_eq!(share(&second, 1) == before, same);
        assert_eq!(second.stages[1].batch == first.stages[1].batch, same);
    }
}

#[test]
fn a_quota_is_divided_into_enforceable_shares_that_do_not_exceed_it() {
    let counts: Vec<Sms> = [2, 4, 8, 16, 32].map(Sms).to_vec();
    let split = |quota, k, sync| {
        split_sms(&counts, Sms(quota), k, sync)
            .iter()
            .map(|s| s.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(split(32, 1, false), [32]);
    assert_eq!(split(30, 1, false), [16]);
    assert_eq!(split(20, 3, false), [8, 8, 4]);
    assert_eq!(split(20, 3, true), [4, 4, 4]);
    assert_eq!(split(1, 2, false), [0, 0]);
    for k in 1..6 {
        for sync in [false, true] {
            for quota in ladder(&counts, k, sync, (Sms(0), Sms(100))) {
                let shares = split_sms(&counts, quota, k, sync);
                let sum: u32 = shares.iter().map(|s| s.0).sum();
                assert_eq!(
                    sum, quota.0,
                    "a rung is divided without rest: {k} workers, {shares:?}"
                );
                assert!(shares.iter().all(|s| *s == Sms(0) || counts.contains(s)));
            }
        }
    }
}
