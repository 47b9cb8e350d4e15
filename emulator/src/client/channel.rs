//! One connection to a device, shared by threads: requests go out as they come, and whoever waits for a reply reads
//! for all. At most one thread reads at a time; the others sleep until it has brought something.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::ClientError;
use crate::socket::{Received, Sent, buffer, connect_to, receive, transmit};
use crate::wire::{Reply, Request, decode_reply, encode_request};

#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    next_seq: AtomicU64,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State {
    /// Replies that nobody has taken yet, by the request's number.
    replies: BTreeMap<u64, Reply>,
    /// Why there will be no more replies.
    end: Option<ClientError>,
    /// The reader's buffer; `None` while a thread reads.
    buffer: Option<Vec<u8>>,
}

impl Channel {
    pub(super) fn open(path: &Path) -> Result<Self, ClientError> {
        let socket = connect_to(path).map_err(|error| ClientError::Connect {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let state = State {
            replies: BTreeMap::new(),
            end: None,
            buffer: Some(buffer()),
        };
        Ok(Self {
            socket,
            next_seq: AtomicU64::new(1),
            state: Mutex::new(state),
            arrived: Condvar::new(),
        })
    }

    /// Sends a request and returns its number.
    pub(super) fn send(&self, request: &Request) -> Result<u64, ClientError> {
        // Takes in what has arrived: the device stops reading from those who do not read.
        self.take_in()?;
        let seq = self.next_seq.fetch_add(1, Ordering::Relaxed);
        match transmit(&self.socket, &encode_request(seq, request), true) {
            Ok(Sent::Yes) => Ok(seq),
            // Its last words may say why.
            Ok(_) => Err(self.take_in().err().unwrap_or(ClientError::HungUp)),
            Err(error) => Err(system("send to the emulated GPU", &error)),
        }
    }

    pub(super) fn call(&self, request: &Request) -> Result<Reply, ClientError> {
        let seq = self.send(request)?;
        self.wait(seq)
    }

    pub(super) fn call_ok(&self, request: &Request) -> Result<(), ClientError> {
        match self.call(request)? {
            Reply::Ok => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    pub(super) fn wait(&self, seq: u64) -> Result<Reply, ClientError> {
        self.wait_for(seq, None)?.ok_or(ClientError::Unexpected)
    }

    /// Waits for the reply to a request; `None` only after `timeout`.
    pub(super) fn wait_for(
        &self,
        seq: u64,
        timeout: Option<Duration>,
    ) -> Result<Option<Reply>, ClientError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        loop {
            match state.replies.remove(&seq) {
                Some(Reply::Error { code, message }) => {
                    return Err(ClientError::Refused { code, message });
                }
                Some(reply) => return Ok(Some(reply)),
                None => {}
            }
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            state = match state.buffer.take() {
                Some(buffer) => self.read(state, buffer, left),
                None => self.sleep(state, left),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; what it guards is whole at every moment anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(
        &self,
        state: MutexGuard<'a, State>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match left {
            Some(left) => {
                self.arrived
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => self
                .arrived
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Reads one message for everyone, without the lock, and puts it where its owner finds it.
    fn read<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut buffer: Vec<u8>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        drop(state);
        let outcome = self
            .readable(left)
            .and_then(|()| receive_reply(&self.socket, &mut buffer));
        let mut state = self.lock();
        state.buffer = Some(buffer);
        state.settle(outcome);
        self.arrived.notify_all();
        state
    }

    /// Takes in what has arrived, unless another thread is reading already.
    fn take_in(&self) -> Result<(), ClientError> {
        let mut state = self.lock();
        if let Some(mut buffer) = state.buffer.take() {
            while state.end.is_none() {
                match receive_reply(&self.socket, &mut buffer) {
                    Ok(None) => break,
                    outcome => state.settle(outcome),
                }
            }
            state.buffer = Some(buffer);
            self.arrived.notify_all();
        }
        state.end.clone().map_or(Ok(()), Err)
    }

    /// Waits until there is something to read, or `left` has passed.
    fn readable(&self, left: Option<Duration>) -> Result<(), ClientError> {
        // Rounded up, so that it does not spin through the last millisecond.
        let millis = left.map(|left| left.as_millis().saturating_add(1));
        let timeout = match millis {
            Some(millis) => PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(system("wait for the emulated GPU", &errno.into())),
        }
    }
}

impl State {
    fn settle(&mut self, outcome: Result<Option<(u64, Reply)>, ClientError>) {
        match outcome {
            Ok(None) => {}
            Ok(Some((_, Reply::Ended { code, message }))) => {
                self.end = Some(ClientError::Ended { code, message })
            }
            Ok(Some((seq, reply))) => drop(self.replies.insert(seq, reply)),
            Err(error) => self.end = Some(error),
        }
    }
}

fn receive_reply(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<(u64, Reply)>, ClientError> {
    match receive(socket, buffer, false) {
        Ok(Received::Message(bytes)) => Ok(Some(decode_reply(bytes)?)),
        Ok(Received::TooLarge(length, _)) => Err(crate::wire::WireError::TooLarge(length).into()),
        Ok(Received::Empty) => Ok(None),
        Ok(Received::HungUp) => Err(ClientError::HungUp),
        Err(error) => Err(system("receive from the emulated GPU", &error)),
    }
}

fn system(what: &'static str, error: &io::Error) -> ClientError {
    ClientError::System {
        what,
        reason: error.to_string(),
    }
}
