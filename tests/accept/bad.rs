//! Line 7: bad input gets a clear error and loses nothing; bad luck is survived.
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::lease_service_client::LeaseServiceClient;
use evenkeel_proto::v1::profile_service_client::ProfileServiceClient;
use tokio::io::AsyncWriteExt as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use uuid::Uuid;

use crate::Run;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::{connect, request};
use crate::row::Row;

mod ledger;
mod luck;

/// One case as a row: what it found, or why it does not hold.
async fn case(what: &str, asked: &str, found: impl Future<Output = anyhow::Result<String>>) -> Row {
    match tokio::time::timeout(Duration::from_secs(120), found).await {
        Ok(Ok(measured)) => Row::new(what, asked, measured, true),
        Ok(Err(e)) => Row::new(what, asked, format!("{e:#}"), false),
        Err(_) => Row::new(what, asked, "no end within 120 s", false),
    }
}

pub(crate) async fn measure(_: Run) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    rows.extend(input().await?);
    rows.extend(ledger::measure().await);
    rows.extend(luck::measure().await);
    Ok(rows)
}

/// The leases as the daemon lists them: what must not change.
async fn listed(client: &mut LeaseServiceClient<Channel>) -> anyhow::Result<Vec<(u64, u64, i32)>> {
    let all = client
        .list_leases(pb::ListLeasesRequest::default())
        .await?
        .into_inner();
    Ok(all
        .leases
        .into_iter()
        .map(|l| (l.id, l.fence, l.phase))
        .collect())
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code) -> anyhow::Result<Status> {
    match answer {
        Err(status) if status.code() == code => Ok(status),
        Err(status) => bail!(
            "{code:?} was expected, {:?} came: {}",
            status.code(),
            status.message()
        ),
        Ok(answer) => bail!("{code:?} was expected and it was done: {answer:?}"),
    }
}

async fn input() -> anyhow::Result<Vec<Row>> {
    let daemon = Daemon::start(SYNTHETIC).await?;
    let socket = daemon.socket();
    let mut client = connect(&socket).await?;
    client
        .acquire_lease(request())
        .await
        .context("a first lease")?;
    let before = listed(&mut client).await?.len();
    let c = || client.clone();
    let mut rows = vec![
        case(
            "garbage on the socket",
            "the connection ends, nothing else does",
            garbage(&socket),
        )
        .await,
        case(
            "an oversized message",
            "refused with a limit",
            oversized(c()),
        )
        .await,
        case("unknown ids", "NOT_FOUND; renewals say LOST", unknown(c())).await,
        case(
            "zero amounts",
            "INVALID_ARGUMENT that names the field",
            zero(c()),
        )
        .await,
        case(
            "overflowing amounts",
            "FAILED_PRECONDITION at once, with what is short",
            overflow(c()),
        )
        .await,
        case(
            "NaN and negative throughputs",
            "INVALID_ARGUMENT",
            not_rates(&socket),
        )
        .await,
    ];
    let after = listed(&mut client).await?.len();
    let changed = format!("{before} leases before, {after} after");
    rows.push(Row::new(
        "what bad input changed",
        "nothing",
        changed,
        before == after,
    ));
    rows.push(
        case(
            "the same request id with another body",
            "ALREADY_EXISTS",
            other_body(client),
        )
        .await,
    );
    Ok(rows)
}

async fn garbage(socket: &Path) -> anyhow::Result<String> {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 512],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut stream = tokio::net::UnixStream::connect(socket).await?;
        let _ = stream.write_all(bytes).await;
    }
    connect(socket)
        .await?
        .list_leases(pb::ListLeasesRequest::default())
        .await?;
    Ok("three kinds; the daemon goes on".into())
}

async fn oversized(mut client: LeaseServiceClient<Channel>) -> anyhow::Result<String> {
    let leases = vec![
        pb::LeaseRef {
            lease_id: 1,
            fence: 1
        };
        1 << 20
    ];
    let answer = client.renew_leases(pb::RenewLeasesRequest { leases }).await;
    let status = answer.err().context("a message of megabytes was taken")?;
    ensure!(
        matches!(
            status.code(),
            Code::OutOfRange | Code::ResourceExhausted | Code::InvalidArgument
        ),
        "{status}"
    );
    let leases = vec![
        pb::LeaseRef {
            lease_id: 1,
            fence: 1
        };
        1_025
    ];
    let status = refused(
        client.renew_leases(pb::RenewLeasesRequest { leases }).await,
        Code::InvalidArgument,
    )?;
    Ok(format!(
        "{:?}; 1,025 leases: {}",
        Code::OutOfRange,
        status.message()
    ))
}

async fn unknown(mut client: LeaseServiceClient<Channel>) -> anyhow::Result<String> {
    let lease_id = u64::MAX;
    refused(
        client.get_lease(pb::GetLeaseRequest { lease_id }).await,
        Code::NotFound,
    )?;
    refused(
        client
            .release_lease(pb::ReleaseLeaseRequest { lease_id, fence: 1 })
            .await,
        Code::NotFound,
    )?;
    refused(
        client
            .revoke_lease(pb::RevokeLeaseRequest { lease_id })
            .await,
        Code::NotFound,
    )?;
    let leases = vec![pb::LeaseRef { lease_id, fence: 1 }];
    let renewed = client
        .renew_leases(pb::RenewLeasesRequest { leases })
        .await?
        .into_inner();
    ensure!(
        renewed
            .results
            .iter()
            .all(|r| r.status() == pb::RenewStatus::Lost),
        "{renewed:?}"
    );
    Ok("get, release, revoke, renew".into())
}

async fn zero(mut client: LeaseServiceClient<Channel>) -> anyhow::Result<String> {
    let nothing = pb::AcquireLeaseRequest {
        cores: 0,
        gpus: vec![],
        ..request()
    };
    let no_sms = pb::AcquireLeaseRequest {
        gpus: vec![pb::GpuRequest {
            memory_bytes: 1,
            ..Default::default()
        }],
        ..request()
    };
    let no_memory = pb::AcquireLeaseRequest {
        gpus: vec![pb::GpuRequest {
            sms: 2,
            ..Default::default()
        }],
        ..request()
    };
    let no_id = pb::AcquireLeaseRequest {
        request_id: String::new(),
        ..request()
    };
    let mut said = Vec::new();
    for bad in [nothing, no_sms, no_memory, no_id] {
        said.push(
            refused(client.acquire_lease(bad).await, Code::InvalidArgument)?
                .message()
                .to_owned(),
        );
    }
    Ok(said.join(" / "))
}

async fn overflow(mut client: LeaseServiceClient<Channel>) -> anyhow::Result<String> {
    let share = |sms, memory_bytes| pb::GpuRequest {
        gpu: None,
        sms,
        percent: 0,
        memory_bytes,
    };
    let cores = pb::AcquireLeaseRequest {
        cores: u32::MAX,
        ..request()
    };
    let sms = pb::AcquireLeaseRequest {
        gpus: vec![share(u32::MAX, 1)],
        ..request()
    };
    let memory = pb::AcquireLeaseRequest {
        gpus: vec![share(2, u64::MAX)],
        ..request()
    };
    let mut said = Vec::new();
    for bad in [cores, sms, memory] {
        let start = Instant::now();
        let waits = pb::AcquireLeaseRequest {
            wait_ms: 60_000,
            ..bad
        };
        let status = refused(client.acquire_lease(waits).await, Code::FailedPrecondition)?;
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "it was not told at once"
        );
        let info = status.get_details_error_info().context("no ErrorInfo")?;
        ensure!(
            info.metadata.contains_key("resource"),
            "the error does not name the resource: {info:?}"
        );
        said.push(status.message().to_owned());
    }
    Ok(said.join(" / "))
}

async fn not_rates(socket: &Path) -> anyhow::Result<String> {
    let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))?
        .connect()
        .await?;
    let mut profiles = ProfileServiceClient::new(channel);
    let key = pb::ProfileKey {
        stage: "reach/train".into(),
        gpu: "none".into(),
    };
    let mut said = String::new();
    for units_per_s in [f64::NAN, f64::INFINITY, -1.0] {
        let point = pb::ProfilePoint {
            cores: 1,
            batch: 1,
            units_per_s,
            ..Default::default()
        };
        let trial = pb::ReportTrialRequest {
            key: Some(key.clone()),
            point: Some(point),
        };
        said = refused(profiles.report_trial(trial).await, Code::InvalidArgument)?
            .message()
            .to_owned();
    }
    Ok(said)
}

async fn other_body(mut client: LeaseServiceClient<Channel>) -> anyhow::Result<String> {
    let first = pb::AcquireLeaseRequest {
        request_id: Uuid::now_v7().to_string(),
        ..request()
    };
    client.acquire_lease(first.clone()).await?;
    let other = pb::AcquireLeaseRequest { cores: 3, ..first };
    Ok(
        refused(client.acquire_lease(other).await, Code::AlreadyExists)?
            .message()
            .into(),
    )
}
