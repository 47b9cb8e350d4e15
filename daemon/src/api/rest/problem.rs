//! Errors as RFC 9457 problems: the same codes, reasons and sentences as over gRPC.
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use utoipa::ToSchema;

use crate::api::convert::Bad;
use crate::api::error;
use crate::api::limits::COME_BACK;

/// What such an answer is.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// What went wrong, as in RFC 9457.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// The kind of problem, as an address that names it.
    #[serde(rename = "type")]
    kind: String,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// What was tried, what was wrong, and what to do, for a person.
    detail: String,
    /// The kind of problem in upper snake case, the same as over gRPC.
    reason: String,
    /// What belongs to the reason: the field that is wrong, the resource that is short, and by how much.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    /// When to come back, in seconds.
    #[serde(skip)]
    retry_s: Option<NonZeroU32>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, reason: &str, detail: &str) -> Self {
        let name = reason.to_lowercase();
        Self {
            kind: format!("https://{}/problems/{name}", error::DOMAIN),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.to_owned(),
            reason: reason.to_owned(),
            metadata: BTreeMap::new(),
            retry_s: None,
        }
    }
    /// The request cannot be read.
    pub(super) fn malformed(detail: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID", detail)
    }
    /// The daemon itself is wrong.
    pub(super) fn bug(detail: &str) -> Self {
        let detail = format!("{detail}; this is a bug of the daemon");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "BUG", &detail)
    }
    /// The daemon cannot answer just now.
    pub(super) fn for_now(detail: &str) -> Self {
        Self {
            retry_s: seconds(COME_BACK),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY", detail)
        }
    }
    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// In whole seconds, as `Retry-After` wants it (RFC 9110, section 10.2.3), and not at once.
fn seconds(delay: Duration) -> Option<NonZeroU32> {
    let whole = delay.as_millis().div_ceil(1_000).max(1);
    NonZeroU32::new(u32::try_from(whole).unwrap_or(u32::MAX))
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition => StatusCode::CONFLICT,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let details = status.get_error_details();
        let metadata = details.error_info().map(|info| info.metadata.clone());
        Self {
            metadata: metadata.unwrap_or_default().into_iter().collect(),
            retry_s: details
                .retry_info()
                .and_then(|retry| seconds(retry.retry_delay?)),
            ..Self::new(code, &error::reason(&status), status.message())
        }
    }
}

impl From<Bad> for Problem {
    fn from(bad: Bad) -> Self {
        Status::from(bad).into()
    }
}

/// What was refused and why, beside an answer that says so.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) reason: String,
    pub(super) detail: String,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let retry_s = self.retry_s;
        let refused = Refused {
            reason: self.reason.clone(),
            detail: self.detail.clone(),
        };
        let mut response = (self.status(), Json(self)).into_response();
        let unknown = response.status() == StatusCode::UNAUTHORIZED;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if unknown {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.get()));
        }
        response.extensions_mut().insert(refused);
        response
    }
}
