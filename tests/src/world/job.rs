//! Jobs: their owners, and how fast their stages really are. Load drifts, so that shares have to move.
use evenkeel_core::balance::{Busy, Report, StepReport};
use evenkeel_core::command::{Caller, Command, Rejection, Reply};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::grant::{Member, Resize};
use evenkeel_core::id::{BodyHash, JobId, Name, RequestId, StageId, WorkerId};
use evenkeel_core::job::{
    Detector, JobSpec, Policy, RebalanceSpec, Role, ShrinkFallback, SmMode, StageSpec,
};
use evenkeel_core::unit::{Bytes, Millis, Rate, Sms};

use super::agent::{Call, Turn, What};
use super::rng::Rng;
use super::shell::{Said, Who};
use super::swarm::Swarm;

/// How a live job really behaves.
#[derive(Clone, Debug)]
pub struct Model {
    /// The job.
    pub id: JobId,
    /// Whether its workers should run.
    pub live: bool,
    /// Its role and rate per unit of share, by stage.
    pub stages: Vec<(Role, f64)>,
    /// By how much each stage is slower than it was measured.
    pub drift: Vec<f64>,
}

/// What a stage does with a share, per second: less than in proportion.
fn rate(base: f64, share: f64) -> f64 {
    base * share.max(0.25).powf(0.7)
}

/// What a worker says it did since its last report.
pub fn report(model: &Model, member: Member, step: u64, (cores, sms): (u32, u32)) -> Report {
    let at = usize::from(member.stage.0);
    let (role, base) = model.stages.get(at).copied().unwrap_or((Role::Other, 1.0));
    let share = f64::from(if sms == 0 { cores } else { sms });
    let units = 0.1 * rate(base, share) / model.drift.get(at).copied().unwrap_or(1.0);
    let busy = Busy {
        lane: 0,
        start_us_ago: 120_000,
        dur_us: 100_000,
        units,
        batch: 1,
    };
    let steps = if role == Role::Training {
        vec![StepReport {
            n: step,
            consumed: units,
            discarded: 0.0,
        }]
    } else {
        Vec::new()
    };
    let (stage, worker) = (member.stage, member.worker);
    Report {
        stage,
        worker,
        lanes: 1,
        busy: vec![busy],
        steps,
        ..Report::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Idle,
    Submitting,
    Running,
    Cancelling,
}

/// The owner of one job after the other.
#[derive(Debug)]
pub struct Driver {
    me: usize,
    tenant: Name,
    rng: Rng,
    doing: Doing,
    spec: Option<JobSpec>,
    bases: Vec<f64>,
    command: Option<(u64, Command)>,
    until: u64,
    jobs: u64,
}

impl Driver {
    /// An owner without a job.
    pub const fn new(me: usize, tenant: Name, rng: Rng) -> Self {
        Self {
            me,
            tenant,
            rng,
            doing: Doing::Idle,
            spec: None,
            bases: Vec::new(),
            command: None,
            until: 0,
            jobs: 0,
        }
    }
    /// Whether it has no job.
    pub fn is_idle(&self) -> bool {
        self.doing == Doing::Idle
    }
    /// Whose jobs.
    pub const fn tenant(&self) -> &Name {
        &self.tenant
    }
    /// The places of its present job.
    pub fn places(&self, job: JobId) -> Vec<Member> {
        let stages = self.spec.iter().flat_map(|s| s.stages.iter().zip(0..));
        let of = |(s, i): (&StageSpec, u8)| {
            (0..s.workers).map(move |w| Member {
                job,
                stage: StageId(i),
                worker: WorkerId(w),
            })
        };
        stages.flat_map(of).collect()
    }
    fn call(&self, turn: &mut Turn<'_>, token: u64, command: Command) {
        turn.out.push(Call {
            who: Who::Driver(self.me),
            token,
            what: What::Command(command),
        });
    }
    fn ask(&mut self, turn: &mut Turn<'_>, command: Command) {
        *turn.tokens += 1;
        let token = *turn.tokens;
        self.command = Some((token, command.clone()));
        self.call(turn, token, command);
    }
    fn caller(&self) -> Caller {
        Caller::user(self.tenant.clone())
    }

    /// Its turn. `over`: everything is to end now. Returns in how many milliseconds it wants the next one.
    pub fn act(&mut self, turn: &mut Turn<'_>, model: &mut Option<Model>, over: bool) -> u64 {
        match self.doing {
            Doing::Idle if turn.calm || over => return 10_000,
            Doing::Idle => self.submit(turn),
            Doing::Submitting | Doing::Cancelling => {
                if let Some((token, command)) = self.command.clone() {
                    self.call(turn, token, command);
                }
            }
            Doing::Running if over || (turn.now > self.until && !turn.calm) => {
                self.cancel(turn, model)
            }
            Doing::Running => self.run(turn, model),
        }
        self.rng.range(400, 2_500)
    }

    fn submit(&mut self, turn: &mut Turn<'_>) {
        self.jobs += 1;
        let spec = draw(&mut self.rng, turn.swarm, self.me as u64, self.jobs);
        self.bases = spec
            .stages
            .iter()
            .map(|_| 10.0 + self.rng.below(90) as f64)
            .collect();
        if turn.swarm.steady || self.rng.chance(700) {
            for command in self.profiles(turn.swarm, &spec) {
                *turn.tokens += 1;
                self.call(turn, *turn.tokens, command);
            }
        }
        let command = Command::Submit {
            caller: self.caller(),
            request: RequestId(u128::from(1_000 + self.me as u64) << 64 | u128::from(self.jobs)),
            body: BodyHash(self.jobs),
            spec: Box::new(spec.clone()),
        };
        self.spec = Some(spec);
        self.doing = Doing::Submitting;
        self.ask(turn, command);
    }
    /// What a calibration would have measured: imported, or trial by trial.
    fn profiles(&mut self, swarm: &Swarm, spec: &JobSpec) -> Vec<Command> {
        let mut commands = Vec::new();
        for (stage, base) in spec.stages.iter().zip(&self.bases) {
            let gpu = swarm.node.gpus.first().map_or("none", |g| g.model.as_str());
            let gpu = if stage.sms.1 == Sms(0) { "none" } else { gpu };
            let of = |s: &str| Name::new(s).unwrap_or_else(|_| Name::unknown());
            let key = ProfileKey {
                tenant: self.tenant.clone(),
                stage: of(&format!("{}/{}", spec.name, stage.name)),
                gpu: of(gpu),
            };
            let no_gpu = stage.sms.1 == Sms(0);
            let most = if swarm.steady { u32::MAX } else { 8 };
            let counts: Vec<u32> = match swarm.steady {
                true => (1..=64).collect(),
                false => vec![1, 2, 4, 8, 16, 32, 64],
            };
            let points = counts.into_iter().map(|n| Point {
                cores: if no_gpu { n.min(most) } else { 1 },
                sms: if no_gpu { Sms(0) } else { Sms(n) },
                batch: 1,
                replicas: stage.workers,
                rate: Rate::clamped(rate(*base, f64::from(n))),
                memory: Bytes(0),
                weight: 1.0,
                ..Point::default()
            });
            if swarm.steady || self.rng.chance(600) {
                let profile = Box::new(Profile {
                    key,
                    points: points.collect(),
                });
                commands.push(Command::Import { profile });
            } else {
                let trial = |p: Point| Command::Trial {
                    key: key.clone(),
                    point: Box::new(p),
                    replaces: false,
                };
                commands.extend(points.map(trial));
            }
        }
        commands
    }

    fn run(&mut self, turn: &mut Turn<'_>, model: &mut Option<Model>) {
        let Some((model, spec)) = model.as_mut().zip(self.spec.clone()) else {
            return;
        };
        if turn.swarm.steady {
            return;
        }
        // At times nobody works for a while, so that the job may be parked.
        model.live = turn.calm || !self.rng.chance(60) && (model.live || self.rng.chance(200));
        if turn.chance(&mut self.rng, 100) {
            let at = self.rng.below(model.drift.len() as u64) as usize;
            model.drift[at] = *self.rng.pick(&[0.5, 1.0, 1.5, 2.0, 3.0]);
        }
        if turn.chance(&mut self.rng, 250) {
            self.measure_again(turn);
        }
        if turn.chance(&mut self.rng, 60) {
            let command = Command::Update {
                caller: self.caller(),
                job: spec.name.clone(),
                rebalance: self.rng.chance(300).then(|| rules(&mut self.rng)),
                policy: self.rng.chance(300).then_some(Policy::Waterfill),
                replan: self.rng.chance(600),
            };
            *turn.tokens += 1;
            self.call(turn, *turn.tokens, command);
        }
    }

    /// A new calibration says something else, and the owner wants a new plan.
    fn measure_again(&mut self, turn: &mut Turn<'_>) {
        let Some(spec) = self.spec.clone() else {
            return;
        };
        let at = self.rng.below(self.bases.len() as u64) as usize;
        self.bases[at] *= *self.rng.pick(&[0.2, 0.5, 2.0, 5.0]);
        let mut commands = self.profiles(turn.swarm, &spec);
        commands.push(Command::Update {
            caller: self.caller(),
            job: spec.name,
            rebalance: None,
            policy: None,
            replan: true,
        });
        for command in commands {
            *turn.tokens += 1;
            self.call(turn, *turn.tokens, command);
        }
    }

    fn cancel(&mut self, turn: &mut Turn<'_>, model: &mut Option<Model>) {
        if let Some(model) = model {
            model.live = false;
        }
        if let Some(spec) = &self.spec {
            let command = Command::Cancel {
                caller: self.caller(),
                job: spec.name.clone(),
            };
            self.doing = Doing::Cancelling;
            self.ask(turn, command);
        }
    }

    /// An answer has arrived. Says whether a job began or ended.
    pub fn hear(
        &mut self,
        turn: &Turn<'_>,
        model: &mut Option<Model>,
        token: u64,
        said: &Said,
    ) -> bool {
        let (Said::Answer(answer), Some((mine, _))) = (said, &self.command) else {
            return false;
        };
        if *mine != token {
            return false;
        }
        match (self.doing, answer) {
            (Doing::Submitting, Ok(Reply::Job(id))) => {
                let roles = self.spec.iter().flat_map(|s| &s.stages).map(|s| s.role);
                let stages: Vec<_> = roles.zip(self.bases.iter().copied()).collect();
                let drift = vec![1.0; stages.len()];
                *model = Some(Model {
                    id: *id,
                    live: true,
                    stages,
                    drift,
                });
                self.doing = Doing::Running;
                self.until = turn.until(&mut self.rng, (5_000, 240_000));
            }
            (Doing::Cancelling, Ok(_) | Err(Rejection::NotFound(_)))
            | (Doing::Submitting, Err(_)) => {
                *model = None;
                self.doing = Doing::Idle;
            }
            _ => return false,
        }
        self.command = None;
        true
    }
}

fn rules(rng: &mut Rng) -> RebalanceSpec {
    RebalanceSpec {
        enabled: !rng.chance(100),
        detector: match rng.chance(500) {
            true => Detector::Streak {
                gap: 0.15,
                windows: rng.range(2, 5) as u32,
            },
            false => Detector::Cusum {
                slack: 0.05,
                threshold: 0.5,
            },
        },
        cooldown_windows: rng.below(3) as u32,
        horizon: Millis::secs(600),
        restart_cost: Millis(*rng.pick(&[100, 1_000, 400_000])),
        min_gain: *rng.pick(&[0.0, 0.02, 0.3]),
        shrink_timeout: Millis(*rng.pick(&[1_000, 8_000])),
        fallback: *rng.pick(&[ShrinkFallback::Wait, ShrinkFallback::Escalate]),
        refit_windows: rng.below(3) as u32,
    }
}

/// A job of two or three stages.
fn draw(rng: &mut Rng, swarm: &Swarm, me: u64, n: u64) -> JobSpec {
    let of = |s: &str| Name::new(s).unwrap_or_else(|_| Name::unknown());
    let has_gpu = !swarm.node.gpus.is_empty();
    let most = (swarm.node.cores.len() as u32 / 2).max(1);
    let stage = |rng: &mut Rng, name: &str, role: Role| {
        let gpu = has_gpu && role != Role::Simulation;
        let workers = if swarm.steady {
            1
        } else {
            rng.range(1, 2) as u32
        };
        StageSpec {
            name: of(name),
            role,
            workers,
            processes: 1,
            cores: if gpu {
                (rng.below(2) as u32, 2)
            } else {
                (1.min(most), rng.range(1, u64::from(most)) as u32)
            },
            sms: if gpu {
                (Sms(1), Sms(rng.range(8, 128) as u32))
            } else {
                (Sms(0), Sms(0))
            },
            memory: if gpu {
                Bytes::gib(rng.range(1, 4))
            } else {
                Bytes(0)
            },
            batches: Vec::new(),
            synchronous: role == Role::Training && rng.chance(300),
            resize: *rng.pick(&[
                Resize::Live,
                Resize::Restart,
                Resize::Restart,
                Resize::Fixed,
            ]),
            profile: None,
        }
    };
    let mut stages = vec![stage(rng, "sim", Role::Simulation)];
    if rng.chance(700) {
        stages.push(stage(rng, "gen", Role::Generation));
    }
    stages.push(stage(rng, "train", Role::Training));
    if rng.chance(20) && !swarm.steady {
        stages[0].workers = 0;
    }
    JobSpec {
        name: of(&format!("job-{me}-{}", n % 3)),
        unit: of("step"),
        priority: rng.below(3) as i32,
        weight: 1.0,
        gpus: Vec::new(),
        gpu_count: 0,
        groups: rng.range(1, 2) as u32,
        policy: *rng.pick(&[Policy::Waterfill, Policy::Waterfill, Policy::Ebrl]),
        sm_mode: *rng.pick(&[SmMode::Reserve, SmMode::Cap]),
        rebalance: rules(rng),
        stages,
    }
}
