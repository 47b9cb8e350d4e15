//! The controller by itself on a real ledger: who goes first, who is remembered, what is tried again. What a disk that
//! is really full does is in `tests/space`.
use std::sync::Mutex;

use evenkeel_core::command::{Acquire, Caller};
use evenkeel_core::grant::{Ask, Resize};
use evenkeel_core::id::{BodyHash, Fence, Name, RequestId};
use evenkeel_core::node::{Core, Node, PoolKind};
use evenkeel_core::unit::Millis;
use futures::FutureExt as _;

use super::*;
use crate::ledger;

/// What is waited for comes within this time, on the slowest machine.
const SOON: Duration = Duration::from_secs(20);
/// Reads that wait at once.
const READS: usize = 1_000;

fn alice() -> Caller {
    Caller::user(Name::new("alice").unwrap())
}

/// A core that nobody enforces.
fn acquire(request: u128, wait: bool) -> Acquire {
    Acquire {
        tenant: alice().tenant,
        request: RequestId(request),
        body: BodyHash(1),
        ask: Ask::Alone {
            cores: 1,
            gpus: vec![],
        },
        enforced: false,
        resize: Some(Resize::Restart),
        processes: Some(1),
        ttl: Millis::secs(30),
        wait,
        priority: 0,
    }
}

/// A synthetic pool of so many cores.
fn installed(cores: u32) -> Command {
    let core = |id| Core {
        id,
        cpus: [id].into_iter().collect(),
        numa: 0,
        package: 0,
    };
    let node = Node {
        kind: PoolKind::Synthetic,
        cores: (0..cores).map(core).collect(),
        reserved_cores: Default::default(),
        gpus: vec![],
    };
    Command::Discovered {
        node: node.into(),
        unavailable: Box::default(),
    }
}

fn config(folder: &tempfile::TempDir) -> ledger::Config {
    ledger::Config {
        ballast_bytes: 0,
        min_free_bytes: 0,
        busy_timeout: Duration::from_millis(1),
        ..ledger::Config::new(folder.path().join("ledger.db"))
    }
}

async fn start(config: ledger::Config) -> (Controller, Handle) {
    let history = History::new(&config);
    let opened = ledger::open(config).await.unwrap();
    let rules = Config {
        settings: Settings::default(),
        boot_id: "this boot".into(),
        caps: Default::default(),
        keep_events: Duration::from_secs(3600),
    };
    let (ledger, loaded) = (opened.ledger, opened.loaded);
    let started = Controller::start(rules, ledger, loaded, history, Arc::default()).await;
    let (controller, handle, _) = started.unwrap();
    (controller, handle)
}

/// Runs one command to its answer, without the loop.
async fn run(controller: &mut Controller, command: Command) -> Result<Reply, Failure> {
    let (reply, answer) = oneshot::channel();
    let requests = vec![Request { command, reply }];
    controller.apply(requests).await.unwrap();
    answer.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_asks_goes_before_who_looks_and_looks_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (controller, handle) = start(config(&folder)).await;
    let stop = CancellationToken::new();
    let owner = tokio::spawn(controller.run(stop.clone()));
    handle.run(installed(8)).await.unwrap();

    // Everything below is in the line before the controller goes on.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (began, is_held) = oneshot::channel();
    let hold = handle.read(move |_, _| {
        began.send(()).ok();
        gate.recv_timeout(SOON).ok();
        std::thread::sleep(READS_FOR); // its turn of looks is over with it
    });
    drop(hold.now_or_never()); // in the line
    is_held.await.unwrap();
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let look = |handle: &Handle, then: Option<Command>| {
        let (seen, asks) = (seen.clone(), handle.clone());
        let read = handle.read(move |state, _| {
            seen.lock().unwrap().push(state.durable.leases().len());
            std::thread::sleep(Duration::from_micros(20));
            // Sent at once; nobody waits for the answer.
            then.map(|command| asks.run(command).now_or_never());
        });
        drop(read.now_or_never()); // in the line
    };
    let second = Command::Acquire(acquire(2, false).into());
    look(&handle, Some(second));
    (1..READS).for_each(|_| look(&handle, None));
    let first = Command::Acquire(acquire(1, false).into());
    drop(handle.run(first).now_or_never());
    go.send(()).unwrap();
    until("all have looked", async || {
        seen.lock().unwrap().len() == READS
    })
    .await;
    let seen = seen.lock().unwrap().clone();
    let before = |leases| seen.iter().filter(|n| **n < leases).count();
    assert_eq!(before(1), 0, "the request was there before them");
    assert!(
        (1..=READS_MOST).contains(&before(2)),
        "a request that came while they looked waited for {} of them",
        before(2)
    );
    stop.cancel();
    owner.await.unwrap().unwrap();
}

async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let start = std::time::Instant::now();
    while !so().await {
        assert!(start.elapsed() < SOON, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_and_asks_again_waits_once() {
    let folder = tempfile::tempdir().unwrap();
    let (controller, handle) = start(config(&folder)).await;
    let stop = CancellationToken::new();
    let owner = tokio::spawn(controller.run(stop.clone()));
    handle.run(installed(1)).await.unwrap();
    handle.acquire(acquire(1, false), Millis(0)).await.unwrap();
    for _ in 0..50 {
        let waiting = handle.acquire(acquire(2, true), Millis::secs(60));
        tokio::pin!(waiting);
        for _ in 0..3 {
            // One step on: asked, looked, waiting.
            assert!(waiting.as_mut().now_or_never().is_none());
            handle.run(tick().command).await.unwrap();
            handle.read(|_, _| ()).await.unwrap();
        }
        assert!(handle.waiting() > 0);
        // Its client goes away.
    }
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.acquire(acquire(2, true), Millis::secs(60)).await }
    });
    until("it waits again", async || handle.waiting() == 1).await;
    let release = Command::Release {
        caller: alice(),
        lease: LeaseId(1),
        fence: Fence(1),
    };
    handle.run(release).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().id, LeaseId(2));
    assert_eq!(handle.waiting(), 0);
    stop.cancel();
    owner.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_could_not_be_noted_is_noted_later() {
    let folder = tempfile::tempdir().unwrap();
    let (mut controller, _) = start(config(&folder)).await;
    run(&mut controller, installed(8)).await.unwrap();
    let ask = Command::Acquire(acquire(1, false).into());
    run(&mut controller, ask).await.unwrap();
    // A connection that is only dropped closes when it likes, and the next start waits for it for 1 ms.
    controller.ledger.close().await;

    let (mut controller, handle) = start(config(&folder)).await;
    let renewed = handle.renew_now(&alice(), LeaseId(1), Fence(1), clock::now());
    assert!(matches!(renewed, Ok(crate::handle::Renewed::Until(_))));
    let other = ledger::lock_as_another(&config(&folder)).await.unwrap();
    controller.note_renewals().await;
    assert_eq!(controller.state.volatile.renewed(), [LeaseId(1)]);
    drop(other);
    until("it is noted", async || {
        controller.note_renewals().await;
        controller.state.volatile.renewed().is_empty()
    })
    .await;
    controller.ledger.close().await;

    let loaded = ledger::open(config(&folder)).await.unwrap().loaded;
    assert!(loaded.parts.leases.iter().any(|l| l.id == LeaseId(1)));
    assert!(loaded.unrenewed.is_empty(), "{:?}", loaded.unrenewed);
}
