//! The service of leases.
use std::ops::Bound;
use std::sync::Arc;

use evenkeel_core::command::{Acquire, Caller, Command, Rejection, Reply};
use evenkeel_core::grant::Ask;
use evenkeel_core::id::{Fence, JobId, LeaseId, Name};
use evenkeel_core::lease::Lease;
use evenkeel_core::step::State;
use evenkeel_core::unit::{Millis, Time};
use evenkeel_proto::v1 as pb;
use pb::lease_service_server::LeaseService;
use tonic::{Request, Response, Status, Streaming};

use super::{Answer, LEASES, unexpected};
use crate::api::budget::{Cost, Kind};
use crate::api::caller::{self, Peer};
use crate::api::config::GpuSockets;
use crate::api::context::Context;
use crate::api::convert::{self, Around, Bad, Daemon};
use crate::api::error;
use crate::api::limits::{LOOK_COPIES, LOOK_SCANS, PAGE_MAX, RENEWALS_MAX, WAIT_COST};
use crate::api::session;
use crate::clock;
use crate::handle::{Failure, Renewed};

/// See the module's text.
pub(in crate::api) struct Leases(pub(super) Arc<Context>);

#[tonic::async_trait]
impl LeaseService for Leases {
    async fn acquire_lease(
        &self,
        request: Request<pb::AcquireLeaseRequest>,
    ) -> Answer<pb::AcquireLeaseResponse> {
        let peer = caller::of(&request)?;
        let cost = request.extensions().get::<Cost>().cloned();
        let wire = request.into_inner();
        let ctx = &self.0;
        let asked = convert::acquire(&wire, &peer.caller.tenant, ctx.config.default_ttl)?;
        let kind = if asked.acquire.wait {
            Kind::Wait
        } else {
            Kind::Call
        };
        let _place = ctx.place(kind, &peer.caller)?;
        if let (Kind::Wait, Some(cost)) = (kind, cost) {
            cost.lower(WAIT_COST);
        }
        let mut acquire = asked.acquire;
        let mut of_job = None;
        let named = asked.member.as_ref().map(|(job, ..)| job);
        if !peer.caller.may_ask_for(named) {
            return Err(error::other_job(&peer.caller));
        }
        if let Some((job, stage, worker)) = asked.member {
            // A request whose job is over may have been answered before: the core remembers, or does not find it.
            if let Some(member) = ctx.member(&peer.caller, job.clone(), stage, worker).await? {
                acquire.ask = Ask::Stage(member);
            }
            of_job = Some(job);
        }
        let lease = run_acquire(ctx, acquire, asked.wait).await;
        let lease = lease.map_err(|f| refused(f, of_job.as_ref(), &peer.caller))?;
        let lease = Some(ctx.lease(&peer.caller, lease).await?);
        Ok(Response::new(pb::AcquireLeaseResponse { lease }))
    }

    async fn attach_lease(
        &self,
        request: Request<pb::AttachLeaseRequest>,
    ) -> Answer<pb::AttachLeaseResponse> {
        let peer = caller::of(&request)?;
        let ctx = &self.0;
        let _place = ctx.place(Kind::Call, &peer.caller)?;
        let wire = request.into_inner();
        let id = lease_id(wire.lease_id)?;
        let holder = peer.holder(wire.pid)?;
        let command = Command::Attach {
            caller: peer.caller.clone(),
            lease: id,
            fence: Fence(wire.fence),
            holder,
        };
        let lease = self.run(&peer.caller, command).await?;
        let (sockets, socket) = (ctx.config.gpu_sockets.clone(), ctx.config.socket.clone());
        let answer = ctx.read(&peer.caller, move |state, now| {
            let around = Around::new(state.durable.node(), &sockets);
            let daemon = Daemon { socket: &socket };
            pb::AttachLeaseResponse {
                environment: convert::environment(&lease, &around, &daemon),
                lease: Some(convert::lease_in(state, now, &lease, &around)),
            }
        });
        Ok(Response::new(answer.await?))
    }

    async fn renew_leases(
        &self,
        request: Request<pb::RenewLeasesRequest>,
    ) -> Answer<pb::RenewLeasesResponse> {
        let peer = caller::of(&request)?;
        let leases = request.into_inner().leases;
        check_renewals(leases.len())?;
        let _place = self.0.place(Kind::Urgent, &peer.caller)?;
        let results = renew(&self.0, &peer.caller, &leases).await?;
        note_anothers(&self.0, &peer, "RenewLeases", &results);
        Ok(Response::new(pb::RenewLeasesResponse { results }))
    }

    async fn release_lease(
        &self,
        request: Request<pb::ReleaseLeaseRequest>,
    ) -> Answer<pb::ReleaseLeaseResponse> {
        let peer = caller::of(&request)?;
        let wire = request.into_inner();
        let _place = self.0.place(Kind::Urgent, &peer.caller)?;
        let id = lease_id(wire.lease_id)?;
        let command = Command::Release {
            caller: peer.caller.clone(),
            lease: id,
            fence: Fence(wire.fence),
        };
        let lease = after(&self.0, &peer.caller, id, command).await?;
        Ok(Response::new(pb::ReleaseLeaseResponse {
            lease: Some(lease),
        }))
    }

    async fn get_lease(
        &self,
        request: Request<pb::GetLeaseRequest>,
    ) -> Answer<pb::GetLeaseResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let id = lease_id(request.into_inner().lease_id)?;
        let lease = Some(find(&self.0, &peer.caller, id).await?);
        Ok(Response::new(pb::GetLeaseResponse { lease }))
    }

    async fn list_leases(
        &self,
        request: Request<pb::ListLeasesRequest>,
    ) -> Answer<pb::ListLeasesResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let page = list(&self.0, &peer.caller, &request.into_inner()).await?;
        Ok(Response::new(page))
    }

    async fn revoke_lease(
        &self,
        request: Request<pb::RevokeLeaseRequest>,
    ) -> Answer<pb::RevokeLeaseResponse> {
        let peer = caller::of(&request)?;
        let id = lease_id(request.into_inner().lease_id)?;
        let lease = Some(revoke(&self.0, &peer.caller, id).await?);
        Ok(Response::new(pb::RevokeLeaseResponse { lease }))
    }

    async fn clear_lease(
        &self,
        request: Request<pb::ClearLeaseRequest>,
    ) -> Answer<pb::ClearLeaseResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Urgent, &peer.caller)?;
        let wire = request.into_inner();
        let id = lease_id(wire.lease_id)?;
        let command = Command::Clear {
            caller: peer.caller.clone(),
            lease: id,
            reason: convert::reason(&wire.reason)?,
        };
        let lease = after(&self.0, &peer.caller, id, command).await?;
        Ok(Response::new(pb::ClearLeaseResponse { lease: Some(lease) }))
    }

    type SessionStream = session::Told;

    async fn session(
        &self,
        request: Request<Streaming<pb::SessionRequest>>,
    ) -> Answer<Self::SessionStream> {
        let peer = caller::of(&request)?;
        let place = self.0.place(Kind::Stream, &peer.caller)?;
        let down = session::open(self.0.clone(), peer, request.into_inner(), place);
        Ok(Response::new(down))
    }
}

impl Leases {
    /// Runs a command that answers with a lease.
    async fn run(&self, caller: &Caller, command: Command) -> Result<Lease, Status> {
        match self.0.handle.run(command).await {
            Ok(Reply::Lease(lease)) => Ok(*lease),
            Ok(_) => Err(unexpected("a lease")),
            Err(failure) => Err(error::status(failure, caller)),
        }
    }
}

/// Runs a command after which the lease may be over (or was over before), and answers with what is left of it.
async fn after(
    ctx: &Context,
    caller: &Caller,
    id: LeaseId,
    command: Command,
) -> Result<pb::Lease, Status> {
    match ctx.handle.run(command).await {
        Ok(Reply::Lease(lease)) => ctx.lease(caller, *lease).await,
        Ok(Reply::Done) => find(ctx, caller, id).await,
        Ok(_) => Err(unexpected("a lease")),
        Err(failure) => Err(error::status(failure, caller)),
    }
}

/// Takes a lease back.
pub(in crate::api) async fn revoke(
    ctx: &Context,
    caller: &Caller,
    id: LeaseId,
) -> Result<pb::Lease, Status> {
    let _place = ctx.place(Kind::Urgent, caller)?;
    let command = Command::Revoke {
        caller: caller.clone(),
        lease: id,
    };
    after(ctx, caller, id, command).await
}

async fn run_acquire(ctx: &Context, acquire: Acquire, wait: Millis) -> Result<Lease, Failure> {
    if acquire.wait {
        return ctx.handle.acquire(acquire, wait).await;
    }
    match ctx.handle.run(Command::Acquire(Box::new(acquire))).await? {
        Reply::Lease(lease) => Ok(*lease),
        // Asked before with a wait and again without one: it is still in the queue.
        Reply::Waiting(id) => Err(Failure::QueueTimeout {
            waited: Millis(0),
            why: format!("{id} is in the queue for it"),
        }),
        _ => Err(Failure::Ledger(
            "the controller answered something else".into(),
        )),
    }
}

/// The job is named as the caller named it.
fn refused(failure: Failure, job: Option<&Name>, caller: &Caller) -> Status {
    match (failure, job) {
        (Failure::Rejected(Rejection::NotFound(_)), Some(job)) => {
            error::not_found(&format!("job {job}"))
        }
        (failure, _) => error::status(failure, caller),
    }
}

fn lease_id(n: u64) -> Result<LeaseId, Bad> {
    match n {
        0 => Err(Bad::new(
            "lease_id",
            "is missing; leases are counted from 1",
        )),
        n => Ok(LeaseId(n)),
    }
}

/// Whether one message may renew so many.
pub(in crate::api) fn check_renewals(n: usize) -> Result<(), Status> {
    if n <= RENEWALS_MAX {
        return Ok(());
    }
    let why = format!("{n} leases; one message renews at most {RENEWALS_MAX}");
    Err(error::invalid("leases", &why))
}

/// Renews all, in order. Reads the clock once; waits only for leases whose expiry is being decided. An error says that
/// nobody knows what became of one of those; the others are renewed, and renewing them again is good, too.
pub(in crate::api) async fn renew(
    ctx: &Context,
    caller: &Caller,
    leases: &[pb::LeaseRef],
) -> Result<Vec<pb::RenewResult>, Status> {
    let now = clock::now();
    let mut results = Vec::with_capacity(leases.len());
    let mut undecided = false;
    for w in leases {
        let (id, fence) = (LeaseId(w.lease_id), Fence(w.fence));
        let renewed = ctx.handle.renew_now(caller, id, fence, now);
        undecided |= renewed.is_err();
        results.push(match renewed {
            Ok(renewed) => result(w.lease_id, renewed),
            Err(ttl) => convert::remaining(w.lease_id, pb::RenewStatus::Unspecified, ttl),
        });
    }
    if undecided {
        for (w, result_of) in leases.iter().zip(&mut results) {
            if result_of.status == pb::RenewStatus::Unspecified as i32 {
                let (id, fence) = (LeaseId(w.lease_id), Fence(w.fence));
                let verdict = ctx
                    .handle
                    .renew(caller, id, fence, now)
                    .await
                    .map_err(|failure| error::undecided(failure, caller))?;
                *result_of = result(w.lease_id, verdict);
            }
        }
    }
    Ok(results)
}

/// Writes down, once for all of a frame, that somebody renews what is another's. It is told what it would be told of a
/// lease that is over, and as soon: it is looked at beside the answer, so that how long that takes tells nothing.
pub(in crate::api) fn note_anothers(
    ctx: &Arc<Context>,
    peer: &Arc<Peer>,
    call: &'static str,
    results: &[pb::RenewResult],
) {
    let lost = results
        .iter()
        .filter(|r| r.status() == pb::RenewStatus::Lost);
    let lost: Vec<LeaseId> = lost.map(|r| LeaseId(r.lease_id)).collect();
    if lost.is_empty() {
        return;
    }
    let (ctx, peer) = (ctx.clone(), peer.clone());
    ctx.tasks.clone().spawn(async move {
        let mut anothers =
            (lost.into_iter()).filter(|id| ctx.handle.is_anothers(&peer.caller, *id));
        let Some(first) = anothers.next() else { return };
        let why = match anothers.count() {
            0 => format!("{first} is another's; it is said to be lost"),
            more => format!("{first} and {more} more are another's; they are said to be lost"),
        };
        peer.note(
            &ctx.config.audit,
            &format!("{LEASES}{call}"),
            "NOT_YOURS",
            &why,
        );
    });
}

const fn result(id: u64, renewed: Renewed) -> pb::RenewResult {
    match renewed {
        Renewed::Until(left) => convert::remaining(id, pb::RenewStatus::Renewed, left),
        Renewed::Fenced => convert::remaining(id, pb::RenewStatus::Fenced, Millis(0)),
        Renewed::Lost => convert::remaining(id, pb::RenewStatus::Lost, Millis(0)),
    }
}

/// One lease, live or remembered.
pub(in crate::api) async fn find(
    ctx: &Context,
    caller: &Caller,
    id: LeaseId,
) -> Result<pb::Lease, Status> {
    let (sockets, who) = (ctx.config.gpu_sockets.clone(), caller.clone());
    let found = ctx.read(caller, move |state, now| {
        let d = &state.durable;
        if let Some(lease) = d.leases().get(&id) {
            let around = Around::new(d.node(), &sockets);
            let own = d.is_seen_by(lease, &who);
            return own.then(|| convert::lease_in(state, now, lease, &around));
        }
        let (tenant, how, fence) = d.ended_seen_by(id, &who)?;
        Some(convert::ended_lease(id, tenant, how, fence))
    });
    found
        .await?
        .ok_or_else(|| error::not_found(&id.to_string()))
}

/// A page of leases, looked up in short looks so that nobody waits long for the state.
pub(in crate::api) async fn list(
    ctx: &Context,
    caller: &Caller,
    w: &pb::ListLeasesRequest,
) -> Result<pb::ListLeasesResponse, Status> {
    let limit = match w.page_size {
        0 => PAGE_MAX,
        n => n.min(PAGE_MAX),
    } as usize;
    let job = convert::optional_name("job", &w.job)?;
    let job = match job {
        None => None,
        Some(name) => match job_ids(ctx, caller, name).await? {
            ids if ids.is_empty() => return Err(error::not_found(&format!("job {}", w.job))),
            ids => Some(ids),
        },
    };
    let mut leases = Vec::new();
    let mut after = LeaseId(w.after_id);
    loop {
        let wanted = Wanted {
            caller: caller.clone(),
            jobs: job.clone(),
            after,
            most: (limit - leases.len()).min(LOOK_COPIES),
        };
        let sockets = ctx.config.gpu_sockets.clone();
        let (some, next) = ctx
            .read(caller, move |s, now| wanted.look(s, now, &sockets))
            .await?;
        leases.extend(some);
        match next {
            None => {
                return Ok(pb::ListLeasesResponse {
                    leases,
                    next_after_id: 0,
                });
            }
            Some(id) if leases.len() >= limit => {
                return Ok(pb::ListLeasesResponse {
                    leases,
                    next_after_id: id.0,
                });
            }
            Some(id) => after = id,
        }
    }
}

struct Wanted {
    caller: Caller,
    jobs: Option<Vec<JobId>>,
    after: LeaseId,
    most: usize,
}

impl Wanted {
    /// Some leases, and where to go on; none: there are no more.
    fn look(
        &self,
        state: &State,
        now: Time,
        sockets: &GpuSockets,
    ) -> (Vec<pb::Lease>, Option<LeaseId>) {
        let around = Around::new(state.durable.node(), sockets);
        let mut found = Vec::new();
        let rest = (Bound::Excluded(self.after), Bound::Unbounded);
        for (scanned, (id, lease)) in state.durable.leases().range(rest).enumerate() {
            if self.wants(state, lease) {
                if found.len() == self.most {
                    // There is at least one more: the page goes on behind the last one taken.
                    return (found, Some(LeaseId(id.0 - 1)));
                }
                found.push(convert::lease_in(state, now, lease, &around));
            }
            if scanned == LOOK_SCANS {
                return (found, Some(*id));
            }
        }
        (found, None)
    }

    fn wants(&self, state: &State, lease: &Lease) -> bool {
        let own = state.durable.is_seen_by(lease, &self.caller);
        let of_job =
            |jobs: &Vec<JobId>| matches!(lease.ask, Ask::Stage(m) if jobs.contains(&m.job));
        own && self.jobs.as_ref().is_none_or(of_job)
    }
}

/// The live jobs of a name that the caller may see: its own, or (for an admin) everyone's.
async fn job_ids(ctx: &Context, caller: &Caller, name: Name) -> Result<Vec<JobId>, Status> {
    let who = caller.clone();
    let ids = ctx.read(caller, move |state, _| {
        let jobs = state.durable.jobs().values();
        jobs.filter(|j| j.spec.name == name && who.sees(&j.tenant, Some(&name)))
            .map(|j| j.id)
            .collect()
    });
    ids.await
}
