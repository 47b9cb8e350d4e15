//! One queue for jobs and requests: by priority, then arrival; backfill delays nobody; and only GPUs that are leased.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod stage;

use evenkeel_core::command::{Acquire, Command};
use evenkeel_core::id::GpuId;
use evenkeel_core::job::{JobPhase, JobSpec, Role};
use evenkeel_core::node::{GpuMode, Unavailable};
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::{Bytes, Sms};
use stage::{Stage, cores, node, on_cores, on_gpu, profile, refusal, sms, stage, waiting};

#[test]
fn a_job_that_waits_is_an_earlier_entry_of_the_queue() {
    let mut s = Stage::new();
    assert_eq!(
        s.acquire("alice", cores(4), |_| ()).0,
        ["lease 1 has cores 1-4"]
    );
    assert_eq!(s.submit("bob", on_cores("big", 5)).0, ["job 1 submitted"]);
    // Three cores are free. Whoever comes later and takes them, again and again, would starve the job.
    let (events, answer) = s.acquire("alice", cores(1), |_| ());
    assert_eq!(events, [""; 0]);
    assert_eq!(
        refusal(answer),
        "1 more core is needed than is free (1 asked, 0 free); held by the queue: job 1 waits for them first"
    );
    assert_eq!(s.acquire("alice", cores(2), waiting).0, ["lease 2 waits"]);
    assert_eq!(s.acquire("alice", cores(1), waiting).0, ["lease 3 waits"]);
    // A higher priority goes first, and another kind of resource is nobody's.
    let higher = |a: &mut Acquire| a.priority = 1;
    assert_eq!(
        s.acquire("alice", cores(1), higher).0,
        ["lease 4 has cores 5"]
    );
    assert_eq!(
        s.acquire("alice", sms(0, 10), |_| ()).0,
        ["lease 5 has cores "]
    );
    // In turn.
    assert_eq!(
        s.release(1),
        ["lease 1 ended", "job 1 admitted"],
        "one core is left of the two that lease 2 needs, and lease 3 came after it"
    );
    assert_eq!(s.release(4), ["lease 4 ended", "lease 2 has cores 5,7"]);
}

#[test]
fn a_request_that_was_there_before_a_job_goes_first() {
    let mut s = Stage::new();
    let _ = s.acquire("alice", cores(4), |_| ());
    assert_eq!(s.acquire("alice", cores(5), waiting).0, ["lease 2 waits"]);
    assert_eq!(
        s.submit("bob", on_cores("small", 2)).0,
        ["job 1 submitted"],
        "three cores are free, and lease 2 waits for them"
    );
    let urgent = JobSpec {
        priority: 1,
        ..on_cores("urgent", 1)
    };
    assert_eq!(
        s.submit("bob", urgent).0,
        ["job 2 submitted", "job 2 admitted"]
    );
    assert_eq!(
        s.release(1),
        ["lease 1 ended", "lease 2 has cores 1-4,6"],
        "one core is left of the two that the job needs"
    );
    assert_eq!(s.release(2), ["lease 2 ended", "job 1 admitted"]);
}

#[test]
fn a_job_behind_one_that_waits_is_tried_on_what_that_one_cannot_use() {
    let mut s = Stage::new();
    let _ = s.acquire("alice", sms(0, 80), |_| ());
    assert_eq!(
        s.submit("alice", on_gpu("first", 0, 50)).0,
        ["job 1 submitted"]
    );
    assert_eq!(
        s.submit("alice", on_gpu("same", 0, 10)).0,
        ["job 2 submitted"]
    );
    assert_eq!(
        s.submit("alice", on_gpu("other", 1, 10)).0,
        ["job 3 submitted", "job 3 admitted"]
    );
    assert_eq!(
        s.release(1),
        ["lease 1 ended", "job 1 admitted", "job 2 admitted"]
    );
}

#[test]
fn who_cannot_fit_on_what_is_available_holds_up_nobody() {
    let mut s = Stage::new();
    let lost = Unavailable {
        gpus: [(GpuId(1), (Sms(100), Bytes::gib(80)))].into(),
        ..Unavailable::default()
    };
    let found = |unavailable: &Unavailable| Command::Discovered {
        node: Box::new(node()),
        unavailable: Box::new(unavailable.clone()),
    };
    let _ = s.run(found(&lost));
    let mut both = on_gpu("unlucky", 1, 50);
    both.stages.push(stage("sim", Role::Simulation, 2, (0, 0)));
    assert_eq!(s.submit("alice", both).0, ["job 1 submitted"]);
    assert_eq!(s.acquire("alice", sms(1, 10), waiting).0, ["lease 1 waits"]);
    // No core that is taken delays a job that waits for a GPU to come back.
    assert_eq!(
        s.submit("alice", on_cores("lucky", 3)).0,
        ["job 2 submitted", "job 2 admitted"]
    );
    assert_eq!(
        s.acquire("alice", cores(3), |_| ()).0,
        ["lease 2 has cores 4-6"]
    );
    let (events, _) = s.run(found(&Unavailable::default()));
    assert_eq!(events, ["unavailable_changed"], "one core is left of two");
    let (events, _) = s.acquire("alice", cores(1), |_| ());
    assert_eq!(events, [""; 0], "now it is the job that waits for cores");
    assert_eq!(
        s.release(2),
        ["lease 2 ended", "job 1 admitted", "lease 1 has cores "]
    );
}

#[test]
fn a_job_is_planned_again_when_it_is_measured_anew() {
    let mut s = Stage::new();
    let _ = s.acquire("alice", sms(0, 80), |_| ());
    // Measured to need 20 GiB beside 75 that are taken by nobody: it fits but for the SMs.
    let mut spec = on_gpu("j", 0, 50);
    spec.stages[0].sms.0 = Sms(2);
    spec.stages[0].memory = Bytes::gib(80);
    assert_eq!(s.submit("alice", spec).0, ["job 1 submitted"]);
    s.import(profile("bob", "j/gen", &[(0, 50, 100.0)]))
        .unwrap();
    assert_eq!(s.job(1).phase, JobPhase::Queued, "somebody else's profile");
    s.import(profile("alice", "j/gen", &[(0, 50, 100.0)]))
        .unwrap();
    assert_eq!(s.job(1).phase, JobPhase::Admitted, "1 GiB is enough");
}

#[test]
fn a_gpu_that_is_only_looked_at_is_leased_to_no_job() {
    let mut looked_at = node();
    looked_at.gpus[1].mode = GpuMode::Observe;
    let mut s = Stage::with(looked_at, Settings::default());
    let any = |of: &str, n| JobSpec {
        gpus: vec![],
        gpu_count: n,
        ..on_gpu(of, 0, 60)
    };
    assert_eq!(
        refusal(s.submit("alice", any("both", 2)).1),
        "2 GPUs were asked and this node has 1 to lease: it can never fit"
    );
    assert_eq!(
        refusal(s.submit("alice", on_gpu("named", 1, 10)).1),
        "1 GPU was asked and this node has 0 to lease: it can never fit"
    );
    let _ = s.submit("alice", any("first", 1));
    assert_eq!(s.job(1).plan.as_ref().unwrap().gpus, [GpuId(0)]);
    assert_eq!(s.submit("alice", any("second", 1)).0, ["job 2 submitted"]);
}
