//! A commit in doubt: the disk fails while it is synced, and nobody knows whether it is there; or another program has
//! written to the ledger. The daemon says neither yes nor no, ends, and its next life tells the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_proto::v1 as pb;
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::kit::{Daemon, TTL_MS, block_on, request_id};

/// Requests that are under way when the disk fails.
const ASKING: usize = 8;

fn build_shim(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process/failing_fsync.c");
    let shim = dir.join("failing_fsync.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(&shim)
        .arg(source)
        .status();
    assert!(
        built.unwrap().success(),
        "the C compiler that built SQLite builds this, too"
    );
    shim
}

fn one_core(request_id: &str) -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        request_id: request_id.to_owned(),
        cores: 1,
        ttl_ms: TTL_MS,
        unenforced: true,
        ..Default::default()
    }
}

async fn acquire(daemon: &Daemon, request_id: &str) -> pb::Lease {
    let mut leases = daemon.leases().await;
    let answer = leases.acquire_lease(one_core(request_id)).await;
    answer.unwrap().into_inner().lease.unwrap()
}

/// Live leases, by the request that made them.
async fn live(daemon: &Daemon) -> BTreeMap<String, pb::Lease> {
    let mut leases = daemon.leases().await;
    let list = leases.list_leases(pb::ListLeasesRequest::default()).await;
    let all = list.unwrap().into_inner().leases;
    let count = all.len();
    let by_request: BTreeMap<_, _> = all.into_iter().map(|l| (l.request_id.clone(), l)).collect();
    assert_eq!(by_request.len(), count, "a request has one effect");
    by_request
}

/// Asks for all of them at once; every one has to fail.
async fn ask_in_vain(daemon: &Daemon, requests: &[String]) -> Vec<Status> {
    let client = daemon.leases().await;
    let ask = |id: &String| {
        let (mut client, request) = (client.clone(), one_core(id));
        tokio::spawn(async move { client.acquire_lease(request).await })
    };
    let asked: Vec<_> = requests.iter().map(ask).collect();
    let mut refusals = Vec::new();
    for answer in asked {
        let refusal = answer.await.unwrap();
        refusals.push(refusal.expect_err("nothing is acknowledged that may not be there"));
    }
    refusals
}

fn reason(status: &Status) -> Option<String> {
    let info = status.get_error_details().error_info().cloned();
    info.map(|info| info.reason)
}

#[test]
fn a_commit_in_doubt_ends_the_daemon_and_the_next_start_tells_the_truth() {
    let mut daemon = Daemon::new(|_| "[node]\npool = \"synthetic\"".into());
    let shim = build_shim(daemon.dir());
    let trigger = daemon.dir().join("sync-fails");
    let preload = [
        ("LD_PRELOAD", shim.as_path()),
        ("EVENKEEL_TEST_SYNC_FAILS", trigger.as_path()),
    ];
    let first = request_id();
    let requests: Vec<String> = (0..ASKING).map(|_| request_id()).collect();

    daemon.start(&preload);
    let acknowledged = block_on(async {
        let lease = acquire(&daemon, &first).await;
        std::fs::write(&trigger, "").unwrap();
        let refusals = ask_in_vain(&daemon, &requests).await;
        let doubted = refusals
            .iter()
            .find(|s| reason(s).as_deref() == Some("IN_DOUBT"));
        let doubted = doubted.unwrap_or_else(|| panic!("nobody is told: {refusals:?}"));
        assert_eq!(doubted.code(), Code::Unavailable);
        assert!(doubted.message().contains("same request_id"), "{doubted:?}");
        lease
    });
    let status = daemon.wait();
    let log = daemon.log();
    assert_eq!(status.code(), Some(1), "{log}");
    for part in ["ALARM", "the last commit is in doubt", "has to start again"] {
        assert!(log.contains(part), "`{part}` is not in:\n{log}");
    }

    std::fs::remove_file(&trigger).unwrap();
    daemon.start(&preload);
    block_on(async {
        let there = live(&daemon).await;
        assert_eq!(there[&first].id, acknowledged.id, "it was acknowledged");
        assert_eq!(there[&first].fence, acknowledged.fence);
        assert!(there.keys().all(|r| *r == first || requests.contains(r)));

        let mut ids = BTreeSet::from([acquire(&daemon, &first).await.id]);
        for request in &requests {
            let lease = acquire(&daemon, request).await;
            assert_eq!(acquire(&daemon, request).await.id, lease.id);
            if let Some(was) = there.get(request) {
                assert_eq!(was.id, lease.id, "what the disk kept is the effect");
            }
            ids.insert(lease.id);
        }
        assert_eq!(ids.len(), 1 + ASKING);
        let there = live(&daemon).await;
        let there: BTreeSet<u64> = there.into_values().map(|l| l.id).collect();
        assert_eq!(there, ids, "nothing more, nothing less");
    });
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
}

#[test]
fn a_ledger_that_somebody_else_writes_ends_the_daemon() {
    let mut daemon = Daemon::new(|_| "[node]\npool = \"synthetic\"".into());
    daemon.start(&[]);
    let (first, second) = (request_id(), request_id());
    let acknowledged = block_on(async {
        let lease = acquire(&daemon, &first).await;
        let url = format!("sqlite://{}/ledger.db", daemon.dir().display());
        let mut other = SqliteConnection::connect(&url).await.unwrap();
        let event = "INSERT INTO event (seq, batch, unix_ms, kind, json)
                     SELECT max(seq) + 1, max(batch), 0, 'by_hand', '{}' FROM event";
        other.execute(event).await.unwrap();
        other.close().await.unwrap();
        let refused = ask_in_vain(&daemon, std::slice::from_ref(&second)).await;
        assert_eq!(refused[0].code(), Code::Unavailable, "{refused:?}");
        lease
    });
    let status = daemon.wait();
    let log = daemon.log();
    assert_eq!(status.code(), Some(1), "{log}");
    for part in ["ALARM", "another program has written to the ledger"] {
        assert!(log.contains(part), "`{part}` is not in:\n{log}");
    }
    daemon.start(&[]);
    block_on(async {
        let there = live(&daemon).await;
        assert_eq!(there.keys().collect::<Vec<_>>(), [&first]);
        assert_eq!(there[&first].id, acknowledged.id);
        assert_ne!(acquire(&daemon, &second).await.id, acknowledged.id);
    });
    assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
}
