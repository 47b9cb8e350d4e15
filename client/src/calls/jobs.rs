//! Jobs and plans.
use evenkeel_proto::v1 as pb;
use pb::job_service_client::JobServiceClient as Jobs;
use pb::plan_service_client::PlanServiceClient as Plans;
use uuid::Uuid;

use super::{Watch, required};
use crate::client::Client;
use crate::convert::solve_request;
use crate::error::Result;
use crate::model::{Explanation, Job, JobSpec, JobUpdate, Plan, PlanRequest};

impl Client {
    /// Submits a job. The same id with the same job gives the same answer: make it once
    /// ([`JobSpec::request_id`]) for one logical submission.
    ///
    /// # Errors
    /// [`crate::Error::Rejected`] says what is wrong with the job, or what can never fit.
    pub async fn submit(&self, request_id: Uuid, spec: &JobSpec) -> Result<Job> {
        let body = pb::SubmitJobRequest {
            request_id: request_id.to_string(),
            spec: Some(spec.clone().into()),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Jobs::new(channel).submit_job(request).await
            })
            .await?;
        Ok(required(answer.body.job, "SubmitJob", "job")?.into())
    }

    /// One job, by name.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub async fn job(&self, name: &str) -> Result<Job> {
        let body = pb::GetJobRequest {
            name: name.to_owned(),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Jobs::new(channel).get_job(request).await
            })
            .await?;
        Ok(required(answer.body.job, "GetJob", "job")?.into())
    }

    /// The caller's jobs (an admin's: everyone's).
    ///
    /// # Errors
    /// Those of any call.
    pub async fn jobs(&self, include_ended: bool) -> Result<Vec<Job>> {
        let answer = self
            .call(
                pb::ListJobsRequest { include_ended },
                |channel, request| async move { Jobs::new(channel).list_jobs(request).await },
            )
            .await?;
        Ok(answer.body.jobs.into_iter().map(Into::into).collect())
    }

    /// A job now, and again whenever something about it changes.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub async fn watch_job(&self, name: &str) -> Result<Watch<pb::WatchJobResponse, Job>> {
        let body = pb::WatchJobRequest {
            name: name.to_owned(),
        };
        let answer = self
            .open(body, |channel, request| async move {
                Jobs::new(channel).watch_job(request).await
            })
            .await?;
        Ok(Watch::new(answer, |r| r.job.map(Into::into)))
    }

    /// Changes how a job is rebalanced, or plans it anew.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`], [`crate::Error::Rejected`].
    pub async fn update_job(&self, name: &str, update: JobUpdate) -> Result<Job> {
        let body = pb::UpdateJobRequest {
            name: name.to_owned(),
            rebalance: update.rebalance.map(Into::into),
            policy: update.policy.map_or("", |p| p.as_str()).to_owned(),
            replan: update.replan,
        };
        let answer = self
            .call(body, |channel, request| async move {
                Jobs::new(channel).update_job(request).await
            })
            .await?;
        Ok(required(answer.body.job, "UpdateJob", "job")?.into())
    }

    /// Ends a job; its workers are told to release, then their leases are revoked.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub async fn cancel_job(&self, name: &str) -> Result<Job> {
        let body = pb::CancelJobRequest {
            name: name.to_owned(),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Jobs::new(channel).cancel_job(request).await
            })
            .await?;
        Ok(required(answer.body.job, "CancelJob", "job")?.into())
    }

    /// The plan that a job would get. Changes nothing.
    ///
    /// # Errors
    /// [`crate::Error::Rejected`] says what can never fit.
    pub async fn solve_plan(&self, request: PlanRequest) -> Result<Plan> {
        let answer = self
            .call(solve_request(request), |channel, request| async move {
                Plans::new(channel).solve_plan(request).await
            })
            .await?;
        Ok(required(answer.body.plan, "SolvePlan", "plan")?.into())
    }

    /// Why a job's shares are as they are, and what moved them last.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub async fn explain(&self, name: &str) -> Result<Explanation> {
        let body = pb::ExplainJobRequest {
            name: name.to_owned(),
        };
        let answer = self
            .call(body, |channel, request| async move {
                Plans::new(channel).explain_job(request).await
            })
            .await?;
        Ok(answer.body.into())
    }
}
