//! Bytes that are no HTTP/2, messages that are none, and messages that are too large.
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, IntoRequest as _, Status};
use tonic_prost::ProstCodec;

use super::calls::{Calls, key, point};
use super::refused;
use crate::load::{channel, request};

/// A connection that says nothing useful is ended within this time: the daemon's own limit is 10 s.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Calls whose first field is a text or a message: a number there is no message.
const TEXT_FIRST: [&str; 15] = [
    "LeaseService/AcquireLease",
    "LeaseService/RenewLeases",
    "LeaseService/ListLeases",
    "JobService/SubmitJob",
    "JobService/GetJob",
    "JobService/WatchJob",
    "JobService/UpdateJob",
    "JobService/CancelJob",
    "ProfileService/ReportTrial",
    "ProfileService/GetProfile",
    "ProfileService/ImportProfile",
    "ProfileService/ExportProfile",
    "ProfileService/RunTrial",
    "PlanService/SolvePlan",
    "PlanService/ExplainJob",
];
/// Calls whose first field is a number: a text there is no message. (Three calls take no fields at all.)
const NUMBER_FIRST: [&str; 8] = [
    "LeaseService/AttachLease",
    "LeaseService/ReleaseLease",
    "LeaseService/GetLease",
    "LeaseService/RevokeLease",
    "LeaseService/ClearLease",
    "JobService/ListJobs",
    "NodeService/DrainNode",
    "NodeService/ListEvents",
];

pub(super) async fn garbage(socket: &Path) -> anyhow::Result<String> {
    let kinds: [(&str, &[u8]); 3] = [
        ("HTTP/1", b"GET / HTTP/1.1\r\n\r\n"),
        ("ones", &[0xff; 512]),
        (
            "a broken frame",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ),
    ];
    let mut told = Vec::new();
    for (what, bytes) in kinds {
        let start = Instant::now();
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(bytes).await?;
        // Whatever it says meanwhile: the connection has to end.
        let mut said = Vec::new();
        let ended = tokio::time::timeout(ENDS_WITHIN, stream.read_to_end(&mut said)).await;
        ensure!(
            ended.is_ok(),
            "{what}: the connection is still open after {ENDS_WITHIN:?}"
        );
        told.push(format!(
            "{what} ended after {:.1} s",
            start.elapsed().as_secs_f64()
        ));
    }
    let mut calls = Calls::connect(socket).await?;
    calls
        .leases
        .list_leases(pb::ListLeasesRequest::default())
        .await?;
    Ok(told.join(", "))
}

/// Sends `message` as the request of a call that takes another one.
async fn send<M: prost::Message + Default + 'static>(
    channel: Channel,
    call: &str,
    message: M,
) -> anyhow::Result<Result<(), Status>> {
    let mut client = Grpc::new(channel);
    client.ready().await.context("the daemon is gone")?;
    let path = format!("/evenkeel.v1.{call}").parse()?;
    let codec = ProstCodec::<M, pb::GetNodeResponse>::default();
    let answer = client.unary(message.into_request(), path, codec).await;
    Ok(answer.map(drop))
}

pub(super) async fn malformed(socket: &Path) -> anyhow::Result<String> {
    let channel = channel(socket).await?;
    let mut said = String::new();
    for call in TEXT_FIRST {
        let number = pb::LeaseRef {
            lease_id: 7,
            fence: 7,
        };
        let answer = send(channel.clone(), call, number).await?;
        said = judge(call, answer)?;
    }
    for call in NUMBER_FIRST {
        let text = pb::GetJobRequest {
            name: "seven".into(),
        };
        judge(call, send(channel.clone(), call, text).await?)?;
    }
    stream(channel.clone()).await?;
    // The connection is as good as before.
    Calls::connect(socket)
        .await?
        .leases
        .list_leases(pb::ListLeasesRequest::default())
        .await?;
    let calls = TEXT_FIRST.len() + NUMBER_FIRST.len() + 1;
    Ok(format!("{calls} calls; such as: {said}"))
}

fn judge(call: &str, answer: Result<(), Status>) -> anyhow::Result<String> {
    let status = refused(answer, Code::InvalidArgument).context(call.to_owned())?;
    Ok(status.message().to_owned())
}

/// The same on a session.
async fn stream(channel: Channel) -> anyhow::Result<()> {
    let mut client = Grpc::new(channel);
    client.ready().await?;
    let number = pb::LeaseRef {
        lease_id: 7,
        fence: 7,
    };
    let codec = ProstCodec::<pb::LeaseRef, pb::SessionResponse>::default();
    let path = "/evenkeel.v1.LeaseService/Session".parse()?;
    let frames = tonic::Request::new(tokio_stream::once(number));
    let answer = match client.streaming(frames, path, codec).await {
        Ok(answers) => answers.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    refused(answer, Code::InvalidArgument).context("a session")?;
    Ok(())
}

pub(super) async fn oversized(mut calls: Calls) -> anyhow::Result<String> {
    let mut told = Vec::new();
    let one = pb::LeaseRef {
        lease_id: 1,
        fence: 1,
    };
    let huge = pb::AcquireLeaseRequest {
        request_id: "x".repeat(1 << 20),
        ..request()
    };
    told.push(too_large(
        "a text of 1 MiB",
        calls.leases.acquire_lease(huge).await,
    )?);
    let leases = vec![one; 1 << 20];
    let many = calls
        .leases
        .renew_leases(pb::RenewLeasesRequest { leases })
        .await;
    told.push(too_large("a million renewals", many)?);
    let profile = pb::Profile {
        key: Some(key("kept/gen")),
        points: vec![point(1, 1.0); 1 << 18],
        ..Default::default()
    };
    let import = pb::ImportProfileRequest {
        profile: Some(profile),
    };
    told.push(too_large(
        "a quarter of a million points",
        calls.profiles.import_profile(import).await,
    )?);
    // It fits into a message, and is more than the daemon takes at once.
    let leases = vec![one; 1_025];
    let answer = calls
        .leases
        .renew_leases(pb::RenewLeasesRequest { leases })
        .await;
    let status = refused(answer, Code::InvalidArgument)?;
    told.push(format!("1,025 renewals: {}", status.message()));
    Ok(told.join("; "))
}

fn too_large<T: std::fmt::Debug>(what: &str, answer: Result<T, Status>) -> anyhow::Result<String> {
    let Err(status) = answer else {
        anyhow::bail!("{what} was taken");
    };
    let clear = matches!(
        status.code(),
        Code::OutOfRange | Code::ResourceExhausted | Code::InvalidArgument
    );
    ensure!(clear && !status.message().is_empty(), "{what}: {status}");
    Ok(format!("{what}: {:?}, {}", status.code(), status.message()))
}
