//! Measures peer after peer, in another order at each repeat, and keeps the median of each figure.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use evenkeel_bench::idle;
use evenkeel_bench::load::{Beats, Figures, Renewing, Times, Turns, Work, closed, open};
use evenkeel_bench::peers::{Held, Kind, Peer, Started, start};
use evenkeel_bench::report::{Found, Point, Recovery, Report};
use evenkeel_bench::usage::Usage;

use crate::recover::recover;

/// Connections that work off the arrivals of an open loop.
const OPEN_CLIENTS: usize = 64;
/// Clients that acquire the leases to be renewed.
const HOLDERS: usize = 16;

/// What is measured, and how.
pub(crate) struct Run {
    pub(crate) times: Times,
    pub(crate) repeats: usize,
    pub(crate) clients: Vec<usize>,
    pub(crate) rates: Vec<f64>,
    pub(crate) live: Vec<usize>,
    pub(crate) renewing: Renewing,
    pub(crate) recovery: bool,
    pub(crate) idle_wait: Duration,
    pub(crate) base: PathBuf,
}

/// All repeats of one peer.
struct Repeats {
    found: Found,
    closed: Vec<Vec<Point>>,
    open: Vec<Vec<Point>>,
    renewals: Vec<Vec<Point>>,
    recoveries: Vec<Recovery>,
}

pub(crate) async fn all(run: &Run, kinds: &[Kind], report: &mut Report) -> anyhow::Result<()> {
    let mut peers: Vec<Repeats> = kinds.iter().map(|k| Repeats::new(run, *k)).collect();
    for repeat in 0..run.repeats {
        for at in 0..peers.len() {
            // Rotated: whoever comes first finds a cool machine, and that should not always be the same one.
            let at = (at + repeat) % kinds.len();
            let Some(peer) = peers.get_mut(at).filter(|p| p.found.skipped.is_empty()) else {
                continue;
            };
            let name = peer.found.kind.name();
            eprintln!(
                "bench-leases: repeat {} of {}: {name}",
                repeat + 1,
                run.repeats
            );
            let busy = peer
                .repeat(run)
                .await
                .with_context(|| format!("{name} was not measured"))?;
            let told =
                |(what, busy)| format!("{name}, repeat {}, {what} ({busy:.0} %)", repeat + 1);
            report.busy.extend(busy.into_iter().map(told));
        }
    }
    report.peers = peers.into_iter().map(Repeats::median).collect();
    Ok(())
}

impl Repeats {
    fn new(run: &Run, kind: Kind) -> Self {
        let grants = |n| vec![vec![]; if kind.renews_only() { 0 } else { n }];
        Self {
            found: Found::new(kind),
            closed: grants(run.clients.len()),
            open: grants(run.rates.len()),
            renewals: vec![vec![]; run.live.len()],
            recoveries: vec![],
        }
    }

    /// One repeat of one peer, on a new server. Before which measurements the machine was not idle, and how busy it was.
    async fn repeat(&mut self, run: &Run) -> anyhow::Result<Vec<(String, f64)>> {
        let (mut peer, version) = match start(self.found.kind, &run.base).await? {
            Started::Up(peer, version) => (peer, version),
            Started::Skipped(why) => {
                eprintln!("bench-leases: skipped: {why}");
                self.found.skipped = why;
                return Ok(Vec::new());
            }
        };
        self.found.version = version;
        let pid = peer.server().pid();
        let mut one = One {
            run,
            peer: peer.as_mut(),
            pid,
            patience: run.idle_wait,
            busy: Vec::new(),
        };
        for (points, clients) in self.closed.iter_mut().zip(&run.clients) {
            points.push(one.closed(*clients).await?);
        }
        for (points, rate) in self.open.iter_mut().zip(&run.rates) {
            let point = one.open(*rate).await?;
            let keeps_up = point.keeps_up();
            points.push(point);
            if !keeps_up {
                break;
            }
        }
        if self.found.kind.is_whole() {
            let mut held = Vec::new();
            for (points, live) in self.renewals.iter_mut().zip(&run.live) {
                points.push(one.renewals(&mut held, *live).await?);
            }
            if run.recovery && self.found.kind.is_durable() {
                one.idle("recovery").await?;
                self.recoveries.push(recover(one.peer).await?);
            }
        }
        Ok(one.busy)
    }

    fn median(self) -> Found {
        let mut found = self.found;
        let medians = |all: Vec<Vec<Point>>| all.into_iter().filter_map(median).collect();
        found.closed = medians(self.closed);
        found.renewals = medians(self.renewals);
        // A rate that one repeat did not reach is not judged by the others.
        let repeats = self.open.first().map_or(0, Vec::len);
        let whole = self.open.into_iter().filter(|p| p.len() == repeats);
        found.open = whole.filter_map(median).collect();
        let mut recoveries = self.recoveries;
        let lost = recoveries.iter().map(|r| r.lost).max().unwrap_or(0);
        recoveries.sort_by(|a, b| a.ms.total_cmp(&b.ms));
        // The median time, and the most that was lost.
        let middle = recoveries.get(recoveries.len() / 2).copied();
        found.recovery = middle.map(|r| Recovery { lost, ..r });
        found
    }
}

/// The repeat with the median rate, and all rates.
fn median(mut points: Vec<Point>) -> Option<Point> {
    let runs: Vec<f64> = points.iter().map(|p| p.per_second).collect();
    // At a fixed rate all rates are the same; there the latency is what differs.
    if points.iter().any(|p| p.asked_per_second > 0.0) {
        points.sort_by(|a, b| a.latency.p99_ms.total_cmp(&b.latency.p99_ms));
    } else {
        points.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    }
    let mut point = points.get(points.len() / 2)?.clone();
    point.runs = runs;
    Some(point)
}

/// One server.
struct One<'a> {
    run: &'a Run,
    peer: &'a mut dyn Peer,
    pid: u32,
    /// How long the machine is still waited for.
    patience: Duration,
    /// Before what it was not idle, and how busy it was, in percent.
    busy: Vec<(String, f64)>,
}

impl One<'_> {
    async fn turns(&self, clients: usize) -> anyhow::Result<Vec<Box<dyn Work>>> {
        let mut works: Vec<Box<dyn Work>> = Vec::new();
        for number in 0..clients {
            works.push(Box::new(Turns::new(self.peer.client(number).await?)));
        }
        Ok(works)
    }

    fn usage(&self) -> impl Fn() -> Usage + Sync + use<> {
        let pid = self.pid;
        move || Usage::of(pid)
    }

    /// Waits for the machine to be idle, for so long as it has; how busy it is then, in percent.
    async fn idle(&mut self, before: &str) -> anyhow::Result<f64> {
        let start = Instant::now();
        let busy = idle::wait(self.patience).await?;
        // All measurements of a repeat share it: on a machine that is never idle the run has to end, too.
        self.patience = self.patience.saturating_sub(start.elapsed());
        if !idle::is_idle(busy) {
            eprintln!("bench-leases: the machine is {busy:.0} % busy before {before}");
            self.busy.push((before.to_owned(), busy));
        }
        Ok(busy)
    }

    async fn closed(&mut self, clients: usize) -> anyhow::Result<Point> {
        let what = format!("{clients} clients");
        let busy_percent = self.idle(&what).await?;
        let works = self.turns(clients).await?;
        let figures = closed(works, self.run.times, &self.usage()).await?;
        let point = Point {
            busy_percent,
            ..point(clients, 0.0, &figures)
        };
        say(&what, &point);
        Ok(point)
    }

    async fn open(&mut self, rate: f64) -> anyhow::Result<Point> {
        let what = format!("{rate:.0} arrivals a second");
        let busy_percent = self.idle(&what).await?;
        let works = self.turns(OPEN_CLIENTS).await?;
        // The same arrivals for every peer.
        let seed = rate.to_bits();
        let figures = open(works, rate, self.run.times, seed, &self.usage()).await?;
        let point = Point {
            busy_percent,
            ..point(OPEN_CLIENTS, rate, &figures)
        };
        say(&what, &point);
        Ok(point)
    }

    /// Renews `live` leases, of which `held` are there already.
    async fn renewals(&mut self, held: &mut Vec<Held>, live: usize) -> anyhow::Result<Point> {
        self.hold(held, live).await?;
        let what = format!("renewals of {live} leases");
        let busy_percent = self.idle(&what).await?;
        let how = self.run.renewing;
        let mut works: Vec<Box<dyn Work>> = Vec::new();
        for leases in held.chunks(live.div_ceil(how.connections)) {
            let renewer = self.peer.renewer().await?;
            works.push(Box::new(Beats::new(renewer, leases, how)));
        }
        let figures = closed(works, self.run.times, &self.usage()).await?;
        let point = Point {
            busy_percent,
            ..point(live, 0.0, &figures)
        };
        say(&what, &point);
        Ok(point)
    }

    async fn hold(&self, held: &mut Vec<Held>, live: usize) -> anyhow::Result<()> {
        let missing = live.saturating_sub(held.len());
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..HOLDERS {
            let mut client = self.peer.client(number).await?;
            let share = missing / HOLDERS + usize::from(number < missing % HOLDERS);
            tasks.spawn(async move {
                let mut held = Vec::new();
                for _ in 0..share {
                    held.push(client.grant().await?);
                }
                anyhow::Ok(held)
            });
        }
        while let Some(some) = tasks.join_next().await {
            held.extend(some??);
        }
        Ok(())
    }
}

fn point(size: usize, rate: f64, figures: &Figures) -> Point {
    let ops = figures.ops.max(1) as f64;
    Point {
        size,
        asked_per_second: rate,
        arrived_per_second: figures.arrived as f64 / figures.span.as_secs_f64(),
        per_second: figures.per_second(),
        latency: figures.latency(),
        grants: figures.grants(),
        retries: figures.retries as f64 / ops,
        lost: figures.lost,
        cpu_us: figures.cpu.as_secs_f64() * 1e6 / ops,
        memory: figures.usage.memory(),
        busy_percent: 0.0,
        runs: vec![],
    }
}

fn say(what: &str, point: &Point) {
    eprintln!(
        "bench-leases:   {what}: {:.0}/s, p50 {:.2} ms, p99 {:.2} ms",
        point.per_second, point.latency.p50_ms, point.latency.p99_ms
    );
}
