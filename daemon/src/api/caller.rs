//! Who calls: never what a message says, always what the kernel or the certificate says of the connection.
//!
//! On the Unix socket the peer's uid decides the tenant, and its pid (with its start time) is who can hold a
//! lease. Credentials are those of the moment of connecting. Over TCP the certificate decides (over plain TCP
//! everybody is one configured tenant), and nobody can hold anything here.
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_core::command::Caller;
use evenkeel_core::lease::Holder;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use super::error;
use super::tenants::Stranger;
use crate::audit::{Audit, Refusal};
use crate::proc_tree::{self, Process};

/// The door of the Unix socket.
pub(super) const UNIX: &str = "unix";

/// By which door a connection has come, and from where.
#[derive(Clone, Debug)]
pub(super) struct Door {
    /// `unix`, `tls` or `tcp`.
    pub(super) name: &'static str,
    /// An address, or a uid.
    pub(super) from: String,
}

impl Door {
    /// A line for the audit about somebody who came by it.
    pub(super) fn refusal(&self, reason: &str, why: &str) -> Refusal {
        Refusal {
            door: self.name,
            from: Some(self.from.clone()),
            reason: reason.to_owned(),
            why: why.to_owned(),
            ..Refusal::default()
        }
    }
}

/// Who has connected.
#[derive(Clone, Debug)]
pub(super) enum Visitor {
    /// Somebody of a tenant.
    Peer(Arc<Peer>),
    /// Nobody of any: every call is refused alike.
    Stranger(Arc<Door>, Arc<Stranger>),
}

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its tenant and rights.
    pub(super) caller: Caller,
    /// Its process at the time of connecting; none over TCP, or if it was gone or invisible then.
    process: Option<Process>,
    /// How it has come.
    pub(super) door: Door,
    /// When its certificate ends, if it has one: its connection ends then.
    pub(super) ends: Option<SystemTime>,
    /// Set when the connection should end: it is old, or the daemon stops.
    pub(super) closing: CancellationToken,
}

impl Peer {
    /// The peer of a Unix socket.
    pub(super) const fn local(
        caller: Caller,
        door: Door,
        process: Option<Process>,
        closing: CancellationToken,
    ) -> Self {
        Self {
            caller,
            process,
            door,
            ends: None,
            closing,
        }
    }

    /// The peer of a TCP connection.
    pub(super) const fn remote(
        caller: Caller,
        door: Door,
        ends: Option<SystemTime>,
        closing: CancellationToken,
    ) -> Self {
        Self {
            caller,
            process: None,
            door,
            ends,
            closing,
        }
    }

    /// Writes down that it was refused because of who it is: not found (which is what another tenant's is), not permitted,
    /// not known. Other refusals are between it and the daemon.
    pub(super) fn note_refusal(&self, audit: &Audit, call: &str, status: &Status) {
        use tonic::Code::{NotFound, PermissionDenied, Unauthenticated};
        if matches!(status.code(), NotFound | PermissionDenied | Unauthenticated) {
            self.note(audit, call, &error::reason(status), status.message());
        }
    }

    /// Writes down what it was refused, and why.
    pub(super) fn note(&self, audit: &Audit, call: &str, reason: &str, why: &str) {
        audit.refused(Refusal {
            who: Some(self.caller.tenant.to_string()),
            call: Some(call.to_owned()),
            ..self.door.refusal(reason, why)
        });
    }

    /// How long its certificate is good for; none: it has none.
    pub(super) fn good_for(&self) -> Option<Duration> {
        let left = self.ends?.duration_since(SystemTime::now());
        Some(left.unwrap_or_default())
    }

    /// The process that is to hold a lease: the caller itself (`pid` 0) or a descendant of it.
    pub(super) fn holder(&self, pid: u32) -> Result<Holder, Status> {
        if self.door.name != UNIX {
            return Err(error::not_local());
        }
        let gone = "the calling process is not visible to the daemon: it has ended, or it is in another pid \
                    namespace";
        let caller = self.process.ok_or_else(|| error::invalid("pid", gone))?;
        let pid = if pid == 0 { caller.pid } else { pid };
        let holder = proc_tree::holder(pid).map_err(|e| error::invalid("pid", &e.to_string()))?;
        if pid == caller.pid && Process::from(&holder) != caller {
            return Err(error::invalid("pid", gone));
        }
        if !proc_tree::descends_from(pid, caller) {
            let why = format!(
                "process {pid} does not descend from the calling process {}; only a worker's own tree can hold its \
                 lease",
                caller.pid
            );
            return Err(error::invalid("pid", &why));
        }
        // Looked at again: the pid may have changed hands while its parents were followed.
        if !proc_tree::is_alive(Process::from(&holder)) {
            return Err(error::invalid("pid", "the process has ended"));
        }
        Ok(holder)
    }
}

/// The peer that a request came from.
pub(super) fn of<T>(request: &Request<T>) -> Result<Arc<Peer>, Status> {
    let peer = request.extensions().get::<Arc<Peer>>().cloned();
    peer.ok_or_else(|| Status::internal("the request does not say which connection it came from"))
}

#[cfg(test)]
mod tests {
    use evenkeel_core::id::Name;

    use super::*;

    fn door(name: &'static str) -> Door {
        Door {
            name,
            from: "here".into(),
        }
    }

    fn own() -> Peer {
        Peer {
            caller: Caller::user(Name::new("me").unwrap()),
            process: proc_tree::status(std::process::id()).map(|s| s.process),
            door: door(UNIX),
            ends: None,
            closing: CancellationToken::new(),
        }
    }

    #[test]
    fn only_ones_own_tree_can_hold() {
        let me = own();
        assert_eq!(me.holder(0).unwrap().pid, std::process::id());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert_eq!(me.holder(child.id()).unwrap().pid, child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        for foreign in [1, child.id(), u32::MAX] {
            let refusal = me.holder(foreign).unwrap_err();
            assert_eq!(
                refusal.code(),
                tonic::Code::InvalidArgument,
                "{foreign}: {refusal:?}"
            );
            assert!(refusal.message().starts_with("pid: "), "{refusal:?}");
        }
    }

    #[test]
    fn a_pid_that_changed_hands_is_nobody() {
        let mut me = own();
        me.process = me.process.map(|p| Process {
            start_time: p.start_time + 1,
            ..p
        });
        assert!(me.holder(0).is_err());
        assert!(me.holder(std::process::id()).is_err());
        let far = Caller::user(Name::new("far").unwrap());
        let remote = Peer::remote(far, door("tls"), None, CancellationToken::new());
        assert_eq!(
            remote.holder(0).unwrap_err().code(),
            tonic::Code::FailedPrecondition
        );
    }
}
