//! Another tenant: a process of another user that tries every call on what is not its own. It must be told the same as
//! of things that do not exist.
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use evenkeel_proto::v1 as pb;
use tonic::{Code, Status};

use super::amounts::small_job;
use super::calls::{Calls, all_of, key, right};
use super::case;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::request;
use crate::row::Row;

/// Nobody.
const OTHER_USER: u32 = 65_534;
/// What the owner has besides its lease.
const JOB: &str = "secret";
const PROFILE: &str = "secret/gen";
/// What nobody has.
const NO_LEASE: u64 = u64::MAX >> 1;
const NO_JOB: &str = "absent";
const NO_PROFILE: &str = "absent/gen";

/// Calls about a job or a profile by its name.
const BY_NAME: [&str; 9] = [
    "get job",
    "update",
    "cancel",
    "watch",
    "explain",
    "list leases",
    "events",
    "profile",
    "export",
];

/// Arguments of the other user's process.
#[derive(clap::Args)]
pub(crate) struct StrangerArgs {
    #[arg(long)]
    socket: PathBuf,
    /// The owner's lease.
    #[arg(long)]
    lease: u64,
    #[arg(long)]
    fence: u64,
    /// The request that it came from.
    #[arg(long)]
    request: String,
}

pub(super) async fn measure() -> Vec<Row> {
    let asked = "as if it did not exist, in every call; renewals say LOST; nothing is listed";
    vec![case("another tenant's lease, job and profile", asked, owner()).await]
}

/// The owner's side.
async fn owner() -> anyhow::Result<String> {
    let dir = tempfile::Builder::new()
        .prefix("evenkeel-accept-")
        .tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    // The other user cannot read the folder that this program was built in.
    let copy = dir.path().join("stranger");
    fs::copy(std::env::current_exe()?, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    let daemon = Daemon::in_folder(dir.path(), SYNTHETIC).await?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let asked = request();
    let lease = calls.grant(asked.clone()).await?;
    calls.submit(small_job(JOB)).await?;
    calls.trial(PROFILE, 1, 100.0).await?;
    let out = Command::new(&copy)
        .arg("stranger")
        .arg("--socket")
        .arg(daemon.socket())
        .args(["--lease", &lease.id.to_string()])
        .args(["--fence", &lease.fence.to_string()])
        .args(["--request", &asked.request_id])
        .uid(OTHER_USER)
        .gid(OTHER_USER)
        .current_dir("/")
        .output()
        .context("cannot start a process of another user; this line needs root")?;
    let (said, errors) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    ensure!(out.status.success(), "{}", errors.trim());
    let now = calls.lease(lease.id).await?;
    ensure!(
        (now.fence, now.phase) == (lease.fence, lease.phase),
        "the owner's lease was {lease:?} and is {now:?}"
    );
    let renewed = calls.renew(right(&lease)).await?;
    ensure!(renewed.status() == pb::RenewStatus::Renewed, "{renewed:?}");
    let name = JOB.to_owned();
    calls.jobs.get_job(pb::GetJobRequest { name }).await?;
    Ok(format!("{}; the owner keeps it", said.trim()))
}

/// The other user's side: fails with the first thing that is told or done.
#[allow(clippy::print_stdout, reason = "the owner reads what it says")]
pub(crate) async fn stranger(args: StrangerArgs) -> anyhow::Result<bool> {
    let mut calls = Calls::connect(&args.socket).await?;
    let mut tried = 0;
    for attempt in ["get", "release", "attach", "revoke", "clear"] {
        let told = on_lease(&mut calls, attempt, args.lease, args.fence).await;
        let of_nothing = on_lease(&mut calls, attempt, NO_LEASE, args.fence).await;
        same(
            attempt,
            told,
            &args.lease.to_string(),
            of_nothing,
            &NO_LEASE.to_string(),
        )?;
        tried += 1;
    }
    for attempt in BY_NAME {
        let told = on_name(&mut calls, attempt, JOB, PROFILE).await;
        let of_nothing = on_name(&mut calls, attempt, NO_JOB, NO_PROFILE).await;
        same(attempt, told, JOB, of_nothing, NO_JOB)?;
        tried += 1;
    }
    on_session(&mut calls, &args).await?;
    unlisted(&mut calls).await?;
    // The request id is another one of another tenant's.
    let asked = pb::AcquireLeaseRequest {
        request_id: args.request.clone(),
        ..request()
    };
    let own = calls.grant(asked).await?;
    ensure!(
        own.id != args.lease,
        "the owner's request id gave its lease away"
    );
    println!("{tried} calls, a session, four lists and its request id");
    Ok(true)
}

/// Refused, and in the same words as something that is not there.
fn same(
    attempt: &str,
    told: Result<(), Status>,
    mine: &str,
    of_nothing: Result<(), Status>,
    none: &str,
) -> anyhow::Result<()> {
    let (Err(told), Err(of_nothing)) = (told, of_nothing) else {
        bail!("{attempt}: it was done");
    };
    let hidden = matches!(told.code(), Code::NotFound | Code::PermissionDenied);
    let alike = told.code() == of_nothing.code()
        && told.message().replace(mine, "") == of_nothing.message().replace(none, "");
    ensure!(
        hidden && alike,
        "{attempt}: {:?} {:?}, and for nothing at all {:?} {:?}",
        told.code(),
        told.message(),
        of_nothing.code(),
        of_nothing.message()
    );
    Ok(())
}

async fn on_lease(
    calls: &mut Calls,
    attempt: &str,
    lease_id: u64,
    fence: u64,
) -> Result<(), Status> {
    let client = &mut calls.leases;
    match attempt {
        "get" => client
            .get_lease(pb::GetLeaseRequest { lease_id })
            .await
            .map(drop),
        "release" => {
            let release = pb::ReleaseLeaseRequest { lease_id, fence };
            client.release_lease(release).await.map(drop)
        }
        "attach" => {
            let attach = pb::AttachLeaseRequest {
                lease_id,
                fence,
                pid: 0,
            };
            client.attach_lease(attach).await.map(drop)
        }
        "revoke" => {
            let revoke = pb::RevokeLeaseRequest { lease_id };
            client.revoke_lease(revoke).await.map(drop)
        }
        _ => {
            let clear = pb::ClearLeaseRequest {
                lease_id,
                reason: "it is gone".into(),
            };
            client.clear_lease(clear).await.map(drop)
        }
    }
}

async fn on_name(
    calls: &mut Calls,
    attempt: &str,
    name: &str,
    profile: &str,
) -> Result<(), Status> {
    let (name, jobs) = (name.to_owned(), &mut calls.jobs);
    match attempt {
        "get job" => jobs.get_job(pb::GetJobRequest { name }).await.map(drop),
        "cancel" => jobs
            .cancel_job(pb::CancelJobRequest { name })
            .await
            .map(drop),
        "update" => {
            let update = pb::UpdateJobRequest {
                name,
                replan: true,
                ..Default::default()
            };
            jobs.update_job(update).await.map(drop)
        }
        "watch" => {
            let looks = jobs.watch_job(pb::WatchJobRequest { name }).await?;
            looks.into_inner().message().await.map(drop)
        }
        "explain" => {
            let explain = pb::ExplainJobRequest { name };
            calls.plans.explain_job(explain).await.map(drop)
        }
        "list leases" => {
            let list = pb::ListLeasesRequest {
                job: name,
                ..Default::default()
            };
            calls.leases.list_leases(list).await.map(drop)
        }
        "events" => {
            let events = pb::ListEventsRequest {
                job: name,
                ..Default::default()
            };
            calls.nodes.list_events(events).await.map(drop)
        }
        "profile" => {
            let get = pb::GetProfileRequest {
                key: Some(key(profile)),
            };
            calls.profiles.get_profile(get).await.map(drop)
        }
        _ => {
            let export = pb::ExportProfileRequest {
                key: Some(key(profile)),
            };
            calls.profiles.export_profile(export).await.map(drop)
        }
    }
}

/// Renewals, reports and acknowledgements of the owner's lease.
async fn on_session(calls: &mut Calls, args: &StrangerArgs) -> anyhow::Result<()> {
    let lease = pb::LeaseRef {
        lease_id: args.lease,
        fence: args.fence,
    };
    let renewed = calls.renew(lease).await?;
    ensure!(
        renewed.status() == pb::RenewStatus::Lost,
        "a renewal: {renewed:?}"
    );
    let (renewals, refused) = calls.frame(all_of(lease)).await?;
    ensure!(
        renewals == [pb::RenewStatus::Lost],
        "on a session: {renewals:?}"
    );
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

/// The lists are empty.
async fn unlisted(calls: &mut Calls) -> anyhow::Result<()> {
    let leases = calls.leases.list_leases(pb::ListLeasesRequest::default());
    let leases = leases.await?.into_inner().leases;
    let jobs = calls.jobs.list_jobs(pb::ListJobsRequest {
        include_ended: true,
    });
    let jobs = jobs.await?.into_inner().jobs;
    let profiles = calls.profiles.list_profiles(pb::ListProfilesRequest {});
    let profiles = profiles.await?.into_inner().profiles;
    let events = calls.nodes.list_events(pb::ListEventsRequest::default());
    let events = events.await?.into_inner().events;
    ensure!(
        leases.is_empty() && jobs.is_empty() && profiles.is_empty() && events.is_empty(),
        "another tenant lists {leases:?}, {jobs:?}, {profiles:?}, {events:?}"
    );
    // A job of the same name is another job.
    let own = calls
        .submit(pb::JobSpec {
            unit: "mine".into(),
            ..small_job(JOB)
        })
        .await?;
    ensure!(
        own.spec.is_some_and(|s| s.unit == "mine"),
        "the owner's job"
    );
    let name = JOB.to_owned();
    calls.jobs.cancel_job(pb::CancelJobRequest { name }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_too_much_is_noticed() {
        let err = |code, text: &str| Err(Status::new(code, text));
        let nothing = || err(Code::NotFound, "lease 9 does not exist");
        let check = |told, holds: bool| {
            assert_eq!(same("get", told, "7", nothing(), "9").is_ok(), holds);
        };
        check(err(Code::NotFound, "lease 7 does not exist"), true);
        check(err(Code::NotFound, "lease 7 is not yours"), false);
        check(
            err(Code::FailedPrecondition, "lease 7 does not exist"),
            false,
        );
        check(Ok(()), false);
    }
}
