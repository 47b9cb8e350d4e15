//! A real `evenkeeld` in a folder of its own, started, killed and started again.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::net::UnixStream;

/// A daemon under test.
pub(crate) struct Daemon {
    /// Ledger, socket, log and configuration lie here.
    pub(crate) dir: PathBuf,
    config: PathBuf,
    child: Option<Child>,
    env: Vec<(String, PathBuf)>,
    _owned: Option<tempfile::TempDir>,
}

/// A program of ours, beside this one.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let path = me.with_file_name(name);
    if !path.exists() {
        bail!(
            "{} is not there; build it with `make build`",
            path.display()
        );
    }
    Ok(path)
}

impl Daemon {
    /// Writes the configuration (tables without `[listen]` and `[ledger]`) and starts the daemon on a new ledger.
    pub(crate) async fn start(tables: &str) -> anyhow::Result<Self> {
        let owned = tempfile::Builder::new()
            .prefix("evenkeel-accept-")
            .tempdir()?;
        let mut daemon = Self::in_folder(owned.path(), tables).await?;
        daemon._owned = Some(owned);
        Ok(daemon)
    }
    /// The same in a given folder, with what lies there.
    pub(crate) async fn in_folder(dir: &Path, tables: &str) -> anyhow::Result<Self> {
        Self::in_folder_with(dir, tables, &[]).await
    }
    /// The same with more in its environment.
    pub(crate) async fn in_folder_with(
        dir: &Path,
        tables: &str,
        env: &[(&str, &Path)],
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        let config = dir.join("evenkeeld.toml");
        let ledger = dir.join("ledger").join("evenkeel.db");
        let text = format!(
            "{tables}\n[ledger]\npath = {ledger:?}\nballast_mib = 16\n[listen]\nsocket = {:?}\nrest = \"\"\n[log]\nlevel = \"warn\"\n",
            dir.join("evenkeeld.sock"),
        );
        fs::write(&config, text)?;
        let env = env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.to_path_buf()))
            .collect();
        let mut daemon = Self {
            dir: dir.into(),
            config,
            child: None,
            env,
            _owned: None,
        };
        daemon.spawn().await?;
        Ok(daemon)
    }
    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("evenkeeld.sock")
    }
    /// Starts it (again) and waits until it answers; returns how long that took.
    pub(crate) async fn spawn(&mut self) -> anyhow::Result<Duration> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("daemon.log"))?;
        let start = Instant::now();
        let mut child = Command::new(program("evenkeeld")?)
            .arg("--config")
            .arg(&self.config)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start evenkeeld")?;
        while UnixStream::connect(self.socket()).await.is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("evenkeeld ended at once ({status}): {}", self.log_tail());
            }
            if start.elapsed() > Duration::from_secs(30) {
                let _ = child.kill();
                bail!("evenkeeld did not listen within 30 s: {}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.child = Some(child);
        Ok(start.elapsed())
    }
    /// Its process, while it runs.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        let child = self.child.as_ref().context("the daemon is not running")?;
        Ok(child.id())
    }
    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    /// SIGTERM, and waits; returns how long it took and whether it ended well.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<(Duration, bool)> {
        let Some(mut child) = self.child.take() else {
            bail!("the daemon is not running")
        };
        let start = Instant::now();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((start.elapsed(), status.success()));
            }
            if start.elapsed() > Duration::from_secs(30) {
                let _ = child.kill();
                bail!("evenkeeld did not stop within 30 s");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    /// Runs it to its end on this folder, expecting a refusal; its exit code and what it said.
    pub(crate) fn run_to_end(&self) -> anyhow::Result<(Option<i32>, String)> {
        let out = Command::new("timeout")
            .arg("20")
            .arg(program("evenkeeld")?)
            .arg("--config")
            .arg(&self.config)
            .output()?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned()
            + &String::from_utf8_lossy(&out.stdout);
        Ok((out.status.code(), said))
    }
    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.dir.join("daemon.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(2).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }
}

/// The device process of emulated GPUs that a daemon started. It outlives the daemon, so that somebody has to end it.
pub(crate) struct Device {
    socket: PathBuf,
}

impl Device {
    /// The one that serves this folder, whenever it is started.
    pub(crate) fn in_folder(dir: &Path) -> Self {
        Self {
            socket: evenkeel_gpu::socket_path(dir, 0),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // It says itself which process it is; nobody serves the socket if there is none.
        let Ok(info) = evenkeel_gpu::Admin::connect(&self.socket).and_then(|admin| admin.gpu())
        else {
            return;
        };
        if let Ok(pid) = i32::try_from(info.device_pid) {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A pool that exists only in the ledger: for speed and for crowds.
pub(crate) const SYNTHETIC: &str = evenkeel_bench::peers::POOL;
