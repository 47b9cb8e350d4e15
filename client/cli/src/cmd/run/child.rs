//! The command as a process: in a group of its own, on the lease's cores, gone when we are gone.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use evenkeel_client::{CpuList, Lease};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, killpg, raise};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgrp, getpid, getppid, tcgetpgrp, tcsetpgrp};

use crate::fail::Failure;

/// The command, running.
pub(super) struct Child {
    inner: tokio::process::Child,
    group: Pid,
    has_terminal: bool,
}

impl Child {
    /// Starts it. It inherits this thread's affinity.
    pub(super) fn start(
        command: &[OsString],
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
        let [program, arguments @ ..] = command else {
            return Err(Failure::usage("there is no command to run"));
        };
        let has_terminal = owns_terminal();
        let mut builder = tokio::process::Command::new(program);
        builder.args(arguments).envs(environment).process_group(0);
        let parent = getpid();
        // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid,
        // pthread_sigmask, ioctl (tcsetpgrp); no allocation, no lock.
        #[allow(unsafe_code, reason = "the only way to run code between fork and exec")]
        unsafe {
            builder.pre_exec(move || before_exec(parent, has_terminal));
        }
        let inner = builder.spawn().map_err(|error| cannot(program, &error))?;
        let id = inner.id().and_then(|id| i32::try_from(id).ok());
        let group = Pid::from_raw(id.ok_or_else(|| Failure::new("the command has no process id"))?);
        let child = Self {
            inner,
            group,
            has_terminal,
        };
        // Both do it: whoever comes first, the terminal is the child's before either goes on.
        child.give_terminal(group);
        Ok(child)
    }

    /// Waits for its end. Cancel-safe.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.inner.wait().await;
        self.give_terminal(getpgrp());
        status
    }

    /// Sends a signal to its whole group.
    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended just now; then there is nobody to tell.
        killpg(self.group, signal).ok();
    }

    /// If the command was stopped at the terminal (Ctrl-Z), stops with it, and goes on with it.
    pub(super) fn follow_stop(&self) {
        if !self.has_terminal {
            return;
        }
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
        if let Ok(WaitStatus::Stopped(..)) = waitid(Id::Pid(self.group), flags) {
            self.give_terminal(getpgrp());
            raise(Signal::SIGSTOP).ok();
            self.give_terminal(self.group);
            self.signal(Signal::SIGCONT);
        }
    }

    fn give_terminal(&self, group: Pid) {
        if self.has_terminal {
            set_foreground(group).ok();
        }
    }
}

/// What a shell would say, and its exit code.
fn cannot(program: &OsString, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    Failure::new(format!("cannot run {}: {error}", program.display())).code(code)
}

/// The exit code that a shell would give.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(255);
    u8::try_from(code & 0xff).unwrap_or(255)
}

fn before_exec(parent: Pid, has_terminal: bool) -> io::Result<()> {
    // SIGTERM, so that it can still checkpoint. What ignores it is the daemon's to end.
    set_pdeathsig(Signal::SIGTERM)?;
    if getppid() != parent {
        // We died before the line above: nobody would tell it any more.
        return Err(Errno::ESRCH.into());
    }
    if has_terminal {
        set_foreground(getpid())?;
    }
    Ok(())
}

fn owns_terminal() -> bool {
    let stdin = io::stdin();
    stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| group == getpgrp())
}

/// Gives the terminal to a group. Whoever is not in the foreground gets SIGTTOU for this, unless it is blocked.
fn set_foreground(group: Pid) -> nix::Result<()> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    mask.thread_block()?;
    let given = tcsetpgrp(io::stdin(), group);
    mask.thread_unblock()?;
    given
}

/// Binds this thread, and so all that it starts, to CPUs of a lease that is enforced.
pub(super) fn bind(lease: &Lease, cpus: &CpuList) -> Result<(), String> {
    if cpus.is_empty() || !lease.enforced {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for cpu in cpus.iter() {
        set.set(cpu as usize)
            .map_err(|_| format!("CPU {cpu} is beyond what an affinity can name"))?;
    }
    sched_setaffinity(Pid::from_raw(0), &set)
        .map_err(|error| format!("cannot bind to CPUs {cpus}: {}", error.desc()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_a_shells() {
        for (raw, expect) in [(0, 0), (1 << 8, 1), (200 << 8, 200), (9, 137), (15, 143)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), expect);
        }
    }
}
