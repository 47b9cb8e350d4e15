//! The administrator's connection to one emulated GPU, with a limit on how long an answer may take: a device that is
//! stopped must not stop the daemon. Used by the backend and by discovery.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

use evenkeel_gpu::wire::{ClientInfo, GpuInfo};
use evenkeel_gpu::{Admin, ClientError, ClientId};

/// A device answers in well under a millisecond; on a machine with hogged cores stalls of 10 ms were measured.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Why a device did not do as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody serves the socket, so nothing runs on the GPU.
    #[error("nobody serves {}; start it with `evenkeel-gpu serve`", .0.display())]
    Absent(PathBuf),
    /// Nothing is known.
    #[error("the device at {} did not answer within {ANSWER_WITHIN:?}; is it stopped?", .0.display())]
    Silent(PathBuf),
    /// It answered, or the system did.
    #[error("{0}")]
    Refused(#[from] ClientError),
}

impl LinkError {
    /// Whether there is no device, and so no context.
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}

/// What is asked of the thread that owns the connection.
enum Request {
    Look(SyncSender<Result<(GpuInfo, Vec<ClientInfo>), LinkError>>),
    Terminate(ClientId, SyncSender<Result<(), LinkError>>),
}

/// A connection with a thread of its own, which may hang while we do not.
#[derive(Debug)]
pub struct Link {
    socket: PathBuf,
    requests: Option<SyncSender<Request>>,
}

impl Link {
    /// Connects with the first question.
    pub const fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            requests: None,
        }
    }

    /// What the GPU is, and its contexts.
    ///
    /// # Errors
    /// When nobody serves it, it does not answer in time, or it refuses.
    pub fn look(&mut self) -> Result<(GpuInfo, Vec<ClientInfo>), LinkError> {
        self.ask(Request::Look)?
    }

    /// Ends a context.
    ///
    /// # Errors
    /// As [`Link::look`]; and when there is no such context.
    pub fn terminate(&mut self, client: ClientId) -> Result<(), LinkError> {
        self.ask(|answer| Request::Terminate(client, answer))?
    }

    fn ask<T>(&mut self, request: impl FnOnce(SyncSender<T>) -> Request) -> Result<T, LinkError> {
        // A thread that still hangs in an earlier question takes no second one.
        let (answer, answers) = mpsc::sync_channel(1);
        let silent = || LinkError::Silent(self.socket.clone());
        let requests = match &self.requests {
            Some(requests) => requests.clone(),
            None => start(&self.socket)?,
        };
        self.requests = Some(requests.clone());
        match requests.try_send(request(answer)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(silent()),
            Err(TrySendError::Disconnected(_)) => {
                self.requests = None;
                return Err(silent());
            }
        }
        answers.recv_timeout(ANSWER_WITHIN).map_err(|_| silent())
    }
}

fn start(socket: &Path) -> Result<SyncSender<Request>, LinkError> {
    let (requests, asked) = mpsc::sync_channel(1);
    let own = socket.to_owned();
    std::thread::Builder::new()
        .name("gpu-admin".into())
        .spawn(move || serve(&own, &asked))
        .map_err(|_| LinkError::Silent(socket.to_owned()))?;
    Ok(requests)
}

/// Ends when the [`Link`] is dropped.
fn serve(socket: &Path, asked: &Receiver<Request>) {
    let mut admin = None;
    while let Ok(request) = asked.recv() {
        // Whoever asked may have given up; then nobody listens to the answer, and that is all right.
        match request {
            Request::Look(answer) => {
                let look = |admin: &Admin| Ok((admin.gpu()?, admin.list()?));
                let _ = answer.try_send(with(&mut admin, socket, look));
            }
            Request::Terminate(client, answer) => {
                let _ = answer.try_send(with(&mut admin, socket, |a| a.terminate(client)));
            }
        }
    }
}

/// Asks over the connection that there is; if the device has hung up, once more over a new one.
fn with<T>(
    admin: &mut Option<Admin>,
    socket: &Path,
    ask: impl Fn(&Admin) -> Result<T, ClientError>,
) -> Result<T, LinkError> {
    if let Some(connected) = admin.as_ref() {
        match ask(connected) {
            Err(ClientError::HungUp | ClientError::Ended { .. }) => *admin = None,
            other => return Ok(other?),
        }
    }
    match Admin::connect(socket) {
        Ok(connected) => Ok(ask(admin.insert(connected))?),
        Err(_) if is_absent(socket) => Err(LinkError::Absent(socket.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// Whether nobody listens at the socket: the kernel says so before it minds the kind of socket.
fn is_absent(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => false,
        Err(error) => matches!(
            error.kind(),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused
        ),
    }
}
