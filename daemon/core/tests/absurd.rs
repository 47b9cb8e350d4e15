//! Absurd numbers through the one entry: every request is answered, with what is short or what makes no sense, and
//! nothing changes.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod rig;

use evenkeel_core::command::{Acquire, Command, Rejection, Resource};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::grant::{Ask, GpuAsk, Resize, SmAsk};
use evenkeel_core::id::{BodyHash, Fence, LeaseId, RequestId};
use evenkeel_core::invariant::violations;
use evenkeel_core::job::{JobSpec, Policy, SmMode, StageSpec};
use evenkeel_core::lease::Holder;
use evenkeel_core::step::{State, step};
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms, Time};
use proptest::prelude::*;
use rig::{alice, fresh, job, name, stage};

fn three(change: impl Fn(&mut StageSpec)) -> JobSpec {
    let mut stages: Vec<StageSpec> = (0..3).map(stage).collect();
    stages.iter_mut().for_each(change);
    job(stages)
}
fn submit(spec: JobSpec) -> Command {
    Command::Submit {
        caller: alice(),
        request: RequestId(1),
        body: BodyHash(1),
        spec: Box::new(spec),
    }
}
fn acquire(cores: u32, gpus: Vec<GpuAsk>) -> Command {
    Command::Acquire(Box::new(Acquire {
        tenant: name("alice"),
        request: RequestId(2),
        body: BodyHash(1),
        ask: Ask::Alone { cores, gpus },
        enforced: true,
        resize: Some(Resize::Live),
        processes: Some(1),
        ttl: Millis::secs(30),
        wait: true,
        priority: i32::MIN,
    }))
}
fn on_gpu(sms: SmAsk, memory: Bytes) -> GpuAsk {
    GpuAsk {
        gpu: None,
        sms,
        memory,
    }
}

/// Runs one command that has to be refused, and gives the refusal.
#[track_caller]
fn refused(state: &mut State, what: &str, command: Command) -> Rejection {
    let before = format!("{:?}", state.durable.parts());
    let settled = step(state, Time(1), &[command]).settle(state, Time(1));
    let answer = settled.answers.into_iter().next().unwrap();
    let Err(refusal) = answer else {
        panic!("{what}: {answer:?}")
    };
    assert_eq!(settled.events, [], "{what}");
    assert_eq!(format!("{:?}", state.durable.parts()), before, "{what}");
    assert!(!matches!(refusal, Rejection::Invariant(_)), "{what}");
    refusal
}

#[test]
fn a_job_that_asks_for_everything_and_more_is_told_what_is_short() {
    let most = u32::MAX;
    let never = |resource, asked, has| Rejection::Never {
        resource,
        asked,
        has,
    };
    let eight = |s: &mut StageSpec| s.workers = 1024;
    let cases: Vec<(&str, JobSpec, Rejection)> = vec![
        (
            "as many cores as there are numbers, three times",
            three(|s| s.cores = (most, most)),
            never(Resource::Cores, 3 * u64::from(most), 7),
        ),
        (
            "the same for two of them together just above the largest number",
            three(|s| s.cores = (most / 3 + 1, most)),
            never(Resource::Cores, 3 * u64::from(most / 3 + 1), 7),
        ),
        (
            "as many SMs as there are numbers",
            three(|s| s.sms = (Sms(most), Sms(most))),
            never(Resource::Sms(None), u64::from(most), 100),
        ),
        (
            "half of them, for a thousand workers",
            three(|s| (s.workers, s.sms) = (1024, (Sms(most / 2), Sms(most)))),
            never(Resource::Sms(None), u64::from(most / 2), 100),
        ),
        (
            "all bytes that can be counted, three times",
            three(|s| s.memory = Bytes(u64::MAX)),
            never(Resource::Memory(None), u64::MAX, Bytes::gib(80).0),
        ),
        (
            "a bit more than all bytes that can be counted, together",
            three(|s| s.memory = Bytes(u64::MAX / 3 + 1)),
            never(Resource::Memory(None), u64::MAX, Bytes::gib(80).0),
        ),
        (
            "eight stages with a thousand workers each, all of it",
            JobSpec {
                stages: (0..8)
                    .map(|n| {
                        let mut s = stage(n);
                        eight(&mut s);
                        (s.cores, s.memory) = ((most, most), Bytes(u64::MAX));
                        s
                    })
                    .collect(),
                ..job(vec![])
            },
            never(Resource::Sms(None), 2048, 50),
        ),
        (
            "every GPU number that there is",
            JobSpec {
                gpu_count: u16::MAX,
                ..three(|_| ())
            },
            never(Resource::Gpus, u16::MAX.into(), 2),
        ),
    ];
    for (what, spec, expect) in cases {
        let got = refused(&mut fresh(), what, submit(spec));
        assert_eq!(got, expect, "{what}: {got}");
    }
}

#[test]
fn a_lease_that_asks_for_everything_and_more_is_told_what_is_short() {
    let gib = Bytes::gib(1);
    for (what, cores, gpus, expect) in [
        ("all core numbers", u32::MAX, vec![], Resource::Cores),
        (
            "all SM numbers",
            1,
            vec![on_gpu(SmAsk::Count(Sms(u32::MAX)), gib)],
            Resource::Sms(None),
        ),
        (
            "all bytes",
            1,
            vec![on_gpu(SmAsk::Percent(100), Bytes(u64::MAX))],
            Resource::Memory(None),
        ),
        (
            "more GPUs than there are",
            0,
            vec![on_gpu(SmAsk::Count(Sms(1)), gib); 16],
            Resource::Gpus,
        ),
    ] {
        let got = refused(&mut fresh(), what, acquire(cores, gpus));
        assert!(
            matches!(got, Rejection::Never { resource, .. } if resource == expect),
            "{what}: {got}"
        );
    }
}

#[test]
fn the_highest_fence_is_just_another_wrong_one() {
    let mut s = fresh();
    let (lease, fence) = (LeaseId(1), Fence(u64::MAX));
    let holder = Holder {
        pid: 7,
        start_time: 7,
        uid: 1000,
    };
    let attach = |fence| Command::Attach {
        caller: alice(),
        lease,
        fence,
        holder: holder.clone(),
    };
    for command in [acquire(1, vec![]), attach(Fence(1))] {
        let settled = step(&mut s, Time(1), &[command]).settle(&mut s, Time(1));
        assert!(settled.answers[0].is_ok());
    }
    let release = Command::Release {
        caller: alice(),
        lease,
        fence,
    };
    for (what, command) in [("attach", attach(fence)), ("release", release.clone())] {
        assert!(matches!(
            refused(&mut s, what, command),
            Rejection::Fenced { .. }
        ));
    }
    let good = Command::Release {
        caller: alice(),
        lease,
        fence: Fence(2),
    };
    let _ = step(&mut s, Time(1), &[good]).settle(&mut s, Time(1));
    assert!(matches!(
        refused(&mut s, "release, while it drains", release),
        Rejection::Fenced { .. }
    ));
}

/// Numbers as people never write them, and some that they do.
fn count() -> impl Strategy<Value = u32> {
    prop_oneof![
        0..4u32,
        Just(100),
        Just(u32::MAX / 3 + 1),
        Just(u32::MAX - 1),
        Just(u32::MAX),
        any::<u32>(),
    ]
}
fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        (0..4u64).prop_map(Bytes::gib),
        Just(Bytes(u64::MAX / 3 + 1)),
        Just(Bytes(u64::MAX)),
        any::<u64>().prop_map(Bytes),
    ]
}
fn any_stage(n: usize) -> impl Strategy<Value = StageSpec> {
    let amounts = (
        count(),
        count(),
        count(),
        count(),
        prop::collection::vec(count(), 0..3),
    );
    let workers = prop_oneof![1..3u32, Just(1024u32)];
    (amounts, bytes(), workers, any::<bool>()).prop_map(
        move |((c0, c1, s0, s1, batches), memory, workers, synchronous)| StageSpec {
            workers,
            cores: (c0.min(c1), c0.max(c1)),
            sms: (Sms(s0.min(s1)), Sms(s0.max(s1))),
            memory,
            batches,
            synchronous,
            ..stage(n)
        },
    )
}
fn any_job() -> impl Strategy<Value = JobSpec> {
    let stages = (1..5usize).prop_flat_map(|n| (0..n).map(any_stage).collect::<Vec<_>>());
    let rest = (any::<u16>(), 1..3u32, any::<bool>(), any::<bool>());
    (stages, rest).prop_map(|(stages, (gpus, groups, ebrl, cap))| JobSpec {
        gpu_count: gpus % 4,
        groups,
        policy: if ebrl {
            Policy::Ebrl
        } else {
            Policy::Waterfill
        },
        sm_mode: if cap { SmMode::Cap } else { SmMode::Reserve },
        ..job(stages)
    })
}
fn any_points() -> impl Strategy<Value = Vec<Point>> {
    let rate = prop_oneof![
        Just(0.0),
        Just(1.0),
        Just(f64::MAX),
        Just(f64::MIN_POSITIVE)
    ];
    let point = (count(), count(), count(), count(), rate, bytes()).prop_map(
        |(cores, sms, batch, replicas, rate, memory)| Point {
            cores: cores.max(1),
            sms: Sms(sms),
            batch: batch.max(1),
            replicas: replicas.max(1),
            rate: Rate::clamped(rate),
            memory,
            weight: 1.0,
            ..Point::default()
        },
    );
    prop::collection::vec(point, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_asked_it_is_answered_and_the_books_are_right(
        spec in any_job(),
        points in prop::collection::vec(any_points(), 4),
        cores in count(), sms in count(), memory in bytes(), percent: u8,
    ) {
        let mut state = fresh();
        let mut batch = Vec::new();
        for (stage, points) in spec.stages.iter().zip(points) {
            let gpu = if stage.sms.1 == Sms(0) { "none" } else { "EMU" };
            let key = ProfileKey {
                tenant: name("alice"),
                stage: name(&format!("j/{}", stage.name)),
                gpu: name(gpu),
            };
            batch.push(Command::Import { profile: Box::new(Profile { key, points }) });
        }
        batch.push(submit(spec));
        batch.push(acquire(cores, vec![on_gpu(SmAsk::Count(Sms(sms)), memory)]));
        batch.push(acquire(cores, vec![on_gpu(SmAsk::Percent(percent), memory)]));
        let done = step(&mut state, Time(1), &batch).settle(&mut state, Time(1));
        for answer in &done.answers {
            prop_assert!(!matches!(answer, Err(Rejection::Invariant(_))), "{answer:?}");
        }
        prop_assert_eq!(violations(&state.durable), []);
    }
}
