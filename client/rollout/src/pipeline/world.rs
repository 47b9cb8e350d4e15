//! The happenings of one virtual run, in order of time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenkeel_gpu::model::{ClientId, ClientSpec, Completion, Model, SubmissionId};

use super::{Busy, Observer, Outcome, Part, PipelineError, PipelineSpec, Split};
use crate::former::BatchFormer;
use crate::gate::StalenessGate;
use crate::queue::{Item, TrajectoryQueue};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// Generation gets a batch of observations.
    Observed(u64),
    /// Simulation gets the batch's actions.
    Acted(u64),
    /// An environment has run its chunk on a core, which began then.
    Stepped(usize, u32, u64),
    /// Training gets the batch.
    Collected(u64),
    /// Generation gets new weights.
    Trained(u64),
}

#[derive(Clone, Debug, Default)]
struct Batch {
    envs: Vec<usize>,
    left: usize,
    rollout: u64,
    version: u64,
}

/// Busy time and units of a stream since the warm-up.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    units: f64,
    busy_ns: u64,
}

impl Tally {
    fn rate(self) -> f64 {
        if self.busy_ns == 0 {
            return 0.0;
        }
        self.units / (self.busy_ns as f64 * 1e-9)
    }
}

pub(super) struct World<'a, O> {
    spec: &'a PipelineSpec,
    observer: &'a mut O,
    now: u64,
    agenda: BTreeSet<(u64, u64, Happening)>,
    happenings: u64,
    model: Model,
    generation: ClientId,
    training: ClientId,
    former: BatchFormer,
    batches: BTreeMap<u64, Batch>,
    batch_of: Vec<u64>,
    waiting: VecDeque<u64>,
    flight: VecDeque<u64>,
    gate: StalenessGate,
    known: u64,
    free_cores: BTreeSet<u32>,
    cores: u32,
    ready: VecDeque<usize>,
    queue: TrajectoryQueue<()>,
    version: u64,
    iteration: Option<(u64, f64)>,
    measuring: bool,
    staleness: u64,
    generated: Tally,
    trained: Tally,
    next: u64,
    luck: u64,
}

impl<'a, O: Observer> World<'a, O> {
    pub(super) fn new(
        spec: &'a PipelineSpec,
        split: Split,
        observer: &'a mut O,
    ) -> Result<Self, PipelineError> {
        let mut model = Model::new(spec.gpu.clone());
        let client = |sms| ClientSpec { sms, memory: 0 };
        let generation = model.connect(0, client(split.generate_sms))?;
        let training = model.connect(0, client(split.train_sms))?;
        let mut former = BatchFormer::new(spec.envs, spec.groups, spec.batch);
        (0..spec.envs).for_each(|env| former.ready(env));
        Ok(Self {
            spec,
            observer,
            now: 0,
            agenda: BTreeSet::new(),
            happenings: 0,
            model,
            generation,
            training,
            former,
            batches: BTreeMap::new(),
            batch_of: vec![0; spec.envs],
            waiting: VecDeque::new(),
            flight: VecDeque::new(),
            gate: StalenessGate::new(spec.batches_per_rollout, spec.staleness),
            known: 0,
            free_cores: (0..split.cores).collect(),
            cores: split.cores,
            ready: VecDeque::new(),
            queue: TrajectoryQueue::new(spec.units_per_rollout(), spec.staleness),
            version: 0,
            iteration: None,
            measuring: false,
            staleness: 0,
            generated: Tally::default(),
            trained: Tally::default(),
            next: 0,
            luck: 0,
        })
    }

    pub(super) fn run(mut self, warm_up: u64, steps: u64) -> Result<Outcome, PipelineError> {
        let mut started = None;
        self.work()?;
        while self.version < warm_up + steps {
            let agenda = self.agenda.first().map(|(at, _, _)| *at);
            let gpu = self.model.next();
            let next = [agenda, gpu].into_iter().flatten().min();
            let at = next.ok_or(PipelineError::Stuck("every stage waits for another"))?;
            self.now = self.now.max(at);
            if gpu == Some(at) {
                let mut done = Vec::new();
                self.model.advance(at, &mut done);
                done.into_iter()
                    .for_each(|completion| self.completed(completion));
            } else if let Some((_, _, happening)) = self.agenda.pop_first() {
                self.happen(happening);
            }
            self.work()?;
            if started.is_none() && self.version >= warm_up {
                started = Some(self.now);
                self.measuring = true;
            }
        }
        let seconds = (self.now - started.unwrap_or(0)) as f64 * 1e-9;
        let one_core = 1e9 / self.spec.step_ns.max(1) as f64;
        Ok(Outcome {
            units_per_s: self.spec.units_per_rollout() * steps as f64 / seconds,
            generate_units_per_s: self.generated.rate(),
            train_units_per_s: self.trained.rate(),
            simulate_units_per_s: one_core * f64::from(self.cores),
            staleness: self.staleness,
            steps,
        })
    }

    fn later(&mut self, delay_ns: u64, happening: Happening) {
        self.agenda
            .insert((self.now + delay_ns, self.happenings, happening));
        self.happenings += 1;
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Observed(batch) => self.waiting.push_back(batch),
            Happening::Acted(batch) => {
                if let Some(batch) = self.batches.get(&batch) {
                    self.ready.extend(&batch.envs);
                }
            }
            Happening::Stepped(env, core, began_ns) => self.stepped(env, core, began_ns),
            Happening::Collected(batch) => {
                if let Some(batch) = self.batches.remove(&batch) {
                    self.queue.push(Item {
                        rollout: batch.rollout,
                        version: batch.version,
                        units: self.spec.units_per_batch(),
                        value: (),
                    });
                }
            }
            Happening::Trained(version) => self.known = self.known.max(version),
        }
    }

    fn stepped(&mut self, env: usize, core: u32, began_ns: u64) {
        self.free_cores.insert(core);
        self.observer.busy(Busy {
            part: Part::Simulation,
            lane: core,
            start_ns: began_ns,
            end_ns: self.now,
            units: f64::from(self.spec.chunk_steps),
        });
        self.former.ready(env);
        let id = self.batch_of[env];
        let Some(batch) = self.batches.get_mut(&id) else {
            return;
        };
        batch.left -= 1;
        if batch.left == 0 {
            self.later(self.spec.hop_ns, Happening::Collected(id));
        }
    }

    /// What the next chunk takes: each one another time, the same in each run.
    fn chunk_ns(&mut self) -> u64 {
        let steps = self.spec.chunk_steps.into();
        let mean = self.spec.step_ns.saturating_mul(steps);
        let spread = i128::from(mean) * i128::from(self.spec.step_spread_permille) / 1_000;
        // Knuth's linear congruential generator, its upper half.
        self.luck = self
            .luck
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let way = i128::from(self.luck >> 32) - (1 << 31);
        u64::try_from(i128::from(mean) + spread * way / (1 << 31)).unwrap_or(mean)
    }

    fn completed(&mut self, done: Completion) {
        let of_generation = done.client == self.generation;
        let (part, units) = match of_generation {
            true => (Part::Generation, self.spec.units_per_batch()),
            false => (
                Part::Training,
                self.spec.units_per_rollout() / self.spec.train.len() as f64,
            ),
        };
        self.observer.busy(Busy {
            part,
            lane: 0,
            start_ns: done.start,
            end_ns: done.end,
            units,
        });
        let busy_ns = done.end - done.start;
        if of_generation {
            if self.measuring {
                self.generated.busy_ns += busy_ns;
                self.generated.units += units;
            }
            if let Some(batch) = self.flight.pop_front() {
                self.later(self.spec.hop_ns, Happening::Acted(batch));
            }
            return;
        }
        if self.measuring {
            self.trained.busy_ns += busy_ns;
            self.trained.units += units;
        }
        if let Some((left, consumed)) = &mut self.iteration {
            *left -= 1;
            if *left == 0 {
                let consumed = *consumed;
                self.iteration = None;
                self.version += 1;
                self.observer.step(self.version, self.now, consumed);
                self.later(self.spec.hop_ns, Happening::Trained(self.version));
            }
        }
    }

    /// Everybody who can begin something now does.
    fn work(&mut self) -> Result<(), PipelineError> {
        while let Some(envs) = self.former.form() {
            let id = self.next;
            self.next += 1;
            envs.iter().for_each(|env| self.batch_of[*env] = id);
            let batch = Batch {
                left: envs.len(),
                envs,
                ..Batch::default()
            };
            self.batches.insert(id, batch);
            self.later(self.spec.hop_ns, Happening::Observed(id));
        }
        while self.flight.len() < self.spec.depth.max(1)
            && !self.waiting.is_empty()
            && let Some(slot) = self.gate.issue(self.known)
            && let Some(id) = self.waiting.pop_front()
        {
            let list = self.spec.generate.clone();
            self.model
                .submit(self.now, self.generation, SubmissionId(id), list)?;
            self.flight.push_back(id);
            if let Some(batch) = self.batches.get_mut(&id) {
                (batch.rollout, batch.version) = (slot.rollout, self.known);
            }
        }
        while !self.ready.is_empty()
            && let Some(core) = self.free_cores.pop_first()
            && let Some(env) = self.ready.pop_front()
        {
            let chunk_ns = self.chunk_ns();
            self.later(chunk_ns, Happening::Stepped(env, core, self.now));
        }
        if self.iteration.is_none()
            && let Some(items) = self.queue.take(self.version)
        {
            let age = items.iter().map(|item| self.version - item.version).max();
            self.staleness = self.staleness.max(age.unwrap_or(0));
            let units = items.iter().map(|item| item.units).sum();
            self.iteration = Some((self.spec.train.len() as u64, units));
            for (list, index) in self.spec.train.iter().zip(0..) {
                self.model
                    .submit(self.now, self.training, SubmissionId(index), list.clone())?;
            }
        }
        Ok(())
    }
}
