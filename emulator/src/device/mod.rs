//! The device process: it drives one model per GPU by the wall clock and serves each on a Unix socket. One thread,
//! one epoll loop, an absolute timer, no spinning. It outlives whoever started it, until SIGTERM or SIGINT.

mod gpu;
mod peer;
mod server;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::limits::MAX_GPUS;
use crate::spec::{GpuSpec, SpecError};

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The directory of the sockets, `gpu0.sock` and so on; created if it does not exist.
    pub dir: PathBuf,
    /// The GPUs, by index.
    pub gpus: Vec<GpuSpec>,
    /// Whether processes of other users may create contexts (as `nvidia-cuda-mps-control -multiuser-server`).
    pub multiuser: bool,
}

/// Why a device does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A GPU that is none.
    #[error("cannot emulate the GPU")]
    Spec(#[from] SpecError),
    /// No GPUs or too many.
    #[error("cannot serve {0} GPUs: from 1 to {MAX_GPUS} are possible")]
    Count(usize),
    /// Another device has the directory.
    #[error("another emulated device serves {}: stop it, or choose another directory", .0.display())]
    Locked(PathBuf),
    /// A file or socket.
    #[error("cannot {what} {}", .path.display())]
    Path {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The loop's own descriptors.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Serves until SIGTERM or SIGINT, which it takes over for the calling thread; call it from a process's only thread.
/// `ready` is called once every socket accepts connections.
///
/// # Errors
/// When the GPUs are not valid, the directory is taken or unusable, or the system refuses a descriptor.
pub fn serve(config: DeviceConfig, ready: impl FnOnce()) -> Result<(), DeviceError> {
    if config.gpus.is_empty() || config.gpus.len() > MAX_GPUS {
        return Err(DeviceError::Count(config.gpus.len()));
    }
    for spec in &config.gpus {
        spec.validate()?;
    }
    let mode = if config.multiuser { 0o755 } else { 0o700 };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(&config.dir)
        .map_err(|source| at("create the directory", &config.dir, source))?;
    let _lock = lock(&config.dir)?;
    remove_sockets(&config.dir)?;
    let result = server::run(&config, ready);
    // Nobody should find a socket that nobody serves; the lock's file stays, removing it would race.
    remove_sockets(&config.dir)?;
    result
}

fn at(what: &'static str, path: &Path, source: io::Error) -> DeviceError {
    DeviceError::Path {
        what,
        path: path.to_owned(),
        source,
    }
}

fn lock(dir: &Path) -> Result<Flock<File>, DeviceError> {
    let path = dir.join("device.lock");
    let open = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path);
    let file = open.map_err(|source| at("open the lock", &path, source))?;
    let mut lock =
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            nix::errno::Errno::EAGAIN => DeviceError::Locked(dir.to_owned()),
            other => at("lock", &path, other.into()),
        })?;
    let write = lock
        .set_len(0)
        .and_then(|()| writeln!(lock, "{}", std::process::id()));
    write.map_err(|source| at("write", &path, source))?;
    Ok(lock)
}

/// The sockets of this or of a former device in the directory.
fn remove_sockets(dir: &Path) -> Result<(), DeviceError> {
    for index in 0..MAX_GPUS {
        let path = crate::socket::socket_path(dir, index);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(at("remove the socket", &path, source));
            }
            _ => {}
        }
    }
    Ok(())
}
