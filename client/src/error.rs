//! What can go wrong with a call, in the words of the one who made it.
use std::error::Error as _;
use std::io;
use std::time::Duration;

use tonic::{Code, ConnectError, Status};
use tonic_types::StatusExt as _;

use crate::address::{Address, BadAddress};
use crate::tls::{CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, TlsError};

/// A refusal that explains itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The canonical gRPC code.
    pub code: Code,
    /// The daemon's reason in upper snake case, such as `SHORT`; empty if it gave none.
    pub reason: String,
    /// Which resource is short.
    pub resource: Option<String>,
    /// By how much, in the resource's unit (cores, SMs, bytes).
    pub short_by: Option<u64>,
    /// Who holds it.
    pub holder: Option<String>,
    /// The whole in a sentence.
    pub message: String,
    /// When it is worth trying again.
    pub retry_after: Option<Duration>,
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The daemon was not reached, or did not answer, for as long as we were willing to try.
    #[error(
        "the daemon at {address} did not answer: {last} (tried {tries} times in {:.1} s)",
        elapsed.as_secs_f64()
    )]
    Unavailable {
        /// Where we tried.
        address: Address,
        /// How often.
        tries: u32,
        /// For how long.
        elapsed: Duration,
        /// What the last try met.
        last: String,
        /// Whether nothing listens there at all: the daemon is not running.
        absent: bool,
    },
    /// The daemon refused, and says why.
    #[error("{}", .0.message)]
    Rejected(Box<Rejection>),
    /// There is no such lease, job or profile of the caller's.
    #[error("{message}")]
    NotFound {
        /// What was not found.
        message: String,
    },
    /// The fence is old: the right to use the lease has ended or gone to another process.
    #[error("{message}")]
    Fenced {
        /// Which lease, and what happened to it.
        message: String,
    },
    /// The daemon answered something that this client cannot use: their versions are too far apart.
    #[error(
        "the daemon's answer to {call} makes no sense to this client ({what}); compare their versions"
    )]
    Protocol {
        /// The call.
        call: &'static str,
        /// What was missing or wrong.
        what: String,
    },
    /// Not an address.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// Mutual TLS failed: trying again changes nothing.
    #[error(transparent)]
    Tls(TlsError),
    /// An `https://` address without files for mutual TLS.
    #[error(
        "an https:// address needs this client's certificate: set {CERTIFICATE_VARIABLE}, {KEY_VARIABLE} and \
         {CA_VARIABLE}"
    )]
    NoCredentials,
    /// A thread or runtime could not be started.
    #[error("cannot start {what}: {source}")]
    Start {
        /// What for.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A blocking call was made on a thread of an asynchronous runtime.
    #[error(
        "a blocking call was made inside an asynchronous runtime; use `evenkeel_client::Client` there"
    )]
    InsideRuntime,
    /// The guard cannot do it any more.
    #[error("lease {lease_id} is no longer held by this process: {why}")]
    NotHeld {
        /// The lease.
        lease_id: u64,
        /// Why.
        why: &'static str,
    },
}

/// What to do about a failed try.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The request never left: safe to repeat, whatever it was.
    Unsent(String, Absence),
    /// It may have had its effect: safe to repeat only with the same request id, or if it is idempotent.
    InDoubt(String),
    /// The daemon asks to come back later; nothing happened.
    Later(Duration, Error),
    /// The daemon's answer.
    Final(Error),
}

/// Why nobody was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// Nothing listens there.
    Nobody,
    /// We may not.
    Forbidden,
    /// Something else.
    Other,
}

/// Sorts a failed try.
pub(crate) fn judge(status: &Status) -> Verdict {
    let mut cause = status.source();
    let mut unsent = false;
    let mut io_kind = None;
    let mut innermost = None;
    while let Some(error) = cause {
        unsent |= error.is::<ConnectError>();
        if let Some(io) = error.downcast_ref::<io::Error>() {
            io_kind = Some(io.kind());
            if let Some(tls) = TlsError::within(io) {
                return Verdict::Final(Error::Tls(tls));
            }
        }
        innermost = Some(error.to_string());
        cause = error.source();
    }
    if unsent {
        let absence = match io_kind {
            Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Absence::Nobody,
            Some(io::ErrorKind::PermissionDenied) => Absence::Forbidden,
            _ => Absence::Other,
        };
        return Verdict::Unsent(innermost.unwrap_or_default(), absence);
    }
    // A status that the daemon sent has no source; one that our own transport made up has.
    if let Some(innermost) = innermost {
        if let Some(tls) = TlsError::told(&innermost) {
            return Verdict::Final(Error::Tls(tls));
        }
        return Verdict::InDoubt(innermost);
    }
    match status.code() {
        // The daemon has waited for as long as it was asked to, and has given the place up: asking again is futile.
        Code::DeadlineExceeded if reason(status) == "QUEUE_TIMEOUT" => {
            Verdict::Final(from_status(status))
        }
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
            Verdict::InDoubt(said(status))
        }
        Code::ResourceExhausted => {
            let error = from_status(status);
            match &error {
                Error::Rejected(r) if r.resource.is_none() => match r.retry_after {
                    Some(delay) => Verdict::Later(delay, error),
                    None => Verdict::Final(error),
                },
                _ => Verdict::Final(error),
            }
        }
        _ => Verdict::Final(from_status(status)),
    }
}

/// The reason in the status' details; empty if it has none.
fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|i| i.reason.clone())
        .unwrap_or_default()
}

fn said(status: &Status) -> String {
    if status.message().is_empty() {
        status.code().description().to_owned()
    } else {
        status.message().to_owned()
    }
}

/// The daemon's answer as an error of ours.
pub(crate) fn from_status(status: &Status) -> Error {
    let details = status.get_error_details();
    let metadata = details.error_info().map(|i| i.metadata.clone());
    let (reason, metadata) = (reason(status), metadata.unwrap_or_default());
    let message = said(status);
    if status.code() == Code::NotFound {
        return Error::NotFound { message };
    }
    if reason == "FENCED" || reason == "LEASE_LOST" {
        return Error::Fenced { message };
    }
    let text = |key: &str| metadata.get(key).filter(|v| !v.is_empty()).cloned();
    Error::Rejected(Box::new(Rejection {
        code: status.code(),
        resource: text("resource"),
        short_by: text("short_by").and_then(|v| v.parse().ok()),
        holder: text("holder"),
        message,
        retry_after: details.retry_info().and_then(|r| r.retry_delay),
        reason,
    }))
}

impl Error {
    /// The refusal, if it is one.
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(r) => Some(r),
            _ => None,
        }
    }
    /// Whether the daemon was not reached, so that it may be worth trying again later.
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    fn short() -> Status {
        let metadata = [
            ("resource", "cores"),
            ("short_by", "3"),
            ("holder", "lease 7"),
        ];
        let metadata: HashMap<String, String> = metadata
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        let details = ErrorDetails::with_error_info("SHORT", "evenkeel", metadata);
        Status::with_error_details(Code::ResourceExhausted, "3 cores short", details)
    }

    #[test]
    fn a_refusal_keeps_what_is_short() {
        let Verdict::Final(error) = judge(&short()) else {
            panic!("a shortage was retried");
        };
        let refusal = error.rejection().unwrap();
        assert_eq!(refusal.reason, "SHORT");
        assert_eq!(refusal.resource.as_deref(), Some("cores"));
        assert_eq!(refusal.short_by, Some(3));
        assert_eq!(refusal.holder.as_deref(), Some("lease 7"));
        assert_eq!(error.to_string(), "3 cores short");
    }

    #[test]
    fn what_the_daemon_says_decides_whether_to_try_again() {
        let fenced = ErrorDetails::with_error_info("FENCED", "evenkeel", HashMap::new());
        let fenced = Status::with_error_details(Code::FailedPrecondition, "old", fenced);
        let busy = ErrorDetails::with_retry_info(Some(Duration::from_millis(20)));
        let busy = Status::with_error_details(Code::ResourceExhausted, "busy", busy);
        assert!(matches!(
            judge(&fenced),
            Verdict::Final(Error::Fenced { .. })
        ));
        let waited = ErrorDetails::with_error_info("QUEUE_TIMEOUT", "evenkeel", HashMap::new());
        let waited = Status::with_error_details(Code::DeadlineExceeded, "no room in 1 s", waited);
        assert!(
            matches!(judge(&waited), Verdict::Final(Error::Rejected(r)) if r.reason == "QUEUE_TIMEOUT")
        );
        assert!(matches!(
            judge(&Status::deadline_exceeded("too slow")),
            Verdict::InDoubt(_)
        ));
        assert!(matches!(judge(&busy), Verdict::Later(d, _) if d.as_millis() == 20));
        assert!(matches!(
            judge(&Status::not_found("no lease 4")),
            Verdict::Final(Error::NotFound { .. })
        ));
        assert!(matches!(
            judge(&Status::unavailable("shutting down")),
            Verdict::InDoubt(_)
        ));
        assert!(matches!(
            judge(&Status::invalid_argument("cores: too many")),
            Verdict::Final(Error::Rejected(_))
        ));
    }
}
