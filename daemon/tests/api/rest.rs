//! The REST face: shapes, problems, metrics.
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::jobs::{spec, submit};
use super::kit::{Rig, Who, acquire, enforced};

struct Page {
    status: u16,
    kind: String,
    body: String,
}

impl Page {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

async fn ask(rig: &Rig, method: &str, path: &str, host: &str) -> Page {
    let mut stream = TcpStream::connect(rig.rest()).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let kind = head.lines().find_map(|l| {
        l.to_lowercase()
            .strip_prefix("content-type: ")
            .map(str::to_owned)
    });
    Page {
        status,
        kind: kind.unwrap_or_default(),
        body: body.to_owned(),
    }
}

async fn get(rig: &Rig, path: &str) -> Page {
    ask(rig, "GET", path, "localhost").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_objects_of_the_wire_as_json() {
    let rig = Rig::local().await;
    let lease = acquire(&mut rig.leases(Who::Bob).await, enforced(1, 20, 2)).await;
    submit(&rig, Who::Alice, spec("pick/place")).await;

    let node = get(&rig, "/v1/node").await;
    assert_eq!((node.status, node.kind.as_str()), (200, "application/json"));
    let node = node.json();
    assert_eq!(node["name"], "testnode");
    assert_eq!(node["gpus"][0]["memory_bytes"], 80u64 << 30);
    assert_eq!(node["live_leases"], 1);

    let leases = get(&rig, "/v1/leases?limit=1").await.json();
    assert_eq!(
        leases["leases"][0]["tenant"], "bob",
        "whoever looks here sees all"
    );
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

    let events = get(
        &rig,
        &format!("/v1/events?after=0&limit=5&lease={}", lease.id),
    )
    .await
    .json();
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
async fn problems_are_told_as_such() {
    let rig = Rig::synthetic().await;
    for (method, path, host, status, reason) in [
        ("GET", "/v1/leases/7", "localhost", 404, "NOT_FOUND"),
        ("GET", "/v1/leases/seven", "localhost", 400, "INVALID"),
        ("GET", "/v1/leases?limit=-1", "localhost", 400, "INVALID"),
        ("GET", "/v1/leases?colour=red", "localhost", 400, "INVALID"),
        ("GET", "/v1/jobs/a%20b", "localhost", 400, "INVALID"),
        ("GET", "/v1/jobs/none", "localhost", 404, "NOT_FOUND"),
        ("GET", "/v2/node", "localhost", 404, "NO_SUCH_PATH"),
        ("POST", "/v1/node", "localhost", 405, "READ_ONLY"),
        ("GET", "/v1/node", "evil.example", 421, "OTHER_HOST"),
    ] {
        let page = ask(&rig, method, path, host).await;
        assert_eq!(
            (page.status, page.kind.as_str()),
            (status, "application/problem+json"),
            "{method} {path}"
        );
        let problem = page.json();
        assert_eq!(
            (&problem["reason"], &problem["status"]),
            (&reason.into(), &status.into()),
            "{path}"
        );
        assert!(
            problem["detail"].as_str().is_some_and(|d| !d.is_empty()),
            "{path}: {problem}"
        );
        assert!(
            problem["type"].is_string() && problem["title"].is_string(),
            "{path}: {problem}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_show_pool_leases_and_jobs() {
    let rig = Rig::local().await;
    acquire(&mut rig.leases(Who::Alice).await, enforced(2, 20, 10)).await;
    let page = get(&rig, "/metrics").await;
    assert_eq!(page.status, 200);
    assert!(page.kind.starts_with("text/plain"), "{}", page.kind);
    for line in [
        "# TYPE evenkeel_pool_cores gauge",
        "evenkeel_pool_cores{state=\"used\"} 2",
        "evenkeel_pool_cores{state=\"free\"} 5",
        "evenkeel_pool_sms{gpu_uuid=\"GPU-0\",state=\"used\"} 20",
        "evenkeel_pool_gpu_memory_bytes{gpu_uuid=\"GPU-0\",state=\"used\"} 10737418240",
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
