//! The device's loop: epoll over the listeners, the connections, one timer and the signals. It reads the clock and
//! moves bytes; what they mean is `gpu`'s business.
//!
//! A slow reader never blocks it: replies that do not fit wait in the connection's backlog, and while there is one no
//! request of that connection is read, so that the backlog stays as small as what was asked before.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::prctl::set_timerslack;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{SockFlag, accept4};
use nix::sys::time::TimeSpec;
use nix::sys::timer::TimerSetTimeFlags;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags};

use super::gpu::{Gpu, Token};
use super::peer::Peer;
use super::{DeviceConfig, DeviceError, at};
use crate::clock::boottime_ns;
use crate::limits::{MAX_CONNECTIONS, READ_BUDGET};
use crate::socket::{Received, Sent, buffer, listen_at, receive, socket_path, transmit};
use crate::wire::{ErrorCode, Reply, WireError, decode_request, encode_reply, peek_seq};

const SIGNALS: Token = 0;
const TIMER: Token = 1;
/// Listeners are numbered from here, connections from [`FIRST_CONNECTION`].
const FIRST_LISTENER: Token = 2;
const FIRST_CONNECTION: Token = 1_000;

struct Server {
    epoll: Epoll,
    timer: TimerFd,
    signals: SignalFd,
    epoch_ns: u64,
    gpus: Vec<Gpu>,
    listeners: Vec<OwnedFd>,
    connections: BTreeMap<Token, Connection>,
    next_token: Token,
    buffer: Vec<u8>,
    multiuser: bool,
    /// Listeners that wait, unwatched, until a descriptor is free again.
    paused: Vec<usize>,
}

struct Connection {
    socket: OwnedFd,
    gpu: usize,
    backlog: VecDeque<Vec<u8>>,
    /// Whether it waits to be written, rather than read.
    writing: bool,
}

pub(super) fn run(config: &DeviceConfig, ready: impl FnOnce()) -> Result<(), DeviceError> {
    let mut server =
        Server::new(config).map_err(|(what, source)| DeviceError::System { what, source })?;
    server.listen(config)?;
    ready();
    server.serve().map_err(|source| DeviceError::System {
        what: "go on serving",
        source,
    })
}

type Failure = (&'static str, io::Error);

fn failed(what: &'static str) -> impl FnOnce(Errno) -> Failure {
    move |errno| (what, errno.into())
}

impl Server {
    fn new(config: &DeviceConfig) -> Result<Self, Failure> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.add(Signal::SIGINT);
        mask.thread_block().map_err(failed("block signals"))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map_err(failed("create a signalfd"))?;
        // The kernel may put off timers by 50 µs otherwise.
        set_timerslack(1).map_err(failed("set the timer slack"))?;
        let timer = TimerFd::new(
            ClockId::CLOCK_BOOTTIME,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )
        .map_err(failed("create a timerfd"))?;
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("create an epoll"))?;
        let readable = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        epoll
            .add(&signals, readable(SIGNALS))
            .map_err(failed("watch signals"))?;
        epoll
            .add(timer.as_fd(), readable(TIMER))
            .map_err(failed("watch the timer"))?;
        let epoch_ns = boottime_ns().map_err(failed("read CLOCK_BOOTTIME"))?;
        let gpus = config
            .gpus
            .iter()
            .zip(0..)
            .map(|(spec, index)| Gpu::new(index, epoch_ns, spec.clone()));
        Ok(Self {
            epoll,
            timer,
            signals,
            epoch_ns,
            gpus: gpus.collect(),
            listeners: Vec::new(),
            connections: BTreeMap::new(),
            next_token: FIRST_CONNECTION,
            buffer: buffer(),
            multiuser: config.multiuser,
            paused: Vec::new(),
        })
    }

    fn listen(&mut self, config: &DeviceConfig) -> Result<(), DeviceError> {
        let mode = if config.multiuser { 0o666 } else { 0o600 };
        for index in 0..config.gpus.len() {
            let path = socket_path(&config.dir, index);
            let listener =
                listen_at(&path, mode).map_err(|source| at("listen on", &path, source))?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, FIRST_LISTENER + index as Token);
            self.epoll
                .add(&listener, event)
                .map_err(|errno| at("watch", &path, errno.into()))?;
            self.listeners.push(listener);
        }
        Ok(())
    }

    fn now(&self) -> io::Result<u64> {
        Ok(boottime_ns()?.saturating_sub(self.epoch_ns))
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(errno.into()),
            };
            // Requests before the model: a submission from before this wake-up is placed where it belongs.
            for event in &events[..count] {
                match event.data() {
                    SIGNALS => {
                        if self.signals.read_signal()?.is_some() {
                            return Ok(());
                        }
                    }
                    // Reads the expiration away; that it expired is all there is to know.
                    TIMER => drop(self.timer.wait()),
                    listener if listener < FIRST_CONNECTION => {
                        self.accept((listener - FIRST_LISTENER) as usize)?
                    }
                    token => self.ready(token, event.events())?,
                }
            }
            self.advance()?;
        }
    }

    fn advance(&mut self) -> io::Result<()> {
        let now = self.now()?;
        for gpu in &mut self.gpus {
            gpu.advance(now);
        }
        self.deliver()?;
        match self.gpus.iter().filter_map(Gpu::next).min() {
            Some(next) => {
                let at = TimeSpec::from_duration(std::time::Duration::from_nanos(
                    self.epoch_ns.saturating_add(next),
                ));
                self.timer.set(
                    Expiration::OneShot(at),
                    TimerSetTimeFlags::TFD_TIMER_ABSTIME,
                )?;
            }
            None => self.timer.unset()?,
        }
        Ok(())
    }

    fn accept(&mut self, gpu: usize) -> io::Result<()> {
        let Some(listener) = self.listeners.get(gpu) else {
            return Ok(());
        };
        let socket = match accept4(listener, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::EMFILE | Errno::ENFILE) => {
                tracing::warn!(
                    gpu,
                    "out of descriptors: new connections wait until one closes"
                );
                self.epoll.delete(listener)?;
                self.paused.push(gpu);
                return Ok(());
            }
            // Gone again before it was accepted.
            Err(_) => return Ok(()),
        };
        let Ok(peer) = Peer::of(&socket) else {
            return Ok(());
        };
        let refusal = if self.gpus[gpu].seats() >= MAX_CONNECTIONS {
            Some((
                ErrorCode::Limit,
                format!("the emulated GPU has {MAX_CONNECTIONS} connections already: close some"),
            ))
        } else if !self.multiuser && !Peer::may_administrate(peer.uid) {
            let message = "this emulated GPU serves one user: start it with --multiuser, or connect as that user";
            Some((ErrorCode::Forbidden, message.to_owned()))
        } else {
            None
        };
        if let Some((code, message)) = refusal {
            // Best effort: the connection closes either way.
            let _ = transmit(
                &socket,
                &encode_reply(0, &Reply::Ended { code, message }),
                false,
            );
            return Ok(());
        }
        let token = self.next_token;
        self.next_token += 1;
        if self
            .epoll
            .add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, token))
            .is_err()
        {
            return Ok(()); // the user's watches are used up; the peer sees a hang-up
        }
        self.gpus[gpu].sit(token, peer);
        self.connections.insert(
            token,
            Connection {
                socket,
                gpu,
                backlog: VecDeque::new(),
                writing: false,
            },
        );
        Ok(())
    }

    fn ready(&mut self, token: Token, events: EpollFlags) -> io::Result<()> {
        if events.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            return self.close(token);
        }
        if events.contains(EpollFlags::EPOLLOUT) {
            self.flush(token)?;
        }
        if events.contains(EpollFlags::EPOLLIN) {
            self.read(token)?;
        }
        Ok(())
    }

    fn read(&mut self, token: Token) -> io::Result<()> {
        for _ in 0..READ_BUDGET {
            let now = self.now()?;
            let Some(connection) = self.connections.get(&token) else {
                return Ok(());
            };
            if !connection.backlog.is_empty() {
                return Ok(());
            }
            let gpu = &mut self.gpus[connection.gpu];
            let decoded = match receive(&connection.socket, &mut self.buffer, false) {
                Ok(Received::Message(bytes)) => {
                    decode_request(bytes).map_err(|error| (peek_seq(bytes), error))
                }
                Ok(Received::TooLarge(length, bytes)) => {
                    Err((peek_seq(bytes), WireError::TooLarge(length)))
                }
                Ok(Received::Empty) => return Ok(()),
                Ok(Received::HungUp) | Err(_) => return self.close(token),
            };
            match decoded {
                Ok((seq, request)) => {
                    gpu.request(now, token, seq, request);
                    self.deliver()?;
                }
                Err((seq, error)) => {
                    let reply = Reply::Error {
                        code: ErrorCode::BadRequest,
                        message: error.to_string(),
                    };
                    self.post(token, seq, &reply)?;
                }
            }
        }
        Ok(())
    }

    /// Sends what the GPUs have to say.
    fn deliver(&mut self) -> io::Result<()> {
        for index in 0..self.gpus.len() {
            for (token, seq, reply) in self.gpus[index].take_outbox() {
                self.post(token, seq, &reply)?;
            }
        }
        Ok(())
    }

    fn post(&mut self, token: Token, seq: u64, reply: &Reply) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        let first = connection.backlog.is_empty();
        connection.backlog.push_back(encode_reply(seq, reply));
        // Behind others it waits for EPOLLOUT like them.
        if first { self.flush(token) } else { Ok(()) }
    }

    fn flush(&mut self, token: Token) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        while let Some(message) = connection.backlog.front() {
            match transmit(&connection.socket, message, false) {
                Ok(Sent::Yes) => drop(connection.backlog.pop_front()),
                Ok(Sent::Full) => break,
                Ok(Sent::HungUp) | Err(_) => return self.close(token),
            }
        }
        // A connection is either read or written, never both: see the head of this file.
        let writing = !connection.backlog.is_empty();
        if writing != connection.writing {
            connection.writing = writing;
            let interest = if writing {
                EpollFlags::EPOLLOUT
            } else {
                EpollFlags::EPOLLIN
            };
            self.epoll
                .modify(&connection.socket, &mut EpollEvent::new(interest, token))?;
        }
        Ok(())
    }

    fn close(&mut self, token: Token) -> io::Result<()> {
        let now = self.now()?;
        if let Some(connection) = self.connections.remove(&token) {
            self.epoll.delete(&connection.socket)?;
            self.gpus[connection.gpu].leave(now, token);
            drop(connection);
            for gpu in self.paused.drain(..) {
                let event = EpollEvent::new(EpollFlags::EPOLLIN, FIRST_LISTENER + gpu as Token);
                self.epoll.add(&self.listeners[gpu], event)?;
            }
        }
        Ok(())
    }
}
