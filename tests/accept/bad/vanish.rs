//! Clients that vanish in the middle of each call: the request is under way, and the connection is gone. Each call must
//! have run once or not at all, by the ledger; said again, it has run once; and nothing is left.
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;

use super::amounts::small_job;
use super::calls::{Calls, right};
use super::case;
use crate::Run;
use crate::daemon::{Daemon, Device, SYNTHETIC};
use crate::load::request;
use crate::row::Row;
use crate::trail::{self, Trail};
use cuts::{Cut, READS, WRITES, read, write};

mod cuts;

/// How long clients wait before they vanish: from not at all to longer than a commit.
const PATIENCE_US: [u64; 10] = [0, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 25_600];
/// Rounds over all of these.
const ROUNDS: usize = 3;
/// Requests that were under way have run, or never will, after this time.
const SETTLED: Duration = Duration::from_secs(1);
/// What clients leave behind is gone after its TTL and the grace; on the slowest machine.
const GONE_WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn measure(run: &Run) -> Vec<Row> {
    let rounds = if run.short { 1 } else { ROUNDS };
    let asked =
        "each ran once or not at all, said again exactly once, by the ledger; nothing is left";
    vec![
        case(
            "clients that vanish in the middle of each call",
            asked,
            everywhere(rounds),
        )
        .await,
        case(
            "the same in the middle of attaching a process",
            asked,
            attaching(rounds),
        )
        .await,
    ]
}

fn patience() -> impl Iterator<Item = Duration> + Clone {
    PATIENCE_US.into_iter().map(Duration::from_micros)
}

async fn everywhere(rounds: usize) -> anyhow::Result<String> {
    let daemon = Daemon::start(SYNTHETIC).await?;
    let socket = daemon.socket();
    let mut good = Calls::connect(&socket).await?;
    // In the way of those that want all cores, so that they wait.
    let blocker = pb::AcquireLeaseRequest {
        ttl_ms: 600_000,
        ..request()
    };
    let blocker = good.grant(blocker).await?;
    good.submit(small_job("shared")).await?;
    good.trial("shared/sim", 1, 100.0).await?;
    let (before, files) = (trail::newest(&socket).await?, open_files(&daemon)?);

    let mut cut = Vec::new();
    for _ in 0..rounds {
        for patience in patience() {
            for call in WRITES {
                let n = cut.len() as u64 + 1;
                let one = Cut::prepare(call, n, &mut good).await?;
                let mut client = Calls::connect(&socket).await?;
                // The future is dropped in the middle; then the whole connection.
                let answer = tokio::time::timeout(patience, write(&mut client, &one)).await;
                cut.push((one, answer.is_err()));
            }
        }
    }
    tokio::time::sleep(SETTLED).await;
    let ran = once_or_not(&Trail::read(&socket, before).await?, &cut)?;
    for (one, _) in &cut {
        one.say_again(&mut good).await?;
    }
    let trail = Trail::read(&socket, before).await?;
    for (one, _) in &cut {
        let had = one.effects(&trail);
        ensure!(
            had == one.effects_when_done() || (!one.can_be_said_again() && had <= 1),
            "{} had its effect {had} times after it was said again",
            one.call
        );
    }
    let reads = reads(&socket, rounds).await?;
    drains(&socket, &mut good).await?;
    give_back(&mut good, &cut, &blocker).await?;
    let took = nothing_left(&daemon, &mut good, files).await?;
    Ok(format!(
        "{} calls that change something: {ran}; {reads} that read; all that they left was gone {:.1} s later",
        cut.len(),
        took.as_secs_f64()
    ))
}

/// Calls, and whether their clients vanished before the answer.
type Vanished = [(Cut, bool)];

/// How many ran, in words. Some have to run although nobody waits for their answer: else none was cut in the middle.
fn once_or_not(trail: &Trail, cut: &Vanished) -> anyhow::Result<String> {
    let (mut off, mut ran, mut never) = (0, 0, 0);
    for (one, unanswered) in cut {
        let (had, could) = (one.effects(trail), one.effects_when_done());
        ensure!(had <= could, "{} had its effect {had} times", one.call);
        ensure!(
            *unanswered || had == could,
            "{} was answered and had its effect {had} times",
            one.call
        );
        off += usize::from(*unanswered);
        ran += usize::from(*unanswered && had == 1);
        never += usize::from(*unanswered && had < could);
    }
    ensure!(ran > 0, "none of {off} calls was cut off in its middle");
    Ok(format!(
        "{off} were cut off; of these {ran} ran, each once, and {never} did not (the others have no effect)"
    ))
}

/// The same with calls that read: nothing happens at all.
async fn reads(socket: &Path, rounds: usize) -> anyhow::Result<usize> {
    let before = trail::newest(socket).await?;
    let mut n = 0;
    for _ in 0..rounds {
        for patience in patience() {
            for call in READS {
                let mut client = Calls::connect(socket).await?;
                let _ = tokio::time::timeout(patience, read(&mut client, call)).await;
                n += 1;
            }
        }
    }
    tokio::time::sleep(SETTLED).await;
    // Queue entries and leases that nobody renews end by themselves meanwhile.
    let since = Trail::read(socket, before).await?;
    let ended = since.count("lease_ended", |_| true);
    let forgotten = since.count("requests_forgotten", |_| true);
    ensure!(
        since.len() == ended + forgotten,
        "reading changed something: {since:?}"
    );
    Ok(n)
}

/// And with Drain, which would keep all others from being granted: last.
async fn drains(socket: &Path, good: &mut Calls) -> anyhow::Result<()> {
    for patience in patience() {
        let before = trail::newest(socket).await?;
        let mut client = Calls::connect(socket).await?;
        let drain = pb::DrainNodeRequest { draining: true };
        let _ = tokio::time::timeout(patience, client.nodes.drain_node(drain)).await;
        drop(client);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let undo = pb::DrainNodeRequest { draining: false };
        good.nodes.drain_node(undo).await?;
        let trail = Trail::read(socket, before).await?;
        let of = |draining| trail.count("node_drained", |e| e["draining"] == draining);
        ensure!(
            of(true) <= 1 && of(true) == of(false),
            "a drain that was cut off had its effect {} times",
            of(true)
        );
    }
    Ok(())
}

/// Ends what was made on purpose.
async fn give_back(good: &mut Calls, cut: &Vanished, blocker: &pb::Lease) -> anyhow::Result<()> {
    let name = "shared".to_owned();
    good.jobs.cancel_job(pb::CancelJobRequest { name }).await?;
    for (one, _) in cut {
        one.end(good).await?;
    }
    let pb::LeaseRef { lease_id, fence } = right(blocker);
    let release = pb::ReleaseLeaseRequest { lease_id, fence };
    // It may have been in the way for so long that it ended; then it is gone as well.
    let _ = good.leases.release_lease(release).await;
    Ok(())
}

fn open_files(daemon: &Daemon) -> anyhow::Result<usize> {
    let folder = PathBuf::from(format!("/proc/{}/fd", daemon.pid()?));
    Ok(folder
        .read_dir()
        .context("cannot count the daemon's files")?
        .count())
}

/// Waits until no lease, queue entry, job or connection is left.
async fn nothing_left(daemon: &Daemon, good: &mut Calls, files: usize) -> anyhow::Result<Duration> {
    let start = Instant::now();
    loop {
        let node = good.nodes.get_node(pb::GetNodeRequest {}).await?;
        let node = node.into_inner().node.context("no node")?;
        let jobs = good.jobs.list_jobs(pb::ListJobsRequest::default());
        let jobs = jobs.await?.into_inner().jobs.len();
        let open = open_files(daemon)?;
        if (node.live_leases, node.queued, jobs) == (0, 0, 0) && open <= files {
            return Ok(start.elapsed());
        }
        ensure!(
            start.elapsed() < GONE_WITHIN,
            "{} leases, {} queue entries, {jobs} jobs and {open} open files (at first {files}) are left",
            node.live_leases,
            node.queued
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A process that holds leases and does nothing.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Attaching needs real leases and real processes: an emulated GPU.
async fn attaching(rounds: usize) -> anyhow::Result<String> {
    let owned = tempfile::tempdir()?;
    let gpus = owned.path().join("gpu");
    let _device = Device::in_folder(&gpus);
    let tables = format!(
        "[node]\nreserve_cores = 0\n[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\ndir = {gpus:?}\nmodel = \"h100\"\n"
    );
    let daemon = Daemon::in_folder(&owned.path().join("daemon"), &tables).await?;
    let socket = daemon.socket();
    let mut good = Calls::connect(&socket).await?;
    let mut cut = Vec::new();
    for patience in patience().cycle().take(PATIENCE_US.len() * rounds) {
        cut.push(attach_and_vanish(&socket, &mut good, patience).await?);
    }
    tokio::time::sleep(SETTLED).await;
    let attached = attached(&socket, &cut).await?;
    let off = cut.iter().filter(|c| c.unanswered).count();
    let ran = cut
        .iter()
        .zip(&attached)
        .filter(|(c, n)| c.unanswered && **n == 1)
        .count();
    ensure!(
        attached.iter().all(|n| *n <= 1) && ran > 0,
        "of {} calls {off} were cut off; they attached so often: {attached:?}",
        cut.len()
    );
    for Attaching { attach, .. } in &cut {
        let again = good.leases.attach_lease(*attach).await;
        let lease = again.context("attached again")?.into_inner().lease;
        let lease = lease.context("no lease")?;
        ensure!(
            lease.fence == attach.fence + 1,
            "the fence rose twice: {lease:?}"
        );
    }
    let attached = self::attached(&socket, &cut).await?;
    ensure!(
        attached.iter().all(|n| *n == 1),
        "said again, they attached so often: {attached:?}"
    );
    let n = cut.len();
    drop(cut); // the processes end, and with them their leases
    let took = all_ended(&mut good).await?;
    Ok(format!(
        "{n} calls: {off} were cut off; of these {ran} ran, each once; all gone {:.1} s after their processes",
        took.as_secs_f64()
    ))
}

/// A call that attaches a process, whose caller has vanished.
struct Attaching {
    attach: pb::AttachLeaseRequest,
    unanswered: bool,
    /// Ends with this.
    _process: Sleeper,
}

/// A lease, and a process that is being attached to it when the caller vanishes.
async fn attach_and_vanish(
    socket: &Path,
    good: &mut Calls,
    patience: Duration,
) -> anyhow::Result<Attaching> {
    let share = pb::GpuRequest {
        sms: 2,
        memory_bytes: 1 << 30,
        ..Default::default()
    };
    let asked = pb::AcquireLeaseRequest {
        cores: 0,
        gpus: vec![share],
        unenforced: false,
        ..request()
    };
    let lease = good.grant(asked).await?;
    let mut sleep = Command::new("sleep");
    let sleeper = Sleeper(sleep.arg("600").stdin(Stdio::null()).spawn()?);
    let attach = pb::AttachLeaseRequest {
        lease_id: lease.id,
        fence: lease.fence,
        pid: sleeper.0.id(),
    };
    let mut client = Calls::connect(socket).await?;
    let answer = tokio::time::timeout(patience, client.leases.attach_lease(attach)).await;
    Ok(Attaching {
        attach,
        unanswered: answer.is_err(),
        _process: sleeper,
    })
}

/// How often each lease was attached, by the ledger.
async fn attached(socket: &Path, cut: &[Attaching]) -> anyhow::Result<Vec<usize>> {
    let trail = Trail::read(socket, 0).await?;
    let of = |c: &Attaching| trail.of_lease("lease_attached", c.attach.lease_id);
    Ok(cut.iter().map(of).collect())
}

/// Waits until there is no lease.
async fn all_ended(good: &mut Calls) -> anyhow::Result<Duration> {
    let start = Instant::now();
    loop {
        let left = good.leases.list_leases(pb::ListLeasesRequest::default());
        let left = left.await?.into_inner().leases.len();
        if left == 0 {
            return Ok(start.elapsed());
        }
        ensure!(
            start.elapsed() < GONE_WITHIN,
            "{left} leases of processes that have ended are left"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
