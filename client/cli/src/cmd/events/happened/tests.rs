//! Each kind of event as the core writes it, and as it is told.
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::event::Event;
use evenkeel_core::grant::{GpuAsk, GpuShare, Member, Resize};
use evenkeel_core::id::{BodyHash, Fence, Generation, GpuId, JobId, LeaseId, Name, RequestId};
use evenkeel_core::id::{StageId, WorkerId};
use evenkeel_core::job::{Policy, RebalanceSpec};
use evenkeel_core::lease::{Cause, End, Holder, Phase};
use evenkeel_core::node::Unavailable;
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms};

use super::*;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn share() -> Vector {
    let share = GpuShare {
        guarantee: Sms(40),
        cap: Sms(60),
        memory: Bytes::gib(10),
    };
    Vector {
        cores: "1-3".parse().unwrap(),
        gpus: [(GpuId(0), share)].into(),
    }
}

fn lease(ask: Ask, target: Vector) -> Lease {
    Lease {
        id: LeaseId(7),
        tenant: name("alice"),
        request: RequestId(1),
        body: BodyHash(1),
        ask,
        enforced: true,
        resize: Resize::default(),
        processes: 1,
        ttl: Millis(1),
        priority: 0,
        fence: Fence(1),
        generation: Generation(1),
        held: Vector::empty(),
        target,
        batch: 1,
        phase: Phase::Pending,
    }
}

fn alone() -> Ask {
    let gpu = GpuAsk {
        gpu: None,
        sms: SmAsk::Percent(30),
        memory: Bytes::gib(10),
    };
    Ask::Alone {
        cores: 1,
        gpus: vec![gpu],
    }
}

fn check(event: &Event, expect: &str) {
    let json = serde_json::to_string(event).unwrap();
    assert_eq!(sentence(event.kind(), &json), expect, "{json}");
}

#[test]
fn what_happens_to_leases_is_told() {
    let id = LeaseId(7);
    let fence = Fence(2);
    let member = Member {
        job: JobId(3),
        stage: StageId(1),
        worker: WorkerId(0),
    };
    let holder = Holder {
        pid: 42,
        start_time: 1,
        uid: 1,
    };
    let ended = |how, reason: Option<&str>| Event::LeaseEnded {
        id,
        fence,
        how,
        reason: reason.map(Into::into),
    };
    let shown = "cores 1-3; gpu 0: 40 SMs (up to 60), 10 GiB";
    for (event, expect) in [
        (
            Event::LeaseQueued {
                lease: lease(alone(), Vector::empty()),
            },
            "waits for 1 core; any gpu: 30 %, 10 GiB".to_owned(),
        ),
        (
            Event::LeaseGranted {
                lease: lease(Ask::Stage(member), share()),
            },
            format!("granted {shown}, for a worker of job 3"),
        ),
        (
            Event::LeaseAttached { id, holder, fence },
            "process 42 has it".to_owned(),
        ),
        (Event::LeaseActivated { id }, "in force".to_owned()),
        (
            Event::LeaseRetargeted {
                id,
                generation: Generation(2),
                target: share(),
                batch: 1,
            },
            format!("is to have {shown}"),
        ),
        (
            Event::LeaseHeld {
                id,
                held: Vector::empty(),
            },
            "has nothing".to_owned(),
        ),
        (
            Event::LeaseQuarantined {
                id,
                fence,
                cause: Cause::Expired,
            },
            "expired: not renewed in time; counted until its processes are gone".to_owned(),
        ),
        (
            ended(End::Revoked, Some("gone")),
            "over: revoked (gone)".to_owned(),
        ),
        (ended(End::Released, None), "over: given back".to_owned()),
    ] {
        check(&event, &expect);
    }
}

#[test]
fn what_happens_to_jobs_and_the_node_is_told() {
    let id = JobId(3);
    let unavailable = Unavailable {
        cores: "5".parse().unwrap(),
        gpus: [(GpuId(0), (Sms(1), Bytes::gib(2)))].into(),
    };
    let rebalance = RebalanceSpec {
        enabled: false,
        ..RebalanceSpec::default()
    };
    for (event, expect) in [
        (
            Event::JobStayed {
                id,
                reason: "the gap is small".into(),
            },
            "its shares stay: the gap is small",
        ),
        (
            Event::JobRefitted {
                id,
                scale: vec![1.0, 0.5],
                learned: vec![],
                kappa: vec![],
                outlook: None,
            },
            "its curves are refitted; measured ÷ profiled by stage: 1.00, 0.50",
        ),
        (
            Event::JobUpdated {
                id,
                rebalance,
                policy: Policy::Waterfill,
            },
            "its rules are set: shares are frozen, plans by waterfill",
        ),
        (Event::JobEnded { id }, "over"),
        (
            Event::UnavailableChanged { unavailable },
            "not available: cores 5; gpu 0: 1 SM, 2 GiB",
        ),
        (
            Event::UnavailableChanged {
                unavailable: Unavailable::default(),
            },
            "all of the node is available",
        ),
        (
            Event::NodeDrained { draining: true },
            "node is drained: it grants nothing new",
        ),
    ] {
        check(&event, expect);
    }
}

#[test]
fn what_is_measured_is_told() {
    let key = ProfileKey {
        tenant: name("alice"),
        stage: name("reach/sim"),
        gpu: name("none"),
    };
    let point = Point {
        cores: 1,
        sms: Sms(0),
        batch: 8,
        replicas: 1,
        rate: Rate::new(12.5).unwrap(),
        memory: Bytes(0),
        weight: 1.0,
        ..Point::default()
    };
    for (event, expect) in [
        (
            Event::TrialReported {
                key: key.clone(),
                point: point.clone(),
            },
            "trial of reach/sim on none: 12.5 units/s at 1 core, batch 8",
        ),
        (
            Event::ProfileImported {
                profile: Profile {
                    key,
                    points: vec![point],
                },
            },
            "profile of reach/sim on none replaced: 1 point",
        ),
    ] {
        check(&event, expect);
    }
}

#[test]
fn what_is_not_known_is_shown_field_by_field() {
    let json = r#"{"lease_ended":{"lease":7,"end":"released"}}"#;
    assert_eq!(
        sentence("lease_ended", json),
        "lease_ended end=\"released\" lease=7"
    );
    assert_eq!(sentence("strange", "no json"), "strange no json");
}
