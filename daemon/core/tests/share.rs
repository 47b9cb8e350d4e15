//! Two jobs on one node, through the one entry: the second takes its fair part from the first by the shrink protocol,
//! and what it leaves goes back at once. Who is frozen, more important or at its least gives nothing.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod stage;

use evenkeel_core::command::{Command, Observation};
use evenkeel_core::id::{GpuId, LeaseId};
use evenkeel_core::job::{JobPhase, JobSpec, Role};
use evenkeel_core::unit::Sms;
use stage::{Stage, caller, hold, job, name, profile, seen, stage, waiting, worker};

/// A generator and a trainer on GPU 0, which may have from 10 to all of its SMs each.
fn pair(of: &str) -> JobSpec {
    let both = [("gen", Role::Generation), ("train", Role::Training)];
    let stages = both.map(|(n, role)| {
        let mut s = stage(n, role, 1, (10, 100));
        s.cores = (1, 2);
        s
    });
    JobSpec {
        gpus: vec![GpuId(0)],
        ..job(of, stages.into())
    }
}

/// Linear stages: what counts is the SMs.
fn measure(s: &mut Stage, of: &str) {
    for n in ["gen", "train"] {
        s.import(profile("alice", &format!("{of}/{n}"), &[(1, 100, 100.0)]))
            .unwrap();
    }
}

/// The first job with both of its workers at work.
fn running() -> Stage {
    let mut s = Stage::new();
    for of in ["first", "second"] {
        measure(&mut s, of);
    }
    assert_eq!(
        s.submit("alice", pair("first")).0,
        ["job 1 submitted", "job 1 admitted"]
    );
    for stage in 0..2 {
        let _ = s.acquire("alice", worker(1, stage), |_| ());
        hold(&mut s, u64::from(stage) + 1);
    }
    s
}

fn sms(s: &Stage, job: u64) -> Vec<u32> {
    let plan = s.job(job).plan.as_ref().unwrap();
    plan.stages.iter().map(|stage| stage.sms.0).collect()
}
fn target(s: &Stage, lease: u64) -> Sms {
    let lease = &s.d().leases()[&LeaseId(lease)];
    lease.target.gpus[&GpuId(0)].guarantee
}

#[test]
fn a_second_job_gets_its_half_and_the_first_has_everything_back_when_it_ends() {
    let mut s = running();
    assert_eq!(sms(&s, 1), [50, 50]);
    let (events, _) = s.submit("alice", pair("second"));
    assert_eq!(events[0], "job 2 submitted");
    assert_eq!(events[1..3], ["job_replanned", "job 2 admitted"]);
    // In steps of two SMs one of them has to be ahead: the one that was there.
    assert_eq!((sms(&s, 1), sms(&s, 2)), (vec![26, 26], vec![24, 24]));
    // Nothing is given before it is given up: the second job's worker waits, the first one's is told to shrink.
    let (events, _) = s.acquire("alice", worker(2, 0), waiting);
    assert_eq!(events, ["lease 3 waits"]);
    assert_eq!(target(&s, 1), Sms(26));
    assert!(s.d().leases()[&LeaseId(3)].target.gpus.is_empty());
    seen(&mut s, 1);
    assert_eq!(
        target(&s, 3),
        Sms(24),
        "what the first worker gave up is all that it needs"
    );
    assert_eq!(target(&s, 2), Sms(26));
    seen(&mut s, 2);
    hold(&mut s, 3);

    let (events, _) = s.run(Command::Cancel {
        caller: caller("alice"),
        job: name("second"),
    });
    assert_eq!(events, ["job_ended"], "its worker still has its share");
    let lease = s.d().leases()[&LeaseId(3)].clone();
    let (events, _) = s.run(Command::Release {
        caller: caller("alice"),
        lease: lease.id,
        fence: lease.fence,
    });
    assert_eq!(events, ["lease_draining"]);
    let lease = s.d().leases()[&LeaseId(3)].clone();
    let (events, _) = s.run(Command::Observe(Box::new(Observation {
        lease: lease.id,
        fence: lease.fence,
        generation: lease.generation,
        gone: true,
        cores: None,
        gpus: Default::default(),
    })));
    assert_eq!(events[..2], ["lease 3 ended", "job_replanned"]);
    assert_eq!(sms(&s, 1), [50, 50]);
    assert_eq!((target(&s, 1), target(&s, 2)), (Sms(50), Sms(50)));
}

#[test]
fn a_weight_of_three_is_three_quarters() {
    let mut s = running();
    let heavy = JobSpec {
        weight: 3.0,
        ..pair("second")
    };
    let _ = s.submit("alice", heavy);
    assert_eq!(sms(&s, 1).iter().sum::<u32>(), 28);
    assert_eq!(sms(&s, 2).iter().sum::<u32>(), 72);
}

#[test]
fn who_is_frozen_or_more_important_gives_nothing() {
    let frozen = |s: &mut JobSpec| s.rebalance.enabled = false;
    let important = |s: &mut JobSpec| s.priority = 1;
    for change in [frozen as fn(&mut JobSpec), important] {
        let mut s = Stage::new();
        let mut first = pair("first");
        change(&mut first);
        let _ = s.submit("alice", first);
        assert_eq!(s.submit("alice", pair("second")).0, ["job 2 submitted"]);
        assert_eq!(s.job(2).phase, JobPhase::Queued);
    }
}

#[test]
fn nobody_goes_below_its_least() {
    let mut s = running();
    // Four cores are left, and each job needs two: the third job's least of SMs is more than the others can spare.
    let mut third = pair("third");
    third.stages[0].sms.0 = Sms(74);
    let _ = s.submit("alice", pair("second"));
    assert_eq!(s.submit("alice", third.clone()).0, ["job 3 submitted"]);
    assert_eq!((sms(&s, 1), sms(&s, 2)), (vec![26, 26], vec![24, 24]));
    third.name = name("fourth");
    third.stages[0].sms.0 = Sms(40);
    let _ = s.submit("alice", third);
    assert_eq!(
        s.job(4).phase,
        JobPhase::Queued,
        "behind the third, which waits for the same"
    );
}

#[test]
fn a_job_of_which_nothing_is_measured_gets_a_guess_of_its_part() {
    let mut s = Stage::new();
    for of in ["first", "second"] {
        let mut spec = pair(of);
        spec.stages.iter_mut().for_each(|s| s.cores = (1, 1));
        let _ = s.submit("alice", spec);
    }
    assert_eq!(s.job(2).phase, JobPhase::Admitted);
    let why = s.job(2).plan.as_ref().unwrap().why.join(" ");
    assert!(why.contains("its part is a guess"), "{why}");
    assert_eq!((sms(&s, 1), sms(&s, 2)), (vec![26, 26], vec![24, 24]));
    let _ = s.run(Command::Cancel {
        caller: caller("alice"),
        job: name("second"),
    });
    assert_eq!(sms(&s, 1), [50, 50], "and has everything back");
}
