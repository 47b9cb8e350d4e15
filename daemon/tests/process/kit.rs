//! A daemon in a folder of its own: started, asked, and ended with its test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pb::lease_service_client::LeaseServiceClient;
use tonic::transport::{Channel, Endpoint};

use crate::helper::until;

/// A lease that no test outlives.
pub(crate) const TTL_MS: u64 = 3_600_000;

/// A daemon's folder, and the daemon while it runs.
pub(crate) struct Daemon {
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Daemon {
    /// Not started yet. `tables` is what the configuration has besides ledger, listeners and log.
    pub(crate) fn new(tables: impl FnOnce(&Path) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let config = format!(
            "{}\n[ledger]\npath = '{1}/ledger.db'\nballast_mib = 1\n[listen]\nsocket = '{1}/evenkeeld.sock'\n\
             rest = ''\n",
            tables(dir),
            dir.display()
        );
        std::fs::write(dir.join("evenkeeld.toml"), config).unwrap();
        Self {
            folder,
            child: None,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir().join("evenkeeld.sock")
    }

    /// All that its lives have said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("daemon.log")).unwrap_or_default()
    }

    /// Starts it (again), and waits for nothing.
    pub(crate) fn launch(&mut self, variables: &[(&str, &Path)]) {
        self.child = Some(self.spawn(variables));
    }

    /// Starts it (again) and waits until it answers.
    pub(crate) fn start(&mut self, variables: &[(&str, &Path)]) {
        let mut child = self.spawn(variables);
        until("the daemon answers", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", self.log());
            std::os::unix::net::UnixStream::connect(self.socket()).ok()
        });
        self.child = Some(child);
    }

    /// Starts it (again) in vain.
    pub(crate) fn start_in_vain(&mut self) -> ExitStatus {
        self.child = Some(self.spawn(&[]));
        self.wait()
    }

    fn spawn(&self, variables: &[(&str, &Path)]) -> Child {
        let mut open = std::fs::OpenOptions::new();
        let log = open
            .create(true)
            .append(true)
            .open(self.dir().join("daemon.log"))
            .unwrap();
        Command::new(env!("CARGO_BIN_EXE_evenkeeld"))
            .arg("--config")
            .arg(self.dir().join("evenkeeld.toml"))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        until("the daemon ends", || child.try_wait().unwrap())
    }

    /// Tells it to end, and waits.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let pid = self.child.as_ref().expect("it runs").id();
        kill(Pid::from_raw(pid as i32), Signal::SIGTERM).unwrap();
        self.wait()
    }

    pub(crate) async fn leases(&self) -> LeaseServiceClient<Channel> {
        let uri = format!("unix://{}", self.socket().display());
        let channel = Endpoint::from_shared(uri).unwrap().connect().await;
        LeaseServiceClient::new(channel.unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A fresh request id; no two of a test run are alike.
pub(crate) fn request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("0190b6a0-0000-7000-8000-{n:012x}")
}

/// Runs a test's future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Waits until `look` finds what it looks for.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(60), found).await;
    found.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}
