//! Mutual TLS to a daemon's TCP address: this client's certificate, the daemon's CA, and the connections.
//!
//! The files are read for every connection: a certificate that was renewed is in force from the next one on.
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Uri;

/// Names the file of this client's certificate.
pub const CERTIFICATE_VARIABLE: &str = "EVENKEEL_TLS_CERT";
/// Names the file of its private key.
pub const KEY_VARIABLE: &str = "EVENKEEL_TLS_KEY";
/// Names the file of the daemon's CA.
pub const CA_VARIABLE: &str = "EVENKEEL_TLS_CA";

/// Files by which a client and a daemon know each other over TCP. All PEM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Credentials {
    /// This client's certificate, with what leads to its CA.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CA of the daemon's certificate.
    pub ca: PathBuf,
}

impl Credentials {
    /// From `EVENKEEL_TLS_CERT`, `EVENKEEL_TLS_KEY` and `EVENKEEL_TLS_CA`; none if one of them is not set.
    pub fn from_env() -> Option<Self> {
        let path = |name| {
            env::var_os(name)
                .filter(|p| !p.is_empty())
                .map(PathBuf::from)
        };
        Some(Self {
            certificate: path(CERTIFICATE_VARIABLE)?,
            key: path(KEY_VARIABLE)?,
            ca: path(CA_VARIABLE)?,
        })
    }

    fn load(&self) -> Result<ClientConfig, TlsError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)
            .map_err(|e| unusable(&self.key, &format!("there is no private key in it: {e}")))?;
        let mut roots = RootCertStore::empty();
        for ca in certificates(&self.ca)? {
            roots
                .add(ca)
                .map_err(|e| unusable(&self.ca, &e.to_string()))?;
        }
        let fits = |e: rustls::Error| unusable(&self.certificate, &e.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fits)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(fits)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // The daemon gives out no tickets: each connection shows the certificate.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|e| unusable(path, &e.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(unusable(path, "there is no certificate in it")),
        Err(e) => Err(unusable(path, &format!("it is not PEM: {e}"))),
    }
}

fn unusable(path: &Path, why: &str) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

/// Why there is no connection by mutual TLS. Each is the same at the next try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file of this client's cannot be used.
    #[error(
        "{} is of no use for TLS: {why} (set by {CERTIFICATE_VARIABLE}, {KEY_VARIABLE} or {CA_VARIABLE})",
        path.display()
    )]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The daemon's certificate was not accepted by this client.
    #[error(
        "the daemon's certificate was not accepted: {why}; is {CA_VARIABLE} the CA that issued it, and does the \
         certificate name the host of the address?"
    )]
    DaemonNotTrusted {
        /// What is wrong with it.
        why: String,
    },
    /// This client's certificate was not accepted by the daemon.
    #[error(
        "the daemon refused this client's certificate ({alert}); its audit.jsonl says why. Is it still valid, and from \
         the CA that the daemon asks for (tls.client_ca)?"
    )]
    ClientRefused {
        /// The TLS alert (RFC 8446, section 6).
        alert: String,
    },
}

impl TlsError {
    /// The failure that an I/O error carries, if it is one of TLS.
    pub(crate) fn within(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?;
        if let Some(found) = inner.downcast_ref::<Self>() {
            return Some(found.clone());
        }
        match inner.downcast_ref::<rustls::Error>()? {
            rustls::Error::AlertReceived(alert) => Some(Self::ClientRefused {
                alert: format!("{alert:?}"),
            }),
            rustls::Error::InvalidCertificate(why) => Some(Self::DaemonNotTrusted {
                why: why.to_string(),
            }),
            _ => None,
        }
    }

    /// The refusal that a text tells. With TLS 1.3 a client learns of it with the first answer (RFC 8446, appendix
    /// E.1), and of errors that come there HTTP/2 keeps the text alone.
    pub(crate) fn told(text: &str) -> Option<Self> {
        let alert = text.strip_prefix("received fatal alert: ")?;
        Some(Self::ClientRefused {
            alert: alert.to_owned(),
        })
    }
}

/// Opens connections.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    credentials: Arc<Credentials>,
}

impl Connector {
    pub(crate) fn new(credentials: Credentials) -> Self {
        Self {
            credentials: Arc::new(credentials),
        }
    }

    async fn connect(self, to: Uri) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let config = self.credentials.load().map_err(io::Error::other)?;
        let host = to.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{host}` is not the name of a host"),
            )
        })?;
        let stream = TcpStream::connect((host, to.port_u16().unwrap_or(443))).await?;
        let _ = stream.set_nodelay(true); // a hint
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await.map_err(told)?;
        Ok(TokioIo::new(stream))
    }
}

/// A handshake that failed, in words that say so.
fn told(error: io::Error) -> io::Error {
    match TlsError::within(&error) {
        Some(_) => error,
        None => io::Error::new(
            error.kind(),
            format!("the TLS handshake was broken off: {error}"),
        ),
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().connect(to))
    }
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError};

    use super::*;

    #[test]
    fn failures_say_whose_certificate_it_was() {
        let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        let refused = Some(TlsError::ClientRefused {
            alert: "UnknownCA".into(),
        });
        // HTTP/2 keeps the text alone.
        assert_eq!(TlsError::told(&alert.to_string()), refused);
        let within = |inner| TlsError::within(&io::Error::new(io::ErrorKind::InvalidData, inner));
        assert_eq!(within(alert), refused);
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        assert!(matches!(
            within(expired),
            Some(TlsError::DaemonNotTrusted { .. })
        ));
        assert_eq!(within(rustls::Error::DecryptError), None);
        assert_eq!(
            TlsError::told("connection reset by peer (os error 104)"),
            None
        );
    }

    #[test]
    fn a_file_that_is_missing_is_not_a_daemon_that_is() {
        let nowhere = PathBuf::from("/nowhere/client.pem");
        let credentials = Credentials {
            certificate: nowhere.clone(),
            key: nowhere.clone(),
            ca: nowhere.clone(),
        };
        let error = credentials.load().unwrap_err();
        assert!(
            matches!(&error, TlsError::File { path, .. } if *path == nowhere),
            "{error}"
        );
        assert_eq!(
            TlsError::within(&io::Error::other(error.clone())),
            Some(error)
        );
    }
}
