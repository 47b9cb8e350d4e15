//! A server of the benchmark: a process in a folder of its own, found by name, started, killed and started again.
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid};

use crate::usage::{Usage, tree};

/// A server that does not serve within this time is broken. Recovery after a crash fits in many times.
pub const START_LIMIT: Duration = Duration::from_secs(60);
/// Killed processes are gone within this time.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Where Debian keeps servers that are not on PATH.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A program: on PATH, in the system's own folders, or in Debian's for PostgreSQL (the newest version). None: it is
/// not installed.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from));
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut versions: Vec<_> = versions.map(|e| e.path()).collect();
    let number = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()?.parse::<u32>().ok());
    versions.sort_by_key(|p| std::cmp::Reverse(number(p)));
    folders.extend(versions.iter().map(|v| v.join("bin")));
    folders.iter().map(|f| f.join(name)).find(|p| p.is_file())
}

/// The first line of what a program says of its version.
pub fn version(program: &Path) -> String {
    let out = Command::new(program).arg("--version").output();
    let said = out.map(|o| o.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().next().unwrap_or("?").trim().to_owned()
}

/// A port of loopback that nobody listens on now.
///
/// # Errors
/// When there is none.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// How to start a program.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Which.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// As whom; none: as this user.
    pub user: Option<(Uid, Gid)>,
}

impl Recipe {
    /// The command, without its streams.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        command
    }
}

/// A process of a server, with its folder. Both are gone when it is dropped.
pub struct Server {
    dir: tempfile::TempDir,
    recipe: Recipe,
    child: Option<Child>,
}

/// A new folder for a server under `base`.
///
/// # Errors
/// When it cannot be made.
pub fn folder(base: &Path, name: &str) -> anyhow::Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new()
        .prefix(&format!("evenkeel-bench-{name}-"))
        .tempdir_in(base)
        .with_context(|| format!("cannot make a folder in {}", base.display()))?;
    // A server that runs as another user has to get in.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

impl Server {
    /// Starts it. Whether it serves is for the caller to find out.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(dir: tempfile::TempDir, recipe: Recipe) -> anyhow::Result<Self> {
        let mut server = Self {
            dir,
            recipe,
            child: None,
        };
        server.spawn()?;
        Ok(server)
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it again, after [`kill`](Self::kill).
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(&mut self) -> anyhow::Result<()> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.path().join("server.log"))?;
        let child = self
            .recipe
            .command()
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.recipe.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// SIGKILL to it and all its processes; returns when none is left.
    ///
    /// # Errors
    /// When one stays.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let pids = tree(child.id());
        for pid in &pids {
            kill(Pid::from_raw(i32::try_from(*pid)?), Signal::SIGKILL).ok();
        }
        child.wait().context("cannot wait for a killed server")?;
        let start = Instant::now();
        while pids.iter().any(|pid| is_alive(*pid)) {
            if start.elapsed() > END_LIMIT {
                bail!("{} outlives SIGKILL", self.recipe.program.display());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// What it takes of the machine.
    pub fn usage(&self) -> Usage {
        self.child
            .as_ref()
            .map_or_else(Usage::default, |c| Usage::of(c.id()))
    }

    /// Its process; 0 while it is down.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Fails if it has ended by itself, with the end of its log.
    ///
    /// # Errors
    /// As said.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let ended = match &mut self.child {
            Some(child) => child.try_wait()?,
            None => bail!("the server is down"),
        };
        match ended {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended ({status}): {}",
                self.recipe.program.display(),
                self.log_tail()
            ),
        }
    }

    /// The end of its log, in one line.
    pub fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }
}

/// Zombies are not: their parent, gone itself, has only not asked yet.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|s| !s.starts_with(['Z', 'X']))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill().ok();
    }
}
