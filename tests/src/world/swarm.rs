//! What one seed's world is like: sizes, settings, and which faults it has, how often. Each seed draws a random
//! subset, so that rare combinations meet (Groce and others: Swarm testing, ISSTA 2012).
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::unit::{Bytes, Millis, Sms};

use super::planted::Planted;
use super::rng::Rng;

/// A world's parameters. Chances are in a thousand, each at its own occasion.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The hardware at the start.
    pub node: Node,
    /// Settings of the core.
    pub settings: Settings,
    /// Tenants.
    pub tenants: u64,
    /// Agents that lease for themselves.
    pub loners: u64,
    /// Jobs at a time, each with workers of its own.
    pub drivers: u64,
    /// TTLs that agents ask for, in milliseconds.
    pub ttl: (u64, u64),
    /// Milliseconds that a worker runs before it gives back.
    pub patience: (u64, u64),
    /// Most milliseconds that a request or a reply takes.
    pub latency: u64,
    /// A request or a reply is lost.
    pub lose: u32,
    /// A request arrives twice.
    pub repeat: u32,
    /// A request or a reply takes seconds.
    pub dawdle: u32,
    /// A commit meets a fault.
    pub commit_fault: u32,
    /// Of those, the disk is full.
    pub full: u32,
    /// A commit takes a second or more.
    pub slow_commit: u32,
    /// Crashes between two steps, per hour.
    pub crashes: u64,
    /// Of the crashes, so many restart the machine.
    pub reboot: u32,
    /// A daemon that is down stays down for long.
    pub long_down: u32,
    /// Stalls of the daemon, per hour.
    pub stalls: u64,
    /// Most commands in a batch.
    pub batch: u64,
    /// A worker dies, hangs, vanishes, ignores directives, says that it has applied what it has not.
    pub worker: Workers,
    /// A step of the reconciler is lost.
    pub bind_fails: u32,
    /// A look sees nothing of a resource.
    pub blind: u32,
    /// Devices that hang for a while, per hour.
    pub silences: u64,
    /// Changes of the hardware per hour.
    pub changes: u64,
    /// Words of an admin per hour.
    pub admin: u64,
    /// Nonsense and mischief per hour.
    pub mischief: u64,
    /// Load is constant, and every curve is known exactly: nothing may move.
    pub steady: bool,
    /// The product is broken like this.
    pub planted: Option<Planted>,
}

/// What workers do wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Workers {
    /// Ends without a word.
    pub die: u32,
    /// Gets SIGSTOP.
    pub hang: u32,
    /// Stops renewing, but runs on.
    pub vanish: u32,
    /// Ignores directives.
    pub deaf: u32,
    /// Acknowledges what it has not applied.
    pub lie: u32,
    /// Falls silent until its deadline and grace are about over, and then renews in haste.
    pub late: u32,
    /// Ignores SIGTERM.
    pub stubborn: u32,
    /// Cannot be killed for a while.
    pub stuck: u32,
    /// Lets its contexts take more SMs than they were given.
    pub widen: u32,
}

fn name(s: &str) -> Name {
    Name::new(s).unwrap_or_else(|_| Name::unknown())
}

/// A tenant's name.
pub fn tenant(n: u64) -> Name {
    const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];
    name(NAMES[(n % 4) as usize])
}

/// A GPU whose backend enforces multiples of `granule` SMs.
pub fn gpu(id: u16, sms: u32, granule: u32, memory: Bytes) -> Gpu {
    Gpu {
        id: GpuId(id),
        uuid: name(&format!("GPU-{id}")),
        model: name("EMU"),
        sms: Sms(sms),
        memory,
        reserved_memory: Bytes::mib(512),
        enforceable: (1..=sms / granule).map(|i| Sms(i * granule)).collect(),
        numa: id % 2,
        backend: GpuBackend::Emulated,
        mode: GpuMode::Enforce,
    }
}

/// A node of `cores` cores, the first of them reserved; two threads each where `smt`; two NUMA nodes.
pub fn node(kind: PoolKind, cores: u32, reserved: u32, smt: bool, gpus: Vec<Gpu>) -> Node {
    let core = |id: u32| {
        let mut cpus = CpuSet::new();
        cpus.insert(id);
        if smt {
            cpus.insert(id + cores);
        }
        Core {
            id,
            cpus,
            numa: u16::from(id >= cores / 2),
            package: 0,
        }
    };
    Node {
        kind,
        cores: (0..cores).map(core).collect(),
        reserved_cores: (0..reserved).collect(),
        gpus,
    }
}

impl Swarm {
    /// The world of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut r = Rng::new(seed).branch("swarm", 0);
        let node = draw_node(&mut r);
        let settings = Settings {
            ttl: Millis(5_000),
            grace: Millis(*r.pick(&[0, 500, 2_000, 10_000])),
            release_grace: Millis(*r.pick(&[0, 2_000, 10_000, 60_000])),
            quarantine_kill: Millis(*r.pick(&[1_000, 5_000, 30_000])),
            kill_after_term: Millis(*r.pick(&[1_000, 10_000])),
            park_after: Millis(*r.pick(&[3_000, 20_000, 600_000])),
            drain: Millis(60_000),
            worker_stall: Millis(600_000),
            remember_for: Millis(*r.pick(&[20_000, 120_000, 86_400_000])),
            remember_ends: *r.pick(&[5, 50, 100_000]),
            stall: Millis(2_000),
            unrenewed_ttls: 3,
            leases_max: *r.pick(&[6, 25, 100_000]),
            queue_max: *r.pick(&[2, 10, 10_000]),
            jobs_max: *r.pick(&[1, 3, 1_000]),
            tenant_leases_max: if seed % 5 == 1 { 4 } else { 50_000 },
            tenant_queue_max: if seed % 5 == 2 { 1 } else { 5_000 },
            tenant_jobs_max: if seed % 5 == 4 { 1 } else { 500 },
        };
        let mut some = |often: &[u32]| if r.chance(500) { *r.pick(often) } else { 0 };
        let worker = Workers {
            die: some(&[2, 10, 40]),
            hang: some(&[2, 10, 30]),
            vanish: some(&[5, 20, 50]),
            deaf: some(&[50, 200]),
            lie: some(&[50, 200]),
            late: some(&[5, 30]),
            stubborn: some(&[100, 500]),
            stuck: some(&[20, 200]),
            widen: if seed % 5 == 1 { 20 } else { 0 },
        };
        let mut swarm = Self {
            patience: (500, 60_000),
            lose: some(&[5, 30, 150]),
            repeat: some(&[10, 100, 300]),
            dawdle: some(&[5, 30]),
            commit_fault: some(&[2, 10, 50]),
            full: *[100, 400, 900].get((seed % 3) as usize).unwrap_or(&400),
            slow_commit: some(&[5, 50]),
            crashes: some(&[20, 100, 400]).into(),
            reboot: some(&[50, 300]),
            long_down: some(&[50, 300]),
            stalls: some(&[20, 100]).into(),
            bind_fails: some(&[20, 200]),
            blind: some(&[20, 200]),
            silences: [0, 60, 0, 240][(seed % 4) as usize],
            changes: some(&[30, 200]).into(),
            admin: some(&[60, 600]).into(),
            mischief: some(&[300, 2000]).into(),
            tenants: r.range(1, 4),
            loners: r.range(2, 8),
            drivers: r.range(0, 3),
            ttl: *r.pick(&[(1_000, 3_000), (2_000, 10_000), (5_000, 30_000)]),
            latency: *r.pick(&[2, 20, 200]),
            batch: *r.pick(&[1, 4, 128]),
            worker,
            node,
            settings,
            steady: false,
            planted: None,
        };
        if seed.is_multiple_of(3) {
            swarm.move_shares();
        }
        swarm
    }

    /// Two jobs whose workers stay, so that shares move under them.
    fn move_shares(&mut self) {
        let gpus = vec![
            gpu(0, 132, 4, Bytes::gib(80)),
            gpu(1, 108, 2, Bytes::gib(80)),
        ];
        self.node = node(PoolKind::Local, 16, 1, self.latency == 2, gpus);
        (self.loners, self.drivers) = (1, 2);
        self.patience = (20_000, 300_000);
        self.ttl = (2_000, 10_000);
        self.settings.leases_max = self.settings.leases_max.max(25);
        self.settings.jobs_max = self.settings.jobs_max.max(3);
        self.settings.park_after = self.settings.park_after.max(Millis(20_000));
        let w = &mut self.worker;
        (w.die, w.hang, w.vanish, w.late) =
            (w.die.min(4), w.hang.min(4), w.vanish.min(5), w.late.min(5));
    }

    /// One job under constant load, exactly as measured, without any fault.
    pub fn steady(seed: u64) -> Self {
        let mut swarm = Self::draw(seed);
        swarm.node = node(
            PoolKind::Local,
            12,
            1,
            false,
            vec![gpu(0, 64, 2, Bytes::gib(80))],
        );
        swarm.settings = Settings::default();
        (swarm.tenants, swarm.loners, swarm.drivers) = (1, 0, 1);
        (swarm.lose, swarm.repeat, swarm.dawdle, swarm.latency) = (0, 0, 0, 2);
        (
            swarm.commit_fault,
            swarm.slow_commit,
            swarm.crashes,
            swarm.stalls,
        ) = (0, 0, 0, 0);
        (swarm.mischief, swarm.changes, swarm.admin) = (0, 0, 0);
        (swarm.bind_fails, swarm.blind, swarm.silences) = (0, 0, 0);
        swarm.worker = Workers::default();
        swarm.ttl = (4_000, 4_000);
        swarm.steady = true;
        swarm
    }

    /// A world in which everything happens, broken like this.
    pub fn broken(seed: u64, planted: Planted) -> Self {
        let mut swarm = Self::draw(seed);
        swarm.node = node(
            PoolKind::Local,
            8,
            1,
            false,
            vec![gpu(0, 132, 4, Bytes::gib(80))],
        );
        swarm.settings = Settings {
            ttl: Millis(5_000),
            grace: Millis(500),
            quarantine_kill: Millis(5_000),
            kill_after_term: Millis(2_000),
            park_after: Millis(20_000),
            ..Settings::default()
        };
        swarm.tenants = 3;
        (swarm.loners, swarm.drivers) = (6, 1);
        (swarm.lose, swarm.repeat, swarm.dawdle, swarm.latency) = (20, 100, 5, 20);
        (swarm.commit_fault, swarm.full, swarm.slow_commit) = (20, 300, 400);
        (swarm.crashes, swarm.reboot, swarm.stalls) = (200, 0, 60);
        (swarm.mischief, swarm.changes, swarm.admin) = (1_000, 0, 0);
        (swarm.bind_fails, swarm.blind, swarm.silences) = (0, 0, 0);
        swarm.ttl = (2_000, 6_000);
        swarm.worker = Workers {
            die: 2,
            hang: 5,
            vanish: 60,
            late: 200,
            deaf: 50,
            ..Workers::default()
        };
        swarm.show(planted);
        swarm
    }

    /// More of what the fault needs to show itself.
    fn show(&mut self, planted: Planted) {
        self.planted = Some(planted);
        match planted {
            Planted::GrowBeforeShrink | Planted::TargetsNotWritten => {
                // Jobs move shares; those that lease for themselves do everything else.
                (self.loners, self.drivers, self.patience) = (1, 2, (20_000, 300_000));
                self.worker = Workers {
                    deaf: 300,
                    ..Workers::default()
                };
                (self.lose, self.dawdle, self.repeat, self.mischief) = (0, 0, 0, 0);
                if planted == Planted::GrowBeforeShrink {
                    (self.loners, self.crashes, self.patience) = (0, 0, (60_000, 600_000));
                }
            }
            Planted::StallNotCredited => {
                (self.stalls, self.ttl) = (600, (4_000, 10_000));
                (self.worker.vanish, self.crashes, self.loners, self.drivers) = (0, 0, 8, 0);
            }
            Planted::DowntimeCounted => {
                (self.long_down, self.crashes, self.ttl) = (500, 400, (5_000, 10_000));
            }
            Planted::CancelTakesAtOnce => (self.loners, self.drivers) = (1, 3),
            Planted::RenewalAfterClosing => {
                (self.slow_commit, self.worker.late) = (900, 600);
                (self.crashes, self.loners, self.drivers) = (0, 8, 0);
            }
            Planted::GoneWithoutTheGpu => self.silences = 240,
            Planted::LostWhenStopping => {
                // Only commits of expiries are in doubt.
                (self.commit_fault, self.full, self.crashes) = (1, 0, 0);
                (self.patience, self.worker.late) = ((20_000, 60_000), 600);
            }
            _ => {}
        }
    }
}

fn draw_node(r: &mut Rng) -> Node {
    let kind = if r.chance(150) {
        PoolKind::Synthetic
    } else {
        PoolKind::Local
    };
    let gpus = (0..r.range(0, 3) as u16).map(|id| {
        let (sms, granule) = *r.pick(&[(132, 4), (108, 2), (16, 1), (78, 8)]);
        gpu(id, sms, granule, Bytes::gib(*r.pick(&[16, 80])))
    });
    let gpus = gpus.collect();
    let cores = *r.pick(&[4, 6, 8, 16, 32]);
    let reserved = u32::from(cores > 4);
    node(kind, cores as u32, reserved, r.chance(300), gpus)
}
