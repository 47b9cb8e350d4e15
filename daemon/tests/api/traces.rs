//! Traces: a lease's life comes to a collector that speaks OTLP, also to one that refuses at first.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_proto::v1 as pb;
use evenkeeld::config::TracesConfig;
use evenkeeld::traces;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{Span, status};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::kit::{Rig, SOON, Who, acquire, enforced, reference, unenforced};

/// A collector that refuses a few messages first.
struct Collector {
    refuses: AtomicU32,
    spans: mpsc::UnboundedSender<Vec<Span>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let less = |n: u32| n.checked_sub(1);
        if self
            .refuses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
        {
            return Err(Status::unavailable("not yet"));
        }
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|r| r.scope_spans);
        let _ = self.spans.send(scopes.flat_map(|s| s.spans).collect());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector on a port of its own; its address and what it gets.
async fn collector(refuses: u32) -> (String, mpsc::UnboundedReceiver<Vec<Span>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (spans, got) = mpsc::unbounded_channel();
    let service = TraceServiceServer::new(Collector {
        refuses: AtomicU32::new(refuses),
        spans,
    });
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (endpoint, got)
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|a| a.key == key);
    let found = found.unwrap_or_else(|| panic!("no {key} in {attributes:?}"));
    match found.value.clone().unwrap().value.unwrap() {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(n) => n.to_string(),
        other => format!("{other:?}"),
    }
}

async fn follow(rig: &Rig, endpoint: String, stop: &CancellationToken) {
    let config = TracesConfig {
        endpoint,
        sample: 1.0,
    };
    let (handle, history) = (rig.handle().clone(), rig.history());
    let spawned = traces::spawn(&config, "testnode".into(), handle, history, stop.clone());
    assert!(spawned.await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_becomes_a_trace_once_it_is_over() {
    let rig = Rig::synthetic().await;
    let (endpoint, mut got) = collector(1).await;
    let mut alice = rig.leases(Who::Alice).await;
    let before = acquire(&mut alice, unenforced(1)).await;
    let stop = CancellationToken::new();
    follow(&rig, endpoint, &stop).await;
    let lease = acquire(&mut alice, unenforced(3)).await;
    // The end of one that began before the follower is told, too.
    for lease in [&before, &lease] {
        let pb::LeaseRef { lease_id, fence } = reference(lease);
        let release = pb::ReleaseLeaseRequest { lease_id, fence };
        alice.release_lease(release).await.unwrap();
    }
    let mut spans = Vec::new();
    while spans.len() < 4 {
        let more = tokio::time::timeout(SOON, got.recv()).await;
        spans.extend(more.expect("no spans came").unwrap());
    }
    let roots: Vec<&Span> = spans
        .iter()
        .filter(|s| s.parent_span_id.is_empty())
        .collect();
    assert_eq!(roots.len(), 2, "{spans:?}");
    let root = roots
        .iter()
        .find(|s| text(&s.attributes, "evenkeel.lease.id") == lease.id.to_string())
        .unwrap();
    assert_eq!(text(&root.attributes, "evenkeel.tenant"), "alice");
    assert_eq!(text(&root.attributes, "evenkeel.cores"), "1-3");
    assert_eq!(text(&root.attributes, "evenkeel.lease.end"), "released");
    assert_eq!(root.status, None);
    let parts: Vec<&Span> = spans
        .iter()
        .filter(|s| s.trace_id == root.trace_id && s.parent_span_id == root.span_id)
        .collect();
    let names: Vec<&str> = parts.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["active"], "unenforced leases are active at once");
    assert!(root.end_time_unix_nano >= parts[0].end_time_unix_nano);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_just_before_a_stop_is_still_told() {
    let rig = Rig::local().await;
    let (endpoint, mut got) = collector(0).await;
    let stop = CancellationToken::new();
    follow(&rig, endpoint, &stop).await;
    let mut admin = rig.leases(Who::Admin).await;
    let first = acquire(&mut admin, enforced(1, 10, 1)).await;
    let revoke = |lease: &pb::Lease| pb::RevokeLeaseRequest { lease_id: lease.id };
    admin.revoke_lease(revoke(&first)).await.unwrap();
    let spans = tokio::time::timeout(SOON, got.recv())
        .await
        .unwrap()
        .unwrap();
    let trouble = spans[0].status.as_ref().unwrap();
    assert_eq!(trouble.code(), status::StatusCode::Error);
    assert_eq!(text(&spans[0].attributes, "evenkeel.lease.end"), "revoked");
    assert_eq!(text(&spans[0].attributes, "evenkeel.sms"), "10");
    assert_eq!(spans[1].name, "pending");
    let second = acquire(&mut admin, enforced(1, 10, 1)).await;
    admin.revoke_lease(revoke(&second)).await.unwrap();
    stop.cancel();
    // A round that the stop has cut off is done again: the first life may come twice, and is the same trace then.
    let trace = spans[0].trace_id.clone();
    loop {
        let spans = tokio::time::timeout(SOON, got.recv())
            .await
            .unwrap()
            .unwrap();
        let mut lives = BTreeMap::new();
        for root in spans.iter().filter(|s| s.parent_span_id.is_empty()) {
            let id = text(&root.attributes, "evenkeel.lease.id");
            lives.insert(id, root.trace_id.clone());
        }
        if let Some(again) = lives.get(&first.id.to_string()) {
            assert_eq!(*again, trace);
        }
        if lives.contains_key(&second.id.to_string()) {
            break;
        }
    }
}
