//! Which process is at the other end of a Unix socket. The kernel says so by its pid, and pids are used again: between the
//! connection and our look the process may have ended, and another may have its pid.
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use tokio::net::UnixStream;
use tokio::net::unix::UCred;

use crate::proc_tree::{self, Process};

/// The process that has connected; none: it has ended, or is not visible here.
pub(super) fn of(stream: &UnixStream, cred: &UCred) -> Option<Process> {
    let pid = u32::try_from(cred.pid()?).ok()?;
    match getsockopt(stream, PeerPidfd) {
        Ok(handle) => {
            let process = proc_tree::status(pid)?.process;
            // It still lives: so nobody else had its pid when that was looked at.
            lives(&handle).then_some(process)
        }
        Err(Errno::ENOPROTOOPT | Errno::ENOSYS | Errno::EPERM) => of_user(pid, cred.uid()),
        Err(_) => None,
    }
}

/// On a kernel before 6.5: at least it is the same user's, who is the same tenant in any case.
fn of_user(pid: u32, uid: u32) -> Option<Process> {
    let process = proc_tree::status(pid)?.process;
    let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    (owner == uid && proc_tree::is_alive(process)).then_some(process)
}

/// A handle of a process can be read from once that has ended (pidfd_open(2)).
fn lives(handle: &impl AsFd) -> bool {
    let mut ended = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::ZERO) == Ok(0)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[tokio::test]
    async fn the_process_at_the_other_end_is_known() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let cred = ours.peer_cred().unwrap();
        let own = proc_tree::status(std::process::id()).map(|s| s.process);
        assert!(own.is_some());
        assert_eq!(of(&ours, &cred), own);
    }

    #[test]
    fn a_process_that_has_ended_or_is_anothers_is_nobody() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let own = nix::unistd::geteuid().as_raw();
        assert!(lives(&handle));
        assert!(of_user(child.id(), own).is_some());
        assert_eq!(of_user(child.id(), own + 1), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!lives(&handle));
        assert_eq!(of_user(child.id(), own), None);
    }
}
