//! What lives look like as spans.

use std::collections::BTreeMap;

use evenkeel_core::grant::GpuShare;
use evenkeel_core::id::{BodyHash, Fence, GpuId, JobId, Name, RequestId, StageId, WorkerId};
use evenkeel_core::lease::{Cause, Holder, Phase};
use evenkeel_core::unit::{Bytes, Millis, Sms};

use super::*;

fn vector(cores: u32, sms: u32) -> Vector {
    let share = GpuShare {
        guarantee: Sms(sms),
        cap: Sms(sms),
        memory: Bytes::gib(4),
    };
    Vector {
        cores: (0..cores).collect(),
        gpus: BTreeMap::from([(GpuId(1), share)]),
    }
}

fn lease(phase: Phase, target: Vector) -> Lease {
    Lease {
        id: LeaseId(7),
        tenant: Name::new("alice").unwrap(),
        request: RequestId(1),
        body: BodyHash(0),
        ask: Ask::Stage(evenkeel_core::grant::Member {
            job: JobId(2),
            stage: StageId(1),
            worker: WorkerId(3),
        }),
        enforced: true,
        resize: Default::default(),
        processes: 1,
        ttl: Millis(30_000),
        priority: 0,
        fence: Fence(1),
        generation: Generation(1),
        held: Vector::empty(),
        target,
        batch: 1,
        phase,
    }
}

/// Events a second apart, the first at 1 s.
fn records(events: &[Event]) -> Vec<EventRecord> {
    let record = |(seq, event): (u64, &Event)| EventRecord {
        seq,
        batch: seq,
        unix_ms: seq * 1_000,
        kind: event.kind().into(),
        lease: Some(LeaseId(7)),
        job: None,
        tenant: None,
        json: serde_json::to_string(event).unwrap(),
    };
    (1..).zip(events).map(record).collect()
}

/// `name from-to` in seconds, with what went wrong.
fn told(span: &Span) -> String {
    let trouble = span.trouble.as_ref().map(|t| format!(": {t}"));
    format!(
        "{} {}-{}{}",
        span.name,
        span.from_ms / 1_000,
        span.to_ms / 1_000,
        trouble.unwrap_or_default()
    )
}

fn check(events: &[Event], expect: &[&str]) {
    let found = life("n1", &records(events));
    let told: Vec<String> = found
        .iter()
        .flat_map(|life| std::iter::once(&life.root).chain(&life.parts).map(told))
        .collect();
    assert_eq!(told, expect);
}

fn ended(how: End) -> Event {
    Event::LeaseEnded {
        id: LeaseId(7),
        fence: Fence(9),
        how,
        reason: None,
    }
}

fn attached() -> Event {
    let holder = Holder {
        pid: 4_711,
        start_time: 1,
        uid: 1_000,
    };
    Event::LeaseAttached {
        id: LeaseId(7),
        holder,
        fence: Fence(2),
    }
}

fn retargeted(generation: u64, target: Vector) -> Event {
    Event::LeaseRetargeted {
        id: LeaseId(7),
        generation: Generation(generation),
        target,
        batch: 1,
    }
}

fn held(held: Vector) -> Event {
    Event::LeaseHeld {
        id: LeaseId(7),
        held,
    }
}

#[test]
fn a_life_from_the_queue_to_its_release() {
    let id = LeaseId(7);
    let granted = lease(Phase::Pending, vector(2, 40));
    check(
        &[
            Event::LeaseQueued {
                lease: lease(Phase::Queued, Vector::empty()),
            },
            Event::LeaseGranted { lease: granted },
            attached(),
            Event::LeaseActivated { id },
            retargeted(2, vector(3, 50)),
            held(vector(2, 50)),
            held(vector(3, 50)),
            Event::LeaseDraining {
                id,
                fence: Fence(3),
            },
            ended(End::Released),
        ],
        &[
            "lease 1-9",
            "queued 1-2",
            "pending 2-3",
            "attached 3-4",
            "resize 5-7",
            "active 4-8",
            "draining 8-9",
        ],
    );
}

#[test]
fn what_goes_wrong_says_why() {
    let id = LeaseId(7);
    let granted = Event::LeaseGranted {
        lease: lease(Phase::Pending, vector(1, 10)),
    };
    check(
        &[granted.clone(), ended(End::Expired)],
        &["lease 1-2: it expired", "pending 1-2"],
    );
    check(
        &[
            granted,
            attached(),
            retargeted(2, vector(2, 10)),
            retargeted(3, vector(3, 10)),
            Event::LeaseQuarantined {
                id,
                fence: Fence(3),
                cause: Cause::Revoked,
            },
            ended(End::Revoked),
        ],
        &[
            "lease 1-6: it was revoked",
            "pending 1-2",
            "resize 3-4: a newer target took its place",
            "attached 2-5",
            "resize 4-6: the lease ended first",
            "quarantined 5-6: it was revoked",
        ],
    );
}

#[test]
fn a_life_that_is_not_over_or_not_known_from_its_begin_is_not_told() {
    let granted = Event::LeaseGranted {
        lease: lease(Phase::Pending, vector(1, 10)),
    };
    check(&[granted, attached()], &[]);
    check(&[attached(), ended(End::Failed)], &[]);
}

#[test]
fn the_root_says_what_was_given_and_to_whom() {
    let granted = Event::LeaseGranted {
        lease: lease(Phase::Pending, vector(2, 40)),
    };
    let life = life("n1", &records(&[granted, ended(End::Released)])).unwrap();
    let text = |key: &str| {
        let found = life.root.attributes.iter().find(|(name, _)| *name == key);
        found.map(|(_, value)| value.clone())
    };
    for (key, expect) in [
        ("evenkeel.lease.id", Value::Count(7)),
        ("evenkeel.tenant", Value::Text("alice".into())),
        ("evenkeel.job.id", Value::Count(2)),
        ("evenkeel.worker", Value::Count(3)),
        ("evenkeel.cores", Value::Text("0-1".into())),
        ("evenkeel.gpus", Value::Text("1".into())),
        ("evenkeel.sms", Value::Count(40)),
        ("evenkeel.gpu_memory_bytes", Value::Count(4 << 30)),
        ("evenkeel.lease.end", Value::Text("released".into())),
    ] {
        assert_eq!(text(key), Some(expect), "{key}");
    }
}

#[test]
fn ids_are_the_same_each_time_and_differ_between_lives() {
    let granted = Event::LeaseGranted {
        lease: lease(Phase::Pending, vector(1, 10)),
    };
    let told = records(&[granted, ended(End::Released)]);
    let (one, again) = (life("n1", &told).unwrap(), life("n1", &told).unwrap());
    let other = life("n2", &told).unwrap();
    assert_eq!(one.trace, again.trace);
    assert_ne!(one.trace, other.trace);
    assert_ne!(one.span_id(0), one.span_id(1));
    assert_ne!(one.span_id(0), other.span_id(0));
}
