//! Amounts that make no sense, that overflow, that can never be had, or that are not there now.
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::calls::{Calls, key, point, right};
use super::refused;
use crate::load::request;

/// What is told "at once" is told within this time, on the slowest machine: a wait would take a minute.
const AT_ONCE: Duration = Duration::from_secs(5);
const WAIT_MS: u64 = 60_000;

/// A job of three stages, which takes whatever is free.
pub(super) fn job(name: &str) -> pb::JobSpec {
    let stage = |name: &str, role: pb::StageRole| pb::StageSpec {
        name: name.into(),
        role: role.into(),
        min_cores: 1,
        memory_bytes: 4 << 30,
        ..Default::default()
    };
    pb::JobSpec {
        name: name.into(),
        unit: "env_step".into(),
        stages: vec![
            pb::StageSpec {
                memory_bytes: 0,
                no_gpu: true,
                ..stage("sim", pb::StageRole::Simulation)
            },
            stage("gen", pb::StageRole::Generation),
            stage("train", pb::StageRole::Training),
        ],
        ..Default::default()
    }
}

/// A job that takes one core.
pub(super) fn small_job(name: &str) -> pb::JobSpec {
    pb::JobSpec {
        name: name.into(),
        unit: "env_step".into(),
        stages: vec![pb::StageSpec {
            name: "sim".into(),
            role: pb::StageRole::Simulation.into(),
            no_gpu: true,
            min_cores: 1,
            max_cores: 1,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The job with its second stage changed.
fn with(change: impl FnOnce(&mut pb::StageSpec)) -> pb::JobSpec {
    let mut spec = job("odd");
    change(&mut spec.stages[1]);
    spec
}

/// A refusal that names the field; what it says.
fn named<T: std::fmt::Debug>(what: &str, answer: Result<T, Status>) -> anyhow::Result<String> {
    let status = refused(answer, Code::InvalidArgument).context(what.to_owned())?;
    let info = status.get_details_error_info();
    let info = info.with_context(|| format!("{what}: no ErrorInfo: {status}"))?;
    let field = info.metadata.get("field").filter(|f| !f.is_empty());
    ensure!(field.is_some(), "{what}: it names no field: {status}");
    Ok(status.message().to_owned())
}

/// What is said of some bad input, shortened to how many there were and the first.
fn told(said: &[String]) -> String {
    let first = said.first().map_or("", String::as_str);
    format!("{} of them; such as: {first}", said.len())
}

fn share(sms: u32, memory_bytes: u64) -> Vec<pb::GpuRequest> {
    vec![pb::GpuRequest {
        gpu: None,
        sms,
        percent: 0,
        memory_bytes,
    }]
}

async fn trial(calls: &mut Calls, point: pb::ProfilePoint) -> Result<(), Status> {
    let trial = pb::ReportTrialRequest {
        key: Some(key("kept/gen")),
        point: Some(point),
        replaces: false,
    };
    calls.profiles.report_trial(trial).await.map(drop)
}

pub(super) async fn zero(mut calls: Calls) -> anyhow::Result<String> {
    let asked = |gpus| pb::AcquireLeaseRequest { gpus, ..request() };
    let leases = [
        (
            "nothing",
            pb::AcquireLeaseRequest {
                cores: 0,
                ..asked(vec![])
            },
        ),
        ("no SMs", asked(share(0, 1))),
        ("no memory", asked(share(2, 0))),
        (
            "no time",
            pb::AcquireLeaseRequest {
                ttl_ms: 1,
                ..request()
            },
        ),
        (
            "no id",
            pb::AcquireLeaseRequest {
                request_id: String::new(),
                ..request()
            },
        ),
    ];
    let mut said = Vec::new();
    for (what, lease) in leases {
        said.push(named(what, calls.leases.acquire_lease(lease).await)?);
    }
    let empty = pb::JobSpec {
        stages: vec![],
        ..job("odd")
    };
    let unit = pb::JobSpec {
        unit: String::new(),
        ..job("odd")
    };
    for (what, spec) in [
        ("no stages", empty),
        ("no unit", unit),
        ("no role", with(|s| s.role = 0)),
        ("a batch of none", with(|s| s.batches = vec![0])),
    ] {
        said.push(named(what, calls.submit(spec).await)?);
    }
    let nothing = pb::ProfilePoint {
        cores: 0,
        ..point(0, 1.0)
    };
    let batch = pb::ProfilePoint {
        batch: 0,
        ..point(1, 1.0)
    };
    for (what, point) in [("a trial of nothing", nothing), ("a trial's batch", batch)] {
        said.push(named(what, trial(&mut calls, point).await)?);
    }
    Ok(told(&said))
}

pub(super) async fn overflow(mut calls: Calls) -> anyhow::Result<String> {
    let mut said = overflowing_leases(&mut calls).await?;
    said.extend(overflowing_jobs(&mut calls).await?);
    said.extend(overflowing_trials(&mut calls).await?);
    Ok(told(&said))
}

async fn overflowing_leases(calls: &mut Calls) -> anyhow::Result<Vec<String>> {
    let with = |change: &dyn Fn(&mut pb::AcquireLeaseRequest)| {
        let mut asked = request();
        change(&mut asked);
        asked
    };
    let mut said = Vec::new();
    for (what, lease) in [
        ("a lease's TTL", with(&|r| r.ttl_ms = u64::MAX)),
        ("a lease's wait", with(&|r| r.wait_ms = u64::MAX)),
        ("a lease's processes", with(&|r| r.processes = u32::MAX)),
    ] {
        said.push(named(what, calls.leases.acquire_lease(lease).await)?);
    }
    // All amounts of a lease exist as numbers: the largest ones can only never be had.
    for (what, lease) in [
        ("cores", with(&|r| r.cores = u32::MAX)),
        ("SMs", with(&|r| r.gpus = share(u32::MAX, 1))),
        ("bytes", with(&|r| r.gpus = share(2, u64::MAX))),
    ] {
        said.push(impossible(what, calls.leases.acquire_lease(lease).await)?);
    }
    Ok(said)
}

async fn overflowing_jobs(calls: &mut Calls) -> anyhow::Result<Vec<String>> {
    let mut said = Vec::new();
    for (what, spec) in [
        ("a job's cores", with(|s| s.min_cores = u32::MAX)),
        ("a job's SMs", with(|s| s.min_sms = u32::MAX)),
        ("a job's memory", with(|s| s.memory_bytes = u64::MAX)),
        ("a job's workers", with(|s| s.workers = u32::MAX)),
        ("a job's processes", with(|s| s.processes = u32::MAX)),
        ("a job's batch", with(|s| s.batches = vec![u32::MAX])),
    ] {
        said.push(named(what, calls.submit(spec).await)?);
    }
    Ok(said)
}

async fn overflowing_trials(calls: &mut Calls) -> anyhow::Result<Vec<String>> {
    let with = |change: &dyn Fn(&mut pb::ProfilePoint)| {
        let mut measured = point(1, 1.0);
        change(&mut measured);
        measured
    };
    let mut said = Vec::new();
    for (what, point) in [
        ("a trial's cores", with(&|p| p.cores = u32::MAX)),
        ("a trial's SMs", with(&|p| p.sms = u32::MAX)),
        ("a trial's memory", with(&|p| p.memory_bytes = u64::MAX)),
        ("a trial's batch", with(&|p| p.batch = u32::MAX)),
        ("a trial's replicas", with(&|p| p.replicas = u32::MAX)),
        ("a trial's rate", with(&|p| p.units_per_s = f64::MAX)),
    ] {
        said.push(named(what, trial(calls, point).await)?);
    }
    Ok(said)
}

/// A refusal that says which resource is short, and by how much.
fn impossible<T: std::fmt::Debug>(what: &str, answer: Result<T, Status>) -> anyhow::Result<String> {
    let status = refused(answer, Code::FailedPrecondition).context(what.to_owned())?;
    says_what_is_short(what, &status, &["resource", "short_by"])?;
    Ok(status.message().to_owned())
}

fn says_what_is_short(what: &str, status: &Status, keys: &[&str]) -> anyhow::Result<()> {
    let info = status.get_details_error_info();
    let info = info.with_context(|| format!("{what}: no ErrorInfo: {status}"))?;
    for key in keys {
        let value = info
            .metadata
            .get(*key)
            .filter(|v| !v.is_empty() && *v != "0");
        ensure!(value.is_some(), "{what}: it does not say {key}: {info:?}");
    }
    Ok(())
}

pub(super) async fn never(mut calls: Calls) -> anyhow::Result<String> {
    let mut said = Vec::new();
    let waits = || pb::AcquireLeaseRequest {
        wait_ms: WAIT_MS,
        ..request()
    };
    for (what, lease) in [
        (
            "cores",
            pb::AcquireLeaseRequest {
                cores: 16_385,
                ..waits()
            },
        ),
        (
            "SMs",
            pb::AcquireLeaseRequest {
                gpus: share(8_193, 1),
                ..waits()
            },
        ),
        (
            "bytes",
            pb::AcquireLeaseRequest {
                gpus: share(2, 17 << 40),
                ..waits()
            },
        ),
    ] {
        let start = Instant::now();
        said.push(impossible(what, calls.leases.acquire_lease(lease).await)?);
        ensure!(start.elapsed() < AT_ONCE, "{what}: it was not told at once");
    }
    for (what, spec) in [
        ("a job's cores", with(|s| s.min_cores = 20_000)),
        ("a job's SMs", with(|s| s.min_sms = 9_000)),
        ("a job's bytes", with(|s| s.memory_bytes = 17 << 40)),
    ] {
        let start = Instant::now();
        said.push(impossible(what, calls.submit(spec).await)?);
        ensure!(start.elapsed() < AT_ONCE, "{what}: it was not told at once");
    }
    Ok(said.join(" / "))
}

pub(super) async fn not_rates(mut calls: Calls) -> anyhow::Result<String> {
    let mut said = Vec::new();
    for rate in [f64::NAN, f64::INFINITY, -1.0] {
        said.push(named("a trial", trial(&mut calls, point(1, rate)).await)?);
        let profile = pb::Profile {
            key: Some(key("kept/gen")),
            points: vec![point(1, 1.0), point(2, rate)],
            ..Default::default()
        };
        let import = pb::ImportProfileRequest {
            profile: Some(profile),
        };
        said.push(named(
            "an import",
            calls.profiles.import_profile(import).await,
        )?);
        let mut spec = job("odd");
        spec.rebalance = Some(pb::RebalanceSpec {
            gap: Some(rate),
            ..Default::default()
        });
        said.push(named("a job's threshold", calls.submit(spec).await)?);
        said.extend(reported(&mut calls, rate).await?);
    }
    Ok(told(&said))
}

/// Intervals and steps with such a number of units, on a session.
async fn reported(calls: &mut Calls, units: f64) -> anyhow::Result<Vec<String>> {
    let report = |units, consumed_units| pb::WorkReport {
        lease: Some(pb::LeaseRef {
            lease_id: 1,
            fence: 1,
        }),
        lanes: 1,
        intervals: vec![pb::BusyInterval {
            began_us_ago: 100,
            busy_us: 50,
            units,
            ..Default::default()
        }],
        steps: vec![pb::StepReport {
            n: 1,
            consumed_units,
            discarded_units: 0.0,
        }],
    };
    let frame = pb::SessionRequest {
        reports: vec![report(units, 1.0), report(1.0, units)],
        ..Default::default()
    };
    let (_, refused) = calls.frame(frame).await?;
    let of = |field: &str| refused.iter().any(|r| r.contains(field));
    ensure!(
        of("intervals[0].units") && of("steps[0].consumed_units"),
        "{units} units in a report: {refused:?}"
    );
    Ok(refused)
}

pub(super) async fn other_body(mut calls: Calls) -> anyhow::Result<String> {
    let first = pb::AcquireLeaseRequest {
        request_id: Uuid::now_v7().to_string(),
        ..request()
    };
    let lease = calls.grant(first.clone()).await?;
    let other = pb::AcquireLeaseRequest {
        cores: 3,
        ..first.clone()
    };
    let answer = calls.leases.acquire_lease(other).await;
    let status = refused(answer, Code::AlreadyExists)?;
    let again = calls.grant(first).await?;
    ensure!(again.id == lease.id, "the first body has another lease now");
    Ok(status.message().into())
}

pub(super) async fn short(mut calls: Calls) -> anyhow::Result<String> {
    let most = pb::AcquireLeaseRequest {
        cores: 16_000,
        ..request()
    };
    let held = calls.grant(most).await?;
    let start = Instant::now();
    let more = pb::AcquireLeaseRequest {
        cores: 1_000,
        ..request()
    };
    let status = refused(
        calls.leases.acquire_lease(more).await,
        Code::ResourceExhausted,
    )?;
    ensure!(start.elapsed() < AT_ONCE, "it was not told at once");
    says_what_is_short("cores", &status, &["resource", "short_by", "holder"])?;
    let pb::LeaseRef { lease_id, fence } = right(&held);
    calls
        .leases
        .release_lease(pb::ReleaseLeaseRequest { lease_id, fence })
        .await?;
    Ok(status.message().into())
}
