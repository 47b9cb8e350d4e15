//! The load generator: closed-loop clients that acquire and release, streams that renew, and a server without a
//! ledger that answers at once (the ceiling of the transport, for each shape of load its own).
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::lease_service_client::LeaseServiceClient;
use hdrhistogram::Histogram;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use crate::daemon::program;

/// What a load did.
pub(crate) struct Figures {
    done: u64,
    span: Duration,
    micros: Histogram<u64>,
    grants: Histogram<u64>,
    /// Renewals that did not count.
    pub(crate) lost: u64,
}

impl Figures {
    pub(crate) fn new(span: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            done: 0,
            span,
            micros: Histogram::new(3)?,
            grants: Histogram::new(3)?,
            lost: 0,
        })
    }
    pub(crate) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.done += other.done;
        self.lost += other.lost;
        self.micros.add(&other.micros)?;
        self.grants.add(&other.grants)?;
        Ok(())
    }
    /// Operations, or renewals.
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }
    /// Operations a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.span.as_secs_f64()
    }
    /// Median latency in milliseconds.
    pub(crate) fn p50_ms(&self) -> f64 {
        self.micros.value_at_quantile(0.5) as f64 / 1e3
    }
    /// Median latency of grants alone, in milliseconds.
    pub(crate) fn grant_p50_ms(&self) -> f64 {
        self.grants.value_at_quantile(0.5) as f64 / 1e3
    }
    /// 99th percentile in milliseconds.
    pub(crate) fn p99_ms(&self) -> f64 {
        self.micros.value_at_quantile(0.99) as f64 / 1e3
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0}/s, p50 {:.2} ms, p99 {:.2} ms",
            self.per_second(),
            self.p50_ms(),
            self.p99_ms()
        )
    }
}

/// A connection of its own, as another process would have.
pub(crate) async fn channel(socket: &Path) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    endpoint
        .connect()
        .await
        .with_context(|| format!("cannot connect to {}", socket.display()))
}

/// The same for leases.
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<LeaseServiceClient<Channel>> {
    Ok(LeaseServiceClient::new(channel(socket).await?))
}

/// What each request asks for: cores, SMs and bytes.
const CORES: u32 = 2;
const SMS: u32 = 8;
const BYTES: u64 = 1 << 30;

/// A request for two cores, eight SMs and a gibibyte.
pub(crate) fn request() -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        request_id: Uuid::now_v7().to_string(),
        cores: CORES,
        gpus: vec![pb::GpuRequest {
            gpu: None,
            sms: SMS,
            percent: 0,
            memory_bytes: BYTES,
        }],
        unenforced: true,
        ..Default::default()
    }
}

/// Whether a grant has all that was asked for.
fn is_whole(lease: &pb::Lease) -> bool {
    let Some(target) = &lease.target else {
        return false;
    };
    let cores = target.cores.parse::<evenkeel_client::CpuList>();
    let [share] = target.gpus.as_slice() else {
        return false;
    };
    cores.is_ok_and(|c| c.len() == CORES as usize)
        && share.guarantee_sms == SMS
        && share.memory_bytes == BYTES
}

/// Closed-loop clients: each acquires, releases, and so on.
pub(crate) struct Load {
    pub(crate) socket: PathBuf,
    pub(crate) clients: usize,
    /// That they share; as many as clients: each has its own.
    pub(crate) connections: usize,
    pub(crate) span: Duration,
}

impl Load {
    pub(crate) async fn run(self) -> anyhow::Result<Figures> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(connect(&self.socket).await?);
        }
        let turns = connections.iter().cycle().take(self.clients);
        let tasks = turns
            .map(|connection| tokio::spawn(client(connection.clone(), self.span)))
            .collect();
        all(tasks, self.span).await
    }
}

async fn client(
    mut client: LeaseServiceClient<Channel>,
    span: Duration,
) -> anyhow::Result<Figures> {
    let mut figures = Figures::new(span)?;
    let end = Instant::now() + span;
    while Instant::now() < end {
        let start = Instant::now();
        let lease = client
            .acquire_lease(request())
            .await?
            .into_inner()
            .lease
            .context("no lease in the answer")?;
        let micros = start.elapsed().as_micros() as u64;
        figures.micros.record(micros)?;
        figures.grants.record(micros)?;
        ensure!(
            is_whole(&lease),
            "a grant is not what was asked for: {lease:?}"
        );
        let start = Instant::now();
        client
            .release_lease(pb::ReleaseLeaseRequest {
                lease_id: lease.id,
                fence: lease.fence,
            })
            .await?;
        figures.micros.record(start.elapsed().as_micros() as u64)?;
        figures.done += 2;
    }
    Ok(figures)
}

/// Streams that hold leases and renew them.
pub(crate) struct Renewals {
    streams: Vec<(LeaseServiceClient<Channel>, Vec<pb::LeaseRef>)>,
}

impl Renewals {
    /// Acquires `leases` leases for each of `streams` streams.
    pub(crate) async fn hold(socket: &Path, streams: usize, leases: usize) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for _ in 0..streams {
            let mut client = connect(socket).await?;
            let mut held = Vec::new();
            for _ in 0..leases {
                let lease = client
                    .acquire_lease(request())
                    .await?
                    .into_inner()
                    .lease
                    .context("no lease")?;
                held.push(pb::LeaseRef {
                    lease_id: lease.id,
                    fence: lease.fence,
                });
            }
            all.push((client, held));
        }
        Ok(Self { streams: all })
    }
    /// So many renewals a second over all streams, evenly. The latency of a frame counts from when it was due: a stall
    /// counts against every frame that it keeps waiting.
    pub(crate) async fn paced(self, per_second: u64, span: Duration) -> anyhow::Result<Figures> {
        let leases: usize = self.streams.iter().map(|(_, l)| l.len()).sum();
        let gap = Duration::from_secs_f64(leases as f64 / per_second as f64);
        let frames = (span.as_secs_f64() / gap.as_secs_f64()).round() as u32;
        let mut streams = Vec::new();
        for (client, leases) in self.streams {
            streams.push(Stream::open(client, leases, 1, span).await?);
        }
        let (start, of) = (tokio::time::Instant::now(), streams.len() as f64);
        let mut tasks = Vec::new();
        for (i, stream) in streams.into_iter().enumerate() {
            let first = start + gap.mul_f64(i as f64 / of);
            tasks.push(tokio::spawn(paced(stream, first, gap, frames)));
        }
        all(tasks, span).await
    }
    /// As many as go, with `window` frames under way on each stream.
    pub(crate) async fn flood(self, window: usize, span: Duration) -> anyhow::Result<Figures> {
        let mut tasks = Vec::new();
        for (client, leases) in self.streams {
            tasks.push(tokio::spawn(flood(client, leases, window, span)));
        }
        all(tasks, span).await
    }
}

async fn all(
    tasks: Vec<tokio::task::JoinHandle<anyhow::Result<Figures>>>,
    span: Duration,
) -> anyhow::Result<Figures> {
    let mut all = Figures::new(span)?;
    for task in tasks {
        all.add(&task.await??)?;
    }
    Ok(all)
}

/// A session, and the frame that renews all its leases.
pub(crate) struct Stream {
    frames: mpsc::Sender<pb::SessionRequest>,
    answers: tonic::Streaming<pb::SessionResponse>,
    frame: pb::SessionRequest,
    pub(crate) figures: Figures,
}

impl Stream {
    pub(crate) async fn open(
        mut client: LeaseServiceClient<Channel>,
        renew: Vec<pb::LeaseRef>,
        window: usize,
        span: Duration,
    ) -> anyhow::Result<Self> {
        let (frames, outgoing) = mpsc::channel(window);
        let answers = client.session(ReceiverStream::new(outgoing)).await?;
        let frame = pb::SessionRequest {
            renew,
            ..Default::default()
        };
        Ok(Self {
            frames,
            answers: answers.into_inner(),
            frame,
            figures: Figures::new(span)?,
        })
    }
    pub(crate) async fn send(&self) -> anyhow::Result<()> {
        let sent = self.frames.send(self.frame.clone()).await;
        sent.context("the daemon closed the stream")
    }
    /// Waits for the next answer to a renewal that counts from `since`.
    pub(crate) async fn answered(&mut self, since: Instant) -> anyhow::Result<()> {
        let answer = loop {
            let answer = self.answers.message().await?;
            let answer = answer.context("the daemon ended the stream")?;
            // Others are directives only.
            if !answer.renewals.is_empty() {
                break answer;
            }
        };
        let micros = since.elapsed().as_micros() as u64;
        self.figures.micros.record(micros)?;
        let renewed = |r: &&pb::RenewResult| r.status() == pb::RenewStatus::Renewed;
        let counted = answer.renewals.iter().filter(renewed).count() as u64;
        self.figures.done += counted;
        self.figures.lost += self.frame.renew.len() as u64 - counted;
        Ok(())
    }
}

async fn paced(
    mut stream: Stream,
    first: tokio::time::Instant,
    gap: Duration,
    frames: u32,
) -> anyhow::Result<Figures> {
    for n in 0..frames {
        // All frames are sent, late ones at once: none is left out because the daemon was slow.
        let due = first + gap * n;
        tokio::time::sleep_until(due).await;
        stream.send().await?;
        stream.answered(due.into_std()).await?;
    }
    Ok(stream.figures)
}

async fn flood(
    client: LeaseServiceClient<Channel>,
    leases: Vec<pb::LeaseRef>,
    window: usize,
    span: Duration,
) -> anyhow::Result<Figures> {
    let mut stream = Stream::open(client, leases, window, span).await?;
    let mut sent = std::collections::VecDeque::new();
    let end = Instant::now() + span;
    loop {
        while sent.len() < window && Instant::now() < end {
            sent.push_back(Instant::now());
            stream.send().await?;
        }
        let Some(since) = sent.pop_front() else {
            return Ok(stream.figures);
        };
        stream.answered(since).await?;
    }
}

/// A server that grants without a ledger.
pub(crate) struct Ceiling {
    dir: tempfile::TempDir,
    child: Child,
}

/// Arguments of the server.
#[derive(clap::Args)]
pub(crate) struct CeilingArgs {
    /// Where it listens.
    #[arg(long)]
    socket: PathBuf,
}

impl Ceiling {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("ceiling.sock");
        let child = Command::new(program("accept")?)
            .arg("ceiling")
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()?;
        let server = Self { dir, child };
        let start = Instant::now();
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            ensure!(
                start.elapsed() < Duration::from_secs(10),
                "the server without a ledger did not start"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(server)
    }
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("ceiling.sock")
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Grants without a ledger until it is killed.
pub(crate) async fn ceiling(args: CeilingArgs) -> anyhow::Result<bool> {
    evenkeel_bench::bare::serve(&args.socket).await?;
    Ok(true)
}
