//! The controller and its ledger's files: with too little space on their disk nothing is granted, at the start and later,
//! and nothing while one of them is not in its place; renewals, releases and restarts go on; and all is well by itself
//! once there is space, or the file is back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests may fail loudly, too"
)]

#[path = "ledger/mount.rs"]
mod mount;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_core::command::{Acquire, Caller, Command, Reply};
use evenkeel_core::grant::{Ask, Resize};
use evenkeel_core::id::{BodyHash, LeaseId, Name, RequestId};
use evenkeel_core::lease::Lease;
use evenkeel_core::node::{Core, Node, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::Millis;
use evenkeeld::clock;
use evenkeeld::controller::{self, Controller};
use evenkeeld::handle::{Failure, Handle, Renewed};
use evenkeeld::ledger::{self, History, Misplaced};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use mount::{Mounted, is_root};

const SOON: Duration = Duration::from_secs(30);
const BALLAST: u64 = 2 << 20;
const MIN_FREE: u64 = 2 << 20;

/// A life of the controller. Dropped without a word, like one that was killed.
struct Life {
    handle: Handle,
    stop: CancellationToken,
    owner: JoinHandle<()>,
}

impl Life {
    async fn begin(folder: &Path, ballast_bytes: u64, min_free_bytes: u64) -> Self {
        let config = ledger::Config {
            ballast_bytes,
            min_free_bytes,
            ..ledger::Config::new(folder.join("ledger.db"))
        };
        let history = History::new(&config);
        let opened = ledger::open(config).await.expect("a start on any disk");
        let rules = controller::Config {
            settings: Settings::default(),
            boot_id: "this boot".into(),
            caps: Default::default(),
            keep_events: Duration::from_secs(3600),
        };
        let (ledger, loaded) = (opened.ledger, opened.loaded);
        let started = Controller::start(rules, ledger, loaded, history, Arc::default()).await;
        let (controller, handle, _) = started.expect("a start on any disk");
        let stop = CancellationToken::new();
        let run = controller.run(stop.clone());
        let owner = tokio::spawn(async move { run.await.unwrap() });
        let life = Self {
            handle,
            stop,
            owner,
        };
        life.handle.run(installed()).await.unwrap();
        life
    }
    async fn end(self) {
        self.stop.cancel();
        self.owner.await.unwrap();
    }
    /// Like SIGKILL: whatever it had open is closed by the system.
    async fn kill(self) {
        self.owner.abort();
        drop(self.owner.await);
    }

    async fn acquire(&self, request: u128) -> Result<Lease, Failure> {
        self.handle.acquire(acquire(request), Millis(0)).await
    }
    async fn release(&self, lease: &Lease) -> Result<Reply, Failure> {
        let command = Command::Release {
            caller: alice(),
            lease: lease.id,
            fence: lease.fence,
        };
        self.handle.run(command).await
    }
    fn renews(&self, lease: &Lease) -> bool {
        let renewed = self
            .handle
            .renew_now(&alice(), lease.id, lease.fence, clock::now());
        matches!(renewed, Ok(Renewed::Until(_)))
    }
    fn is_degraded(&self) -> bool {
        self.handle.degraded().borrow().is_some()
    }
    /// A request that is refused has no effect: it can be made again.
    async fn grants_again(&self, request: u128) {
        let start = Instant::now();
        while let Err(error) = self.acquire(request).await {
            let passes = matches!(error, Failure::DiskFull | Failure::Misplaced(_));
            assert!(passes, "{error}");
            assert!(start.elapsed() < SOON, "grants did not come back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    async fn becomes_degraded(&self) {
        let mut degraded = self.handle.degraded();
        let changed = degraded.wait_for(Option::is_some);
        drop(tokio::time::timeout(SOON, changed).await.expect("in time"));
    }
}

fn alice() -> Caller {
    Caller::user(Name::new("alice").unwrap())
}

fn acquire(request: u128) -> Acquire {
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
        ttl: Millis::secs(600),
        wait: false,
        priority: 0,
    }
}

fn installed() -> Command {
    let core = |id| Core {
        id,
        cpus: [id].into_iter().collect(),
        numa: 0,
        package: 0,
    };
    let node = Node {
        kind: PoolKind::Synthetic,
        cores: (0..64).map(core).collect(),
        reserved_cores: Default::default(),
        gpus: vec![],
    };
    Command::Discovered {
        node: node.into(),
        unavailable: Box::default(),
    }
}

/// Fills the disk but for `left` bytes.
fn fill(folder: &Path, left: u64) {
    let mut file = fs::File::create(folder.join("filler")).unwrap();
    for size in [1 << 20, 1 << 12, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
    let length = file.metadata().unwrap().len();
    file.set_len(length.saturating_sub(left)).unwrap();
}

fn clean_up(folder: &Path) {
    fs::remove_file(folder.join("filler")).unwrap();
}

fn ballast(folder: &Path) -> bool {
    fs::metadata(folder.join("ledger.db.ballast")).is_ok_and(|m| m.len() == BALLAST)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_too_little_space_a_start_grants_nothing_and_serves_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let life = Life::begin(folder.path(), 0, 0).await;
    let (first, second) = (
        life.acquire(1).await.unwrap(),
        life.acquire(2).await.unwrap(),
    );
    life.end().await;

    let life = Life::begin(folder.path(), 0, u64::MAX / 2).await;
    assert!(life.is_degraded(), "from the first request on");
    let refused = life.acquire(3).await.unwrap_err();
    assert!(matches!(refused, Failure::DiskFull), "{refused}");
    let again = life.acquire(1).await.unwrap();
    assert_eq!(again.id, first.id, "granted before: that is the answer");
    assert!(life.renews(&first));
    life.release(&second).await.unwrap();
    life.end().await;

    let life = Life::begin(folder.path(), 0, 0).await;
    assert!(!life.is_degraded());
    assert_eq!(life.acquire(3).await.unwrap().id, LeaseId(3));
    life.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_serves_and_grants_again_once_there_is_space() {
    if !is_root() {
        println!("skipped: a small file system can be mounted by root only");
        return;
    }
    for killed in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let _mount = Mounted::tmpfs(folder.path(), "16m");
        let life = Life::begin(folder.path(), BALLAST, MIN_FREE).await;
        assert!(!life.is_degraded() && ballast(folder.path()));
        let mut held = Vec::new();
        for request in 1..=20 {
            held.push(life.acquire(request).await.unwrap());
        }
        if killed {
            life.kill().await;
        } else {
            life.end().await;
        }
        fill(folder.path(), 0);

        // Twice: the space that the ballast left is not granted away meanwhile.
        for round in 0..2 {
            let life = Life::begin(folder.path(), BALLAST, MIN_FREE).await;
            assert!(life.is_degraded(), "killed {killed}, round {round}");
            let refused = life.acquire(100 + round).await.unwrap_err();
            assert!(matches!(refused, Failure::DiskFull), "{refused}");
            assert!(life.renews(&held[0]));
            let given = held.split_off(held.len() - 5);
            for lease in &given {
                life.release(lease).await.unwrap();
            }
            life.end().await;
        }
        let life = Life::begin(folder.path(), BALLAST, MIN_FREE).await;
        assert!(killed || !ballast(folder.path()), "it was needed to start");
        clean_up(folder.path());
        life.grants_again(200).await;
        assert!(ballast(folder.path()), "made again");
        assert!(held.iter().all(|l| life.renews(l)));
        life.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_that_runs_low_is_seen_before_it_is_gone() {
    if !is_root() {
        println!("skipped: a small file system can be mounted by root only");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let _mount = Mounted::tmpfs(folder.path(), "16m");
    let life = Life::begin(folder.path(), BALLAST, MIN_FREE).await;
    let held = life.acquire(1).await.unwrap();
    fill(folder.path(), MIN_FREE / 2);
    life.becomes_degraded().await;
    assert!(ballast(folder.path()), "it is still there for what ends");
    let refused = life.acquire(2).await.unwrap_err();
    assert!(matches!(refused, Failure::DiskFull), "{refused}");
    life.release(&held).await.unwrap();
    clean_up(folder.path());
    life.grants_again(2).await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_or_lock_that_is_not_in_its_place_stops_grants_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let life = Life::begin(&folder, 0, 0).await;
    let mut held = vec![life.acquire(1).await.unwrap()];
    let aside = folder.join("aside");
    let mut request = 2;
    for name in ["ledger.db", "ledger.db.lock"] {
        let path = folder.join(name);
        for replaced in [false, true] {
            fs::rename(&path, &aside).unwrap();
            if replaced {
                fs::copy(&aside, &path).unwrap();
            }
            life.becomes_degraded().await;
            let refused = life.acquire(request).await.unwrap_err();
            let expect = match name {
                "ledger.db" => Misplaced::Ledger(path.clone()),
                _ => Misplaced::Lock(path.clone()),
            };
            assert!(
                matches!(&refused, Failure::Misplaced(what) if *what == expect),
                "{name}, replaced {replaced}: {refused}"
            );
            assert!(life.renews(&held[0]));
            life.release(&held.remove(0)).await.unwrap();
            assert_eq!(path.exists(), replaced, "nothing is put in its place");
            fs::rename(&aside, &path).unwrap();
            life.grants_again(request).await;
            held.push(life.acquire(request).await.unwrap());
            request += 1;
        }
    }
    life.end().await;

    let life = Life::begin(&folder, 0, 0).await;
    assert!(life.renews(&held[0]), "it is all in the file");
    life.end().await;
}
