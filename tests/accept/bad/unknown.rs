//! Ids and names of nothing, in every call that takes one.
use anyhow::ensure;
use evenkeel_proto::v1 as pb;
use tonic::Code;

use super::calls::{Calls, all_of, key};
use super::refused;
use crate::load::request;

const NOBODY: pb::LeaseRef = pb::LeaseRef {
    lease_id: u64::MAX >> 1,
    fence: 1,
};

pub(super) async fn all(mut calls: Calls) -> anyhow::Result<String> {
    let of_leases = leases(&mut calls).await?;
    session(&mut calls).await?;
    let of_names = names(&mut calls).await?;
    Ok(format!(
        "{of_leases} calls about leases, a session, {of_names} calls about jobs and profiles"
    ))
}

async fn leases(calls: &mut Calls) -> anyhow::Result<usize> {
    let pb::LeaseRef { lease_id, fence } = NOBODY;
    let client = &mut calls.leases;
    let not_found = Code::NotFound;
    refused(
        client.get_lease(pb::GetLeaseRequest { lease_id }).await,
        not_found,
    )?;
    let release = pb::ReleaseLeaseRequest { lease_id, fence };
    refused(client.release_lease(release).await, not_found)?;
    let attach = pb::AttachLeaseRequest {
        lease_id,
        fence,
        pid: 0,
    };
    refused(client.attach_lease(attach).await, not_found)?;
    refused(
        client
            .revoke_lease(pb::RevokeLeaseRequest { lease_id })
            .await,
        not_found,
    )?;
    let clear = pb::ClearLeaseRequest {
        lease_id,
        reason: "it is gone".into(),
    };
    refused(client.clear_lease(clear).await, not_found)?;
    let list = pb::ListLeasesRequest {
        job: "nobody".into(),
        ..Default::default()
    };
    refused(client.list_leases(list).await, not_found)?;
    let member = pb::AcquireLeaseRequest {
        cores: 0,
        gpus: vec![],
        member: Some(pb::Member {
            job: "nobody".into(),
            stage: "gen".into(),
            worker: 0,
        }),
        ..request()
    };
    refused(client.acquire_lease(member).await, not_found)?;
    let renewed = calls.renew(NOBODY).await?;
    ensure!(renewed.status() == pb::RenewStatus::Lost, "{renewed:?}");
    Ok(8)
}

async fn session(calls: &mut Calls) -> anyhow::Result<()> {
    let (renewals, refused) = calls.frame(all_of(NOBODY)).await?;
    ensure!(renewals == [pb::RenewStatus::Lost], "{renewals:?}");
    let of = |what: &str| {
        refused
            .iter()
            .any(|r| r.contains(what) && r.contains("does not exist"))
    };
    let trials = ["trial_offers[0]", "trial_results[0]"];
    let nothing_of_trials = trials
        .iter()
        .all(|t| refused.iter().any(|r| r.starts_with(t)));
    ensure!(
        of("reports[0]") && of("acknowledgements[0]") && nothing_of_trials,
        "what was refused on a session: {refused:?}"
    );
    Ok(())
}

async fn names(calls: &mut Calls) -> anyhow::Result<usize> {
    let (name, not_found) = (|| "nobody".to_owned(), Code::NotFound);
    let jobs = &mut calls.jobs;
    refused(
        jobs.get_job(pb::GetJobRequest { name: name() }).await,
        not_found,
    )?;
    refused(
        jobs.cancel_job(pb::CancelJobRequest { name: name() }).await,
        not_found,
    )?;
    let update = pb::UpdateJobRequest {
        name: name(),
        replan: true,
        ..Default::default()
    };
    refused(jobs.update_job(update).await, not_found)?;
    let watch = match jobs.watch_job(pb::WatchJobRequest { name: name() }).await {
        Ok(looks) => looks.into_inner().message().await,
        Err(status) => Err(status),
    };
    refused(watch, not_found)?;
    let explain = pb::ExplainJobRequest { name: name() };
    refused(calls.plans.explain_job(explain).await, not_found)?;
    let events = pb::ListEventsRequest {
        job: name(),
        ..Default::default()
    };
    refused(calls.nodes.list_events(events).await, not_found)?;
    let get = pb::GetProfileRequest {
        key: Some(key("nobody/gen")),
    };
    refused(calls.profiles.get_profile(get).await, not_found)?;
    let export = pb::ExportProfileRequest {
        key: Some(key("nobody/gen")),
    };
    refused(calls.profiles.export_profile(export).await, not_found)?;
    Ok(8)
}
