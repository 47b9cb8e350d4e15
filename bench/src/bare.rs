//! A lease service that remembers nothing and answers at once: grants, releases, and renewals on a session. The same
//! wire, messages and libraries as the daemon, and nothing behind them: the ceiling of the transport.
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

/// Answers of a session that may wait for its reader: as many as the daemon lets wait.
const WAITING: usize = 8;

/// Serves on a Unix socket until the process is killed.
///
/// # Errors
/// When the socket cannot be bound.
pub async fn serve(socket: &Path) -> anyhow::Result<()> {
    let listener = tokio::net::UnixListener::bind(socket)?;
    let service = pb::lease_service_server::LeaseServiceServer::new(Bare::default());
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
    tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

/// See the module's text.
#[derive(Default)]
struct Bare(AtomicU64);

fn lease(id: u64) -> Option<pb::Lease> {
    let share = pb::GpuShare {
        gpu: 0,
        guarantee_sms: 8,
        cap_sms: 8,
        memory_bytes: 1 << 30,
        ..Default::default()
    };
    let vector = pb::ResourceVector {
        cores: "0-1".into(),
        cpus: "0-1".into(),
        gpus: vec![share],
    };
    Some(pb::Lease {
        id,
        fence: 1,
        held: Some(vector.clone()),
        target: Some(vector),
        ..Default::default()
    })
}

#[tonic::async_trait]
impl pb::lease_service_server::LeaseService for Bare {
    async fn acquire_lease(
        &self,
        _: Request<pb::AcquireLeaseRequest>,
    ) -> Answer<pb::AcquireLeaseResponse> {
        let id = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Response::new(pb::AcquireLeaseResponse { lease: lease(id) }))
    }
    async fn release_lease(
        &self,
        r: Request<pb::ReleaseLeaseRequest>,
    ) -> Answer<pb::ReleaseLeaseResponse> {
        Ok(Response::new(pb::ReleaseLeaseResponse {
            lease: lease(r.get_ref().lease_id),
        }))
    }
    async fn attach_lease(
        &self,
        _: Request<pb::AttachLeaseRequest>,
    ) -> Answer<pb::AttachLeaseResponse> {
        Err(unused())
    }
    async fn renew_leases(
        &self,
        _: Request<pb::RenewLeasesRequest>,
    ) -> Answer<pb::RenewLeasesResponse> {
        Err(unused())
    }
    async fn get_lease(&self, _: Request<pb::GetLeaseRequest>) -> Answer<pb::GetLeaseResponse> {
        Err(unused())
    }
    async fn list_leases(
        &self,
        _: Request<pb::ListLeasesRequest>,
    ) -> Answer<pb::ListLeasesResponse> {
        Err(unused())
    }
    async fn revoke_lease(
        &self,
        _: Request<pb::RevokeLeaseRequest>,
    ) -> Answer<pb::RevokeLeaseResponse> {
        Err(unused())
    }
    async fn clear_lease(
        &self,
        _: Request<pb::ClearLeaseRequest>,
    ) -> Answer<pb::ClearLeaseResponse> {
        Err(unused())
    }
    type SessionStream = ReceiverStream<Result<pb::SessionResponse, Status>>;
    async fn session(
        &self,
        frames: Request<tonic::Streaming<pb::SessionRequest>>,
    ) -> Answer<Self::SessionStream> {
        let (down, answers) = mpsc::channel(WAITING);
        let mut up = frames.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(frame)) = up.message().await {
                let answer = pb::SessionResponse {
                    renewals: frame.renew.iter().map(renewed).collect(),
                    ..Default::default()
                };
                if down.send(Ok(answer)).await.is_err() {
                    return; // the client is gone
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

fn renewed(lease: &pb::LeaseRef) -> pb::RenewResult {
    pb::RenewResult {
        lease_id: lease.lease_id,
        status: pb::RenewStatus::Renewed.into(),
        remaining_ms: 30_000,
    }
}

fn unused() -> Status {
    Status::unimplemented("the ceiling measures acquire, release and renewals on a session only")
}
