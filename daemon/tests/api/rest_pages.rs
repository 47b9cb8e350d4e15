//! Pages, tags and media types of the REST face.
use super::jobs::{spec, submit};
use super::kit::{Rig, Who, acquire, unenforced};
use super::web::{Page, ask, get, get_as};

/// Follows the links from `first`; the numbers that are seen in `list` on the way, and how many pages it took.
async fn walk(rig: &Rig, first: &str, list: &str, number: &str) -> (Vec<u64>, usize) {
    let (mut seen, mut pages, mut path) = (Vec::new(), 0, Some(first.to_owned()));
    while let Some(at) = path {
        let page = get(rig, &at).await;
        assert_eq!(page.status, 200, "{at}: {}", page.body);
        let json = page.json();
        let on_it = json[list].as_array().unwrap().iter();
        seen.extend(on_it.map(|one| one[number].as_u64().unwrap()));
        pages += 1;
        assert!(pages < 100, "the links go round");
        path = page.next();
    }
    (seen, pages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_lead_through_all_pages_once() {
    let rig = Rig::synthetic().await;
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(
            acquire(&mut rig.leases(Who::Bob).await, unenforced(1))
                .await
                .id,
        );
    }
    let (seen, pages) = walk(&rig, "/v1/leases?limit=2", "leases", "id").await;
    assert_eq!((seen, pages), (leases.clone(), 3));
    let (seen, pages) = walk(&rig, "/v1/leases?limit=5", "leases", "id").await;
    assert_eq!(
        (seen, pages),
        (leases, 1),
        "a last page that is full has no link"
    );

    let mut jobs = Vec::new();
    for name in ["a", "b", "c"] {
        let mut spec = spec(name);
        spec.priority = 0;
        jobs.push(submit(&rig, Who::Alice, spec).await.id);
    }
    let (seen, pages) = walk(&rig, "/v1/jobs?limit=2", "jobs", "id").await;
    assert_eq!((seen, pages), (jobs, 2));
    assert_eq!(
        get(&rig, "/v1/jobs?after=999").await.json()["next_after_id"],
        0
    );

    let (seen, pages) = walk(&rig, "/v1/events?limit=3", "events", "seq").await;
    let all: Vec<u64> = (seen[0]..=*seen.last().unwrap()).collect();
    assert_eq!(seen, all, "each event once, in order");
    assert!(pages > 2);
    let newest = get(&rig, "/v1/events?limit=2&newest=true").await;
    assert_eq!(newest.next(), None, "there is nothing behind the newest");
    assert_eq!(newest.json()["events"][1]["seq"], *seen.last().unwrap());
    let bound = seen[seen.len() - 2];
    let bounded = format!("/v1/events?newest=true&after={bound}");
    let (bounded, _) = walk(&rig, &bounded, "events", "seq").await;
    assert_eq!(bounded, seen[seen.len() - 1..], "not beyond what was asked");

    let (decisions, _) = walk(&rig, "/v1/decisions?limit=1", "decisions", "event_seq").await;
    assert!(!decisions.is_empty() && decisions.is_sorted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_has_is_not_sent_again() {
    let rig = Rig::synthetic().await;
    acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    for path in [
        "/v1/pools",
        "/v1/node/topology",
        "/v1/events",
        "/v1/profiles",
        "/openapi.json",
        "/docs",
    ] {
        let first = get(&rig, path).await;
        let tag = first.header("etag").unwrap().to_owned();
        assert!(
            tag.starts_with('"') && tag.len() > 30,
            "a strong tag: {tag}"
        );
        assert_eq!(first.header("cache-control"), Some("no-cache"), "{path}");
        let known = [("If-None-Match", tag.as_str())];
        let again = ask(&rig, Who::Admin, "GET", path, &known).await;
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{path}");
        assert_eq!(again.header("etag"), Some(tag.as_str()), "{path}");
        assert_eq!(again.header("content-type"), None, "{path}");
        let head = ask(&rig, Who::Admin, "HEAD", path, &[]).await;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        assert_eq!(head.header("etag"), Some(tag.as_str()), "{path}");
        let length = head.header("content-length").unwrap();
        assert_eq!(length, first.body.len().to_string(), "{path}");
    }
    let before = get(&rig, "/v1/pools").await;
    acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    let known = [("If-None-Match", before.header("etag").unwrap())];
    let after = ask(&rig, Who::Admin, "GET", "/v1/pools", &known).await;
    assert_eq!(after.status, 200, "it changed");
    let missing = ask(
        &rig,
        Who::Admin,
        "GET",
        "/v1/leases/999",
        &[("If-None-Match", "*")],
    )
    .await;
    missing.is_problem("what is not there is not known", 404, "NOT_FOUND");
    assert_eq!(missing.header("cache-control"), Some("no-store"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_as_lines_to_who_asks() {
    let rig = Rig::synthetic().await;
    for _ in 0..3 {
        acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await;
    }
    let lines = async |accept| -> Page {
        let accept = [("Accept", accept)];
        ask(&rig, Who::Admin, "GET", "/v1/events?limit=2", &accept).await
    };
    let page = lines("application/x-ndjson").await;
    assert_eq!((page.status, page.kind()), (200, "application/x-ndjson"));
    let seqs: Vec<u64> = (page.body.lines())
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert_eq!(seqs.len(), 2);
    assert_eq!(
        page.next().unwrap(),
        format!("/v1/events?limit=2&after={}", seqs[1])
    );
    assert_eq!(page.header("vary"), Some("accept"));
    assert_eq!(lines("*/*").await.kind(), "application/json");
    assert_eq!(
        lines("application/x-ndjson;q=0.1, application/json")
            .await
            .kind(),
        "application/json"
    );
    for path in [
        "/v1/events",
        "/v1/node",
        "/v1/events/stream",
        "/metrics",
        "/docs",
    ] {
        let page = ask(&rig, Who::Admin, "GET", path, &[("Accept", "image/png")]).await;
        page.is_problem(path, 406, "NOT_ACCEPTABLE");
    }
    let own = get_as(&rig, Who::Alice, "/v1/events").await.json();
    assert_eq!(own["next_after_seq"], 0, "none of Bob's");
}
