//! Whose requests are whose, and what a tenant may have: the tenant map, and the files of mutual TLS.
//!
//! Not here: how a certificate or a token is read (`api::tenants`), what values are sensible (`check`).
use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_core::caps::{Cap, Caps};
use evenkeel_core::id::Name;
use evenkeel_core::unit::Sms;
use serde::{Deserialize, Serialize};

use super::Size;

/// The files of mutual TLS, for gRPC over TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// The daemon's certificate with what leads to its CA, PEM; empty: no TLS.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The CA (or several) of clients, PEM.
    pub client_ca: PathBuf,
    /// The SPIFFE trust domain of clients' certificates.
    pub trust_domain: String,
}

impl TlsConfig {
    /// Whether any of it is set.
    pub fn is_set(&self) -> bool {
        [&self.certificate, &self.key, &self.client_ca]
            .iter()
            .any(|path| !path.as_os_str().is_empty())
    }
}

/// Whose requests are whose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantsConfig {
    /// Refuses whoever is not listed here.
    pub exclusive: bool,
    /// By uid, in decimal. Who is not listed is a tenant of its own, `uid:1000`.
    pub uids: BTreeMap<String, Tenant>,
    /// By the URI in the certificate, whole or up to its tenant. Who is not listed is the tenant that the URI names.
    pub certificates: BTreeMap<String, Tenant>,
    /// By the token's SHA-256, in hexadecimal.
    pub tokens: BTreeMap<String, Token>,
    /// What a tenant may have at most, by its name; `*`: each of the others.
    pub caps: BTreeMap<Name, CapConfig>,
}

/// What a tenant may have at most. What is left out is not capped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapConfig {
    /// Cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// SMs on each GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sms_per_gpu: Option<u32>,
    /// Memory on each GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_per_gpu: Option<Size>,
    /// Live leases, the queue among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<u32>,
    /// Calls a second; renewals and releases do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u32>,
}

impl CapConfig {
    fn cap(&self) -> Cap {
        Cap {
            cores: self.cores,
            sms_per_gpu: self.sms_per_gpu.map(Sms),
            memory_per_gpu: self.memory_per_gpu.map(|size| size.0),
            leases: self.leases,
        }
    }
}

impl TenantsConfig {
    /// The name in `caps` that stands for each of the others.
    pub const OTHERS: &str = "*";

    /// The caps that decisions depend on.
    pub fn caps(&self) -> Caps {
        let (mut named, mut others) = (BTreeMap::new(), Cap::default());
        for (name, config) in &self.caps {
            match name.as_str() {
                Self::OTHERS => others = config.cap(),
                _ => drop(named.insert(name.clone(), config.cap())),
            }
        }
        Caps { named, others }
    }
}

/// What a user is to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Users with the same tenant share leases and jobs.
    pub tenant: Name,
    /// What they may do.
    #[serde(default)]
    pub role: Role,
}

/// What the bearer of a token is to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Whose it is.
    pub tenant: Name,
    /// What its bearer may do.
    #[serde(default)]
    pub role: Role,
    /// Limits it to this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Name>,
    /// Limits it to connections of this user: a copy of it is worth nothing to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// When it ends, such as 2027-01-31T00:00:00Z; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<toml::value::Datetime>,
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sees and changes its tenant's.
    #[default]
    User,
    /// Sees and changes everyone's.
    Admin,
}

impl Token {
    /// When it ends, in seconds since 1970; none: never, or at a date without an offset, which `check` refuses.
    pub fn ends_at(&self) -> Option<i64> {
        unix_seconds(self.expires.as_ref()?)
    }
}

/// Seconds since 1970 of a date with a time and an offset from UTC.
pub(super) fn unix_seconds(at: &toml::value::Datetime) -> Option<i64> {
    use toml::value::Offset;
    let (date, time) = (at.date?, at.time?);
    let offset = match at.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes) * 60,
    };
    let clock = i64::from(time.hour) * 3_600
        + i64::from(time.minute) * 60
        + i64::from(time.second.unwrap_or(0));
    let days = days_from_civil(date.year.into(), date.month.into(), date.day.into());
    Some(days * 86_400 + clock - offset)
}

/// Days since 1970-01-01 in the Gregorian calendar: years begin in March, so that leap days come last.
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (month + 9) % 12;
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_seconds_since_1970() {
        for (text, expect) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2027-01-31T00:00:00Z", Some(1_801_353_600)),
            ("2027-01-31T01:00:00+01:00", Some(1_801_353_600)),
            ("2027-01-31T00:00:00", None),
            ("2027-01-31", None),
        ] {
            let at: toml::value::Datetime = text.parse().unwrap();
            assert_eq!(unix_seconds(&at), expect, "{text}");
        }
    }
}
