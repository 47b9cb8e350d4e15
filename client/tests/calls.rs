//! Calls against a daemon whose answers get lost, that restarts, and that refuses.
#![allow(clippy::unwrap_used, reason = "tests, and the helpers of tests")]

mod fake;

use std::time::Duration;

use evenkeel_client::blocking::Client;
use evenkeel_client::{
    Address, ClientConfig, Error, LeasePhase, LeaseRef, LeaseRequest, ProfileKey, ProfilePoint,
};
use fake::Fake;
use fake::leases::refusal;
use tonic::Code;

fn config(fake: &Fake) -> ClientConfig {
    ClientConfig::new(Address::Unix(fake.socket.clone())).deadline(fake::PATIENCE)
}

fn client(fake: &Fake) -> Client {
    Client::new(config(fake)).unwrap()
}

#[test]
fn an_acquire_whose_answer_was_lost_has_one_effect() {
    let fake = Fake::start();
    fake.world().lose_answers = 2;
    let request = LeaseRequest::amounts(4, Vec::new());
    let lease = client(&fake).acquire(&request).unwrap();
    assert_eq!(lease.request_id, request.request_id.to_string());
    assert_eq!(fake.world().acquire_calls, 3);
    assert_eq!(fake.world().leases.len(), 1, "a retry was granted again");
    // The same request later is the same lease; a new one is another.
    assert_eq!(client(&fake).acquire(&request).unwrap().id, lease.id);
    let other = LeaseRequest::amounts(4, Vec::new());
    assert_ne!(client(&fake).acquire(&other).unwrap().id, lease.id);
}

#[test]
fn attach_and_release_survive_lost_answers() {
    let fake = Fake::start();
    let client = client(&fake);
    let lease = client
        .acquire(&LeaseRequest::amounts(1, Vec::new()))
        .unwrap();
    fake.world().lose_answers = 1;
    let attached = client.attach(lease.handle()).unwrap().lease;
    assert_eq!(attached.pid, std::process::id());
    assert_eq!(attached.fence, fake.world().leases[&lease.id].fence);
    fake.world().lose_answers = 1;
    let released = client.release(attached.handle()).unwrap();
    assert_eq!(released.phase, LeasePhase::Ended);
}

#[test]
fn an_old_fence_is_an_error_of_its_own() {
    let fake = Fake::start();
    let client = client(&fake);
    let lease = client
        .acquire(&LeaseRequest::amounts(1, Vec::new()))
        .unwrap();
    fake.world().fence(lease.id);
    assert!(matches!(
        client.attach(lease.handle()),
        Err(Error::Fenced { .. })
    ));
    assert!(matches!(
        client.release(lease.handle()),
        Err(Error::Fenced { .. })
    ));
    let nobody = LeaseRef {
        lease_id: 99,
        fence: 1,
    };
    assert!(matches!(
        client.release(nobody),
        Err(Error::NotFound { .. })
    ));
}

#[test]
fn a_refusal_says_what_is_short_and_is_not_retried() {
    let fake = Fake::start();
    let details = [
        ("resource", "cores"),
        ("short_by", "2"),
        ("holder", "job reach"),
    ];
    let short = refusal(
        Code::ResourceExhausted,
        "SHORT",
        &details,
        "2 cores are missing",
    );
    fake.world().refuse.push(short);
    let error = client(&fake)
        .acquire(&LeaseRequest::amounts(4, Vec::new()))
        .unwrap_err();
    let refusal = error.rejection().unwrap();
    assert_eq!(refusal.resource.as_deref(), Some("cores"));
    assert_eq!(
        (refusal.short_by, refusal.holder.as_deref()),
        (Some(2), Some("job reach"))
    );
    assert_eq!(error.to_string(), "2 cores are missing");
    assert_eq!(fake.world().acquire_calls, 1);
}

#[test]
fn nobody_there_is_said_with_the_socket_and_soon() {
    let mut fake = Fake::start();
    fake.stop();
    let client = Client::new(config(&fake).deadline(Duration::from_millis(200))).unwrap();
    let error = client.node().unwrap_err();
    let Error::Unavailable { absent, tries, .. } = &error else {
        panic!("{error}");
    };
    assert!(*absent && *tries > 1, "{error}");
    let text = error.to_string();
    assert!(text.contains(&fake.socket.display().to_string()), "{text}");
}

#[test]
fn a_call_outlives_a_restart_of_the_daemon() {
    let mut fake = Fake::start();
    let client = client(&fake);
    assert_eq!(client.node().unwrap().name, "fake");
    fake.stop();
    let waiting = {
        let client = client.clone();
        std::thread::spawn(move || client.acquire(&LeaseRequest::amounts(1, Vec::new())))
    };
    fake.restart();
    assert!(waiting.join().unwrap().is_ok());
    assert_eq!(client.node().unwrap().live_leases, 1);
}

#[test]
fn a_trial_in_doubt_is_not_stored_twice() {
    let fake = Fake::start();
    fake.world().lose_answers = 1;
    let key = ProfileKey {
        stage: "j/s".into(),
        gpu: "H100".into(),
    };
    let point = ProfilePoint {
        cores: 1,
        sms: 14,
        batch: 1,
        replicas: 1,
        units_per_s: 7.0,
        memory_bytes: 0,
        weight: 1.0,
        ..ProfilePoint::default()
    };
    assert!(
        client(&fake)
            .report_trial(key.clone(), point.clone())
            .is_err()
    );
    let stored = client(&fake).export_profile(key).unwrap();
    assert_eq!(stored.points, [point]);
}

#[test]
fn all_pages_of_a_listing_are_turned() {
    let fake = Fake::start();
    let client = client(&fake);
    for _ in 0..5 {
        client
            .acquire(&LeaseRequest::amounts(1, Vec::new()))
            .unwrap();
    }
    let ids: Vec<u64> = client.leases(None).unwrap().iter().map(|l| l.id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
}

#[test]
fn blocking_inside_a_runtime_is_refused_instead_of_panicking() {
    let fake = Fake::start();
    let client = client(&fake);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let result = runtime.block_on(async { client.node() });
    assert!(matches!(result, Err(Error::InsideRuntime)));
}
