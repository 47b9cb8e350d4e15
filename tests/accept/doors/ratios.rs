//! Line 1: grants, renewals and TLS against peers in one run: what `bench-leases` measures, judged.
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use evenkeel_bench::peers::Kind;
use evenkeel_bench::report::{Found, Report};

use crate::Run;
use crate::daemon::program;
use crate::row::Row;

const CLIENTS: usize = 64;
const LIVE: usize = 1_000;

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().to_owned();
    let short = run.short;
    tokio::task::spawn_blocking(move || bench(&out, short)).await??;
    let report = Report::read(&dir.path().join("leases.json"))?;
    let table = fs::read_to_string(dir.path().join("leases.md"))?;
    Ok(rows(&report, &table))
}

/// Runs the part of the benchmark that the line asks about. Its progress goes where ours goes.
fn bench(out: &Path, short: bool) -> anyhow::Result<()> {
    let mut command = std::process::Command::new(program("bench-leases")?);
    command
        .args(["--parts", "closed,renewals"])
        .args(["--clients", &CLIENTS.to_string()])
        .args(["--live", &LIVE.to_string()])
        .arg("--out")
        .arg(out)
        .stdout(std::process::Stdio::null());
    if short {
        command.arg("--short");
    }
    let status = command.status().context("cannot start bench-leases")?;
    ensure!(
        status.success(),
        "bench-leases ended with {status}; what it said is above"
    );
    Ok(())
}

/// A peer, or why it was not measured.
fn peer(report: &Report, kind: Kind) -> anyhow::Result<&Found> {
    let found = report.peers.iter().find(|p| p.kind == kind);
    let found = found.with_context(|| format!("{} is not in the report", kind.name()))?;
    ensure!(
        found.skipped.is_empty(),
        "{} was not measured: {}",
        kind.name(),
        found.skipped
    );
    Ok(found)
}

fn grants(report: &Report, kind: Kind) -> anyhow::Result<f64> {
    let point = peer(report, kind)?.at(CLIENTS);
    Ok(point.context("no figure at 64 clients")?.per_second)
}

fn renewals(report: &Report, kind: Kind) -> anyhow::Result<f64> {
    let point = peer(report, kind)?.renewing(LIVE);
    let point = point.context("no figure of renewals")?;
    ensure!(point.lost == 0, "{} of its renewals were lost", point.lost);
    Ok(point.per_second)
}

/// A figure of ours as so many times another.
fn times(
    ours: anyhow::Result<f64>,
    theirs: anyhow::Result<f64>,
    least: f64,
) -> anyhow::Result<(String, bool)> {
    let (ours, theirs) = (ours?, theirs?);
    let times = ours / theirs;
    Ok((
        format!("{times:.2} × ({ours:.0}/s beside {theirs:.0}/s)"),
        times >= least,
    ))
}

fn rows(report: &Report, table: &str) -> Vec<Row> {
    let grants = |kind| grants(report, kind);
    let renewals = |kind| renewals(report, kind);
    let mut rows = vec![
        Row::judged(
            "64 clients, grants and releases over TCP, beside etcd on disjoint keys",
            "≥ 3 times",
            times(grants(Kind::EvenkeelTcp), grants(Kind::EtcdDisjoint), 3.0),
        ),
        Row::judged(
            "the same beside etcd on one key",
            "≥ 10 times",
            times(grants(Kind::EvenkeelTcp), grants(Kind::EtcdOne), 10.0),
        ),
        Row::judged(
            "renewals over a Unix socket, ten leases a message, beside Redis's PEXPIRE, ten a message",
            "≥ 5 times",
            times(renewals(Kind::EvenkeelUnix), renewals(Kind::Redis), 5.0),
        ),
        Row::judged(
            "64 clients, durable grants and releases, beside the same build with the ledger off",
            "≥ 0.4 times",
            times(grants(Kind::EvenkeelUnix), grants(Kind::EvenkeelOff), 0.4),
        ),
        Row::beside(
            "the same beside the wire alone, with nothing behind it",
            times(grants(Kind::EvenkeelUnix), grants(Kind::EvenkeelBare), 0.0).map(|t| t.0),
        ),
        Row::judged(
            "64 clients, with mutual TLS beside plain TCP",
            "≥ 0.75 times (TLS costs under 25 %)",
            times(grants(Kind::EvenkeelTls), grants(Kind::EvenkeelTcp), 0.75),
        ),
    ];
    for kind in [Kind::Redis, Kind::PostgresSkip] {
        let what = format!("where {} is ahead, the table says so and why", kind.name());
        rows.push(Row::judged(&what, "it does", said(report, table, kind)));
    }
    if !report.busy.is_empty() {
        let busy = report.busy.join("; ");
        rows.push(Row::beside("the machine was not idle before", Ok(busy)));
    }
    rows
}

/// Whether the table says of a peer that is ahead that it is, and what it does less.
fn said(report: &Report, table: &str, kind: Kind) -> anyhow::Result<(String, bool)> {
    let (ours, theirs) = (grants(report, Kind::EvenkeelUnix)?, grants(report, kind)?);
    let shown = format!("{ours:.0}/s beside {theirs:.0}/s");
    if ours >= theirs {
        return Ok((format!("{shown}: it is not ahead"), true));
    }
    let line = table
        .lines()
        .find(|l| l.starts_with(&format!("| {} | ", kind.name())) && l.contains("ahead"));
    let why = line.is_some_and(|l| l.contains(kind.less()));
    Ok((format!("{shown}: {}", kind.less()), why))
}

#[cfg(test)]
mod tests {
    use evenkeel_bench::report::Point;

    use super::*;

    fn found(kind: Kind, clients_rate: f64, renewals: f64) -> Found {
        let point = |size, per_second| Point {
            size,
            per_second,
            ..Point::default()
        };
        Found {
            closed: vec![point(CLIENTS, clients_rate)],
            renewals: vec![point(LIVE, renewals)],
            ..Found::new(kind)
        }
    }

    fn report(peers: Vec<Found>) -> Report {
        Report {
            machine: String::new(),
            short: false,
            seconds: 5.0,
            repeats: 1,
            renewing: String::new(),
            busy: vec![],
            notes: vec![],
            peers,
        }
    }

    #[test]
    fn a_peer_that_is_missing_makes_no_ratio() {
        let mut etcd = found(Kind::EtcdDisjoint, 0.0, 0.0);
        etcd.skipped = "not installed".into();
        let peers = vec![
            found(Kind::EvenkeelUnix, 300.0, 500.0),
            found(Kind::EvenkeelTcp, 300.0, 500.0),
            found(Kind::EtcdOne, 30.0, 0.0),
            found(Kind::Redis, 900.0, 101.0),
            etcd,
        ];
        let report = report(peers);
        let rows = rows(&report, "| Redis | 0.33 ×, it is ahead | – | nothing |");
        let holds: Vec<_> = rows.iter().map(|r| r.holds == Some(true)).collect();
        assert_eq!(
            holds,
            // etcd missing; ten times to the dot; just under five; nothing without a ledger (twice), no TLS; ahead without
            // the reason; missing.
            [false, true, false, false, false, false, false, false],
            "{rows:#?}"
        );
    }
}
