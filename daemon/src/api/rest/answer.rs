//! Answers: an object or a page as JSON, with a tag that changes with its bytes, and a link to the next page.
use std::fmt::Write as _;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::accept::{self, JSON, NDJSON};
use super::problem::Problem;

/// Bytes of the digest that a tag shows: 128 bits do not collide by chance.
const TAG_BYTES: usize = 16;

/// What a handler of an object returns.
pub(super) type Answer<T> = Result<Shown<T>, Problem>;

/// An object or a page that can be asked for again.
#[derive(Debug)]
pub(super) struct Shown<T> {
    what: T,
    next: Option<String>,
}

impl<T> Shown<T> {
    /// An object, or a page without a next one.
    pub(super) fn new(what: impl Into<T>) -> Self {
        Self {
            what: what.into(),
            next: None,
        }
    }
    /// A page, and the path of the next one if there is one.
    pub(super) const fn page(what: T, next: Option<String>) -> Self {
        Self { what, next }
    }
}

impl<T: Serialize> IntoResponse for Shown<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.what) {
            Ok(body) => tagged(body.into(), JSON, self.next.as_deref()),
            Err(error) => unwritable(&error),
        }
    }
}

/// The same objects, one a line.
pub(super) fn lines<T: Serialize>(what: &[T], next: Option<&str>) -> Response {
    let mut body = Vec::new();
    for one in what {
        if let Err(error) = serde_json::to_writer(&mut body, one) {
            return unwritable(&error);
        }
        body.push(b'\n');
    }
    tagged(body.into(), NDJSON, next)
}

fn unwritable(error: &serde_json::Error) -> Response {
    tracing::error!(%error, "an answer cannot be written as JSON");
    Problem::bug("the answer cannot be written as JSON").into_response()
}

/// A body with its tag.
pub(super) fn tagged(body: Bytes, kind: &'static str, next: Option<&str>) -> Response {
    let mut response = Response::new(Body::from(body.clone()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // To be asked about each time; the tag makes that cheap.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if let Ok(tag) = HeaderValue::try_from(tag(&body)) {
        headers.insert(header::ETAG, tag);
    }
    let link = next.and_then(|next| HeaderValue::try_from(format!("<{next}>; rel=\"next\"")).ok());
    if let Some(link) = link {
        headers.insert(header::LINK, link);
    }
    response
}

/// A strong tag: it is the body's digest.
fn tag(body: &[u8]) -> String {
    let mut tag = String::from("\"");
    for byte in Sha256::digest(body).iter().take(TAG_BYTES) {
        let _ = write!(tag, "{byte:02x}"); // a String takes all
    }
    tag.push('"');
    tag
}

/// The answer, or only that it is what the client has.
pub(super) fn unless_known(asked: &HeaderMap, response: Response) -> Response {
    let tag = response.headers().get(header::ETAG);
    let tag = tag.and_then(|tag| tag.to_str().ok());
    let known = tag.is_some_and(|tag| accept::knows(asked, tag));
    if response.status() != StatusCode::OK || !known {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::NOT_MODIFIED;
    for gone in [header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        parts.headers.remove(gone);
    }
    Response::from_parts(parts, Body::empty())
}
