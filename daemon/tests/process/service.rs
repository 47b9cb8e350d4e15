//! What the service manager hears: a real Unix datagram socket as `NOTIFY_SOCKET`, as systemd has one.

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use sqlx::{Connection, Executor, SqliteConnection};

use super::kit::{Daemon, block_on, eventually, request_id};
use crate::helper::until;

/// Nothing is said for so long: eight beats are missing.
const SILENCE: Duration = Duration::from_millis(1_600);
/// A beat each 0.2 s.
const WATCHDOG_USEC: &str = "800000";

/// The service manager's ear.
struct Ear(UnixDatagram);

impl Ear {
    fn new(daemon: &Daemon) -> Self {
        let ear = UnixDatagram::bind(daemon.dir().join("notify.sock")).unwrap();
        ear.set_read_timeout(Some(SILENCE)).unwrap();
        Self(ear)
    }

    /// The next message; none: silence.
    fn hear(&self) -> Option<String> {
        let mut bytes = [0; 4_096];
        let read = self.0.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..read].to_vec()).unwrap())
    }

    /// Waits for a message that has this line, and returns it.
    fn until(&self, line: &str) -> String {
        until(line, || {
            self.hear().filter(|said| said.lines().any(|l| l == line))
        })
    }
}

fn synthetic(_: &Path) -> String {
    "node.pool = \"synthetic\"\n".to_owned()
}

#[test]
fn it_is_ready_once_its_doors_are_open_beats_and_says_that_it_stops() {
    let mut daemon = Daemon::new(synthetic);
    let ear = Ear::new(&daemon);
    let path = daemon.dir().join("notify.sock");
    daemon.launch(&[
        ("NOTIFY_SOCKET", &path),
        ("WATCHDOG_USEC", Path::new(WATCHDOG_USEC)),
    ]);
    let first = ear.hear().expect("it says that it starts");
    assert!(first.starts_with("STATUS=starting"), "{first}");
    let ready = ear.until("READY=1");
    assert!(
        UnixStream::connect(daemon.socket()).is_ok(),
        "before its doors were open"
    );
    assert!(daemon.dir().join("ledger.db").exists());
    assert!(ready.contains("STATUS=serving cores: 64"), "{ready}");
    for _ in 0..3 {
        assert_eq!(ear.until("WATCHDOG=1"), "WATCHDOG=1\n");
    }
    let stopped = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| daemon.stop());
        let said = ear.until("STOPPING=1");
        assert!(said.contains("leases and their limits stay"), "{said}");
        stopped.join().unwrap()
    });
    assert_eq!(stopped.code(), Some(0));
}

#[test]
fn a_controller_that_hangs_does_not_beat_whatever_else_lives() {
    let mut daemon = Daemon::new(synthetic);
    let ear = Ear::new(&daemon);
    let path = daemon.dir().join("notify.sock");
    daemon.launch(&[
        ("NOTIFY_SOCKET", &path),
        ("WATCHDOG_USEC", Path::new(WATCHDOG_USEC)),
    ]);
    ear.until("WATCHDOG=1");
    block_on(async {
        // Somebody with `sqlite3` holds the ledger: the controller waits for it in its next commit, up to 5 s.
        let ledger = format!("sqlite://{}", daemon.dir().join("ledger.db").display());
        let mut other = SqliteConnection::connect(&ledger).await.unwrap();
        other.execute("BEGIN IMMEDIATE").await.unwrap();
        let mut leases = daemon.leases().await;
        let grant = tokio::spawn(async move {
            let acquire = pb::AcquireLeaseRequest {
                request_id: request_id(),
                unenforced: true,
                cores: 1,
                ..Default::default()
            };
            leases.acquire_lease(acquire).await
        });
        eventually("it falls silent", async || {
            ear.hear().is_none().then_some(())
        })
        .await;
        let alive = UnixStream::connect(daemon.socket());
        assert!(alive.is_ok(), "its other threads live: {alive:?}");
        other.execute("ROLLBACK").await.unwrap();
        let beats = eventually("it beats again", async || ear.hear()).await;
        assert_eq!(beats, "WATCHDOG=1\n");
        grant.await.unwrap().unwrap();
    });
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn without_a_service_manager_or_with_a_deaf_one_it_serves() {
    let mut daemon = Daemon::new(synthetic);
    for deaf in [None, Some(daemon.dir().join("nobody.sock"))] {
        let variables: Vec<_> = deaf
            .iter()
            .map(|path| ("NOTIFY_SOCKET", path.as_path()))
            .collect();
        daemon.start(&variables);
        assert_eq!(daemon.stop().code(), Some(0), "{}", daemon.log());
    }
    assert!(daemon.log().contains("does not hear"), "{}", daemon.log());
}
