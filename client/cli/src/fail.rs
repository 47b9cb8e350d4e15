//! What went wrong, in one or two lines, and the exit code for it.
//!
//! Exit codes: see [`EXIT_CODES`]. `run` passes on its command's code, so its own failures use the
//! codes of `env` and `timeout`: 125, 126, 127.
use std::fmt;

use evenkeel_client::{Address, Error, Rejection, TlsError};

use crate::units::{counted, show_bytes};

/// The codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused, or failed on the way
  2  the command line or a file is wrong
  3  the daemon was not reached
  4  there is no such lease, job or profile
  5  something is short at the moment: wait, or ask for less
  run passes on the exit code of its command (128 + n for signal n); when the command did not run, or was
  stopped because its lease was over (lost, revoked, drained, its job cancelled): 125; 126: it cannot be
  executed; 127: it was not found";

/// Refused, or failed on the way.
pub(crate) const FAILED: u8 = 1;
/// The command line or a file is wrong.
pub(crate) const USAGE: u8 = 2;
/// The daemon was not reached.
pub(crate) const UNREACHED: u8 = 3;
/// There is no such thing.
pub(crate) const NOT_FOUND: u8 = 4;
/// Something is short.
pub(crate) const SHORT: u8 = 5;

/// A failure as it is printed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit code.
    pub(crate) code: u8,
    /// What was tried, and what was wrong.
    pub(crate) what: String,
    /// What to do next.
    pub(crate) hint: Option<String>,
    /// What no node like this one has enough of: whoever has the file says where that is asked for.
    pub(crate) short_of: Option<String>,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            code: FAILED,
            what: what.into(),
            hint: None,
            short_of: None,
        }
    }
    /// A mistake in what was typed or in a file.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(what).code(USAGE)
    }
    /// With another exit code.
    #[must_use]
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
    /// Said of something: a file, say.
    #[must_use]
    pub(crate) fn about(mut self, of: &str) -> Self {
        self.what = format!("{of}: {}", self.what);
        self
    }
    /// With a word on what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.hint
            .iter()
            .try_for_each(|hint| write!(f, "\n  {hint}"))
    }
}

/// Says what was tried when an error came.
pub(crate) trait Doing<T> {
    /// `what` completes "cannot …".
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> Doing<T> for Result<T, Error> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| from_client(&error, &what))
    }
}

impl<T> Doing<T> for Result<T, std::io::Error> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("cannot {what}: {error}")))
    }
}

fn from_client(error: &Error, what: &dyn fmt::Display) -> Failure {
    let failure = Failure::new(format!("cannot {what}: {}", in_keys(&error.to_string())));
    match error {
        Error::Unavailable { absent: true, .. } => failure.code(UNREACHED).hint(
            "Is it running? Start it with `systemctl start evenkeeld` or `evenkeeld --config FILE`; \
             for another socket use --socket or EVENKEEL_SOCKET.",
        ),
        Error::Unavailable {
            address: Address::Https(_),
            ..
        } => failure.code(UNREACHED).hint(
            "It may be starting or overloaded, it may not speak TLS there, or it has refused this certificate: then its \
             audit.jsonl says so.",
        ),
        Error::Unavailable {
            address: Address::Http(_),
            ..
        } => failure.code(UNREACHED).hint(
            "It may be starting or overloaded, or that port asks for TLS: https://, with a certificate.",
        ),
        Error::Tls(TlsError::File { .. }) => failure.code(USAGE),
        Error::Tls(_) => failure.code(UNREACHED),
        Error::Unavailable { .. } => failure.code(UNREACHED).hint(
            "It may be starting, overloaded, or not ours to talk to; \
             see `journalctl -u evenkeeld` and the permissions of its socket.",
        ),
        Error::NotFound { .. } => failure.code(NOT_FOUND),
        Error::Address(_) => failure.code(USAGE),
        Error::Rejected(r) if r.reason == "NEVER_FITS" => Failure {
            short_of: r.resource.clone(),
            ..failure.hint(format!(
                "{}See `evenkeel node` for what there is at most.",
                shortage(r)
            ))
        },
        Error::Rejected(r) if r.reason == "JOB_QUEUED" => {
            failure.hint("Wait with it (--wait 10m); `evenkeel explain` says what it waits for.")
        }
        Error::Rejected(r) if r.resource.is_some() => {
            failure.code(SHORT).hint(
                "Wait for it in the queue (--wait 10m), ask for less, or see who has it: `evenkeel leases`.",
            )
        }
        _ => failure,
    }
}

/// By how much something is short, as a sentence; nothing where that is not said.
fn shortage(r: &Rejection) -> String {
    let (Some(resource), Some(by)) = (&r.resource, r.short_by) else {
        return String::new();
    };
    let by = match resource.as_str() {
        "cores" => counted(by, "core"),
        "sms" => counted(by, "SM"),
        "gpus" => counted(by, "GPU"),
        _ => show_bytes(by),
    };
    format!("It is short by {by}. ")
}

/// A refusal of a field of a job, with the keys of a job file.
fn in_keys(message: &str) -> String {
    let (field, why) = match message.split_once(": ") {
        Some((field, why)) if field.starts_with("spec.") || field.starts_with("rebalance.") => {
            (field.trim_start_matches("spec."), why)
        }
        _ => return message.to_owned(),
    };
    let key = field.trim_end_matches("_bytes").trim_end_matches("_ms");
    format!("{key}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_job_are_told_as_keys_of_its_file() {
        for (told, expect) in [
            (
                "spec.stages[1].memory_bytes: too much",
                "stages[1].memory: too much",
            ),
            (
                "spec.rebalance.horizon_ms: too long",
                "rebalance.horizon: too long",
            ),
            (
                "rebalance.gap: 2 is not 0 to 1",
                "rebalance.gap: 2 is not 0 to 1",
            ),
            ("no split fits: memory_bytes", "no split fits: memory_bytes"),
        ] {
            assert_eq!(in_keys(told), expect);
        }
    }
}
