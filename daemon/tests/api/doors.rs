//! The doors: who is let in as whom, who is not, what strangers learn, and what is written down about it.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_core::unit::Millis;
use evenkeel_proto::v1 as pb;
use evenkeeld::api::rate::{RateLimit, RateLimits};
use evenkeeld::api::{Api, Config, Connections, Running, Tcp, Tenants};
use evenkeeld::audit::Audit;
use evenkeeld::config::TenantsConfig;
use pb::lease_service_client::LeaseServiceClient;
use pb::node_service_client::NodeServiceClient;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::doors_kit::{Ca, Good, Pair};
use super::kit::{self, Rig, Who, acquire, reference, unenforced, until};
use super::web::{Ask, Feed, Page};

/// The reason of a refusal.
fn why(status: &Status) -> String {
    kit::why(status).0
}

/// A second API on a rig's controller, with TLS, a tenant map and an audit file.
struct House {
    rig: Rig,
    ca: Ca,
    folder: tempfile::TempDir,
    api: Running,
    _stop: tokio_util::sync::DropGuard,
}

impl House {
    async fn with(tenants: &str) -> Self {
        let (rig, ca) = (Rig::synthetic().await, Ca::new());
        let folder = tempfile::tempdir().unwrap();
        let tenants: TenantsConfig = toml::from_str(tenants).unwrap();
        let stop = CancellationToken::new();
        let config = Config {
            socket: folder.path().join("s"),
            socket_mode: 0o600,
            tcp: Some((
                ([127, 0, 0, 1], 0).into(),
                Tcp::Tls(ca.files(folder.path())),
            )),
            rest: Some(([127, 0, 0, 1], 0).into()),
            rest_writes: false,
            // Nobody's uid: the tests' own would be an admin's.
            tenants: Tenants::new(&tenants, u32::MAX),
            rates: RateLimits {
                named: [(kit::name("slow"), RateLimit::new(1, 3))].into(),
                others: None,
            },
            audit: Audit::to(&folder.path().join("audit.jsonl")).unwrap(),
            node_name: "house".into(),
            default_ttl: Millis::secs(30),
            gpu_sockets: Default::default(),
            troubles: std::sync::Arc::new(Vec::new),
            connections: Connections::default(),
        };
        let handle = rig.handle().clone();
        let api = Api { config, handle }.spawn(stop.clone()).await.unwrap();
        Self {
            rig,
            ca,
            folder,
            api,
            _stop: stop.drop_guard(),
        }
    }
    fn tcp(&self) -> SocketAddr {
        self.api.tcp.unwrap()
    }
    fn pair(&self, uri: &str) -> Pair {
        self.ca.client(&[uri], Good::Now)
    }
    async fn channel(&self, pair: &Pair) -> Channel {
        self.ca.channel(self.tcp(), Some(pair)).await.unwrap()
    }
    async fn leases(&self, uri: &str) -> LeaseServiceClient<Channel> {
        LeaseServiceClient::new(self.channel(&self.pair(uri)).await)
    }
    /// What a call of who comes with this certificate (none: without) is answered.
    async fn asked(&self, pair: Option<&Pair>) -> Result<(), String> {
        // TLS 1.3: a client may learn that its certificate was refused with the first answer only.
        let channel = self.ca.channel(self.tcp(), pair).await;
        let channel = channel.map_err(|e| format!("{e:?}"))?;
        let asked = NodeServiceClient::new(channel)
            .get_node(pb::GetNodeRequest {})
            .await;
        asked.map(drop).map_err(|status| match status.code() {
            Code::Unauthenticated => why(&status),
            _ => format!("{status:?}"),
        })
    }
    /// What a path shows to the bearer of a token (empty: without one).
    async fn shown(&self, path: &str, token: &str) -> Page {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        let ask = Ask {
            method: "GET",
            path,
            headers: if token.is_empty() { &[] } else { &headers },
            body: "",
        };
        ask.send(self.api.rest.unwrap()).await
    }
    fn audit(&self) -> Vec<serde_json::Value> {
        let path: PathBuf = self.folder.path().join("audit.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }
    /// Waits for a line of which all this is true.
    async fn audited(&self, is: &[(&str, &str)]) {
        let has = |line: &serde_json::Value| {
            is.iter()
                .all(|(key, text)| line[*key].as_str().is_some_and(|v| v.contains(text)))
        };
        until(&format!("an audit line with {is:?}"), async || {
            self.audit().iter().any(has).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_names_its_tenant() {
    let house = House::with("").await;
    let mut alice = house.leases("spiffe://lab/tenant/alice").await;
    let lease = acquire(&mut alice, unenforced(1)).await;
    assert_eq!(lease.tenant, "alice");
    // The same tenant by another door.
    let get = pb::GetLeaseRequest { lease_id: lease.id };
    assert!(
        house
            .rig
            .leases(Who::Alice)
            .await
            .get_lease(get)
            .await
            .is_ok()
    );
    let attach = pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
        pid: 0,
    };
    let refused = alice.attach_lease(attach).await.unwrap_err();
    assert_eq!(why(&refused), "NOT_LOCAL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_known_learns_nothing_and_is_written_down() {
    let house = House::with("").await;
    let other = Ca::new();
    let good = "spiffe://lab/tenant/alice";
    for (what, pair, line) in [
        ("none", None, "no certificates"),
        (
            "another CA",
            Some(other.client(&[good], Good::Now)),
            "UnknownIssuer",
        ),
        (
            "expired",
            Some(house.ca.client(&[good], Good::Once)),
            "expired",
        ),
    ] {
        // Often the alert says why; sometimes the connection is gone before it is read.
        let told = house.asked(pair.as_ref()).await.unwrap_err();
        assert!(told.contains("Transport"), "{what}: {told}");
        house
            .audited(&[("door", "tls"), ("reason", "TLS_HANDSHAKE"), ("why", line)])
            .await;
    }
    for (what, uris) in [
        ("two", &[good, "spiffe://lab/tenant/bob"][..]),
        ("none", &[]),
        ("another domain", &["spiffe://other/tenant/alice"]),
        ("no tenant", &["spiffe://lab/alice"]),
    ] {
        let pair = house.ca.client(uris, Good::Now);
        let told = house.asked(Some(&pair)).await.unwrap_err();
        assert_eq!(told, "BAD_CERTIFICATE", "{what}");
    }
    house
        .audited(&[
            ("reason", "BAD_CERTIFICATE"),
            ("why", "2 URIs"),
            ("call", "GetNode"),
        ])
        .await;
    assert_eq!(house.asked(Some(&house.pair(good))).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_listed_is_refused_where_the_map_is_exclusive() {
    let own = nix::unistd::geteuid().as_raw();
    let house = House::with(
        "exclusive = true\n[certificates]\n\"spiffe://lab/tenant/alice\" = { tenant = \"alice\" }\n",
    )
    .await;
    let listed = house.pair("spiffe://lab/tenant/alice");
    assert_eq!(house.asked(Some(&listed)).await, Ok(()));
    let unlisted = house.pair("spiffe://lab/tenant/bob");
    let told = house.asked(Some(&unlisted)).await;
    assert_eq!(told, Err("UNLISTED_CERTIFICATE".to_owned()));
    // On the Unix socket: every answer is the same, whether a thing exists or not. Root is an admin always.
    if own == 0 {
        return;
    }
    let uri = format!("unix://{}", house.api.socket.display());
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let lease = acquire(&mut house.rig.leases(Who::Alice).await, unenforced(1)).await;
    let mut stranger = LeaseServiceClient::new(channel);
    for lease_id in [lease.id, 9_999] {
        let refused = stranger.get_lease(pb::GetLeaseRequest { lease_id }).await;
        assert_eq!(why(&refused.unwrap_err()), "NO_TENANT");
    }
    house
        .audited(&[
            ("door", "unix"),
            ("reason", "NO_TENANT"),
            ("call", "GetLease"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_anothers_does_not_exist_and_is_written_down() {
    let house = House::with("").await;
    let lease = acquire(&mut house.rig.leases(Who::Alice).await, unenforced(1)).await;
    let mut bob = house.leases("spiffe://lab/tenant/bob").await;
    let said = |status: Status, id: u64| {
        let message = status.message().replace(&id.to_string(), "N");
        (status.code(), why(&status), message)
    };
    let mut answers = Vec::new();
    for id in [lease.id, 9_999] {
        let reference = pb::LeaseRef {
            lease_id: id,
            fence: lease.fence,
        };
        let get = bob
            .get_lease(pb::GetLeaseRequest { lease_id: id })
            .await
            .unwrap_err();
        let revoke = bob
            .revoke_lease(pb::RevokeLeaseRequest { lease_id: id })
            .await
            .unwrap_err();
        let release = pb::ReleaseLeaseRequest {
            lease_id: id,
            fence: lease.fence,
        };
        let release = bob.release_lease(release).await.unwrap_err();
        let renewed = bob
            .renew_leases(pb::RenewLeasesRequest {
                leases: vec![reference],
            })
            .await;
        let status = renewed.unwrap().into_inner().results[0].status;
        answers.push((
            [get, revoke, release].map(|status| said(status, id)),
            status,
        ));
    }
    assert_eq!(answers[0], answers[1], "there and not there are told alike");
    assert_eq!(answers[0].1, i32::from(pb::RenewStatus::Lost));
    house
        .audited(&[
            ("who", "bob"),
            ("reason", "NOT_FOUND"),
            ("call", "RevokeLease"),
        ])
        .await;
    house
        .audited(&[("who", "bob"), ("reason", "NOT_YOURS")])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_session_is_refused_is_written_down_once_for_a_frame() {
    let house = House::with("").await;
    let mut alice = house.rig.leases(Who::Alice).await;
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(acquire(&mut alice, unenforced(1)).await);
    }
    let frame = pb::SessionRequest {
        renew: leases.iter().map(reference).collect(),
        acknowledgements: vec![pb::Acknowledge {
            lease: Some(reference(&leases[0])),
            generation: 1,
            effective: leases[0].held.clone(),
        }],
        ..Default::default()
    };
    let mut bob = house.leases("spiffe://lab/tenant/bob").await;
    let up = tokio_stream::iter([frame]);
    let mut down = bob.session(up).await.unwrap().into_inner();
    while down.next().await.is_some() {}
    let session = ("call", "/evenkeel.v1.LeaseService/Session");
    for is in [
        ("why", "lease 1 and 2 more are another's"),
        ("reason", "NOT_FOUND"),
    ] {
        house.audited(&[("who", "bob"), session, is]).await;
    }
    assert_eq!(house.audit().len(), 2, "{:?}", house.audit());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_limited_to_a_job_sees_that_job_only() {
    let house = House::with("").await;
    let mut whole = house.leases("spiffe://lab/tenant/alice").await;
    let other = acquire(&mut whole, unenforced(1)).await;
    let mut limited = house.leases("spiffe://lab/tenant/alice/job/pick").await;
    let refused = limited.acquire_lease(unenforced(1)).await.unwrap_err();
    assert_eq!(
        (refused.code(), why(&refused).as_str()),
        (Code::PermissionDenied, "OTHER_JOB")
    );
    let get = pb::GetLeaseRequest { lease_id: other.id };
    assert_eq!(
        limited.get_lease(get).await.unwrap_err().code(),
        Code::NotFound
    );
    let renew = pb::RenewLeasesRequest {
        leases: vec![reference(&other)],
    };
    let renewed = limited.renew_leases(renew).await.unwrap().into_inner();
    assert_eq!(renewed.results[0].status(), pb::RenewStatus::Lost);
    let all = limited
        .list_leases(pb::ListLeasesRequest::default())
        .await
        .unwrap();
    assert_eq!(all.into_inner().leases.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_ends_with_its_certificate() {
    let house = House::with("").await;
    let pair = house
        .ca
        .client(&["spiffe://lab/tenant/alice"], Good::Seconds(2));
    let mut nodes = NodeServiceClient::new(house.channel(&pair).await);
    let watched = nodes.watch_node(pb::WatchNodeRequest {}).await;
    let mut watched = watched.unwrap().into_inner();
    assert!(watched.next().await.unwrap().is_ok());
    let ended = async { while watched.next().await.is_some_and(|seen| seen.is_ok()) {} };
    tokio::time::timeout(Duration::from_secs(20), ended)
        .await
        .expect("the stream goes on");
    // It is good to the end of its last second.
    until("the certificate is refused", async || {
        let told = house.asked(Some(&pair)).await.err()?;
        told.contains("CertificateExpired").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again_and_bad_ones_change_nothing() {
    let house = House::with("").await;
    let pair = house.pair("spiffe://lab/tenant/alice");
    assert_eq!(house.asked(Some(&pair)).await, Ok(()));
    let path = house.folder.path().join("daemon.pem");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, "half of").unwrap();
    let told = async || {
        let mut nodes = NodeServiceClient::new(house.channel(&pair).await);
        let node = nodes.get_node(pb::GetNodeRequest {}).await.unwrap();
        node.into_inner().node.unwrap().troubles
    };
    until("the trouble is told", async || {
        let told = told().await;
        told.iter()
            .any(|t| t.contains("new certificates cannot be used"))
            .then_some(())
    })
    .await;
    std::fs::write(&path, whole).unwrap();
    until("it is over", async || told().await.is_empty().then_some(())).await;
    // Another CA, for clients and the daemon: who is of the old one is a stranger now.
    let new = Ca::new();
    new.files(house.folder.path());
    let fresh = new.client(&["spiffe://lab/tenant/alice"], Good::Now);
    until("the new CA is in force", async || {
        let channel = new.channel(house.tcp(), Some(&fresh)).await.ok()?;
        let asked = NodeServiceClient::new(channel)
            .get_node(pb::GetNodeRequest {})
            .await;
        asked.ok()
    })
    .await;
    assert!(house.asked(Some(&pair)).await.is_err());
}

/// What the configuration has of a token.
fn digest(token: &str) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(token.as_bytes());
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// A token's line: SHA-256 of `alices`, of `ended` and of `rooms`.
const TOKENS: &str = "[tokens]\n\
    ALICES = { tenant = \"alice\" }\n\
    ENDED = { tenant = \"alice\", expires = 2020-01-01T00:00:00Z }\n\
    ROOTS = { tenant = \"ops\", role = \"admin\" }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_is_seen_by_token_or_by_the_connections_user() {
    let own = nix::unistd::geteuid().as_raw();
    let tokens = TOKENS
        .replace("ALICES", &digest("alices"))
        .replace("ENDED", &digest("ended"))
        .replace("ROOTS", &digest("roots"));
    let house = House::with(&format!("{tokens}[uids]\n{own} = {{ tenant = \"bob\" }}\n")).await;
    let lease = acquire(&mut house.rig.leases(Who::Alice).await, unenforced(1)).await;
    let path = format!("/v1/leases/{}", lease.id);
    for token in ["alices", "roots"] {
        assert_eq!(house.shown(&path, token).await.status, 200, "{token}");
    }
    // The tests' own user is bob here, who has nothing.
    let missing = house.shown("/v1/leases/9999", "").await;
    let anothers = house.shown(&path, "").await;
    anothers.is_problem("another tenant's", 404, "NOT_FOUND");
    let told = |page: &Page, id: u64| page.body.replace(&id.to_string(), "N");
    assert_eq!(told(&anothers, lease.id), told(&missing, 9_999));
    assert_eq!(
        house.shown("/v1/leases", "").await.json()["leases"],
        serde_json::json!([])
    );
    house
        .audited(&[
            ("door", "rest"),
            ("who", "bob"),
            ("reason", "NOT_FOUND"),
            ("call", &path),
        ])
        .await;
    // What is wrong with a token is told to the admin only.
    let (ended, unknown) = (
        house.shown(&path, "ended").await,
        house.shown(&path, "other").await,
    );
    ended.is_problem("it has ended", 401, "BAD_TOKEN");
    assert_eq!(ended.body, unknown.body);
    assert_eq!(ended.header("www-authenticate"), Some("Bearer"));
    house
        .audited(&[
            ("door", "rest"),
            ("reason", "BAD_TOKEN"),
            ("why", "has ended"),
        ])
        .await;
    // What is nobody's is shown to everybody.
    for path in ["/healthz", "/openapi.json"] {
        assert_eq!(house.shown(path, "other").await.status, 200, "{path}");
    }
    // But a scraper whose token has ended has to notice.
    assert_eq!(house.shown("/metrics", "").await.status, 200);
    let scraped = house.shown("/metrics", "ended").await;
    scraped.is_problem("it has ended", 401, "BAD_TOKEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_calls_no_more_often_than_its_cap_and_renews_all_the_same() {
    let house = House::with("").await;
    let mut slow = house.leases("spiffe://lab/tenant/slow").await;
    let lease = acquire(&mut slow, unenforced(1)).await;
    let get = pb::GetLeaseRequest { lease_id: lease.id };
    let refused = until("a refusal", async || slow.get_lease(get).await.err()).await;
    assert_eq!(
        (refused.code(), why(&refused).as_str()),
        (Code::ResourceExhausted, "BUSY")
    );
    assert!(refused.message().contains("requests_per_s"), "{refused:?}");
    for _ in 0..20 {
        let renew = pb::RenewLeasesRequest {
            leases: vec![reference(&lease)],
        };
        let renewed = slow.renew_leases(renew).await.unwrap().into_inner();
        assert_eq!(renewed.results[0].status(), pb::RenewStatus::Renewed);
    }
    let mut other = house.leases("spiffe://lab/tenant/alice").await;
    for _ in 0..20 {
        other
            .list_leases(pb::ListLeasesRequest::default())
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_counts_among_a_tenants_requests() {
    let token = format!("[tokens]\n{} = {{ tenant = \"slow\" }}\n", digest("slows"));
    let house = House::with(&token).await;
    // Looking at a job of such a name takes nothing back.
    for path in ["/v1/node", "/v1/jobs/cancel"] {
        let refused = until("a refusal", async || {
            let page = house.shown(path, "slows").await;
            (page.status == 429).then_some(page)
        })
        .await;
        refused.is_problem("too often", 429, "BUSY");
        assert_eq!(refused.header("retry-after"), Some("1"), "{path}");
    }
    assert_eq!(house.shown("/healthz", "slows").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_over_rest_ends_with_its_token() {
    let mut soon = rcgen::date_time_ymd(2026, 1, 1);
    soon.clone_from(&(std::time::SystemTime::now() + Duration::from_secs(3)).into());
    // Its own text has hours of one digit.
    let (hour, minute, second) = (soon.hour(), soon.minute(), soon.second());
    let token = format!(
        "[tokens]\n{} = {{ tenant = \"alice\", expires = {}T{hour:02}:{minute:02}:{second:02}Z }}\n",
        digest("short"),
        soon.date(),
    );
    let house = House::with(&token).await;
    let to = house.api.rest.unwrap();
    let bearer = [("Authorization", "Bearer short")];
    let mut feeds = Vec::new();
    for path in ["/v1/events/stream", "/v1/node/watch"] {
        feeds.push((path, Feed::at(to, path, &bearer).await));
    }
    for (path, mut feed) in feeds {
        let end = loop {
            let message = feed.message().await;
            if message.event.is_some() {
                break message;
            }
        };
        assert_eq!(end.event.as_deref(), Some("end"), "{path}: {end:?}");
        assert_eq!(end.data["reason"], "BAD_TOKEN", "{path}: {end:?}");
        feed.ends().await;
    }
    house
        .shown("/v1/leases", "short")
        .await
        .is_problem("ended", 401, "BAD_TOKEN");
}
