//! Many jobs on many GPUs, planned at once: nothing is given twice, every rule holds, the order of the jobs does not
//! matter, planning again changes nothing, and who can have everybody's least is not refused.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that tells its figures"
)]
mod oracle;

use std::time::Instant;

use evenkeel_core::allocate::rules_together::{self, Joint};
use evenkeel_core::allocate::{Bidder, Inputs, Portion, Room, plan_together};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{JobSpec, Plan, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::unit::{Bytes, Rate, Sms};
use oracle::Rng;

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn node(gpus: u16, cores: u32) -> Node {
    let core = |id| Core {
        id,
        cpus: CpuSet::range(id, id),
        numa: (id >= cores / 2).into(),
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
        numa: (id >= gpus / 2).into(),
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

fn whole(node: &Node) -> Room {
    Room {
        cores: node.leasable_cores(),
        gpus: node
            .gpus
            .iter()
            .map(|g| (g.id, (g.sms, g.leasable_memory())))
            .collect(),
    }
}

/// A job with its profiles, by stage.
type Known = (JobSpec, Vec<Profile>);

fn job(rng: &mut Rng, i: usize, gpus: u16) -> Known {
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
        weight: [1.0, 1.0, 2.0][rng.range(0, 2) as usize],
        gpus: vec![],
        gpu_count: if gpus > 1 && rng.one_in(4) { 2 } else { 1 },
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
    let peak = rng.float(100.0, 1000.0);
    let knees = [0.0, rng.float(20.0, 120.0), rng.float(40.0, 160.0)];
    let points = |i: usize| -> Vec<Point> {
        let mut all = Vec::new();
        for batch in [1, 4, 16] {
            for n in 1..=8 {
                let (cores, sms) = if i == 0 { (n, 0) } else { (0, 16 * n) };
                let by = if i == 0 {
                    f64::from(n) / 4.0
                } else {
                    (f64::from(sms) / knees[i]).min(1.0).powf(0.8)
                };
                let by_batch = f64::from(batch) / (f64::from(batch) + 1.0);
                all.push(Point {
                    cores,
                    sms: Sms(sms),
                    batch,
                    replicas: 1,
                    rate: Rate::clamped(peak * by * by_batch),
                    memory: Bytes::mib(if i == 0 {
                        0
                    } else {
                        500 + 60 * u64::from(batch)
                    }),
                    weight: 1.0,
                    ..Point::default()
                });
            }
        }
        all
    };
    let profile = |s: usize| Profile {
        key: ProfileKey {
            tenant: name("t"),
            stage: name(&format!("job-{i}/{s}")),
            gpu: name("H100"),
        },
        points: points(s),
    };
    (spec, (0..3).map(profile).collect())
}

fn jobs(seed: u64, n: usize, gpus: u16) -> Vec<Known> {
    let mut rng = Rng(seed);
    (0..n).map(|i| job(&mut rng, i, gpus)).collect()
}

fn solve(jobs: &[Known], node: &Node, previous: &[Option<&Plan>]) -> Vec<Portion> {
    let tenant = name("t");
    let known: Vec<Vec<Option<&Profile>>> = jobs
        .iter()
        .map(|j| j.1.iter().map(Some).collect())
        .collect();
    let bidders: Vec<Bidder<'_>> = jobs
        .iter()
        .zip(&known)
        .enumerate()
        .map(|(i, ((spec, _), profiles))| Bidder {
            inputs: Inputs {
                profiles,
                ..Inputs::declared(spec)
            },
            previous: previous.get(i).copied().flatten(),
            tenant: &tenant,
        })
        .collect();
    let room = whole(node);
    let portions = plan_together(&bidders, node, &room, &[]).unwrap();
    let joint = Joint {
        bidders: &bidders,
        portions: &portions,
        room: &room,
        caps: &[],
    };
    assert_eq!(rules_together::broken(&joint), []);
    assert!(portions.iter().all(|p| p.level > 0.0));
    portions
}

#[test]
fn many_jobs_share_many_gpus() {
    for (gpus, n) in [(1, 3), (1, 6), (2, 6), (4, 12), (8, 16), (16, 64)] {
        let node = node(gpus, 16 * u32::from(gpus).max(2));
        for seed in 0..3 {
            let jobs = jobs(1000 * seed + n as u64, n, gpus);
            let began = Instant::now();
            let found = solve(&jobs, &node, &[]);
            let took = began.elapsed();
            let levels: Vec<f64> = found.iter().map(|p| p.level).collect();
            let least = levels.iter().copied().fold(f64::INFINITY, f64::min);
            let mean = levels.iter().sum::<f64>() / n as f64;
            println!("together: {gpus} GPUs {n} jobs {took:?} least {least:.3} mean {mean:.3}");
            let plans: Vec<Option<&Plan>> = found.iter().map(|p| Some(&p.plan)).collect();
            let again = solve(&jobs, &node, &plans);
            for (a, b) in found.iter().zip(&again) {
                assert_eq!(
                    a.plan.stages, b.plan.stages,
                    "{gpus} GPUs, {n} jobs, seed {seed}: planned again"
                );
            }
        }
    }
}

/// How the time grows with the jobs, four on each GPU: with `EVENKEEL_GROWTH` up to 1,024 of them, for `make accept`.
#[test]
fn growth() {
    let sizes: &[usize] = match std::env::var_os("EVENKEEL_GROWTH") {
        Some(_) => &[16, 64, 256, 1_024],
        None => &[16],
    };
    for &n in sizes {
        let node = node((n / 4) as u16, 4 * n as u32);
        let jobs = jobs(7, n, 1);
        let began = Instant::now();
        solve(&jobs, &node, &[]);
        let took = began.elapsed().as_secs_f64();
        println!("growth: {n} jobs took {took} s");
    }
}
