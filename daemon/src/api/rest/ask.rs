//! What a request says, parsed once: paths, queries and bodies, whose mistakes are problems.
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use evenkeel_core::id::Name;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::api::convert;
use crate::api::limits::{BODY_TIMEOUT, NUMBER_MAX, REST_BODY_MAX};

/// The part of the path that varies.
pub(super) struct Path<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for Path<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(path)| Self(path))
            .map_err(|rejection| Problem::malformed(&rejection.body_text()))
    }
}

/// What stands behind the `?`.
pub(super) struct Query<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for Query<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query
            .map(|axum::extract::Query(query)| Self(query))
            .map_err(|rejection| Problem::malformed(&rejection.body_text()))
    }
}

/// A body of JSON. Its media type is looked at by who may write ([`super::access::Writer`]).
pub(super) struct Body<T>(pub(super) T);

impl<T, S> FromRequest<S> for Body<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, state)).await;
        let body = body.map_err(|_| {
            let detail = format!(
                "the body did not arrive within {} s",
                BODY_TIMEOUT.as_secs()
            );
            Problem::new(StatusCode::REQUEST_TIMEOUT, "SLOW_BODY", &detail)
        })?;
        let body = body.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let detail = format!("the body is longer than {REST_BODY_MAX} bytes");
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LONG", &detail)
            }
            _ => Problem::malformed(&rejection.body_text()),
        })?;
        // serde_json goes at most 128 deep, and passes over what nobody asked for without going deep.
        let parsed = serde_json::from_slice(&body);
        parsed.map(Self).map_err(|error| {
            Problem::malformed(&format!("the body is not what is asked for here: {error}"))
        })
    }
}

/// A number that may be an id or a place in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub(super) struct Number(pub(super) u64);

impl TryFrom<u64> for Number {
    type Error = String;

    fn try_from(n: u64) -> Result<Self, String> {
        match n {
            0..=NUMBER_MAX => Ok(Self(n)),
            _ => Err(format!("{n} is more than {NUMBER_MAX}")),
        }
    }
}

/// An id, where one is given. 0 is nobody's.
pub(super) fn id(field: &str, given: Option<Number>) -> Result<u64, Problem> {
    match given {
        None => Ok(0),
        Some(Number(0)) => Err(Problem::from(convert::Bad::new(
            field,
            "0 is no number; they are counted from 1",
        ))),
        Some(Number(n)) => Ok(n),
    }
}

/// How much a page holds: what is asked, where that makes sense.
pub(super) fn limit(asked: Option<u32>, most: u32) -> Result<u32, Problem> {
    match asked {
        None => Ok(most),
        Some(n) if (1..=most).contains(&n) => Ok(n),
        Some(n) => {
            let why = format!("{n} is not from 1 to {most}");
            Err(convert::Bad::new("limit", why).into())
        }
    }
}

/// A name, where one is given.
pub(super) fn name(field: &str, given: Option<&str>) -> Result<Option<Name>, Problem> {
    Ok(given.map(|text| convert::name(field, text)).transpose()?)
}

/// The path of the next page: the same with another `after`.
pub(super) fn next_page(uri: &Uri, after: &str) -> String {
    let others = uri.query().unwrap_or_default().split('&');
    let others = others.filter(|pair| !pair.is_empty() && !pair.starts_with("after="));
    let mut query: Vec<String> = others.map(str::to_owned).collect();
    query.push(format!("after={after}"));
    format!("{}?{}", uri.path(), query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_what_was_asked_or_it_is_refused() {
        for (asked, expect) in [
            (None, Some(10)),
            (Some(1), Some(1)),
            (Some(10), Some(10)),
            (Some(0), None),
            (Some(11), None),
            (Some(u32::MAX), None),
        ] {
            assert_eq!(limit(asked, 10).ok(), expect, "{asked:?}");
        }
        assert!(Number::try_from(NUMBER_MAX).is_ok());
        assert!(Number::try_from(NUMBER_MAX + 1).is_err());
    }

    #[test]
    fn the_next_page_keeps_what_was_asked() {
        for (uri, expect) in [
            ("/v1/leases", "/v1/leases?after=7"),
            ("/v1/leases?limit=2", "/v1/leases?limit=2&after=7"),
            (
                "/v1/leases?after=3&job=a%2Fb",
                "/v1/leases?job=a%2Fb&after=7",
            ),
        ] {
            assert_eq!(next_page(&uri.parse().unwrap(), "7"), expect, "{uri}");
        }
    }
}
