//! One connection: HTTP/2 for gRPC, HTTP/1 for REST, each with limits, an age and an end.
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_proto::v1 as pb;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tower::ServiceExt as _;

use super::patient::Patient;
use crate::api::caller::{Door, Peer, Visitor};
use crate::api::error;
use crate::api::grpc::{LEASES, LeaseServer};
use crate::api::limits::{
    AGE_GRACE, CERTIFICATE_GRACE, CONNECTION_AGE, CONNECTION_WINDOW, HEADER_TIMEOUT, HEADERS_MAX,
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, READER_PATIENCE, RESETS_LOCAL_MAX, RESETS_PENDING_MAX,
    SEND_BUFFER, STOP_GRACE, STRANGER_AGE, STREAM_WINDOW, STREAMS_PER_CONNECTION,
};
use crate::api::rest::{Closing, From};
use crate::api::tenants::Stranger;
use crate::audit::{Audit, Refusal};

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// An answer in which a message that cannot be read is its sender's fault (INVALID_ARGUMENT), where tonic says that
/// it is ours (INTERNAL).
pub(super) struct Checked {
    answer: Answer,
    /// Who asked for what, and where it is written down if it is refused.
    asked: Option<(Arc<Peer>, Uri, Audit)>,
}

impl Future for Checked {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answered = self.answer.as_mut().poll(cx);
        let asked = &self.asked;
        answered.map_ok(|mut response| {
            let headers = response.headers_mut();
            let header = |name| headers.get(name).map(HeaderValue::as_bytes);
            let unreadable = header("grpc-status") == Some(b"13")
                && header("grpc-message").is_some_and(|m| m.starts_with(b"failed%20to%20decode"));
            if unreadable {
                headers.insert("grpc-status", HeaderValue::from_static("3"));
            }
            if let Some((peer, uri, audit)) = asked {
                note_refusal(headers, peer, uri, audit);
            }
            response
        })
    }
}

/// Writes down what was refused because of who asked: not found (which is what another tenant's is), not permitted, not
/// known.
fn note_refusal(headers: &HeaderMap, peer: &Peer, uri: &Uri, audit: &Audit) {
    let code = headers.get("grpc-status").map(HeaderValue::as_bytes);
    if !matches!(code, Some(b"5" | b"7" | b"16")) {
        return;
    }
    let Some(status) = Status::from_header_map(headers) else {
        return;
    };
    audit.refused(Refusal {
        who: Some(peer.caller.tenant.to_string()),
        call: Some(uri.path().to_owned()),
        ..peer.door.refusal(&error::reason(&status), status.message())
    });
}

/// Where a connection's requests go. Says of each which peer it came from.
#[derive(Clone)]
pub(super) struct Dispatch {
    leases: LeaseServer,
    others: axum::Router,
    counters: Arc<HashMap<String, metrics::Counter>>,
    audit: Audit,
    visitor: Option<Visitor>,
}

impl Dispatch {
    pub(super) fn new(leases: LeaseServer, others: Routes, audit: Audit) -> Self {
        Self {
            leases,
            others: others.into_axum_router(),
            counters: Arc::new(counters()),
            audit,
            visitor: None,
        }
    }

    /// The same for one visitor.
    pub(super) fn with(&self, visitor: Visitor) -> Self {
        Self {
            visitor: Some(visitor),
            ..self.clone()
        }
    }

    /// The same answer to whatever a stranger asks.
    fn turn_away(&self, door: &Door, stranger: &Stranger, uri: &Uri) -> Checked {
        self.audit.refused(Refusal {
            call: Some(uri.path().to_owned()),
            ..door.refusal(stranger.reason(), &stranger.to_string())
        });
        let response = stranger.status().into_http();
        Checked {
            answer: Box::pin(std::future::ready(Ok(response))),
            asked: None,
        }
    }
}

/// A counter for each method, by its path.
fn counters() -> HashMap<String, metrics::Counter> {
    let files = prost_types::FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).unwrap_or_default();
    let mut all = HashMap::new();
    for file in &files.file {
        for service in &file.service {
            for method in &service.method {
                let (service, method) = (service.name(), method.name());
                let labels = [
                    ("service", service.to_owned()),
                    ("method", method.to_owned()),
                ];
                let counter = metrics::counter!("evenkeel_requests_total", &labels);
                all.insert(format!("/{}.{service}/{method}", file.package()), counter);
            }
        }
    }
    all
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Checked;

    fn call(&self, mut request: Request<Incoming>) -> Checked {
        let asked = match &self.visitor {
            Some(Visitor::Stranger(door, stranger)) => {
                return self.turn_away(door, stranger, request.uri());
            }
            Some(Visitor::Peer(peer)) => {
                request.extensions_mut().insert(peer.clone());
                Some((peer.clone(), request.uri().clone(), self.audit.clone()))
            }
            None => None,
        };
        if let Some(counter) = self.counters.get(request.uri().path()) {
            counter.increment(1);
        }
        if request.uri().path().starts_with(LEASES) {
            let answer = self.leases.clone().call(request);
            return Checked { answer, asked };
        }
        let answer = self.others.clone().call(request);
        Checked {
            answer: Box::pin(async move { Ok(answer.await?.map(Body::new)) }),
            asked,
        }
    }
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(RESETS_LOCAL_MAX)
        .max_header_list_size(HEADERS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    builder
}

/// Serves a connection until its client ends it, it is old, or the daemon stops.
pub(super) async fn serve_grpc<I>(stream: I, dispatch: Dispatch, stop: &CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // A child of `stop`: cancelling it ends this connection's streams and nobody else's.
    let (closing, good_for) = match &dispatch.visitor {
        Some(Visitor::Peer(peer)) => (peer.closing.clone(), peer.good_for()),
        _ => (stop.child_token(), Some(STRANGER_AGE)),
    };
    let age = age();
    let grace = match good_for {
        Some(good_for) if good_for < age => CERTIFICATE_GRACE,
        _ => AGE_GRACE,
    };
    let age = good_for.map_or(age, |good_for| good_for.min(age));
    let connection = http2().serve_connection(TokioIo::new(stream), dispatch);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = closing.cancelled() => {}
        () = tokio::time::sleep(age) => {}
    }
    // Streams see that they should end; no new ones are taken (GOAWAY).
    closing.cancel();
    connection.as_mut().graceful_shutdown();
    let patience = async {
        tokio::select! {
            () = tokio::time::sleep(grace) => {}
            () = async {
                stop.cancelled().await;
                tokio::time::sleep(STOP_GRACE).await;
            } => {}
        }
    };
    tokio::select! {
        _ = connection.as_mut() => {}
        () = patience => {}
    }
}

/// About [`CONNECTION_AGE`], up to a tenth more or less, so that clients that came together do not leave together.
fn age() -> Duration {
    static TURN: AtomicU32 = AtomicU32::new(0);
    // Fibonacci hashing spreads consecutive numbers evenly.
    let spread = TURN
        .fetch_add(1, Ordering::Relaxed)
        .wrapping_mul(0x9e37_79b9);
    CONNECTION_AGE.mul_f64(0.9 + 0.2 * f64::from(spread) / f64::from(u32::MAX))
}

/// Serves a REST connection. Streams on it are told when it is to end.
pub(super) async fn serve_rest(
    stream: TcpStream,
    from: From,
    router: axum::Router,
    stop: CancellationToken,
) {
    let closing = stop.child_token();
    let told = Closing(closing.clone());
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(told.clone());
        request.extensions_mut().insert(from.clone());
        request
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADERS_MAX as usize)
        .max_headers(64);
    let service = TowerToHyperService::new(service);
    let stream = TokioIo::new(Patient::new(stream, READER_PATIENCE));
    let connection = builder.serve_connection(stream, service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = tokio::time::sleep(age()) => closing.cancel(),
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(STOP_GRACE, connection.as_mut()).await;
}
