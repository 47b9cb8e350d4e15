//! What one tenant can take of what is everybody's: jobs, leases, the queue, memory.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod stage;

use evenkeel_core::command::{Acquire, Command, Observation, Reply};
use evenkeel_core::curve::Profile;
use evenkeel_core::decide::node::{PROFILES_MAX, TENANT_POINTS_MAX};
use evenkeel_core::id::LeaseId;
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use stage::{
    Stage, caller, cores, hold, name, node, on_cores, profile, refusal, sms, waiting, worker,
};

#[test]
fn a_tenant_cannot_take_everybodys_jobs_places_and_leases() {
    let settings = Settings {
        tenant_jobs_max: 1,
        tenant_leases_max: 3,
        tenant_queue_max: 1,
        ..Settings::default()
    };
    let mut s = Stage::with(node(), settings);
    let _ = s.submit("alice", on_cores("a", 1));
    assert_eq!(
        refusal(s.submit("alice", on_cores("b", 1)).1),
        "live jobs of one tenant are limited to 1"
    );
    assert!(s.submit("bob", on_cores("b", 1)).1.is_ok());
    let _ = s.acquire("alice", cores(5), |_| ());
    let _ = s.acquire("alice", cores(1), waiting);
    assert_eq!(
        refusal(s.acquire("alice", cores(1), waiting).1),
        "requests of one tenant in the queue are limited to 1"
    );
    assert!(s.acquire("bob", cores(1), waiting).1.is_ok());
    let _ = s.acquire("alice", sms(0, 2), |_| ());
    assert_eq!(
        refusal(s.acquire("alice", sms(0, 2), |_| ()).1),
        "live leases of one tenant are limited to 3"
    );
    assert!(s.acquire("bob", sms(0, 2), |_| ()).1.is_ok());
    let _ = s.release(1);
    assert!(
        s.acquire("alice", sms(0, 2), |_| ()).1.is_ok(),
        "one has ended"
    );
}

#[test]
fn a_flood_of_one_tenant_makes_nobody_elses_retry_take_effect_twice() {
    let settings = Settings {
        remember_ends: 5,
        ..Settings::default()
    };
    let mut s = Stage::with(node(), settings);
    let Ok(Reply::Lease(bobs)) = s.acquire("bob", cores(1), |_| ()).1 else {
        panic!("refused");
    };
    let _ = s.run(Command::Release {
        caller: caller("bob"),
        lease: bobs.id,
        fence: bobs.fence,
    });
    for n in 2..20 {
        let _ = s.acquire("alice", cores(1), |_| ());
        let _ = s.release(n);
        let _ = s.run(Command::Tick);
    }
    let of = |s: &Stage, tenant: &str| s.d().requests().of(&name(tenant)).count();
    assert_eq!((of(&s, "alice"), of(&s, "bob")), (5, 1));
    let retry = |a: &mut Acquire| a.request = bobs.request;
    let Ok(Reply::Lease(again)) = s.acquire("bob", cores(1), retry).1 else {
        panic!("refused");
    };
    assert_eq!(again.id, bobs.id);
}

#[test]
fn imported_profiles_are_limited_for_each_tenant() {
    let mut s = Stage::new();
    let nothing = |tenant: &str, n: usize| Profile {
        points: vec![],
        ..profile(tenant, &format!("j/{n}"), &[])
    };
    for n in 0..PROFILES_MAX {
        s.import(nothing("alice", n)).unwrap();
    }
    assert_eq!(
        refusal(s.import(nothing("alice", PROFILES_MAX))),
        format!("profiles of one tenant are limited to {PROFILES_MAX}")
    );
    assert!(
        s.import(nothing("alice", 7)).is_ok(),
        "in the place of one that is there"
    );
    assert!(s.import(nothing("bob", 0)).is_ok());
    // Points, too.
    let long = profile("bob", "j/long", &[(1, 1, 1.0); 10_000]);
    for n in 0..TENANT_POINTS_MAX / 10_000 {
        let key = nothing("bob", n).key;
        s.import(Profile {
            key,
            ..long.clone()
        })
        .unwrap();
    }
    assert_eq!(
        refusal(s.import(profile("bob", "j/one-more", &[(1, 1, 1.0)]))),
        format!("points of all profiles of one tenant are limited to {TENANT_POINTS_MAX}")
    );
}

#[test]
fn who_is_limited_to_a_job_sees_its_leases_when_it_is_over_and_no_others() {
    let mut s = Stage::new();
    for (n, job) in [(1, "pick"), (2, "place")] {
        let _ = s.submit("alice", on_cores(job, 1));
        let granted = s.acquire("alice", worker(n, 0), |_| ()).1;
        assert!(granted.is_ok(), "{job}: {granted:?}");
        hold(&mut s, n);
    }
    let limited = |job: &str| caller("alice").within(name(job));
    for job in ["pick", "place"] {
        let cancelled = s.run(Command::Cancel {
            caller: caller("alice"),
            job: name(job),
        });
        assert!(cancelled.1.is_ok(), "{job}");
    }
    let seen = |d: &Durable, n| {
        let lease = &d.leases()[&LeaseId(n)];
        ["pick", "place", "else"].map(|job| d.is_seen_by(lease, &limited(job)))
    };
    assert_eq!(seen(s.d(), 1), [true, false, false]);
    assert_eq!(seen(s.d(), 2), [false, true, false]);
    let revoke = |s: &mut Stage, n, job| {
        let lease = LeaseId(n);
        let caller = limited(job);
        refusal(s.run(Command::Revoke { caller, lease }).1)
    };
    let missing = revoke(&mut s, 99, "pick").replace("99", "2");
    assert_eq!(revoke(&mut s, 2, "pick"), missing);
    // What a restart does not find in the tables is nobody's who is limited to a job.
    let loaded = Durable::load(s.d().parts());
    assert_eq!(seen(&loaded, 1), [false; 3]);

    let gone = s.run(Command::Observe(Box::new(Observation {
        lease: LeaseId(2),
        fence: s.d().leases()[&LeaseId(2)].fence,
        generation: s.d().leases()[&LeaseId(2)].generation,
        gone: true,
        cores: None,
        gpus: Default::default(),
    })));
    assert_eq!(gone.0, ["lease 2 ended"]);
    assert_eq!(
        revoke(&mut s, 2, "pick"),
        missing,
        "an end is nobody's, too"
    );
    let how = s.d().ended_seen_by(LeaseId(2), &limited("place"));
    assert!(how.is_some(), "its own still learns how it ended");
}

#[test]
fn a_trial_that_replaces_takes_the_place_of_its_point_and_of_no_other() {
    let mut s = Stage::new();
    let old = profile(
        "alice",
        "j/s",
        &[(1, 10, 1.0), (1, 10, 2.0), (1, 20, 3.0), (2, 10, 4.0)],
    );
    let key = old.key.clone();
    s.import(old).unwrap();
    let point = profile("alice", "j/s", &[(1, 10, 9.0)]).points.remove(0);
    let mut trial = |replaces| {
        let (key, point) = (key.clone(), Box::new(point.clone()));
        s.run(Command::Trial {
            key,
            point,
            replaces,
        })
        .1
    };
    assert_eq!(trial(true), Ok(Reply::Points(3)));
    assert_eq!(trial(false), Ok(Reply::Points(4)));
    let rates = s.d().profiles()[&key].points.iter().map(|p| p.rate.get());
    assert_eq!(rates.collect::<Vec<_>>(), [3.0, 4.0, 9.0, 9.0]);
}
