//! The workers: each a process of its own that asks, holds, is resized, and gives back, whatever the daemon does.
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use evenkeel_client::{
    Attached, DirectiveKind, Error, GpuAsk, GuardEvent, GuardOptions, GuardState, LeaseRef,
    LeaseRequest, RenewalStatus, ResizeMode, SmAsk, blocking,
};
use evenkeel_gpu::Client as Gpu;
use evenkeel_gpu::client::{ContextOptions, ENV_SOCKET, parse_memory_limit, parse_percentage};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tonic::Code;

use super::{client, observer, profiles, replan};

/// Arguments of a worker process.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[arg(long, default_value_t = 0)]
    index: usize,
    /// Acquires, holds, renews, releases, again and again.
    #[arg(long)]
    acquire: bool,
    /// Holds a stage of the job and follows its targets.
    #[arg(long)]
    resize: bool,
    /// Pulls the job's split to and fro.
    #[arg(long)]
    replan: bool,
    /// Reads caps and affinities back.
    #[arg(long)]
    observe: bool,
}

/// How the logs of those that hold leases begin: what follows is the process.
pub(super) const WORKER_LOGS: [&str; 2] = ["acquire-", "resize-"];

/// Runs one of them.
pub(crate) async fn worker(args: WorkerArgs) -> anyhow::Result<bool> {
    super::apart(move || {
        let role = match (args.acquire, args.resize) {
            (true, _) => WORKER_LOGS[0],
            (_, true) => WORKER_LOGS[1],
            _ => "other-",
        };
        let name = format!("{role}{}.log", std::process::id());
        let mut log = Log {
            file: File::create(args.dir.join(name))?,
            dir: args.dir.clone(),
        };
        match (args.acquire, args.resize, args.replan) {
            (true, ..) => acquire(&args, &mut log)?,
            (_, true, _) => resized(&args, &mut log)?,
            (_, _, true) => pull(&args, &log)?,
            _ => observer::observe(&args.dir, &mut log)?,
        }
        Ok(true)
    })
    .await
}

/// What a worker tells the harness, and whether it is to stop.
pub(super) struct Log {
    file: File,
    dir: PathBuf,
}

impl Log {
    pub(super) fn say(&mut self, line: &str) {
        let _ = writeln!(self.file, "{line}");
    }
    pub(super) fn stopped(&self) -> bool {
        self.dir.join("stop").exists()
    }
}

/// Repeats a call while the daemon is away.
fn patiently<T>(
    mut call: impl FnMut() -> evenkeel_client::Result<T>,
) -> evenkeel_client::Result<T> {
    let start = Instant::now();
    loop {
        match call() {
            Err(Error::Unavailable { .. }) if start.elapsed() < Duration::from_secs(30) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

/// A context as the lease's environment says.
fn context(attached: &Attached, role: &str) -> anyhow::Result<Option<Gpu>> {
    let env = &attached.environment;
    let Some(socket) = env.get(ENV_SOCKET) else {
        return Ok(None);
    };
    let percentage = env
        .get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        .map(|p| parse_percentage(p))
        .transpose()?;
    let limit = env
        .get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        .map(|m| parse_memory_limit(m, 0))
        .transpose()?
        .flatten();
    let options = ContextOptions {
        role: role.into(),
        percentage,
        memory_limit: limit,
    };
    Ok(Some(Gpu::connect(Path::new(socket), &options)?))
}

/// What a worker did.
#[derive(Default)]
struct Did {
    renewals: u64,
    releases: u64,
}

/// The most that one lease asks for: so that four workers together want more than a GPU has.
const SMS_MOST: u32 = 60;
const GIB_MOST: u64 = 36;
/// How long the daemon may take until a worker is where it belongs.
const ACTIVE_WITHIN: Duration = Duration::from_secs(10);

/// Whether there is just no room now; anything else that is no lease is a fault.
fn no_room(error: &Error) -> bool {
    let code = error.rejection().map(|r| r.code);
    matches!(
        code,
        Some(Code::ResourceExhausted | Code::FailedPrecondition)
    )
}

fn acquire(args: &WorkerArgs, log: &mut Log) -> anyhow::Result<()> {
    let client = client(&args.socket)?;
    let mut rng = SmallRng::seed_from_u64(args.index as u64);
    let mut did = Did::default();
    while !log.stopped() {
        let ask = GpuAsk {
            gpu: Some(1),
            sms: SmAsk::Count(rng.random_range(2..=SMS_MOST)),
            memory_bytes: rng.random_range(1..=GIB_MOST) << 30,
        };
        let mut asked = LeaseRequest::amounts(rng.random_range(0..=1), vec![ask]);
        asked.ttl = Some(Duration::from_secs(20));
        let lease = match patiently(|| client.acquire(&asked)) {
            Ok(lease) => lease,
            Err(e) => {
                let request = asked.request_id;
                log.say(&if no_room(&e) {
                    format!("refused {request}")
                } else {
                    format!("complaint answer: acquire {request}: {e}")
                });
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
        };
        log.say(&format!("ack {} {}", asked.request_id, lease.id));
        match attach(&client, lease.handle()) {
            Ok(attached) => {
                let span = Duration::from_millis(rng.random_range(20..200));
                use_and_release(&client, &attached, span, &mut did, log)?;
            }
            Err(e) => log.say(&format!(
                "complaint lost: {} could not be attached: {e}",
                lease.id
            )),
        }
    }
    let Did { renewals, releases } = did;
    log.say(&format!("renewals {renewals}\nreleases {releases}"));
    Ok(())
}

/// Attaches; if the answer to an earlier try was lost with the daemon, the fence has risen already.
fn attach(client: &blocking::Client, lease: LeaseRef) -> evenkeel_client::Result<Attached> {
    match patiently(|| client.attach(lease)) {
        Err(Error::Fenced { .. }) => {
            let now = patiently(|| client.lease(lease.lease_id))?;
            patiently(|| client.attach(now.handle()))
        }
        other => other,
    }
}

/// Holds a context and renews for `span`, then gives everything back.
fn use_and_release(
    client: &blocking::Client,
    attached: &Attached,
    span: Duration,
    did: &mut Did,
    log: &mut Log,
) -> anyhow::Result<()> {
    let (id, cpus) = (attached.lease.id, attached.lease.target.cpus.to_string());
    let gpu = context(attached, "acquire")?;
    let mark = log.dir.join(format!("core-{}-{id}", std::process::id()));
    match active(client, id) {
        Ok(()) if !cpus.is_empty() => fs::write(&mark, cpus)?,
        Ok(()) => {}
        Err(e) => log.say(&format!("complaint answer: {e}")),
    }
    let end = Instant::now() + span;
    while Instant::now() < end {
        match patiently(|| client.renew(&[attached.lease.handle()])) {
            Ok(r) if r.iter().all(|r| r.status == RenewalStatus::Renewed) => did.renewals += 1,
            other => log.say(&format!("complaint lost: renewal of {id}: {other:?}")),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = fs::remove_file(&mark);
    drop(gpu);
    match patiently(|| client.release(attached.lease.handle())) {
        Ok(_) => did.releases += 1,
        Err(e) => log.say(&format!("complaint lost: release of {id}: {e}")),
    }
    Ok(())
}

/// Waits until the daemon has bound us.
fn active(client: &blocking::Client, id: u64) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match patiently(|| client.lease(id)) {
            Ok(l) if l.phase == evenkeel_client::LeasePhase::Active => return Ok(()),
            Ok(l) if start.elapsed() > ACTIVE_WITHIN => {
                return Err(format!("lease {id} is {} for ever", l.phase.as_str()));
            }
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(format!("lease {id} cannot be looked at: {e}")),
        }
    }
}

fn resized(args: &WorkerArgs, log: &mut Log) -> anyhow::Result<()> {
    let client = client(&args.socket)?;
    let stage = if args.index == 0 { "gen" } else { "train" };
    let asked = LeaseRequest::worker("pull", stage, 0)
        .resize(ResizeMode::Live)
        .ttl(Duration::from_secs(20));
    let worker = client.hold(
        &asked,
        GuardOptions {
            heartbeat: Some(Duration::from_millis(50)),
            ..GuardOptions::default()
        },
    )?;
    log.say(&format!(
        "ack {} {}",
        asked.request_id, worker.attached.lease.id
    ));
    let gpu = context(&worker.attached, stage)?.context("the stage has no GPU share")?;
    let mut resizes = 0u64;
    while !log.stopped() {
        match worker.guard.wait_event(Duration::from_millis(50)) {
            Some(GuardEvent::Directive(d)) if d.kind == DirectiveKind::Target => {
                let share = d.target.gpus.first().context("a target without a share")?;
                gpu.resize(share.cap_sms)?;
                worker.guard.acknowledge(d.generation, d.target);
                resizes += 1;
            }
            Some(GuardEvent::State(GuardState::Lost(why))) => {
                log.say(&format!(
                    "complaint lost: the {stage} worker's lease: {why:?}"
                ));
                break;
            }
            _ => {}
        }
    }
    drop(gpu);
    drop(worker);
    log.say(&format!("resizes {resizes}"));
    Ok(())
}

fn pull(args: &WorkerArgs, log: &Log) -> anyhow::Result<()> {
    let client = client(&args.socket)?;
    let mut n = 0u32;
    while !log.stopped() {
        n += 1;
        let (a, b) = if n.is_multiple_of(2) {
            (1.0, 2.0)
        } else {
            (2.0, 1.0)
        };
        // A call in which the daemon is killed may fail; the next one pulls again.
        let _ = profiles(&client, a, b);
        let _ = patiently(|| replan(&client));
        std::thread::sleep(Duration::from_millis(150));
    }
    Ok(())
}
