//! A worker under SIGSTOP past its deadline: quarantined, still counted, its late calls refused by the fence, then ended
//! and its share free.
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use evenkeel_client::CpuList;
use evenkeel_proto::v1 as pb;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::calls::{Calls, all_of, right};
use super::{case, refused};
use crate::daemon::{Daemon, program};
use crate::row::Row;

/// Quick to notice. The shared set is all cores.
const LOCAL: &str = "
[node]
reserve_cores = 0
[leases]
grace_ms = 1000
quarantine_kill_ms = 3000
kill_after_term_ms = 1000
";
const TTL_MS: u64 = 1_000;
/// What is waited for comes within this time, on the slowest machine.
const SOON: Duration = Duration::from_secs(60);

/// Arguments of the worker that is stopped.
#[derive(clap::Args)]
pub(crate) struct LateArgs {
    #[arg(long)]
    socket: PathBuf,
}

pub(super) async fn measure() -> Vec<Row> {
    let asked =
        "quarantined and still counted; each late call refused by the fence; ended; its share free";
    vec![case("a worker under SIGSTOP past its deadline", asked, stopped()).await]
}

fn cores(cores: u32, ttl_ms: u64) -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        request_id: Uuid::now_v7().to_string(),
        cores,
        ttl_ms,
        ..Default::default()
    }
}

/// A worker that holds a core and renews until it is told that it has lost it; then it tries all else, and stays.
struct Holder {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Holder {
    fn start(socket: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program("accept")?)
            .args(["late", "--socket"])
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        Ok(Self { child, lines })
    }
    /// The next line that starts with `word`; its rest.
    fn wait_for(&mut self, word: &str) -> anyhow::Result<String> {
        for line in self.lines.by_ref() {
            if let Some(rest) = line?.strip_prefix(word) {
                return Ok(rest.trim().to_owned());
            }
        }
        bail!("the worker ended before it said {word:?}")
    }
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        Ok(kill(pid, signal)?)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn stopped() -> anyhow::Result<String> {
    let daemon = Daemon::start(LOCAL).await?;
    let mut calls = Calls::connect(&daemon.socket()).await?;
    let all = installed(&mut calls).await?;
    let mut worker = Holder::start(&daemon.socket())?;
    let id: u64 = worker.wait_for("held")?.parse()?;
    worker.signal(Signal::SIGSTOP)?;
    let start = Instant::now();
    until(&mut calls, id, pb::LeasePhase::Quarantined).await?;
    let quarantined = start.elapsed();
    // Not free yet: whoever wants all cores does not get them.
    let answer = calls.leases.acquire_lease(cores(all, 0)).await;
    refused(answer, Code::ResourceExhausted).context("the share in quarantine was granted")?;
    worker.signal(Signal::SIGCONT)?;
    let late = worker.wait_for("late")?;
    for call in [
        "renew",
        "release",
        "attach",
        "session",
        "report",
        "acknowledge",
    ] {
        ensure!(
            late.split(' ').any(|word| word == format!("{call}=FENCED")),
            "a late {call} was not refused by the fence: {late}"
        );
    }
    let start = Instant::now();
    until(&mut calls, id, pb::LeasePhase::Ended).await?;
    let ended = start.elapsed();
    let status = worker.child.wait()?;
    let lease = calls
        .grant(cores(all, 0))
        .await
        .context("the share is not free")?;
    let pb::LeaseRef { lease_id, fence } = right(&lease);
    let release = pb::ReleaseLeaseRequest { lease_id, fence };
    calls.leases.release_lease(release).await?;
    Ok(format!(
        "quarantined after {:.1} s; late calls: {late}; ended ({status}) {:.1} s later; then all {all} cores were granted",
        quarantined.as_secs_f64(),
        ended.as_secs_f64(),
    ))
}

/// How many cores can be leased.
async fn installed(calls: &mut Calls) -> anyhow::Result<u32> {
    let node = calls.nodes.get_node(pb::GetNodeRequest {}).await?;
    let node = node.into_inner().node.context("no node")?;
    let [all, reserved] = [node.cores, node.reserved_cores].map(|list| list.parse::<CpuList>());
    Ok(u32::try_from(all?.len() - reserved?.len())?)
}

/// Waits for a phase; `Ended` includes that it is listed no more.
async fn until(calls: &mut Calls, id: u64, phase: pb::LeasePhase) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let all = calls.leases.list_leases(pb::ListLeasesRequest::default());
        let all = all.await?.into_inner().leases;
        match all.iter().find(|l| l.id == id) {
            Some(l) if l.phase() == phase => return Ok(()),
            None if phase == pb::LeasePhase::Ended => return Ok(()),
            None => bail!("lease {id} is gone before it was {phase:?}"),
            Some(l) => ensure!(start.elapsed() < SOON, "lease {id} stays {:?}", l.phase()),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// The worker's side.
pub(crate) async fn late(args: LateArgs) -> anyhow::Result<bool> {
    let mut calls = Calls::connect(&args.socket).await?;
    let lease = calls.grant(cores(1, TTL_MS)).await?;
    let attach = pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
        pid: 0,
    };
    let attached = calls.leases.attach_lease(attach).await?.into_inner().lease;
    let held = right(&attached.context("no lease")?);
    let start = Instant::now();
    while calls.lease(held.lease_id).await?.phase() != pb::LeasePhase::Active {
        ensure!(start.elapsed() < SOON, "the lease did not become active");
        calls.renew(held).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    say(&format!("held {}", held.lease_id))?;
    let renewed = loop {
        let renewed = calls.renew(held).await?.status();
        if renewed != pb::RenewStatus::Renewed {
            break renewed;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let rest = all_else(&mut calls, held).await?;
    say(&format!("late renew={} {rest}", status(renewed)))?;
    // Whoever has lost its lease may stay; the daemon ends it.
    std::thread::sleep(SOON);
    Ok(false)
}

/// Every other call of a holder, with the fence that it had.
async fn all_else(calls: &mut Calls, held: pb::LeaseRef) -> anyhow::Result<String> {
    let pb::LeaseRef { lease_id, fence } = held;
    let release = pb::ReleaseLeaseRequest { lease_id, fence };
    let release = reason(calls.leases.release_lease(release).await);
    let attach = pb::AttachLeaseRequest {
        lease_id,
        fence,
        pid: 0,
    };
    let attach = reason(calls.leases.attach_lease(attach).await);
    let (renewals, refused) = calls.frame(all_of(held)).await?;
    let session = renewals.first().map_or("nothing", |s| status(*s));
    // A session says why in words only.
    let of = |what: &str| match refused.iter().find(|r| r.starts_with(what)) {
        Some(why) if why.contains("fence") => "FENCED".to_owned(),
        Some(why) => format!("{why:?}"),
        None => "taken".to_owned(),
    };
    let (report, acknowledge) = (of("reports[0]"), of("acknowledgements[0]"));
    Ok(format!(
        "release={release} attach={attach} session={session} report={report} acknowledge={acknowledge}"
    ))
}

fn status(status: pb::RenewStatus) -> &'static str {
    match status {
        pb::RenewStatus::Renewed => "RENEWED",
        pb::RenewStatus::Fenced => "FENCED",
        pb::RenewStatus::Lost => "LOST",
        pb::RenewStatus::Unspecified => "UNSPECIFIED",
    }
}

/// The reason that the daemon gives, in one word.
fn reason<T>(answer: Result<T, Status>) -> String {
    match answer {
        Ok(_) => "done".to_owned(),
        Err(status) => match status.get_details_error_info() {
            Some(info) => info.reason,
            None => format!("{:?}", status.code()),
        },
    }
}
