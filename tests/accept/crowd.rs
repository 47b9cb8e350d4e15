//! A crowd of processes that hold leases: each has a connection and a stream of its own, renews all its leases in one
//! frame on a schedule, and begins with that as soon as it has them. Lines doors.2 and doors.3.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::lease_service_client::LeaseServiceClient;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::load::{Figures, Stream, connect, request};

/// Processes that start at the same time: a crowd comes in through the door, not through the wall.
const STARTING: usize = 64;

/// What it is made of.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) streams: usize,
    /// Of each.
    pub(crate) leases: usize,
    pub(crate) ttl: Duration,
    /// Between two frames of a stream.
    pub(crate) gap: Duration,
}

/// When its figures count: what is due from the one to the other.
#[derive(Default)]
struct Times {
    begin: OnceLock<Instant>,
    end: OnceLock<Instant>,
}

/// A crowd that holds its leases and renews them.
pub(crate) struct Crowd {
    tasks: JoinSet<anyhow::Result<Figures>>,
    times: Arc<Times>,
    /// All its leases.
    pub(crate) held: BTreeSet<u64>,
}

/// Leases of one core each: ten thousand fit into the pool.
pub(crate) async fn acquire(
    client: &mut LeaseServiceClient<Channel>,
    leases: usize,
    ttl: Duration,
) -> anyhow::Result<Vec<pb::LeaseRef>> {
    let mut held = Vec::new();
    for _ in 0..leases {
        let ask = pb::AcquireLeaseRequest {
            cores: 1,
            ttl_ms: ttl.as_millis() as u64,
            ..request()
        };
        let answer = client.acquire_lease(ask).await?.into_inner();
        let lease = answer.lease.context("no lease in the answer")?;
        held.push(pb::LeaseRef {
            lease_id: lease.id,
            fence: lease.fence,
        });
    }
    Ok(held)
}

impl Crowd {
    /// Waits until all have their leases.
    pub(crate) async fn gather(socket: &Path, shape: Shape) -> anyhow::Result<Self> {
        let times = Arc::new(Times::default());
        let door = Arc::new(Semaphore::new(STARTING));
        let (say, mut hear) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for _ in 0..shape.streams {
            let one = One {
                socket: socket.to_owned(),
                shape,
                times: times.clone(),
            };
            tasks.spawn(one.live(door.clone(), say.clone()));
        }
        drop(say);
        let mut held = BTreeSet::new();
        for _ in 0..shape.streams {
            let Some(leases) = hear.recv().await else {
                break;
            };
            held.extend(leases);
        }
        if held.len() < shape.streams * shape.leases {
            // One of them has met an error: say which.
            while let Some(one) = tasks.join_next().await {
                one??;
            }
            anyhow::bail!("not all of the crowd have their leases");
        }
        Ok(Self { tasks, times, held })
    }

    /// From now on its renewals count.
    pub(crate) fn count(&self) {
        let _ = self.times.begin.set(Instant::now());
    }

    /// Ends the renewing, and says what was counted in `span`.
    pub(crate) async fn end(mut self, span: Duration) -> anyhow::Result<Figures> {
        let _ = self.times.end.set(Instant::now());
        let mut all = Figures::new(span)?;
        while let Some(one) = self.tasks.join_next().await {
            all.add(&one??)?;
        }
        Ok(all)
    }
}

/// One of them.
struct One {
    socket: PathBuf,
    shape: Shape,
    times: Arc<Times>,
}

impl One {
    async fn live(
        self,
        door: Arc<Semaphore>,
        say: tokio::sync::mpsc::UnboundedSender<Vec<u64>>,
    ) -> anyhow::Result<Figures> {
        let shape = self.shape;
        let seat = door.acquire().await?;
        let mut client = connect(&self.socket).await?;
        let held = acquire(&mut client, shape.leases, shape.ttl).await?;
        let first = Instant::now();
        let ids = held.iter().map(|l| l.lease_id).collect();
        let mut stream = Stream::open(client, held, 1, shape.gap).await?;
        drop(seat);
        ensure!(say.send(ids).is_ok(), "nobody hears");
        for n in 1.. {
            let due = first + shape.gap * n;
            tokio::time::sleep_until(due.into()).await;
            if self.times.end.get().is_some_and(|end| due >= *end) {
                break;
            }
            stream.send().await?;
            if self.times.begin.get().is_some_and(|begin| due >= *begin) {
                stream.answered(due).await?;
            } else {
                // The leases are held all the same; how fast that went while the crowd came in is not asked.
                let mut aside = Figures::new(shape.gap)?;
                std::mem::swap(&mut aside, &mut stream.figures);
                stream.answered(due).await?;
                let lost = stream.figures.lost;
                std::mem::swap(&mut aside, &mut stream.figures);
                stream.figures.lost += lost;
            }
        }
        Ok(stream.figures)
    }
}

/// The leases that the daemon has now.
pub(crate) async fn live(socket: &Path) -> anyhow::Result<BTreeSet<u64>> {
    let mut client = connect(socket).await?;
    let mut page = pb::ListLeasesRequest::default();
    let mut live = BTreeSet::new();
    loop {
        let answer = client.list_leases(page.clone()).await?.into_inner();
        live.extend(answer.leases.iter().map(|l| l.id));
        match answer.next_after_id {
            0 => return Ok(live),
            next => page.after_id = next,
        }
    }
}
