//! Caps beyond guarantees are lent to a job, and called back where others are given what lies under them.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod rig;

use evenkeel_core::command::{Acquire, Command};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, GpuAsk, Resize, SmAsk};
use evenkeel_core::id::{BodyHash, GpuId, JobId, RequestId};
use evenkeel_core::invariant::violations;
use evenkeel_core::job::SmMode;
use evenkeel_core::step::State;
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms};
use rig::{alice, fresh, job, name, run, stage};

/// As fast with 20 SMs as with more.
fn profile(of: &str) -> Command {
    let point = |sms| Point {
        cores: 0,
        sms: Sms(sms),
        batch: 1,
        replicas: 1,
        rate: Rate::clamped(100.0),
        memory: Bytes(1),
        weight: 1.0,
        ..Point::default()
    };
    Command::Import {
        profile: Box::new(Profile {
            key: ProfileKey {
                tenant: name("alice"),
                stage: name(of),
                gpu: name("EMU"),
            },
            points: vec![point(20), point(100)],
        }),
    }
}

fn submit(job_name: &str, gpu: u16, request: u128) -> Command {
    submit_as(job_name, gpu, request, Resize::Restart)
}

fn submit_as(job_name: &str, gpu: u16, request: u128, resize: Resize) -> Command {
    let mut spec = job(vec![stage(1), stage(2)]);
    spec.name = name(job_name);
    spec.sm_mode = SmMode::Cap;
    spec.gpus = vec![GpuId(gpu)];
    spec.gpu_count = 0;
    for stage in &mut spec.stages {
        stage.sms = (Sms(2), Sms(100));
        stage.cores = (0, 0);
        stage.resize = resize;
        stage.profile = Some(name(&format!("p/{}", stage.name)));
    }
    Command::Submit {
        caller: alice(),
        request: RequestId(request),
        body: BodyHash(1),
        spec: Box::new(spec),
    }
}

fn acquire(sms: u32, gpu: u16) -> Command {
    Command::Acquire(Box::new(Acquire {
        tenant: name("bob"),
        request: RequestId(100 + u128::from(gpu)),
        body: BodyHash(1),
        ask: Ask::Alone {
            cores: 0,
            gpus: vec![GpuAsk {
                gpu: Some(GpuId(gpu)),
                sms: SmAsk::Count(Sms(sms)),
                memory: Bytes::gib(1),
            }],
        },
        enforced: true,
        resize: None,
        processes: None,
        ttl: Millis::secs(30),
        wait: false,
        priority: 0,
    }))
}

/// Guarantee and cap of each stage.
type Shares = Vec<(u32, u32)>;

/// By the plan, and by what its workers are kept.
fn shares(s: &State, id: u64) -> (Shares, Shares) {
    let job = &s.durable.jobs()[&JobId(id)];
    let plan = job.plan.as_ref().unwrap();
    let planned = plan.stages.iter().map(|s| (s.sms.0, s.cap.0)).collect();
    let kept = job.slots.iter().flatten().map(|slot| {
        let share = slot.unclaimed.gpus.values().next().unwrap();
        (share.guarantee.0, share.cap.0)
    });
    (planned, kept.collect())
}

fn recalled(events: &[Event]) -> Vec<&str> {
    let told = events.iter().filter_map(|e| match e {
        Event::JobReplanned { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_lease_of_another_is_not_under_a_jobs_caps() {
    let mut s = fresh();
    run(&mut s, 1, &[profile("p/gen1"), profile("p/train2")]);
    let (_, answers) = run(&mut s, 2, &[submit("j", 0, 1)]);
    answers[0].as_ref().unwrap();
    let alone = vec![(20, 80), (20, 80)];
    assert_eq!(shares(&s, 1), (alone.clone(), alone.clone()));
    // On the other GPU it is in nobody's way.
    let (events, _) = run(&mut s, 3, &[acquire(50, 1)]);
    assert_eq!(recalled(&events), Vec::<&str>::new());
    assert_eq!(shares(&s, 1).0, alone);
    let (events, answers) = run(&mut s, 4, &[acquire(50, 0)]);
    answers[0].as_ref().unwrap();
    let why = recalled(&events);
    assert!(
        why.len() == 1 && why[0].contains("go up to 50 SMs"),
        "{why:?}"
    );
    let beside = vec![(20, 50), (20, 50)];
    assert_eq!(shares(&s, 1), (beside.clone(), beside));
    assert_eq!(violations(&s.durable), []);
}

#[test]
fn another_job_is_not_under_a_jobs_caps_either() {
    let mut s = fresh();
    run(&mut s, 1, &[profile("p/gen1"), profile("p/train2")]);
    run(&mut s, 2, &[submit("j", 0, 1)]);
    run(&mut s, 3, &[submit("k", 0, 2)]);
    let (first, second) = (shares(&s, 1).0, shares(&s, 2).0);
    let promised = |of: &[(u32, u32)]| of.iter().map(|s| s.0).sum::<u32>();
    for (own, other) in [(&first, &second), (&second, &first)] {
        let most = own.iter().map(|s| s.1).max().unwrap();
        assert!(
            most + promised(other) <= 100,
            "{own:?} reaches under what {other:?} is promised"
        );
        assert!(
            own.iter().all(|(sms, cap)| *sms == 20 && cap > sms),
            "{own:?}"
        );
    }
    assert_eq!(shares(&s, 1).1, first);
    assert_eq!(violations(&s.durable), []);
}

#[test]
fn nothing_is_lent_that_cannot_be_called_back() {
    let mut s = fresh();
    run(&mut s, 1, &[profile("p/gen1"), profile("p/train2")]);
    run(&mut s, 2, &[submit_as("j", 0, 1, Resize::Fixed)]);
    assert_eq!(shares(&s, 1).0, [(20, 20), (20, 20)]);
}
