//! One connection: HTTP/2 for gRPC, HTTP/1 for REST, each with limits, an age and an end.
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::dispatch::Dispatch;
use super::line::Line;
use super::shown::Shown;
use super::stream::Streams;
use crate::api::limits::{
    AGE_GRACE, CERTIFICATE_GRACE, CONNECTION_AGE, CONNECTION_WINDOW, HEADER_TIMEOUT, HEADERS_MAX,
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, RESETS_LOCAL_MAX, RESETS_PENDING_MAX, SEND_BUFFER,
    STOP_GRACE, STREAM_WINDOW, STREAMS_PER_CONNECTION,
};
use crate::api::rest::{Closing, From};

fn http2() -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(Streams);
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
    let (closing, good_for) = (dispatch.closing(stop), dispatch.good_for());
    let age = age();
    let grace = match good_for {
        Some(good_for) if good_for < age => CERTIFICATE_GRACE,
        _ => AGE_GRACE,
    };
    let age = good_for.map_or(age, |good_for| good_for.min(age));
    let line = TokioIo::new(Line::http2(stream));
    let connection = http2().serve_connection(line, dispatch);
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
    shown: Shown,
    stop: CancellationToken,
) {
    let closing = stop.child_token();
    let shown = shown.for_one(from, Closing(closing.clone()));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        // One request each: seats are few, and what is asked in advance would be answered to who has left.
        .keep_alive(false)
        .max_buf_size(HEADERS_MAX as usize)
        .max_headers(64);
    let line = TokioIo::new(Line::plain(stream));
    let connection = builder.serve_connection(line, shown);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = tokio::time::sleep(age()) => closing.cancel(),
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(STOP_GRACE, connection.as_mut()).await;
}
