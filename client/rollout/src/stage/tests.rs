//! The three loops together, on threads with Unix sockets between them and a GPU that only sleeps.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver as Inbox, Sender as Queue, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::*;
use crate::affinity::boottime_ns;
use crate::env::{Environment, Outcome};
use crate::gate::Weights;
use crate::gpu::Compute;
use crate::meter::Meter;
use crate::pool::{Binding, EnvPool, PoolConfig};
use crate::schedule::Policy;
use crate::wire::{Sender, split};

/// Counts how many of its kind run at the same time.
#[derive(Default)]
struct Overlap(Mutex<(bool, bool, u64)>);

impl Overlap {
    /// A side begins or ends; counts the moments at which both run.
    fn set(&self, side: usize, on: bool) {
        let mut now = self.0.lock().unwrap();
        if side == 0 {
            now.0 = on
        } else {
            now.1 = on
        }
        now.2 += u64::from(now.0 && now.1);
    }
    fn seen(&self) -> u64 {
        self.0.lock().unwrap().2
    }
}

struct Sleeper {
    steps: u32,
    overlap: Arc<Overlap>,
}

impl Environment for Sleeper {
    fn reset(&mut self, _seed: u64) {
        self.steps = 0;
    }
    fn observe(&self, into: &mut Vec<f32>) {
        into.push(self.steps as f32);
    }
    fn step(&mut self, _action: &[f32]) -> Outcome {
        self.overlap.set(0, true);
        thread::sleep(Duration::from_micros(100));
        self.overlap.set(0, false);
        self.steps += 1;
        Outcome {
            reward: 1.0,
            done: self.steps.is_multiple_of(10),
            success: false,
        }
    }
}

/// A stream whose lists take `repeat` milliseconds each.
struct SleepLane(Queue<(u64, u64)>);

impl SleepLane {
    fn start(events: Queue<Event>, side: Option<Arc<Overlap>>) -> Self {
        let (lists, work) = channel::<(u64, u64)>();
        thread::spawn(move || {
            for (token, ms) in work {
                let start_ns = boottime_ns();
                side.iter().for_each(|overlap| overlap.set(1, true));
                thread::sleep(Duration::from_millis(ms));
                side.iter().for_each(|overlap| overlap.set(1, false));
                let end_ns = boottime_ns();
                let ran = Ran {
                    token,
                    start_ns,
                    end_ns,
                };
                if events.send(Event::Ran(Ok(ran))).is_err() {
                    return;
                }
            }
        });
        Self(lists)
    }
}

impl Compute for SleepLane {
    fn submit(&self, token: u64, list: &[KernelGroup]) -> Result<(), LaneError> {
        let ms = list.iter().map(|group| u64::from(group.repeat)).sum();
        self.0.send((token, ms)).map_err(|_| LaneError::Closed)
    }
}

fn kernels(ms: u32) -> Vec<KernelGroup> {
    vec![KernelGroup {
        flops: 1,
        bytes: 0,
        width_blocks: 1,
        repeat: ms,
    }]
}

#[derive(Default)]
struct Toy {
    version: f32,
    loaded: Vec<f32>,
}

impl Actor for Toy {
    fn load(&mut self, weights: &[f32]) {
        self.loaded.push(weights[0]);
    }
    fn act(&mut self, observations: &[Vec<f32>]) -> Vec<Vec<f32>> {
        observations.iter().map(|_| vec![0.0; 4]).collect()
    }
    fn kernels(&self, _observations: usize) -> Vec<KernelGroup> {
        kernels(1)
    }
}

impl Learner for Toy {
    fn update(&mut self, parts: &[&Part]) -> f32 {
        self.version += 1.0;
        parts.len() as f32
    }
    fn weights(&self) -> Vec<f32> {
        vec![self.version]
    }
    fn kernels(&self) -> Vec<Vec<KernelGroup>> {
        vec![kernels(3), kernels(3)]
    }
}

const BATCHES: u64 = 4;
const UNITS: f64 = 4.0 * 2.0 * BATCHES as f64;

/// A connection between two stages: what each sends becomes an event of the other.
fn connect(left: &Queue<Event>, right: &Queue<Event>) -> (Sender, Sender) {
    let (a, b) = UnixStream::pair().unwrap();
    let ((to_right, from_right), (to_left, from_left)) = (split(a).unwrap(), split(b).unwrap());
    listen(from_right, left.clone()).unwrap();
    listen(from_left, right.clone()).unwrap();
    (to_right, to_left)
}

/// Simulation on a thread; a peer that is gone ends it, too.
fn run_simulation(
    (groups, envs): (usize, usize),
    overlap: &Arc<Overlap>,
    (events, inbox): (Queue<Event>, Inbox<Event>),
    (generation, training): (Sender, Sender),
) {
    let sleeper = |_| Sleeper {
        steps: 0,
        overlap: Arc::clone(overlap),
    };
    let config = PoolConfig {
        policy: Policy::default(),
        action_len: 1,
        seed: 1,
        groups,
    };
    let sink = move |f| drop(events.send(Event::Finished(f)));
    let (sleepers, meter) = ((0..envs).map(sleeper).collect(), Arc::new(Meter::new(1)));
    let pool = EnvPool::start(config, sleepers, Binding::Free(1), meter, sink).unwrap();
    let config = SimulateConfig {
        groups,
        batch: 2,
        chunks_per_rollout: 2,
    };
    simulate(config, &pool, &inbox, &generation, &training).ok();
}

/// Generation on a thread; returns what weights it loaded.
fn run_generation(lane: &SleepLane, inbox: &Inbox<Event>, simulation: &Sender) -> Vec<f32> {
    let config = GenerateConfig {
        batches_per_rollout: BATCHES,
        staleness: 1,
        depth: 2,
        units: 4.0,
    };
    let (mut toy, meter) = (Toy::default(), Meter::new(1));
    let start = Weights::initial(vec![0.0]);
    generate(config, &mut toy, start, lane, &meter, inbox, simulation).ok();
    toy.loaded
}

/// Runs the pipeline until training has done `steps` iterations; the steps, what generation loaded, and how often
/// simulation and generation were seen at work together.
fn pipeline(groups: usize, envs: usize, steps: u64) -> (Vec<StepDone>, Vec<f32>, u64) {
    let overlap = Arc::new(Overlap::default());
    let (sim_events, sim_inbox) = channel();
    let (gen_events, gen_inbox) = channel();
    let (train_events, train_inbox) = channel();
    let (sim_to_gen, gen_to_sim) = connect(&sim_events, &gen_events);
    let (sim_to_train, _) = connect(&sim_events, &train_events);
    let (train_to_gen, _) = connect(&train_events, &gen_events);
    let gen_lane = SleepLane::start(gen_events.clone(), Some(Arc::clone(&overlap)));
    let lane = SleepLane::start(train_events.clone(), None);
    let mut done = Vec::new();
    let loaded = thread::scope(|scope| {
        let simulation = (sim_events.clone(), sim_inbox);
        let seen = &overlap;
        scope.spawn(move || {
            run_simulation((groups, envs), seen, simulation, (sim_to_gen, sim_to_train));
        });
        let generation = scope.spawn(move || run_generation(&gen_lane, &gen_inbox, &gen_to_sim));
        let config = TrainConfig {
            units_per_rollout: UNITS,
            staleness: 1,
        };
        let on_step = |step: &StepDone| {
            done.push(*step);
            if step.n >= steps {
                train_events.send(Event::Stop).unwrap();
            }
        };
        let (mut toy, meter) = (Toy::default(), Meter::new(1));
        let inbox = &train_inbox;
        train(
            config,
            &mut toy,
            &lane,
            &meter,
            inbox,
            &train_to_gen,
            on_step,
        )
        .unwrap();
        // Generation that has ended ends simulation, which may be gone before it is told.
        gen_events.send(Event::Stop).unwrap();
        sim_events.send(Event::Stop).ok();
        generation.join().unwrap()
    });
    (done, loaded, overlap.seen())
}

#[test]
fn iterations_and_groups_overlap_and_nothing_is_too_old() {
    let (steps, loaded, overlaps) = pipeline(2, 8, 30);
    assert_eq!(
        steps.iter().map(|s| s.n).collect::<Vec<_>>(),
        (1..=30).collect::<Vec<_>>()
    );
    assert!(
        steps
            .iter()
            .all(|s| s.consumed == UNITS && s.discarded == 0.0)
    );
    assert!(steps.iter().all(|s| s.staleness <= 1), "{steps:?}");
    let stale = steps.iter().filter(|s| s.staleness == 1).count();
    assert!(
        stale > 10,
        "rollout and training overlap: {stale} of 30 iterations used older weights"
    );
    assert!(
        loaded.windows(2).all(|pair| pair[0] < pair[1]),
        "{loaded:?}"
    );
    assert!(loaded.len() > 20, "generation gets new weights: {loaded:?}");
    assert!(
        overlaps > 30,
        "simulation and generation at the same time: {overlaps} times"
    );
    assert!(
        steps.iter().any(|s| s.episodes > 0),
        "episodes end on the way"
    );
}

#[test]
fn one_batch_alone_takes_turns() {
    let (steps, _, overlaps) = pipeline(1, 2, 5);
    assert_eq!(steps.len(), 5);
    assert_eq!(
        overlaps, 0,
        "with a single batch simulation waits for generation"
    );
}

/// An actor with a batch size; keeps what each list was for.
struct Batched {
    most: Option<u32>,
    passes: Mutex<Vec<usize>>,
}

impl Actor for Batched {
    fn load(&mut self, _weights: &[f32]) {}
    fn act(&mut self, observations: &[Vec<f32>]) -> Vec<Vec<f32>> {
        observations.iter().map(|_| vec![0.0]).collect()
    }
    fn kernels(&self, observations: usize) -> Vec<KernelGroup> {
        self.passes.lock().unwrap().push(observations);
        kernels(1)
    }
    fn batch(&self) -> Option<u32> {
        self.most
    }
}

/// A stream that keeps what it is given: the test says when it is done.
struct Still;

impl Compute for Still {
    fn submit(&self, _token: u64, _list: &[KernelGroup]) -> Result<(), LaneError> {
        Ok(())
    }
}

/// Lane, units and batch size of an interval.
type Told = (u32, f64, u32);

/// One after the other: a batch of two observations alone, two more of two that wait meanwhile, one of six.
fn generate_four(most: Option<u32>, lists: u64) -> (Vec<usize>, Vec<u64>, Vec<Told>) {
    let observe = |batch, count| Message::Observe {
        batch,
        observations: vec![vec![0.0]; count],
    };
    let (events, inbox) = channel();
    for (batch, count) in [(0, 2), (1, 2), (2, 2), (3, 6)] {
        let seen = Event::Message(observe(batch, count));
        events.send(seen).unwrap();
    }
    for token in 0..lists {
        let at = 1_000_000_000 * (token + 1);
        let ran = Ran {
            token,
            start_ns: at,
            end_ns: at + 1_000_000,
        };
        events.send(Event::Ran(Ok(ran))).unwrap();
    }
    events.send(Event::Stop).unwrap();
    let (a, b) = UnixStream::pair().unwrap();
    let ((simulation, _keep), (_, mut answers)) = (split(a).unwrap(), split(b).unwrap());
    let mut actor = Batched {
        most,
        passes: Mutex::default(),
    };
    let config = GenerateConfig {
        batches_per_rollout: 8,
        staleness: 1,
        depth: 1,
        units: 10.0,
    };
    let (start, meter) = (Weights::initial(vec![0.0]), Meter::new(1));
    generate(
        config,
        &mut actor,
        start,
        &Still,
        &meter,
        &inbox,
        &simulation,
    )
    .unwrap();
    drop((simulation, _keep));
    let mut answered = Vec::new();
    while let Ok(Some(Message::Act { batch, .. })) = answers.receive() {
        answered.push(batch);
    }
    let drained = meter.drain();
    assert_eq!(drained.lanes, 1);
    let host = drained.busy.iter().filter(|b| b.lane == 1);
    assert!(host.clone().count() > 0, "host work is a lane of its own");
    assert!(host.clone().all(|b| b.units == 0.0));
    let lane = drained.busy.iter().filter(|b| b.lane == 0);
    let told = lane.map(|b| (b.lane, b.units, b.batch)).collect();
    (actor.passes.into_inner().unwrap(), answered, told)
}

#[test]
fn generation_runs_at_its_batch_size_and_says_so() {
    // Without one: a list for each batch of simulation.
    let (passes, answered, told) = generate_four(None, 4);
    assert_eq!((passes, answered), (vec![2, 2, 2, 6], vec![0, 1, 2, 3]));
    let each = |units| (0, units, 1);
    assert_eq!(told, [each(20.0), each(20.0), each(20.0), each(60.0)]);
    // At four: what waits goes together, what is larger goes in passes.
    let (passes, answered, told) = generate_four(Some(4), 3);
    assert_eq!((passes, answered), (vec![2, 4, 4, 2], vec![0, 1, 2, 3]));
    assert_eq!(told, [(0, 20.0, 2), (0, 40.0, 4), (0, 60.0, 4)]);
}

#[test]
fn training_reports_its_batch_size_and_its_host_work() {
    struct Sized(Toy);
    impl Learner for Sized {
        fn update(&mut self, parts: &[&Part]) -> f32 {
            thread::sleep(Duration::from_millis(1));
            self.0.update(parts)
        }
        fn weights(&self) -> Vec<f32> {
            self.0.weights()
        }
        fn kernels(&self) -> Vec<Vec<KernelGroup>> {
            vec![kernels(1)]
        }
        fn batch(&self) -> Option<u32> {
            Some(256)
        }
    }
    let part = Part {
        steps: 4,
        ..Part::default()
    };
    let (events, inbox) = channel();
    let rollout = Message::Trajectory {
        rollout: 0,
        version: 0,
        parts: vec![part],
    };
    events.send(Event::Message(rollout)).unwrap();
    let ran = Ran {
        token: 0,
        start_ns: 1_000,
        end_ns: 2_000_000,
    };
    events.send(Event::Ran(Ok(ran))).unwrap();
    events.send(Event::Stop).unwrap();
    let (a, _b) = UnixStream::pair().unwrap();
    let (generation, _) = split(a).unwrap();
    let config = TrainConfig {
        units_per_rollout: 4.0,
        staleness: 1,
    };
    let (mut learner, meter) = (Sized(Toy::default()), Meter::new(1));
    train(
        config,
        &mut learner,
        &Still,
        &meter,
        &inbox,
        &generation,
        |_| {},
    )
    .unwrap();
    let drained = meter.drain();
    let told: Vec<_> = drained
        .busy
        .iter()
        .map(|b| (b.lane, b.units, b.batch))
        .collect();
    assert_eq!(told, [(0, 4.0, 256), (1, 0.0, 1)]);
    assert!(drained.busy[1].busy >= Duration::from_millis(1));
    assert_eq!(drained.steps.len(), 1);
    assert_eq!(meter.take_totals(), (0.0, 0));
}
