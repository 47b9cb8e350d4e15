//! The REST face: the objects, whose they are, what is refused, metrics, and the document.
use evenkeel_proto::v1 as pb;
use serde_json::Value;

use super::jobs::{spec, submit};
use super::kit::{Rig, Who, acquire, enforced};
use super::profiles::trial;
use super::web::{ask, get, get_as};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_objects_of_the_wire_as_json() {
    let rig = Rig::local().await;
    let lease = acquire(&mut rig.leases(Who::Bob).await, enforced(1, 20, 2)).await;
    submit(&rig, Who::Alice, spec("pick/place")).await;

    let node = get(&rig, "/v1/node").await;
    assert_eq!((node.status, node.kind()), (200, "application/json"));
    let node = node.json();
    assert_eq!(node["name"], "testnode");
    assert_eq!(node["gpus"][0]["memory_bytes"], 80u64 << 30);
    assert_eq!(node["live_leases"], 1);

    let leases = get(&rig, "/v1/leases?limit=1").await.json();
    assert_eq!(leases["leases"][0]["tenant"], "bob", "an admin sees all");
    assert_eq!(leases["next_after_id"], 0);
    let one = get(&rig, &format!("/v1/leases/{}", lease.id)).await.json();
    assert_eq!(one["phase"], "pending");
    assert_eq!(one["end"], Value::Null);
    assert_eq!(one["target"]["gpus"][0]["cap_sms"], 20);
    assert_eq!(one["ttl_ms"], 30_000);
    assert_eq!(one["member"], Value::Null);

    let jobs = get(&rig, "/v1/jobs").await.json();
    assert_eq!(jobs["jobs"][0]["spec"]["stages"][0]["role"], "simulation");
    let job = get(&rig, "/v1/jobs/pick%2Fplace").await.json();
    assert_eq!(
        (&job["phase"], &job["plan"]["by"]),
        (&"admitted".into(), &"even".into())
    );
    assert_eq!(job["spec"]["rebalance"]["gap"], 0.15);

    let of_lease = format!("/v1/events?after=0&limit=5&lease={}", lease.id);
    let events = get(&rig, &of_lease).await.json();
    assert_eq!(events["events"][0]["kind"], "lease_granted");
    assert_eq!(
        events["events"][0]["json"]["lease"]["tenant"], "bob",
        "the event itself"
    );
    let of_job = get(&rig, "/v1/events?job=pick%2Fplace").await.json();
    assert_eq!(of_job["events"][0]["kind"], "job_submitted");
    let health = get(&rig, "/healthz").await;
    assert_eq!(
        (health.status, &health.json()["grants"]),
        (200, &true.into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_node_is_made_of_and_what_is_left_of_it() {
    let rig = Rig::local().await;
    acquire(&mut rig.leases(Who::Bob).await, enforced(2, 20, 2)).await;

    let topology = get(&rig, "/v1/node/topology").await.json();
    assert_eq!(topology["packages"][0]["cores"], "0-7");
    assert_eq!(topology["packages"][0]["numa_nodes"][0], 0);
    assert_eq!(topology["numa_nodes"][0]["cpus"], "0-7,100-107");
    assert_eq!(topology["numa_nodes"][0]["gpus"][0], 0);
    assert_eq!(topology["cores"][0]["reserved"], true);
    assert_eq!(topology["cores"][1]["cpus"], "1,101");
    assert_eq!(topology["gpus"][0]["backend"], "emulated");

    let pools = get(&rig, "/v1/pools").await.json();
    let cores = &pools["cores"]["count"];
    for (amount, n) in [
        ("installed", 8),
        ("reserved", 1),
        ("unavailable", 0),
        ("target", 2),
        ("used", 2),
        ("unclaimed", 0),
        ("free", 5),
    ] {
        assert_eq!(cores[amount], n, "{amount}: {cores}");
    }
    assert_eq!(pools["cores"]["used"], "1-2");
    assert_eq!(pools["gpus"][0]["sms"]["used"], 20);
    assert_eq!(pools["gpus"][0]["sms"]["free"], 112);
    assert_eq!(pools["gpus"][0]["memory_bytes"]["used"], 2u64 << 30);

    submit(&rig, Who::Alice, spec("pick")).await;
    let pools = get(&rig, "/v1/pools").await.json();
    let cores = &pools["cores"]["count"];
    let sum = ["reserved", "unavailable", "used", "free"].map(|a| cores[a].as_u64().unwrap());
    assert_eq!(sum.iter().sum::<u64>(), 8, "{cores}");
    let unclaimed = cores["used"].as_u64().unwrap() - 2;
    assert!(
        unclaimed > 0,
        "a job without workers keeps its cores: {cores}"
    );
    assert_eq!(cores["unclaimed"], unclaimed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_has_stages_a_plan_and_reasons() {
    let rig = Rig::local().await;
    submit(&rig, Who::Alice, spec("pick/place")).await;
    let worker = pb::AcquireLeaseRequest {
        request_id: super::kit::request_id(),
        member: Some(pb::Member {
            job: "pick/place".into(),
            stage: spec("x").stages[0].name.clone(),
            worker: 0,
        }),
        ..Default::default()
    };
    acquire(&mut rig.leases(Who::Alice).await, worker).await;

    let stages = get(&rig, "/v1/jobs/pick%2Fplace/stages").await.json();
    assert_eq!(stages["job"], "pick/place");
    let first = &stages["stages"][0];
    assert_eq!(first["name"], first["spec"]["name"]);
    assert_eq!(first["plan"]["stage"], first["name"]);
    assert_eq!(first["units_per_s"], Value::Null, "nothing was measured");
    assert_eq!(first["leases"][0]["member"]["stage"], first["name"]);
    assert_eq!(stages["stages"][1]["leases"], Value::Array(vec![]));

    let plan = get(&rig, "/v1/jobs/pick%2Fplace/plan").await.json();
    assert_eq!(plan["plan"]["by"], "even");
    let why = get(&rig, "/v1/jobs/pick%2Fplace/explain").await.json();
    assert_eq!(why["decisions"][0]["kind"], "admitted");
    assert!(why["sentences"][0].as_str().unwrap().contains("even"));

    let decisions = get(&rig, "/v1/decisions").await.json();
    let one = &decisions["decisions"][0];
    assert_eq!(
        (&one["kind"], &one["tenant"]),
        (&"admitted".into(), &"alice".into())
    );
    assert!(one["reason"].as_str().unwrap().contains("even"), "{one}");
    let of_job = get(&rig, "/v1/decisions?job=pick%2Fplace&newest=true")
        .await
        .json();
    assert_eq!(of_job["decisions"], decisions["decisions"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_are_listed_and_shown_with_their_curves() {
    let rig = Rig::synthetic().await;
    for who in [Who::Alice, Who::Bob] {
        let reported = rig.profiles(who).await.report_trial(trial(33, 20.0)).await;
        reported.unwrap();
    }
    let all = get(&rig, "/v1/profiles?limit=1").await;
    assert_eq!(all.json()["profiles"][0]["tenant"], "alice");
    let next = all.next().unwrap();
    let rest = get(&rig, &next).await;
    assert_eq!(rest.json()["profiles"][0]["tenant"], "bob");
    assert_eq!(rest.next(), None);

    let one = "/v1/profiles/pick%2Fgen/H100";
    let found = get(&rig, &format!("{one}?tenant=bob")).await.json();
    assert_eq!(found["profile"]["tenant"], "bob");
    assert_eq!(found["profile"]["points"][0]["units_per_s"], 20.0);
    assert_eq!(found["curves"][0]["knee"], 33);
    assert_eq!(get(&rig, one).await.json()["profile"]["tenant"], "alice");

    let own = get_as(&rig, Who::Bob, one).await.json();
    assert_eq!(own["profile"]["tenant"], "bob");
    let anothers = get_as(&rig, Who::Bob, &format!("{one}?tenant=alice")).await;
    let nobodys = get_as(&rig, Who::Bob, &format!("{one}?tenant=nobody")).await;
    anothers.is_problem("another's profile", 404, "NOT_FOUND");
    assert_eq!(anothers.body, nobodys.body);
    let listed = get_as(&rig, Who::Bob, "/v1/profiles").await.json();
    assert_eq!(listed["profiles"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_anothers_does_not_exist() {
    let rig = Rig::local().await;
    let lease = acquire(&mut rig.leases(Who::Alice).await, enforced(1, 20, 2)).await;
    submit(&rig, Who::Alice, spec("pick")).await;
    let id = lease.id;
    let theirs = [
        format!("/v1/leases/{id}"),
        "/v1/leases?job=pick".to_owned(),
        "/v1/jobs/pick".to_owned(),
        "/v1/jobs/pick/stages".to_owned(),
        "/v1/jobs/pick/plan".to_owned(),
        "/v1/jobs/pick/explain".to_owned(),
        "/v1/jobs/pick/watch".to_owned(),
        "/v1/events?job=pick".to_owned(),
        "/v1/events/stream?job=pick".to_owned(),
        "/v1/decisions?job=pick".to_owned(),
    ];
    for path in &theirs {
        let anothers = get_as(&rig, Who::Bob, path).await;
        anothers.is_problem(path, 404, "NOT_FOUND");
        // The same answer as for what never was.
        let missing = path
            .replace("pick", "nope")
            .replace(&format!("leases/{id}"), "leases/999");
        let missing = get_as(&rig, Who::Bob, &missing).await;
        let renamed = missing
            .body
            .replace("nope", "pick")
            .replace("lease 999", &format!("lease {id}"));
        assert_eq!(anothers.body, renamed, "{path}");
        if !path.contains("watch") && !path.contains("stream") {
            assert_eq!(get_as(&rig, Who::Alice, path).await.status, 200, "{path}");
            assert_eq!(get(&rig, path).await.status, 200, "{path}");
        }
    }
    for (path, list) in [
        ("/v1/leases", "leases"),
        ("/v1/jobs", "jobs"),
        ("/v1/jobs?include_ended=true", "jobs"),
        ("/v1/events", "events"),
        (&format!("/v1/events?lease={id}"), "events"),
        ("/v1/decisions", "decisions"),
        ("/v1/profiles", "profiles"),
    ] {
        let page = get_as(&rig, Who::Bob, path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert_eq!(page.json()[list], Value::Array(vec![]), "{path}");
        assert!(!page.body.contains("alice"), "{path}");
    }
    let metrics = get_as(&rig, Who::Bob, "/metrics").await;
    assert!(!metrics.body.contains("pick"), "{}", metrics.body);
    let metrics = get_as(&rig, Who::Alice, "/metrics").await;
    assert!(metrics.body.contains("job=\"pick\""), "{}", metrics.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problems_are_told_as_such() {
    let rig = Rig::synthetic().await;
    for (method, path, status, reason) in [
        ("GET", "/v1/leases/7", 404, "NOT_FOUND"),
        ("GET", "/v1/leases/0", 404, "NOT_FOUND"),
        ("GET", "/v1/leases/seven", 400, "INVALID"),
        ("GET", "/v1/leases/18446744073709551615", 400, "INVALID"),
        ("GET", "/v1/leases?limit=-1", 400, "INVALID"),
        ("GET", "/v1/leases?limit=0", 400, "INVALID"),
        ("GET", "/v1/leases?limit=1001", 400, "INVALID"),
        ("GET", "/v1/leases?limit=1&limit=2", 400, "INVALID"),
        ("GET", "/v1/leases?colour=red", 400, "INVALID"),
        ("GET", "/v1/leases?job=", 400, "INVALID"),
        ("GET", "/v1/leases?job=none", 404, "NOT_FOUND"),
        ("GET", "/v1/leases?after=9007199254740992", 400, "INVALID"),
        ("GET", "/v1/jobs?include_ended=maybe", 400, "INVALID"),
        ("GET", "/v1/jobs?limit=101", 400, "INVALID"),
        ("GET", "/v1/jobs/a%20b", 400, "INVALID"),
        ("GET", "/v1/jobs/%FF", 400, "INVALID"),
        ("GET", "/v1/jobs/none", 404, "NOT_FOUND"),
        ("GET", "/v1/events?lease=0", 400, "INVALID"),
        ("GET", "/v1/profiles?after=a+b", 400, "INVALID"),
        ("GET", "/v1/profiles/none/none", 404, "NOT_FOUND"),
        ("GET", "/v2/node", 404, "NO_SUCH_PATH"),
        ("GET", "/v1/node/", 404, "NO_SUCH_PATH"),
        ("GET", "/", 404, "NO_SUCH_PATH"),
        ("POST", "/nowhere", 404, "NO_SUCH_PATH"),
    ] {
        let page = ask(&rig, Who::Admin, method, path, &[]).await;
        page.is_problem(&format!("{method} {path}"), status, reason);
    }
    let elsewhere = ask(
        &rig,
        Who::Admin,
        "GET",
        "/v1/node",
        &[("Host", "evil.example")],
    )
    .await;
    elsewhere.is_problem("another host", 421, "OTHER_HOST");
    for (method, path, allow) in [
        ("POST", "/v1/node", "GET,HEAD"),
        ("DELETE", "/v1/leases/1", "GET,HEAD"),
        ("OPTIONS", "/healthz", "GET,HEAD"),
        ("GET", "/v1/node/drain", "POST"),
        ("PATCH", "/v1/jobs/j/cancel", "POST"),
    ] {
        let page = ask(&rig, Who::Admin, method, path, &[]).await;
        page.is_problem(&format!("{method} {path}"), 405, "METHOD_NOT_ALLOWED");
        assert_eq!(page.header("allow"), Some(allow), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_show_pool_leases_and_jobs() {
    let rig = Rig::local().await;
    acquire(&mut rig.leases(Who::Alice).await, enforced(2, 20, 10)).await;
    let page = get(&rig, "/metrics").await;
    assert_eq!(page.status, 200);
    assert!(page.kind().starts_with("text/plain"), "{}", page.kind());
    for line in [
        "# TYPE evenkeel_pool_cores gauge",
        "evenkeel_pool_cores{state=\"used\"} 2",
        "evenkeel_pool_cores{state=\"free\"} 5",
        "evenkeel_pool_sms{UUID=\"GPU-0\",state=\"used\"} 20",
        "evenkeel_pool_gpu_memory_bytes{UUID=\"GPU-0\",state=\"used\"} 10737418240",
        "evenkeel_leases{phase=\"pending\"} 1",
        "evenkeel_queue_length 0",
        "evenkeel_jobs{phase=\"admitted\"} 0",
    ] {
        assert!(
            page.body.lines().any(|l| l == line),
            "{line} is not in\n{}",
            page.body
        );
    }
    for name in [
        "evenkeel_commit_seconds_bucket",
        "evenkeel_requests_total",
        "# HELP evenkeel_commits_total",
    ] {
        assert!(page.body.contains(name), "{name} is not in\n{}", page.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_and_its_page_are_served() {
    let rig = Rig::synthetic().await;
    let document = get(&rig, "/openapi.json").await;
    assert_eq!(
        (document.status, document.kind()),
        (200, "application/json")
    );
    let document = document.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert!(document["paths"]["/v1/jobs/{name}"]["get"]["responses"]["404"].is_object());
    let page = get(&rig, "/docs").await;
    assert_eq!(
        (page.status, page.kind()),
        (200, "text/html; charset=utf-8")
    );
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
}
