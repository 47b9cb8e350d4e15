//! A node to play on, without a daemon: each command is committed at once, and the invariants are checked after it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]
use std::collections::BTreeMap;

use evenkeel_core::command::{Acquire, Caller, Command, Observation, Rejection, Reply, Seen};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, GpuAsk, Member, Resize, SmAsk};
use evenkeel_core::id::{BodyHash, Fence, GpuId, JobId, LeaseId, RequestId, StageId, WorkerId};
use evenkeel_core::invariant::violations;
use evenkeel_core::job::{Job, JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::lease::Holder;
use evenkeel_core::node::Node;
use evenkeel_core::settings::Settings;
use evenkeel_core::state::Durable;
use evenkeel_core::step::{State, step};
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms, Time};
use evenkeel_core::volatile::Volatile;

#[path = "../rig/mod.rs"]
mod rig;
pub use rig::{name, node};

pub fn caller(tenant: &str) -> Caller {
    Caller::user(name(tenant))
}

/// A node, and requests with rising numbers.
pub struct Stage {
    pub s: State,
    requests: u128,
}

impl Stage {
    pub fn with(node: Node, settings: Settings) -> Self {
        let durable = Durable::new(node);
        let volatile = Volatile::start(&durable, settings, Time(0), BTreeMap::new());
        Self {
            s: State { durable, volatile },
            requests: 0,
        }
    }
    pub fn new() -> Self {
        Self::with(node(), Settings::default())
    }
    pub fn d(&self) -> &Durable {
        &self.s.durable
    }
    pub fn run(&mut self, command: Command) -> (Vec<String>, Result<Reply, Rejection>) {
        let settled = step(&mut self.s, Time(1), &[command]).settle(&mut self.s, Time(1));
        assert_eq!(violations(self.d()), []);
        let events = settled.events.iter().map(brief).collect();
        (events, settled.answers.into_iter().next().unwrap())
    }
    pub fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }
    pub fn acquire(
        &mut self,
        tenant: &str,
        ask: Ask,
        change: impl FnOnce(&mut Acquire),
    ) -> (Vec<String>, Result<Reply, Rejection>) {
        let mut acquire = Acquire {
            tenant: name(tenant),
            request: self.request(),
            body: BodyHash(1),
            ask,
            enforced: true,
            resize: None,
            processes: None,
            ttl: Millis(30_000),
            wait: false,
            priority: 0,
        };
        change(&mut acquire);
        self.run(Command::Acquire(Box::new(acquire)))
    }
    pub fn submit(
        &mut self,
        tenant: &str,
        spec: JobSpec,
    ) -> (Vec<String>, Result<Reply, Rejection>) {
        let request = self.request();
        self.run(Command::Submit {
            caller: caller(tenant),
            request,
            body: BodyHash(1),
            spec: Box::new(spec),
        })
    }
    pub fn release(&mut self, lease: u64) -> Vec<String> {
        self.run(Command::Release {
            caller: caller("alice"),
            lease: LeaseId(lease),
            fence: self.d().leases()[&LeaseId(lease)].fence,
        })
        .0
    }
    pub fn import(&mut self, profile: Profile) -> Result<Reply, Rejection> {
        let profile = Box::new(profile);
        self.run(Command::Import { profile }).1
    }
    pub fn job(&self, id: u64) -> &Job {
        &self.d().jobs()[&JobId(id)]
    }
}

pub fn brief(event: &Event) -> String {
    match event {
        Event::LeaseGranted { lease } => {
            format!("{} has cores {}", lease.id, lease.target.cores)
        }
        Event::LeaseQueued { lease } => format!("{} waits", lease.id),
        Event::LeaseEnded { id, .. } => format!("{id} ended"),
        Event::JobSubmitted { job } => format!("{} submitted", job.id),
        Event::JobAdmitted { id, .. } => format!("{id} admitted"),
        other => other.kind().into(),
    }
}

pub fn cores(n: u32) -> Ask {
    Ask::Alone {
        cores: n,
        gpus: vec![],
    }
}
pub fn sms(gpu: u16, n: u32) -> Ask {
    Ask::Alone {
        cores: 0,
        gpus: vec![GpuAsk {
            gpu: Some(GpuId(gpu)),
            sms: SmAsk::Count(Sms(n)),
            memory: Bytes::gib(1),
        }],
    }
}
pub fn worker(job: u64, stage: u8) -> Ask {
    Ask::Stage(Member {
        job: JobId(job),
        stage: StageId(stage),
        worker: WorkerId(0),
    })
}
pub fn waiting(a: &mut Acquire) {
    a.wait = true;
}

pub fn stage(of: &str, role: Role, cores: u32, sms: (u32, u32)) -> StageSpec {
    StageSpec {
        name: name(of),
        role,
        workers: 1,
        processes: 1,
        cores: (cores, cores),
        sms: (Sms(sms.0), Sms(sms.1)),
        memory: Bytes::gib(u64::from(sms.1 > 0)),
        batches: vec![],
        synchronous: false,
        resize: Resize::Live,
        profile: None,
    }
}
pub fn job(of: &str, stages: Vec<StageSpec>) -> JobSpec {
    JobSpec {
        name: name(of),
        unit: name("step"),
        priority: 0,
        weight: 1.0,
        gpus: vec![],
        gpu_count: 0,
        groups: 2,
        policy: Policy::Waterfill,
        sm_mode: SmMode::Reserve,
        rebalance: RebalanceSpec::default(),
        stages,
    }
}
pub fn on_cores(of: &str, n: u32) -> JobSpec {
    job(of, vec![stage("sim", Role::Simulation, n, (0, 0))])
}
pub fn on_gpu(of: &str, gpu: u16, n: u32) -> JobSpec {
    let gpus = vec![GpuId(gpu)];
    JobSpec {
        gpus,
        ..job(of, vec![stage("gen", Role::Generation, 0, (n, n))])
    }
}

pub fn refusal(answer: Result<Reply, Rejection>) -> String {
    answer.unwrap_err().to_string()
}

pub fn profile(tenant: &str, of: &str, points: &[(u32, u32, f64)]) -> Profile {
    let point = |&(cores, sms, rate): &(u32, u32, f64)| Point {
        cores,
        sms: Sms(sms),
        batch: 1,
        replicas: 1,
        rate: Rate::new(rate).unwrap(),
        memory: Bytes::gib(1),
        weight: 1.0,
    };
    Profile {
        key: ProfileKey {
            tenant: name(tenant),
            stage: name(of),
            gpu: name("EMU"),
        },
        points: points.iter().map(point).collect(),
    }
}

/// Attaches to a lease and shows it to the daemon with what it was told to have.
pub fn hold(s: &mut Stage, lease: u64) {
    let id = LeaseId(lease);
    let _ = s.run(Command::Attach {
        caller: caller("alice"),
        lease: id,
        fence: Fence(1),
        holder: Holder {
            pid: lease as u32,
            start_time: 1,
            uid: 1,
        },
    });
    seen(s, lease);
}
/// The holder has applied its target, and is seen with it.
pub fn seen(s: &mut Stage, lease: u64) {
    let l = s.d().leases()[&LeaseId(lease)].clone();
    let _ = s.run(Command::Acknowledge {
        caller: caller("alice"),
        lease: l.id,
        fence: l.fence,
        generation: l.generation,
        effective: l.target.clone(),
    });
    let gpus = l.target.gpus.iter().map(|(id, share)| {
        let seen = Seen {
            clients: 1,
            cap: share.cap,
            memory: share.memory,
        };
        (*id, seen)
    });
    let _ = s.run(Command::Observe(Box::new(Observation {
        lease: l.id,
        fence: l.fence,
        generation: l.generation,
        gone: false,
        cores: Some(l.target.cores.clone()),
        gpus: gpus.collect(),
    })));
}
