//! Line 5: SIGKILL of the daemon, again and again, under workers that acquire, renew, resize and release; judged by an
//! observer that reads the devices and the kernel, and by the workers themselves.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_client::{
    ClientConfig, JobSpec, JobUpdate, Profile, ProfileKey, ProfilePoint, ResizeMode, Role,
    StageSpec, blocking,
};
use evenkeel_proto::v1 as pb;

use crate::Run;
use crate::daemon::{Daemon, SYNTHETIC, program};
use crate::load::{connect, request};
use crate::row::Row;

mod observer;
mod workers;

pub(crate) use workers::{WorkerArgs, worker};

const KILLS: usize = 200;
const ACQUIRERS: usize = 4;

pub(crate) async fn measure(run: Run) -> anyhow::Result<Vec<Row>> {
    let kills = if run.short { KILLS / 10 } else { KILLS };
    let mut rows = killed(kills, run.short).await?;
    rows.push(crowd(if run.short { 1_000 } else { 10_000 }).await?);
    Ok(rows)
}

/// A pool of real cores and two emulated GPUs, quick to notice.
fn tables(dir: &Path) -> String {
    format!(
        "[node]\nreserve_cores = 0\n[leases]\nreconcile_ms = 20\n[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\ndir = {:?}\nmodel = \"h100\"\ncount = 2\nstart = true\n",
        dir.join("gpu")
    )
}

/// The processes of a run; they end when the flag file appears, or are ended.
struct Crew {
    dir: PathBuf,
    children: Vec<Child>,
}

impl Crew {
    fn start(&mut self, socket: &Path, role: &str, index: usize) -> anyhow::Result<()> {
        let child = Command::new(program("accept")?)
            .args([
                "worker",
                &format!("--{role}"),
                "--index",
                &index.to_string(),
                "--socket",
            ])
            .arg(socket)
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        self.children.push(child);
        Ok(())
    }
    /// Tells all to finish and waits.
    async fn finish(&mut self) -> anyhow::Result<()> {
        fs::write(self.dir.join("stop"), "")?;
        let start = Instant::now();
        for child in &mut self.children {
            while child.try_wait()?.is_none() {
                ensure!(
                    start.elapsed() < Duration::from_secs(60),
                    "a worker does not finish"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
    /// What all wrote: lines of `word number`, summed by word; and the complaints.
    fn tally(&self) -> anyhow::Result<(std::collections::BTreeMap<String, u64>, Vec<String>)> {
        let (mut sums, mut complaints) = (std::collections::BTreeMap::new(), Vec::new());
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "log") {
                continue;
            }
            for line in fs::read_to_string(&path)?.lines() {
                match line.split_once(' ') {
                    Some(("complaint", what)) => complaints.push(what.to_owned()),
                    Some((word, n)) => {
                        *sums.entry(word.to_owned()).or_insert(0) += n.parse::<u64>().unwrap_or(0)
                    }
                    None => {}
                }
            }
        }
        Ok((sums, complaints))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn killed(kills: usize, short: bool) -> anyhow::Result<Vec<Row>> {
    let owned = tempfile::Builder::new()
        .prefix("evenkeel-accept-")
        .tempdir()?;
    let dir = owned.path().to_path_buf();
    let mut daemon = Daemon::in_folder(&dir, &tables(&dir)).await?;
    let marks = dir.join("marks");
    fs::create_dir_all(&marks)?;
    let mut crew = Crew {
        dir: marks,
        children: Vec::new(),
    };
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
    }
    crew.finish().await?;
    daemon.stop().await?;
    let _ = Command::new("pkill")
        .arg("-f")
        .arg(dir.join("gpu"))
        .status();
    judged(&crew, kills, slowest, short)
}

/// What the workers and the observer say, as rows.
fn judged(crew: &Crew, kills: usize, slowest: Duration, short: bool) -> anyhow::Result<Vec<Row>> {
    let (sums, complaints) = crew.tally()?;
    let sum = |word: &str| sums.get(word).copied().unwrap_or(0);
    let none = |what: &str, kind: &str, beside: &str| {
        let of: Vec<_> = complaints.iter().filter(|c| c.starts_with(kind)).collect();
        let first = of
            .first()
            .map(|c| format!("; first: {c}"))
            .unwrap_or_default();
        Row::new(
            what,
            "0",
            format!("{}{beside}{first}", of.len()),
            of.is_empty(),
        )
    };
    let did = format!(
        "{kills} kills; {} grants, {} renewals, {} resizes, {} releases acknowledged; slowest restart {:.0} ms",
        sum("grants"),
        sum("renewals"),
        sum("resizes"),
        sum("releases"),
        slowest.as_secs_f64() * 1e3,
    );
    let busy = sum("grants") > kills as u64 && sum("resizes") > 0 && sum("releases") > kills as u64;
    let enough = busy && sum("looks") > 100 && (short || kills >= KILLS);
    Ok(vec![
        Row::new(
            "SIGKILL under acquire, renew, resize, release",
            "≥ 200 kills, all four happen",
            did,
            enough,
        ),
        none("acknowledged leases lost", "lost", ""),
        none("granted twice", "twice", ""),
        none(
            "over-commitment seen by the observer",
            "over",
            &format!(" in {} looks", sum("looks")),
        ),
    ])
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
    for _ in 0..50 {
        let mut client = connect(&daemon.socket()).await?;
        tasks.push(tokio::spawn(async move {
            let mut held = Vec::new();
            for _ in 0..leases / 50 {
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
    for chunk in held.chunks(1_000) {
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
            "first after {:.0} ms, all {renewed} after {:.0} ms",
            first.as_secs_f64() * 1e3,
            start.elapsed().as_secs_f64() * 1e3
        ),
        renewed == held.len() && first < Duration::from_secs(1),
    ))
}
