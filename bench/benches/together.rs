//! How long it takes to plan many jobs at once (asked: 8 GPUs and 16 jobs under 20 ms, 16 GPUs and 64 jobs under 200 ms).
#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "a benchmark; criterion's macros"
)]
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use evenkeel_core::allocate::{Bidder, Inputs, Room, plan_together};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::unit::{Bytes, Rate, Sms};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn node(gpus: u16, cores: u32) -> Node {
    let core = |id| Core {
        id,
        cpus: CpuSet::range(id, id),
        numa: 0,
        package: 0,
    };
    let gpu = |id| Gpu {
        id: GpuId(id),
        uuid: name(&format!("GPU-{id}")),
        model: name("H100"),
        sms: Sms(132),
        memory: Bytes::gib(80),
        reserved_memory: Bytes(0),
        enforceable: (1..=66).map(|n| Sms(2 * n)).collect(),
        numa: 0,
        backend: GpuBackend::Emulated,
        mode: GpuMode::Enforce,
    };
    Node {
        kind: PoolKind::Local,
        cores: (0..cores).map(core).collect(),
        reserved_cores: CpuSet::new(),
        gpus: (0..gpus).map(gpu).collect(),
    }
}

/// A job like none of the others: peaks and knees differ, eight core counts, three batch sizes.
fn job(i: u32) -> (JobSpec, Vec<Profile>) {
    let stage = |n: &str, role, cores, sms: (u32, u32)| StageSpec {
        name: name(n),
        role,
        workers: 1,
        processes: 1,
        cores,
        sms: (Sms(sms.0), Sms(sms.1)),
        memory: Bytes::gib(u64::from(sms.1 > 0)),
        batches: vec![],
        synchronous: false,
        resize: Resize::Restart,
        profile: None,
    };
    let spec = JobSpec {
        name: name(&format!("job-{i}")),
        unit: name("step"),
        priority: 0,
        weight: 1.0 + f64::from(i % 2),
        gpus: vec![],
        gpu_count: 1,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec::default(),
        stages: vec![
            stage("sim", Role::Simulation, (1, 8), (0, 0)),
            stage("gen", Role::Generation, (0, 1), (2, 132)),
            stage("train", Role::Training, (0, 1), (2, 132)),
        ],
    };
    let knee = |stage: u32| f64::from(30 + (i * 37 + stage * 53) % 110);
    let profile = |s: u32| {
        let mut points = Vec::new();
        for batch in [1, 4, 16] {
            for n in 1..=8_u32 {
                let (cores, sms) = if s == 0 { (n, 0) } else { (0, 16 * n) };
                let by = if s == 0 {
                    f64::from(n) / 4.0
                } else {
                    (f64::from(sms) / knee(s)).min(1.0).powf(0.8)
                };
                points.push(Point {
                    cores,
                    sms: Sms(sms),
                    batch,
                    replicas: 1,
                    rate: Rate::clamped(400.0 * by * f64::from(batch) / (f64::from(batch) + 1.0)),
                    memory: Bytes::mib(if s == 0 { 0 } else { 50 + 6 * u64::from(batch) }),
                    weight: 1.0,
                    ..Point::default()
                });
            }
        }
        Profile {
            key: ProfileKey {
                tenant: name("t"),
                stage: name(&format!("job-{i}/{s}")),
                gpu: name("H100"),
            },
            points,
        }
    };
    (spec, (0..3).map(profile).collect())
}

fn run(c: &mut Criterion, label: &str, gpus: u16, jobs: u32) {
    let node = node(gpus, (8 * u32::from(gpus)).max(2 * jobs));
    let room = Room {
        cores: node.leasable_cores(),
        gpus: node
            .gpus
            .iter()
            .map(|g| (g.id, (g.sms, g.memory)))
            .collect(),
    };
    let known: Vec<(JobSpec, Vec<Profile>)> = (0..jobs).map(job).collect();
    let profiles: Vec<Vec<Option<&Profile>>> = known
        .iter()
        .map(|j| j.1.iter().map(Some).collect())
        .collect();
    let tenant = name("t");
    let mut bidders: Vec<Bidder<'_>> = Vec::new();
    for ((spec, _), profiles) in known.iter().zip(&profiles) {
        bidders.push(Bidder {
            inputs: Inputs {
                profiles,
                ..Inputs::declared(spec)
            },
            previous: None,
            tenant: &tenant,
        });
    }
    plan_together(&bidders, &node, &room, &[]).expect("plans");
    c.bench_function(label, |b| {
        b.iter(|| plan_together(black_box(&bidders), &node, &room, &[]));
    });
}

fn bench(c: &mut Criterion) {
    run(c, "together/8-gpus/16-jobs", 8, 16);
    run(c, "together/16-gpus/64-jobs", 16, 64);
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = bench
}
criterion_main!(benches);
