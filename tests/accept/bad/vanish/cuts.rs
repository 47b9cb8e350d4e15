//! The calls that are cut off, each with something of its own, so that its effect can be found in the ledger.
use anyhow::ensure;
use evenkeel_proto::v1 as pb;
use serde_json::Value;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::bad::amounts::small_job;
use crate::bad::calls::{Calls, key, point, right};
use crate::load::request;
use crate::trail::Trail;

/// Calls that change something, or would if they were allowed to.
pub(super) const WRITES: [&str; 13] = [
    "acquire",
    "acquire and wait",
    "renew",
    "release",
    "revoke",
    "clear",
    "attach",
    "session",
    "submit",
    "update",
    "cancel",
    "report trial",
    "import",
];
/// Calls that read, and streams that go on.
pub(super) const READS: [&str; 13] = [
    "get lease",
    "list leases",
    "get job",
    "list jobs",
    "watch job",
    "get profile",
    "list profiles",
    "export",
    "solve",
    "explain",
    "get node",
    "list events",
    "watch node",
];
/// A queue entry that nobody waits for is dropped after this time.
const QUEUED_MS: u64 = 5_000;

/// A call that was cut off.
pub(super) struct Cut {
    pub(super) call: &'static str,
    /// No other call has this number.
    n: u64,
    request: String,
    /// A lease of its own, where the call is about one.
    lease: pb::LeaseRef,
    /// Its job, and that one's number where it exists already.
    job: String,
    job_id: u64,
}

impl Cut {
    /// Makes what the call is about.
    pub(super) async fn prepare(
        call: &'static str,
        n: u64,
        good: &mut Calls,
    ) -> anyhow::Result<Self> {
        let mut cut = Self {
            call,
            n,
            request: Uuid::now_v7().to_string(),
            lease: pb::LeaseRef::default(),
            job: format!("cut-{n}"),
            job_id: 0,
        };
        match call {
            "renew" | "release" | "revoke" | "clear" | "attach" | "session" => {
                cut.lease = right(&good.grant(request()).await?);
            }
            "cancel" => cut.job_id = good.submit(small_job(&cut.job)).await?.id,
            "update" => cut.job = "shared".into(),
            _ => {}
        }
        Ok(cut)
    }

    fn acquire(&self) -> pb::AcquireLeaseRequest {
        let asked = pb::AcquireLeaseRequest {
            request_id: self.request.clone(),
            ..request()
        };
        if self.call == "acquire" {
            return asked;
        }
        // All cores, behind everybody else.
        pb::AcquireLeaseRequest {
            cores: 16_384,
            gpus: vec![],
            wait_ms: 60_000,
            ttl_ms: QUEUED_MS,
            priority: -100,
            ..asked
        }
    }

    /// A number that only this call carries.
    const fn horizon_ms(&self) -> u64 {
        1_000_000 + self.n
    }

    /// How often its effect is in the ledger.
    pub(super) fn effects(&self, trail: &Trail) -> usize {
        let lease = self.lease.lease_id;
        let of = |json: &Value, path: &str| json.pointer(path).cloned().unwrap_or_default();
        match self.call {
            "acquire" => trail.count("lease_granted", |e| of(e, "/lease/request") == self.request),
            "acquire and wait" => {
                trail.count("lease_queued", |e| of(e, "/lease/request") == self.request)
            }
            "submit" => trail.count("job_submitted", |e| of(e, "/job/request") == self.request),
            "update" => trail.count("job_updated", |e| {
                of(e, "/rebalance/horizon") == self.horizon_ms()
            }),
            "cancel" => trail.count("job_ended", |e| of(e, "/id") == self.job_id),
            "report trial" => trail.count("trial_reported", |e| {
                of(e, "/point/rate").as_f64() == Some(self.n as f64)
            }),
            "import" => trail.count("profile_imported", |e| {
                of(e, "/profile/key/stage") == self.job
            }),
            "release" | "revoke" => trail.of_lease("lease_ended", lease),
            // Nobody attaches to such a lease or clears it, and renewals are in no ledger.
            _ => trail.of_lease("lease_ended", lease) + trail.of_lease("lease_attached", lease),
        }
    }

    /// How often it is there once the call has run.
    pub(super) fn effects_when_done(&self) -> usize {
        usize::from(!matches!(
            self.call,
            "renew" | "clear" | "attach" | "session"
        ))
    }

    /// Whether the call can be said again without a second effect.
    pub(super) fn can_be_said_again(&self) -> bool {
        matches!(
            self.call,
            "acquire" | "release" | "revoke" | "submit" | "cancel"
        )
    }

    /// Says it again, and this time waits for the answer.
    pub(super) async fn say_again(&self, good: &mut Calls) -> anyhow::Result<()> {
        if !self.can_be_said_again() {
            return Ok(());
        }
        match (self.call, write(good, self).await) {
            (_, Ok(())) => Ok(()),
            // It ran before, and there is nothing any more that it could be about.
            ("revoke", Err(status)) => {
                ensure!(
                    status.code() == Code::FailedPrecondition,
                    "revoked again: {status}"
                );
                Ok(())
            }
            ("cancel", Err(status)) => {
                ensure!(status.code() == Code::NotFound, "cancelled again: {status}");
                Ok(())
            }
            (call, Err(status)) => Err(anyhow::anyhow!("{call} said again: {status}")),
        }
    }

    /// Gives back what it has made or was about.
    pub(super) async fn end(&self, good: &mut Calls) -> anyhow::Result<()> {
        match self.call {
            "acquire" => {
                let lease = good.grant(self.acquire()).await?;
                release(good, right(&lease)).await?;
            }
            "submit" => {
                let name = self.job.clone();
                good.jobs.cancel_job(pb::CancelJobRequest { name }).await?;
            }
            "renew" | "clear" | "attach" | "session" => release(good, self.lease).await?,
            _ => {}
        }
        Ok(())
    }
}

async fn release(calls: &mut Calls, lease: pb::LeaseRef) -> Result<(), Status> {
    let pb::LeaseRef { lease_id, fence } = lease;
    let release = pb::ReleaseLeaseRequest { lease_id, fence };
    calls.leases.release_lease(release).await.map(drop)
}

/// Makes a call that changes something.
pub(super) async fn write(calls: &mut Calls, cut: &Cut) -> Result<(), Status> {
    let pb::LeaseRef { lease_id, fence } = cut.lease;
    let leases = &mut calls.leases;
    match cut.call {
        "acquire" | "acquire and wait" => leases.acquire_lease(cut.acquire()).await.map(drop),
        "renew" => {
            let leases = vec![cut.lease];
            let renew = pb::RenewLeasesRequest { leases };
            calls.leases.renew_leases(renew).await.map(drop)
        }
        "release" => release(calls, cut.lease).await,
        "revoke" => {
            let revoke = pb::RevokeLeaseRequest { lease_id };
            leases.revoke_lease(revoke).await.map(drop)
        }
        "clear" => {
            let reason = "it is gone".into();
            let clear = pb::ClearLeaseRequest { lease_id, reason };
            leases.clear_lease(clear).await.map(drop)
        }
        "attach" => {
            let attach = pb::AttachLeaseRequest {
                lease_id,
                fence,
                pid: 0,
            };
            leases.attach_lease(attach).await.map(drop)
        }
        "session" => {
            let frame = pb::SessionRequest {
                renew: vec![cut.lease],
                ..Default::default()
            };
            let answers = leases.session(tokio_stream::once(frame)).await?;
            answers.into_inner().message().await.map(drop)
        }
        _ => write_jobs(calls, cut).await,
    }
}

async fn write_jobs(calls: &mut Calls, cut: &Cut) -> Result<(), Status> {
    let name = cut.job.clone();
    match cut.call {
        "submit" => {
            let submit = pb::SubmitJobRequest {
                request_id: cut.request.clone(),
                spec: Some(small_job(&cut.job)),
            };
            calls.jobs.submit_job(submit).await.map(drop)
        }
        "update" => {
            let rebalance = pb::RebalanceSpec {
                horizon_ms: Some(cut.horizon_ms()),
                ..Default::default()
            };
            let update = pb::UpdateJobRequest {
                name,
                rebalance: Some(rebalance),
                ..Default::default()
            };
            calls.jobs.update_job(update).await.map(drop)
        }
        "cancel" => calls
            .jobs
            .cancel_job(pb::CancelJobRequest { name })
            .await
            .map(drop),
        "report trial" => calls.trial("shared/sim", 1, cut.n as f64).await.map(drop),
        _ => {
            let profile = pb::Profile {
                key: Some(key(&cut.job)),
                points: vec![point(1, 1.0)],
                ..Default::default()
            };
            let import = pb::ImportProfileRequest {
                profile: Some(profile),
            };
            calls.profiles.import_profile(import).await.map(drop)
        }
    }
}

/// Makes a call that reads.
pub(super) async fn read(calls: &mut Calls, call: &str) -> Result<(), Status> {
    let (name, stage) = ("shared".to_owned(), Some(key("shared/sim")));
    match call {
        "get lease" => calls.lease(1).await.map(drop),
        "list leases" => {
            let list = pb::ListLeasesRequest::default();
            calls.leases.list_leases(list).await.map(drop)
        }
        "get job" => calls
            .jobs
            .get_job(pb::GetJobRequest { name })
            .await
            .map(drop),
        "list jobs" => {
            let list = pb::ListJobsRequest {
                include_ended: true,
            };
            calls.jobs.list_jobs(list).await.map(drop)
        }
        "watch job" => {
            let looks = calls.jobs.watch_job(pb::WatchJobRequest { name }).await?;
            looks.into_inner().message().await.map(drop)
        }
        "get profile" => {
            let get = pb::GetProfileRequest { key: stage };
            calls.profiles.get_profile(get).await.map(drop)
        }
        "list profiles" => {
            let list = pb::ListProfilesRequest {};
            calls.profiles.list_profiles(list).await.map(drop)
        }
        "export" => {
            let export = pb::ExportProfileRequest { key: stage };
            calls.profiles.export_profile(export).await.map(drop)
        }
        "solve" => {
            let solve = pb::SolvePlanRequest {
                spec: Some(small_job("imagined")),
                ..Default::default()
            };
            calls.plans.solve_plan(solve).await.map(drop)
        }
        "explain" => {
            let explain = pb::ExplainJobRequest { name };
            calls.plans.explain_job(explain).await.map(drop)
        }
        "get node" => calls.nodes.get_node(pb::GetNodeRequest {}).await.map(drop),
        "list events" => {
            let events = pb::ListEventsRequest::default();
            calls.nodes.list_events(events).await.map(drop)
        }
        _ => {
            let looks = calls.nodes.watch_node(pb::WatchNodeRequest {}).await?;
            looks.into_inner().message().await.map(drop)
        }
    }
}
