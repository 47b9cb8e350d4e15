//! A worker process of the demo: it takes its share (a lease of the daemon, or what it is told), connects to its
//! peers, and runs the loop of its stage until the demo says stop or is gone.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use evenkeel_client::{
    Address, Attached, ClientConfig, GuardOptions, LeaseGuard, LeaseRequest, ResizeMode, Vector,
    blocking,
};
use evenkeel_gpu::client::{
    ENV_MEMORY_LIMIT, ENV_PERCENTAGE, parse_memory_limit, parse_percentage,
};
use evenkeel_gpu::{Client, ContextOptions};
use evenkeel_rollout::affinity::Thread;
use evenkeel_rollout::stage::{
    Event, GenerateConfig, SimulateConfig, TrainConfig, generate, listen, simulate, train,
};
use evenkeel_rollout::wire::{self, split};
use evenkeel_rollout::{
    Binding, EnvPool, GpuLane, Meter, Policy, PoolConfig, Shares, Weights, hold,
};

use super::load::{
    BATCH, BATCHES_PER_ROLLOUT, CHUNK, DEPTH, ENVS, GROUPS, STALENESS, UNITS_PER_ROLLOUT, memory,
};
use super::observe;
use super::policy::{Denoiser, ReachActor, ReachLearner, SharedLoad};
use super::seeds::Stage;
use super::talk::{
    Down, Listener, Orders, Role, Share, Teller, Up, head_socket, stage_socket, weights_socket,
};
use super::task::{JOINTS, Reach};

/// How long a worker waits for its lease: the daemon may still count calibration's contexts as neighbours.
const ROOM_WITHIN: Duration = Duration::from_secs(20);
/// How long a worker waits for its peers: they start at the same time.
const PEERS_WITHIN: Duration = Duration::from_secs(20);

/// Runs the worker of these orders.
pub(crate) fn main(orders: &str) -> ExitCode {
    // Whatever happens to the demo, its workers end with it.
    let parent = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    let outcome = parent
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(serde_json::from_str::<Orders>(orders)?))
        .and_then(|orders| start(&orders));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(orders: &Orders) -> anyhow::Result<()> {
    let path = head_socket(&orders.dir);
    let stream = UnixStream::connect(&path).context("cannot connect to the demo")?;
    let head = Teller::new(stream.try_clone()?);
    head.tell(&Up::Hello { role: orders.role })?;
    let outcome = match orders.role {
        Role::Observer => observe::run(orders, &head, Listener::new(stream)),
        Role::Stage(stage) => work(orders, stage, &head, Listener::new(stream)),
    };
    if let Err(error) = &outcome {
        let why = format!("{error:#}");
        // The demo may be the one that is gone.
        head.tell(&Up::Failed { why }).ok();
    }
    outcome
}

/// What all stages have.
struct Desk<'a> {
    orders: &'a Orders,
    head: &'a Teller,
    load: Arc<SharedLoad>,
    events: Sender<Event>,
    inbox: Receiver<Event>,
    stop: Arc<AtomicBool>,
    meter: Arc<Meter>,
}

fn work(orders: &Orders, stage: Stage, head: &Teller, mut control: Listener) -> anyhow::Result<()> {
    let (events, inbox) = channel();
    let desk = Desk {
        orders,
        head,
        load: Arc::new(SharedLoad::new(orders.load)),
        events,
        inbox,
        stop: Arc::default(),
        meter: Arc::new(Meter::new(1)),
    };
    let (load, events, stop) = (
        Arc::clone(&desk.load),
        desk.events.clone(),
        Arc::clone(&desk.stop),
    );
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            while let Ok(Some(message)) = control.hear::<Down>() {
                match message {
                    Down::Load(new) => load.set(new),
                    Down::Stop => break,
                    Down::Watch(_) | Down::Tell => {}
                }
            }
            stop.store(true, Ordering::SeqCst);
            events.send(Event::Stop).ok();
        })?;
    match stage {
        Stage::Simulation => simulation(desk),
        Stage::Generation => generation(desk),
        Stage::Training => training(desk),
    }
}

/// A share that has been taken.
struct Taken {
    /// The lease, if there is one.
    held: Option<(Attached, LeaseGuard)>,
}

impl Taken {
    fn target(&self) -> Option<&Vector> {
        self.held
            .as_ref()
            .map(|(attached, _)| &attached.lease.target)
    }
}

fn take(desk: &Desk<'_>, stage: Stage) -> anyhow::Result<Taken> {
    let Share::Leased { daemon, job } = &desk.orders.share else {
        return Ok(Taken { held: None });
    };
    let client = blocking::Client::new(ClientConfig::new(Address::Unix(daemon.clone())))?;
    let request = LeaseRequest::worker(job.as_str(), stage.name(), 0)
        .resize(ResizeMode::Live)
        .wait(ROOM_WITHIN);
    let worker = client
        .hold(&request, GuardOptions::default())
        .with_context(|| format!("cannot take the lease of {}", stage.name()))?;
    Ok(Taken {
        held: Some((worker.attached, worker.guard)),
    })
}

/// The threads that keep the lease; a failure of theirs ends the stage.
fn keep(
    desk: &Desk<'_>,
    taken: Taken,
    shares: impl Shares + Send + 'static,
) -> anyhow::Result<Keeper> {
    let failure = Arc::new(Mutex::new(None));
    let Some((_, guard)) = taken.held else {
        return Ok(Keeper {
            thread: None,
            failure,
        });
    };
    let (meter, stop, events) = (
        Arc::clone(&desk.meter),
        Arc::clone(&desk.stop),
        desk.events.clone(),
    );
    let failed = Arc::clone(&failure);
    let thread = thread::Builder::new()
        .name("lease".to_owned())
        .spawn(move || {
            if let Err(error) = hold(guard, &shares, &meter, &stop) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            events.send(Event::Stop).ok();
        })?;
    Ok(Keeper {
        thread: Some(thread),
        failure,
    })
}

struct Keeper {
    thread: Option<thread::JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Keeper {
    /// The stage's loop has ended: so does the lease.
    fn end(self, stop: &AtomicBool) -> anyhow::Result<()> {
        stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread {
            thread
                .join()
                .map_err(|_| anyhow!("the lease's thread panicked"))?;
        }
        match self
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }
}

/// The share of a stage that works on cores.
struct CoreShares {
    pool: Arc<EnvPool<Reach>>,
    head: Teller,
}

impl Shares for CoreShares {
    fn apply(&self, target: &Vector, _batch: Option<u32>) -> Result<Vector, String> {
        self.pool
            .bind(binding(target))
            .map_err(|error| error.to_string())?;
        let cpus = target.cpus.iter().collect();
        // The demo is only being kept informed.
        self.head.tell(&Up::Resized { sms: 0, cpus }).ok();
        Ok(target.clone())
    }
}

/// One thread for each leased core; which of the lease's CPUs it runs on is the daemon's affinity.
fn binding(share: &Vector) -> Binding {
    Binding::Set {
        cpus: share.cpus.iter().collect(),
        threads: share.cores.len(),
    }
}

/// The share of a stage that works on the GPU.
struct GpuShares {
    client: Arc<Client>,
    head: Teller,
}

impl Shares for GpuShares {
    fn apply(&self, target: &Vector, _batch: Option<u32>) -> Result<Vector, String> {
        let mut effective = target.clone();
        for share in &mut effective.gpus {
            let sms = self
                .client
                .resize(share.cap_sms)
                .map_err(|error| error.to_string())?;
            share.cap_sms = sms;
            share.guarantee_sms = share.guarantee_sms.min(sms);
            let cpus = Vec::new();
            self.head.tell(&Up::Resized { sms, cpus }).ok();
        }
        Ok(effective)
    }
}

/// Creates the GPU context as the environment of the lease says, or as told.
fn context(desk: &Desk<'_>, taken: &Taken, stage: Stage) -> anyhow::Result<Arc<Client>> {
    let mut options = ContextOptions {
        role: stage.name().to_owned(),
        percentage: None,
        memory_limit: None,
    };
    if let Some((attached, _)) = &taken.held {
        let variable = |name| attached.environment.get(name);
        options.percentage = variable(ENV_PERCENTAGE)
            .map(|text| parse_percentage(text))
            .transpose()?;
        if let Some(text) = variable(ENV_MEMORY_LIMIT) {
            options.memory_limit = parse_memory_limit(text, 0)?;
        }
    }
    let client = Client::connect(&desk.orders.gpu, &options)?;
    if let Share::Fixed { sms: Some(sms), .. } = desk.orders.share {
        client.resize(sms)?;
    }
    let bytes = memory(stage).min(client.memory_limit());
    client
        .alloc(bytes)
        .with_context(|| format!("cannot allocate {bytes} bytes on the emulated GPU"))?;
    Ok(Arc::new(client))
}

fn sms_of(desk: &Desk<'_>, taken: &Taken, client: &Client) -> u32 {
    match (&desk.orders.share, taken.target()) {
        (Share::Fixed { sms: Some(sms), .. }, _) => *sms,
        (_, Some(target)) => target.gpus.iter().map(|share| share.cap_sms).sum(),
        _ => client.sms_at_creation(),
    }
}

fn connect(path: &Path) -> anyhow::Result<UnixStream> {
    let deadline = Instant::now() + PEERS_WITHIN;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("nobody serves {}", path.display()));
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Opens the door that other stages knock at.
fn open(path: &Path) -> anyhow::Result<UnixListener> {
    if path.exists() {
        std::fs::remove_file(path)?;
    }
    Ok(UnixListener::bind(path)?)
}

fn accept(listener: &UnixListener, events: &Sender<Event>) -> anyhow::Result<wire::Sender> {
    let (stream, _) = listener.accept()?;
    let (sender, receiver) = split(stream)?;
    listen(receiver, events.clone())?;
    Ok(sender)
}

fn simulation(desk: Desk<'_>) -> anyhow::Result<()> {
    let taken = take(&desk, Stage::Simulation)?;
    let first = match (&desk.orders.share, taken.target()) {
        (_, Some(target)) => binding(target),
        (Share::Fixed { cpus, threads, .. }, _) if cpus.is_empty() => Binding::Free(*threads),
        (Share::Fixed { cpus, threads, .. }, _) => Binding::Set {
            cpus: cpus.clone(),
            threads: *threads,
        },
        (Share::Leased { .. }, None) => bail!("the lease of the simulation has no share"),
    };
    if let Binding::Set { cpus, .. } = &first {
        Thread::current().bind(cpus)?;
    }
    let arms: Vec<Reach> = (0..ENVS)
        .map(|_| Reach::new(Arc::clone(&desk.load.substeps)))
        .collect();
    let config = PoolConfig {
        // The arms are alike, and a rollout is so many batches, not so many chunks of each arm: whoever were put first
        // would only hold up a batch that is nearly whole, and generation with it.
        policy: Policy::Fifo,
        action_len: JOINTS,
        seed: desk.orders.seed,
        groups: GROUPS,
    };
    let events = desk.events.clone();
    let sink = move |finished| drop(events.send(Event::Finished(finished)));
    let pool = EnvPool::start(config, arms, first, Arc::clone(&desk.meter), sink)?;
    let pool = Arc::new(pool);
    let dir = &desk.orders.dir;
    let (to_generation, from_generation) = split(connect(&stage_socket(dir, Stage::Generation))?)?;
    listen(from_generation, desk.events.clone())?;
    let (to_training, from_training) = split(connect(&stage_socket(dir, Stage::Training))?)?;
    listen(from_training, desk.events.clone())?;
    let cpus = Thread::current().cpus();
    desk.head.tell(&Up::Ready { sms: 0, cpus })?;
    let shares = CoreShares {
        pool: Arc::clone(&pool),
        head: desk.head.clone(),
    };
    let keeper = keep(&desk, taken, shares)?;
    let per_rollout = BATCHES_PER_ROLLOUT as usize * BATCH;
    let config = SimulateConfig {
        groups: GROUPS,
        batch: BATCH,
        chunks_per_rollout: (per_rollout / ENVS) as u32,
    };
    let outcome = simulate(config, &pool, &desk.inbox, &to_generation, &to_training);
    finish(outcome, keeper, &desk.stop)
}

fn generation(desk: Desk<'_>) -> anyhow::Result<()> {
    let door = open(&stage_socket(&desk.orders.dir, Stage::Generation))?;
    let weights_door = open(&weights_socket(&desk.orders.dir))?;
    let taken = take(&desk, Stage::Generation)?;
    let client = context(&desk, &taken, Stage::Generation)?;
    let sms = sms_of(&desk, &taken, &client);
    let events = desk.events.clone();
    let sink = move |ran| drop(events.send(Event::Ran(ran)));
    let lane = GpuLane::start(Arc::clone(&client), sink)?;
    let to_simulation = accept(&door, &desk.events)?;
    accept(&weights_door, &desk.events)?;
    let cpus = Thread::current().cpus();
    desk.head.tell(&Up::Ready { sms, cpus })?;
    let shares = GpuShares {
        client,
        head: desk.head.clone(),
    };
    let keeper = keep(&desk, taken, shares)?;
    let config = GenerateConfig {
        batches_per_rollout: BATCHES_PER_ROLLOUT,
        staleness: STALENESS,
        depth: DEPTH,
        units: CHUNK as f64,
    };
    let mut actor = ReachActor::new(desk.orders.seed, Arc::clone(&desk.load));
    let weights = Weights::initial(Denoiser::new(desk.orders.seed).values().to_vec());
    let outcome = generate(
        config,
        &mut actor,
        weights,
        &lane,
        &desk.meter,
        &desk.inbox,
        &to_simulation,
    );
    finish(outcome, keeper, &desk.stop)
}

fn training(desk: Desk<'_>) -> anyhow::Result<()> {
    let door = open(&stage_socket(&desk.orders.dir, Stage::Training))?;
    let taken = take(&desk, Stage::Training)?;
    let client = context(&desk, &taken, Stage::Training)?;
    let sms = sms_of(&desk, &taken, &client);
    let events = desk.events.clone();
    let sink = move |ran| drop(events.send(Event::Ran(ran)));
    let lane = GpuLane::start(Arc::clone(&client), sink)?;
    accept(&door, &desk.events)?;
    let (to_generation, from_generation) = split(connect(&weights_socket(&desk.orders.dir))?)?;
    listen(from_generation, desk.events.clone())?;
    let cpus = Thread::current().cpus();
    desk.head.tell(&Up::Ready { sms, cpus })?;
    let shares = GpuShares {
        client,
        head: desk.head.clone(),
    };
    let keeper = keep(&desk, taken, shares)?;
    let config = TrainConfig {
        units_per_rollout: UNITS_PER_ROLLOUT,
        staleness: STALENESS,
    };
    let mut learner = ReachLearner::new(desk.orders.seed, Arc::clone(&desk.load));
    let head = desk.head.clone();
    let on_step =
        |done: &evenkeel_rollout::stage::StepDone| drop(head.tell(&Up::Stepped(done.into())));
    let outcome = train(
        config,
        &mut learner,
        &lane,
        &desk.meter,
        &desk.inbox,
        &to_generation,
        on_step,
    );
    finish(outcome, keeper, &desk.stop)
}

/// A stage that was told to stop, or whose peers went first, ended well.
fn finish(
    outcome: Result<(), evenkeel_rollout::stage::StageError>,
    keeper: Keeper,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let told = stop.load(Ordering::SeqCst);
    let kept = keeper.end(stop);
    match outcome {
        Err(error) if !told => Err(anyhow::Error::from(error)),
        _ => kept,
    }
}
