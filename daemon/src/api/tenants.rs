//! The tenant map: from a uid, a certificate or a token to a caller, or to the reason why there is none.
//!
//! Not here: what a caller may see (`evenkeel_core::command::Caller`), and whether a certificate is genuine (TLS).
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use evenkeel_core::command::Caller;
use evenkeel_core::id::Name;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tonic::{Code, Status};

use super::error;
use super::identity::{Identity, Nameless};
use crate::config::{Role, Tenant, TenantsConfig, Token};

/// Bytes of a token's digest.
const DIGEST: usize = 32;

/// See the module's text. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tenants(Arc<Map>);

#[derive(Debug)]
enum Map {
    Listed(Listed),
    Everybody(Caller),
}

#[derive(Debug)]
struct Listed {
    own_uid: u32,
    exclusive: bool,
    uids: HashMap<u32, Caller>,
    certificates: BTreeMap<String, Caller>,
    tokens: Vec<([u8; DIGEST], Token)>,
}

/// Why somebody is nobody here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// A user who is not listed, where only those who are may come.
    Uid(u32),
    /// A certificate that names nobody.
    Certificate(Nameless),
    /// A certificate that is not listed, where only those that are may come.
    Unlisted(String),
    /// No token like this was given out, or it was taken back.
    Token,
    /// The token has ended.
    TokenEnded,
    /// The token is another user's.
    TokenOfAnother,
    /// What should hold a token does not.
    TokenForm,
    /// The kernel does not say whose connection it is, and there is no token.
    Unknown,
}

impl Stranger {
    /// For machines.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Uid(_) => "NO_TENANT",
            Self::Certificate(_) => "BAD_CERTIFICATE",
            Self::Unlisted(_) => "UNLISTED_CERTIFICATE",
            Self::Token | Self::TokenEnded | Self::TokenOfAnother | Self::TokenForm => "BAD_TOKEN",
            Self::Unknown => "NO_TOKEN",
        }
    }

    /// What the stranger is told: of a token, not what is wrong with it.
    pub(super) fn status(&self) -> Status {
        let told = match self {
            Self::TokenEnded | Self::TokenOfAnother => Self::Token.to_string(),
            other => other.to_string(),
        };
        error::plain(Code::Unauthenticated, self.reason(), &told)
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(
                f,
                "user {uid} has no tenant on this node; ask its admin for a line in [tenants.uids]"
            ),
            Self::Certificate(why) => why.fmt(f),
            Self::Unlisted(uri) => write!(
                f,
                "{uri} has no tenant on this node; ask its admin for a line in [tenants.certificates]"
            ),
            Self::Token => f.write_str("the token is not valid here; ask the node's admin for another"),
            Self::TokenEnded => f.write_str("the token has ended"),
            Self::TokenOfAnother => f.write_str("the token is limited to another user"),
            Self::TokenForm => f.write_str("the header has to be `Authorization: Bearer TOKEN`"),
            Self::Unknown => f.write_str(
                "whose connection this is cannot be told; send a token: `Authorization: Bearer TOKEN`",
            ),
        }
    }
}

impl Tenants {
    /// From the daemon's configuration, which has been checked. `own_uid` is the daemon's.
    pub fn new(config: &TenantsConfig, own_uid: u32) -> Self {
        let caller = |t: &Tenant| caller(&t.tenant, t.role, None);
        let uids = config.uids.iter();
        let certificates = config.certificates.iter();
        let tokens = config.tokens.iter();
        Self(Arc::new(Map::Listed(Listed {
            own_uid,
            exclusive: config.exclusive,
            uids: uids
                .filter_map(|(uid, t)| Some((uid.parse().ok()?, caller(t))))
                .collect(),
            certificates: certificates
                .map(|(uri, t)| (uri.clone(), caller(t)))
                .collect(),
            tokens: tokens
                .filter_map(|(digest, token)| Some((digest_of_hex(digest)?, token.clone())))
                .collect(),
        })))
    }

    /// Whoever comes is this one: for a daemon without users of its own, such as one in a test.
    pub fn everybody(caller: Caller) -> Self {
        Self(Arc::new(Map::Everybody(caller)))
    }

    /// A user of this machine.
    pub(super) fn by_uid(&self, uid: u32) -> Result<Caller, Stranger> {
        let listed = match &*self.0 {
            Map::Everybody(caller) => return Ok(caller.clone()),
            Map::Listed(listed) => listed,
        };
        if let Some(caller) = listed.uids.get(&uid) {
            return Ok(caller.clone());
        }
        let own = Name::new(&format!("uid:{uid}")).unwrap_or_else(|_| Name::unknown());
        // Root and the daemon's own user can do what they like to the ledger's file anyway.
        if uid == 0 || uid == listed.own_uid {
            return Ok(Caller::admin(own));
        }
        if listed.exclusive {
            return Err(Stranger::Uid(uid));
        }
        Ok(Caller::user(own))
    }

    /// The holder of a genuine certificate.
    pub(super) fn by_certificate(&self, who: &Identity) -> Result<Caller, Stranger> {
        let found = match &*self.0 {
            Map::Everybody(caller) => return Ok(caller.clone()),
            Map::Listed(listed) => {
                let whole = listed.certificates.get(&who.uri);
                let found = whole.or_else(|| listed.certificates.get(&who.of_tenant));
                match found {
                    None if listed.exclusive => {
                        return Err(Stranger::Unlisted(who.uri.clone()));
                    }
                    found => found.cloned(),
                }
            }
        };
        let caller = found.unwrap_or_else(|| Caller::user(who.tenant.clone()));
        Ok(match &who.job {
            Some(job) => caller.within(job.clone()),
            None => caller,
        })
    }

    /// The bearer of a token at this time (seconds since 1970), and when the token ends. `uid` is the connection's user,
    /// where that is known.
    pub(super) fn by_token(
        &self,
        token: &str,
        uid: Option<u32>,
        now: i64,
    ) -> Result<(Caller, Option<i64>), Stranger> {
        let Map::Listed(listed) = &*self.0 else {
            return Err(Stranger::Token);
        };
        let given: [u8; DIGEST] = Sha256::digest(token.as_bytes()).into();
        // All are compared, each in the same time: how long it takes tells nothing about what there is.
        let mut found = None;
        for (digest, token) in &listed.tokens {
            if bool::from(digest.ct_eq(&given)) {
                found = Some(token);
            }
        }
        let token = found.ok_or(Stranger::Token)?;
        if token.ends_at().is_some_and(|end| end <= now) {
            return Err(Stranger::TokenEnded);
        }
        if token.uid.is_some_and(|own| Some(own) != uid) {
            return Err(Stranger::TokenOfAnother);
        }
        let caller = caller(&token.tenant, token.role, token.job.as_ref());
        Ok((caller, token.ends_at()))
    }
}

fn caller(tenant: &Name, role: Role, job: Option<&Name>) -> Caller {
    let caller = match role {
        Role::Admin => Caller::admin(tenant.clone()),
        Role::User => Caller::user(tenant.clone()),
    };
    match job {
        Some(job) => caller.within(job.clone()),
        None => caller,
    }
}

/// A digest from its hexadecimal form.
fn digest_of_hex(text: &str) -> Option<[u8; DIGEST]> {
    let mut digest = [0; DIGEST];
    if text.len() != 2 * DIGEST || !text.is_ascii() {
        return None;
    }
    for (i, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// SHA-256 of `secret`.
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    fn tenants(text: &str) -> Tenants {
        Tenants::new(&toml::from_str(text).unwrap(), 33)
    }
    fn shown(found: Result<Caller, Stranger>) -> String {
        match found {
            Ok(c) => {
                let job = c.job.map_or(String::new(), |job| format!(" for {job}"));
                format!("{}{}{job}", c.tenant, if c.admin { " (admin)" } else { "" })
            }
            Err(stranger) => stranger.reason().to_owned(),
        }
    }
    fn holder(tenant: &str, job: Option<&str>) -> Identity {
        let of_tenant = format!("spiffe://lab/tenant/{tenant}");
        Identity {
            uri: job.map_or(of_tenant.clone(), |job| format!("{of_tenant}/job/{job}")),
            of_tenant,
            tenant: Name::new(tenant).unwrap(),
            job: job.map(|job| Name::new(job).unwrap()),
            ends: SystemTime::now(),
        }
    }

    #[test]
    fn users_are_who_the_map_says() {
        let listed = "[uids]\n1000 = { tenant = \"arms\" }\n1001 = { tenant = \"arms\", role = \"admin\" }\n";
        let check = |text: &str, uid, expect: &str| {
            assert_eq!(shown(tenants(text).by_uid(uid)), expect, "{uid} in {text}");
        };
        check(listed, 1000, "arms");
        check(listed, 1001, "arms (admin)");
        check(listed, 1002, "uid:1002");
        check(listed, 0, "uid:0 (admin)");
        check(listed, 33, "uid:33 (admin)");
        let exclusive = format!("exclusive = true\n{listed}");
        check(&exclusive, 1000, "arms");
        check(&exclusive, 1002, "NO_TENANT");
        check(&exclusive, 0, "uid:0 (admin)");
    }

    #[test]
    fn certificates_are_who_they_say_or_who_the_map_says() {
        let listed = "[certificates]\n\"spiffe://lab/tenant/arms\" = { tenant = \"robotics\", role = \"admin\" }\n\
                      \"spiffe://lab/tenant/legs/job/walk\" = { tenant = \"robotics\" }\n";
        let check = |text: &str, who: Identity, expect: &str| {
            let found = tenants(text).by_certificate(&who);
            assert_eq!(shown(found), expect, "{} in {text}", who.uri);
        };
        check("", holder("arms", None), "arms");
        check("", holder("arms", Some("pick")), "arms for pick");
        check(listed, holder("arms", None), "robotics (admin)");
        check(listed, holder("arms", Some("pick")), "robotics for pick");
        check(listed, holder("legs", Some("walk")), "robotics for walk");
        check(listed, holder("legs", Some("run")), "legs for run");
        let exclusive = format!("exclusive = true\n{listed}");
        check(
            &exclusive,
            holder("legs", Some("run")),
            "UNLISTED_CERTIFICATE",
        );
        check(
            &exclusive,
            holder("legs", Some("walk")),
            "robotics for walk",
        );
    }

    #[test]
    fn tokens_are_good_until_they_end_and_for_their_user() {
        let with = |more: &str| format!("[tokens]\n{SECRET} = {{ tenant = \"arms\"{more} }}\n");
        let check = |more: &str, token, uid, expect: &str| {
            let found = tenants(&with(more)).by_token(token, uid, 1_801_353_600);
            let found = found.map(|(caller, _)| caller);
            assert_eq!(shown(found), expect, "{token} as {uid:?}, {more}");
        };
        check("", "secret", None, "arms");
        check("", "Secret", None, "BAD_TOKEN");
        check("", "", None, "BAD_TOKEN");
        check(", role = \"admin\"", "secret", None, "arms (admin)");
        check(
            ", role = \"admin\", job = \"pick\"",
            "secret",
            None,
            "arms for pick",
        );
        check(", expires = 2027-01-31T00:00:01Z", "secret", None, "arms");
        check(
            ", expires = 2027-01-31T00:00:00Z",
            "secret",
            None,
            "BAD_TOKEN",
        );
        check(", uid = 1000", "secret", Some(1000), "arms");
        check(", uid = 1000", "secret", Some(1001), "BAD_TOKEN");
        check(", uid = 1000", "secret", None, "BAD_TOKEN");
        assert_eq!(
            Stranger::TokenEnded.status().message(),
            Stranger::Token.status().message(),
            "what is wrong with a token is not told"
        );
    }
}
