//! Line 1: grants, renewals and TLS against peers in one run: what `bench-leases` measures, judged.
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use evenkeel_bench::peers::Kind;
use evenkeel_bench::report::{Found, Report};

use crate::Run;
use crate::daemon::program;
use crate::row::Row;
use crate::speed::durable;

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
        durable(Ok(report.disk.clone())),
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
            "renewals over a Unix socket, ten leases a message, in memory by design, beside Redis's PEXPIRE, ten a \
             message, each on the disk before it is answered (appendfsync always)",
            "≥ 5 times",
            times(renewals(Kind::EvenkeelUnix), renewals(Kind::Redis), 5.0),
        ),
        Row::beside(
            "the same beside Redis that syncs once a second, so that its renewals do not wait for the disk either",
            times(
                renewals(Kind::EvenkeelUnix),
                renewals(Kind::RedisEverysec),
                0.0,
            )
            .map(|t| t.0),
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
    for kind in [Kind::Redis, Kind::PostgresOne, Kind::PostgresSkip] {
        let what = format!(
            "the table says whether {} is ahead, and why where it is",
            kind.name()
        );
        rows.push(Row::judged(&what, "it does", said(report, table, kind)));
    }
    if !report.busy.is_empty() {
        let busy = report.busy.join("; ");
        rows.push(Row::beside("the machine was not idle before", Ok(busy)));
    }
    rows
}

/// Whether the table, in the columns of grants and of renewals, has the ratio that the figures have, says of a peer that is
/// ahead that it is, and of no other, and has a reason for it: where renewals are ahead, one about the disk.
fn said(report: &Report, table: &str, kind: Kind) -> anyhow::Result<(String, bool)> {
    let (_, compared) = table
        .split_once("### Beside Evenkeel")
        .context("no peers are compared")?;
    let line = compared
        .lines()
        .find_map(|line| line.strip_prefix(&format!("| {} | ", kind.name())))
        .with_context(|| format!("{} is not compared", kind.name()))?;
    let mut cells = line.split('|').map(str::trim);
    let (grant, renewal, why) = (cells.next(), cells.next(), cells.next().unwrap_or_default());
    let columns = [
        ("grants", grant, grants as fn(_, _) -> _),
        ("renewals", renewal, renewals),
    ];
    let (mut shown, mut holds) = (Vec::new(), true);
    for (what, cell, rate) in columns {
        if what == "renewals" && !kind.is_whole() {
            continue; // measured of the other of the two
        }
        let (ours, theirs) = (rate(report, Kind::EvenkeelUnix)?, rate(report, kind)?);
        let is_ahead = ours < theirs;
        let cell = cell.unwrap_or_default();
        holds &= cell.starts_with(&format!("{:.2} ×", ours / theirs));
        holds &= cell.ends_with("it is ahead") == is_ahead;
        // A reason is a sentence that names a difference.
        let about = if what == "grants" { " no " } else { "disk" };
        holds &= !is_ahead || why.contains(about);
        let word = if is_ahead { "ahead" } else { "not ahead" };
        shown.push(format!("{what} {ours:.0}/s beside {theirs:.0}/s: {word}"));
    }
    let reason = if why.is_empty() { "no reason" } else { why };
    Ok((format!("{}; {reason}", shown.join("; ")), holds))
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
            disk: "ext4".into(),
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
        let table = "### Beside Evenkeel\n| Redis | 0.33 ×, it is ahead | 4.95 × |  |";
        let rows = rows(&report, table);
        let holds: Vec<_> = rows.iter().map(|r| r.holds == Some(true)).collect();
        assert_eq!(
            holds,
            // On a disk; etcd missing; ten times to the dot; just under five; no Redis that syncs each second; nothing
            // without a ledger (twice), no TLS; ahead without a reason; missing (twice).
            [
                true, false, true, false, false, false, false, false, false, false, false
            ],
            "{rows:#?}"
        );
    }

    #[test]
    fn in_memory_nothing_is_durable() {
        let mut report = report(vec![]);
        report.disk = "tmpfs".into();
        assert_eq!(rows(&report, "")[0].holds, Some(false));
    }

    #[test]
    fn the_table_has_to_say_who_is_ahead_in_each_column() {
        let peers = vec![
            found(Kind::EvenkeelUnix, 300.0, 500.0),
            found(Kind::Redis, 900.0, 1_000.0),
            found(Kind::PostgresOne, 100.0, 0.0),
        ];
        let report = report(peers);
        let holds = |kind: Kind, cells: &str| {
            let table = format!("### Beside Evenkeel\n| {} | {cells} |\n", kind.name());
            said(&report, &table, kind).unwrap().1
        };
        let why = Kind::Redis.less();
        let (grants, renewals) = ("0.33 ×, it is ahead", "0.50 ×, it is ahead");
        for (cells, expect) in [
            (format!("{grants} | {renewals} | {why}"), true),
            (format!("0.33 × | {renewals} | {why}"), false),
            (format!("{grants} | 0.50 × | {why}"), false),
            (format!("{grants} | – | {why}"), false),
            (format!("0.90 ×, it is ahead | {renewals} | {why}"), false),
            (format!("{grants} | {renewals} | "), false),
            (format!("{grants} | {renewals} | it is"), false),
        ] {
            assert_eq!(holds(Kind::Redis, &cells), expect, "{cells}");
        }
        // One row of PostgreSQL's has no renewals of its own.
        assert!(holds(Kind::PostgresOne, "3.00 × | – | less"));
        assert!(!holds(Kind::PostgresOne, "3.00 ×, it is ahead | – | less"));
        // And what the benchmark writes passes.
        let table = evenkeel_bench::table::markdown(&report);
        assert!(said(&report, &table, Kind::Redis).unwrap().1, "{table}");
        assert!(
            said(&report, &table, Kind::PostgresOne).unwrap().1,
            "{table}"
        );
    }
}
