//! Bad luck: a clock set back, a stopped worker, clients that vanish, a daemon that is down for long, another tenant.
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use evenkeel_proto::v1 as pb;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::Code;

use super::{case, refused};
use crate::daemon::{Daemon, SYNTHETIC, program};
use crate::load::{connect, request};
use crate::row::Row;

pub(super) async fn measure() -> Vec<Row> {
    vec![
        case(
            "another tenant's lease",
            "NOT_FOUND; renewals say LOST",
            other_tenant(),
        )
        .await,
        case(
            "the wall clock set back a year",
            "nobody expires, nobody lives on",
            clock_back(),
        )
        .await,
        case(
            "a worker stopped past its deadline",
            "quarantined; its late calls refused; ended; share free",
            stopped(),
        )
        .await,
        case(
            "clients that vanish in the middle of each call",
            "each call ran once or not at all; nothing is left",
            vanish(),
        )
        .await,
        case(
            "a daemon that is down for longer than the TTL",
            "leases live on with a full TTL",
            down(),
        )
        .await,
    ]
}

/// Runs a command as another user.
fn as_nobody(socket: &Path, args: &[&str]) -> anyhow::Result<(bool, String)> {
    use std::os::unix::process::CommandExt as _;
    let out = Command::new(program("evenkeel")?)
        .arg("--socket")
        .arg(socket)
        .args(args)
        .uid(65_534)
        .gid(65_534)
        .output()?;
    Ok((
        out.status.success(),
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
    ))
}

async fn other_tenant() -> anyhow::Result<String> {
    let dir = tempfile::Builder::new()
        .prefix("evenkeel-accept-")
        .tempdir()?;
    std::fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    let daemon = Daemon::in_folder(dir.path(), SYNTHETIC).await?;
    let mut client = connect(&daemon.socket()).await?;
    let lease = client
        .acquire_lease(request())
        .await?
        .into_inner()
        .lease
        .context("no lease")?;
    let (ok, said) = as_nobody(
        &daemon.socket(),
        &["leases", "revoke", &lease.id.to_string()],
    )?;
    ensure!(!ok && said.contains("does not exist"), "{said}");
    let (ok, listed) = as_nobody(&daemon.socket(), &["--output", "json", "leases"])?;
    ensure!(
        ok && !listed.contains("request_id"),
        "another tenant lists it: {listed}"
    );
    Ok(said.lines().next().unwrap_or_default().into())
}

/// Shifts CLOCK_REALTIME back by a year for whoever loads it, once the file that EVENKEEL_YEAR_BACK names exists.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, t);
    const char *flag = getenv("EVENKEEL_YEAR_BACK");
    if (!r && id == CLOCK_REALTIME && flag && !access(flag, F_OK)) t->tv_sec -= 365 * 86400;
    return r;
}
"#;

/// Builds the shim in a folder.
fn shim(dir: &Path) -> anyhow::Result<PathBuf> {
    let (source, shim) = (dir.join("shim.c"), dir.join("shim.so"));
    std::fs::write(&source, SHIM)?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&shim)
        .arg(&source)
        .arg("-ldl")
        .status()?;
    ensure!(built.success(), "cc did not build the shim");
    Ok(shim)
}

async fn clock_back() -> anyhow::Result<String> {
    let dir = tempfile::tempdir()?;
    let (shim, flag) = (shim(dir.path())?, dir.path().join("back"));
    let env: [(&str, &Path); 2] = [("LD_PRELOAD", &shim), ("EVENKEEL_YEAR_BACK", &flag)];
    let mut daemon = Daemon::in_folder_with(&dir.path().join("d"), SYNTHETIC, &env).await?;
    let mut client = connect(&daemon.socket()).await?;
    let brief = pb::AcquireLeaseRequest {
        ttl_ms: 2_000,
        ..request()
    };
    let brief = client
        .acquire_lease(brief)
        .await?
        .into_inner()
        .lease
        .context("no lease")?;
    let long = client
        .acquire_lease(request())
        .await?
        .into_inner()
        .lease
        .context("no lease")?;
    std::fs::write(&flag, "")?;
    let start = Instant::now();
    loop {
        let all = client
            .list_leases(pb::ListLeasesRequest::default())
            .await?
            .into_inner()
            .leases;
        ensure!(
            all.iter().any(|l| l.id == long.id),
            "a lease with time left is gone"
        );
        if !all.iter().any(|l| l.id == brief.id) {
            break;
        }
        ensure!(
            start.elapsed() < Duration::from_secs(60),
            "a lease lives on because the wall clock went back"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = start.elapsed();
    ensure!(
        took > Duration::from_secs(1),
        "it ended early, after {took:?}"
    );
    client
        .acquire_lease(request())
        .await
        .context("a grant after the change")?;
    daemon.stop().await?;
    Ok(format!(
        "a TTL of 2 s (and 10 s of grace) ended after {:.1} s; a longer lease and new grants go on",
        took.as_secs_f64()
    ))
}

const LOCAL: &str = "
[node]
reserve_cores = 0
[leases]
grace_ms = 1000
quarantine_kill_ms = 2000
kill_after_term_ms = 1000
";

/// A worker that holds a core and renews until it is told that it has lost it; then it stays.
struct Holder {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Holder {
    fn start(socket: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program("accept")?)
            .args(["worker", "--hold", "--socket"])
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
        Ok(kill(
            Pid::from_raw(i32::try_from(self.child.id())?),
            signal,
        )?)
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
    let mut client = connect(&daemon.socket()).await?;
    let mut worker = Holder::start(&daemon.socket())?;
    let id: u64 = worker.wait_for("held")?.parse()?;
    worker.signal(Signal::SIGSTOP)?;
    let start = Instant::now();
    until(&mut client, id, pb::LeasePhase::Quarantined).await?;
    let quarantined = start.elapsed();
    worker.signal(Signal::SIGCONT)?;
    let late = worker.wait_for("refused")?;
    let start = Instant::now();
    until(&mut client, id, pb::LeasePhase::Ended).await?;
    let status = worker.child.wait()?;
    Ok(format!(
        "quarantined after {:.1} s; its late renewal: {late}; ended ({status}) and free {:.1} s later",
        quarantined.as_secs_f64(),
        start.elapsed().as_secs_f64(),
    ))
}

/// Waits for a phase; `Ended` includes that it is listed no more.
async fn until(
    client: &mut evenkeel_proto::v1::lease_service_client::LeaseServiceClient<
        tonic::transport::Channel,
    >,
    id: u64,
    phase: pb::LeasePhase,
) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let all = client
            .list_leases(pb::ListLeasesRequest::default())
            .await?
            .into_inner()
            .leases;
        match all.iter().find(|l| l.id == id) {
            Some(l) if l.phase() == phase => return Ok(()),
            None if phase == pb::LeasePhase::Ended => return Ok(()),
            None => bail!("lease {id} is gone before it was {phase:?}"),
            Some(l) => ensure!(
                start.elapsed() < Duration::from_secs(60),
                "lease {id} stays {:?}",
                l.phase()
            ),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn vanish() -> anyhow::Result<String> {
    let daemon = Daemon::start(SYNTHETIC).await?;
    let mut calls = 0;
    for delay_us in [0, 50, 100, 200, 400, 800, 1_600, 3_200] {
        for _ in 0..8 {
            let cut = Duration::from_micros(delay_us);
            let mut client = connect(&daemon.socket()).await?;
            let brief = pb::AcquireLeaseRequest {
                ttl_ms: 1_000,
                ..request()
            };
            // The future is dropped in the middle; then the whole connection.
            let _ = tokio::time::timeout(cut, client.acquire_lease(brief)).await;
            let _ = tokio::time::timeout(
                cut,
                client.renew_leases(pb::RenewLeasesRequest {
                    leases: vec![pb::LeaseRef {
                        lease_id: 1,
                        fence: 1,
                    }],
                }),
            )
            .await;
            let _ = tokio::time::timeout(
                cut,
                client.release_lease(pb::ReleaseLeaseRequest {
                    lease_id: 1,
                    fence: 1,
                }),
            )
            .await;
            let _ = tokio::time::timeout(cut, client.list_leases(pb::ListLeasesRequest::default()))
                .await;
            let waits = pb::AcquireLeaseRequest {
                ttl_ms: 1_000,
                wait_ms: 60_000,
                cores: 16_384,
                ..request()
            };
            let _ = tokio::time::timeout(cut, client.acquire_lease(waits)).await;
            calls += 5;
        }
    }
    let mut client = connect(&daemon.socket()).await?;
    let start = Instant::now();
    while !client
        .list_leases(pb::ListLeasesRequest::default())
        .await?
        .into_inner()
        .leases
        .is_empty()
    {
        ensure!(
            start.elapsed() < Duration::from_secs(40),
            "leases of clients that vanished stay"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.acquire_lease(request()).await?;
    Ok(format!(
        "{calls} calls cut off; all that they left ended {:.1} s later",
        start.elapsed().as_secs_f64()
    ))
}

async fn down() -> anyhow::Result<String> {
    let mut daemon = Daemon::start(SYNTHETIC).await?;
    let ttl = Duration::from_millis(1_500);
    let brief = pb::AcquireLeaseRequest {
        ttl_ms: 1_500,
        ..request()
    };
    let lease = connect(&daemon.socket())
        .await?
        .acquire_lease(brief)
        .await?
        .into_inner()
        .lease
        .context("no lease")?;
    daemon.kill();
    tokio::time::sleep(ttl * 2).await;
    daemon.spawn().await?;
    let mut client = connect(&daemon.socket()).await?;
    let leases = vec![pb::LeaseRef {
        lease_id: lease.id,
        fence: lease.fence,
    }];
    let renewed = client
        .renew_leases(pb::RenewLeasesRequest { leases })
        .await?
        .into_inner();
    let first = renewed.results.first().context("no result")?;
    ensure!(first.status() == pb::RenewStatus::Renewed, "{first:?}");
    refused(
        client
            .get_lease(pb::GetLeaseRequest {
                lease_id: lease.id + 1,
            })
            .await,
        Code::NotFound,
    )?;
    Ok(format!(
        "down for {:.0} s; renewed, {} ms left",
        (ttl * 2).as_secs_f64(),
        first.remaining_ms
    ))
}
