//! The load generator. A *closed loop* asks for the next thing when the last is answered, and finds the most that goes;
//! an *open loop* works off a schedule that the server does not slow down, and takes each latency from when the request
//! was due: a server that stalls is charged for everything that it keeps waiting (no coordinated omission).
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::{Mutex, mpsc};

use crate::peers::{Client, Held, Renewer};
use crate::report::Latency;
use crate::usage::Usage;

/// What one thing was.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Operations: a grant, a release, or so many renewals.
    pub ops: u64,
    /// Renewals that did not count.
    pub lost: u64,
    /// It was a grant.
    pub grant: bool,
    /// When it was asked for, where that was before the call that ended it.
    pub since: Option<Instant>,
}

/// Something that is done again and again over one connection.
#[tonic::async_trait]
pub trait Work: Send {
    /// Does the next thing.
    async fn once(&mut self) -> anyhow::Result<Done>;
    /// Gives back what it holds.
    async fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
    /// Tries beyond the first, so far: compare-and-swap that lost.
    fn retries(&self) -> u64 {
        0
    }
}

/// A client that is granted a lease, gives it back, and so on.
pub struct Turns {
    client: Box<dyn Client>,
    held: Option<Held>,
}

impl Turns {
    /// Over this connection.
    pub fn new(client: Box<dyn Client>) -> Self {
        Self { client, held: None }
    }
}

#[tonic::async_trait]
impl Work for Turns {
    async fn once(&mut self) -> anyhow::Result<Done> {
        let grant = self.held.is_none();
        match self.held.take() {
            None => self.held = Some(self.client.grant().await?),
            Some(held) => self.client.release(held).await?,
        }
        Ok(Done {
            ops: 1,
            grant,
            ..Done::default()
        })
    }
    async fn finish(&mut self) -> anyhow::Result<()> {
        match self.held.take() {
            Some(held) => self.client.release(held).await,
            None => Ok(()),
        }
    }
    fn retries(&self) -> u64 {
        self.client.retries()
    }
}

/// How leases are renewed.
#[derive(Clone, Copy, Debug)]
pub struct Renewing {
    /// Connections that share the live leases.
    pub connections: usize,
    /// Leases that one message renews.
    pub message: usize,
    /// Messages under way on each connection.
    pub window: usize,
}

/// A process that renews its leases in turn, some messages ahead of their answers.
pub struct Beats {
    renewer: Box<dyn Renewer>,
    messages: Vec<Vec<Held>>,
    next: usize,
    window: usize,
    sent: VecDeque<(Instant, u64)>,
}

impl Beats {
    /// These leases, over this connection.
    pub fn new(renewer: Box<dyn Renewer>, leases: &[Held], how: Renewing) -> Self {
        let messages = leases.chunks(how.message.max(1));
        Self {
            renewer,
            messages: messages.map(<[Held]>::to_vec).collect(),
            next: 0,
            window: how.window.max(1),
            sent: VecDeque::new(),
        }
    }

    async fn answered(&mut self) -> anyhow::Result<Done> {
        let (since, leases) = self.sent.pop_front().context("nothing is under way")?;
        let ops = self.renewer.answered().await?;
        Ok(Done {
            ops,
            lost: leases - ops,
            grant: false,
            since: Some(since),
        })
    }
}

#[tonic::async_trait]
impl Work for Beats {
    async fn once(&mut self) -> anyhow::Result<Done> {
        while self.sent.len() < self.window {
            let at = self.next % self.messages.len().max(1);
            self.next += 1;
            let message = self.messages.get(at).context("no lease to renew")?;
            self.sent.push_back((Instant::now(), message.len() as u64));
            self.renewer.send(message).await?;
        }
        self.answered().await
    }
    async fn finish(&mut self) -> anyhow::Result<()> {
        while !self.sent.is_empty() {
            self.answered().await?;
        }
        Ok(())
    }
}

/// What a load did.
pub struct Figures {
    /// Operations that ended in the measured time.
    pub ops: u64,
    /// Arrivals in it, where there was a schedule.
    pub arrived: u64,
    /// Renewals that did not count.
    pub lost: u64,
    /// Tries beyond the first.
    pub retries: u64,
    /// The measured time.
    pub span: Duration,
    /// The server at its end, and the CPU time that the server took in it.
    pub usage: Usage,
    /// See above.
    pub cpu: Duration,
    all: Histogram<u64>,
    grants: Histogram<u64>,
}

impl Figures {
    fn new(span: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            ops: 0,
            arrived: 0,
            lost: 0,
            retries: 0,
            span,
            usage: Usage::default(),
            cpu: Duration::ZERO,
            all: Histogram::new(3)?,
            grants: Histogram::new(3)?,
        })
    }

    /// Counts what is done in time; the latency is recorded in any case.
    fn record(&mut self, since: Instant, end: Instant, done: Done) -> anyhow::Result<()> {
        let now = Instant::now();
        let since = done.since.unwrap_or(since);
        let micros = u64::try_from(now.saturating_duration_since(since).as_micros())?;
        self.all.record(micros)?;
        if done.grant {
            self.grants.record(micros)?;
        }
        if now <= end {
            self.ops += done.ops;
        }
        self.lost += done.lost;
        Ok(())
    }

    /// One that was due and got no answer by `gave_up`: it has waited at least so long.
    fn unserved(&mut self, due: Instant, gave_up: Instant) -> anyhow::Result<()> {
        let waited = gave_up.saturating_duration_since(due);
        self.all.record(u64::try_from(waited.as_micros())?)?;
        Ok(())
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.ops += other.ops;
        self.lost += other.lost;
        self.retries += other.retries;
        self.all.add(&other.all)?;
        self.grants.add(&other.grants)?;
        Ok(())
    }

    /// Operations a second.
    pub fn per_second(&self) -> f64 {
        self.ops as f64 / self.span.as_secs_f64()
    }

    /// Of all operations (of messages, where renewals were measured).
    pub fn latency(&self) -> Latency {
        Latency::of(&self.all)
    }

    /// Of grants alone.
    pub fn grants(&self) -> Latency {
        Latency::of(&self.grants)
    }
}

/// How long a load runs.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before anything is counted.
    pub warm_up: Duration,
    /// And counted.
    pub span: Duration,
}

type Looks<'a> = &'a (dyn Fn() -> Usage + Sync);

/// As much as goes: each asks again when it has its answer.
///
/// # Errors
/// The first that a client meets: a load with errors measures nothing.
pub async fn closed(
    works: Vec<Box<dyn Work>>,
    times: Times,
    usage: Looks<'_>,
) -> anyhow::Result<Figures> {
    let begin = Instant::now() + times.warm_up;
    let end = begin + times.span;
    let mut tasks = tokio::task::JoinSet::new();
    for work in works {
        tasks.spawn(one_of_closed(work, begin, end, times.span));
    }
    tokio::time::sleep_until(begin.into()).await;
    let before = usage();
    tokio::time::sleep_until(end.into()).await;
    let after = usage();
    let mut all = Figures::new(times.span)?;
    while let Some(one) = tasks.join_next().await {
        all.add(&one??)?;
    }
    (all.usage, all.cpu) = (after, after - before);
    Ok(all)
}

async fn one_of_closed(
    mut work: Box<dyn Work>,
    begin: Instant,
    end: Instant,
    span: Duration,
) -> anyhow::Result<Figures> {
    let mut figures = Figures::new(span)?;
    let mut retries = 0;
    loop {
        let start = Instant::now();
        if start >= end {
            break;
        }
        if start < begin {
            retries = work.retries();
        }
        let done = work.once().await?;
        // What began in the warm-up is nobody's; what ends after the end has a latency, and is not counted.
        if start >= begin {
            figures.record(start, end, done)?;
        }
    }
    figures.retries = work.retries() - retries;
    work.finish().await?;
    Ok(figures)
}

/// Arrivals by a schedule: a Poisson process of this rate, worked off by whichever connection is free. After the end
/// those that still wait have as long again for their latencies; only what was answered by the end counts. Whoever has
/// no connection by then enters with what he has waited so far: left out, the slowest server would look the better.
///
/// # Errors
/// The first that a client meets.
pub async fn open(
    works: Vec<Box<dyn Work>>,
    arrivals_per_second: f64,
    times: Times,
    seed: u64,
    usage: Looks<'_>,
) -> anyhow::Result<Figures> {
    let (send, due) = mpsc::unbounded_channel();
    let due = Arc::new(Mutex::new(due));
    let start = Instant::now() + Duration::from_millis(10);
    let begin = start + times.warm_up;
    let end = begin + times.span;
    let give_up = end + times.span;
    // A thread of its own: the runtime's timer goes by milliseconds, and would be measured instead of the server.
    let clock = std::thread::Builder::new()
        .name("arrivals".into())
        .spawn(move || arrive(&send, arrivals_per_second, [start, begin, end], seed))?;
    let mut tasks = tokio::task::JoinSet::new();
    for work in works {
        tasks.spawn(one_of_open(work, due.clone(), [begin, end, give_up]));
    }
    tokio::time::sleep_until(begin.into()).await;
    let before = usage();
    tokio::time::sleep_until(end.into()).await;
    let after = usage();
    let mut all = Figures::new(times.span)?;
    while let Some(one) = tasks.join_next().await {
        all.add(&one??)?;
    }
    let arrived = clock.join().ok();
    all.arrived = arrived.context("the clock of the arrivals broke")?;
    let mut due = due.lock().await;
    while let Ok(since) = due.try_recv() {
        if since >= begin {
            all.unserved(since, give_up)?;
        }
    }
    (all.usage, all.cpu) = (after, after - before);
    Ok(all)
}

/// Sends each arrival when it is due, as the time at which it was; how many were due from `begin` on.
fn arrive(
    send: &mpsc::UnboundedSender<Instant>,
    per_second: f64,
    [start, begin, end]: [Instant; 3],
    seed: u64,
) -> u64 {
    let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
    let mut due = start;
    let mut counted = 0;
    loop {
        // Gaps of a Poisson process are exponential.
        let gap = -(1.0 - random.random::<f64>()).ln() / per_second;
        due += Duration::from_secs_f64(gap);
        if due >= end {
            return counted;
        }
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        if send.send(due).is_err() {
            return counted; // the clients have met an error
        }
        counted += u64::from(due >= begin);
    }
}

async fn one_of_open(
    mut work: Box<dyn Work>,
    due: Arc<Mutex<mpsc::UnboundedReceiver<Instant>>>,
    [begin, end, give_up]: [Instant; 3],
) -> anyhow::Result<Figures> {
    let mut figures = Figures::new(end - begin)?;
    loop {
        let Some(since) = due.lock().await.recv().await else {
            break;
        };
        if Instant::now() >= give_up {
            if since >= begin {
                figures.unserved(since, give_up)?;
            }
            break;
        }
        let done = work.once().await?;
        if since >= begin {
            figures.record(since, end, done)?;
        }
    }
    figures.retries = work.retries();
    work.finish().await?;
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something that takes so long each time.
    struct Slow(Duration);

    #[tonic::async_trait]
    impl Work for Slow {
        async fn once(&mut self) -> anyhow::Result<Done> {
            tokio::time::sleep(self.0).await;
            Ok(Done {
                ops: 1,
                grant: true,
                ..Done::default()
            })
        }
    }

    const TIMES: Times = Times {
        warm_up: Duration::from_millis(50),
        span: Duration::from_millis(400),
    };

    #[tokio::test]
    async fn an_open_loop_charges_a_slow_server_for_those_that_wait() {
        // One connection, 20 ms an answer, an arrival every 10 ms: half of them go, and the queue grows.
        let slow = || -> Vec<Box<dyn Work>> { vec![Box::new(Slow(Duration::from_millis(20)))] };
        let usage = Usage::default;
        let figures = open(slow(), 100.0, TIMES, 7, &usage).await.unwrap();
        assert!(figures.ops > 0);
        assert!(figures.per_second() < 60.0, "{}", figures.per_second());
        // All that arrived are counted, and none is left out of the latencies: about 40, of which 20 were answered in
        // the time and 20 in as long again.
        assert!(figures.ops < figures.arrived, "{}", figures.arrived);
        assert_eq!(figures.all.len(), figures.arrived);
        let waited = figures.latency().max_ms;
        assert!(waited > 100.0, "the last arrival waited {waited} ms only");
        // A closed loop sees nothing of that: it does not ask while it waits.
        let figures = closed(slow(), TIMES, &usage).await.unwrap();
        assert!(figures.latency().p50_ms < 100.0);
    }

    #[tokio::test]
    async fn who_gets_no_answer_at_all_has_waited_until_the_end() {
        // An answer takes longer than anybody waits for.
        let slow: Vec<Box<dyn Work>> = vec![Box::new(Slow(TIMES.span * 2))];
        let figures = open(slow, 100.0, TIMES, 7, &Usage::default).await.unwrap();
        assert!(figures.arrived > 10, "{}", figures.arrived);
        assert_eq!(figures.all.len(), figures.arrived);
        let p50 = figures.latency().p50_ms;
        assert!(p50 > 400.0, "half of them waited {p50} ms only");
    }

    #[test]
    fn arrivals_come_at_their_rate_and_the_same_for_all() {
        let times = |seed| {
            let (send, mut due) = mpsc::unbounded_channel();
            let start = Instant::now();
            let end = start + Duration::from_millis(200);
            let counted = arrive(&send, 5_000.0, [start, start, end], seed);
            drop(send);
            let mut all = Vec::new();
            while let Ok(at) = due.try_recv() {
                all.push(at - start);
            }
            assert_eq!(counted, all.len() as u64);
            all
        };
        let all = times(1);
        assert!((800..1_200).contains(&all.len()), "{}", all.len());
        assert_eq!(all, times(1));
        assert_ne!(all, times(2));
    }
}
