//! `evenkeel doctor`: what is in order between this process, the daemon and the node, what is not, and what mends it.
//! It looks, and changes nothing.
mod local;
mod node;

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_client::{Client, Error, EventFilter, TlsError};
use serde::Serialize;

use crate::args::Globals;
use crate::fail::{Doing as _, FAILED, Failure, UNREACHED};
use crate::out;
use crate::text;

/// A daemon that is well answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// As it should be.
    Ok,
    /// It works, and somebody should know.
    Warning,
    /// It does not work.
    Bad,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// What was looked at.
    about: &'static str,
    state: State,
    /// What is there.
    found: String,
    /// What to do; none where nothing has to be done.
    advice: Option<String>,
}

impl Finding {
    fn ok(about: &'static str, found: impl Into<String>) -> Self {
        Self {
            about,
            state: State::Ok,
            found: found.into(),
            advice: None,
        }
    }

    fn warning(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            about,
            state: State::Warning,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }

    fn bad(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            state: State::Bad,
            ..Self::warning(about, found, advice)
        }
    }

    /// For a person: what was found, and below it what to do.
    fn lines(&self, width: usize) -> Vec<String> {
        const INDENT: usize = 16;
        let mark = match self.state {
            State::Ok => "ok",
            State::Warning => "warn",
            State::Bad => "BAD",
        };
        let mut lines = text::wrapped(&self.found, INDENT, width);
        if let Some(first) = lines.first_mut() {
            *first = format!("{mark:<5}{:<11}{}", self.about, first.trim_start());
        }
        let advice = self.advice.iter();
        lines.extend(advice.flat_map(|advice| text::wrapped(advice, INDENT, width)));
        lines
    }
}

pub(crate) async fn run(globals: &Globals) -> Result<ExitCode, Failure> {
    let client = Client::new(globals.config().deadline(PATIENCE)).doing("reach the daemon")?;
    let mut findings = local::findings(client.address());
    let asked = ask(&client).await;
    let reached = asked.is_ok();
    match asked {
        Ok(answered) => findings.extend(answered),
        Err(error) => {
            findings.push(Finding::bad("daemon", error.to_string(), advice(&error)));
        }
    }
    if globals.json() {
        out::json(&findings);
    } else {
        let width = out::width();
        let lines = findings.iter().flat_map(|finding| finding.lines(width));
        lines.for_each(out::text);
    }
    let is_bad = findings.iter().any(|f| f.state == State::Bad);
    Ok(match (reached, is_bad) {
        (false, _) => ExitCode::from(UNREACHED),
        (true, true) => ExitCode::from(FAILED),
        (true, false) => ExitCode::SUCCESS,
    })
}

/// What to do where the daemon did not tell how it is.
const fn advice(error: &Error) -> &'static str {
    match error {
        Error::Unavailable { absent: true, .. } => {
            "Start it with `systemctl start evenkeeld` or `evenkeeld --config FILE`, and see its log (journalctl -u \
             evenkeeld). For another socket use --socket or EVENKEEL_SOCKET."
        }
        Error::Tls(TlsError::ClientRefused { .. }) => {
            "Get a certificate from the CA that the daemon's tls.client_ca names: `evenkeel cert issue`."
        }
        Error::Tls(TlsError::DaemonNotTrusted { .. }) => {
            "Set EVENKEEL_TLS_CA (--tls-ca) to the ca.pem of that daemon, and ask it by a name in its certificate."
        }
        Error::Rejected(_) => "It runs, and refuses: ask the node's admin.",
        _ => {
            "See its log (journalctl -u evenkeeld), and above whether this user may use its socket."
        }
    }
}

/// What the daemon says, judged.
async fn ask(client: &Client) -> Result<Vec<Finding>, Error> {
    let node = client.node().await?;
    let newest = EventFilter {
        newest: true,
        limit: Some(1),
        ..EventFilter::default()
    };
    let events = client.events(&newest).await?.0;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    let mut findings = node::findings(&node, env!("CARGO_PKG_VERSION"));
    let newest_ms = events.last().map(|event| event.unix_ms);
    findings.push(node::clock(newest_ms, now_ms));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_its_advice_another() {
        let ok = Finding::ok("socket", "it is there");
        assert_eq!(ok.lines(80), ["ok   socket     it is there"]);
        let bad = Finding::bad("socket", "it is gone", "Start it, and look again.");
        assert_eq!(
            bad.lines(30),
            [
                "BAD  socket     it is gone",
                "                Start it, and",
                "                look again."
            ]
        );
        assert!(State::Ok < State::Warning && State::Warning < State::Bad);
    }
}
