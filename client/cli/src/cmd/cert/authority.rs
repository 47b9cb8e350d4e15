//! A certificate authority of two files, and what it signs. Certificates name their holder as a SPIFFE ID: one URI,
//! `spiffe://DOMAIN/tenant/T[/job/J]` (X509-SVID, section 2).
use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::fail::{Doing as _, Failure};

/// Certificates are good from so long ago: clocks differ.
const BEFORE: Duration = Duration::minutes(5);

/// Whom a certificate is for.
pub(super) enum Subject<'a> {
    /// The daemon, by the names and addresses that it is reached by.
    Daemon {
        /// Names and addresses.
        hosts: &'a [String],
    },
    /// A tenant, or one of its jobs.
    Client {
        /// The tenant.
        tenant: &'a str,
        /// The job.
        job: Option<&'a str>,
    },
}

/// Whom a certificate that is there is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A CA: it signs others.
    Ca,
    /// It names a tenant or a job, by this URI.
    Client(String),
    /// It has no URI: a daemon's.
    Daemon,
}

impl Holder {
    /// From its PEM; none: it is no certificate.
    pub(super) fn of(pem: &str) -> Option<Self> {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
        let (_, parsed) = X509Certificate::from_der(&block.contents).ok()?;
        if parsed.is_ca() {
            return Some(Self::Ca);
        }
        let names = parsed.subject_alternative_name().ok()?;
        let uri = names.and_then(|names| {
            names
                .value
                .general_names
                .iter()
                .find_map(|name| match name {
                    GeneralName::URI(uri) => Some((*uri).to_owned()),
                    _ => None,
                })
        });
        Some(uri.map_or(Self::Daemon, Self::Client))
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ca => f.write_str("a CA"),
            Self::Client(uri) => f.write_str(uri),
            Self::Daemon => f.write_str("a daemon"),
        }
    }
}

/// A certificate and its key, PEM.
pub(super) struct Made {
    pub(super) certificate: String,
    pub(super) key: String,
    /// In seconds since 1970.
    pub(super) ends: i64,
}

/// See the module's text.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    trust_domain: String,
    ends: OffsetDateTime,
}

impl Authority {
    /// A new one.
    pub(super) fn new(trust_domain: &str, days: u32) -> Result<Self, Failure> {
        let (mut params, ends) = params(days, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        // Two CAs of one name would be taken for each other, and told apart by a broken signature only.
        let digest = Sha256::digest(key.public_key_raw());
        let name = format!(
            "Evenkeel CA of {trust_domain} ({:02x}{:02x}{:02x})",
            digest[0], digest[1], digest[2]
        );
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![uri_name(&format!("spiffe://{trust_domain}"))?];
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
            trust_domain: trust_domain.to_owned(),
            ends,
        })
    }

    /// The one in these files.
    pub(super) fn load(certificate: &Path, key: &Path) -> Result<Self, Failure> {
        let read = |path: &Path| {
            let text = fs::read_to_string(path).doing(format!("read {}", path.display()));
            text.map_err(|f| f.hint("Make a CA with `evenkeel cert init`."))
        };
        let (text, private) = (read(certificate)?, read(key)?);
        let unusable = |path: &Path, why: &str| {
            Failure::usage(format!(
                "{} is not a CA of `evenkeel cert init`: {why}",
                path.display()
            ))
        };
        let pair = KeyPair::from_pem(&private).map_err(|e| unusable(key, &e.to_string()))?;
        let (trust_domain, ends) =
            domain_of(&text).ok_or_else(|| unusable(certificate, "it names no trust domain"))?;
        let issuer = Issuer::from_ca_cert_pem(&text, pair);
        let issuer = issuer.map_err(|e| unusable(certificate, &e.to_string()))?;
        Ok(Self {
            issuer,
            certificate: text,
            trust_domain,
            ends,
        })
    }

    /// Its own certificate and key.
    pub(super) fn made(&self) -> Made {
        Made {
            certificate: self.certificate.clone(),
            key: self.issuer.key().serialize_pem(),
            ends: self.ends.unix_timestamp(),
        }
    }

    /// When a certificate of it ends, in words: its days may be more than the CA has left.
    pub(super) fn until(&self, made: &Made) -> String {
        let day = OffsetDateTime::from_unix_timestamp(made.ends)
            .map_or_else(|_| "?".to_owned(), |at| at.date().to_string());
        let with_it = made.ends >= self.ends.unix_timestamp();
        let why = if with_it { ", when its CA ends" } else { "" };
        format!("good until {day}{why}")
    }

    /// The URI in a client's certificate.
    pub(super) fn uri(&self, subject: &Subject<'_>) -> Option<String> {
        let Subject::Client { tenant, job } = subject else {
            return None;
        };
        let tenant = format!("spiffe://{}/tenant/{tenant}", self.trust_domain);
        Some(job.map_or(tenant.clone(), |job| format!("{tenant}/job/{job}")))
    }

    /// A certificate that ends after so many days, and not after the CA's.
    pub(super) fn issue(&self, subject: &Subject<'_>, days: u32) -> Result<Made, Failure> {
        let (mut params, ends) = params(days, Some(self.ends));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let (name, usage) = match subject {
            Subject::Daemon { hosts } => {
                for host in *hosts {
                    params.subject_alt_names.push(host_name(host)?);
                }
                ("evenkeeld", ExtendedKeyUsagePurpose::ServerAuth)
            }
            Subject::Client { tenant, .. } => {
                let uri = self.uri(subject).unwrap_or_default();
                params.subject_alt_names.push(uri_name(&uri)?);
                (*tenant, ExtendedKeyUsagePurpose::ClientAuth)
            }
        };
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().map_err(failed)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Made {
            certificate: signed.pem(),
            key: key.serialize_pem(),
            ends: ends.unix_timestamp(),
        })
    }
}

fn params(days: u32, not_after: Option<OffsetDateTime>) -> (CertificateParams, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    let wanted = now + Duration::days(days.into());
    let ends = not_after.map_or(wanted, |last| wanted.min(last));
    let mut params = CertificateParams::default();
    params.not_before = now - BEFORE;
    params.not_after = ends;
    params.distinguished_name = rcgen::DistinguishedName::new();
    (params, ends)
}

fn failed(error: rcgen::Error) -> Failure {
    Failure::new(format!("cannot make the certificate: {error}"))
}

fn uri_name(uri: &str) -> Result<SanType, Failure> {
    Ok(SanType::URI(uri.try_into().map_err(failed)?))
}

fn host_name(host: &str) -> Result<SanType, Failure> {
    if let Ok(address) = host.parse() {
        return Ok(SanType::IpAddress(address));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    match host.try_into() {
        Ok(name) if !host.is_empty() && host.chars().all(plain) => Ok(SanType::DnsName(name)),
        _ => Err(Failure::usage(format!(
            "--host {host}: that is no name or address of a host, such as gpu1.lab.example or 10.0.0.7"
        ))),
    }
}

/// The trust domain that a CA is of, and its end.
fn domain_of(pem: &str) -> Option<(String, OffsetDateTime)> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let (_, parsed) = X509Certificate::from_der(&block.contents).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let domain = names
        .value
        .general_names
        .iter()
        .find_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix("spiffe://"),
            _ => None,
        })?;
    Some((domain.to_owned(), parsed.validity().not_after.to_datetime()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The URIs of a certificate, and when it ends.
    fn seen(made: &Made) -> (Vec<String>, i64) {
        let (_, block) = x509_parser::pem::parse_x509_pem(made.certificate.as_bytes()).unwrap();
        let (_, parsed) = X509Certificate::from_der(&block.contents).unwrap();
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        let uris = names.value.general_names.iter().filter_map(|n| match n {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
        (uris.collect(), parsed.validity().not_after.timestamp())
    }

    #[test]
    fn a_certificate_has_one_uri_and_ends_with_its_ca() {
        let authority = Authority::new("lab", 10).unwrap();
        let whole = Subject::Client {
            tenant: "arms",
            job: None,
        };
        let limited = Subject::Client {
            tenant: "arms",
            job: Some("pick"),
        };
        for (subject, uri) in [
            (&whole, "spiffe://lab/tenant/arms"),
            (&limited, "spiffe://lab/tenant/arms/job/pick"),
        ] {
            let made = authority.issue(subject, 100).unwrap();
            assert_eq!(seen(&made).0, [uri]);
            assert_eq!(seen(&made).1, authority.made().ends, "not beyond the CA");
        }
        let hosts = ["gpu1".to_owned(), "10.0.0.7".to_owned(), "::1".to_owned()];
        let daemon = authority
            .issue(&Subject::Daemon { hosts: &hosts }, 1)
            .unwrap();
        assert_eq!(seen(&daemon).0, [""; 0]);
        let bad = ["no host".to_owned()];
        assert!(
            authority
                .issue(&Subject::Daemon { hosts: &bad }, 1)
                .is_err()
        );
    }

    #[test]
    fn whom_a_certificate_is_for_is_read_from_it() {
        let authority = Authority::new("lab", 10).unwrap();
        let job = Subject::Client {
            tenant: "arms",
            job: Some("pick"),
        };
        let hosts = ["gpu1".to_owned()];
        let daemon = Subject::Daemon { hosts: &hosts };
        let uri = "spiffe://lab/tenant/arms/job/pick".to_owned();
        for (made, expect) in [
            (authority.made(), Some(Holder::Ca)),
            (authority.issue(&job, 1).unwrap(), Some(Holder::Client(uri))),
            (authority.issue(&daemon, 1).unwrap(), Some(Holder::Daemon)),
        ] {
            assert_eq!(Holder::of(&made.certificate), expect);
        }
        assert_eq!(Holder::of("to whom it may concern"), None);
    }

    #[test]
    fn the_end_that_is_told_is_the_real_one() {
        let authority = Authority::new("lab", 10).unwrap();
        let daemon = Subject::Daemon { hosts: &[] };
        for (days, expect) in [(1, false), (100, true)] {
            let told = authority.until(&authority.issue(&daemon, days).unwrap());
            assert_eq!(told.ends_with("when its CA ends"), expect, "{told}");
            let until = OffsetDateTime::now_utc() + Duration::days(days.min(10).into());
            // Either day, should midnight come between.
            let day = |at: OffsetDateTime| told.contains(&at.date().to_string());
            assert!(day(until) || day(until - Duration::minutes(1)), "{told}");
        }
    }

    #[test]
    fn a_ca_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (pem, key) = (folder.path().join("ca.pem"), folder.path().join("ca.key"));
        let made = Authority::new("lab", 10).unwrap().made();
        fs::write(&pem, &made.certificate).unwrap();
        fs::write(&key, &made.key).unwrap();
        let again = Authority::load(&pem, &key).unwrap();
        assert_eq!(again.trust_domain, "lab");
        assert_eq!(again.made().ends, made.ends);
        fs::write(&pem, "nonsense").unwrap();
        assert!(Authority::load(&pem, &key).is_err());
        assert!(Authority::load(&folder.path().join("none"), &key).is_err());
    }
}
