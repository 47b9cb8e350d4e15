//! Mutual TLS for gRPC over TCP: TLS 1.3 only, a client certificate always, and files that are read again when they
//! change, so that certificates are renewed without a restart.
//!
//! A connection is never resumed: a resumed one would not check the client again (RFC 8446, section 2.2), so there are
//! no tickets and no stored sessions. Whom a genuine certificate is for is `identity`'s and `tenants`'.
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use nix::fcntl::OFlag;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Within so long before its end, the daemon's own certificate is a trouble that is told.
const ENDS_SOON: Duration = Duration::from_secs(7 * 86_400);
/// A larger file is no certificate.
const FILE_MAX: u64 = 1 << 20;

/// The files, and whose certificates are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The daemon's certificate with what leads to its CA, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The CA (or several) of clients, PEM.
    pub client_ca: PathBuf,
    /// The SPIFFE trust domain of clients' certificates.
    pub trust_domain: String,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file.
    #[error("cannot read {key} {}", .path.display())]
    Read {
        /// Of which setting.
        key: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is in it.
    #[error("{key} {}: {why}", .path.display())]
    Content {
        /// Of which setting.
        key: &'static str,
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// See the module's text.
pub(super) struct Tls {
    files: TlsFiles,
    current: ArcSwap<Loaded>,
    seen: Mutex<Seen>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    ends: SystemTime,
}

/// The files as they were.
struct Seen {
    /// When they were last read to some use.
    read: [Option<Stamp>; 3],
    /// When they were last looked at.
    looked: [Option<Stamp>; 3],
    /// Why they could not be used when they were tried last.
    failed: Option<String>,
}

/// What a look at the files has found.
pub(super) struct Looked {
    /// They were read, and are in force.
    pub(super) read: bool,
    /// Why those that are there cannot be used; none: they can, or nobody has tried yet.
    pub(super) failed: Option<String>,
}

/// Enough of a file to see that it is another, or has changed: its time of change is the kernel's, and nobody sets it back.
type Stamp = (u64, u64, u64, [i64; 4]);

impl TlsFiles {
    fn all(&self) -> [&Path; 3] {
        [&self.certificate, &self.key, &self.client_ca]
    }

    fn stamps(&self) -> [Option<Stamp>; 3] {
        self.all().map(|path| {
            let m = std::fs::metadata(path).ok()?;
            let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
            Some((m.dev(), m.ino(), m.len(), times))
        })
    }

    fn load(&self) -> Result<Loaded, TlsError> {
        let chain = certificates("tls.certificate", &self.certificate)?;
        let text = read("tls.key", &self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|e| {
            wrong(
                "tls.key",
                &self.key,
                format!("there is no private key in it: {e}"),
            )
        })?;
        let mut roots = RootCertStore::empty();
        for ca in certificates("tls.client_ca", &self.client_ca)? {
            let added = roots.add(ca);
            added.map_err(|e| wrong("tls.client_ca", &self.client_ca, e.to_string()))?;
        }
        let ends = ends(&chain[0]).ok_or_else(|| {
            let why = "the first certificate in it cannot be read".to_owned();
            wrong("tls.certificate", &self.certificate, why)
        })?;
        let provider = Arc::new(ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build();
        let clients =
            clients.map_err(|e| wrong("tls.client_ca", &self.client_ca, e.to_string()))?;
        let fits = |e: rustls::Error| {
            let why = format!("it does not go with tls.key {}: {e}", self.key.display());
            wrong("tls.certificate", &self.certificate, why)
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fits)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(fits)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Loaded {
            config: Arc::new(config),
            ends,
        })
    }
}

impl Tls {
    /// Reads the files.
    pub(super) fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let seen = files.stamps();
        let loaded = files.load()?;
        Ok(Self {
            files,
            current: ArcSwap::from_pointee(loaded),
            seen: Mutex::new(Seen {
                read: seen,
                looked: seen,
                failed: None,
            }),
        })
    }

    /// Reads the files again if one of them has changed since they were read, and none since the last look: they are
    /// replaced one after the other, and half of them are of no use. Connections that come from now on see the new ones.
    /// What is there but cannot be used leaves everything as it was, and is tried again with the next look: what was in
    /// the way may pass without a change of the files.
    pub(super) fn refresh(&self) -> Looked {
        let stamps = self.files.stamps();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = seen.looked == stamps;
        seen.looked = stamps;
        let mut read = false;
        if settled {
            seen.failed = None;
            if seen.read != stamps {
                match self.files.load() {
                    Ok(loaded) => {
                        self.current.store(Arc::new(loaded));
                        (seen.read, read) = (stamps, true);
                    }
                    Err(error) => seen.failed = Some(format!("{:#}", anyhow::Error::new(error))),
                }
            }
        }
        Looked {
            read,
            failed: seen.failed.clone(),
        }
    }

    /// What a person should know of the daemon's certificate; none: it is good for a while.
    pub(super) fn trouble(&self, now: SystemTime) -> Option<String> {
        let ends = self.current.load().ends;
        let path = self.files.certificate.display();
        match ends.duration_since(now) {
            Err(_) => Some(format!(
                "the daemon's certificate {path} has ended: clients refuse it; put a new one there"
            )),
            Ok(left) if left < ENDS_SOON => Some(format!(
                "the daemon's certificate {path} ends in {:.1} days; put a new one there",
                left.as_secs_f64() / 86_400.0
            )),
            Ok(_) => None,
        }
    }

    /// The trust domain of clients.
    pub(super) fn trust_domain(&self) -> &str {
        &self.files.trust_domain
    }

    /// The handshake. What it fails with is for the audit, not for the other end, which gets TLS's own alert.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.current.load().config.clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

/// The certificate that a client has shown.
pub(super) fn shown(stream: &TlsStream<TcpStream>) -> Option<&[u8]> {
    let (_, session) = stream.get_ref();
    Some(session.peer_certificates()?.first()?.as_ref())
}

fn wrong(key: &'static str, path: &Path, why: String) -> TlsError {
    TlsError::Content {
        key,
        path: path.to_owned(),
        why,
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read {
        key,
        path: path.to_owned(),
        source,
    };
    // A pipe in its place would keep who opens it waiting.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path);
    let file = opened.map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(wrong(key, path, "it is no regular file".into()));
    }
    if about.len() > FILE_MAX {
        return Err(wrong(
            key,
            path,
            format!("it has more than {FILE_MAX} bytes"),
        ));
    }
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

/// At least one certificate.
fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(key, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|e| wrong(key, path, format!("it is not PEM: {e}")))?;
    if all.is_empty() {
        return Err(wrong(key, path, "there is no certificate in it".into()));
    }
    Ok(all)
}

fn ends(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    Some(UNIX_EPOCH + Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A certificate that is its own CA, and its key.
    fn pair(folder: &Path) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        TlsFiles {
            certificate: write("c.pem", &certificate.pem()),
            key: write("k.pem", &key.serialize_pem()),
            client_ca: write("ca.pem", &certificate.pem()),
            trust_domain: "lab".into(),
        }
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let files = pair(folder.path());
        std::fs::remove_file(&files.key).unwrap();
        nix::unistd::mkfifo(&files.key, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = Tls::open(files).err().unwrap().to_string();
        assert!(error.contains("no regular file"), "{error}");
    }

    /// Once they lie still.
    fn look(tls: &Tls) -> Looked {
        let _ = tls.refresh();
        tls.refresh()
    }

    #[test]
    fn a_file_that_was_written_over_with_the_old_time_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let files = pair(folder.path());
        let tls = Tls::open(files.clone()).unwrap();
        assert!(!look(&tls).read);
        let text = std::fs::read(&files.key).unwrap();
        let old = std::fs::metadata(&files.key).unwrap().modified().unwrap();
        let file = std::fs::File::options()
            .write(true)
            .open(&files.key)
            .unwrap();
        io::Write::write_all(&mut &file, &text).unwrap();
        file.set_modified(old).unwrap();
        // The clock of files is coarse.
        let start = std::time::Instant::now();
        while !look(&tls).read {
            assert!(start.elapsed() < Duration::from_secs(20));
            file.set_modified(old).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_used_is_tried_again_and_told_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let files = pair(folder.path());
        let tls = Tls::open(files.clone()).unwrap();
        let kept = folder.path().join("kept");
        std::fs::rename(&files.key, &kept).unwrap();
        for _ in 0..3 {
            let failed = look(&tls).failed.unwrap();
            assert!(failed.contains("cannot read tls.key"), "{failed}");
        }
        std::fs::rename(&kept, &files.key).unwrap();
        assert!(tls.refresh().failed.is_some(), "not known yet");
        let looked = tls.refresh();
        assert!(looked.failed.is_none());
    }
}
