//! The fake daemon's leases and sessions.
use evenkeel_proto::v1 as pb;
use pb::lease_service_server::LeaseService;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{Service, Shared, World};

/// A refusal as the daemon gives it.
pub(crate) fn refusal(code: Code, reason: &str, details: &[(&str, &str)], message: &str) -> Status {
    let metadata: HashMap<String, String> = details
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let details = ErrorDetails::with_error_info(reason, "evenkeel", metadata);
    Status::with_error_details(code, message, details)
}

fn held(world: &mut World, id: u64, fence: u64) -> Result<&mut pb::Lease, Status> {
    let lease = world
        .leases
        .get_mut(&id)
        .ok_or_else(|| Status::not_found(format!("there is no lease {id}")))?;
    if lease.fence == fence {
        Ok(lease)
    } else {
        Err(refusal(
            Code::FailedPrecondition,
            "FENCED",
            &[],
            &format!("lease {id} has gone on to fence {}", lease.fence),
        ))
    }
}

fn grant(world: &mut World, request: &pb::AcquireLeaseRequest) -> pb::Lease {
    if let Some(id) = world.by_request.get(&request.request_id) {
        return world.leases[id].clone();
    }
    let id = world.leases.len() as u64 + 1;
    let ttl_ms = if request.ttl_ms == 0 {
        world.ttl_ms
    } else {
        request.ttl_ms
    };
    let gpus = request.gpus.iter().map(|g| pb::GpuShare {
        gpu: g.gpu.unwrap_or(0),
        guarantee_sms: g.sms.max(g.percent),
        cap_sms: g.sms.max(g.percent),
        memory_bytes: g.memory_bytes,
        ..pb::GpuShare::default()
    });
    let vector = pb::ResourceVector {
        cores: world.cpus.clone(),
        cpus: world.cpus.clone(),
        gpus: gpus.collect(),
    };
    let lease = pb::Lease {
        id,
        tenant: "test".into(),
        request_id: request.request_id.clone(),
        fence: 1,
        generation: 1,
        phase: pb::LeasePhase::Pending.into(),
        held: Some(vector.clone()),
        target: Some(vector),
        ttl_ms,
        remaining_ms: ttl_ms,
        member: request.member.clone(),
        enforced: true,
        share_kind: "capped".into(),
        resize: request.resize,
        batch: world.batch,
        ..pb::Lease::default()
    };
    world.by_request.insert(request.request_id.clone(), id);
    world.leases.insert(id, lease.clone());
    lease
}

fn renew(world: &mut World, leases: &[pb::LeaseRef]) -> Vec<pb::RenewResult> {
    let result = |r: &pb::LeaseRef| {
        let (status, remaining_ms) = match world.leases.get(&r.lease_id) {
            None => (pb::RenewStatus::Lost, 0),
            Some(l) if l.fence != r.fence => (pb::RenewStatus::Fenced, 0),
            Some(l) => (pb::RenewStatus::Renewed, l.ttl_ms),
        };
        pb::RenewResult {
            lease_id: r.lease_id,
            status: status.into(),
            remaining_ms,
        }
    };
    let results: Vec<_> = leases.iter().map(result).collect();
    world.renewals += results.len() as u32;
    results
}

async fn session(
    world: Shared,
    mut up: Streaming<pb::SessionRequest>,
    down: mpsc::Sender<Result<pb::SessionResponse, Status>>,
) {
    while let Some(Ok(frame)) = up.next().await {
        let answer = {
            let mut world = world
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            world.reports.extend(frame.reports);
            world.acknowledgements.extend(frame.acknowledgements);
            let renewals = if world.mute {
                Vec::new()
            } else {
                renew(&mut world, &frame.renew)
            };
            pb::SessionResponse {
                renewals,
                ..pb::SessionResponse::default()
            }
        };
        if !answer.renewals.is_empty() && down.send(Ok(answer)).await.is_err() {
            return;
        }
    }
}

#[tonic::async_trait]
impl LeaseService for Service {
    type SessionStream = ReceiverStream<Result<pb::SessionResponse, Status>>;

    async fn acquire_lease(
        &self,
        request: Request<pb::AcquireLeaseRequest>,
    ) -> Result<Response<pb::AcquireLeaseResponse>, Status> {
        let mut world = self.world();
        world.acquire_calls += 1;
        world.refusal()?;
        let lease = grant(&mut world, request.get_ref());
        world.lose()?;
        Ok(Response::new(pb::AcquireLeaseResponse {
            lease: Some(lease),
        }))
    }

    async fn attach_lease(
        &self,
        request: Request<pb::AttachLeaseRequest>,
    ) -> Result<Response<pb::AttachLeaseResponse>, Status> {
        let peer = request.extensions().get::<UdsConnectInfo>();
        let pid = peer.and_then(|p| p.peer_cred).and_then(|c| c.pid());
        let request = request.into_inner();
        let mut world = self.world();
        let environment = world.environment.clone();
        let holder = match request.pid {
            0 => pid.unwrap_or(0) as u32,
            named => named,
        };
        let again = world.leases.get(&request.lease_id).filter(|l| {
            l.phase() == pb::LeasePhase::Attached && l.pid == holder && l.fence == request.fence + 1
        });
        let lease = match again.cloned() {
            Some(lease) => Some(lease),
            None => {
                let lease = held(&mut world, request.lease_id, request.fence)?;
                lease.fence += 1;
                lease.phase = pb::LeasePhase::Attached.into();
                lease.pid = holder;
                Some(lease.clone())
            }
        };
        world.lose()?;
        Ok(Response::new(pb::AttachLeaseResponse {
            lease,
            environment,
        }))
    }

    async fn renew_leases(
        &self,
        request: Request<pb::RenewLeasesRequest>,
    ) -> Result<Response<pb::RenewLeasesResponse>, Status> {
        let mut world = self.world();
        world.unary_renewals += 1;
        let results = renew(&mut world, &request.get_ref().leases);
        Ok(Response::new(pb::RenewLeasesResponse { results }))
    }

    async fn release_lease(
        &self,
        request: Request<pb::ReleaseLeaseRequest>,
    ) -> Result<Response<pb::ReleaseLeaseResponse>, Status> {
        let request = request.into_inner();
        let mut world = self.world();
        let again = world
            .leases
            .get(&request.lease_id)
            .filter(|l| l.end() == pb::LeaseEnd::Released && l.fence == request.fence + 1);
        let lease = match again.cloned() {
            Some(lease) => Some(lease),
            None => {
                let lease = held(&mut world, request.lease_id, request.fence)?;
                lease.fence += 1;
                lease.phase = pb::LeasePhase::Ended.into();
                lease.end = pb::LeaseEnd::Released.into();
                Some(lease.clone())
            }
        };
        world.lose()?;
        Ok(Response::new(pb::ReleaseLeaseResponse { lease }))
    }

    async fn get_lease(
        &self,
        request: Request<pb::GetLeaseRequest>,
    ) -> Result<Response<pb::GetLeaseResponse>, Status> {
        let id = request.get_ref().lease_id;
        let lease = self.world().leases.get(&id).cloned();
        match lease {
            Some(lease) => Ok(Response::new(pb::GetLeaseResponse { lease: Some(lease) })),
            None => Err(Status::not_found(format!("there is no lease {id}"))),
        }
    }

    async fn list_leases(
        &self,
        request: Request<pb::ListLeasesRequest>,
    ) -> Result<Response<pb::ListLeasesResponse>, Status> {
        // Two a page, so that pages are really turned.
        let after = request.get_ref().after_id;
        let world = self.world();
        let mut rest = world.leases.range(after + 1..).map(|(_, l)| l.clone());
        let leases: Vec<_> = rest.by_ref().take(2).collect();
        let next_after_id = match rest.next() {
            Some(_) => leases.last().map_or(0, |l| l.id),
            None => 0,
        };
        Ok(Response::new(pb::ListLeasesResponse {
            leases,
            next_after_id,
        }))
    }

    async fn revoke_lease(
        &self,
        request: Request<pb::RevokeLeaseRequest>,
    ) -> Result<Response<pb::RevokeLeaseResponse>, Status> {
        let id = request.get_ref().lease_id;
        let mut world = self.world();
        world.fence(id);
        let lease = world.leases.get_mut(&id);
        let lease = lease.ok_or_else(|| Status::not_found(format!("there is no lease {id}")))?;
        lease.phase = pb::LeasePhase::Quarantined.into();
        Ok(Response::new(pb::RevokeLeaseResponse {
            lease: Some(lease.clone()),
        }))
    }

    async fn clear_lease(
        &self,
        _: Request<pb::ClearLeaseRequest>,
    ) -> Result<Response<pb::ClearLeaseResponse>, Status> {
        Err(Status::permission_denied("only admins clear leases"))
    }

    async fn session(
        &self,
        request: Request<Streaming<pb::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut world = self.world();
        if world.no_session {
            return Err(Status::unimplemented("no sessions here"));
        }
        let (down, answers) = mpsc::channel(64);
        world.sessions_opened += 1;
        world.sessions.push(down.clone());
        tokio::spawn(session(Arc::clone(&self.world), request.into_inner(), down));
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}
