//! Clients that do harm by what HTTP allows: frames by hand, answers that nobody reads, requests that do not end. What
//! becomes of them, and that others do not notice. `make accept PART=doors.4` does the same with a crowd.
use evenkeel_core::node::PoolKind;
use evenkeel_core::settings::Settings;
use evenkeel_proto::v1 as pb;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::kit::{Rig, SOON, Who, acquire, node, reference, unenforced, until};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Code of a GOAWAY to who floods.
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// HEADERS of a call, without the table of HPACK.
fn call(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 4, path.len() as u8];
    block.extend(path.as_bytes());
    block.extend(b"\x0f\x10\x10application/grpc");
    block
}

fn message(of: &impl prost::Message) -> Vec<u8> {
    let body = of.encode_to_vec();
    [&[0][..], &(body.len() as u32).to_be_bytes(), &body].concat()
}

fn unary(stream: u32, path: &str, of: &impl prost::Message) -> Vec<u8> {
    let begin = frame(HEADERS, END_HEADERS, stream, &call(path));
    [begin, frame(DATA, END_STREAM, stream, &message(of))].concat()
}

struct Raw(UnixStream);

impl Raw {
    /// A greeted connection; `window` is that of each of its streams.
    async fn connect(rig: &Rig, who: Who, window: u32) -> Self {
        let mut raw = Self(UnixStream::connect(rig.socket(who)).await.unwrap());
        raw.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        let initial_window = [&[0, 4][..], &window.to_be_bytes()].concat();
        raw.say(&frame(SETTINGS, 0, 0, &initial_window)).await;
        raw.until("its settings", |kind, _, _| kind == SETTINGS)
            .await;
        raw
    }

    /// False: the daemon listens no longer.
    async fn say(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).await.is_ok()
    }

    /// The payload of the first frame that is looked for; none: the connection ended before.
    async fn find(&mut self, look: impl Fn(u8, u8, u32) -> bool) -> Option<Vec<u8>> {
        let mut head = [0; 9];
        loop {
            self.0.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, d, e, f, g] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            if look(kind, flags, u32::from_be_bytes([d, e, f, g])) {
                return Some(payload);
            }
        }
    }

    async fn until(&mut self, what: &str, look: impl Fn(u8, u8, u32) -> bool) -> Vec<u8> {
        let found = tokio::time::timeout(SOON, self.find(look)).await;
        let found = found.unwrap_or_else(|_| panic!("{what} did not come"));
        found.unwrap_or_else(|| panic!("the connection ended before {what}"))
    }

    /// Waits for its end, and says with which code it was told so.
    async fn ended(&mut self) -> Option<u32> {
        let look = |kind, _, _| kind == GOAWAY;
        let told = tokio::time::timeout(SOON, self.find(look)).await;
        let told = told.expect("the connection is still open")?;
        Some(u32::from_be_bytes(told[4..8].try_into().unwrap()))
    }
}

/// Somebody else, who must not notice.
struct Neighbour(pb::Lease);

impl Neighbour {
    async fn of(rig: &Rig) -> Self {
        Self(acquire(&mut rig.leases(Who::Bob).await, unenforced(1)).await)
    }
    async fn renews(&self, rig: &Rig) {
        let leases = vec![reference(&self.0)];
        let mut bob = rig.leases(Who::Bob).await;
        let renewed = bob.renew_leases(pb::RenewLeasesRequest { leases }).await;
        let results = renewed.unwrap().into_inner().results;
        assert_eq!(results[0].status(), pb::RenewStatus::Renewed);
    }
}

const ACQUIRE: &str = "/evenkeel.v1.LeaseService/AcquireLease";
const SESSION: &str = "/evenkeel.v1.LeaseService/Session";
const NODE: &str = "/evenkeel.v1.NodeService/GetNode";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_begun_and_reset_at_once_end_the_connection() {
    let rig = Rig::synthetic().await;
    let neighbour = Neighbour::of(&rig).await;
    let mut raw = Raw::connect(&rig, Who::Alice, 65_535).await;
    let mut flood = Vec::new();
    for stream in (1..4_000).step_by(2) {
        flood.extend(frame(HEADERS, END_HEADERS, stream, &call(ACQUIRE)));
        flood.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    }
    raw.say(&flood).await;
    assert!(matches!(raw.ended().await, None | Some(ENHANCE_YOUR_CALM)));
    neighbour.renews(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_carry_nothing_end_the_connection() {
    let rig = Rig::synthetic().await;
    let neighbour = Neighbour::of(&rig).await;
    let endless = frame(HEADERS, 0, 1, &call(SESSION));
    let session = frame(HEADERS, END_HEADERS, 1, &call(SESSION));
    for (what, first, one) in [
        ("CONTINUATION", endless, frame(CONTINUATION, 0, 1, &[])),
        ("DATA with nothing", session, frame(DATA, 0, 1, &[])),
        ("PING", Vec::new(), frame(PING, 0, 0, &[7; 8])),
        (
            "PING that nobody asked for",
            Vec::new(),
            frame(PING, 1, 0, &[7; 8]),
        ),
        ("SETTINGS", Vec::new(), frame(SETTINGS, 0, 0, &[])),
        ("PRIORITY", Vec::new(), frame(2, 0, 1, &[0, 0, 0, 0, 1])),
        ("an unknown kind", Vec::new(), frame(77, 0, 0, &[])),
    ] {
        let raw = Raw::connect(&rig, Who::Alice, 65_535).await;
        let (mut reader, mut writer) = raw.0.into_split();
        let mut said = Vec::new();
        let read = reader.read_to_end(&mut said);
        let flood = async {
            let _ = writer.write_all(&first).await;
            while writer.write_all(&one).await.is_ok() {}
        };
        let both = async { tokio::join!(read, flood) };
        let ended = tokio::time::timeout(SOON, both).await;
        assert!(ended.is_ok(), "{what}: the connection is still open");
        neighbour.renews(&rig).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_reads_is_dropped_and_the_lease_lives() {
    let rig = Rig::synthetic().await;
    let lease = acquire(&mut rig.leases(Who::Alice).await, unenforced(1)).await;
    let mut raw = Raw::connect(&rig, Who::Alice, 0).await;
    let frame_of = pb::SessionRequest {
        renew: vec![reference(&lease)],
        ..Default::default()
    };
    let asked = [
        unary(1, NODE, &pb::GetNodeRequest {}),
        frame(HEADERS, END_HEADERS, 3, &call(SESSION)),
        frame(DATA, 0, 3, &message(&frame_of)),
    ];
    assert!(raw.say(&asked.concat()).await);
    for _ in 0..2 {
        raw.until("a reset", |kind, _, _| kind == RST_STREAM).await;
    }
    let mut alice = rig.leases(Who::Alice).await;
    let got = alice.get_lease(pb::GetLeaseRequest { lease_id: lease.id });
    let got = got.await.unwrap().into_inner().lease.unwrap();
    assert_eq!(got.phase(), pb::LeasePhase::Active);
    // The connection is as good as before.
    raw.say(&unary(5, NODE, &pb::GetNodeRequest {})).await;
    raw.say(&frame(8, 0, 5, &65_535u32.to_be_bytes())).await;
    raw.until("an answer", |kind, _, stream| (kind, stream) == (DATA, 5))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_headers_that_do_not_end_are_given_up() {
    let rig = Rig::synthetic().await;
    let neighbour = Neighbour::of(&rig).await;
    let mut body = Raw::connect(&rig, Who::Alice, 65_535).await;
    let half = [&[0][..], &1_000u32.to_be_bytes(), &[10; 400]].concat();
    for (stream, path) in [(1, ACQUIRE), (3, SESSION)] {
        body.say(&frame(HEADERS, END_HEADERS, stream, &call(path)))
            .await;
        body.say(&frame(DATA, 0, stream, &half)).await;
    }
    let mut block = Raw::connect(&rig, Who::Alice, 65_535).await;
    block.say(&frame(HEADERS, 0, 1, &call(ACQUIRE))).await;
    let mut promise = Raw::connect(&rig, Who::Alice, 65_535).await;
    promise
        .say(&frame(HEADERS, END_HEADERS, 1, &call(ACQUIRE))[..12])
        .await;
    let ends = |kind, flags, stream| kind == HEADERS && flags & END_STREAM != 0 && stream > 0;
    tokio::join!(
        async {
            for _ in 0..2 {
                body.until("an end", ends).await;
            }
        },
        block.ended(),
        promise.ended(),
    );
    neighbour.renews(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_and_hangs_up_is_done_with_all_the_same() {
    let rig = Rig::synthetic().await;
    let mut raw = Raw::connect(&rig, Who::Alice, 65_535).await;
    let asked = unenforced(1);
    raw.say(&unary(1, ACQUIRE, &asked)).await;
    raw.say(&frame(RST_STREAM, 0, 1, &8u32.to_be_bytes())).await;
    // Whether or not it had been enqueued: the same request has the same lease.
    let mut alice = rig.leases(Who::Alice).await;
    let first = acquire(&mut alice, asked.clone()).await;
    let again = acquire(&mut alice, asked).await;
    assert_eq!(first.id, again.id);
    let all = alice.list_leases(pb::ListLeasesRequest::default()).await;
    assert_eq!(all.unwrap().into_inner().leases.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_that_is_too_deep_or_too_large_gets_a_problem() {
    let rig = Rig::synthetic().await;
    let deep = "[".repeat(100_000);
    let post = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{deep}",
        deep.len()
    );
    let long = format!(
        "GET /v1/leases?job={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a".repeat(100_000)
    );
    for (what, request) in [("deep", post), ("long", long)] {
        let mut stream = TcpStream::connect(rig.rest(Who::Admin)).await.unwrap();
        let _ = stream.write_all(request.as_bytes()).await; // it may end before all is said
        let mut head = [0; 12];
        let read = tokio::time::timeout(SOON, stream.read_exact(&mut head)).await;
        read.expect(what).expect(what);
        let head = String::from_utf8_lossy(&head);
        assert!(head.starts_with("HTTP/1.1 4"), "{what}: {head}");
    }
}

/// Waits of a tenant that is alone: half of all.
const WAITS: usize = 2_048;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tenant_whose_requests_all_wait_can_make_other_calls() {
    let settings = Settings {
        queue_max: 10_000,
        tenant_queue_max: 10_000,
        ..Settings::default()
    };
    let rig = Rig::start(node(PoolKind::Synthetic, 1, 0), settings).await;
    let mut alice = rig.leases(Who::Alice).await;
    let lease = acquire(&mut alice, unenforced(1)).await;
    let mut waits = JoinSet::new();
    // A connection of its own for each so many.
    for n in 1..=WAITS / 64 {
        let alice = rig.leases(Who::Alice).await;
        for _ in 0..64 {
            let mut alice = alice.clone();
            waits.spawn(async move {
                let asked = pb::AcquireLeaseRequest {
                    wait_ms: 600_000,
                    ..unenforced(1)
                };
                alice.acquire_lease(asked).await
            });
        }
        until("all of them wait", async || {
            if let Some(ended) = waits.try_join_next() {
                panic!("one of the first {} did not wait: {ended:?}", 64 * n);
            }
            let look = rig.handle().read(|state, _| state.durable.queue_len());
            look.await.is_ok_and(|q| q == 64 * n).then_some(())
        })
        .await;
    }
    let mut alice = rig.leases(Who::Alice).await;
    let one_more = pb::AcquireLeaseRequest {
        wait_ms: 1_000,
        ..unenforced(1)
    };
    let refused = alice.acquire_lease(one_more).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "no more");
    for _ in 0..10 {
        let got = alice.get_lease(pb::GetLeaseRequest { lease_id: lease.id });
        assert_eq!(got.await.unwrap().into_inner().lease.unwrap().id, lease.id);
        let all = alice.list_leases(pb::ListLeasesRequest::default()).await;
        assert_eq!(all.unwrap().into_inner().leases.len(), 1_000);
    }
}
