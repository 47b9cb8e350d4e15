//! Who is at the other end of a connection, from the kernel and never from a message.

use std::fs;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

/// A process, as the kernel named it when it connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// 0 if it lives in another pid namespace.
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// Field 22 of /proc/PID/stat: tells it from a later process with the same pid. 0 if unreadable.
    pub(super) start_time: u64,
}

impl Peer {
    pub(super) fn of(socket: impl AsFd) -> Result<Self, Errno> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        let pid = u32::try_from(credentials.pid()).unwrap_or(0);
        Ok(Self {
            pid,
            uid: credentials.uid(),
            start_time: start_time(pid).unwrap_or(0),
        })
    }

    /// The device's own user and root may.
    pub(super) fn may_administrate(uid: u32) -> bool {
        uid == 0 || uid == geteuid().as_raw()
    }
}

fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold blanks and parentheses: count the fields behind its last one.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_a_start_time() {
        assert!(super::start_time(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(super::start_time(0), None);
    }
}
