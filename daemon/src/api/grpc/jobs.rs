//! The service of jobs.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::command::{Caller, Command, Reply};
use evenkeel_core::id::{JobId, LeaseId, Name};
use evenkeel_core::job::{Job, JobPhase};
use evenkeel_core::step::State;
use evenkeel_proto::v1 as pb;
use pb::job_service_server::JobService;
use tonic::{Request, Response, Status};

use super::watching::{Look, watch};
use super::{Answer, Answers, unexpected};
use crate::api::budget::Kind;
use crate::api::caller;
use crate::api::context::Context;
use crate::api::convert::{self, Around, Bad};
use crate::api::error;
use crate::api::hash;
use crate::api::past;

/// See the module's text.
pub(super) struct Jobs(pub(super) Arc<Context>);

#[tonic::async_trait]
impl JobService for Jobs {
    async fn submit_job(
        &self,
        request: Request<pb::SubmitJobRequest>,
    ) -> Answer<pb::SubmitJobResponse> {
        let peer = caller::of(&request)?;
        let caller = &peer.caller;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let wire = request.into_inner();
        let request = convert::request_id(&wire.request_id)?;
        let declared = wire
            .spec
            .ok_or_else(|| Bad::new("spec", "is missing; declare the job"))?;
        let spec = convert::spec(&declared).map_err(|bad| bad.within("spec"))?;
        let body = hash::submit(&declared);
        let over = Job {
            id: JobId(0),
            tenant: caller.tenant.clone(),
            request,
            body,
            arrival: LeaseId(0),
            phase: JobPhase::Ended,
            plan: None,
            slots: Vec::new(),
            scale: Vec::new(),
            learned: Vec::new(),
            moves: 0,
            spec: spec.clone(),
        };
        let command = Command::Submit {
            caller: caller.clone(),
            request,
            body,
            spec: Box::new(spec),
        };
        let id = self.run(caller, command).await?;
        let job = match by_id(&self.0, caller, id).await? {
            Some(job) => job,
            // Said again after the job ended: what is remembered is that it was this one.
            None => convert::ended_job(&Job { id, ..over }),
        };
        Ok(Response::new(pb::SubmitJobResponse { job: Some(job) }))
    }

    async fn get_job(&self, request: Request<pb::GetJobRequest>) -> Answer<pb::GetJobResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let name = convert::name("name", &request.into_inner().name)?;
        let job = Some(find(&self.0, &peer.caller, name).await?);
        Ok(Response::new(pb::GetJobResponse { job }))
    }

    async fn list_jobs(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Answer<pb::ListJobsResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let ended = request.into_inner().include_ended;
        let jobs = list(&self.0, &peer.caller, ended).await?;
        Ok(Response::new(pb::ListJobsResponse { jobs }))
    }

    type WatchJobStream = Answers<pb::WatchJobResponse>;

    async fn watch_job(
        &self,
        request: Request<pb::WatchJobRequest>,
    ) -> Answer<Self::WatchJobStream> {
        let peer = caller::of(&request)?;
        let place = self.0.place(Kind::Watch, &peer.caller)?;
        let name = convert::name("name", &request.into_inner().name)?;
        let first = find(&self.0, &peer.caller, name).await?;
        let (ctx, caller) = (self.0.clone(), peer.caller.clone());
        let last = Arc::new(Mutex::new(first));
        let look = move || {
            let (ctx, caller, last) = (ctx.clone(), caller.clone(), last.clone());
            async move {
                // By number: another job may take the name.
                let id = JobId(lock(&last).id);
                let job = by_id(&ctx, &caller, id).await?;
                Ok(match job {
                    Some(job) => {
                        lock(&last).clone_from(&job);
                        Look::Now(pb::WatchJobResponse { job: Some(job) })
                    }
                    None => Look::Last(pb::WatchJobResponse {
                        job: Some(over(lock(&last).clone())),
                    }),
                })
            }
        };
        let same = |a: &pb::WatchJobResponse, b: &pb::WatchJobResponse| {
            let still = |w: &pb::WatchJobResponse| w.job.as_ref().map(convert::without_times);
            still(a) == still(b)
        };
        Ok(Response::new(watch(&self.0, peer, place, look, same)))
    }

    async fn update_job(
        &self,
        request: Request<pb::UpdateJobRequest>,
    ) -> Answer<pb::UpdateJobResponse> {
        let peer = caller::of(&request)?;
        let _place = self.0.place(Kind::Call, &peer.caller)?;
        let wire = request.into_inner();
        let rebalance = wire.rebalance.as_ref().map(convert::rebalance).transpose();
        let rebalance = rebalance.map_err(|bad| bad.within("rebalance"))?;
        let policy = convert::policy(&wire.policy)?;
        if rebalance.is_none() && policy.is_none() && !wire.replan {
            let why = "nothing is changed; give rules, a policy, or ask for a new plan";
            return Err(error::invalid("rebalance", why));
        }
        let command = Command::Update {
            caller: peer.caller.clone(),
            job: convert::name("name", &wire.name)?,
            rebalance,
            policy,
            replan: wire.replan,
        };
        let id = self.run(&peer.caller, command).await?;
        let job = by_id(&self.0, &peer.caller, id).await?;
        let job = Some(job.ok_or_else(|| error::not_found(&format!("job {}", wire.name)))?);
        Ok(Response::new(pb::UpdateJobResponse { job }))
    }

    async fn cancel_job(
        &self,
        request: Request<pb::CancelJobRequest>,
    ) -> Answer<pb::CancelJobResponse> {
        let peer = caller::of(&request)?;
        let caller = &peer.caller;
        let _place = self.0.place(Kind::Urgent, &peer.caller)?;
        let name = convert::name("name", &request.into_inner().name)?;
        let was = find(&self.0, caller, name.clone()).await?;
        let command = Command::Cancel {
            caller: caller.clone(),
            job: name,
        };
        let (id, told) = match self.0.handle.run(command).await {
            Ok(Reply::Cancelled { job, told }) => (job, told),
            Ok(_) => return Err(unexpected("a cancelled job")),
            Err(failure) => return Err(error::status(failure, caller)),
        };
        let leases = told_leases(&self.0, caller, told, &was.leases).await;
        let job = pb::Job {
            leases,
            ..over(pb::Job { id: id.0, ..was })
        };
        Ok(Response::new(pb::CancelJobResponse { job: Some(job) }))
    }
}

impl Jobs {
    /// Runs a command that answers with a job.
    async fn run(&self, caller: &Caller, command: Command) -> Result<JobId, Status> {
        match self.0.handle.run(command).await {
            Ok(Reply::Job(id)) => Ok(id),
            Ok(_) => Err(unexpected("a job")),
            Err(failure) => Err(error::status(failure, caller)),
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job as it was, now that it is over.
fn over(was: pb::Job) -> pb::Job {
    pb::Job {
        phase: pb::JobPhase::Ended.into(),
        leases: Vec::new(),
        moving: false,
        ..was
    }
}

/// The caller's live job of a name; an admin's also somebody else's.
pub(super) fn named<'a>(state: &'a State, caller: &Caller, name: &Name) -> Option<&'a Job> {
    let d = &state.durable;
    let any = || {
        d.jobs()
            .values()
            .find(|j| caller.admin && j.spec.name == *name)
    };
    d.job_named(&caller.tenant, name).or_else(any)
}

/// One live job by its name.
pub(in crate::api) async fn find(
    ctx: &Context,
    caller: &Caller,
    name: Name,
) -> Result<pb::Job, Status> {
    let (sockets, who, wanted) = (ctx.config.gpu_sockets.clone(), caller.clone(), name.clone());
    let found = ctx.read(caller, move |state, now| {
        let around = Around::new(state.durable.node(), &sockets);
        named(state, &who, &wanted).map(|j| convert::job(state, now, j, &around))
    });
    found
        .await?
        .ok_or_else(|| error::not_found(&format!("job {name}")))
}

/// Leases of a job that has just ended, whose holders are told to give them back. Which worker each is of, only the
/// job knew: that is taken from what they `were`.
async fn told_leases(
    ctx: &Context,
    caller: &Caller,
    told: Vec<LeaseId>,
    were: &[pb::Lease],
) -> Vec<pb::Lease> {
    let (sockets, ids) = (ctx.config.gpu_sockets.clone(), told.clone());
    let live = ctx.read(caller, move |state, now| {
        let d = &state.durable;
        let around = Around::new(d.node(), &sockets);
        let live = ids.iter().filter_map(|id| d.leases().get(id));
        live.map(|l| convert::lease_in(state, now, l, &around))
            .collect::<Vec<_>>()
    });
    let was = |id: u64| were.iter().find(|w| w.id == id);
    match live.await {
        Ok(mut leases) => {
            for lease in &mut leases {
                lease.member = was(lease.id).and_then(|w| w.member.clone());
            }
            leases
        }
        // The job is cancelled all the same: said as it was before.
        Err(_) => told.iter().filter_map(|id| was(id.0).cloned()).collect(),
    }
}

/// One live job by its number.
async fn by_id(ctx: &Context, caller: &Caller, id: JobId) -> Result<Option<pb::Job>, Status> {
    let (sockets, who) = (ctx.config.gpu_sockets.clone(), caller.clone());
    let found = ctx.read(caller, move |state, now| {
        let d = &state.durable;
        let own = |j: &&Job| who.admin || j.tenant == who.tenant;
        let around = Around::new(d.node(), &sockets);
        let job = d.jobs().get(&id).filter(own)?;
        Some(convert::job(state, now, job, &around))
    });
    found.await
}

/// The caller's jobs, ascending by number. One look at the state for each, so that nobody waits long for it.
pub(in crate::api) async fn list(
    ctx: &Context,
    caller: &Caller,
    include_ended: bool,
) -> Result<Vec<pb::Job>, Status> {
    let who = caller.clone();
    let ids = ctx.read(caller, move |state, _| {
        let jobs = state.durable.jobs().values();
        let own = jobs.filter(|j| who.admin || j.tenant == who.tenant);
        own.map(|j| j.id).collect::<Vec<_>>()
    });
    let ids = ids.await?;
    let mut jobs = Vec::new();
    if include_ended {
        let ended = past::ended_jobs(ctx, caller).await?;
        let ended = ended.iter().filter(|j| !ids.contains(&j.id));
        jobs.extend(ended.map(convert::ended_job));
    }
    for id in ids {
        jobs.extend(by_id(ctx, caller, id).await?);
    }
    jobs.sort_by_key(|j| j.id);
    Ok(jobs)
}
