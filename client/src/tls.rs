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

    fn load(&self) -> io::Result<ClientConfig> {
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

fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display())))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(unusable(path, "there is no certificate in it")),
        Err(e) => Err(unusable(path, &format!("it is not PEM: {e}"))),
    }
}

fn unusable(path: &Path, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: {why}", path.display()),
    )
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
        let config = self.credentials.load()?;
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
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|e| explained(&e))?;
        Ok(TokioIo::new(stream))
    }
}

/// A handshake that failed, in words that say whose certificate was not taken.
fn explained(error: &io::Error) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "the daemon's certificate was not accepted, or it broke off the TLS handshake: {error}"
        ),
    )
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
