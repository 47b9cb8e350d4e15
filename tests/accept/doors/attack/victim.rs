//! The other tenant: a process of its own user that renews many leases on a schedule, on streams and by calls, and
//! takes and gives back one now and again. It counts whatever was not as it should be.
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use evenkeel_proto::v1 as pb;
use hdrhistogram::Histogram;
use pb::lease_service_client::LeaseServiceClient;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::load::{connect, request};

/// Streams, each on a connection of its own.
const STREAMS: usize = 8;
/// Callers without a stream, likewise.
const CALLERS: usize = 4;
/// Leases of each.
const LEASES: usize = 25;
/// Between two renewals: ten before the time is over.
const EVERY: Duration = Duration::from_secs(1);
/// Life of a lease without a renewal.
const TTL: Duration = Duration::from_secs(10);
/// Between a grant and the next.
const TAKES_EVERY: Duration = Duration::from_millis(500);
/// A grant that is refused for the daemon's being busy is asked for again so often.
const PATIENCE: u32 = 100;

/// Arguments of the victim.
#[derive(clap::Args)]
pub(crate) struct VictimArgs {
    #[arg(long)]
    socket: PathBuf,
}

/// What it went through.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Suffered {
    /// Renewals that counted.
    pub(super) renewed: u64,
    /// Renewals that the daemon answered otherwise.
    pub(super) lost: u64,
    /// Streams that broke and calls that failed: what a client would have tried again.
    pub(super) failed: u64,
    /// The first of all that.
    pub(super) first: Option<String>,
    /// How long a renewal took from when it was due.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) worst_ms: f64,
    /// Leases taken and given back meanwhile.
    pub(super) granted: u64,
    /// Times that it was told to come back.
    pub(super) told_to_wait: u64,
    /// Grants and releases that failed for good.
    pub(super) not_granted: u64,
    /// How long they took, told to wait or not.
    pub(super) grant_p99_ms: f64,
    /// Leases that were active at the end, of those that it had.
    pub(super) alive: u64,
    pub(super) held: u64,
}

struct Diary {
    micros: Mutex<Histogram<u64>>,
    grants: Mutex<Histogram<u64>>,
    first: Mutex<Option<String>>,
    renewed: AtomicU64,
    lost: AtomicU64,
    failed: AtomicU64,
    granted: AtomicU64,
    told_to_wait: AtomicU64,
    not_granted: AtomicU64,
    over: AtomicBool,
}

impl Diary {
    async fn bad(&self, counter: &AtomicU64, n: u64, what: String) {
        counter.fetch_add(n, Ordering::Relaxed);
        self.first.lock().await.get_or_insert(what);
    }
    fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
    async fn answered(&self, due: Instant, results: &[pb::RenewResult], of: usize) {
        let micros = due.elapsed().as_micros() as u64;
        let _ = self.micros.lock().await.record(micros);
        let good = results
            .iter()
            .filter(|r| r.status() == pb::RenewStatus::Renewed)
            .count();
        self.renewed.fetch_add(good as u64, Ordering::Relaxed);
        if good < of {
            let bad = results
                .iter()
                .find(|r| r.status() != pb::RenewStatus::Renewed);
            self.bad(
                &self.lost,
                (of - good) as u64,
                format!("a renewal: {bad:?}"),
            )
            .await;
        }
    }
}

/// The victim's process: says "ready", goes on until its standard input ends, and then says what it went through.
#[allow(clippy::print_stdout, reason = "the harness reads what it says")]
pub(crate) async fn victim(args: VictimArgs) -> anyhow::Result<bool> {
    let diary = Arc::new(Diary {
        micros: Mutex::new(Histogram::new(3)?),
        grants: Mutex::new(Histogram::new(3)?),
        first: Mutex::default(),
        renewed: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        granted: AtomicU64::new(0),
        told_to_wait: AtomicU64::new(0),
        not_granted: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let (mut tasks, mut all) = (tokio::task::JoinSet::new(), Vec::new());
    for i in 0..STREAMS + CALLERS {
        let (client, leases) = hold(&args.socket).await?;
        all.extend(leases.clone());
        let diary = diary.clone();
        let first = Instant::now() + EVERY.mul_f64(i as f64 / (STREAMS + CALLERS) as f64);
        if i < STREAMS {
            tasks.spawn(async move { on_a_stream(client, leases, first, &diary).await });
        } else {
            tasks.spawn(async move { by_calls(client, leases, first, &diary).await });
        }
    }
    let (client, of) = (connect(&args.socket).await?, diary.clone());
    tasks.spawn(async move { takes_and_gives(client, &of).await });
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    diary.over.store(true, Ordering::Relaxed);
    while tasks.join_next().await.is_some() {}
    let mut suffered = told(&diary).await;
    let mut client = connect(&args.socket).await?;
    for lease in &all {
        let lease_id = lease.lease_id;
        let found = client
            .get_lease(pb::GetLeaseRequest { lease_id })
            .await?
            .into_inner();
        let alive = found
            .lease
            .is_some_and(|l| l.phase() == pb::LeasePhase::Active);
        suffered.alive += u64::from(alive);
        suffered.held += 1;
    }
    println!("{}", serde_json::to_string(&suffered)?);
    Ok(true)
}

async fn told(diary: &Diary) -> Suffered {
    let of = Ordering::Relaxed;
    let (micros, grants) = (diary.micros.lock().await, diary.grants.lock().await);
    let ms = |h: &Histogram<u64>, q| h.value_at_quantile(q) as f64 / 1e3;
    Suffered {
        renewed: diary.renewed.load(of),
        lost: diary.lost.load(of),
        failed: diary.failed.load(of),
        first: diary.first.lock().await.clone(),
        p50_ms: ms(&micros, 0.5),
        p99_ms: ms(&micros, 0.99),
        worst_ms: ms(&micros, 1.0),
        granted: diary.granted.load(of),
        told_to_wait: diary.told_to_wait.load(of),
        not_granted: diary.not_granted.load(of),
        grant_p99_ms: ms(&grants, 0.99),
        ..Suffered::default()
    }
}

type Client = LeaseServiceClient<Channel>;

async fn hold(socket: &std::path::Path) -> anyhow::Result<(Client, Vec<pb::LeaseRef>)> {
    let mut client = connect(socket).await?;
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        let asked = pb::AcquireLeaseRequest {
            ttl_ms: TTL.as_millis() as u64,
            ..request()
        };
        let lease = client.acquire_lease(asked).await?.into_inner().lease;
        let lease = lease.context("no lease in the answer")?;
        leases.push(pb::LeaseRef {
            lease_id: lease.id,
            fence: lease.fence,
        });
    }
    Ok((client, leases))
}

/// A stream; if it breaks, that is counted, and there is a new one.
async fn on_a_stream(client: Client, leases: Vec<pb::LeaseRef>, first: Instant, diary: &Diary) {
    let mut due = first;
    while !diary.over() {
        if let Err(e) = renew_on(client.clone(), &leases, &mut due, diary).await {
            diary
                .bad(&diary.failed, 1, format!("a stream: {e:#}"))
                .await;
        }
    }
}

async fn renew_on(
    mut client: Client,
    leases: &[pb::LeaseRef],
    due: &mut Instant,
    diary: &Diary,
) -> anyhow::Result<()> {
    let (frames, outgoing) = mpsc::channel(1);
    let answers = client.session(ReceiverStream::new(outgoing));
    let mut answers = tokio::time::timeout(TTL, answers).await??.into_inner();
    while !diary.over() {
        tokio::time::sleep_until(*due).await;
        let frame = pb::SessionRequest {
            renew: leases.to_vec(),
            ..Default::default()
        };
        frames.send(frame).await.context("the stream is closed")?;
        loop {
            let Ok(answer) = tokio::time::timeout(TTL, answers.message()).await else {
                bail!("no answer within {TTL:?}");
            };
            let answer = answer?.context("the stream ended")?;
            if !answer.renewals.is_empty() {
                diary.answered(*due, &answer.renewals, leases.len()).await;
                break;
            }
        }
        *due += EVERY;
    }
    Ok(())
}

async fn by_calls(mut client: Client, leases: Vec<pb::LeaseRef>, first: Instant, diary: &Diary) {
    let mut due = first;
    while !diary.over() {
        tokio::time::sleep_until(due).await;
        let renew = pb::RenewLeasesRequest {
            leases: leases.clone(),
        };
        match tokio::time::timeout(TTL, client.renew_leases(renew)).await {
            Ok(Ok(answer)) => {
                let results = answer.into_inner().results;
                diary.answered(due, &results, leases.len()).await;
            }
            Ok(Err(status)) => {
                diary
                    .bad(&diary.failed, 1, format!("a call: {status}"))
                    .await;
            }
            Err(_) => {
                diary
                    .bad(
                        &diary.failed,
                        1,
                        format!("a call: no answer within {TTL:?}"),
                    )
                    .await;
            }
        }
        due += EVERY;
    }
}

async fn takes_and_gives(mut client: Client, diary: &Diary) {
    while !diary.over() {
        let start = Instant::now();
        match once(&mut client, diary).await {
            Ok(()) => {
                diary.granted.fetch_add(1, Ordering::Relaxed);
                let micros = start.elapsed().as_micros() as u64;
                let _ = diary.grants.lock().await.record(micros);
            }
            Err(e) => {
                diary
                    .bad(&diary.not_granted, 1, format!("a grant: {e:#}"))
                    .await;
            }
        }
        tokio::time::sleep(TAKES_EVERY).await;
    }
}

/// As a client does: who is told to come back comes back, with the same request id.
async fn once(client: &mut Client, diary: &Diary) -> anyhow::Result<()> {
    let asked = request();
    for _ in 0..PATIENCE {
        match client.acquire_lease(asked.clone()).await {
            Ok(answer) => {
                let lease = answer
                    .into_inner()
                    .lease
                    .context("no lease in the answer")?;
                let release = pb::ReleaseLeaseRequest {
                    lease_id: lease.id,
                    fence: lease.fence,
                };
                client.release_lease(release).await?;
                return Ok(());
            }
            Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                diary.told_to_wait.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(status) => return Err(status.into()),
        }
    }
    ensure!(false, "told to wait {PATIENCE} times");
    Ok(())
}
