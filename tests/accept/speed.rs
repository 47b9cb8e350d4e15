//! Line 6: how fast durable leases and renewals are, with both ends on this machine.
use std::time::Duration;

use crate::Run;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::{Ceiling, Figures, Load, Renewals};
use crate::row::Row;

pub(crate) async fn measure(run: Run) -> anyhow::Result<Vec<Row>> {
    let span = Duration::from_secs(if run.short { 1 } else { 10 });
    let load = |socket, clients| Load {
        socket,
        clients,
        span,
    };
    let ceiling = {
        let server = Ceiling::start().await?;
        load(server.socket(), 64).run().await?
    };
    let mut rows = vec![Row::beside(
        "no database at all, 64 clients (the gRPC ceiling)",
        ceiling.to_string(),
    )];
    let share = |f: &Figures| {
        format!(
            "{f}; {:.0} % of the ceiling",
            100.0 * f.per_second() / ceiling.per_second()
        )
    };

    let daemon = Daemon::start(SYNTHETIC).await?;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(load(daemon.socket(), 64).run().await?);
    }
    runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let median = &runs[1];
    rows.push(Row::new(
        "64 clients, durable operations (acquire or release; cores, SMs and bytes)",
        "≥ 10,000/s, p99 ≤ 20 ms (median of three)",
        share(median),
        median.per_second() >= 10_000.0 && median.p99_ms() <= 20.0,
    ));
    let one = load(daemon.socket(), 1).run().await?;
    rows.push(Row::new(
        "one client in series",
        "p50 ≤ 1 ms",
        share(&one),
        one.p50_ms() <= 1.0,
    ));

    let renewals = Renewals::hold(&daemon.socket(), 50, 10).await?;
    let beat = tokio::spawn(renewals.paced(5_000, span));
    let loaded = load(daemon.socket(), 64).run().await?;
    let renewed = beat.await??;
    let beats = renewed.p99_ms() <= 10.0 && renewed.lost == 0 && renewed.per_second() >= 4_900.0;
    rows.push(Row::new(
        "64 clients while 5,000 renewals a second run",
        "≥ 8,000/s; renewal p99 ≤ 10 ms, none lost",
        format!(
            "{}; renewals {renewed}, {} lost",
            share(&loaded),
            renewed.lost
        ),
        loaded.per_second() >= 8_000.0 && beats,
    ));

    let flood = Renewals::hold(&daemon.socket(), 8, 10)
        .await?
        .flood(4, span)
        .await?;
    rows.push(Row::new(
        "renewals, ten leases a message",
        "≥ 300,000/s",
        format!("{flood}, {} lost", flood.lost),
        flood.per_second() >= 300_000.0 && flood.lost == 0,
    ));
    Ok(rows)
}
