//! The service of jobs.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::command::{Caller, Command, Reply};
use evenkeel_core::id::{JobId, LeaseId, Name};
use evenkeel_core::job::{Job, JobPhase};
use evenkeel_proto::v1 as pb;
use pb::job_service_server::JobService;
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::watching::{Look, mark, watch};
use super::{Answer, Answers, unexpected};
use crate::api::budget::{Kind, Place};
use crate::api::caller;
use crate::api::context::Context;
use crate::api::convert::{self, Around, Bad};
use crate::api::error;
use crate::api::hash;
use crate::api::limits::{MAKING_PATIENCE, WATCH_LOOK};
use crate::api::past;
use crate::api::turns::{Turn, turn};

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
            kappa: Vec::new(),
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
        let closing = peer.closing.clone();
        let tenant = &peer.caller.tenant;
        let turn = turn(&self.0.budget, Kind::Watch, tenant, 1, MAKING_PATIENCE).await?;
        let looks = watch_one(&self.0, &peer.caller, name, closing, place, turn).await?;
        Ok(Response::new(looks))
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
        let name = convert::name("name", &request.into_inner().name)?;
        let job = Some(cancel(&self.0, &peer.caller, name).await?);
        Ok(Response::new(pb::CancelJobResponse { job }))
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

/// Ends a job; it comes back as it was, with the leases whose holders are told to give them back.
pub(in crate::api) async fn cancel(
    ctx: &Context,
    caller: &Caller,
    name: Name,
) -> Result<pb::Job, Status> {
    let _place = ctx.place(Kind::Urgent, caller)?;
    let was = find(ctx, caller, name.clone()).await?;
    let command = Command::Cancel {
        caller: caller.clone(),
        job: name,
    };
    let (id, told) = match ctx.handle.run(command).await {
        Ok(Reply::Cancelled { job, told }) => (job, told),
        Ok(_) => return Err(unexpected("a cancelled job")),
        Err(failure) => return Err(error::status(failure, caller)),
    };
    let leases = told_leases(ctx, caller, told, &was.leases).await;
    Ok(pb::Job {
        id: id.0,
        leases,
        ..over(&was)
    })
}

/// A job whenever something about it changes, until it is over.
pub(in crate::api) async fn watch_one(
    ctx: &Arc<Context>,
    caller: &Caller,
    name: Name,
    closing: CancellationToken,
    place: Place,
    first_turn: Turn,
) -> Result<Answers<pb::WatchJobResponse>, Status> {
    let first = over(&find(ctx, caller, name).await?);
    drop(first_turn);
    let held = ctx.hold(Kind::Watch, caller, 2 * first.encoded_len())?;
    let last = Arc::new(Mutex::new((first, held)));
    let (inner, who) = (ctx.clone(), caller.clone());
    let look = move || {
        let (ctx, caller, last) = (inner.clone(), who.clone(), last.clone());
        async move {
            // As large as a job is, few are looked at at once. What changed meanwhile is seen the next time.
            let turn = turn(&ctx.budget, Kind::Watch, &caller.tenant, 1, WATCH_LOOK).await;
            let Ok(turn) = turn else {
                return Ok(Look::NotNow);
            };
            // By number: another job may take the name.
            let id = JobId(lock(&last).0.id);
            let job = by_id(&ctx, &caller, id).await?;
            let mut last = lock(&last);
            Ok(match job {
                Some(job) => {
                    last.0 = over(&job);
                    let n = 2 * last.0.encoded_len();
                    if !last.1.set(n) {
                        return Err(error::overloaded());
                    }
                    let job = Some(job);
                    Look::Now(pb::WatchJobResponse { job }, Some(turn))
                }
                None => Look::Last(pb::WatchJobResponse {
                    job: Some(last.0.clone()),
                }),
            })
        }
    };
    let of = |w: &pb::WatchJobResponse| {
        let job = w.job.as_ref().map(convert::without_times);
        mark(&job.unwrap_or_default())
    };
    Ok(watch(ctx, caller, closing, place, look, of))
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job as it was, now that it is over.
fn over(was: &pb::Job) -> pb::Job {
    pb::Job {
        id: was.id,
        tenant: was.tenant.clone(),
        phase: pb::JobPhase::Ended.into(),
        spec: was.spec.clone(),
        plan: was.plan.clone(),
        balance: was.balance.clone(),
        moves: was.moves,
        leases: Vec::new(),
        moving: false,
    }
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
        state
            .durable
            .job_seen_by(&who, &wanted)
            .map(|j| convert::job(state, now, j, &around))
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
        let own = |j: &&Job| who.sees(&j.tenant, Some(&j.spec.name));
        let around = Around::new(d.node(), &sockets);
        let job = d.jobs().get(&id).filter(own)?;
        Some(convert::job(state, now, job, &around))
    });
    found.await
}

/// The caller's jobs, ascending by number.
async fn list(ctx: &Context, caller: &Caller, ended: bool) -> Result<Vec<pb::Job>, Status> {
    Ok(page(ctx, caller, ended, JobId(0), usize::MAX).await?.0)
}

/// So many of the caller's jobs behind a number, ascending; and the number to go on behind, if there are more. One
/// look at the state for each, so that nobody waits long for it.
pub(in crate::api) async fn page(
    ctx: &Context,
    caller: &Caller,
    include_ended: bool,
    after: JobId,
    most: usize,
) -> Result<(Vec<pb::Job>, Option<JobId>), Status> {
    let who = caller.clone();
    let ids = ctx.read(caller, move |state, _| {
        let jobs = state.durable.jobs().values();
        let own = jobs.filter(|j| who.sees(&j.tenant, Some(&j.spec.name)));
        own.map(|j| (j.id, None)).collect::<BTreeMap<_, _>>()
    });
    let mut found = ids.await?;
    if include_ended {
        for job in past::ended_jobs(ctx, caller).await? {
            found.entry(job.id).or_insert(Some(job));
        }
    }
    found.retain(|id, _| *id > after);
    let last = found.keys().nth(most.saturating_sub(1)).copied();
    let next = last.filter(|_| found.len() > most);
    let mut jobs = Vec::new();
    for (id, ended) in found.into_iter().take(most) {
        match ended {
            Some(job) => jobs.push(convert::ended_job(&job)),
            None => jobs.extend(by_id(ctx, caller, id).await?),
        }
    }
    Ok((jobs, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_time_alone_changes_is_no_news() {
        let seen = |remaining_ms, moves| {
            let lease = pb::Lease {
                id: 7,
                remaining_ms,
                ..Default::default()
            };
            let job = pb::Job {
                leases: vec![lease],
                moves,
                ..Default::default()
            };
            mark(&convert::without_times(&job))
        };
        assert_eq!(seen(30_000, 0), seen(29_000, 0));
        assert_ne!(seen(30_000, 0), seen(30_000, 1));
    }
}
