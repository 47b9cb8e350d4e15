//! How fast the ledger commits: batches of grants and releases, each grant with cores, SMs and bytes.
//!
//! Not a test and not the daemon: no gRPC, no decisions; only fold, encode and commit, on the disk of the folder
//! given. `cargo run --release -p evenkeeld --example ledger_bench -- [folder] [seconds] [live leases]`
#![allow(clippy::print_stdout, reason = "a report is its purpose")]
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, GpuAsk, GpuShare, Resize, SmAsk, Vector};
use evenkeel_core::id::{BodyHash, Fence, Generation, GpuId, LeaseId, Name, RequestId};
use evenkeel_core::lease::{End, Lease, Phase};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::state::Durable;
use evenkeel_core::unit::{Bytes, Millis, Sms};
use evenkeeld::ledger::{self, Config, Ledger, fold};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

/// Cores of the synthetic pool, and SMs of each of its GPUs: 10,000 leases of one core and one SM fit.
const CORES: u32 = 12_288;
const GPUS: u16 = 100;
const SMS: u32 = 132;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| ".".to_owned());
    let seconds: u64 = args
        .next()
        .map_or(Ok(2), |s| s.parse())
        .context("seconds: a number")?;
    let live: usize = args
        .next()
        .map_or(Ok(1000), |s| s.parse())
        .context("leases: a number")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        println!("{live} live leases, {seconds} s a line, ledger in {folder}");
        println!(
            "{:>6} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10}",
            "batch",
            "commits/s",
            "ops/s",
            "rows/s",
            "fold us",
            "p50 ms",
            "p99 ms",
            "stmts",
            "cpu us/op"
        );
        for size in [1, 8, 32, 128] {
            let folder = tempfile::tempdir_in(&folder).context("make a folder for the ledger")?;
            let mut load = Load::start(Config::new(folder.path().join("ledger.db")), live).await?;
            load.run(size, Duration::from_secs(seconds)).await?;
        }
        Ok(())
    })
}

/// A ledger under load.
struct Load {
    ledger: Ledger,
    durable: Durable,
    leases: VecDeque<LeaseId>,
    next: u64,
}

impl Load {
    async fn start(config: Config, live: usize) -> anyhow::Result<Self> {
        let opened = ledger::open(config).await.context("open the ledger")?;
        let mut load = Self {
            ledger: opened.ledger,
            durable: Durable::load(opened.loaded.parts),
            leases: VecDeque::new(),
            next: 1,
        };
        let node = Event::NodeInstalled { node: node()? };
        load.commit(&[node]).await?;
        for _ in 0..live.div_ceil(500) {
            let mut events = Vec::new();
            for _ in 0..500.min(live) {
                events.push(load.grant()?);
            }
            load.commit(&events).await?;
        }
        Ok(load)
    }

    /// Commits batches that release the oldest leases and grant as many new ones.
    async fn run(&mut self, size: usize, time: Duration) -> anyhow::Result<()> {
        let (start, mut times, mut folding) = (Instant::now(), Vec::new(), Duration::ZERO);
        let (mut rows, mut statements, mut turn) = (0, 0, 0_usize);
        let cpu = cpu_us()?;
        while start.elapsed() < time {
            let mut events = Vec::new();
            for _ in 0..size {
                turn += 1;
                events.push(if turn % 2 == 0 {
                    self.grant()?
                } else {
                    self.release()?
                });
            }
            let before = Instant::now();
            let batch = fold(&events, &self.durable, 1_700_000_000_000);
            folding += before.elapsed();
            self.ledger.commit(&batch).await?;
            times.push(before.elapsed());
            rows += batch.events.len() + 4 * batch.leases.len() + 4 * batch.ended.len();
            statements += batch.statements();
        }
        let (elapsed, n) = (start.elapsed().as_secs_f64(), times.len());
        times.sort_unstable();
        let at = |share: usize| times[(n * share / 1000).min(n - 1)].as_secs_f64() * 1e3;
        println!(
            "{size:>6} {:>10.0} {:>10.0} {:>10.0} {:>9.1} {:>9.3} {:>9.3} {:>9} {:>10.1}",
            n as f64 / elapsed,
            (n * size) as f64 / elapsed,
            rows as f64 / elapsed,
            folding.as_secs_f64() * 1e6 / n as f64,
            at(500),
            at(990),
            statements / n,
            (cpu_us()? - cpu) / (n * size) as f64
        );
        Ok(())
    }

    async fn commit(&mut self, events: &[Event]) -> anyhow::Result<()> {
        if let [Event::NodeInstalled { .. }] = events {
            self.durable.evolve(&events[0]);
        }
        let batch = fold(events, &self.durable, 1_700_000_000_000);
        self.ledger.commit(&batch).await.context("commit")
    }

    fn grant(&mut self) -> anyhow::Result<Event> {
        let id = self.next;
        self.next += 1;
        let cores = self.durable.pool().free_cores().take(1);
        let gpu = GpuId((id % u64::from(GPUS)) as u16);
        let share = GpuShare {
            guarantee: Sms(1),
            cap: Sms(1),
            memory: Bytes::mib(256),
        };
        let held = Vector {
            cores,
            gpus: BTreeMap::from([(gpu, share)]),
        };
        let lease = Lease {
            id: LeaseId(id),
            tenant: Name::new("uid-1000")?,
            request: RequestId(
                u128::from(0x0190_0000_0000_7000 + id) << 64 | u128::from(id * 0x9e37_79b9),
            ),
            body: BodyHash(id.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            ask: Ask::Alone {
                cores: 1,
                gpus: vec![GpuAsk {
                    gpu: None,
                    sms: SmAsk::Count(Sms(1)),
                    memory: Bytes::mib(256),
                }],
            },
            enforced: false,
            resize: Resize::Restart,
            processes: 1,
            ttl: Millis::secs(30),
            priority: 0,
            fence: Fence(1),
            generation: Generation(0),
            target: held.clone(),
            held,
            batch: 1,
            phase: Phase::Active {
                holder: None,
                verified: false,
            },
        };
        self.leases.push_back(lease.id);
        Ok(self.happen(Event::LeaseGranted { lease }))
    }

    fn release(&mut self) -> anyhow::Result<Event> {
        let id = self.leases.pop_front().context("no lease is left")?;
        Ok(self.happen(Event::LeaseEnded {
            id,
            fence: Fence(2),
            how: End::Released,
            reason: None,
        }))
    }

    fn happen(&mut self, event: Event) -> Event {
        self.durable.evolve(&event);
        self.durable.commit();
        event
    }
}

/// CPU time of this process so far: on a busy machine the only figure that does not lie.
fn cpu_us() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let us = |t: TimeVal| t.num_microseconds() as f64;
    Ok(us(usage.user_time()) + us(usage.system_time()))
}

fn node() -> anyhow::Result<Node> {
    let core = |id| Core {
        id,
        cpus: CpuSet::range(id, id),
        numa: 0,
        package: 0,
    };
    let gpu = |id| -> anyhow::Result<Gpu> {
        Ok(Gpu {
            id: GpuId(id),
            uuid: Name::new(&format!("GPU-{id}"))?,
            model: Name::new("synthetic")?,
            sms: Sms(SMS),
            memory: Bytes::gib(80),
            reserved_memory: Bytes(0),
            enforceable: (1..=SMS).map(Sms).collect(),
            numa: 0,
            backend: GpuBackend::None,
            mode: GpuMode::Enforce,
        })
    };
    Ok(Node {
        kind: PoolKind::Synthetic,
        cores: (0..CORES).map(core).collect(),
        reserved_cores: CpuSet::new(),
        gpus: (0..GPUS).map(gpu).collect::<Result<_, _>>()?,
    })
}
