//! Where the demo takes place: a temporary directory, the emulated GPU's device process in it, and a real daemon when
//! one is wanted. Everything ends, and the directory goes, when this is dropped.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_client::{Address, ClientConfig, blocking};
use evenkeel_gpu::device::{DeviceConfig, serve};
use evenkeel_gpu::{Admin, GpuSpec, socket_path};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::DemoError;
use super::fleet::Site;

/// How long the device or the daemon may take to answer.
const UP_WITHIN: Duration = Duration::from_secs(20);
/// How long the daemon may take to end; it promises 10 s.
const DOWN_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// Bytes of a log that are shown when something went wrong.
const LOG_TAIL: u64 = 2_000;

/// A directory, a device, and perhaps a daemon.
pub(crate) struct Place {
    dir: TempDir,
    program: PathBuf,
    device: Process,
    daemon: Option<Process>,
    stop: Arc<AtomicBool>,
}

/// A process that ends with its owner.
struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts this program's hidden command that ends with us and becomes (or serves as) `what`.
    fn start(
        name: &'static str,
        program: &Path,
        arguments: &[&str],
        dir: &Path,
    ) -> Result<Self, DemoError> {
        let log = dir.join(format!("{name}.log"));
        let file = |path: &Path| {
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|source| DemoError::File {
                    path: path.to_owned(),
                    source,
                })
        };
        let mut command = Command::new(program);
        command
            .args(["demo"])
            .args(arguments)
            // Ctrl-C is for the demo, which then ends what it started.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file(&log)?)
            .stderr(file(&log)?);
        let child = command.spawn().map_err(|source| DemoError::Spawn {
            program: program.to_owned(),
            source,
        })?;
        Ok(Self { name, child, log })
    }

    /// Waits until `up` says so.
    fn wait_for(
        &mut self,
        stop: &AtomicBool,
        mut up: impl FnMut() -> bool,
    ) -> Result<(), DemoError> {
        let deadline = Instant::now() + UP_WITHIN;
        while !up() {
            if stop.load(Ordering::SeqCst) {
                return Err(DemoError::Interrupted);
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let why = ended.map_or_else(
                    || format!("it did not answer within {} s", UP_WITHIN.as_secs()),
                    |status| format!("it ended with {status}"),
                );
                let log = tail(&self.log);
                return Err(DemoError::NotUp {
                    process: self.name,
                    why,
                    log,
                });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// SIGTERM, then SIGKILL for one that does not end.
    fn end(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()) else {
            return;
        };
        if matches!(self.child.try_wait(), Ok(None)) {
            // It may have ended by itself just now; as long as it is not waited for, the pid is its own.
            kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
        }
        let deadline = Instant::now() + DOWN_WITHIN;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(POLL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

impl Place {
    /// Makes the directory and starts the device: one emulated H100.
    pub(crate) fn open(stop: Arc<AtomicBool>) -> Result<Self, DemoError> {
        let root = std::env::temp_dir();
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-demo-")
            .tempdir_in(&root)
            .map_err(|source| DemoError::File { path: root, source })?;
        let program = std::env::current_exe().map_err(DemoError::OwnPath)?;
        let gpus = dir.path().join("gpu");
        let mut device = Process::start(
            "device",
            &program,
            &["device", &gpus.to_string_lossy()],
            dir.path(),
        )?;
        let socket = socket_path(&gpus, 0);
        device.wait_for(&stop, || Admin::connect(&socket).is_ok())?;
        Ok(Self {
            dir,
            program,
            device,
            daemon: None,
            stop,
        })
    }

    /// Where the emulated GPU listens.
    pub(crate) fn gpu(&self) -> PathBuf {
        socket_path(&self.dir.path().join("gpu"), 0)
    }

    /// What fleets need.
    pub(crate) fn site(&self, seed: u64) -> Site {
        Site {
            program: self.program.clone(),
            dir: self.dir.path().to_owned(),
            gpu: self.gpu(),
            seed,
            stop: Arc::clone(&self.stop),
        }
    }

    /// Where the daemon listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("evenkeeld.sock")
    }

    /// Starts the daemon with a ledger of its own and waits until it answers.
    pub(crate) fn start_daemon(&mut self) -> Result<blocking::Client, DemoError> {
        let program = daemon_program(&self.program)?;
        let dir = self.dir.path();
        let file = dir.join("evenkeeld.toml");
        fs::write(&file, configuration(dir)).map_err(|source| DemoError::File {
            path: file.clone(),
            source,
        })?;
        let arguments = [
            "become",
            &program.to_string_lossy(),
            "--config",
            &file.to_string_lossy(),
        ];
        let mut daemon = Process::start("evenkeeld", &self.program, &arguments, dir)?;
        let client = blocking::Client::new(
            ClientConfig::new(Address::Unix(self.socket())).deadline(Duration::from_secs(10)),
        )?;
        let quick = blocking::Client::new(
            ClientConfig::new(Address::Unix(self.socket())).deadline(Duration::from_millis(200)),
        )?;
        daemon.wait_for(&self.stop, || quick.node().is_ok())?;
        self.daemon = Some(daemon);
        Ok(client)
    }

    /// Ends the daemon, if one runs; the device goes on.
    pub(crate) fn end_daemon(&mut self) {
        self.daemon = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The daemon before the device: it would report a lost GPU otherwise.
        self.daemon = None;
        self.device.end();
    }
}

fn tail(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_default()
}

/// `evenkeeld` in EVENKEEL_BIN_DIR, else beside this program.
fn daemon_program(own: &Path) -> Result<PathBuf, DemoError> {
    let dir = std::env::var_os("EVENKEEL_BIN_DIR").map(PathBuf::from);
    let dir = dir.or_else(|| own.parent().map(Path::to_owned));
    let program = dir.unwrap_or_default().join("evenkeeld");
    if program.is_file() {
        Ok(program)
    } else {
        Err(DemoError::NoDaemon { program })
    }
}

/// The daemon's configuration: everything in the demo's own directory, no port, the device that runs already.
fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "# Made by `evenkeel demo`; it goes with the directory.\n\
         [ledger]\npath = \"{dir}/ledger.db\"\nballast_mib = 1\nmin_free_mib = 1\n\n\
         [listen]\nsocket = \"{dir}/evenkeeld.sock\"\nsocket_mode = \"0600\"\nrest = \"\"\n\n\
         [leases]\nreconcile_ms = 50\n\n\
         [gpu]\nbackend = \"emulated\"\n\n\
         [gpu.emulated]\ndir = \"{dir}/gpu\"\nmodel = \"h100\"\nstart = false\n"
    )
}

/// The hidden command behind the device process.
pub(crate) fn device(dir: &Path) -> ExitCode {
    let served = set_pdeathsig(Signal::SIGTERM)
        .map_err(|errno| errno.to_string())
        .and_then(|()| {
            let config = DeviceConfig {
                dir: dir.to_owned(),
                gpus: vec![GpuSpec::h100()],
                multiuser: false,
            };
            serve(config, || {}).map_err(|error| error.to_string())
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The hidden command that turns into another program which ends with the demo.
pub(crate) fn turn_into(command: &[String]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        return ExitCode::FAILURE;
    };
    if let Err(errno) = set_pdeathsig(Signal::SIGTERM) {
        tracing::error!(%errno, "cannot tie a process to the demo");
        return ExitCode::FAILURE;
    }
    let error = Command::new(program).args(arguments).exec();
    tracing::error!(%error, "cannot start {program}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("evenkeel");
        match daemon_program(&own) {
            Err(DemoError::NoDaemon { program }) => {
                assert_eq!(program, dir.path().join("evenkeeld"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_configuration_is_toml_and_stays_in_its_directory() {
        let text = configuration(Path::new("/tmp/x"));
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["gpu"]["emulated"]["start"].as_bool(), Some(false));
        assert_eq!(
            table["listen"]["rest"].as_str(),
            Some(""),
            "no port is taken"
        );
        assert!(
            table["ledger"]["path"]
                .as_str()
                .unwrap()
                .starts_with("/tmp/x/")
        );
    }
}
