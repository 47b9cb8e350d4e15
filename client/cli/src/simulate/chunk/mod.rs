//! The fine engine: an event for each chunk of an environment, each batch of generation, each training iteration. The
//! order of things is the rollout runtime's (`evenkeel_rollout`): its batch former puts environments of one group
//! together, a free core takes the environment that has waited longest, the gate keeps generation from running ahead.
//! GPU work runs at a rate that changes whenever another stage begins or ends.

mod log;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use evenkeel_core::job::Role;
use evenkeel_rollout::BatchFormer;

use self::log::Log;
use super::law::Crowd;
use super::layout::{Layout, Sharing};
use super::meter::{Done, Seen};
use super::random::{Chance, Purpose};
use super::run::{EVENTS_MAX, too_many};
use super::tally::Tally;
use super::world::JobWorld;

/// Of a unit: what is less than that is rounding.
const ROUNDING: f64 = 1e-6;

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An environment has run its chunk.
    Stepped(usize),
    /// New weights have arrived, or a turn has been passed on.
    Wake,
}

/// Work on a GPU.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// The batch (generation), or nothing of meaning.
    batch: u64,
    /// When it began, by the pipeline's clock.
    from_ns: u64,
    units: f64,
    /// What is left of it, in units of the start's cost.
    left: f64,
}

/// Whose turn it is, where stages take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Rollout,
    Training,
}

/// One job's pipeline.
pub(super) struct ChunkEngine<'a> {
    crowd: &'a Crowd,
    stages: [usize; 3],
    /// The pipeline's own clock, in nanoseconds; it stands still in pauses.
    clock_ns: u64,
    /// What pauses have added to it.
    offset_s: f64,
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events: u64,
    former: BatchFormer,
    batch: usize,
    waits_for_actions: Vec<bool>,
    batch_of: Vec<u64>,
    /// Environments of a batch that have not run their chunk yet.
    batches: BTreeMap<u64, usize>,
    formed: VecDeque<(u64, Vec<usize>)>,
    acting: BTreeMap<u64, Vec<usize>>,
    next_batch: u64,
    ready: VecDeque<usize>,
    stepping: u32,
    generating: Option<Work>,
    training: Option<Work>,
    issued: f64,
    generated: f64,
    queued: f64,
    discarded: f64,
    trained: u64,
    turn: Turn,
    /// Nothing on the GPU begins before.
    asleep_to_ns: u64,
    log: Log,
    window_from_s: f64,
    credited: f64,
    discarded_before: f64,
    environments: Chance,
    work: Chance,
}

const SIMULATION: usize = 0;
const GENERATION: usize = 1;
const TRAINING: usize = 2;

impl<'a> ChunkEngine<'a> {
    pub(super) fn new(job: &'a JobWorld<'_>, layout: &Layout, now_s: f64) -> Result<Self, String> {
        let of = |role| job.job.spec.stages.iter().position(|s| s.role == role);
        let stages = (
            of(Role::Simulation),
            of(Role::Generation),
            of(Role::Training),
        );
        let (Some(simulation), Some(generation), Some(training)) = stages else {
            return Err(format!("job {} has no whole pipeline", job.job.spec.name));
        };
        let Some(crowd) = job.laws[simulation].crowd() else {
            return Err(format!("job {} has no environments", job.job.spec.name));
        };
        let n = crowd.environments as usize;
        let mut engine = Self {
            crowd,
            stages: [simulation, generation, training],
            clock_ns: 0,
            offset_s: now_s,
            heap: BinaryHeap::new(),
            events: 0,
            former: BatchFormer::new(n, 1, 1),
            batch: 0,
            waits_for_actions: vec![true; n],
            batch_of: vec![0; n],
            batches: BTreeMap::new(),
            formed: VecDeque::new(),
            acting: BTreeMap::new(),
            next_batch: 0,
            ready: VecDeque::new(),
            stepping: 0,
            generating: None,
            training: None,
            issued: 0.0,
            generated: 0.0,
            queued: 0.0,
            discarded: 0.0,
            trained: 0,
            turn: Turn::Rollout,
            asleep_to_ns: 0,
            log: Log::of(n),
            window_from_s: now_s,
            credited: 0.0,
            discarded_before: 0.0,
            environments: job.chance(Purpose::Environments),
            work: job.chance(Purpose::Work),
        };
        engine.changed(job, layout);
        Ok(engine)
    }

    /// The time of the simulation.
    pub(super) fn now_s(&self) -> f64 {
        self.offset_s + self.clock_ns as f64 * 1e-9
    }

    /// Everything stands still for so long.
    pub(super) const fn pause(&mut self, seconds: f64) {
        self.offset_s += seconds;
    }

    /// The layout has changed: another batch size means that batches are formed anew.
    pub(super) fn changed(&mut self, job: &JobWorld<'_>, layout: &Layout) {
        let n = self.crowd.environments as usize;
        let groups = (job.job.spec.groups as usize).clamp(1, n);
        let group = n / groups;
        // A stage without batch sizes serves a whole group at a time.
        let spec = &job.job.spec.stages[self.stages[GENERATION]];
        let batch = match layout.holds[self.stages[GENERATION]].batch {
            _ if spec.batches.is_empty() => group,
            chosen => (chosen as usize).min(group),
        };
        if batch == self.batch {
            return;
        }
        self.batch = batch;
        self.former = BatchFormer::new(n, groups, batch);
        for (_, envs) in self.formed.drain(..) {
            envs.into_iter()
                .for_each(|env| self.waits_for_actions[env] = true);
        }
        let waiting = (0..n).filter(|env| self.waits_for_actions[*env]);
        waiting.for_each(|env| self.former.ready(env));
    }

    /// Runs until an iteration has been trained; none if that is not before `limit_s`.
    pub(super) fn advance(
        &mut self,
        job: &JobWorld<'_>,
        layout: &Layout,
        limit_s: f64,
        tally: &mut Tally,
    ) -> Result<Option<Seen>, String> {
        while self.now_s() < limit_s {
            self.begin(job, layout);
            let limit_ns = ((limit_s - self.offset_s).max(0.0) * 1e9).ceil() as u64;
            let rates = self.gpu_rates(job, layout);
            let event = self.heap.peek().map(|Reverse((at, ..))| *at);
            let works = [self.generating, self.training];
            let finish = works.iter().zip(rates).filter_map(|(work, rate)| {
                let seconds = work.as_ref()?.left / rate;
                Some(self.clock_ns.saturating_add((seconds * 1e9).ceil() as u64))
            });
            let next = finish.chain(event).min();
            let Some(next) = next.filter(|_| rates.iter().all(|r| *r > 0.0)) else {
                return Err(format!(
                    "job {}: every stage waits for another",
                    job.job.spec.name
                ));
            };
            let to_ns = next.min(limit_ns).max(self.clock_ns);
            self.flow(job, layout, to_ns, rates, tally);
            self.events += 1;
            tally.events += 1;
            if self.events > EVENTS_MAX {
                return Err(too_many(job));
            }
            while self
                .heap
                .peek()
                .is_some_and(|Reverse((at, ..))| *at <= self.clock_ns)
            {
                if let Some(Reverse((.., Event::Stepped(env)))) = self.heap.pop() {
                    self.stepped(job, env);
                }
            }
            self.generated_batch();
            if let Some(seen) = self.trained_iteration(job, layout, tally) {
                return Ok(Some(seen));
            }
        }
        self.credit_part(job, limit_s, tally);
        Ok(None)
    }

    /// Units a second of generation and training as things are.
    fn gpu_rates(&self, job: &JobWorld<'_>, layout: &Layout) -> [f64; 2] {
        let factors = job.factors(self.now_s());
        let busy = self.busy(job, layout);
        [GENERATION, TRAINING].map(|which| {
            let i = self.stages[which];
            let usable = layout.usable_sms(job, i, &busy);
            let alone = job.alone(i, &layout.holds[i], usable, factors[i]);
            alone / layout.slowdown(job, i, &busy)
        })
    }

    /// How busy each stage is just now: the simulator by its cores.
    fn busy(&self, job: &JobWorld<'_>, layout: &Layout) -> Vec<f64> {
        let mut busy = vec![0.0; job.laws.len()];
        let lanes = self.lanes(layout).max(1);
        busy[self.stages[SIMULATION]] = (f64::from(self.stepping) / f64::from(lanes)).min(1.0);
        busy[self.stages[GENERATION]] = f64::from(u8::from(self.generating.is_some()));
        busy[self.stages[TRAINING]] = f64::from(u8::from(self.training.is_some()));
        busy
    }

    fn lanes(&self, layout: &Layout) -> u32 {
        self.crowd
            .lanes(layout.holds[self.stages[SIMULATION]].cores)
    }

    /// Lets time pass.
    fn flow(
        &mut self,
        job: &JobWorld<'_>,
        layout: &Layout,
        to_ns: u64,
        rates: [f64; 2],
        tally: &mut Tally,
    ) {
        let seconds = (to_ns - self.clock_ns) as f64 * 1e-9;
        self.clock_ns = to_ns;
        let busy = self.busy(job, layout);
        for (which, rate) in [GENERATION, TRAINING].into_iter().zip(rates) {
            let work = match which {
                GENERATION => &mut self.generating,
                _ => &mut self.training,
            };
            if let Some(work) = work {
                work.left -= rate * seconds;
                let (i, hold) = (self.stages[which], &layout.holds[self.stages[which]]);
                let usable = layout.usable_sms(job, i, &busy);
                let useful = job.laws[i].useful_sms(usable, hold.batch);
                tally.busy_sm_s += useful * hold.gpus * seconds;
            }
        }
        let i = self.stages[SIMULATION];
        let hold = &layout.holds[i];
        let usable = layout.usable_sms(job, i, &busy);
        let drawing = job.laws[i].useful_sms(usable, hold.batch) * hold.gpus * busy[i];
        tally.busy_sm_s += drawing * seconds;
    }

    fn later(&mut self, seconds: f64, event: Event) {
        let at = self.clock_ns.saturating_add((seconds * 1e9).round() as u64);
        self.heap.push(Reverse((at, self.events, event)));
        self.events += 1;
    }

    /// Everything that can begin now begins.
    fn begin(&mut self, job: &JobWorld<'_>, layout: &Layout) {
        while let Some(envs) = self.former.form() {
            envs.iter()
                .for_each(|env| self.waits_for_actions[*env] = false);
            self.formed.push_back((self.next_batch, envs));
            self.next_batch += 1;
        }
        let (phases, alone) = match layout.sharing {
            Sharing::Phases { alone, .. } => (true, alone),
            Sharing::Together => (false, false),
        };
        self.pass_turn(job, layout);
        let awake = self.clock_ns >= self.asleep_to_ns;
        let rolls = awake && (!phases || self.turn == Turn::Rollout);
        let trains = awake && (!phases || self.turn == Turn::Training);
        let stepping = self.stepping > 0 || !self.ready.is_empty();
        let staleness = if phases { 0 } else { job.job.staleness };
        let ahead = (self.trained + staleness + 1) as f64 * job.units_rolled();
        if rolls
            && self.generating.is_none()
            && !(alone && stepping)
            && self.issued < ahead - ROUNDING
            && let Some((id, envs)) = self.formed.pop_front()
        {
            let units = (envs.len() * self.crowd.chunk_steps as usize) as f64;
            self.issued += units;
            self.acting.insert(id, envs);
            let variation = job.job.stages[self.stages[GENERATION]].variation;
            let left = units * self.work.factor(variation);
            self.generating = Some(Work {
                batch: id,
                from_ns: self.clock_ns,
                units,
                left,
            });
        }
        let lanes = self.lanes(layout);
        while self.stepping < lanes
            && !(alone && self.generating.is_some())
            && let Some(env) = self.ready.pop_front()
        {
            self.step(job, layout, env);
        }
        let units = job.job.units_per_iteration;
        if trains && self.training.is_none() && self.queued >= units - ROUNDING {
            self.queued -= units;
            let variation = job.job.stages[self.stages[TRAINING]].variation;
            let left = units * self.work.factor(variation);
            self.training = Some(Work {
                batch: 0,
                from_ns: self.clock_ns,
                units,
                left,
            });
        }
    }

    /// Where stages take turns: once a rollout is there, the turn is training's.
    fn pass_turn(&mut self, job: &JobWorld<'_>, layout: &Layout) {
        let Sharing::Phases { switch_s, .. } = layout.sharing else {
            return;
        };
        let idle = self.generating.is_none() && self.stepping == 0 && self.ready.is_empty();
        let rolled = self.queued >= job.job.units_per_iteration - ROUNDING;
        if self.turn == Turn::Rollout && rolled && idle {
            self.turn = Turn::Training;
            self.sleep(switch_s);
        }
    }

    /// Nothing on the GPU begins for so long.
    fn sleep(&mut self, seconds: f64) {
        let to = self.clock_ns + (seconds * 1e9).round() as u64;
        self.asleep_to_ns = self.asleep_to_ns.max(to);
        self.later(seconds, Event::Wake);
    }

    /// An environment begins its chunk on a core.
    fn step(&mut self, job: &JobWorld<'_>, layout: &Layout, env: usize) {
        let i = self.stages[SIMULATION];
        let hold = &layout.holds[i];
        let factor = job.factors(self.now_s())[i];
        let seconds = self.crowd.chunk_s(env, &mut self.environments) * factor / hold.speed;
        let busy = self.busy(job, layout);
        // Where rendering or a neighbour is what slows them down, each chunk takes longer by as much.
        let stepped = f64::from(self.lanes(layout)) / self.crowd.mean_step_s();
        let usable = layout.usable_sms(job, i, &busy);
        let alone = job.laws[i].rate(hold.cores, usable, hold.gpus, hold.batch);
        let slower = (stepped / alone.max(f64::MIN_POSITIVE)).max(1.0);
        let seconds = seconds * slower * layout.slowdown(job, i, &busy);
        self.stepping += 1;
        self.log.takes_lane(env, self.clock_ns);
        self.later(seconds, Event::Stepped(env));
    }

    /// An environment has run its chunk: it waits for actions, and its batch may be whole.
    fn stepped(&mut self, job: &JobWorld<'_>, env: usize) {
        self.stepping -= 1;
        let units = f64::from(self.crowd.chunk_steps);
        self.log.leaves_lane(env, self.clock_ns, units);
        self.waits_for_actions[env] = true;
        self.former.ready(env);
        let id = self.batch_of[env];
        let Some(left) = self.batches.get_mut(&id) else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            self.batches.remove(&id);
            let envs = self.acting.remove(&id).map_or(0, |envs| envs.len());
            let units = (envs * self.crowd.chunk_steps as usize) as f64;
            self.generated += units;
            self.queued += units * (1.0 - job.job.discarded);
            self.discarded += units * job.job.discarded;
        }
    }

    /// Generation has served its batch, if it has.
    fn generated_batch(&mut self) {
        let Some(work) = self.generating.filter(|work| work.left <= ROUNDING) else {
            return;
        };
        self.generating = None;
        self.log
            .generated((work.from_ns, self.clock_ns), work.units);
        if let Some(envs) = self.acting.get(&work.batch) {
            self.batches.insert(work.batch, envs.len());
            envs.iter().for_each(|env| self.batch_of[*env] = work.batch);
            self.ready.extend(envs);
        }
    }

    /// Training has finished an iteration, if it has.
    fn trained_iteration(
        &mut self,
        job: &JobWorld<'_>,
        layout: &Layout,
        tally: &mut Tally,
    ) -> Option<Seen> {
        let work = self.training.filter(|work| work.left <= ROUNDING)?;
        self.training = None;
        self.trained += 1;
        self.log.trained((work.from_ns, self.clock_ns), work.units);
        let now_s = self.now_s();
        let units = work.units - std::mem::take(&mut self.credited);
        let from_s = std::mem::replace(&mut self.window_from_s, now_s);
        tally.credit(job.index, (from_s, now_s), units);
        let mut sleep_s = job.job.weight_sync_s;
        if let Sharing::Phases { switch_s, .. } = layout.sharing {
            self.turn = Turn::Rollout;
            sleep_s += switch_s;
        }
        if sleep_s > 0.0 {
            self.sleep(sleep_s);
        }
        let (rates, done) = self.window(job, layout);
        if self.stages.iter().all(|i| rates[*i] > 0.0) {
            tally.gap(layout.times(job, &rates).gap());
        }
        let discarded = self.discarded - self.discarded_before;
        self.discarded_before = self.discarded;
        Some(Seen {
            from_s,
            at_s: now_s,
            rates,
            slowdowns: Vec::new(),
            done: Some(done),
            consumed: work.units,
            discarded,
        })
    }

    /// What each stage did since the last window, and its units a busy second.
    fn window(&mut self, job: &JobWorld<'_>, layout: &Layout) -> (Vec<f64>, Vec<Done>) {
        let n = job.laws.len();
        let (mut rates, mut done) = (vec![f64::INFINITY; n], vec![Done::default(); n]);
        for which in [SIMULATION, GENERATION, TRAINING] {
            let lanes = if which == SIMULATION {
                self.lanes(layout)
            } else {
                1
            };
            let i = self.stages[which];
            (rates[i], done[i]) = self.log.take(which, lanes, self.offset_s);
        }
        (rates, done)
    }

    /// What has been trained of an iteration when the run is interrupted counts.
    fn credit_part(&mut self, job: &JobWorld<'_>, limit_s: f64, tally: &mut Tally) {
        let part = self.training.map_or(0.0, |work| {
            let todo = (work.left / work.units).clamp(0.0, 1.0);
            work.units * (1.0 - todo)
        });
        let units = (part - self.credited).max(0.0);
        tally.credit(job.index, (self.window_from_s, limit_s), units);
        self.credited += units;
        self.window_from_s = limit_s;
    }

    /// Units generated, trained on (in whole iterations), in training, queued, thrown away.
    #[cfg(test)]
    pub(super) fn balance(&self, job: &JobWorld<'_>) -> [f64; 5] {
        let units = job.job.units_per_iteration;
        let in_training = self.training.map_or(0.0, |work| work.units);
        let trained = self.trained as f64 * units;
        [
            self.generated,
            trained,
            in_training,
            self.queued,
            self.discarded,
        ]
    }
}
