//! Input that makes no sense: a clear error that names the field, and nothing changes.
use evenkeel_proto::v1 as pb;
use tonic::{Code, Status};

use super::kit::{Rig, Who, acquire, request_id, unenforced, why};

/// Checks that a call was refused because of a field.
fn named(what: &str, result: Result<(), Status>, field: &str) {
    let status = result.expect_err(what);
    assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
    let (reason, metadata) = why(&status);
    assert_eq!(
        (reason.as_str(), metadata["field"].as_str()),
        ("INVALID", field),
        "{what}"
    );
    assert!(
        status.message().contains(": "),
        "{what}: {}",
        status.message()
    );
}

fn drop_answer<T>(result: Result<tonic::Response<T>, Status>) -> Result<(), Status> {
    result.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases() {
    let rig = Rig::synthetic().await;
    let mut alice = rig.leases(Who::Alice).await;
    let held = acquire(&mut alice, unenforced(1)).await;
    let before = rig.snapshot().await;
    let gpu = |sms, percent, memory_bytes| {
        vec![pb::GpuRequest {
            gpu: None,
            sms,
            percent,
            memory_bytes,
        }]
    };
    let asked = |change: &dyn Fn(&mut pb::AcquireLeaseRequest)| {
        let mut request = unenforced(1);
        change(&mut request);
        request
    };
    let cases = [
        ("no id", asked(&|r| r.request_id.clear()), "request_id"),
        (
            "a bad id",
            asked(&|r| r.request_id = "1234".into()),
            "request_id",
        ),
        ("nothing", asked(&|r| r.cores = 0), "cores"),
        ("a short life", asked(&|r| r.ttl_ms = 1), "ttl_ms"),
        ("a long life", asked(&|r| r.ttl_ms = u64::MAX), "ttl_ms"),
        ("a long wait", asked(&|r| r.wait_ms = u64::MAX), "wait_ms"),
        ("processes", asked(&|r| r.processes = u32::MAX), "processes"),
        ("enforced", asked(&|r| r.unenforced = false), "unenforced"),
        ("no SMs", asked(&|r| r.gpus = gpu(0, 0, 1)), "gpus[0].sms"),
        (
            "200 %",
            asked(&|r| r.gpus = gpu(0, 200, 1)),
            "gpus[0].percent",
        ),
        (
            "no memory",
            asked(&|r| r.gpus = gpu(2, 0, 0)),
            "gpus[0].memory_bytes",
        ),
        ("resize", asked(&|r| r.resize = 99), "resize"),
    ];
    for (what, request, field) in cases {
        named(what, drop_answer(alice.acquire_lease(request).await), field);
    }
    for (what, request) in [
        ("4 billion cores", asked(&|r| r.cores = u32::MAX)),
        ("4 billion SMs", asked(&|r| r.gpus = gpu(u32::MAX, 0, 1))),
        ("16 EiB", asked(&|r| r.gpus = gpu(2, 0, u64::MAX))),
    ] {
        let status = alice.acquire_lease(request).await.expect_err(what);
        assert_eq!(
            (status.code(), why(&status).0.as_str()),
            (Code::FailedPrecondition, "NEVER_FITS"),
            "{what}"
        );
    }
    let get = alice.get_lease(pb::GetLeaseRequest { lease_id: 0 }).await;
    named("lease 0", drop_answer(get), "lease_id");
    let unknown = alice
        .get_lease(pb::GetLeaseRequest { lease_id: u64::MAX })
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let release = pb::ReleaseLeaseRequest {
        lease_id: held.id,
        fence: u64::MAX,
    };
    let status = alice.release_lease(release).await.unwrap_err();
    assert_eq!(
        (status.code(), why(&status).0.as_str()),
        (Code::FailedPrecondition, "FENCED")
    );
    let many = vec![
        pb::LeaseRef {
            lease_id: 1,
            fence: 1
        };
        1_025
    ];
    let renew = alice
        .renew_leases(pb::RenewLeasesRequest { leases: many })
        .await;
    named("1,025 renewals", drop_answer(renew), "leases");
    let clear = pb::ClearLeaseRequest {
        lease_id: held.id,
        reason: " ".into(),
    };
    named(
        "no reason",
        drop_answer(rig.leases(Who::Admin).await.clear_lease(clear).await),
        "reason",
    );
    assert_eq!(rig.snapshot().await, before, "nothing changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages() {
    let rig = Rig::synthetic().await;
    let before = rig.snapshot().await;
    let mut alice = rig.leases(Who::Alice).await;
    let huge = pb::AcquireLeaseRequest {
        request_id: "x".repeat(1 << 20),
        ..unenforced(1)
    };
    let status = alice.acquire_lease(huge).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert!(status.message().contains("too large"), "{status:?}");

    // Bytes that are no such message.
    let mut raw = tonic::client::Grpc::new(rig.channel(Who::Alice).await);
    raw.ready().await.unwrap();
    let path = "/evenkeel.v1.LeaseService/AcquireLease".parse().unwrap();
    // A length that is longer than what follows, where a message should be.
    let broken = pb::ReleaseLeaseResponse { lease: None };
    let codec = tonic_prost::ProstCodec::<Garbage, pb::AcquireLeaseResponse>::default();
    let answer = raw
        .unary(
            tonic::Request::new(Garbage {
                text: vec![0xff; 4],
            }),
            path,
            codec,
        )
        .await;
    let status = answer.unwrap_err();
    assert_eq!(
        status.code(),
        Code::InvalidArgument,
        "{status:?} {broken:?}"
    );
    assert_eq!(rig.snapshot().await, before, "nothing changed");
}

/// Field 1 as bytes that are no text.
#[derive(Clone, PartialEq, prost::Message)]
struct Garbage {
    #[prost(bytes = "vec", tag = "1")]
    text: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_and_profiles() {
    let rig = Rig::synthetic().await;
    let before = rig.snapshot().await;
    let mut jobs = rig.jobs(Who::Alice).await;
    let submit = |spec| pb::SubmitJobRequest {
        request_id: request_id(),
        spec,
    };
    named(
        "no spec",
        drop_answer(jobs.submit_job(submit(None)).await),
        "spec",
    );
    let empty = Some(pb::JobSpec {
        name: "j".into(),
        unit: "u".into(),
        ..Default::default()
    });
    named(
        "no stages",
        drop_answer(jobs.submit_job(submit(empty)).await),
        "spec.stages",
    );
    let mut nan = super::jobs::spec("j");
    nan.rebalance = Some(pb::RebalanceSpec {
        gap: Some(f64::NAN),
        ..Default::default()
    });
    named(
        "NaN",
        drop_answer(jobs.submit_job(submit(Some(nan))).await),
        "spec.rebalance.gap",
    );
    let with = |change: &dyn Fn(&mut pb::StageSpec)| {
        let mut spec = super::jobs::spec("j");
        spec.stages.iter_mut().for_each(change);
        submit(Some(spec))
    };
    let endless = jobs.submit_job(with(&|s| s.min_cores = u32::MAX)).await;
    named("overflow", drop_answer(endless), "spec.stages[0].min_cores");
    let endless = jobs
        .submit_job(with(&|s| s.memory_bytes |= u64::from(!s.no_gpu) << 63))
        .await;
    named(
        "overflow",
        drop_answer(endless),
        "spec.stages[1].memory_bytes",
    );
    for (what, request) in [
        ("cores", with(&|s| s.min_cores = 1 << 16)),
        (
            "memory",
            with(&|s| s.memory_bytes |= u64::from(!s.no_gpu) << 49),
        ),
        ("SMs", with(&|s| s.min_sms = u32::from(!s.no_gpu) << 16)),
    ] {
        let status = jobs.submit_job(request).await.expect_err(what);
        let told = (status.code(), why(&status).0);
        assert_eq!(
            told,
            (Code::FailedPrecondition, "NEVER_FITS".into()),
            "{what}: {status:?}"
        );
    }
    let nothing = pb::UpdateJobRequest {
        name: "j".into(),
        ..Default::default()
    };
    named(
        "nothing to change",
        drop_answer(jobs.update_job(nothing).await),
        "rebalance",
    );

    let mut profiles = rig.profiles(Who::Alice).await;
    let key = Some(pb::ProfileKey {
        stage: "j/sim".into(),
        gpu: "none".into(),
    });
    let point = |units_per_s, weight| {
        Some(pb::ProfilePoint {
            cores: 1,
            batch: 1,
            units_per_s,
            weight,
            ..Default::default()
        })
    };
    for (what, key, point, field) in [
        ("no key", None, point(1.0, 1.0), "key"),
        ("no point", key.clone(), None, "point"),
        (
            "NaN",
            key.clone(),
            point(f64::NAN, 1.0),
            "point.units_per_s",
        ),
        (
            "negative",
            key.clone(),
            point(-1.0, 1.0),
            "point.units_per_s",
        ),
        (
            "infinite",
            key.clone(),
            point(f64::INFINITY, 1.0),
            "point.units_per_s",
        ),
        (
            "a weight",
            key.clone(),
            point(1.0, f64::NEG_INFINITY),
            "point.weight",
        ),
    ] {
        let trial = profiles
            .report_trial(pb::ReportTrialRequest {
                key,
                point,
                replaces: false,
            })
            .await;
        named(what, drop_answer(trial), field);
    }
    let two = vec![point(1.0, 1.0).unwrap(), point(f64::NAN, 1.0).unwrap()];
    for (what, points, field) in [
        ("one of two", two, "profile.points[1].units_per_s"),
        ("nothing", vec![], "profile.points"),
    ] {
        let profile = Some(pb::Profile {
            key: key.clone(),
            points,
            ..Default::default()
        });
        let import = profiles
            .import_profile(pb::ImportProfileRequest { profile })
            .await;
        named(what, drop_answer(import), field);
    }
    let events = rig.nodes(Who::Alice).await;
    let request = pb::ListEventsRequest {
        job: "a b".into(),
        ..Default::default()
    };
    named(
        "a name",
        drop_answer({ events }.list_events(request).await),
        "job",
    );
    assert_eq!(rig.snapshot().await, before, "nothing changed");
}
