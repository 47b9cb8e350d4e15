//! A daemon for tests: the wire over a real Unix socket, a few rules in memory, and faults on request.
//!
//! It runs on a thread of its own, so that blocking code can be tested against it. It is no model of
//! the real one: it grants whatever is asked for, and ends nothing by itself.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(
    clippy::unwrap_used,
    reason = "a fake that cannot start fails its test"
)]

pub(crate) mod leases;
mod others;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_proto::v1 as pb;
use pb::job_service_server::JobServiceServer;
use pb::lease_service_server::LeaseServiceServer;
use pb::node_service_server::NodeServiceServer;
use pb::plan_service_server::PlanServiceServer;
use pb::profile_service_server::ProfileServiceServer;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::Server;

/// How long a test waits for something that must come: far more than it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What the daemon knows, and what it was told to get wrong.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) leases: BTreeMap<u64, pb::Lease>,
    pub(crate) by_request: HashMap<String, u64>,
    pub(crate) jobs: BTreeMap<String, pb::Job>,
    pub(crate) profiles: BTreeMap<(String, String), pb::Profile>,
    pub(crate) environment: HashMap<String, String>,
    /// The audit trail; empty: three grants.
    pub(crate) events: Vec<pb::Event>,
    /// CPUs of each grant.
    pub(crate) cpus: String,
    /// Batch size of each grant; 0: none.
    pub(crate) batch: u32,
    /// TTL of leases that ask for none.
    pub(crate) ttl_ms: u64,

    /// Answers to lease calls that get lost after the call has had its effect.
    pub(crate) lose_answers: u32,
    /// Refusals to give before anything else.
    pub(crate) refuse: Vec<Status>,
    /// There is no Session.
    pub(crate) no_session: bool,
    /// Sessions open but never answer.
    pub(crate) mute: bool,

    pub(crate) acquire_calls: u32,
    pub(crate) unary_renewals: u32,
    pub(crate) sessions_opened: u32,
    pub(crate) renewals: u32,
    pub(crate) reports: Vec<pb::WorkReport>,
    pub(crate) acknowledgements: Vec<pb::Acknowledge>,
    pub(crate) sessions: Vec<mpsc::Sender<Result<pb::SessionResponse, Status>>>,
}

impl World {
    /// A lost answer is, for its client, a connection that broke.
    pub(crate) fn lose(&mut self) -> Result<(), Status> {
        if self.lose_answers > 0 {
            self.lose_answers -= 1;
            return Err(Status::unavailable("the connection broke"));
        }
        Ok(())
    }
    /// The next planned refusal.
    pub(crate) fn refusal(&mut self) -> Result<(), Status> {
        match self.refuse.pop() {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }
    /// Sends something down all sessions.
    pub(crate) fn send(&mut self, frame: &pb::SessionResponse) {
        self.sessions
            .retain(|s| s.try_send(Ok(frame.clone())).is_ok());
    }
    /// Takes the right to a lease away.
    pub(crate) fn fence(&mut self, id: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.fence += 1;
        }
    }
}

pub(crate) type Shared = Arc<Mutex<World>>;

/// The daemon.
pub(crate) struct Fake {
    pub(crate) world: Shared,
    pub(crate) socket: PathBuf,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    _dir: tempfile::TempDir,
}

impl Fake {
    /// Started, on a socket in a directory of its own.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("evenkeeld.sock");
        let world = World {
            ttl_ms: 30_000,
            ..World::default()
        };
        let mut fake = Self {
            world: Arc::new(Mutex::new(world)),
            socket,
            server: None,
            _dir: dir,
        };
        fake.restart();
        fake
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gone at once, with all its connections: as after SIGKILL.
    pub(crate) fn stop(&mut self) {
        if let Some((stop, thread)) = self.server.take() {
            stop.send(()).ok();
            thread.join().unwrap();
            self.world().sessions.clear();
            std::fs::remove_file(&self.socket).ok();
        }
    }

    /// There again, knowing what it knew.
    pub(crate) fn restart(&mut self) {
        self.stop();
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (world, socket) = (Arc::clone(&self.world), self.socket.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = bind(&socket);
                ready.send(()).unwrap();
                tokio::select! {
                    served = serve(world, listener) => served.unwrap(),
                    _ = stopped => {}
                }
            });
            // Without waiting for connections: they are cut.
            runtime.shutdown_background();
        });
        is_ready.recv().unwrap();
        self.server = Some((stop, thread));
    }

    /// Waits until the world is so.
    pub(crate) fn wait(&self, what: &str, so: impl Fn(&World) -> bool) {
        until(what, || so(&self.world()));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for a condition.
pub(crate) fn until(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn bind(socket: &Path) -> UnixListener {
    std::fs::remove_file(socket).ok();
    UnixListener::bind(socket).unwrap()
}

async fn serve(world: Shared, listener: UnixListener) -> Result<(), tonic::transport::Error> {
    let service = Service { world };
    Server::builder()
        .add_service(LeaseServiceServer::new(service.clone()))
        .add_service(JobServiceServer::new(service.clone()))
        .add_service(ProfileServiceServer::new(service.clone()))
        .add_service(PlanServiceServer::new(service.clone()))
        .add_service(NodeServiceServer::new(service))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
}

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) world: Shared,
}

impl Service {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
