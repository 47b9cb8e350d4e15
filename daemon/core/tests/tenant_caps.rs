//! What a tenant may have at most: bounded where it is granted and planned, taken from nobody, in nobody's way.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod stage;

use evenkeel_core::caps::{Cap, Caps};
use evenkeel_core::id::Name;
use evenkeel_core::job::{JobPhase, Role};
use evenkeel_core::unit::{Bytes, Sms};
use stage::{Stage, cores, job, on_cores, refusal, sms, stage, waiting};

/// Seven leasable cores and two GPUs of 100 SMs; alice is capped.
fn with(cap: Cap) -> Stage {
    let mut s = Stage::new();
    s.s.volatile.caps = Caps {
        named: [(Name::new("alice").unwrap(), cap)].into(),
        others: Cap::default(),
    };
    s
}

fn of_cores(n: u32) -> Cap {
    Cap {
        cores: Some(n),
        ..Cap::default()
    }
}

#[test]
fn a_tenant_gets_no_more_than_its_cap() {
    let mut s = with(of_cores(3));
    assert_eq!(
        s.acquire("alice", cores(2), |_| ()).0,
        ["lease 1 has cores 1-2"]
    );
    let (_, answer) = s.acquire("alice", cores(2), |_| ());
    assert_eq!(
        refusal(answer),
        "1 more core is needed than is free (2 asked, 1 free); held by your tenant's cap of 3, of which it has 2"
    );
    let (_, answer) = s.acquire("alice", cores(4), |_| ());
    assert_eq!(refusal(answer), "cores of one tenant are limited to 3");
    assert_eq!(
        s.acquire("alice", cores(1), |_| ()).0,
        ["lease 2 has cores 3"]
    );
    assert_eq!(
        s.acquire("bob", cores(4), |_| ()).0,
        ["lease 3 has cores 4-7"]
    );
    // What really is short is said before a cap is.
    let (_, answer) = s.acquire("alice", cores(1), |_| ());
    assert!(refusal(answer).contains("(1 asked, 0 free)"));
}

#[test]
fn who_waits_because_of_its_own_cap_holds_up_nobody() {
    let mut s = with(of_cores(3));
    assert_eq!(
        s.acquire("alice", cores(3), |_| ()).0,
        ["lease 1 has cores 1-3"]
    );
    assert_eq!(s.acquire("alice", cores(2), waiting).0, ["lease 2 waits"]);
    assert_eq!(
        s.submit("alice", on_cores("later", 3)).0,
        ["job 1 submitted"]
    );
    assert_eq!(
        s.acquire("bob", cores(2), |_| ()).0,
        ["lease 3 has cores 4-5"]
    );
    assert_eq!(
        s.submit("bob", on_cores("now", 2)).0,
        ["job 2 submitted", "job 2 admitted"]
    );
    // When alice gives back, her own go on, in their turn.
    assert_eq!(s.release(1), ["lease 1 ended", "lease 2 has cores 1-2"]);
    assert_eq!(
        s.d().jobs().values().next().unwrap().phase,
        JobPhase::Queued
    );
    assert_eq!(s.release(2), ["lease 2 ended", "job 1 admitted"]);
}

#[test]
fn caps_hold_on_each_gpu() {
    let mut s = with(Cap {
        sms_per_gpu: Some(Sms(60)),
        memory_per_gpu: Some(Bytes::gib(40)),
        ..Cap::default()
    });
    assert_eq!(
        s.acquire("alice", sms(0, 40), |_| ()).0,
        ["lease 1 has cores "]
    );
    let (_, answer) = s.acquire("alice", sms(0, 30), |_| ());
    assert_eq!(
        refusal(answer),
        "10 more SMs of gpu 0 are needed than are free (30 asked, 20 free); held by your tenant's cap of 60, of which \
         it has 40"
    );
    let (_, answer) = s.acquire("alice", sms(1, 62), |_| ());
    assert_eq!(
        refusal(answer),
        "SMs of one tenant on a GPU are limited to 60"
    );
    assert_eq!(
        s.acquire("alice", sms(1, 60), |_| ()).0,
        ["lease 2 has cores "],
        "another GPU"
    );
    assert_eq!(
        s.acquire("bob", sms(0, 60), |_| ()).0,
        ["lease 3 has cores "]
    );
}

#[test]
fn a_job_is_planned_within_its_tenants_cap() {
    let greedy = || {
        let mut train = stage("train", Role::Training, 2, (2, 100));
        train.cores = (1, 7);
        job("greedy", vec![train])
    };
    let mut free = Stage::new();
    let _ = free.submit("alice", greedy());
    let planned = |s: &Stage| {
        let plan = s.d().jobs().values().next().unwrap().plan.clone().unwrap();
        let worker = plan.stages[0].workers[0].clone();
        let sms = worker.gpus.values().next().map(|g| g.guarantee.0);
        (worker.cores.len(), sms)
    };
    let (all_cores, all_sms) = planned(&free);
    assert!(
        all_cores > 2 && all_sms > Some(50),
        "it takes what there is: {all_cores}, {all_sms:?}"
    );
    let mut s = with(Cap {
        cores: Some(2),
        sms_per_gpu: Some(Sms(50)),
        ..Cap::default()
    });
    assert_eq!(
        s.submit("alice", greedy()).0,
        ["job 1 submitted", "job 1 admitted"]
    );
    assert_eq!(planned(&s), (2, Some(50)));
    assert_eq!(s.d().used_by(&Name::new("alice").unwrap()).cores, 2);
    // What can never fit under the cap is refused at once.
    let (_, answer) = s.submit("alice", on_cores("wide", 3));
    assert_eq!(refusal(answer), "cores of one tenant are limited to 2");
}
