//! Changes over REST: only where they are allowed, only for admins, and never for a page of another origin.
use super::jobs::{spec, submit};
use super::kit::{Rig, Who, acquire, enforced};
use super::web::{Ask, get, post};

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// What it is, headers, body; and the refusal's status and reason.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, u16, &'a str);

/// Everything that changes something.
fn writes(lease: u64) -> [String; 4] {
    [
        "/v1/node/drain".into(),
        "/v1/node/undrain".into(),
        "/v1/jobs/pick/cancel".into(),
        format!("/v1/leases/{lease}/revoke"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_drains_cancels_and_revokes() {
    let rig = Rig::local().await;
    let lease = acquire(&mut rig.leases(Who::Bob).await, enforced(1, 20, 2)).await;
    submit(&rig, Who::Alice, spec("pick")).await;

    let drained = post(&rig, Who::Admin, "/v1/node/drain").await;
    assert_eq!(
        (drained.status, &drained.json()["draining"]),
        (200, &true.into())
    );
    assert_eq!(get(&rig, "/healthz").await.json()["grants"], false);
    let back = post(&rig, Who::Admin, "/v1/node/undrain").await;
    assert_eq!(
        (back.status, &back.json()["draining"]),
        (200, &false.into())
    );

    let cancelled = post(&rig, Who::Admin, "/v1/jobs/pick/cancel").await;
    assert_eq!(
        (cancelled.status, &cancelled.json()["phase"]),
        (200, &"ended".into())
    );
    post(&rig, Who::Admin, "/v1/jobs/pick/cancel")
        .await
        .is_problem("it is over", 404, "NOT_FOUND");
    let ended = get(&rig, "/v1/jobs?include_ended=true").await.json();
    assert_eq!(ended["jobs"][0]["phase"], "ended");

    let revoke = format!("/v1/leases/{}/revoke", lease.id);
    let revoked = post(&rig, Who::Admin, &revoke).await;
    assert_eq!(
        (revoked.status, &revoked.json()["end"]),
        (200, &"revoked".into())
    );
    post(&rig, Who::Admin, "/v1/leases/999/revoke")
        .await
        .is_problem("no such lease", 404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_changes_where_it_is_not_allowed() {
    let mut rig = Rig::local().await;
    let lease = acquire(&mut rig.leases(Who::Bob).await, enforced(1, 20, 2)).await;
    submit(&rig, Who::Bob, spec("pick")).await;
    let before = rig.snapshot().await;
    for path in writes(lease.id) {
        // Not even one's own: that is what the Unix socket is for.
        let refused = post(&rig, Who::Bob, &path).await;
        refused.is_problem(&path, 403, "NOT_ADMIN");
        let ask = |headers, body| Ask {
            method: "POST",
            path: &path,
            headers,
            body,
        };
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(20_000), "]".repeat(20_000));
        let bare_deep = "[".repeat(60_000);
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(64 << 10));
        let cases: [Case<'_>; 13] = [
            (
                "a form",
                &[("Content-Type", "text/plain")],
                "{}",
                415,
                "NOT_JSON",
            ),
            ("no type", &[], "{}", 415, "NOT_JSON"),
            (
                "a page",
                &[JSON, ("Origin", "http://evil.example")],
                "{}",
                403,
                "CROSS_ORIGIN",
            ),
            (
                "another port",
                &[JSON, ("Origin", "http://localhost:1")],
                "{}",
                403,
                "CROSS_ORIGIN",
            ),
            (
                "a sandbox",
                &[JSON, ("Origin", "null")],
                "{}",
                403,
                "CROSS_ORIGIN",
            ),
            (
                "a site",
                &[JSON, ("Sec-Fetch-Site", "cross-site")],
                "{}",
                403,
                "CROSS_ORIGIN",
            ),
            (
                "rebound",
                &[JSON, ("Host", "evil.example")],
                "{}",
                421,
                "OTHER_HOST",
            ),
            ("other fields", &[JSON], "{\"force\":true}", 400, "INVALID"),
            ("no JSON", &[JSON], "yes", 400, "INVALID"),
            ("a list", &[JSON], "[]", 400, "INVALID"),
            ("deep", &[JSON], &deep, 400, "INVALID"),
            ("deep from the start", &[JSON], &bare_deep, 400, "INVALID"),
            ("long", &[JSON], &long, 413, "TOO_LONG"),
        ];
        for (what, headers, body, status, reason) in cases {
            let page = ask(headers, body).send(rig.rest(Who::Admin)).await;
            page.is_problem(&format!("{what} to {path}"), status, reason);
        }
        let empty = [JSON, ("Content-Length", "0")];
        let empty = ask(&empty, "").send(rig.rest(Who::Admin)).await;
        empty.is_problem("nothing", 400, "INVALID");
        let picky = [JSON, ("Accept", "text/html")];
        let picky = ask(&picky, "{}").send(rig.rest(Who::Admin)).await;
        picky.is_problem("before anything is done", 406, "NOT_ACCEPTABLE");
    }
    assert_eq!(rig.snapshot().await, before);

    rig.rest_writes = false;
    rig.restart().await;
    let before = rig.snapshot().await;
    for path in writes(lease.id) {
        let refused = post(&rig, Who::Admin, &path).await;
        refused.is_problem(&path, 403, "WRITES_OFF");
        assert!(
            refused.body.contains("listen.rest_writes"),
            "{}",
            refused.body
        );
    }
    assert_eq!(rig.snapshot().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_own_page_may_write() {
    let rig = Rig::synthetic().await;
    let host = format!("localhost:{}", rig.rest(Who::Admin).port());
    let origin = format!("http://{host}");
    let headers = [
        JSON,
        ("Host", host.as_str()),
        ("Origin", origin.as_str()),
        ("Sec-Fetch-Site", "same-origin"),
    ];
    let ask = Ask {
        method: "POST",
        path: "/v1/node/drain",
        headers: &headers,
        body: " { } ",
    };
    assert_eq!(ask.send(rig.rest(Who::Admin)).await.status, 200);
}
