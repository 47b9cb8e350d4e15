//! What a run of `bench-leases` found, as it is written to JSON, and read again by `accept`.
use std::path::Path;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::peers::Kind;
use crate::usage::Memory;

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub p50_ms: f64,
    /// Of a hundred, the slowest.
    pub p99_ms: f64,
    /// Of a thousand.
    pub p999_ms: f64,
    /// Of all.
    pub max_ms: f64,
}

impl Latency {
    /// From microseconds.
    pub fn of(micros: &Histogram<u64>) -> Self {
        let ms = |q| micros.value_at_quantile(q) as f64 / 1e3;
        Self {
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            max_ms: micros.max() as f64 / 1e3,
        }
    }
}

/// One measurement: the median run, by its rate, of all repeats.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Point {
    /// Clients; live leases where renewals were measured.
    pub size: usize,
    /// Arrivals a second that were asked for; 0 in a closed loop.
    pub asked_per_second: f64,
    /// Those that really arrived: a Poisson process is as it falls. 0 in a closed loop.
    pub arrived_per_second: f64,
    /// Operations a second (renewals a second), answered in the measured time.
    pub per_second: f64,
    /// Of operations; of messages of ten renewals.
    pub latency: Latency,
    /// Of grants alone, where there were some.
    pub grants: Latency,
    /// Tries beyond the first, per operation.
    pub retries: f64,
    /// Renewals that did not count.
    pub lost: u64,
    /// CPU time of the server per operation, in microseconds.
    pub cpu_us: f64,
    /// Of the server at the end of the run.
    pub memory: Memory,
    /// How busy the machine was before the run, in percent.
    pub busy_percent: f64,
    /// The rates of all repeats.
    pub runs: Vec<f64>,
}

/// Whoever keeps up with arrivals answers so much of them in time.
const KEEPS_UP: f64 = 0.97;

impl Point {
    /// Whether an open loop's arrivals were answered in time.
    pub fn keeps_up(&self) -> bool {
        self.per_second >= KEEPS_UP * self.arrived_per_second
    }
}

/// After SIGKILL under load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Recovery {
    /// From the start of the new process until it granted a lease.
    pub ms: f64,
    /// Leases that were acknowledged before the kill.
    pub acknowledged: usize,
    /// Of them, those that were gone afterwards.
    pub lost: usize,
}

/// All about one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Which.
    pub kind: Kind,
    /// What its server says of itself.
    pub version: String,
    /// Why it was not measured; empty: it was.
    pub skipped: String,
    /// Closed loops of grants and releases, by clients.
    pub closed: Vec<Point>,
    /// Open loops of grants and releases, by rate.
    pub open: Vec<Point>,
    /// Closed loops of renewals, by live leases.
    pub renewals: Vec<Point>,
    /// After SIGKILL, the median by time.
    pub recovery: Option<Recovery>,
}

impl Found {
    /// Nothing yet.
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            version: String::new(),
            skipped: String::new(),
            closed: Vec::new(),
            open: Vec::new(),
            renewals: Vec::new(),
            recovery: None,
        }
    }
    /// The closed loop of so many clients.
    pub fn at(&self, clients: usize) -> Option<&Point> {
        self.closed.iter().find(|p| p.size == clients)
    }
    /// The renewals of so many live leases.
    pub fn renewing(&self, live: usize) -> Option<&Point> {
        self.renewals.iter().find(|p| p.size == live)
    }
}

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The machine, in words.
    pub machine: String,
    /// The file system that the servers' folders are on.
    pub disk: String,
    /// A run to see that the harness works.
    pub short: bool,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Of each, so many; the median counts.
    pub repeats: usize,
    /// Connections, leases a message and messages under way of renewals, in words.
    pub renewing: String,
    /// Measurements before which the machine was not idle.
    pub busy: Vec<String>,
    /// What else a reader has to know.
    pub notes: Vec<String>,
    /// All peers that were asked for.
    pub peers: Vec<Found>,
}

impl Report {
    /// Whether what is written there is on a disk: in memory nothing is durable, and every figure is another's.
    pub fn is_on_disk(&self) -> bool {
        !["tmpfs", "ramfs"].contains(&self.disk.as_str())
    }
    /// A peer that was measured.
    pub fn peer(&self, kind: Kind) -> Option<&Found> {
        self.peers
            .iter()
            .find(|p| p.kind == kind && p.skipped.is_empty())
    }
    /// From its JSON.
    ///
    /// # Errors
    /// When the file is none.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
    }
}
