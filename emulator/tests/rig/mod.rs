//! A real device process in a temporary directory, and how to wait for what it does.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_gpu::socket_path;
use tempfile::TempDir;

/// Far beyond anything that a test waits for.
const HANG: Duration = Duration::from_secs(30);

/// Waits until `probe` gives something.
pub(crate) fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < HANG, "waited {HANG:?} until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-gpu"));
    command
        .env("EVENKEEL_LOG", "warn")
        .env_remove("RUST_BACKTRACE");
    command
}

/// Starts `evenkeel-gpu serve` without waiting for it.
pub(crate) fn serve(dir: &Path, arguments: &[&str]) -> Child {
    let mut command = program();
    command
        .args(["serve", "--gpu", "h100", "--dir"])
        .arg(dir)
        .args(arguments);
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// A device; its process and directory go with it.
pub(crate) struct Device {
    process: Child,
    dir: TempDir,
}

impl Device {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let dir = TempDir::new().expect("a directory");
        let process = ready(dir.path(), arguments);
        Self { process, dir }
    }

    pub(crate) fn restart(&mut self) {
        self.process = ready(self.dir.path(), &[]);
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn socket(&self, index: usize) -> PathBuf {
        socket_path(self.dir.path(), index)
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("kills");
        self.process.wait().expect("reaped");
    }

    /// Sends SIGTERM and waits for a clean exit.
    pub(crate) fn terminate(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.process.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signals");
        assert!(self.process.wait().expect("reaped").success());
    }

    /// A busy client on GPU 0.
    pub(crate) fn probe(&self, arguments: &[&str]) -> Child {
        let mut command = program();
        command
            .args(["probe", "--dir"])
            .arg(self.dir())
            .args(arguments);
        command.stdout(Stdio::null()).spawn().expect("starts")
    }

    /// A busy client on GPU 0 whose share comes from its environment.
    pub(crate) fn probe_from_env(&self, variables: &[(&str, &str)]) -> Child {
        let mut command = program();
        command
            .args(["probe", "--seconds", "600"])
            .env("EVENKEEL_GPU_SOCKET", self.socket(0));
        command
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ready(dir: &Path, arguments: &[&str]) -> Child {
    let mut process = serve(dir, arguments);
    let mut line = String::new();
    BufReader::new(process.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("reads");
    assert_eq!(line.trim(), format!("ready {}", dir.display()));
    process
}
