//! Jobs and plans: submitted, watched, changed, explained, ended.
use evenkeel_proto::v1 as pb;
use tonic::Code;

use super::kit::{Rig, Who, acquire, next, refused, request_id, until, why};

/// Simulation on cores, generation and training on a GPU.
pub(crate) fn spec(name: &str) -> pb::JobSpec {
    let stage = |name: &str, role: pb::StageRole| pb::StageSpec {
        name: name.into(),
        role: role.into(),
        memory_bytes: 4 << 30,
        min_cores: 1,
        ..Default::default()
    };
    pb::JobSpec {
        name: name.into(),
        unit: "env_step".into(),
        rebalance: Some(pb::RebalanceSpec {
            refit_windows: Some(0),
            ..Default::default()
        }),
        stages: vec![
            pb::StageSpec {
                memory_bytes: 0,
                no_gpu: true,
                ..stage("sim", pb::StageRole::Simulation)
            },
            stage("gen", pb::StageRole::Generation),
            pb::StageSpec {
                resize: pb::ResizeMode::Live.into(),
                ..stage("train", pb::StageRole::Training)
            },
        ],
        ..Default::default()
    }
}

pub(crate) async fn submit(rig: &Rig, who: Who, spec: pb::JobSpec) -> pb::Job {
    let request = pb::SubmitJobRequest {
        request_id: request_id(),
        spec: Some(spec),
    };
    rig.jobs(who)
        .await
        .submit_job(request)
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap()
}

/// This process holds the lease, and is seen where it should be.
pub(crate) async fn attach(rig: &Rig, lease: &pb::Lease) -> pb::Lease {
    let mut alice = rig.leases(Who::Alice).await;
    let request = pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
        pid: 0,
    };
    let held = alice
        .attach_lease(request)
        .await
        .unwrap()
        .into_inner()
        .lease
        .unwrap();
    rig.observe(&held).await;
    rig.observe(&held).await;
    let got = alice
        .get_lease(pb::GetLeaseRequest { lease_id: lease.id })
        .await
        .unwrap();
    let got = got.into_inner().lease.unwrap();
    assert_eq!(
        (got.phase(), &got.held),
        (pb::LeasePhase::Active, &got.target)
    );
    got
}

pub(crate) async fn worker(rig: &Rig, job: &str, stage: &str) -> pb::Lease {
    let member = pb::Member {
        job: job.into(),
        stage: stage.into(),
        worker: 0,
    };
    let request = pb::AcquireLeaseRequest {
        request_id: request_id(),
        member: Some(member),
        resize: match stage {
            "train" => pb::ResizeMode::Live,
            _ => pb::ResizeMode::Restart,
        }
        .into(),
        ..Default::default()
    };
    acquire(&mut rig.leases(Who::Alice).await, request).await
}

/// A job whose generation and training are held by this process.
pub(crate) async fn job_with_workers(rig: &Rig, name: &str) -> (pb::Lease, pb::Lease) {
    submit(rig, Who::Alice, spec(name)).await;
    let generation = worker(rig, name, "gen").await;
    let training = worker(rig, name, "train").await;
    (attach(rig, &generation).await, attach(rig, &training).await)
}

/// Profiles by which training needs most of the GPU.
pub(crate) async fn uneven_profiles(rig: &Rig, job: &str) {
    let mut profiles = rig.profiles(Who::Alice).await;
    for (stage, gpu, units_per_sm) in [
        ("sim", "none", 0.0),
        ("gen", "H100", 10.0),
        ("train", "H100", 3.0),
    ] {
        let at = |cores, sms: u32| pb::ProfilePoint {
            cores,
            sms,
            batch: 1,
            units_per_s: if sms == 0 {
                2_000.0
            } else {
                f64::from(sms) * units_per_sm
            },
            memory_bytes: 4 << 30,
            ..Default::default()
        };
        let points = match gpu {
            "none" => vec![pb::ProfilePoint {
                memory_bytes: 0,
                ..at(1, 0)
            }],
            _ => [2, 34, 66, 100, 132].map(|sms| at(1, sms)).into(),
        };
        let key = Some(pb::ProfileKey {
            stage: format!("{job}/{stage}"),
            gpu: gpu.into(),
        });
        let profile = Some(pb::Profile {
            key,
            points,
            ..Default::default()
        });
        profiles
            .import_profile(pb::ImportProfileRequest { profile })
            .await
            .unwrap();
    }
}

/// Profiles by which generation and training are alike, and generation is twice as fast at the first batch size as at
/// the second.
pub(crate) async fn batched_profiles(rig: &Rig, job: &str, [best, other]: [u32; 2]) {
    let mut profiles = rig.profiles(Who::Alice).await;
    let at = |sms: u32, batch, units_per_s| pb::ProfilePoint {
        cores: 1,
        sms,
        batch,
        units_per_s,
        memory_bytes: if sms == 0 { 0 } else { 4 << 30 },
        ..Default::default()
    };
    let curve = |batch, units_per_sm: f64| {
        let sms = [2, 34, 66, 100, 132].into_iter();
        sms.map(move |sms| at(sms, batch, f64::from(sms) * units_per_sm))
    };
    for (stage, gpu, points) in [
        ("sim", "none", vec![at(0, 1, 2_000.0)]),
        (
            "gen",
            "H100",
            curve(best, 10.0).chain(curve(other, 5.0)).collect(),
        ),
        ("train", "H100", curve(1, 10.0).collect()),
    ] {
        let key = Some(pb::ProfileKey {
            stage: format!("{job}/{stage}"),
            gpu: gpu.into(),
        });
        let profile = Some(pb::Profile {
            key,
            points,
            ..Default::default()
        });
        let request = pb::ImportProfileRequest { profile };
        profiles.import_profile(request).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_lives_its_life() {
    let mut rig = Rig::local().await;
    let request = pb::SubmitJobRequest {
        request_id: request_id(),
        spec: Some(spec("pick")),
    };
    let mut jobs = rig.jobs(Who::Alice).await;
    let job = jobs
        .submit_job(request.clone())
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!(
        (job.phase(), job.tenant.as_str()),
        (pb::JobPhase::Admitted, "alice")
    );
    let plan = job.plan.as_ref().unwrap();
    assert_eq!((plan.by.as_str(), plan.stages.len()), ("even", 3));
    assert_eq!(plan.stages[1].workers[0].gpus[0].gpu_uuid, "GPU-0");
    let again = jobs
        .submit_job(request.clone())
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!(again.id, job.id);
    let other = pb::SubmitJobRequest {
        spec: Some(spec("place")),
        ..request.clone()
    };
    refused(
        "another body",
        jobs.submit_job(other).await,
        Code::AlreadyExists,
        "OTHER_BODY",
    );
    let twin = pb::SubmitJobRequest {
        request_id: request_id(),
        ..request.clone()
    };
    refused(
        "the name",
        jobs.submit_job(twin).await,
        Code::AlreadyExists,
        "NAME_TAKEN",
    );

    let lease = worker(&rig, "pick", "gen").await;
    let member = lease.member.as_ref().unwrap();
    assert_eq!(
        (member.job.as_str(), member.stage.as_str(), member.worker),
        ("pick", "gen", 0)
    );
    assert_eq!(
        lease.target.as_ref(),
        Some(&plan.stages[1].workers[0]),
        "what the plan has for it"
    );
    let mut alice = rig.leases(Who::Alice).await;
    let ask = |stage: &str, worker| pb::AcquireLeaseRequest {
        request_id: request_id(),
        member: Some(pb::Member {
            job: "pick".into(),
            stage: stage.into(),
            worker,
        }),
        ..Default::default()
    };
    refused(
        "taken",
        alice.acquire_lease(ask("gen", 0)).await,
        Code::AlreadyExists,
        "SLOT_TAKEN",
    );
    let no_stage = alice.acquire_lease(ask("generation", 0)).await;
    let status = refused("no such stage", no_stage, Code::InvalidArgument, "INVALID");
    assert!(
        status.message().contains("it has sim, gen, train"),
        "{status:?}"
    );
    refused(
        "no such worker",
        alice.acquire_lease(ask("gen", 1)).await,
        Code::InvalidArgument,
        "INVALID",
    );
    let by_job = pb::ListLeasesRequest {
        job: "pick".into(),
        ..Default::default()
    };
    assert_eq!(
        alice
            .list_leases(by_job.clone())
            .await
            .unwrap()
            .into_inner()
            .leases
            .len(),
        1
    );
    let mut bob = rig.leases(Who::Bob).await;
    refused(
        "bob's list",
        bob.list_leases(by_job).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    let status = refused(
        "bob's worker",
        bob.acquire_lease(ask("gen", 0)).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    assert!(status.message().starts_with("job pick "), "{status:?}");

    let get = pb::GetJobRequest {
        name: "pick".into(),
    };
    refused(
        "bob",
        rig.jobs(Who::Bob).await.get_job(get.clone()).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    let seen = rig
        .jobs(Who::Admin)
        .await
        .get_job(get.clone())
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!((seen.id, seen.leases.len()), (job.id, 1));
    assert_eq!(seen.spec, job.spec);

    rig.restart().await;
    let mut jobs = rig.jobs(Who::Alice).await;
    let again = jobs
        .submit_job(request.clone())
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!(
        (again.id, again.leases.len()),
        (job.id, 1),
        "also in the next life"
    );
    let cancelled = jobs
        .cancel_job(pb::CancelJobRequest {
            name: "pick".into(),
        })
        .await
        .unwrap();
    assert_eq!(
        cancelled.into_inner().job.unwrap().phase(),
        pb::JobPhase::Ended
    );
    refused(
        "it is gone",
        jobs.get_job(get).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    let over = jobs
        .submit_job(request)
        .await
        .unwrap()
        .into_inner()
        .job
        .unwrap();
    assert_eq!(
        (over.id, over.phase()),
        (job.id, pb::JobPhase::Ended),
        "said again, it is over"
    );
    let list = async |include_ended| {
        let mut jobs = rig.jobs(Who::Alice).await;
        jobs.list_jobs(pb::ListJobsRequest { include_ended })
            .await
            .unwrap()
            .into_inner()
            .jobs
    };
    assert!(list(false).await.is_empty());
    let ended = list(true).await;
    assert_eq!(
        (ended[0].id, ended[0].phase()),
        (job.id, pb::JobPhase::Ended)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_see_changes_and_the_end() {
    let rig = Rig::local().await;
    submit(&rig, Who::Alice, spec("pick")).await;
    let mut jobs = rig.jobs(Who::Alice).await;
    let watch = pb::WatchJobRequest {
        name: "pick".into(),
    };
    refused(
        "bob",
        rig.jobs(Who::Bob).await.watch_job(watch.clone()).await,
        Code::NotFound,
        "NOT_FOUND",
    );
    let mut seen = jobs.watch_job(watch).await.unwrap().into_inner();
    let first = next("the job", &mut seen).await.job.unwrap();
    assert!(first.leases.is_empty());
    worker(&rig, "pick", "train").await;
    let second = next("a worker", &mut seen).await.job.unwrap();
    assert_eq!(second.leases.len(), 1);
    let rules = Some(pb::RebalanceSpec {
        frozen: true,
        ..Default::default()
    });
    let update = pb::UpdateJobRequest {
        name: "pick".into(),
        rebalance: rules,
        ..Default::default()
    };
    jobs.update_job(update).await.unwrap();
    let third = next("new rules", &mut seen).await.job.unwrap();
    assert!(third.spec.unwrap().rebalance.unwrap().frozen);
    assert_eq!(third.balance.unwrap().state, "frozen");
    jobs.cancel_job(pb::CancelJobRequest {
        name: "pick".into(),
    })
    .await
    .unwrap();
    let mut last = next("the end", &mut seen).await.job.unwrap();
    while last.phase() != pb::JobPhase::Ended {
        last = next("the end", &mut seen).await.job.unwrap();
    }
    assert!(
        seen.message().await.unwrap().is_none(),
        "nothing comes after the end"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_can_be_asked_for_and_are_explained() {
    let rig = Rig::local().await;
    let mut plans = rig.plans(Who::Alice).await;
    let ask = pb::SolvePlanRequest {
        spec: Some(spec("pick")),
        ..Default::default()
    };
    let before = rig.snapshot().await;
    let even = plans
        .solve_plan(ask.clone())
        .await
        .unwrap()
        .into_inner()
        .plan
        .unwrap();
    assert_eq!(even.by, "even");
    assert!(
        even.stages.iter().all(|s| s.workers.is_empty()),
        "vectors are left out"
    );
    assert_eq!(rig.snapshot().await, before, "asking changes nothing");

    uneven_profiles(&rig, "pick").await;
    let stored = plans
        .solve_plan(ask.clone())
        .await
        .unwrap()
        .into_inner()
        .plan
        .unwrap();
    assert_eq!(stored.by, "waterfill");
    assert!(
        stored.stages[2].sms > 2 * stored.stages[1].sms,
        "{stored:?}"
    );
    let half = pb::SolvePlanRequest {
        sms: Some(66),
        cores: Some(32),
        ..ask.clone()
    };
    let half = plans
        .solve_plan(half)
        .await
        .unwrap()
        .into_inner()
        .plan
        .unwrap();
    assert!(
        half.units_per_s < stored.units_per_s * 0.6,
        "{} of {}",
        half.units_per_s,
        stored.units_per_s
    );
    let tiny = pb::SolvePlanRequest {
        cores: Some(1),
        ..ask.clone()
    };
    let status = refused(
        "one core",
        plans.solve_plan(tiny).await,
        Code::FailedPrecondition,
        "NEVER_FITS",
    );
    assert_eq!(why(&status).1["resource"], "cores");
    assert!(
        status.message().starts_with("no split fits: "),
        "{status:?}"
    );
    let none = pb::SolvePlanRequest {
        sms: Some(0),
        ..ask
    };
    refused(
        "no SMs",
        plans.solve_plan(none).await,
        Code::InvalidArgument,
        "INVALID",
    );

    submit(&rig, Who::Alice, spec("pick")).await;
    let explain = pb::ExplainJobRequest {
        name: "pick".into(),
    };
    let explained = plans
        .explain_job(explain.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(explained.job.unwrap().spec.unwrap().name, "pick");
    assert!(
        explained.sentences[0].contains("waterfill"),
        "{:?}",
        explained.sentences
    );
    assert_eq!(explained.decisions[0].kind, "admitted");
    let bobs = rig.plans(Who::Bob).await.explain_job(explain).await;
    refused("bob", bobs, Code::NotFound, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_become_measured_throughput() {
    let rig = Rig::local().await;
    let (generation, training) = job_with_workers(&rig, "pick").await;
    let simulation = attach(&rig, &worker(&rig, "pick", "sim").await).await;
    let mut alice = rig.leases(Who::Alice).await;
    let (up, frames) = tokio::sync::mpsc::channel(4);
    let frames = tokio_stream::wrappers::ReceiverStream::new(frames);
    let mut down = alice.session(frames).await.unwrap().into_inner();
    let report = |lease: &pb::Lease, units, n| pb::WorkReport {
        lease: Some(super::kit::reference(lease)),
        lanes: 1,
        intervals: vec![pb::BusyInterval {
            began_us_ago: 200_000,
            busy_us: 100_000,
            units,
            batch: 1,
            ..Default::default()
        }],
        steps: Option::into_iter(n)
            .map(|n| pb::StepReport {
                n,
                consumed_units: units,
                discarded_units: 0.0,
            })
            .collect(),
    };
    let mut n = 0;
    let balance = until("windows close", async || {
        n += 1;
        let reports = vec![
            report(&simulation, 200.0, None),
            report(&generation, 100.0, None),
            report(&training, 50.0, Some(n)),
        ];
        up.send(pb::SessionRequest {
            reports,
            ..Default::default()
        })
        .await
        .unwrap();
        let mut jobs = rig.jobs(Who::Alice).await;
        let job = jobs
            .get_job(pb::GetJobRequest {
                name: "pick".into(),
            })
            .await
            .unwrap();
        job.into_inner()
            .job
            .unwrap()
            .balance
            .filter(|b| b.windows >= 3)
    });
    let balance = balance.await;
    assert!(
        (balance.rollout_units_per_s - 1_000.0).abs() < 1.0,
        "{balance:?}"
    );
    assert!(
        (balance.train_units_per_s - 500.0).abs() < 1.0,
        "{balance:?}"
    );
    assert!((balance.gap - 0.5).abs() < 0.01, "{balance:?}");
    drop(up);
    assert_eq!(down.message().await.unwrap(), None, "nothing was refused");
}
