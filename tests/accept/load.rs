//! The load generator: closed-loop clients that acquire and release, streams that renew, and a server without a
//! ledger that answers at once (the ceiling of the transport).
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
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
    /// Renewals that did not count.
    pub(crate) lost: u64,
}

impl Figures {
    fn new(span: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            done: 0,
            span,
            micros: Histogram::new(3)?,
            lost: 0,
        })
    }
    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.done += other.done;
        self.lost += other.lost;
        self.micros.add(&other.micros)?;
        Ok(())
    }
    /// Operations a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.span.as_secs_f64()
    }
    /// Median latency in milliseconds.
    pub(crate) fn p50_ms(&self) -> f64 {
        self.micros.value_at_quantile(0.5) as f64 / 1e3
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
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<LeaseServiceClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let channel = endpoint
        .connect()
        .await
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    Ok(LeaseServiceClient::new(channel))
}

/// A request for two cores, eight SMs and a gibibyte.
pub(crate) fn request() -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        request_id: Uuid::now_v7().to_string(),
        cores: 2,
        gpus: vec![pb::GpuRequest {
            gpu: None,
            sms: 8,
            percent: 0,
            memory_bytes: 1 << 30,
        }],
        unenforced: true,
        ..Default::default()
    }
}

/// Closed-loop clients: each acquires, releases, and so on.
pub(crate) struct Load {
    pub(crate) socket: PathBuf,
    pub(crate) clients: usize,
    pub(crate) span: Duration,
}

impl Load {
    pub(crate) async fn run(self) -> anyhow::Result<Figures> {
        let mut tasks = Vec::new();
        for _ in 0..self.clients {
            tasks.push(tokio::spawn(client(
                connect(&self.socket).await?,
                self.span,
            )));
        }
        let mut all = Figures::new(self.span)?;
        for task in tasks {
            all.add(&task.await??)?;
        }
        Ok(all)
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
        figures.micros.record(start.elapsed().as_micros() as u64)?;
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
    /// So many renewals a second over all streams, evenly, and the latency of each frame.
    pub(crate) async fn paced(self, per_second: u64, span: Duration) -> anyhow::Result<Figures> {
        let leases: usize = self.streams.iter().map(|(_, l)| l.len()).sum();
        let gap = Duration::from_secs_f64(leases as f64 / per_second as f64);
        self.run(1, Some(gap), span).await
    }
    /// As many as go, with `window` frames under way on each stream.
    pub(crate) async fn flood(self, window: usize, span: Duration) -> anyhow::Result<Figures> {
        self.run(window, None, span).await
    }
    async fn run(
        self,
        window: usize,
        gap: Option<Duration>,
        span: Duration,
    ) -> anyhow::Result<Figures> {
        let mut tasks = Vec::new();
        for (i, (client, leases)) in self.streams.into_iter().enumerate() {
            let offset = gap.map_or(Duration::ZERO, |g| g.mul_f64(i as f64 / 50.0));
            tasks.push(tokio::spawn(stream(
                client,
                leases,
                window,
                gap.map(|g| (offset, g)),
                span,
            )));
        }
        let mut all = Figures::new(span)?;
        for task in tasks {
            all.add(&task.await??)?;
        }
        Ok(all)
    }
}

async fn stream(
    mut client: LeaseServiceClient<Channel>,
    leases: Vec<pb::LeaseRef>,
    window: usize,
    pace: Option<(Duration, Duration)>,
    span: Duration,
) -> anyhow::Result<Figures> {
    let (frames, outgoing) = mpsc::channel(window);
    let frame = pb::SessionRequest {
        renew: leases.clone(),
        ..Default::default()
    };
    let mut answers = client
        .session(ReceiverStream::new(outgoing))
        .await?
        .into_inner();
    let mut figures = Figures::new(span)?;
    let mut sent = std::collections::VecDeque::new();
    let end = Instant::now() + span;
    if let Some((offset, _)) = pace {
        tokio::time::sleep(offset).await;
    }
    let mut next = tokio::time::Instant::now();
    loop {
        while sent.len() < window && Instant::now() < end {
            if let Some((_, gap)) = pace {
                next += gap;
                tokio::time::sleep_until(next).await;
            }
            sent.push_back(Instant::now());
            frames
                .send(frame.clone())
                .await
                .context("the daemon closed the stream")?;
        }
        let Some(start) = sent.front().copied() else {
            return Ok(figures);
        };
        let answer = answers
            .message()
            .await?
            .context("the daemon ended the stream")?;
        if answer.renewals.is_empty() {
            continue; // directives only
        }
        sent.pop_front();
        figures.micros.record(start.elapsed().as_micros() as u64)?;
        let renewed = |r: &&pb::RenewResult| r.status() == pb::RenewStatus::Renewed;
        let counted = answer.renewals.iter().filter(renewed).count() as u64;
        figures.done += counted;
        figures.lost += leases.len() as u64 - counted;
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
            anyhow::ensure!(
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
    let listener = tokio::net::UnixListener::bind(&args.socket)?;
    let service =
        pb::lease_service_server::LeaseServiceServer::new(crate::load::bare::Bare::default());
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
    tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(incoming)
        .await?;
    Ok(true)
}

mod bare;
