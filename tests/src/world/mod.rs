//! The simulated world: one thread, seeded, on virtual time, around the production decisions, row-writing fold and
//! loader. Clients, workers, a network that loses and repeats, a daemon that crashes at every point of a commit,
//! a reconciler, and hardware. After every happening the invariants are checked.
//!
//! The same seed gives the same trace. A happening is one thing that happens: a message, a step, a commit, a look,
//! an act of somebody.
mod admin;
pub mod agent;
mod calm;
pub mod coverage;
mod daemon;
pub mod floors;
pub mod hardware;
pub mod job;
pub mod mischief;
pub mod planted;
pub mod queueing;
pub mod reality;
mod reconciler;
pub mod rng;
pub mod sabotage;
pub mod shell;
pub mod swarm;
pub mod trace;
pub mod truth;
pub mod turn;
pub mod wish;

use std::collections::BTreeMap;

use evenkeel_core::converge::Order;
use evenkeel_core::grant::Member;
use evenkeel_core::id::{GpuId, JobId, StageId, WorkerId};
use evenkeel_core::invariant::Violation;
use evenkeel_core::node::Node;
use evenkeel_core::unit::Time;

use agent::{Agent, Call, Turn};
use hardware::Hardware;
use job::{Driver, Model};
use mischief::Mischief;
pub use rng::Rng;
use shell::{Said, Shell, Who};
use swarm::Swarm;
use trace::{Counts, Trace};
use truth::Truth;

/// Agents that each driver has for its workers.
const CREW: u64 = 6;

/// Something that will happen.
#[derive(Clone, Debug)]
enum Happening {
    Act(usize),
    Drive(usize),
    Arrive(Call),
    Reply(Who, u64, Said),
    Start,
    Wake { epoch: u32 },
    Commit { epoch: u32 },
    Look { epoch: u32 },
    Apply { epoch: u32 },
    Crash,
    Stall,
    Admin,
    Change,
    Silence,
    Answer(GpuId),
    Mischief,
}

/// A world.
pub struct World {
    /// What it is like.
    pub swarm: Swarm,
    /// Milliseconds since it began.
    pub now: u64,
    boot_at: u64,
    boots: u64,
    /// The boot that the ledger knows.
    noted_boot: u64,
    queue: BTreeMap<(u64, u64, u64), Happening>,
    seq: u64,
    tokens: u64,
    net: Rng,
    fates: Rng,
    fate: shell::Fate,
    chance: Rng,
    /// The daemon.
    pub shell: Shell,
    /// What is known for certain.
    pub truth: Truth,
    /// The machine.
    pub hw: Hardware,
    node: Node,
    agents: Vec<Agent>,
    drivers: Vec<Driver>,
    models: Vec<Option<Model>>,
    mischief: Mischief,
    looked: Vec<(
        evenkeel_core::converge::Target,
        Vec<evenkeel_core::converge::Step>,
    )>,
    stalled_until: u64,
    down_at: Time,
    committed: u64,
    /// How often what happened.
    pub counts: Counts,
    /// What happened.
    pub trace: Trace,
    calm: bool,
    over: bool,
}

/// How a world ended.
#[derive(Debug)]
pub struct Outcome {
    /// Happenings.
    pub happenings: u64,
    /// Of them, those in which only time passed.
    pub timers: u64,
    /// Equal for equal histories.
    pub hash: u64,
    /// How often what happened.
    pub counts: Counts,
    /// What is broken, and the lines that led there.
    pub violation: Option<(Violation, String)>,
}

impl World {
    /// A world that begins. `print` writes its trace.
    pub fn new(seed: u64, swarm: Swarm, keep: bool, print: bool) -> Self {
        let root = Rng::new(seed);
        let mut agents = Vec::new();
        for i in 0..swarm.loners {
            let tenant = swarm::tenant(i % swarm.tenants);
            agents.push(Agent::new(
                agents.len(),
                tenant,
                None,
                root.branch("agent", i),
            ));
        }
        let mut drivers = Vec::new();
        for i in 0..swarm.drivers {
            let tenant = swarm::tenant(i % swarm.tenants);
            for n in 0..CREW {
                let nowhere = Member {
                    job: JobId(0),
                    stage: StageId(0),
                    worker: WorkerId(0),
                };
                let place = Some((i as usize, nowhere));
                let rng = root.branch("crew", i * CREW + n);
                agents.push(Agent::new(agents.len(), tenant.clone(), place, rng));
            }
            drivers.push(Driver::new(i as usize, tenant, root.branch("driver", i)));
        }
        let mut world = Self {
            now: 0,
            boot_at: 0,
            boots: 1,
            noted_boot: 1,
            queue: BTreeMap::new(),
            seq: 0,
            tokens: 0,
            net: root.branch("net", 0),
            fates: root.branch("fates", 0),
            fate: shell::Fate::Durable,
            chance: root.branch("chance", 0),
            shell: Shell::new(swarm.settings, swarm.planted),
            truth: Truth::new(&swarm.settings),
            hw: Hardware::new(swarm.node.shared_cpus()),
            node: swarm.node.clone(),
            models: vec![None; drivers.len()],
            agents,
            drivers,
            mischief: Mischief::new(root.branch("mischief", 0)),
            looked: Vec::new(),
            stalled_until: 0,
            down_at: Time(0),
            committed: 0,
            counts: Counts::default(),
            trace: Trace::new(keep, print),
            calm: false,
            over: false,
            swarm,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.at(0, Happening::Start);
        for i in 0..self.agents.len() {
            let after = self.chance.range(1, 3_000);
            self.at(after, Happening::Act(i));
        }
        for i in 0..self.drivers.len() {
            let after = self.chance.range(1, 3_000);
            self.at(after, Happening::Drive(i));
        }
        for kind in [
            Happening::Crash,
            Happening::Stall,
            Happening::Admin,
            Happening::Change,
            Happening::Silence,
            Happening::Mischief,
        ] {
            self.again(kind);
        }
    }
    /// The next happening of a kind that has a rate.
    fn again(&mut self, kind: Happening) {
        let s = &self.swarm;
        let per_hour = match kind {
            Happening::Crash => s.crashes,
            Happening::Stall => s.stalls,
            Happening::Admin => s.admin,
            Happening::Change => s.changes,
            Happening::Silence => s.silences,
            Happening::Mischief => s.mischief,
            _ => 0,
        };
        if per_hour > 0 && !self.calm {
            let after = self.chance.range(1, 2 * 3_600_000 / per_hour);
            self.at(after, kind);
        }
    }
    /// BOOTTIME.
    pub fn clock(&self) -> Time {
        Time(self.now - self.boot_at + 1_000)
    }
    /// Something happens after so many milliseconds; among what happens at the same time, in any order.
    fn at(&mut self, after: u64, happening: Happening) {
        self.seq += 1;
        let tie = match happening {
            // What the daemon does comes in its own order.
            Happening::Wake { .. } | Happening::Commit { .. } | Happening::Apply { .. } => self.seq,
            _ => self.net.bits() % (self.seq + 8),
        };
        self.queue
            .insert((self.now + after, tie, self.seq), happening);
    }

    /// Lets `most` things happen, then stops all faults and checks that everything comes to rest.
    pub fn run(mut self, most: u64) -> Outcome {
        let (mut happenings, mut timers) = (0, 0);
        let mut verdict = Ok(());
        while happenings < most && verdict.is_ok() {
            match self.next() {
                Ok(None) => break,
                Ok(Some(Kind::Nothing)) => {}
                Ok(Some(kind)) => {
                    happenings += 1;
                    timers += u64::from(kind == Kind::Timer);
                }
                Err(violation) => verdict = Err(violation),
            }
        }
        if verdict.is_ok() {
            verdict = self.come_to_rest();
        }
        let violation = verdict.err().map(|v| (v, self.trace.tail()));
        Outcome {
            happenings,
            timers,
            hash: self.trace.hash(),
            counts: self.counts,
            violation,
        }
    }

    /// The next thing happens.
    fn next(&mut self) -> Result<Option<Kind>, Violation> {
        let Some(((at, ..), happening)) = self.queue.pop_first() else {
            return Ok(None);
        };
        self.now = self.now.max(at);
        if self.now < self.stalled_until && happening.is_the_daemons() {
            let after = self.stalled_until - self.now;
            self.at(after, happening);
            return Ok(Some(Kind::Nothing));
        }
        self.happen(happening).map(Some)
    }

    fn happen(&mut self, happening: Happening) -> Result<Kind, Violation> {
        match happening {
            Happening::Act(i) => self.act(i),
            Happening::Drive(i) => self.drive(i),
            Happening::Arrive(call) => return self.arrive(call),
            Happening::Reply(who, token, said) => self.hear(who, token, &said),
            Happening::Start => self.start()?,
            Happening::Wake { epoch } => return self.wake(epoch),
            Happening::Commit { epoch } => return self.commit(epoch),
            Happening::Look { epoch } => return self.look(epoch),
            Happening::Apply { epoch } => return self.apply(epoch),
            Happening::Crash => {
                self.crash("between steps");
                self.again(Happening::Crash);
            }
            Happening::Stall => self.stall(),
            Happening::Admin => self.admin(),
            Happening::Change => self.change(),
            Happening::Silence => self.silence(),
            Happening::Answer(gpu) => self.hw.answer(gpu),
            Happening::Mischief => self.make_mischief(),
        }
        reality::reality_is_counted(&self.truth.fold, &self.hw)?;
        Ok(Kind::Happened)
    }

    /// Somebody's turn.
    fn turn<T>(&mut self, f: impl FnOnce(&mut Turn<'_>, &mut Parties<'_>) -> T) -> T {
        let models = self.models.clone();
        let clock = self.clock();
        let mut turn = Turn {
            now: self.now,
            clock,
            hw: &mut self.hw,
            swarm: &self.swarm,
            calm: self.calm,
            models: &models,
            out: Vec::new(),
            given_up: Vec::new(),
            tokens: &mut self.tokens,
        };
        let mut parties = Parties {
            agents: &mut self.agents,
            drivers: &mut self.drivers,
            models: &mut self.models,
        };
        let done = f(&mut turn, &mut parties);
        let (out, given_up) = (turn.out, turn.given_up);
        self.truth
            .given_up
            .extend(given_up.into_iter().map(|id| (id, ())));
        out.into_iter().for_each(|call| self.send(call));
        done
    }
    fn act(&mut self, i: usize) {
        let after = self.turn(|turn, p| p.agents[i].act(turn));
        self.trace.line(self.now, format_args!("agent {i}"));
        self.at(after.max(1), Happening::Act(i));
    }
    fn drive(&mut self, i: usize) {
        let over = self.over;
        let after = self.turn(|turn, p| p.drivers[i].act(turn, &mut p.models[i], over));
        self.trace.line(self.now, format_args!("driver {i}"));
        self.at(after, Happening::Drive(i));
    }
    fn hear(&mut self, who: Who, token: u64, said: &Said) {
        self.trace
            .line(self.now, format_args!("{who:?} hears {}", brief(said)));
        if let Said::Renewed(Some(directive)) = said {
            self.counts.add("told", told(&directive.order));
        }
        match who {
            Who::Agent(i) => self.turn(|turn, p| p.agents[i].hear(turn, token, said)),
            Who::Driver(i) => {
                let changed =
                    self.turn(|turn, p| p.drivers[i].hear(turn, &mut p.models[i], token, said));
                if changed {
                    self.staff(i);
                }
            }
            Who::Mischief => self.mischief.hear(said),
            _ => {}
        }
    }
    /// The workers of a job that has begun.
    fn staff(&mut self, driver: usize) {
        let Some(job) = self.models[driver].as_ref().map(|m| m.id) else {
            return;
        };
        let places = self.drivers[driver].places(job);
        let first = self.swarm.loners as usize + driver * CREW as usize;
        for (agent, place) in self.agents[first..]
            .iter_mut()
            .zip(places)
            .take(CREW as usize)
        {
            agent.assign(Some((driver, place)));
        }
    }

    /// A call leaves; the network does with it what it does.
    fn send(&mut self, call: Call) {
        if let Some(after) = self.latency() {
            if !self.calm && self.net.chance(self.swarm.repeat) {
                let later = after + self.net.range(1, 4_000);
                self.at(later, Happening::Arrive(call.clone()));
            }
            self.at(after, Happening::Arrive(call));
        }
    }
    /// An answer leaves.
    fn answer(&mut self, who: Who, token: u64, said: Said) {
        if matches!(who, Who::Timer | Who::Reconciler | Who::Admin) {
            return;
        }
        if let Some(after) = self.latency() {
            self.at(after, Happening::Reply(who, token, said));
        }
    }
    /// How long a message takes; none: it is lost.
    fn latency(&mut self) -> Option<u64> {
        let normal = self.net.range(0, self.swarm.latency);
        if self.calm {
            return Some(normal);
        }
        if self.net.chance(self.swarm.lose) {
            return None;
        }
        let dawdles = self.net.chance(self.swarm.dawdle);
        Some(if dawdles {
            self.net.range(500, 15_000)
        } else {
            normal
        })
    }
}

/// Those who act.
struct Parties<'a> {
    agents: &'a mut Vec<Agent>,
    drivers: &'a mut Vec<Driver>,
    models: &'a mut Vec<Option<Model>>,
}

/// What a happening was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Something happened.
    Happened,
    /// Only time passed.
    Timer,
    /// Nothing at all: it was put off, or came too late.
    Nothing,
}

impl Happening {
    /// Whether it waits while the daemon stands still.
    const fn is_the_daemons(&self) -> bool {
        matches!(
            self,
            Self::Arrive(_)
                | Self::Wake { .. }
                | Self::Commit { .. }
                | Self::Look { .. }
                | Self::Apply { .. }
        )
    }
}

const fn told(order: &Order) -> &'static str {
    match order {
        Order::Target { .. } => "target",
        Order::Restart { .. } => "restart",
        Order::Release => "release",
        Order::Drain => "drain",
    }
}

fn brief(said: &Said) -> String {
    use evenkeel_core::command::Reply;
    match said {
        Said::Answer(Ok(Reply::Lease(l))) => {
            format!(
                "{} {} {} {}",
                l.id,
                l.phase.name().as_str(),
                l.fence,
                l.generation
            )
        }
        Said::Answer(Ok(other)) => format!("{other:?}"),
        Said::Answer(Err(e)) => e.reason().to_owned(),
        Said::Renewed(d) => format!("renewed {:?}", d.as_ref().map(|d| &d.order)),
        other => format!("{other:?}"),
    }
}
