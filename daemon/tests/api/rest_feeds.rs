//! Streams over REST: what happens as it happens, from where one was, and how they end.
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::jobs::{spec, submit};
use super::kit::{Rig, SOON, Who, acquire, unenforced};
use super::web::{Feed, get, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_as_they_happen_and_go_on_where_one_was() {
    let rig = Rig::synthetic().await;
    acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    let mut feed = Feed::open(&rig, Who::Admin, "/v1/events/stream", &[]).await;
    let lease = acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    let first = feed.message().await;
    assert_eq!(first.data["kind"], "lease_granted");
    assert_eq!(
        first.data["lease_id"], lease.id,
        "what was before is not told"
    );
    let seq = first.data["seq"].as_u64().unwrap();
    assert_eq!((first.id, first.event), (Some(seq.to_string()), None));
    drop(feed);

    let again = acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    let seen = seq.to_string();
    let last = [("Last-Event-ID", seen.as_str())];
    // The header goes before the query, which a browser repeats as it was.
    let mut feed = Feed::open(&rig, Who::Admin, "/v1/events/stream?after=0", &last).await;
    let next = feed.message().await;
    assert_eq!(next.data["seq"], seq + 1);
    assert_eq!(next.data["lease_id"], again.id);

    let mut whole = Feed::open(&rig, Who::Admin, "/v1/events/stream?after=0", &[]).await;
    let listed = get(&rig, "/v1/events").await.json();
    for event in listed["events"].as_array().unwrap() {
        assert_eq!(whole.message().await.data, *event);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_of_another_trail_is_said_to_be_one() {
    let rig = Rig::synthetic().await;
    let last = [("Last-Event-ID", "123456789")];
    let mut feed = Feed::open(&rig, Who::Admin, "/v1/events/stream", &last).await;
    let reset = feed.message().await;
    assert_eq!(reset.event.as_deref(), Some("reset"));
    assert_eq!(reset.id, Some(reset.data["newest"].to_string()));
    acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    assert_eq!(feed.message().await.data["kind"], "lease_granted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_is_told_of_its_own() {
    let rig = Rig::synthetic().await;
    let mut feed = Feed::open(&rig, Who::Bob, "/v1/events/stream", &[]).await;
    acquire(&mut rig.leases(Who::Alice).await, unenforced(1)).await;
    let own = acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    assert_eq!(feed.message().await.data["lease_id"], own.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_and_the_node_are_watched() {
    let rig = Rig::synthetic().await;
    submit(&rig, Who::Alice, spec("pick")).await;
    let mut node = Feed::open(&rig, Who::Bob, "/v1/node/watch", &[]).await;
    assert_eq!(node.message().await.data["draining"], false);
    let mut job = Feed::open(&rig, Who::Alice, "/v1/jobs/pick/watch", &[]).await;
    assert_eq!(job.message().await.data["phase"], "admitted");
    post(&rig, Who::Admin, "/v1/jobs/pick/cancel").await;
    loop {
        let seen = job.message().await;
        if seen.data["phase"] == "ended" {
            break;
        }
    }
    job.ends().await;
    post(&rig, Who::Admin, "/v1/node/drain").await;
    while node.message().await.data["draining"] != true {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_with_a_word_when_the_daemon_stops() {
    let mut rig = Rig::synthetic().await;
    let mut feeds = Vec::new();
    for path in ["/v1/events/stream", "/v1/node/watch"] {
        feeds.push(Feed::open(&rig, Who::Admin, path, &[]).await);
    }
    assert_eq!(feeds[1].message().await.event, None);
    rig.end().await;
    for mut feed in feeds {
        let end = feed.message().await;
        assert_eq!(end.event.as_deref(), Some("end"), "{end:?}");
        assert_eq!(end.data["reason"], "RECONNECT", "{end:?}");
        assert!(end.retry.is_some(), "it says when to come back: {end:?}");
        feed.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_leave_connections_to_those_who_ask() {
    let rig = Rig::synthetic().await;
    let mut feeds = Vec::new();
    let refused = loop {
        let probe = get(&rig, "/v1/events/stream?job=nobody").await;
        if probe.status == 429 {
            break probe;
        }
        probe.is_problem("no such job", 404, "NOT_FOUND");
        feeds.push(Feed::open(&rig, Who::Admin, "/v1/events/stream", &[]).await);
        assert!(feeds.len() < 100, "there is no end to them");
    };
    refused.is_problem("one too many", 429, "BUSY");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(get(&rig, "/v1/node").await.status, 200);
    feeds.clear();
    super::kit::until("a place that is free again", async || {
        let probe = get(&rig, "/v1/events/stream?job=nobody").await;
        (probe.status == 404).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_nothing_is_left() {
    let rig = Rig::synthetic().await;
    let mut stream = TcpStream::connect(rig.rest(Who::Admin)).await.unwrap();
    // More answers than the sockets' buffers take, asked for at once.
    let asks = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    let flood = stream.write_all(asks.as_bytes());
    let _ = tokio::time::timeout(SOON, flood).await.unwrap(); // or it is cut off in the middle
    // The daemon hangs up, which the next bytes show.
    super::kit::until("the end of the connection", async || {
        stream.write_all(b"\r\n").await.is_err().then_some(())
    })
    .await;
    assert_eq!(get(&rig, "/v1/node").await.status, 200);
}
