//! A CA for tests, and clients that come over TLS with whatever certificate.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeeld::api::TlsFiles;
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// A certificate authority.
pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) pem: String,
    pub(crate) key: String,
}

/// When a certificate is good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Good {
    /// For long.
    Now,
    /// Until long ago.
    Once,
    /// For so many seconds.
    Seconds(u64),
}

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        // No two are alike: one is told from another by its name.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("CA {}", NEXT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }
    fn issue(&self, names: Vec<SanType>, usage: ExtendedKeyUsagePurpose, good: Good) -> Pair {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![usage];
        match good {
            Good::Now => {}
            Good::Once => params.not_after = rcgen::date_time_ymd(2020, 1, 1),
            Good::Seconds(n) => {
                params.not_after =
                    (std::time::SystemTime::now() + std::time::Duration::from_secs(n)).into();
            }
        }
        let key = KeyPair::generate().unwrap();
        Pair {
            pem: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
    /// A client's, with these URIs.
    pub(crate) fn client(&self, uris: &[&str], good: Good) -> Pair {
        let uris = uris
            .iter()
            .map(|uri| SanType::URI((*uri).try_into().unwrap()));
        self.issue(uris.collect(), ExtendedKeyUsagePurpose::ClientAuth, good)
    }
    /// Writes a daemon's files.
    pub(crate) fn files(&self, folder: &Path) -> TlsFiles {
        let host = SanType::DnsName("localhost".try_into().unwrap());
        let pair = self.issue(vec![host], ExtendedKeyUsagePurpose::ServerAuth, Good::Now);
        let write = |name: &str, text: &str| -> PathBuf {
            let path = folder.join(name);
            let new = folder.join(format!("{name}.new"));
            std::fs::write(&new, text).unwrap();
            std::fs::rename(new, &path).unwrap();
            path
        };
        TlsFiles {
            key: write("daemon.key", &pair.key),
            certificate: write("daemon.pem", &pair.pem),
            client_ca: write("ca.pem", &self.pem),
            trust_domain: "lab".into(),
        }
    }
    /// A channel to a daemon of this CA, for who has this certificate (none: no certificate).
    pub(crate) async fn channel(
        &self,
        to: SocketAddr,
        pair: Option<&Pair>,
    ) -> Result<Channel, tonic::transport::Error> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match pair {
            None => config.with_no_client_auth(),
            Some(pair) => {
                let chain = vec![CertificateDer::from_pem_slice(pair.pem.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let connect = tower::service_fn(move |_: Uri| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(to).await?;
                let name = ServerName::try_from("localhost").unwrap();
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        endpoint.connect_with_connector(connect).await
    }
}
