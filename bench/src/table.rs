//! The report as Markdown: what a person reads.
use std::fmt::Write as _;

use crate::peers::Kind;
use crate::report::{Found, Point, Report};

/// Clients at which peers are compared.
pub const COMPARED_AT: usize = 64;

/// The whole.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("{}\n\n", report.machine);
    if report.short {
        out += "**A short run, to see that the harness works. These figures say nothing.**\n\n";
    }
    let _ = writeln!(
        out,
        "Both ends on this machine; {:.1} s a measurement, the median of {} (in brackets the slowest and the fastest \
         repeat); an operation is a grant or a release, durable before it is answered.\n",
        report.seconds, report.repeats
    );
    if !report.busy.is_empty() {
        let busy = report.busy.join("; ");
        let _ = writeln!(out, "**The machine was not idle before: {busy}.**\n");
    }
    for note in &report.notes {
        let _ = writeln!(out, "{note}\n");
    }
    let skipped = report.peers.iter().filter(|p| !p.skipped.is_empty());
    for peer in skipped {
        let _ = writeln!(out, "Skipped: {}: {}.\n", peer.kind.name(), peer.skipped);
    }
    closed(&mut out, report);
    compared(&mut out, report);
    renewals(&mut out, report);
    open(&mut out, report);
    servers(&mut out, report);
    out
}

fn measured(report: &Report) -> impl Iterator<Item = &Found> {
    report.peers.iter().filter(|p| p.skipped.is_empty())
}

fn spread(point: &Point) -> String {
    let least = point.runs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = point.runs.iter().copied().fold(0.0, f64::max);
    if point.runs.len() < 2 {
        return format!("{:.0}", point.per_second);
    }
    format!("{:.0} ({least:.0}–{most:.0})", point.per_second)
}

fn latencies(point: &Point) -> String {
    let l = &point.latency;
    format!("{:.2} | {:.2} | {:.2}", l.p50_ms, l.p99_ms, l.p999_ms)
}

fn closed(out: &mut String, report: &Report) {
    if measured(report).all(|p| p.closed.is_empty()) {
        return;
    }
    *out += "### Grants and releases, as fast as they go\n\n\
        | peer | clients | operations/s | p50 ms | p99 ms | p99.9 ms | grant p50 ms | retries/op | server CPU µs/op |\n\
        |---|---|---|---|---|---|---|---|---|\n";
    for peer in measured(report) {
        for p in &peer.closed {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {:.2} | {:.1} | {:.0} |",
                peer.kind.name(),
                p.size,
                spread(p),
                latencies(p),
                p.grants.p50_ms,
                p.retries,
                p.cpu_us
            );
        }
    }
    out.push('\n');
}

/// What a peer's figure is beside Evenkeel's, and why, where it is ahead.
fn compared(out: &mut String, report: &Report) {
    let Some(ours) = report.peer(Kind::EvenkeelUnix) else {
        return;
    };
    let _ = writeln!(
        out,
        "### Beside Evenkeel on its Unix socket\n\n\
         How many times Evenkeel's rate is the peer's: grants and releases at {COMPARED_AT} clients; renewals, ten a \
         message. Under 1.0 the peer is ahead. Renewals are not equally durable: Evenkeel and etcd keep them in memory, \
         and a restart gives each live lease its whole TTL again; Redis with `appendfsync always` and PostgreSQL write each \
         to the disk.\n\n\
         | peer | grants and releases | renewals | what it does less or otherwise |\n|---|---|---|---|"
    );
    for peer in measured(report).filter(|p| p.kind != ours.kind) {
        let grants = times(ours.at(COMPARED_AT), peer.at(COMPARED_AT));
        let live = ours.renewals.last().map_or(0, |p| p.size);
        let renewals = times(ours.renewing(live), peer.renewing(live));
        let _ = writeln!(
            out,
            "| {} | {grants} | {renewals} | {} |",
            peer.kind.name(),
            peer.kind.less()
        );
    }
    out.push('\n');
}

fn times(ours: Option<&Point>, theirs: Option<&Point>) -> String {
    match (ours, theirs) {
        (Some(a), Some(b)) if b.per_second > 0.0 => {
            let times = a.per_second / b.per_second;
            let ahead = if times < 1.0 { ", it is ahead" } else { "" };
            format!("{times:.2} ×{ahead}")
        }
        _ => "–".into(),
    }
}

fn renewals(out: &mut String, report: &Report) {
    if measured(report).all(|p| p.renewals.is_empty()) {
        return;
    }
    let _ = writeln!(
        out,
        "### Renewals: {}\n\nOn the disk before they are answered: those of Redis and PostgreSQL. In memory: Evenkeel's and \
         etcd's, by design; Redis's where it is synced each second.\n",
        report.renewing
    );
    *out += "| peer | live leases | renewals/s | p50 ms | p99 ms | p99.9 ms | lost | server CPU µs/renewal |\n\
        |---|---|---|---|---|---|---|---|\n";
    for peer in measured(report) {
        for p in &peer.renewals {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {:.1} |",
                peer.kind.name(),
                p.size,
                spread(p),
                latencies(p),
                p.lost,
                p.cpu_us
            );
        }
    }
    out.push('\n');
}

fn open(out: &mut String, report: &Report) {
    if measured(report).all(|p| p.open.is_empty()) {
        return;
    }
    *out += "### Latency at a fixed rate (open loop, from when each was due)\n\n\
        | peer | asked/s | arrived/s | answered in time/s | p50 ms | p99 ms | p99.9 ms |\n|---|---|---|---|---|---|---|\n";
    for peer in measured(report) {
        for p in &peer.open {
            let _ = writeln!(
                out,
                "| {} | {:.0} | {:.0} | {:.0} | {} |",
                peer.kind.name(),
                p.asked_per_second,
                p.arrived_per_second,
                p.per_second,
                latencies(p)
            );
        }
    }
    out.push('\n');
}

fn servers(out: &mut String, report: &Report) {
    *out += "### The servers\n\n\
        Memory is the most at the end of a run: resident, summed over the server's processes (and with shared pages \
        counted once). Recovery: from the start of the process after SIGKILL under load until it grants.\n\n\
        | peer | version | memory MiB | recovery ms | acknowledged leases lost |\n|---|---|---|---|---|\n";
    for peer in measured(report) {
        let points = peer.closed.iter().chain(&peer.open).chain(&peer.renewals);
        let memory = points
            .map(|p| p.memory)
            .fold(Default::default(), crate::usage::Memory::most);
        let recovery = peer.recovery.map_or_else(
            || "– | –".to_owned(),
            |r| format!("{:.0} | {} of {}", r.ms, r.lost, r.acknowledged),
        );
        let _ = writeln!(
            out,
            "| {} | {} | {:.0} ({:.0}) | {recovery} |",
            peer.kind.name(),
            peer.version,
            memory.rss_mib,
            memory.pss_mib
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: Kind, per_second: f64) -> Found {
        let point = Point {
            size: COMPARED_AT,
            per_second,
            ..Point::default()
        };
        Found {
            closed: vec![point],
            ..Found::new(kind)
        }
    }

    #[test]
    fn who_is_ahead_is_said_with_the_reason_and_who_is_missing_with_his_name() {
        let mut missing = Found::new(Kind::PostgresSkip);
        missing.skipped = "it is not installed".into();
        let report = Report {
            machine: "a machine".into(),
            disk: "ext4".into(),
            short: false,
            seconds: 5.0,
            repeats: 1,
            renewing: String::new(),
            busy: vec![],
            notes: vec![],
            peers: vec![
                found(Kind::EvenkeelUnix, 100.0),
                found(Kind::Redis, 400.0),
                found(Kind::EtcdDisjoint, 20.0),
                missing,
            ],
        };
        let table = markdown(&report);
        let redis = format!(
            "| Redis | 0.25 ×, it is ahead | – | {} |",
            Kind::Redis.less()
        );
        assert!(table.contains(&redis), "{table}");
        assert!(
            table.contains("| etcd, disjoint keys | 5.00 × |"),
            "{table}"
        );
        assert!(
            table.contains("Skipped: PostgreSQL, SKIP LOCKED: it is not installed."),
            "{table}"
        );
        assert!(!table.contains("| PostgreSQL"), "{table}");
    }
}
