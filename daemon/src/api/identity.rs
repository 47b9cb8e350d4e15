//! Who a certificate is for: exactly one URI among its alternative names, `spiffe://DOMAIN/tenant/T` or
//! `spiffe://DOMAIN/tenant/T/job/J` (SPIFFE ID, sections 2 and 5; X.509-SVID, section 2: more than one URI is refused).
//!
//! Not here: whether the certificate is genuine, which the TLS handshake has found out.
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_core::id::Name;
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

/// Longest URI (SPIFFE ID, section 2.3).
const URI_MAX: usize = 2_048;

/// What a certificate says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The whole URI.
    pub(super) uri: String,
    /// The URI up to its tenant.
    pub(super) of_tenant: String,
    /// The tenant that it names.
    pub(super) tenant: Name,
    /// The job that it is limited to.
    pub(super) job: Option<Name>,
    /// When the certificate ends.
    pub(super) ends: SystemTime,
}

/// Why a certificate names nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nameless {
    /// It cannot be read.
    Unreadable,
    /// It has so many URIs, and not one.
    Uris(usize),
    /// Its URI is not of the form that is asked for.
    Form(String),
    /// Its URI is of another trust domain than this one.
    Domain(String, String),
}

impl fmt::Display for Nameless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("the certificate cannot be read"),
            Self::Uris(n) => write!(
                f,
                "the certificate has {n} URIs among its alternative names, and has to have exactly one, such as \
                 spiffe://evenkeel/tenant/robotics"
            ),
            Self::Form(uri) => write!(
                f,
                "the certificate's URI is {uri:?}; it has to be spiffe://DOMAIN/tenant/TENANT or \
                 spiffe://DOMAIN/tenant/TENANT/job/JOB, with letters, digits, `.`, `-` and `_` in the names"
            ),
            Self::Domain(theirs, ours) => write!(
                f,
                "the certificate is of the trust domain {theirs:?}; this daemon's is {ours:?} (tls.trust_domain)"
            ),
        }
    }
}

/// Who a certificate (DER) of this trust domain is for.
pub(super) fn of(certificate: &[u8], trust_domain: &str) -> Result<Identity, Nameless> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| Nameless::Unreadable)?;
    let names = parsed
        .extensions()
        .iter()
        .filter_map(|e| match e.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(san) => Some(&san.general_names),
            _ => None,
        });
    let uris: Vec<&str> = names
        .flatten()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    let [uri] = uris[..] else {
        return Err(Nameless::Uris(uris.len()));
    };
    let ends = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    named(uri, trust_domain, UNIX_EPOCH + Duration::from_secs(ends))
}

/// Whether a certificate of this trust domain could have this URI.
pub(crate) fn check(uri: &str, trust_domain: &str) -> Result<(), Nameless> {
    named(uri, trust_domain, UNIX_EPOCH).map(drop)
}

fn named(uri: &str, trust_domain: &str, ends: SystemTime) -> Result<Identity, Nameless> {
    let form = || Nameless::Form(uri.chars().take(200).collect());
    let path = uri.strip_prefix("spiffe://").ok_or_else(form)?;
    if uri.len() > URI_MAX {
        return Err(form());
    }
    let parts: Vec<&str> = path.split('/').collect();
    let (domain, tenant, job) = match parts[..] {
        [domain, "tenant", tenant] => (domain, tenant, None),
        [domain, "tenant", tenant, "job", job] => (domain, tenant, Some(job)),
        _ => return Err(form()),
    };
    if domain != trust_domain {
        return Err(Nameless::Domain(domain.to_owned(), trust_domain.to_owned()));
    }
    let name = |text: &str| segment(text).ok_or_else(form);
    Ok(Identity {
        of_tenant: format!("spiffe://{domain}/tenant/{tenant}"),
        uri: uri.to_owned(),
        tenant: name(tenant)?,
        job: job.map(name).transpose()?,
        ends,
    })
}

/// A segment of a SPIFFE ID's path (section 2.2), as a name.
fn segment(text: &str) -> Option<Name> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let is_one = text.chars().all(plain) && text != "." && text != "..";
    is_one.then(|| Name::new(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[SanType]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }
    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    #[test]
    fn one_uri_names_a_tenant_and_perhaps_a_job() {
        let host = SanType::DnsName("host".try_into().unwrap());
        let found = of(
            &certificate(&[host, uri("spiffe://lab/tenant/arms/job/pick")]),
            "lab",
        );
        let found = found.unwrap();
        assert_eq!(found.tenant.as_str(), "arms");
        assert_eq!(found.job.as_ref().map(Name::as_str), Some("pick"));
        assert_eq!(found.of_tenant, "spiffe://lab/tenant/arms");
        assert!(found.ends > SystemTime::now());
        let whole = of(&certificate(&[uri("spiffe://lab/tenant/arms")]), "lab").unwrap();
        assert_eq!(whole.job, None);
        assert_eq!(whole.uri, whole.of_tenant);
    }

    #[test]
    fn anything_else_names_nobody() {
        assert_eq!(of(b"no certificate", "lab"), Err(Nameless::Unreadable));
        assert_eq!(of(&certificate(&[]), "lab"), Err(Nameless::Uris(0)));
        let two = [uri("spiffe://lab/tenant/a"), uri("spiffe://lab/tenant/b")];
        assert_eq!(of(&certificate(&two), "lab"), Err(Nameless::Uris(2)));
        for (text, form) in [
            ("spiffe://other/tenant/a", false),
            ("spiffe://LAB/tenant/a", false),
            ("https://lab/tenant/a", true),
            ("spiffe://lab/tenant/", true),
            ("spiffe://lab/tenant/a/", true),
            ("spiffe://lab/tenant/a/job/", true),
            ("spiffe://lab/tenant/a/job/b/c", true),
            ("spiffe://lab/tenant/..", true),
            ("spiffe://lab/tenant/a%20b", true),
            ("spiffe://lab/tenant/uid:0", true),
            ("spiffe://lab/job/a", true),
        ] {
            let refused = of(&certificate(&[uri(text)]), "lab").unwrap_err();
            assert_eq!(
                matches!(refused, Nameless::Form(_)),
                form,
                "{text}: {refused:?}"
            );
        }
    }
}
