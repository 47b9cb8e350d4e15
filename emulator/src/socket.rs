//! SOCK_SEQPACKET Unix sockets: reliable, ordered, one message a datagram, and a hang-up when the other side dies.
//! Only what device and client share; no messages, no state.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, listen, recv,
    send, socket,
};

use crate::limits::MAX_MESSAGE_BYTES;

/// The socket of a GPU in a device's directory: `DIR/gpu0.sock`, `DIR/gpu1.sock`, …
pub fn socket_path(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("gpu{index}.sock"))
}

fn open(flags: SockFlag) -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC | flags,
        None,
    )?)
}

fn address(path: &Path) -> io::Result<UnixAddr> {
    UnixAddr::new(path).map_err(|errno| match errno {
        Errno::ENAMETOOLONG => {
            io::Error::other("a socket's path may have 107 bytes: choose a shorter directory")
        }
        other => other.into(),
    })
}

/// Binds and listens, without blocking; the file gets `mode`.
pub(crate) fn listen_at(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let fd = open(SockFlag::SOCK_NONBLOCK)?;
    bind(fd.as_raw_fd(), &address(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    listen(&fd, Backlog::MAXCONN)?;
    Ok(fd)
}

/// Connects; the socket blocks.
pub(crate) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let fd = open(SockFlag::empty())?;
    connect(fd.as_raw_fd(), &address(path)?)?;
    Ok(fd)
}

/// What was read.
pub(crate) enum Received<'a> {
    /// A whole message.
    Message(&'a [u8]),
    /// A message of this many bytes, more than is allowed; its beginning.
    TooLarge(usize, &'a [u8]),
    /// Nothing now.
    Empty,
    /// The other side is gone.
    HungUp,
}

/// A buffer that holds the largest message.
pub(crate) fn buffer() -> Vec<u8> {
    vec![0; MAX_MESSAGE_BYTES]
}

/// Reads one message, waiting for it if `block`.
pub(crate) fn receive<'a>(
    fd: &OwnedFd,
    buffer: &'a mut [u8],
    block: bool,
) -> io::Result<Received<'a>> {
    let wait = if block {
        MsgFlags::empty()
    } else {
        MsgFlags::MSG_DONTWAIT
    };
    // With MSG_TRUNC the length of the datagram is returned, even where it is longer than the buffer.
    match recv(fd.as_raw_fd(), buffer, wait | MsgFlags::MSG_TRUNC) {
        Ok(0) | Err(Errno::ECONNRESET) => Ok(Received::HungUp),
        Ok(length) if length > buffer.len() => Ok(Received::TooLarge(length, buffer)),
        Ok(length) => Ok(Received::Message(&buffer[..length])),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(Received::Empty),
        Err(error) => Err(error.into()),
    }
}

/// Whether a message was handed to the kernel.
pub(crate) enum Sent {
    /// It was.
    Yes,
    /// Not now: the other side does not read.
    Full,
    /// The other side is gone.
    HungUp,
}

/// Sends one message, waiting for room if `block`.
pub(crate) fn transmit(fd: &OwnedFd, message: &[u8], block: bool) -> io::Result<Sent> {
    let wait = if block {
        MsgFlags::empty()
    } else {
        MsgFlags::MSG_DONTWAIT
    };
    loop {
        match send(fd.as_raw_fd(), message, wait | MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => return Ok(Sent::Yes),
            Err(Errno::EAGAIN | Errno::ENOBUFS) if !block => return Ok(Sent::Full),
            Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => return Ok(Sent::HungUp),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
