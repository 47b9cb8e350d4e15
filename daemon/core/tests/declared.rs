//! What a stage declares binds its workers' leases, and a new plan leaves alone what can never change.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod stage;

use evenkeel_core::command::{Acquire, Command, Reply};
use evenkeel_core::decide::job::settled;
use evenkeel_core::grant::Resize;
use evenkeel_core::job::{JobSpec, Role};
use evenkeel_core::unit::Bytes;
use stage::{Stage, caller, cores, hold, job, name, on_gpu, profile, refusal, seen, stage, worker};

#[test]
fn a_workers_lease_is_what_its_stage_declares() {
    let mut s = Stage::new();
    let mut spec = on_gpu("j", 0, 50);
    (spec.stages[0].processes, spec.stages[0].resize) = (4, Resize::Restart);
    let _ = s.submit("alice", spec);
    let says =
        |resize, processes| move |a: &mut Acquire| (a.resize, a.processes) = (resize, processes);
    assert_eq!(
        refusal(s.acquire("alice", worker(1, 0), says(None, Some(1))).1),
        "processes: 1 is asked, and stage gen is declared with 4; leave it out, or submit the job with it"
    );
    assert_eq!(
        refusal(
            s.acquire("alice", worker(1, 0), says(Some(Resize::Fixed), None))
                .1
        ),
        "resize: fixed is asked, and stage gen is declared with restart; leave it out, or submit the job with it"
    );
    let Ok(Reply::Lease(lease)) = s.acquire("alice", worker(1, 0), |_| ()).1 else {
        panic!("refused");
    };
    assert_eq!((lease.processes, lease.resize), (4, Resize::Restart));
    let _ = s.release(1);
    let same = says(Some(Resize::Restart), Some(4));
    assert!(s.acquire("alice", worker(1, 0), same).1.is_ok());
    // Outside a job nobody else has declared it.
    let Ok(Reply::Lease(lease)) = s.acquire("alice", cores(1), |_| ()).1 else {
        panic!("refused");
    };
    assert_eq!((lease.processes, lease.resize), (1, Resize::Restart));
}

/// The SMs of generation and training after a new plan, and whether every worker has what it says.
fn replanned(resize: Resize, attached: bool) -> (Vec<u32>, bool) {
    let mut s = Stage::new();
    let stages = vec![
        stage("gen", Role::Generation, 1, (10, 60)),
        stage("train", Role::Training, 1, (10, 100)),
    ];
    let mut spec = JobSpec {
        gpu_count: 1,
        ..job("j", stages)
    };
    spec.stages[0].resize = resize;
    for (of, rate) in [("gen", 10.0), ("train", 10.0)] {
        s.import(profile(
            "alice",
            &format!("j/{of}"),
            &[(1, 100, 100.0 * rate)],
        ))
        .unwrap();
    }
    let _ = s.submit("alice", spec);
    for (lease, stage) in [(1, 0), (2, 1)] {
        let _ = s.acquire("alice", worker(1, stage), |_| ());
        if attached {
            hold(&mut s, lease);
        }
    }
    // Generation turns out to be four times as fast, with another need of memory, too.
    let mut faster = profile("alice", "j/gen", &[(1, 100, 4_000.0)]);
    faster.points[0].memory = Bytes::gib(3);
    s.import(faster).unwrap();
    let answer = s.run(Command::Update {
        caller: caller("alice"),
        job: name("j"),
        rebalance: None,
        policy: None,
        replan: true,
    });
    answer.1.unwrap();
    for _ in 0..3 {
        (1..=2).for_each(|lease| {
            if attached {
                seen(&mut s, lease)
            }
        });
    }
    let plan = s.job(1).plan.as_ref().unwrap();
    let sms = plan.stages.iter().map(|s| s.sms.0).collect();
    (sms, settled(s.d(), s.job(1)))
}

#[test]
fn a_new_plan_leaves_a_fixed_stage_what_it_has() {
    assert_eq!(replanned(Resize::Live, true), (vec![20, 80], true));
    assert_eq!(replanned(Resize::Fixed, true), (vec![50, 50], true));
    // Nobody uses it yet: it may still change.
    assert_eq!(replanned(Resize::Fixed, false).0, [20, 80]);
}
