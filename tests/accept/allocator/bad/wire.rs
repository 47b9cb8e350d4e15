//! The same over gRPC, without our command line before it, and over REST.
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use evenkeel_proto::v1 as pb;
use pb::job_service_client::JobServiceClient;
use pb::profile_service_client::ProfileServiceClient;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{Ground, Group};
use crate::load::channel;
use crate::row::Row;

/// A REST request is answered within this time; the daemon's own limit is 10 s.
const SOON: Duration = Duration::from_secs(20);

pub(super) async fn measure(ground: &Ground) -> Vec<Row> {
    vec![
        trials(ground).await,
        declared(ground).await,
        rest(ground).await,
    ]
}

fn key() -> pb::ProfileKey {
    pb::ProfileKey {
        stage: "kept/sim".into(),
        gpu: "none".into(),
    }
}

fn good() -> pb::ProfilePoint {
    pb::ProfilePoint {
        cores: 4,
        batch: 1,
        units_per_s: 5.0,
        ..Default::default()
    }
}

type Spoil<T> = (&'static str, fn(&mut T), &'static str);

fn beside(change: fn(&mut pb::CoRun)) -> Option<pb::CoRun> {
    let mut beside = pb::CoRun {
        stage: "kept/other".into(),
        sms: 8,
        alone_units_per_s: 9.0,
        overlap: 0.5,
        ..Default::default()
    };
    change(&mut beside);
    Some(beside)
}

/// How a measurement is spoilt, and the field that has to be named.
const POINTS: &[Spoil<pb::ProfilePoint>] = &[
    ("NaN", |p| p.units_per_s = f64::NAN, "units_per_s"),
    ("infinity", |p| p.units_per_s = f64::INFINITY, "units_per_s"),
    ("a negative rate", |p| p.units_per_s = -5.0, "units_per_s"),
    ("a rate of 1e300", |p| p.units_per_s = 1e300, "units_per_s"),
    ("a negative weight", |p| p.weight = -1.0, "weight"),
    ("an infinite weight", |p| p.weight = f64::INFINITY, "weight"),
    ("no batch", |p| p.batch = 0, "batch"),
    ("an absurd batch", |p| p.batch = u32::MAX, "batch"),
    ("absurd cores", |p| p.cores = u32::MAX, "cores"),
    ("neither cores nor SMs", |p| p.cores = 0, "cores"),
    (
        "caps that do not exist",
        |p| p.beside = beside(|c| c.caps = 77),
        "beside.caps",
    ),
    (
        "an overlap of 2",
        |p| p.beside = beside(|c| c.overlap = 2.0),
        "beside.overlap",
    ),
    (
        "nothing beside",
        |p| p.beside = beside(|c| c.stage.clear()),
        "beside.stage",
    ),
];

/// A refusal that names the field.
fn named<T: std::fmt::Debug>(answer: Result<T, Status>, field: &str) -> anyhow::Result<String> {
    let Err(status) = answer else {
        bail!("it was done: {answer:?}");
    };
    ensure!(
        status.code() == Code::InvalidArgument,
        "{:?}: {}",
        status.code(),
        status.message()
    );
    let info = status.get_details_error_info().context("no ErrorInfo")?;
    let told = info.metadata.get("field").cloned().unwrap_or_default();
    ensure!(
        told.ends_with(field),
        "`{told}` is named, and `{field}` is wrong"
    );
    Ok(status.message().to_owned())
}

async fn trials(ground: &Ground) -> Row {
    let mut group = Group::default();
    for (what, spoil, field) in POINTS {
        let mut point = good();
        spoil(&mut point);
        let report = async {
            let mut profiles = ProfileServiceClient::new(channel(&ground.daemon.socket()).await?);
            let trial = pb::ReportTrialRequest {
                key: Some(key()),
                point: Some(point.clone()),
                replaces: false,
            };
            let said = named(profiles.report_trial(trial).await, field)?;
            let import = pb::ImportProfileRequest {
                profile: Some(pb::Profile {
                    key: Some(key()),
                    points: vec![good(), point],
                    ..Default::default()
                }),
            };
            named(
                profiles.import_profile(import).await,
                &format!("points[1].{field}"),
            )?;
            ground.is_as_before().await?;
            Ok(said)
        };
        group.case(what, report).await;
    }
    group.case("100,000 points", too_many(ground)).await;
    group.row("ReportTrial and ImportProfile over gRPC: each field, and 100,000 points")
}

async fn too_many(ground: &Ground) -> anyhow::Result<String> {
    let mut profiles = ProfileServiceClient::new(channel(&ground.daemon.socket()).await?);
    let mut said = String::new();
    for n in [10_001, 100_000] {
        let import = pb::ImportProfileRequest {
            profile: Some(pb::Profile {
                key: Some(key()),
                points: vec![good(); n],
                ..Default::default()
            }),
        };
        let Err(status) = profiles.import_profile(import).await else {
            bail!("{n} points were taken");
        };
        let clear = matches!(
            status.code(),
            Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted
        );
        ensure!(
            clear && status.message().bytes().any(|b| b.is_ascii_digit()),
            "{status}"
        );
        said = format!("{n} points: {}", status.message());
        ground.is_as_before().await?;
    }
    Ok(said)
}

fn job() -> pb::JobSpec {
    pb::JobSpec {
        name: "bad".into(),
        unit: "env_step".into(),
        stages: vec![pb::StageSpec {
            name: "sim".into(),
            role: pb::StageRole::Simulation.into(),
            no_gpu: true,
            min_cores: 1,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// How a job is spoilt, and the field that has to be named.
const JOBS: &[Spoil<pb::JobSpec>] = &[
    ("a weight of 0", |j| j.weight = Some(0.0), "weight"),
    ("a weight of -1", |j| j.weight = Some(-1.0), "weight"),
    (
        "an infinite weight",
        |j| j.weight = Some(f64::INFINITY),
        "weight",
    ),
    (
        "a weight that is no number",
        |j| j.weight = Some(f64::NAN),
        "weight",
    ),
    ("no stage", |j| j.stages.clear(), "stages"),
    (
        "two stages of a name",
        |j| j.stages.push(j.stages[0].clone()),
        "stages[1].name",
    ),
    ("no role", |j| j.stages[0].role = 0, "stages[0].role"),
    (
        "a role that does not exist",
        |j| j.stages[0].role = 77,
        "stages[0].role",
    ),
    (
        "a resize that does not exist",
        |j| j.stages[0].resize = 77,
        "stages[0].resize",
    ),
    (
        "a least above the most",
        |j| (j.stages[0].min_cores, j.stages[0].max_cores) = (4, 2),
        "stages[0].max_cores",
    ),
    (
        "absurd workers",
        |j| j.stages[0].workers = u32::MAX,
        "stages[0].workers",
    ),
    ("no name", |j| j.name.clear(), "name"),
];

async fn declared(ground: &Ground) -> Row {
    let mut group = Group::default();
    for (what, spoil, field) in JOBS {
        let mut spec = job();
        spoil(&mut spec);
        let submit = async {
            let channel: Channel = channel(&ground.daemon.socket()).await?;
            let submit = pb::SubmitJobRequest {
                request_id: uuid::Uuid::now_v7().to_string(),
                spec: Some(spec),
            };
            let said = named(
                JobServiceClient::new(channel).submit_job(submit).await,
                field,
            )?;
            ground.is_as_before().await?;
            Ok(said)
        };
        group.case(what, submit).await;
    }
    group.row("SubmitJob over gRPC: weights, roles, amounts, names")
}

/// Method, path, body, status, and what has to be said.
const REST: &[(&str, &str, &str, u16, &str)] = &[
    (
        "POST",
        "/v1/jobs",
        "{\"name\": \"bad\"}",
        405,
        "METHOD_NOT_ALLOWED",
    ),
    (
        "PUT",
        "/v1/jobs/bad",
        "{\"name\": \"bad\"}",
        405,
        "METHOD_NOT_ALLOWED",
    ),
    (
        "POST",
        "/v1/profiles",
        "{\"key\": 1}",
        405,
        "METHOD_NOT_ALLOWED",
    ),
    (
        "PUT",
        "/v1/profiles/kept%2Fsim/none",
        "{\"points\": []}",
        405,
        "METHOD_NOT_ALLOWED",
    ),
    (
        "DELETE",
        "/v1/profiles/kept%2Fsim/none",
        "",
        405,
        "METHOD_NOT_ALLOWED",
    ),
    ("GET", "/v1/profiles?limit=-1", "", 400, "limit"),
    ("GET", "/v1/profiles?limt=1", "", 400, "limt"),
    ("GET", "/v1/profiles?after=x", "", 400, "after"),
    ("GET", "/v1/profiles/kept%20sim/none", "", 400, "stage"),
];

async fn rest(ground: &Ground) -> Row {
    let mut group = Group::default();
    for (method, path, body, status, word) in REST {
        let asked = async {
            let answer = ask(ground, method, path, body)?;
            let first = answer.lines().next().unwrap_or_default().to_owned();
            ensure!(first.contains(&format!(" {status} ")), "{first}");
            ensure!(answer.contains(word), "`{word}` is missing: {answer}");
            ensure!(
                answer.contains("application/problem+json"),
                "no problem: {answer}"
            );
            ground.is_as_before().await?;
            let problem = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
            Ok(format!("{method} {path}: {problem}"))
        };
        group.case(&format!("{method} {path}"), asked).await;
    }
    group.row_asked(
        "REST: jobs and profiles are only read there, and odd questions about them",
        "405, or 400 that names the parameter; nothing stored",
    )
}

fn ask(ground: &Ground, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(ground.rest)?;
    stream.set_read_timeout(Some(SOON))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
