//! A lease service that remembers nothing and answers at once.
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_proto::v1 as pb;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Bare(AtomicU64);

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
    type SessionStream = tokio_stream::Empty<Result<pb::SessionResponse, Status>>;
    async fn session(
        &self,
        _: Request<tonic::Streaming<pb::SessionRequest>>,
    ) -> Answer<Self::SessionStream> {
        Err(unused())
    }
}

fn unused() -> Status {
    Status::unimplemented("the ceiling measures acquire and release only")
}
