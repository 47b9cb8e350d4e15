//! A batch size on its way from a plan to a worker: with the grant, with each target, and alone where nothing else
//! changes; never larger than the memory that the worker has on the way.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use evenkeel_core::command::{Acquire, Command, Reply};
use evenkeel_core::decide::{Touched, follow};
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, GpuShare, Member, Resize, Vector};
use evenkeel_core::id::{
    BodyHash, Generation, GpuId, JobId, LeaseId, Name, RequestId, StageId, WorkerId,
};
use evenkeel_core::job::{
    Job, JobPhase, JobSpec, Plan, Policy, RebalanceSpec, Role, SmMode, StagePlan, StageSpec,
};
use evenkeel_core::lease::Lease;
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeel_core::step::{State, step};
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms, Time};
use evenkeel_core::volatile::Volatile;

const GPU: GpuId = GpuId(0);

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

/// Four cores that exist in the ledger only, and a GPU of 100 SMs and 80 GiB.
fn node() -> Node {
    let core = |id: u32| Core {
        id,
        cpus: (id..=id).collect(),
        numa: 0,
        package: 0,
    };
    let gpu = Gpu {
        id: GPU,
        uuid: name("GPU-0"),
        model: name("EMU"),
        sms: Sms(100),
        memory: Bytes::gib(80),
        reserved_memory: Bytes(0),
        enforceable: (1..=100).map(Sms).collect(),
        numa: 0,
        backend: GpuBackend::None,
        mode: GpuMode::Enforce,
    };
    Node {
        kind: PoolKind::Synthetic,
        cores: (0..4).map(core).collect(),
        reserved_cores: Default::default(),
        gpus: vec![gpu],
    }
}

/// What one stage gets: SMs, GiB, batch size.
type Part = (u32, u64, u32);

/// A plan for generation and training, a worker each.
fn plan(parts: [Part; 2]) -> Plan {
    let stage = |(sms, gib, batch): Part| {
        let share = GpuShare {
            guarantee: Sms(sms),
            cap: Sms(sms),
            memory: Bytes::gib(gib),
        };
        let vector = Vector {
            cores: Default::default(),
            gpus: [(GPU, share)].into(),
        };
        StagePlan {
            workers: vec![vector],
            cores: 0,
            sms: Sms(sms),
            cap: Sms(sms),
            memory: Bytes::gib(gib),
            batch,
            predicted: Rate::clamped(1.0),
        }
    };
    Plan {
        stages: parts.map(stage).into(),
        gpus: vec![GPU],
        t_r: Rate::clamped(1.0),
        t_train: Rate::clamped(1.0),
        theta: Rate::clamped(1.0),
        binding: StageId(0),
        by: name("waterfill"),
        why: vec![],
        caps: Default::default(),
    }
}

fn job(resize: Resize) -> Job {
    let stage = |stage: &str, role| StageSpec {
        name: name(stage),
        role,
        workers: 1,
        processes: 1,
        cores: (0, 0),
        sms: (Sms(1), Sms(100)),
        memory: Bytes::gib(1),
        batches: vec![1, 16, 32, 64, 128],
        synchronous: false,
        resize,
        profile: None,
    };
    let spec = JobSpec {
        name: name("pick"),
        unit: name("env_step"),
        priority: 0,
        weight: 1.0,
        gpus: vec![],
        gpu_count: 1,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec::default(),
        stages: vec![
            stage("gen", Role::Generation),
            stage("train", Role::Training),
        ],
    };
    Job {
        id: JobId(1),
        tenant: name("alice"),
        request: RequestId(1),
        body: BodyHash(1),
        arrival: LeaseId(1),
        spec,
        phase: JobPhase::Queued,
        plan: None,
        slots: vec![],
        scale: vec![1.0; 2],
        learned: vec![vec![]; 2],
        kappa: Vec::new(),
        moves: 0,
    }
}

struct World(State);

impl World {
    /// The job runs by this plan: generation holds lease 1, training lease 2.
    fn new(resize: Resize, parts: [Part; 2]) -> Self {
        let mut durable = Durable::new(node());
        durable.evolve(&Event::JobSubmitted { job: job(resize) });
        let admitted = Event::JobAdmitted {
            id: JobId(1),
            plan: plan(parts),
            promised: false,
        };
        durable.evolve(&admitted);
        durable.commit();
        let volatile = Volatile::start(&durable, Settings::default(), Time(0), Default::default());
        let mut world = Self(State { durable, volatile });
        for stage in 0..2 {
            world.acquire(stage, resize);
        }
        world
    }
    fn acquire(&mut self, stage: u8, resize: Resize) {
        let member = Member {
            job: JobId(1),
            stage: StageId(stage),
            worker: WorkerId(0),
        };
        let ask = Command::Acquire(Box::new(Acquire {
            tenant: name("alice"),
            request: RequestId(10 + u128::from(stage)),
            body: BodyHash(1),
            ask: Ask::Stage(member),
            enforced: false,
            resize: Some(resize),
            processes: Some(1),
            ttl: Millis::secs(30),
            wait: false,
            priority: 0,
        }));
        let settled = step(&mut self.0, Time(0), &[ask]).settle(&mut self.0, Time(0));
        assert!(matches!(settled.answers[..], [Ok(Reply::Lease(_))]));
    }
    fn lease(&self, id: u64) -> &Lease {
        &self.0.durable.leases()[&LeaseId(id)]
    }
    /// An event, and what follows from it; the batch sizes and SMs that workers are told, in order.
    fn happens(&mut self, event: Event) -> Vec<(u64, u32, u32)> {
        let mut touched = Touched::default();
        let (mut told, mut next) = (Vec::new(), vec![event]);
        while !next.is_empty() {
            for event in next {
                self.0.durable.evolve(&event);
                touched.note(&self.0.durable, &event);
                if let Event::LeaseRetargeted {
                    id, target, batch, ..
                } = &event
                {
                    let sms = target.gpus.get(&GPU).map_or(0, |s| s.guarantee.0);
                    told.push((id.0, sms, *batch));
                }
            }
            next = follow(&self.0.durable, &mut self.0.volatile, &mut touched);
        }
        self.0.durable.commit();
        told
    }
    fn moves(&mut self, parts: [Part; 2]) -> Vec<(u64, u32, u32)> {
        self.happens(Event::JobReplanned {
            id: JobId(1),
            plan: plan(parts),
            reason: "a test".into(),
        })
    }
    /// The holder was seen to have what it was told to.
    fn seen(&mut self, id: u64) -> Vec<(u64, u32, u32)> {
        let held = self.lease(id).target.clone();
        let id = LeaseId(id);
        self.happens(Event::LeaseHeld { id, held })
    }
}

#[test]
fn a_grant_has_the_plan_s_batch_size() {
    let world = World::new(Resize::Live, [(40, 8, 32), (60, 8, 1)]);
    assert_eq!((world.lease(1).batch, world.lease(2).batch), (32, 1));
}

#[test]
fn a_batch_size_alone_is_a_generation_of_its_own() {
    let mut world = World::new(Resize::Live, [(40, 8, 32), (60, 8, 1)]);
    let before = world.lease(1).target.clone();
    assert_eq!(world.moves([(40, 8, 64), (60, 8, 1)]), [(1, 40, 64)]);
    assert_eq!(world.lease(1).generation, Generation(2));
    assert_eq!(world.lease(1).target, before);
    assert_eq!(world.lease(2).generation, Generation(1), "nothing changed");
    // The same plan once more: there is nothing to tell.
    assert_eq!(world.moves([(40, 8, 64), (60, 8, 1)]), []);
}

#[test]
fn a_larger_batch_comes_with_its_memory_and_a_smaller_one_before_it_goes() {
    let mut world = World::new(Resize::Live, [(40, 8, 32), (60, 70, 1)]);
    // Training has to give SMs and memory up before generation grows into them.
    assert_eq!(world.moves([(60, 60, 128), (40, 8, 1)]), [(2, 40, 1)]);
    assert_eq!(world.lease(1).batch, 32);
    assert_eq!(world.seen(2), [(1, 60, 128)]);
    assert_eq!(world.seen(1), []);
    // Back: generation shrinks first, and its batch size with it.
    assert_eq!(
        world.moves([(40, 8, 32), (60, 70, 1)]),
        [(1, 40, 32)],
        "training waits"
    );
    assert_eq!(world.seen(1), [(2, 60, 1)]);
    assert_eq!(world.seen(2), []);
    // More SMs and less memory: what goes goes at once, the rest when training has made room.
    assert_eq!(
        world.moves([(60, 4, 16), (40, 70, 1)]),
        [(1, 40, 16), (2, 40, 1)]
    );
    assert_eq!(world.lease(1).target.gpus[&GPU].memory, Bytes::gib(4));
    assert_eq!(world.seen(2), [(1, 60, 16)]);
}

#[test]
fn a_share_that_cannot_change_keeps_its_batch_size() {
    let mut world = World::new(Resize::Fixed, [(40, 8, 32), (60, 8, 1)]);
    assert_eq!(world.moves([(40, 8, 64), (60, 8, 1)]), []);
    assert_eq!(world.lease(1).batch, 32);
}
