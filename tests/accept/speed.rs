//! Line 6: how fast durable leases and renewals are, with both ends on this machine. Beside each figure stands its
//! share of a ceiling: what the same load gets from a server without a ledger.
use std::path::Path;
use std::time::Duration;

use evenkeel_bench::machine;

use crate::Run;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::{Ceiling, Figures, Load, Renewals};
use crate::row::Row;
use crate::trail;

const CLIENTS: usize = 64;
/// Runs of the first figure; the median counts.
const RUNS: usize = 3;
/// Renewals a second that run beside the clients: on so many streams, with so many leases each.
const BESIDE: u64 = 5_000;
const STREAMS: usize = 50;
const LEASES: usize = 10;
/// The flood: streams, and frames under way on each.
const FLOODS: usize = 8;
const WINDOW: usize = 4;

/// The same loads, on whatever answers.
struct Loads<'a> {
    socket: &'a Path,
    span: Duration,
}

impl Loads<'_> {
    async fn clients(&self, clients: usize) -> anyhow::Result<Figures> {
        let load = Load {
            socket: self.socket.to_owned(),
            clients,
            connections: clients,
            span: self.span,
        };
        load.run().await
    }
    /// The clients, and the renewals that run beside them.
    async fn both(&self) -> anyhow::Result<(Figures, Figures)> {
        let renewals = Renewals::hold(self.socket, STREAMS, LEASES).await?;
        let beat = tokio::spawn(renewals.paced(BESIDE, self.span));
        let loaded = self.clients(CLIENTS).await?;
        Ok((loaded, beat.await??))
    }
    async fn flood(&self) -> anyhow::Result<Figures> {
        let renewals = Renewals::hold(self.socket, FLOODS, LEASES).await?;
        renewals.flood(WINDOW, self.span).await
    }
}

/// What each shape of load gets without a ledger.
struct Ceilings {
    many: Figures,
    one: Figures,
    both: (Figures, Figures),
    flood: Figures,
}

impl Ceilings {
    async fn measure(span: Duration) -> anyhow::Result<Self> {
        let server = Ceiling::start().await?;
        let socket = server.socket();
        let loads = Loads {
            socket: &socket,
            span,
        };
        Ok(Self {
            many: loads.clients(CLIENTS).await?,
            one: loads.clients(1).await?,
            both: loads.both().await?,
            flood: loads.flood().await?,
        })
    }
    fn row(&self) -> Row {
        let Self {
            many,
            one,
            both: (loaded, renewed),
            flood,
        } = self;
        let shown = format!(
            "{CLIENTS} clients {many}; one client {one}; {CLIENTS} clients with {BESIDE} renewals a second {loaded} \
             (renewals {renewed}); renewals alone {flood}"
        );
        Row::beside("the ceilings: the same loads without a ledger", Ok(shown))
    }
}

/// A figure and its share of the ceiling of its own kind.
fn share(figures: &Figures, ceiling: &Figures) -> String {
    let share = 100.0 * figures.per_second() / ceiling.per_second();
    format!(
        "{figures}; {share:.0} % of the ceiling of {:.0}/s",
        ceiling.per_second()
    )
}

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let span = Duration::from_secs(if run.short { 1 } else { 10 });
    let ceilings = Ceilings::measure(span).await?;
    let daemon = Daemon::start(SYNTHETIC).await?;
    let socket = daemon.socket();
    let loads = Loads {
        socket: &socket,
        span,
    };
    let mut rows = vec![ceilings.row(), durable(machine::filesystem(&daemon.dir))];
    rows.extend(many(&loads, &ceilings.many).await?);
    let one = loads.clients(1).await?;
    rows.push(Row::new(
        "one client in series",
        "p50 ≤ 1 ms",
        share(&one, &ceilings.one),
        one.done() > 0 && one.p50_ms() <= 1.0,
    ));

    let (loaded, renewed) = loads.both().await?;
    let wanted = BESIDE * span.as_secs();
    let beats = renewed.p99_ms() <= 10.0 && renewed.lost == 0 && renewed.done() == wanted;
    rows.push(Row::new(
        "64 clients while 5,000 renewals a second run",
        "≥ 8,000/s; renewal p99 ≤ 10 ms (from when each was due), none lost",
        format!(
            "{}; renewals {renewed} (without a ledger p99 {:.2} ms), {} of {wanted} renewed, {} lost",
            share(&loaded, &ceilings.both.0),
            ceilings.both.1.p99_ms(),
            renewed.done(),
            renewed.lost
        ),
        loaded.per_second() >= 8_000.0 && beats,
    ));

    let flood = loads.flood().await?;
    rows.push(Row::new(
        "renewals, ten leases a message",
        "≥ 300,000/s",
        format!("{}, {} lost", share(&flood, &ceilings.flood), flood.lost),
        flood.per_second() >= 300_000.0 && flood.lost == 0,
    ));
    Ok(rows)
}

/// Where the ledger lies: on a disk, or the commits beside this row are not durable.
pub(crate) fn durable(file_system: anyhow::Result<String>) -> Row {
    let found = file_system.map(|name| {
        let durable = !["tmpfs", "ramfs"].contains(&name.as_str());
        (format!("the ledger is on {name}"), durable)
    });
    Row::judged("operations are durable", "on a disk, not in memory", found)
}

/// The first figure, three times; and whether the ledger has all that was acknowledged.
async fn many(loads: &Loads<'_>, ceiling: &Figures) -> anyhow::Result<[Row; 2]> {
    let before = trail::newest(loads.socket).await?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(loads.clients(CLIENTS).await?);
    }
    let written = trail::newest(loads.socket).await? - before;
    let done: u64 = runs.iter().map(Figures::done).sum();
    runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let median = &runs[RUNS / 2];
    let each: Vec<_> = runs
        .iter()
        .map(|r| format!("{:.0}/s", r.per_second()))
        .collect();
    Ok([
        Row::new(
            "64 clients, durable operations (acquire or release; cores, SMs and bytes)",
            "≥ 10,000/s, p99 ≤ 20 ms (median of three)",
            format!("{} ({})", share(median, ceiling), each.join(", ")),
            median.per_second() >= 10_000.0 && median.p99_ms() <= 20.0,
        ),
        Row::new(
            "of them in the ledger's audit trail",
            "all",
            format!("{written} events of {done} operations"),
            done > 0 && written >= done,
        ),
    ])
}
