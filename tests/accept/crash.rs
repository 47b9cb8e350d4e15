//! Line 5: SIGKILL of the daemon, again and again, under workers that acquire, renew, resize and release; judged by an
//! observer that reads the devices and the kernel, by the workers themselves, and by the ledger at the end.
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_client::{
    ClientConfig, JobSpec, JobUpdate, Profile, ProfileKey, ProfilePoint, ResizeMode, Role,
    StageSpec, blocking,
};
use evenkeel_proto::v1 as pb;

use crate::Run;
use crate::daemon::{Daemon, Device, SYNTHETIC};
use crate::load::{connect, request};
use crate::row::Row;
use crate::trail::Trail;
use crew::{Crew, Tally};

mod crew;
mod observer;
mod verdict;
mod workers;

pub(crate) use workers::{WorkerArgs, worker};

const KILLS: usize = 200;
const ACQUIRERS: usize = 4;
/// A lease that was given back ends when its process is off the GPU: some looks of the daemon later.
const ENDED_WITHIN: Duration = Duration::from_secs(30);
/// Live leases in the crowd; connections that fetch them.
const CROWD: usize = 10_000;
const FETCHERS: usize = 50;
/// Leases of one renewal: what a message may hold at most is a little more.
const RENEWED_AT_ONCE: usize = 1_000;

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let kills = if run.short { KILLS / 10 } else { KILLS };
    let mut rows = killed(kills, run.short).await?;
    rows.push(crowd(if run.short { CROWD / 10 } else { CROWD }).await?);
    Ok(rows)
}

/// A pool of real cores and two emulated GPUs, quick to notice.
fn tables(dir: &Path) -> String {
    format!(
        "[node]\nreserve_cores = 0\n[leases]\nreconcile_ms = 20\n[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\ndir = {:?}\nmodel = \"h100\"\ncount = 2\nstart = true\n",
        dir.join("gpu")
    )
}

async fn killed(kills: usize, short: bool) -> anyhow::Result<Vec<Row>> {
    let owned = tempfile::Builder::new()
        .prefix("evenkeel-accept-")
        .tempdir()?;
    let dir = owned.path().to_path_buf();
    // Dropped after the daemon, which would start it again.
    let _device = Device::in_folder(&dir.join("gpu"));
    let mut daemon = Daemon::in_folder(&dir, &tables(&dir)).await?;
    let marks = dir.join("marks");
    fs::create_dir_all(&marks)?;
    let mut crew = Crew::new(marks);
    submit(&daemon.socket()).await?;
    crew.start(&daemon.socket(), "observe", 0)?;
    for index in 0..2 {
        crew.start(&daemon.socket(), "resize", index)?;
    }
    crew.start(&daemon.socket(), "replan", 0)?;
    for index in 0..ACQUIRERS {
        crew.start(&daemon.socket(), "acquire", index)?;
    }
    let mut slowest = Duration::ZERO;
    for n in 0..kills {
        // Different moments of the workers' lives: 20 to 260 ms.
        tokio::time::sleep(Duration::from_millis(20 + (n as u64 * 37) % 240)).await;
        daemon.kill();
        slowest = slowest.max(daemon.spawn().await?);
        crew.all_work()?;
    }
    crew.finish().await?;
    let mut tally = crew.tally()?;
    if let Err(e) = nothing_left(&daemon.socket()).await {
        tally.complaints.push(format!("lost: {e:#}"));
    }
    let trail = Trail::read(&daemon.socket(), 0).await?;
    daemon.stop().await?;
    Ok(judged(&tally, &trail, kills, slowest, short))
}

/// All workers have ended: so have their leases, soon.
async fn nothing_left(socket: &Path) -> anyhow::Result<()> {
    let mut client = connect(socket).await?;
    let start = Instant::now();
    loop {
        let left = client
            .list_leases(pb::ListLeasesRequest::default())
            .await?
            .into_inner()
            .leases;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(
            start.elapsed() < ENDED_WITHIN,
            "{} leases stay although their workers have given them back and ended",
            left.len()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What the workers, the observer and the ledger say, as rows.
fn judged(tally: &Tally, trail: &Trail, kills: usize, slowest: Duration, short: bool) -> Vec<Row> {
    let sum = |word: &str| tally.sum(word);
    let verdict = verdict::judge(tally, trail);
    let of_kind = |kind: &str| -> Vec<String> {
        let of = tally.complaints.iter().filter(|c| c.starts_with(kind));
        of.cloned().collect()
    };
    let none = |what: &str, found: Vec<String>, beside: &str| {
        let first = found.first().map(|c| format!("; first: {c}"));
        let measured = format!("{}{beside}{}", found.len(), first.unwrap_or_default());
        Row::new(what, "0", measured, found.is_empty())
    };
    let asked = tally.acknowledged.len();
    let resizes = trail.count("lease_retargeted", |_| true);
    let did = format!(
        "{kills} kills; {asked} grants, {} renewals, {} resizes ({resizes} new targets in the ledger), {} releases \
         acknowledged; {} requests refused for want of room; slowest restart {:.0} ms",
        sum("renewals"),
        sum("resizes"),
        sum("releases"),
        tally.refused.len(),
        slowest.as_secs_f64() * 1e3,
    );
    let busy = asked > kills
        && sum("releases") > kills as u64
        && sum("renewals") > kills as u64
        && sum("resizes") > 0
        && resizes > 0;
    let ledger = format!(" of {asked} requests, by the ledger");
    let (contexts, bound) = (sum("contexts"), sum("bound"));
    let looked = format!(
        " in {} looks ({contexts} with several contexts, {bound} with several bound processes)",
        sum("looks")
    );
    let saw = sum("looks") > 100 && contexts > 0 && bound > 0;
    vec![
        Row::new(
            "SIGKILL under acquire, renew, resize, release",
            "≥ 200 kills, all four happen",
            did,
            busy && (short || kills >= KILLS),
        ),
        none(
            "acknowledged leases lost",
            [verdict.lost, of_kind("lost")].concat(),
            &ledger,
        ),
        none("granted twice, or to nobody", verdict.twice, &ledger),
        none(
            "over-commitment seen by the observer",
            of_kind("over"),
            &looked,
        ),
        none(
            "workers that failed, and answers that are neither a lease nor a want of room",
            [of_kind("failed"), of_kind("answer")].concat(),
            "",
        ),
        Row::new(
            "what the observer had to look at",
            "shares of several workers at once, on GPUs and on cores",
            looked.trim().to_owned(),
            saw,
        ),
    ]
}

/// A job whose split between two live stages is pulled to and fro by its profiles.
async fn submit(socket: &Path) -> anyhow::Result<()> {
    let socket = socket.to_path_buf();
    apart(move || {
        let client = client(&socket)?;
        profiles(&client, 1.0, 1.0)?;
        let stage = |name: &str, role| StageSpec {
            min_sms: 4,
            max_sms: Some(128),
            memory_bytes: 1 << 30,
            max_cores: Some(0),
            resize: ResizeMode::Live,
            ..StageSpec::new(name, role)
        };
        let mut spec = JobSpec::new("pull", "unit");
        spec.gpus = vec![0]; // the acquirers share the other one
        spec.rebalance.frozen = true;
        spec.stages = vec![
            stage("gen", Role::Generation),
            stage("train", Role::Training),
        ];
        client
            .submit(JobSpec::request_id(), &spec)
            .context("submit")?;
        anyhow::Ok(())
    })
    .await
}

/// Runs blocking work on a thread outside the runtime, where the blocking client belongs.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (done_in, done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || drop(done_in.send(work())));
    done.await.context("the thread ended without a result")?
}

/// A client for the daemon under test.
pub(crate) fn client(socket: &Path) -> anyhow::Result<blocking::Client> {
    let address = socket
        .display()
        .to_string()
        .parse()
        .map_err(|e| anyhow::anyhow!("{e}"))?;
    Ok(blocking::Client::new(ClientConfig::new(address))?)
}

/// Straight-line profiles: so many units per second and SM for each stage.
pub(crate) fn profiles(
    client: &blocking::Client,
    generation: f64,
    training: f64,
) -> anyhow::Result<()> {
    let gpu = client
        .node()?
        .gpus
        .first()
        .map(|g| g.model.clone())
        .context("no GPU")?;
    for (stage, slope) in [("pull/gen", generation), ("pull/train", training)] {
        let point = |sms: u32| ProfilePoint {
            cores: 0,
            sms,
            batch: 1,
            replicas: 1,
            units_per_s: slope * f64::from(sms),
            memory_bytes: 1 << 30,
            weight: 1.0,
            ..ProfilePoint::default()
        };
        let key = ProfileKey {
            stage: stage.into(),
            gpu: gpu.clone(),
        };
        let points = (1..=20).map(|n| point(4 * n)).collect();
        client.import_profile(Profile {
            key,
            tenant: String::new(),
            points,
            point_count: 0,
        })?;
    }
    Ok(())
}

/// Asks for another split.
pub(crate) fn replan(client: &blocking::Client) -> evenkeel_client::Result<()> {
    client
        .update_job(
            "pull",
            JobUpdate {
                replan: true,
                ..JobUpdate::default()
            },
        )
        .map(drop)
}

/// Ten thousand live leases, a SIGKILL, and renewals again.
async fn crowd(leases: usize) -> anyhow::Result<Row> {
    let mut daemon = Daemon::start(SYNTHETIC).await?;
    let mut tasks = Vec::new();
    for _ in 0..FETCHERS {
        let mut client = connect(&daemon.socket()).await?;
        tasks.push(tokio::spawn(async move {
            let mut held = Vec::new();
            for _ in 0..leases / FETCHERS {
                let small = pb::AcquireLeaseRequest {
                    cores: 1,
                    gpus: vec![pb::GpuRequest {
                        sms: 1,
                        memory_bytes: 1 << 20,
                        ..Default::default()
                    }],
                    ttl_ms: 600_000,
                    ..request()
                };
                let lease = client
                    .acquire_lease(small)
                    .await?
                    .into_inner()
                    .lease
                    .context("no lease")?;
                held.push(pb::LeaseRef {
                    lease_id: lease.id,
                    fence: lease.fence,
                });
            }
            anyhow::Ok(held)
        }));
    }
    let mut held = Vec::new();
    for task in tasks {
        held.extend(task.await??);
    }
    daemon.kill();
    let start = Instant::now();
    daemon.spawn().await?;
    let mut client = connect(&daemon.socket()).await?;
    let mut renewed = 0;
    let mut first = None;
    for chunk in held.chunks(RENEWED_AT_ONCE) {
        let answer = client
            .renew_leases(pb::RenewLeasesRequest {
                leases: chunk.to_vec(),
            })
            .await?
            .into_inner();
        renewed += answer
            .results
            .iter()
            .filter(|r| r.status() == pb::RenewStatus::Renewed)
            .count();
        first.get_or_insert_with(|| start.elapsed());
    }
    let first = first.unwrap_or_default();
    Ok(Row::new(
        &format!("renewals after a SIGKILL with {} live leases", held.len()),
        "served within 1 s of starting",
        format!(
            "the first {RENEWED_AT_ONCE} after {:.0} ms, all {renewed} after {:.0} ms",
            first.as_secs_f64() * 1e3,
            start.elapsed().as_secs_f64() * 1e3
        ),
        held.len() == leases && renewed == leases && first < Duration::from_secs(1),
    ))
}
