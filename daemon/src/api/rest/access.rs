//! Who looks, who may write, and what a web page in somebody's browser may not.
//!
//! A browser sends requests to this address on behalf of any page that it shows. Pages of other origins cannot read
//! the answers, but a simple request would have its effect: so writes ask for a media type that no form can send, and
//! refuse a foreign `Origin`. A name that was made to point here (DNS rebinding) is refused for reads, too.
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use evenkeel_core::command::Caller;
use evenkeel_core::id::Name;
use tokio_util::sync::CancellationToken;

use super::NO_SUCH_PATH;
use super::accept::JSON;
use super::problem::{Problem, Refused};
use crate::api::context::Context;
use crate::api::error;
use crate::api::tenants::Stranger;
use crate::audit::Refusal;

/// Where a browser says that a request comes from (Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Where a request's connection is from.
#[derive(Clone, Debug)]
pub(in crate::api) struct From {
    /// The other end.
    pub(in crate::api) address: SocketAddr,
    /// Whose it is, as far as the kernel says so.
    pub(in crate::api) uid: Option<u32>,
}

impl From {
    fn refusal(&self, reason: &str, why: &str) -> Refusal {
        let uid = self.uid.map_or(String::new(), |uid| format!(", uid {uid}"));
        Refusal {
            door: "rest",
            from: Some(format!("{}{uid}", self.address)),
            reason: reason.to_owned(),
            why: why.to_owned(),
            ..Refusal::default()
        }
    }
}

/// Who a request is from: by its token, else by its connection's user.
#[derive(Clone, Debug)]
pub(super) struct Known {
    who: Arc<Result<Caller, Stranger>>,
    /// When its token ends, in seconds since 1970; none: it does not, or there is none.
    ends: Option<i64>,
}

impl Known {
    /// The caller; none: it is not known.
    pub(super) fn caller(&self) -> Option<&Caller> {
        self.who.as_ref().as_ref().ok()
    }
}

/// Tells who a request is from, for all that handle it.
pub(super) fn known(ctx: &Context, headers: &HeaderMap, from: Option<&From>) -> Known {
    let tenants = &ctx.config.tenants;
    let uid = from.and_then(|from| from.uid);
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let found = match shown.next() {
        // Which of two is meant nobody can tell.
        Some(_) if shown.next().is_some() => Err(Stranger::TokenForm),
        Some(value) => match bearer(value) {
            Some(token) => tenants.by_token(token, uid, now()),
            None => Err(Stranger::TokenForm),
        },
        None => match uid {
            Some(uid) => tenants.by_uid(uid).map(|caller| (caller, None)),
            None => Err(Stranger::Unknown),
        },
    };
    Known {
        ends: found.as_ref().ok().and_then(|(_, ends)| *ends),
        who: Arc::new(found.map(|(caller, _)| caller)),
    }
}

/// Takes one of the caller's requests of this second, or says when there will be one. What gives back does not count, nor
/// does who asks whether the daemon is well.
pub(super) fn in_time(
    ctx: &Context,
    who: &Known,
    method: &Method,
    path: &str,
) -> Result<(), Problem> {
    // A job may have such a name: looking at it is a request like any other.
    let takes_back = path.ends_with("/cancel") || path.ends_with("/revoke");
    let free = path == "/healthz" || (method == Method::POST && takes_back);
    let Some(caller) = who.caller().filter(|_| !free) else {
        return Ok(());
    };
    let Some(limit) = ctx.config.rates.of(&caller.tenant) else {
        return Ok(());
    };
    let taken = ctx.rates.take(&caller.tenant, limit, Instant::now());
    taken.map_err(|retry| error::too_often(retry).into())
}

/// The token of `Bearer TOKEN` (RFC 6750, section 2.1).
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let is_one = scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty();
    is_one.then(|| token.trim())
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Writes down what was refused because of who asked: not known, not permitted, not found (which is what another
/// tenant's is).
pub(super) fn note(ctx: &Context, who: &Known, from: Option<&From>, path: &str, answer: &Response) {
    let status = answer.status();
    let told = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
    ];
    let (Some(from), Some(refused)) = (from, answer.extensions().get::<Refused>()) else {
        return;
    };
    // Of a path that is not there nobody learns anything.
    if !told.contains(&status) || refused.reason == NO_SUCH_PATH {
        return;
    }
    let line = match (status, &*who.who) {
        // What is wrong with a token is for the admin only.
        (StatusCode::UNAUTHORIZED, Err(stranger)) => {
            from.refusal(stranger.reason(), &stranger.to_string())
        }
        _ => from.refusal(&refused.reason, &refused.detail),
    };
    ctx.config.audit.refused(Refusal {
        who: who.caller().map(|caller| caller.tenant.to_string()),
        call: Some(path.to_owned()),
        ..line
    });
}

/// Who looks: what is not theirs does not exist for them.
pub(super) struct Viewer(pub(super) Caller);

impl FromRequestParts<Arc<Context>> for Viewer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Context>) -> Result<Self, Problem> {
        let known = parts.extensions.get::<Known>();
        match known.map(|known| &*known.who) {
            Some(Ok(caller)) => Ok(Self(caller.clone())),
            Some(Err(stranger)) => Err(stranger.status().into()),
            None => Err(Stranger::Unknown.status().into()),
        }
    }
}

/// When a request's right ends, and with it the stream that it asked for; none: it does not.
pub(super) struct Ends(pub(super) Option<tokio::time::Instant>);

impl FromRequestParts<Arc<Context>> for Ends {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Context>) -> Result<Self, Infallible> {
        let ends = parts.extensions.get::<Known>().and_then(|known| known.ends);
        let left = ends.map(|ends| u64::try_from(ends.saturating_sub(now())).unwrap_or(0));
        // One that is too far away to be counted does not come.
        let at = |s| tokio::time::Instant::now().checked_add(Duration::from_secs(s));
        Ok(Self(left.and_then(at)))
    }
}

/// Whoever looks at what everybody may see. Who is not known sees nobody's; who shows a token shows a good one, or a
/// scraper whose token has ended would miss what it came for and not notice.
pub(super) struct Anybody(pub(super) Caller);

impl FromRequestParts<Arc<Context>> for Anybody {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, ctx: &Arc<Context>) -> Result<Self, Problem> {
        match Viewer::from_request_parts(parts, ctx).await {
            Ok(Viewer(caller)) => Ok(Self(caller)),
            Err(refused) if parts.headers.contains_key(header::AUTHORIZATION) => Err(refused),
            Err(_) => Ok(Self(Caller::user(Name::unknown()))),
        }
    }
}

/// An admin who may change things here, and means to.
pub(super) struct Writer(pub(super) Caller);

impl FromRequestParts<Arc<Context>> for Writer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, ctx: &Arc<Context>) -> Result<Self, Problem> {
        if !ctx.config.rest_writes {
            let detail = "this address only shows: listen.rest_writes is false. Set it to true in the daemon's \
                          configuration, or use `evenkeel` on the Unix socket";
            return Err(Problem::new(StatusCode::FORBIDDEN, "WRITES_OFF", detail));
        }
        own_page(&parts.headers)?;
        json_body(&parts.headers)?;
        let Viewer(caller) = Viewer::from_request_parts(parts, ctx).await?;
        if !caller.admin {
            let detail = "only an admin may change anything over REST; use `evenkeel` on the Unix socket for your own";
            return Err(Problem::new(StatusCode::FORBIDDEN, "NOT_ADMIN", detail));
        }
        Ok(Self(caller))
    }
}

/// Refuses what a page of another origin makes a browser send.
fn own_page(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |from: &str| {
        let detail = format!("a page of another origin ({from}) may not change anything here");
        Err(Problem::new(StatusCode::FORBIDDEN, "CROSS_ORIGIN", &detail))
    };
    // Nothing but a browser sends these, and a page cannot forge them.
    for site in headers.get_all(SEC_FETCH_SITE) {
        if site != "same-origin" && site != "none" {
            return refused("Sec-Fetch-Site");
        }
    }
    let host = headers.get(header::HOST).and_then(|h| h.to_str().ok());
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let same = origin
            .strip_prefix("http://")
            .is_some_and(|at| host.is_some_and(|host| host.eq_ignore_ascii_case(at)));
        if !same {
            return refused("Origin");
        }
    }
    Ok(())
}

/// Asks for a media type that a page of another origin cannot send unasked.
fn json_body(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(JSON) {
        return Ok(());
    }
    let detail = format!("the body has to be {JSON} (and say so in Content-Type), such as {{}}");
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "NOT_JSON",
        &detail,
    ))
}

/// Set when the request's connection should end: it is old, or the daemon stops.
#[derive(Clone, Debug)]
pub(in crate::api) struct Closing(pub(in crate::api) CancellationToken);

impl FromRequestParts<Arc<Context>> for Closing {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, ctx: &Arc<Context>) -> Result<Self, Infallible> {
        let known = parts.extensions.get::<Self>().cloned();
        Ok(known.unwrap_or_else(|| Self(ctx.stop.child_token())))
    }
}

/// Whether a request names this machine by a name that only this machine has.
pub(super) fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let loopback = address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    name.eq_ignore_ascii_case("localhost") || loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_names_are_answered() {
        for (host, expect) in [
            ("localhost", true),
            ("LOCALHOST:7420", true),
            ("127.0.0.1:7420", true),
            ("127.3.2.1", true),
            ("[::1]:7420", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:7420", false),
            ("localhost.evil.example", false),
            ("10.0.0.1:7420", false),
            ("", false),
        ] {
            assert_eq!(is_local(host), expect, "{host:?}");
        }
    }

    #[test]
    fn a_page_of_another_origin_cannot_write() {
        for (headers, may) in [
            (&[][..], true),
            (&[("origin", "http://localhost:7420")], true),
            (&[("origin", "HTTP://localhost:7420")], false),
            (&[("origin", "http://localhost:3000")], false),
            (&[("origin", "https://localhost:7420")], false),
            (&[("origin", "http://evil.example")], false),
            (&[("origin", "null")], false),
            (&[("origin", "")], false),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (
                &[
                    ("origin", "http://localhost:7420"),
                    ("sec-fetch-site", "cross-site"),
                ],
                false,
            ),
        ] {
            let mut all = HeaderMap::new();
            all.insert(header::HOST, "localhost:7420".parse().unwrap());
            for (name, value) in headers {
                all.append(*name, value.parse().unwrap());
            }
            assert_eq!(own_page(&all).is_ok(), may, "{headers:?}");
        }
    }

    #[test]
    fn a_form_cannot_write() {
        for (kind, may) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data; boundary=x", false),
            ("text/plain", false),
            ("application/jsonp", false),
            ("", false),
        ] {
            let mut all = HeaderMap::new();
            all.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            assert_eq!(json_body(&all).is_ok(), may, "{kind:?}");
        }
        assert!(json_body(&HeaderMap::new()).is_err());
    }
}
