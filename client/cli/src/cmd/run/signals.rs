//! The signals that are passed on to the command.
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::fail::{Doing as _, Failure};

/// What a worker may be told by signals. SIGCHLD is ours: the command was stopped, or goes on.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// The signals that this process gets, from now on.
pub(super) struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let (send, receive) = mpsc::channel(16);
        for kind in PASSED_ON.into_iter().chain([Signal::SIGCHLD]) {
            let mut stream =
                signal(SignalKind::from_raw(kind as i32)).doing("listen for signals")?;
            let send = send.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if send.send(kind).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self(receive))
    }

    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // The listeners live as long as the runtime.
            None => std::future::pending().await,
        }
    }
}
