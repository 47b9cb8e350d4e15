//! The fake daemon's jobs, profiles, plans and node: what it is told, it says again.
use evenkeel_proto::v1 as pb;
use pb::job_service_server::JobService;
use pb::node_service_server::NodeService;
use pb::plan_service_server::PlanService;
use pb::profile_service_server::ProfileService;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::Service;

/// What it says of itself.
fn node(live_leases: u32) -> pb::Node {
    pb::Node {
        name: "fake".into(),
        kind: "synthetic".into(),
        cores: "0-7".into(),
        gpus: vec![pb::Gpu {
            model: "H100".into(),
            sms: 132,
            memory_bytes: 80 << 30,
            leasable_memory_bytes: 79 << 30,
            backend: "emulated".into(),
            mode: "enforce".into(),
            enforceable_sms: (1..=66).map(|i| i * 2).collect(),
            ..pb::Gpu::default()
        }],
        version: "0.1.0".into(),
        live_leases,
        ..pb::Node::default()
    }
}

/// An even split, so that there is something to show.
fn plan(spec: &pb::JobSpec) -> pb::Plan {
    let stages = spec.stages.iter().map(|s| pb::StagePlan {
        stage: s.name.clone(),
        cores: s.min_cores.max(1),
        sms: s.min_sms,
        cap_sms: s.min_sms,
        batch: 1,
        predicted_units_per_s: 100.0,
        ..pb::StagePlan::default()
    });
    pb::Plan {
        stages: stages.collect(),
        units_per_s: 100.0,
        by: "even".into(),
        why: vec!["nothing was measured yet".into()],
        ..pb::Plan::default()
    }
}

fn no_job(name: &str) -> Status {
    Status::not_found(format!("there is no job {name}"))
}

type Watch<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl JobService for Service {
    type WatchJobStream = Watch<pb::WatchJobResponse>;

    async fn submit_job(
        &self,
        request: Request<pb::SubmitJobRequest>,
    ) -> Result<Response<pb::SubmitJobResponse>, Status> {
        let mut world = self.world();
        world.refusal()?;
        let spec = request.into_inner().spec.unwrap_or_default();
        let job = pb::Job {
            id: world.jobs.len() as u64 + 1,
            tenant: "test".into(),
            phase: pb::JobPhase::Admitted.into(),
            plan: Some(plan(&spec)),
            spec: Some(spec.clone()),
            ..pb::Job::default()
        };
        world.jobs.insert(spec.name, job.clone());
        Ok(Response::new(pb::SubmitJobResponse { job: Some(job) }))
    }

    async fn get_job(
        &self,
        request: Request<pb::GetJobRequest>,
    ) -> Result<Response<pb::GetJobResponse>, Status> {
        let name = &request.get_ref().name;
        let job = self.world().jobs.get(name).cloned();
        let job = Some(job.ok_or_else(|| no_job(name))?);
        Ok(Response::new(pb::GetJobResponse { job }))
    }

    async fn list_jobs(
        &self,
        _: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListJobsResponse>, Status> {
        let jobs = self.world().jobs.values().cloned().collect();
        Ok(Response::new(pb::ListJobsResponse { jobs }))
    }

    async fn watch_job(
        &self,
        request: Request<pb::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        let name = &request.get_ref().name;
        let job = self.world().jobs.get(name).cloned();
        let job = Some(job.ok_or_else(|| no_job(name))?);
        let (send, stream) = tokio::sync::mpsc::channel(1);
        send.try_send(Ok(pb::WatchJobResponse { job })).ok();
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn update_job(
        &self,
        request: Request<pb::UpdateJobRequest>,
    ) -> Result<Response<pb::UpdateJobResponse>, Status> {
        let request = request.into_inner();
        let mut world = self.world();
        let job = world.jobs.get_mut(&request.name);
        let job = job.ok_or_else(|| no_job(&request.name))?;
        if let (Some(rules), Some(spec)) = (request.rebalance, &mut job.spec) {
            spec.rebalance = Some(rules);
        }
        let job = Some(job.clone());
        Ok(Response::new(pb::UpdateJobResponse { job }))
    }

    async fn cancel_job(
        &self,
        request: Request<pb::CancelJobRequest>,
    ) -> Result<Response<pb::CancelJobResponse>, Status> {
        let name = &request.get_ref().name;
        let mut world = self.world();
        let job = world.jobs.get_mut(name).ok_or_else(|| no_job(name))?;
        job.phase = pb::JobPhase::Ended.into();
        let job = Some(job.clone());
        Ok(Response::new(pb::CancelJobResponse { job }))
    }
}

fn key(key: Option<pb::ProfileKey>) -> (String, String) {
    let key = key.unwrap_or_default();
    (key.stage, key.gpu)
}

impl Service {
    fn stored(&self, wanted: Option<pb::ProfileKey>) -> Result<pb::Profile, Status> {
        let wanted = key(wanted);
        let found = self.world().profiles.get(&wanted).cloned();
        found.ok_or_else(|| Status::not_found(format!("there is no profile of {}", wanted.0)))
    }
}

#[tonic::async_trait]
impl ProfileService for Service {
    async fn report_trial(
        &self,
        request: Request<pb::ReportTrialRequest>,
    ) -> Result<Response<pb::ReportTrialResponse>, Status> {
        let request = request.into_inner();
        let mut world = self.world();
        let profile = world.profiles.entry(key(request.key.clone())).or_default();
        profile.key = request.key;
        if let (true, Some(new)) = (request.replaces, &request.point) {
            let place = |p: &pb::ProfilePoint| (p.cores, p.sms, p.batch, p.replicas);
            profile.points.retain(|old| place(old) != place(new));
        }
        profile.points.extend(request.point);
        profile.point_count = profile.points.len() as u32;
        let point_count = profile.point_count;
        world.lose()?;
        Ok(Response::new(pb::ReportTrialResponse { point_count }))
    }

    async fn get_profile(
        &self,
        request: Request<pb::GetProfileRequest>,
    ) -> Result<Response<pb::GetProfileResponse>, Status> {
        let profile = self.stored(request.into_inner().key)?;
        let point = |quota, units_per_s| pb::CurvePoint {
            quota,
            units_per_s,
            relative_error: 0.02,
        };
        let curve = pb::Curve {
            cores: 1,
            batch: 1,
            points: vec![point(14, 100.0), point(66, 390.0), point(132, 400.0)],
            knee: 66,
            replicas: 1,
            memory_bytes: 0,
        };
        Ok(Response::new(pb::GetProfileResponse {
            profile: Some(profile),
            curves: vec![curve],
        }))
    }

    async fn list_profiles(
        &self,
        _: Request<pb::ListProfilesRequest>,
    ) -> Result<Response<pb::ListProfilesResponse>, Status> {
        let world = self.world();
        let profiles = world.profiles.values().map(|p| pb::Profile {
            points: Vec::new(),
            ..p.clone()
        });
        let profiles = profiles.collect();
        Ok(Response::new(pb::ListProfilesResponse { profiles }))
    }

    async fn import_profile(
        &self,
        request: Request<pb::ImportProfileRequest>,
    ) -> Result<Response<pb::ImportProfileResponse>, Status> {
        let profile = request.into_inner().profile.unwrap_or_default();
        let point_count = profile.points.len() as u32;
        let key = key(profile.key.clone());
        self.world().profiles.insert(key, profile);
        Ok(Response::new(pb::ImportProfileResponse { point_count }))
    }

    async fn export_profile(
        &self,
        request: Request<pb::ExportProfileRequest>,
    ) -> Result<Response<pb::ExportProfileResponse>, Status> {
        let profile = Some(self.stored(request.into_inner().key)?);
        Ok(Response::new(pb::ExportProfileResponse { profile }))
    }

    async fn run_trial(
        &self,
        request: Request<pb::RunTrialRequest>,
    ) -> Result<Response<pb::RunTrialResponse>, Status> {
        let asked = request.into_inner();
        if asked.stage.ends_with("/nobody") {
            return Err(Status::not_found(
                "a worker that offers itself does not exist",
            ));
        }
        // As many units as it has cores, and not with three of them.
        let (units_per_s, failure) = match asked.cores {
            3 => (0.0, "out of memory".to_owned()),
            n => (f64::from(n) * 100.0, String::new()),
        };
        Ok(Response::new(pb::RunTrialResponse {
            units_per_s,
            failure,
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl PlanService for Service {
    async fn solve_plan(
        &self,
        request: Request<pb::SolvePlanRequest>,
    ) -> Result<Response<pb::SolvePlanResponse>, Status> {
        let spec = request.into_inner().spec.unwrap_or_default();
        let plan = Some(plan(&spec));
        Ok(Response::new(pb::SolvePlanResponse { plan }))
    }

    async fn explain_job(
        &self,
        request: Request<pb::ExplainJobRequest>,
    ) -> Result<Response<pb::ExplainJobResponse>, Status> {
        let name = &request.get_ref().name;
        let job = self.world().jobs.get(name).cloned();
        let decision = pb::Decision {
            event_seq: 3,
            unix_ms: 0,
            kind: "admitted".into(),
            reason: "there is room".into(),
        };
        Ok(Response::new(pb::ExplainJobResponse {
            job: Some(job.ok_or_else(|| no_job(name))?),
            sentences: vec!["One more SM would bring nothing.".into()],
            decisions: vec![decision],
        }))
    }
}

#[tonic::async_trait]
impl NodeService for Service {
    type WatchNodeStream = Watch<pb::WatchNodeResponse>;

    async fn get_node(
        &self,
        _: Request<pb::GetNodeRequest>,
    ) -> Result<Response<pb::GetNodeResponse>, Status> {
        let mut world = self.world();
        world.refusal()?;
        let node = Some(node(world.leases.len() as u32));
        Ok(Response::new(pb::GetNodeResponse { node }))
    }

    async fn drain_node(
        &self,
        request: Request<pb::DrainNodeRequest>,
    ) -> Result<Response<pb::DrainNodeResponse>, Status> {
        let node = pb::Node {
            draining: request.get_ref().draining,
            ..node(0)
        };
        Ok(Response::new(pb::DrainNodeResponse { node: Some(node) }))
    }

    async fn list_events(
        &self,
        request: Request<pb::ListEventsRequest>,
    ) -> Result<Response<pb::ListEventsResponse>, Status> {
        let told = self.world().events.clone();
        if !told.is_empty() {
            return Ok(Response::new(pb::ListEventsResponse {
                next_after_seq: told.len() as u64,
                events: told,
            }));
        }
        let after = request.get_ref().after_seq;
        let event = |seq| pb::Event {
            seq,
            kind: "lease_granted".into(),
            lease_id: seq,
            tenant: "test".into(),
            json: format!(r#"{{"lease_granted":{{"lease":{seq}}}}}"#),
            ..pb::Event::default()
        };
        Ok(Response::new(pb::ListEventsResponse {
            events: (after + 1..=3).map(event).collect(),
            next_after_seq: 3,
        }))
    }

    async fn watch_node(
        &self,
        _: Request<pb::WatchNodeRequest>,
    ) -> Result<Response<Self::WatchNodeStream>, Status> {
        let (send, stream) = tokio::sync::mpsc::channel(1);
        let node = Some(node(0));
        send.try_send(Ok(pb::WatchNodeResponse { node })).ok();
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
