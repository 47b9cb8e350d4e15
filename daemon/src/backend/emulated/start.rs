//! Starts the device process if nobody serves its directory: at the daemon's start, and when it died. It has a session
//! of its own and outlives the daemon: the contexts of workers must not end when the daemon does. Only a start that fails
//! takes the device with it that it has started.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_gpu::socket_path;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::Link;
use crate::config::EmulatedConfig;
use crate::proc_tree::LEASE_MARK;

/// A device is ready within milliseconds; on a loaded machine with a cold disk it may take longer.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// When ours has ended because another one has the directory, that one is ready as soon.
const OTHER_WITHIN: Duration = Duration::from_secs(1);
/// A device that is told to end does so at once; after this it is killed.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks whether it is ready, or has ended.
const READY_POLL: Duration = Duration::from_millis(10);
/// The program that is looked for beside the daemon.
const PROGRAM: &str = "evenkeel-gpu";

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its directory or its log.
    #[error("cannot {what} {} for the emulated GPU; choose another gpu.emulated.dir", .path.display())]
    Path {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program.
    #[error("cannot start {}; install it beside evenkeeld, or set gpu.emulated.program", .program.display())]
    Spawn {
        /// Which program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It ended, or did not answer.
    #[error("the emulated GPU in {} is not ready: {why}; its log is {}", .dir.display(), .log.display())]
    NotReady {
        /// Its directory.
        dir: PathBuf,
        /// Its log.
        log: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// A served directory.
#[derive(Debug)]
pub struct Served {
    /// As an absolute path.
    pub dir: PathBuf,
    /// The device, where this call has started it.
    pub started: Option<Started>,
}

/// A device that this process has started. It goes on when this is dropped.
#[derive(Clone, Debug)]
pub struct Started(Arc<Mutex<Child>>);

impl PartialEq for Started {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Started {}

impl Started {
    /// Of a child, whose exit status is collected when it ends: nobody else would.
    fn new(child: Child) -> Self {
        let pid = pid(&child);
        let device = Self(Arc::new(Mutex::new(child)));
        let ended = device.clone();
        let reaper = std::thread::Builder::new().name("gpu-reaper".into());
        let _ = reaper.spawn(move || {
            // Waits without the lock, which whoever ends it needs, and collects with it.
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let _ = ended.child().wait();
        });
        device
    }

    /// Ends it, and waits until it has ended. Contexts on it end with it.
    pub fn end(&self) {
        // While this is held nobody collects its exit status, so the pid is its own.
        let mut child = self.child();
        let is_gone = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if is_gone(&mut child) {
            return;
        }
        tracing::info!(pid = child.id(), "ending the EMULATED GPU that was started");
        let _ = kill(pid(&child), Signal::SIGTERM);
        let deadline = Instant::now() + END_WITHIN;
        while !is_gone(&mut child) {
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::sleep(READY_POLL);
        }
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Makes sure that somebody serves the directory, if that is wanted.
///
/// # Errors
/// When the device cannot be started, or is not ready in time.
pub fn ensure_served(config: &EmulatedConfig) -> Result<Served, StartError> {
    let at = |what, path: &Path| {
        let path = path.to_owned();
        move |source| StartError::Path { what, path, source }
    };
    let dir = std::path::absolute(&config.dir).map_err(at("find", &config.dir))?;
    let first = socket_path(&dir, 0);
    if !config.start || Link::new(first.clone()).look().is_ok() {
        return Ok(Served { dir, started: None });
    }
    let mode = if config.multiuser { 0o755 } else { 0o700 };
    if !dir.is_dir() {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(mode).create(&dir);
        // A service's umask is stricter than what other users need to come in.
        let made = made.and_then(|()| fs::set_permissions(&dir, Permissions::from_mode(mode)));
        made.map_err(at("create", &dir))?;
    }
    let log = dir.join("device.log");
    let mut open = OpenOptions::new();
    let file = open.create(true).append(true).open(&log);
    let file = file.map_err(at("open", &log))?;
    let copy = file.try_clone().map_err(at("open", &log))?;

    let program = program(config);
    let mut command = command(config, &program, &dir);
    command.stdin(Stdio::null()).stdout(file).stderr(copy);
    in_session_of_its_own(&mut command);
    let mut child = command
        .spawn()
        .map_err(|source| StartError::Spawn { program, source })?;
    tracing::info!(pid = child.id(), dir = %dir.display(), model = %config.model, "started an EMULATED GPU");
    let ready = await_ready(&first, &mut child);
    let started = Some(Started::new(child));
    match ready {
        Ok(()) => Ok(Served { dir, started }),
        Err(why) => Err(StartError::NotReady { dir, log, why }),
    }
}

fn command(config: &EmulatedConfig, program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("serve")
        .arg("--dir")
        .arg(dir)
        .args(["--gpu", &config.model])
        .args(["--count", &config.count.to_string()])
        // It belongs to no lease, whatever started the daemon, and keeps no directory busy. What the service manager
        // waits for is the daemon's to say.
        .env_remove(LEASE_MARK)
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_PID")
        .env_remove("WATCHDOG_USEC")
        .current_dir("/");
    if config.sms > 0 {
        command.args(["--sms", &config.sms.to_string()]);
    }
    if config.multiuser {
        command.arg("--multiuser");
    }
    command
}

/// Waits until the socket is served: by the child, or by a device that another daemon started at the same time.
fn await_ready(socket: &Path, child: &mut Child) -> Result<(), String> {
    let mut link = Link::new(socket.to_owned());
    let mut deadline = Instant::now() + READY_WITHIN;
    let mut ended = None;
    loop {
        let why = match link.look() {
            Ok(_) => return Ok(()),
            Err(error) => error.to_string(),
        };
        if ended.is_none() {
            ended = child.try_wait().ok().flatten();
            if ended.is_some() {
                deadline = deadline.min(Instant::now() + OTHER_WITHIN);
            }
        }
        if Instant::now() > deadline {
            return Err(ended.map_or(why, |status| format!("it ended with {status}")));
        }
        std::thread::sleep(READY_POLL);
    }
}

/// As set; else beside the daemon's own program; else from PATH.
fn program(config: &EmulatedConfig) -> PathBuf {
    if !config.program.is_empty() {
        let given = PathBuf::from(&config.program);
        // A path is meant from here, and the device starts elsewhere; a bare name is looked up in PATH.
        return match config.program.contains('/') {
            true => std::path::absolute(&given).unwrap_or(given),
            false => given,
        };
    }
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PROGRAM.into())
}

#[allow(
    unsafe_code,
    reason = "a session of its own, and fewer rights, take calls between fork and exec"
)]
fn in_session_of_its_own(command: &mut Command) {
    // SAFETY: setsid(2) and prctl(2) are async-signal-safe, allocate nothing and touch no memory of ours. The first
    // cannot fail here: a process that was just forked leads no group.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            // What a service manager lets the daemon do to other users' processes (`AmbientCapabilities=`) is not for a
            // device that other users talk to. Fails only on a kernel that knows no such rights.
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_CLEAR_ALL,
                0,
                0,
                0,
            );
            Ok(())
        });
    }
}
