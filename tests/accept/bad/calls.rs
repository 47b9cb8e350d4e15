//! All services of a daemon on one connection, and what must not change by anything that it refuses.
use std::path::Path;

use anyhow::Context as _;
use evenkeel_proto::v1 as pb;
use pb::job_service_client::JobServiceClient;
use pb::lease_service_client::LeaseServiceClient;
use pb::node_service_client::NodeServiceClient;
use pb::plan_service_client::PlanServiceClient;
use pb::profile_service_client::ProfileServiceClient;
use tonic::Status;
use tonic::transport::Channel;
use uuid::Uuid;

use crate::load::channel;
use crate::trail;

/// A client of each service.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) leases: LeaseServiceClient<Channel>,
    pub(super) jobs: JobServiceClient<Channel>,
    pub(super) profiles: ProfileServiceClient<Channel>,
    pub(super) plans: PlanServiceClient<Channel>,
    pub(super) nodes: NodeServiceClient<Channel>,
}

impl Calls {
    pub(super) async fn connect(socket: &Path) -> anyhow::Result<Self> {
        let channel = channel(socket).await?;
        Ok(Self {
            leases: LeaseServiceClient::new(channel.clone()),
            jobs: JobServiceClient::new(channel.clone()),
            profiles: ProfileServiceClient::new(channel.clone()),
            plans: PlanServiceClient::new(channel.clone()),
            nodes: NodeServiceClient::new(channel),
        })
    }

    /// A new lease.
    pub(super) async fn grant(
        &mut self,
        asked: pb::AcquireLeaseRequest,
    ) -> anyhow::Result<pb::Lease> {
        let answer = self.leases.acquire_lease(asked).await?.into_inner();
        answer.lease.context("no lease in the answer")
    }

    /// A lease as it is.
    pub(super) async fn lease(&mut self, lease_id: u64) -> Result<pb::Lease, Status> {
        let answer = self
            .leases
            .get_lease(pb::GetLeaseRequest { lease_id })
            .await?;
        let lease = answer.into_inner().lease;
        lease.ok_or_else(|| Status::internal("an answer without a lease"))
    }

    /// Whether a renewal counts.
    pub(super) async fn renew(&mut self, lease: pb::LeaseRef) -> anyhow::Result<pb::RenewResult> {
        let leases = vec![lease];
        let answer = self.leases.renew_leases(pb::RenewLeasesRequest { leases });
        let results = answer.await?.into_inner().results;
        results
            .into_iter()
            .next()
            .context("a renewal without a result")
    }

    /// Sends one frame on a session of its own; the results of its renewals, and what was refused.
    pub(super) async fn frame(
        &mut self,
        frame: pb::SessionRequest,
    ) -> anyhow::Result<(Vec<pb::RenewStatus>, Vec<String>)> {
        let answers = self.leases.session(tokio_stream::once(frame)).await?;
        let mut answers = answers.into_inner();
        let (mut renewals, mut refused) = (Vec::new(), Vec::new());
        while let Some(answer) = answers.message().await? {
            renewals.extend(answer.renewals.iter().map(pb::RenewResult::status));
            refused.extend(answer.refused);
        }
        Ok((renewals, refused))
    }

    pub(super) async fn submit(&mut self, spec: pb::JobSpec) -> Result<pb::Job, Status> {
        let submit = pb::SubmitJobRequest {
            request_id: Uuid::now_v7().to_string(),
            spec: Some(spec),
        };
        let job = self.jobs.submit_job(submit).await?.into_inner().job;
        job.ok_or_else(|| Status::internal("an answer without a job"))
    }

    /// Stores one measurement.
    pub(super) async fn trial(
        &mut self,
        stage: &str,
        cores: u32,
        units_per_s: f64,
    ) -> Result<u32, Status> {
        let trial = pb::ReportTrialRequest {
            key: Some(key(stage)),
            point: Some(point(cores, units_per_s)),
            replaces: false,
        };
        let answer = self.profiles.report_trial(trial).await?;
        Ok(answer.into_inner().point_count)
    }
}

/// The key of a profile that was measured without a GPU.
pub(super) fn key(stage: &str) -> pb::ProfileKey {
    pb::ProfileKey {
        stage: stage.into(),
        gpu: "none".into(),
    }
}

/// A measurement without a GPU.
pub(super) fn point(cores: u32, units_per_s: f64) -> pb::ProfilePoint {
    pb::ProfilePoint {
        cores,
        batch: 1,
        units_per_s,
        ..Default::default()
    }
}

/// The right to a lease.
pub(super) const fn right(lease: &pb::Lease) -> pb::LeaseRef {
    pb::LeaseRef {
        lease_id: lease.id,
        fence: lease.fence,
    }
}

/// A session's frame with all that can be said of a lease: a renewal, a report, an acknowledgement, an offer of trials and
/// a trial's result.
pub(super) fn all_of(lease: pb::LeaseRef) -> pb::SessionRequest {
    pb::SessionRequest {
        renew: vec![lease],
        reports: vec![pb::WorkReport {
            lease: Some(lease),
            lanes: 1,
            ..Default::default()
        }],
        acknowledgements: vec![pb::Acknowledge {
            lease: Some(lease),
            generation: 1,
            effective: Some(pb::ResourceVector::default()),
        }],
        trial_offers: vec![pb::TrialOffer {
            lease: Some(lease),
            stage: "any/stage".to_owned(),
        }],
        trial_results: vec![pb::TrialResult {
            lease: Some(lease),
            trial_id: 1,
            ..Default::default()
        }],
    }
}

/// What a daemon has, and the number of the last thing that happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Id, fence, phase.
    leases: Vec<(u64, u64, i32)>,
    /// Id, phase.
    jobs: Vec<(u64, i32)>,
    /// Stage, points.
    profiles: Vec<(String, u32)>,
    newest_event: u64,
}

impl Snapshot {
    pub(super) async fn take(calls: &mut Calls, socket: &Path) -> anyhow::Result<Self> {
        let leases = calls.leases.list_leases(pb::ListLeasesRequest::default());
        let leases = leases.await?.into_inner().leases;
        let jobs = calls.jobs.list_jobs(pb::ListJobsRequest {
            include_ended: true,
        });
        let jobs = jobs.await?.into_inner().jobs;
        let profiles = calls.profiles.list_profiles(pb::ListProfilesRequest {});
        let profiles = profiles.await?.into_inner().profiles;
        let stage = |p: &pb::Profile| p.key.as_ref().map_or_else(String::new, |k| k.stage.clone());
        Ok(Self {
            leases: leases.iter().map(|l| (l.id, l.fence, l.phase)).collect(),
            jobs: jobs.iter().map(|j| (j.id, j.phase)).collect(),
            profiles: profiles.iter().map(|p| (stage(p), p.point_count)).collect(),
            newest_event: trail::newest(socket).await?,
        })
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        format!(
            "{} leases, {} jobs, {} profiles, event {} the newest",
            self.leases.len(),
            self.jobs.len(),
            self.profiles.len(),
            self.newest_event
        )
    }
}
