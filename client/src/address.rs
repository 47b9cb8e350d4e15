//! Where the daemon listens.
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a daemon listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/evenkeel/evenkeeld.sock";
/// Names another address: a path, `https://HOST:PORT`, or `http://127.0.0.1:PORT`.
pub const SOCKET_VARIABLE: &str = "EVENKEEL_SOCKET";

/// The address of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A Unix socket: the kernel tells the daemon who calls.
    Unix(PathBuf),
    /// Plain TCP, `http://127.0.0.1:PORT`, where the daemon was told to offer it. No process can attach over it.
    Http(String),
    /// Mutual TLS over TCP, `https://HOST:PORT`. No process can attach over it, either.
    Https(String),
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an address of a daemon: {why}; give a socket's path, https://HOST:PORT or http://127.0.0.1:PORT"
)]
pub struct BadAddress {
    text: String,
    why: &'static str,
}

impl Address {
    /// From `EVENKEEL_SOCKET`; the default socket if it is unset or empty.
    ///
    /// # Errors
    /// The variable holds something else than an address.
    pub fn from_env() -> Result<Self, BadAddress> {
        match env::var(SOCKET_VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse(),
            _ => Ok(Self::default()),
        }
    }

    /// The address in the form that tonic takes.
    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Unix(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("unix://{}", path.display())
            }
            // The connections that it is made with speak TLS by themselves.
            Self::Https(uri) => uri.replacen("https", "http", 1),
            Self::Http(uri) => uri.clone(),
        }
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::Unix(PathBuf::from(DEFAULT_SOCKET))
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self::Unix(path.to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Http(uri) | Self::Https(uri) => f.write_str(uri),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = |why| {
            Err(BadAddress {
                text: text.to_owned(),
                why,
            })
        };
        if text.is_empty() {
            return bad("it is empty");
        }
        for (scheme, kind) in [
            ("http://", Self::Http as fn(String) -> Self),
            ("https://", Self::Https),
        ] {
            let Some(rest) = text.strip_prefix(scheme) else {
                continue;
            };
            let port = rest.trim_end_matches('/').rsplit_once(':').map(|(_, p)| p);
            return match port.map(str::parse::<u16>) {
                Some(Ok(_)) => Ok(kind(text.trim_end_matches('/').to_owned())),
                _ => bad("the port is missing"),
            };
        }
        if let Some(rest) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(PathBuf::from(
                rest.strip_prefix("//").unwrap_or(rest),
            )));
        }
        match text.split_once("://") {
            Some(_) => bad("only unix, https and http are known"),
            None => Ok(Self::Unix(PathBuf::from(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read() {
        let unix = |p: &str| Some(Address::Unix(PathBuf::from(p)));
        for (text, expect) in [
            ("/run/x.sock", unix("/run/x.sock")),
            ("x.sock", unix("x.sock")),
            ("unix:///run/x.sock", unix("/run/x.sock")),
            ("unix:/run/x.sock", unix("/run/x.sock")),
            (
                "http://127.0.0.1:7070/",
                Some(Address::Http("http://127.0.0.1:7070".into())),
            ),
            ("http://127.0.0.1", None),
            (
                "https://host:1",
                Some(Address::Https("https://host:1".into())),
            ),
            ("https://host", None),
            ("ftp://host:1", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Address>().ok(), expect, "{text}");
        }
    }
}
