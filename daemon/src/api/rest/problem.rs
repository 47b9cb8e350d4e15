//! Errors as RFC 9457 problems: the same codes, reasons and sentences as over gRPC.
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tonic::{Code, Status};

use crate::api::convert::Bad;
use crate::api::error;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    reason: String,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, reason: &str, detail: &str) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            detail: detail.to_owned(),
        }
    }
    pub(super) fn query(rejection: QueryRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID", &rejection.body_text())
    }
    pub(super) fn path(rejection: PathRejection) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID", &rejection.body_text())
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
            Code::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(code, &error::reason(&status), status.message())
    }
}

impl From<Bad> for Problem {
    fn from(bad: Bad) -> Self {
        Status::from(bad).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": format!("https://{}/problems/{}", error::DOMAIN, self.reason.to_lowercase()),
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "reason": self.reason,
        });
        let mut response = (self.status, Json(body)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}
