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
use hyper::header::HeaderValue;
use hyper::server::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tower::ServiceExt as _;

use super::patient::Patient;
use crate::api::caller::Peer;
use crate::api::grpc::{LEASES, LeaseServer};
use crate::api::limits::{
    AGE_GRACE, CONNECTION_AGE, CONNECTION_WINDOW, HEADER_TIMEOUT, HEADERS_MAX, KEEPALIVE_INTERVAL,
    KEEPALIVE_TIMEOUT, READER_PATIENCE, RESETS_LOCAL_MAX, RESETS_PENDING_MAX, SEND_BUFFER,
    STOP_GRACE, STREAM_WINDOW, STREAMS_PER_CONNECTION,
};
use crate::api::rest::Closing;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// An answer in which a message that cannot be read is its sender's fault (INVALID_ARGUMENT), where tonic says that
/// it is ours (INTERNAL).
pub(super) struct Checked(Answer);

impl Future for Checked {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map_ok(|mut response| {
            let headers = response.headers_mut();
            let header = |name| headers.get(name).map(HeaderValue::as_bytes);
            let unreadable = header("grpc-status") == Some(b"13")
                && header("grpc-message").is_some_and(|m| m.starts_with(b"failed%20to%20decode"));
            if unreadable {
                headers.insert("grpc-status", HeaderValue::from_static("3"));
            }
            response
        })
    }
}

/// Where a connection's requests go. Says of each which peer it came from.
#[derive(Clone)]
pub(super) struct Dispatch {
    leases: LeaseServer,
    others: axum::Router,
    counters: Arc<HashMap<String, metrics::Counter>>,
    peer: Option<Arc<Peer>>,
}

impl Dispatch {
    pub(super) fn new(leases: LeaseServer, others: Routes) -> Self {
        Self {
            leases,
            others: others.into_axum_router(),
            counters: Arc::new(counters()),
            peer: None,
        }
    }

    /// The same for one peer.
    pub(super) fn with(&self, peer: Arc<Peer>) -> Self {
        Self {
            peer: Some(peer),
            ..self.clone()
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
        if let Some(peer) = &self.peer {
            request.extensions_mut().insert(peer.clone());
        }
        if let Some(counter) = self.counters.get(request.uri().path()) {
            counter.increment(1);
        }
        if request.uri().path().starts_with(LEASES) {
            return Checked(self.leases.clone().call(request));
        }
        let answer = self.others.clone().call(request);
        Checked(Box::pin(async move { Ok(answer.await?.map(Body::new)) }))
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
    let closing = dispatch
        .peer
        .as_ref()
        .map(|p| p.closing.clone())
        .unwrap_or_default();
    let connection = http2().serve_connection(TokioIo::new(stream), dispatch);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = closing.cancelled() => {}
        () = tokio::time::sleep(age()) => closing.cancel(),
    }
    // Streams see that they should end; no new ones are taken (GOAWAY).
    connection.as_mut().graceful_shutdown();
    let patience = async {
        tokio::select! {
            () = tokio::time::sleep(AGE_GRACE) => {}
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
pub(super) async fn serve_rest(stream: TcpStream, router: axum::Router, stop: CancellationToken) {
    let closing = stop.child_token();
    let told = Closing(closing.clone());
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(told.clone());
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
