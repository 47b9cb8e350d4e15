//! A daemon without its hardware: controller, ledger and API in a temporary directory. The test is its reconciler.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_core::command::{Caller, Command, Observation, Seen};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{Fence, Generation, GpuId, LeaseId, Name};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::{Bytes, Millis, Sms};
use evenkeel_proto::v1 as pb;
use evenkeeld::api::{Api, Config, Connections, Running, Tcp, Tenants};
use evenkeeld::audit::Audit;
use evenkeeld::clock::Clock;
use evenkeeld::controller::{self, Controller, Fatal};
use evenkeeld::handle::Handle;
use evenkeeld::ledger::{self, History};
use pb::job_service_client::JobServiceClient;
use pb::lease_service_client::LeaseServiceClient;
use pb::node_service_client::NodeServiceClient;
use pb::plan_service_client::PlanServiceClient;
use pb::profile_service_client::ProfileServiceClient;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// What is waited for comes within this time, on the slowest machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Alice,
    Bob,
    Admin,
}

impl Who {
    const ALL: [Self; 3] = [Self::Alice, Self::Bob, Self::Admin];
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Alice => "alice",
            Self::Bob => "bob",
            Self::Admin => "root",
        }
    }
    pub(crate) fn caller(self) -> Caller {
        Caller {
            tenant: name(self.name()),
            admin: self == Self::Admin,
            job: None,
        }
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A fresh request id; no two of a test run are alike.
pub(crate) fn request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("0190b6a0-0000-7000-8000-{n:012x}")
}

/// A node of so many cores (the first is reserved where it is real) and GPUs of 132 SMs and 80 GiB.
pub(crate) fn node(kind: PoolKind, cores: u32, gpus: u16) -> Node {
    let core = |id| Core {
        id,
        cpus: [id, id + 100].into_iter().collect(),
        numa: 0,
        package: 0,
    };
    let gpu = |id| Gpu {
        id: GpuId(id),
        uuid: name(&format!("GPU-{id}")),
        model: name("H100"),
        sms: Sms(132),
        memory: Bytes::gib(80),
        reserved_memory: Bytes(0),
        enforceable: (1..=66).map(|n| Sms(2 * n)).collect(),
        numa: 0,
        backend: match kind {
            PoolKind::Local => GpuBackend::Emulated,
            PoolKind::Synthetic => GpuBackend::None,
        },
        mode: GpuMode::Enforce,
    };
    Node {
        kind,
        cores: (0..cores).map(core).collect(),
        reserved_cores: match kind {
            PoolKind::Local => CpuSet::range(0, 0),
            PoolKind::Synthetic => CpuSet::new(),
        },
        gpus: (0..gpus).map(gpu).collect(),
    }
}

/// A daemon. Dropped without a word, like one that was killed.
pub(crate) struct Rig {
    folder: tempfile::TempDir,
    node: Node,
    settings: Settings,
    /// Whether admins may change things over REST, from the next life on.
    pub(crate) rest_writes: bool,
    life: Option<Life>,
}

/// One life of the daemon.
struct Life {
    handle: Handle,
    apis: Vec<Running>,
    closing: CancellationToken,
    stop: CancellationToken,
    owner: JoinHandle<Result<(), Fatal>>,
}

impl Rig {
    /// 8 cores and one GPU that exist in the ledger only.
    pub(crate) async fn synthetic() -> Self {
        Self::start(node(PoolKind::Synthetic, 8, 1), Settings::default()).await
    }
    /// 8 cores (one reserved) and one GPU, as if they were real.
    pub(crate) async fn local() -> Self {
        Self::start(node(PoolKind::Local, 8, 1), Settings::default()).await
    }
    pub(crate) async fn start(node: Node, settings: Settings) -> Self {
        let mut rig = Self {
            folder: tempfile::tempdir().unwrap(),
            node,
            settings,
            rest_writes: true,
            life: None,
        };
        rig.begin().await;
        rig
    }

    async fn begin(&mut self) {
        let (ledger, history) = (self.ledger_config(), self.history());
        let opened = ledger::open(ledger).await.unwrap();
        let config = controller::Config {
            settings: self.settings,
            boot_id: Clock::open().unwrap().boot_id().to_owned(),
            caps: Default::default(),
            keep_events: Duration::from_secs(3600),
        };
        let poke = Arc::default();
        let started = Controller::start(config, opened.ledger, opened.loaded, history, poke).await;
        let (controller, handle, _targets) = started.unwrap();
        let (stop, closing) = (CancellationToken::new(), CancellationToken::new());
        let owner = tokio::spawn(controller.run(stop.clone()));
        let discovered = Command::Discovered {
            node: Box::new(self.node.clone()),
            unavailable: Box::default(),
        };
        handle.run(discovered).await.unwrap();
        let mut apis = Vec::new();
        for who in Who::ALL {
            let config = self.config(who);
            let handle = handle.clone();
            let api = Api { config, handle }.spawn(closing.clone()).await;
            apis.push(api.unwrap());
        }
        self.life = Some(Life {
            handle,
            apis,
            closing,
            stop,
            owner,
        });
    }

    fn ledger_config(&self) -> ledger::Config {
        ledger::Config {
            ballast_bytes: 0,
            min_free_bytes: 0,
            ..ledger::Config::new(self.ledger())
        }
    }
    /// A reader of the audit trail of its own.
    pub(crate) fn history(&self) -> History {
        History::new(&self.ledger_config())
    }

    fn config(&self, who: Who) -> Config {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let alone = who == Who::Admin;
        Config {
            socket: self.socket(who),
            socket_mode: 0o600,
            tcp: alone.then(|| (any, Tcp::Plain(name("alice")))),
            rest: Some(any),
            rest_writes: self.rest_writes,
            tenants: Tenants::everybody(who.caller()),
            rates: Default::default(),
            audit: Audit::off(),
            node_name: "testnode".into(),
            default_ttl: Millis::secs(30),
            gpu_sockets: [(GpuId(0), PathBuf::from("/run/gpu-0.sock"))].into(),
            troubles: Arc::new(|| vec!["a fan is loud".into()]),
            connections: Connections::default(),
        }
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger.db")
    }
    pub(crate) fn socket(&self, who: Who) -> PathBuf {
        self.folder.path().join(format!("{}.sock", who.name()))
    }
    fn life(&self) -> &Life {
        self.life.as_ref().unwrap()
    }
    pub(crate) fn handle(&self) -> &Handle {
        &self.life().handle
    }
    /// The address whose visitors are `who`.
    pub(crate) fn rest(&self, who: Who) -> SocketAddr {
        let at = Who::ALL.iter().position(|w| *w == who).unwrap();
        self.life().apis[at].rest.unwrap()
    }
    pub(crate) fn tcp(&self) -> SocketAddr {
        self.life().apis.iter().find_map(|a| a.tcp).unwrap()
    }

    /// Stops as the daemon does: first the API, then the controller. Says how long the API took.
    pub(crate) async fn end(&mut self) -> Duration {
        let life = self.life.take().unwrap();
        let start = Instant::now();
        life.closing.cancel();
        for api in life.apis {
            api.stopped().await;
        }
        let took = start.elapsed();
        life.stop.cancel();
        life.owner.await.unwrap().unwrap();
        took
    }
    /// Begins again on the same ledger.
    pub(crate) async fn begin_again(&mut self) {
        self.begin().await;
    }
    /// Ends and begins again on the same ledger.
    pub(crate) async fn restart(&mut self) {
        self.end().await;
        self.begin().await;
    }

    pub(crate) async fn channel(&self, who: Who) -> Channel {
        let uri = format!("unix://{}", self.socket(who).display());
        Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
    }
    pub(crate) async fn leases(&self, who: Who) -> LeaseServiceClient<Channel> {
        LeaseServiceClient::new(self.channel(who).await)
    }
    pub(crate) async fn jobs(&self, who: Who) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel(who).await)
    }
    pub(crate) async fn profiles(&self, who: Who) -> ProfileServiceClient<Channel> {
        ProfileServiceClient::new(self.channel(who).await)
    }
    pub(crate) async fn plans(&self, who: Who) -> PlanServiceClient<Channel> {
        PlanServiceClient::new(self.channel(who).await)
    }
    pub(crate) async fn nodes(&self, who: Who) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel(who).await)
    }

    /// Sees the lease's tree exactly where it should be, as a reconciler would.
    pub(crate) async fn observe(&self, lease: &pb::Lease) {
        let target = lease.target.as_ref().unwrap();
        let seen = |s: &pb::GpuShare| {
            let seen = Seen {
                clients: 1,
                cap: Sms(s.cap_sms),
                memory: Bytes(s.memory_bytes),
            };
            (GpuId(u16::try_from(s.gpu).unwrap()), seen)
        };
        self.saw(lease, |o| {
            o.cores = Some(target.cores.parse().unwrap());
            o.gpus = target.gpus.iter().map(seen).collect();
        })
        .await;
    }
    /// Sees that the lease's tree is gone.
    pub(crate) async fn see_gone(&self, lease: &pb::Lease) {
        self.saw(lease, |o| o.gone = true).await;
    }
    async fn saw(&self, lease: &pb::Lease, what: impl FnOnce(&mut Observation)) {
        let mut observation = Observation {
            lease: LeaseId(lease.id),
            fence: Fence(lease.fence),
            generation: Generation(lease.generation),
            gone: false,
            cores: None,
            gpus: Default::default(),
        };
        what(&mut observation);
        let observed = Command::Observe(Box::new(observation));
        self.handle().run(observed).await.unwrap();
    }

    /// All that is durable, as text: to see that nothing changed.
    pub(crate) async fn snapshot(&self) -> String {
        let look = self
            .handle()
            .read(|state, _| format!("{:?}", state.durable.parts()));
        look.await.unwrap()
    }
}

/// Cores that nobody enforces.
pub(crate) fn unenforced(cores: u32) -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        request_id: request_id(),
        cores,
        unenforced: true,
        ..Default::default()
    }
}

/// Cores and a share of the GPU, enforced.
pub(crate) fn enforced(cores: u32, sms: u32, gib: u64) -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        request_id: request_id(),
        cores,
        gpus: vec![pb::GpuRequest {
            gpu: None,
            sms,
            percent: 0,
            memory_bytes: gib << 30,
        }],
        ..Default::default()
    }
}

pub(crate) fn reference(lease: &pb::Lease) -> pb::LeaseRef {
    pb::LeaseRef {
        lease_id: lease.id,
        fence: lease.fence,
    }
}

/// Acquires, and takes the lease out of the answer.
pub(crate) async fn acquire(
    client: &mut LeaseServiceClient<Channel>,
    request: pb::AcquireLeaseRequest,
) -> pb::Lease {
    client
        .acquire_lease(request)
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap()
}

/// The reason and metadata of a refusal.
pub(crate) fn why(status: &Status) -> (String, std::collections::HashMap<String, String>) {
    let details = status.get_error_details();
    let info = details.error_info().cloned();
    let info = info.unwrap_or_else(|| panic!("no ErrorInfo in {status:?}"));
    assert_eq!(info.domain, "evenkeel.dev");
    (info.reason, info.metadata)
}

/// Checks code and reason of a refusal.
pub(crate) fn refused<T: std::fmt::Debug>(
    what: &str,
    result: Result<T, Status>,
    code: Code,
    reason: &str,
) -> Status {
    let status = result.expect_err(what);
    assert_eq!(
        (status.code(), why(&status).0.as_str()),
        (code, reason),
        "{what}: {status:?}"
    );
    status
}

/// Waits until `look` finds what it looks for.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < SOON, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The next message of a stream, which comes soon.
pub(crate) async fn next<T>(what: &str, stream: &mut tonic::Streaming<T>) -> T {
    let message = tokio::time::timeout(SOON, stream.message()).await;
    let message = message.unwrap_or_else(|_| panic!("{what} did not come"));
    message
        .unwrap()
        .unwrap_or_else(|| panic!("{what}: the stream ended"))
}
