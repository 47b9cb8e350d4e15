//! Line 7: bad input gets a clear error and loses nothing; bad luck is survived.
use std::future::Future;
use std::time::Duration;

use anyhow::{bail, ensure};
use tonic::{Code, Status};

use crate::Run;
use crate::daemon::{Daemon, SYNTHETIC};
use crate::load::request;
use crate::row::Row;
use calls::{Calls, Snapshot};

mod amounts;
mod calls;
mod full;
mod late;
mod ledger;
mod luck;
mod stranger;
mod unknown;
mod vanish;
mod wire;

pub(crate) use late::{LateArgs, late};
pub(crate) use stranger::{StrangerArgs, stranger};

/// Longer than any case takes: one that is not done then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(180);

/// Characters of an answer that are shown.
const SHOWN: usize = 120;

/// One case as a row: what it found, or why it does not hold.
async fn case(what: &str, asked: &str, found: impl Future<Output = anyhow::Result<String>>) -> Row {
    let found = match tokio::time::timeout(HANGS_AFTER, found).await {
        Ok(found) => found.map(|measured| (measured, true)),
        Err(_) => Err(anyhow::anyhow!("no end within {} s", HANGS_AFTER.as_secs())),
    };
    Row::judged(what, asked, found)
}

pub(crate) async fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    rows.extend(input().await?);
    rows.extend(stranger::measure().await);
    rows.extend(ledger::measure().await);
    rows.extend(full::measure().await);
    rows.extend(luck::measure().await);
    rows.extend(late::measure().await);
    rows.extend(vanish::measure(run).await);
    Ok(rows)
}

/// The status of a call that has to be refused with this code; its words are part of what is shown.
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code) -> anyhow::Result<Status> {
    match answer {
        Err(status) if status.code() == code && !status.message().is_empty() => Ok(status),
        Err(status) => bail!(
            "{code:?} with a word was expected, {:?} came: {:?}",
            status.code(),
            status.message()
        ),
        Ok(answer) => {
            let done: String = format!("{answer:?}").chars().take(SHOWN).collect();
            bail!("{code:?} was expected and it was done: {done}…")
        }
    }
}

/// The cases of one daemon, which must be as it was after each of them.
struct Unharmed {
    daemon: Daemon,
    calls: Calls,
    before: Snapshot,
    rows: Vec<Row>,
    /// Cases after which it was not.
    harmed: Vec<String>,
}

impl Unharmed {
    async fn start() -> anyhow::Result<Self> {
        let daemon = Daemon::start(SYNTHETIC).await?;
        let mut calls = Calls::connect(&daemon.socket()).await?;
        // Something to lose.
        calls.leases.acquire_lease(request()).await?;
        calls.submit(amounts::job("kept")).await?;
        calls.trial("kept/gen", 1, 100.0).await?;
        let before = Snapshot::take(&mut calls, &daemon.socket()).await?;
        Ok(Self {
            daemon,
            calls,
            before,
            rows: Vec::new(),
            harmed: Vec::new(),
        })
    }
    async fn case(
        &mut self,
        what: &str,
        asked: &str,
        found: impl Future<Output = anyhow::Result<String>>,
    ) {
        self.rows.push(case(what, asked, found).await);
        if let Err(e) = self.is_as_before().await {
            self.harmed.push(format!("{what}: {e:#}"));
        }
    }
    async fn is_as_before(&mut self) -> anyhow::Result<()> {
        let after = Snapshot::take(&mut self.calls, &self.daemon.socket()).await?;
        ensure!(
            after == self.before,
            "it was {:?} and is {after:?}",
            self.before
        );
        Ok(())
    }
}

async fn input() -> anyhow::Result<Vec<Row>> {
    let mut of = Unharmed::start().await?;
    let (socket, calls) = (of.daemon.socket(), of.calls.clone());
    let c = || calls.clone();
    let invalid = "INVALID_ARGUMENT that names the field";
    of.case(
        "garbage on the socket",
        "its connection ends, nothing else does",
        wire::garbage(&socket),
    )
    .await;
    of.case(
        "a message that is none, to every call",
        "INVALID_ARGUMENT",
        wire::malformed(&socket),
    )
    .await;
    of.case(
        "an oversized message",
        "refused with a limit",
        wire::oversized(c()),
    )
    .await;
    of.case(
        "unknown ids, in every call that takes one",
        "NOT_FOUND; renewals say LOST; reports are refused",
        unknown::all(c()),
    )
    .await;
    of.case("zero amounts", invalid, amounts::zero(c())).await;
    of.case("overflowing amounts", invalid, amounts::overflow(c()))
        .await;
    of.case(
        "requests that can never be satisfied, lease or job, though they would wait",
        "FAILED_PRECONDITION at once, with what is short and by how much",
        amounts::never(c()),
    )
    .await;
    of.case(
        "NaN and negative throughputs",
        invalid,
        amounts::not_rates(c()),
    )
    .await;
    let Unharmed {
        before,
        mut rows,
        harmed,
        ..
    } = of;
    rows.push(Row::new(
        "what bad input changed (ids, fences and phases of leases, jobs, profiles, the newest event)",
        "nothing, after each of these",
        match harmed.first() {
            None => format!("nothing: {}", before.describe()),
            Some(first) => format!("{} times; first: {first}", harmed.len()),
        },
        harmed.is_empty(),
    ));
    rows.extend(requests().await?);
    Ok(rows)
}

/// Requests that are refused, although they make sense.
async fn requests() -> anyhow::Result<Vec<Row>> {
    let daemon = Daemon::start(SYNTHETIC).await?;
    let calls = Calls::connect(&daemon.socket()).await?;
    Ok(vec![
        case(
            "the same request id with another body",
            "ALREADY_EXISTS; the first keeps its lease",
            amounts::other_body(calls.clone()),
        )
        .await,
        case(
            "a request for which there is no room now",
            "RESOURCE_EXHAUSTED at once, with what is short, by how much and who holds it",
            amounts::short(calls),
        )
        .await,
    ])
}
