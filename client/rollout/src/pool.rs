//! Environments on threads, one thread per leased core. A free core takes the ready environment that the policy puts
//! first and runs its chunk of actions to the end; when the lease's cores change, threads are rebound at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::affinity::{BindError, Thread, boottime_ns, thread_cpu_ns};
use crate::busy::Interval;
use crate::env::{Environment, Outcome, episode_seed};
use crate::meter::Meter;
use crate::schedule::{Policy, Rank, ReadyQueue};

/// Threads of one pool: as many as the largest server has cores.
const THREADS_MAX: usize = 1_024;

/// How a pool runs its environments.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Who gets a free core.
    pub policy: Policy,
    /// Values of one action.
    pub action_len: usize,
    /// Fixes every environment's episodes.
    pub seed: u64,
    /// Groups of neighbours; the lockstep policy keeps each in step.
    pub groups: usize,
}

/// A chunk of actions for one environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The environment.
    pub env: usize,
    /// Its actions, one after the other.
    pub actions: Vec<f32>,
    /// Chunks that it still has to do in this rollout, this one included.
    pub remaining_chunks: u32,
    /// Comes back with the result.
    pub tag: u64,
}

/// A chunk that was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The environment.
    pub env: usize,
    /// What the chunk was submitted with.
    pub tag: u64,
    /// The actions, handed back.
    pub actions: Vec<f32>,
    /// What each step brought. A step after the end of an episode is still run; the reset comes after the chunk.
    pub outcomes: Vec<Outcome>,
    /// What was observed after the last step, before any reset.
    pub last: Vec<f32>,
    /// What the next chunk starts from: the same, or the first observation of a new episode.
    pub next: Vec<f32>,
}

/// Where the pool's threads run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// One thread on each of these CPUs (the first of each leased core).
    Cores(Vec<u32>),
    /// So many threads, each on any of these CPUs: for leases whose affinity the daemon sets and reads back for the
    /// whole process tree, so that no thread may have a narrower one.
    Set {
        /// The CPUs.
        cpus: Vec<u32>,
        /// Threads, one for each leased core.
        threads: usize,
    },
    /// So many threads, wherever the kernel puts them.
    Free(usize),
}

impl Binding {
    fn threads(&self) -> usize {
        match self {
            Self::Cores(cores) => cores.len(),
            Self::Set { threads, .. } | Self::Free(threads) => *threads,
        }
    }

    /// Where the thread of a slot belongs; a surplus one belongs where the last one does. None: anywhere.
    fn cpus_of(&self, slot: usize) -> Option<&[u32]> {
        match self {
            Self::Cores(cores) => {
                let at = slot.min(cores.len().checked_sub(1)?);
                Some(&cores[at..=at])
            }
            Self::Set { cpus, .. } => Some(cpus),
            Self::Free(_) => None,
        }
    }
}

/// Why the pool refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No such environment.
    #[error("there is no environment {0}")]
    Unknown(usize),
    /// It has a chunk already.
    #[error("environment {0} has not finished its chunk: wait for it")]
    Busy(usize),
    /// Half an action, or none.
    #[error("environment {env}: {values} values are not one or more actions of {action_len}")]
    Actions {
        /// The environment.
        env: usize,
        /// Values given.
        values: usize,
        /// Values of one action.
        action_len: usize,
    },
    /// No thread, or too many.
    #[error("a pool runs on 1 to {THREADS_MAX} threads, not on {0}")]
    Threads(usize),
    /// A core that may not be used.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system gives no more threads.
    #[error("cannot start a thread for a core")]
    Thread(#[source] std::io::Error),
}

type Sink = Box<dyn Fn(Finished) + Send + Sync>;

/// The environments of one process.
pub struct EnvPool<E: Environment> {
    shared: Arc<Shared<E>>,
}

struct Shared<E> {
    config: PoolConfig,
    meter: Arc<Meter>,
    sink: Sink,
    inner: Mutex<Inner<E>>,
    work: Condvar,
}

struct Inner<E> {
    /// An environment is here exactly while it does not run.
    homes: Vec<Home<E>>,
    ready: ReadyQueue<Task>,
    /// Lockstep only: those of each group that have done the step, and how many of the group have a chunk.
    waiting: Vec<VecDeque<Task>>,
    binding: Binding,
    threads: Vec<Option<Thread>>,
    failure: Option<BindError>,
    closing: bool,
    /// Of all environments.
    steps: u64,
    step_ns: u64,
}

struct Home<E> {
    env: Option<E>,
    busy: bool,
    group: usize,
    episode: u64,
    steps: u64,
    step_ns: u64,
}

/// 0 where nothing was measured.
fn mean_ns(sum_ns: u64, count: u64) -> f64 {
    sum_ns as f64 / count.max(1) as f64
}

struct Task {
    chunk: Chunk,
    outcomes: Vec<Outcome>,
}

impl<E: Environment> EnvPool<E> {
    /// Resets the environments and starts the threads. `sink` is called on their threads with each finished chunk
    /// and must not block for long.
    ///
    /// # Errors
    /// When there are no threads to run on, or a core may not be used.
    pub fn start(
        config: PoolConfig,
        envs: Vec<E>,
        binding: Binding,
        meter: Arc<Meter>,
        sink: impl Fn(Finished) + Send + Sync + 'static,
    ) -> Result<Self, PoolError> {
        let (count, groups) = (envs.len().max(1), config.groups.max(1));
        let home = |(index, mut env): (usize, E)| {
            env.reset(episode_seed(config.seed, index, 0));
            Home {
                env: Some(env),
                busy: false,
                group: index * groups / count,
                episode: 0,
                steps: 0,
                step_ns: 0,
            }
        };
        let inner = Inner {
            homes: envs.into_iter().enumerate().map(home).collect(),
            ready: ReadyQueue::new(config.policy),
            waiting: (0..groups).map(|_| VecDeque::new()).collect(),
            binding: Binding::Free(0),
            threads: Vec::new(),
            failure: None,
            closing: false,
            steps: 0,
            step_ns: 0,
        };
        let shared = Arc::new(Shared {
            config,
            meter,
            sink: Box::new(sink),
            inner: Mutex::new(inner),
            work: Condvar::new(),
        });
        let pool = Self { shared };
        pool.bind(binding)?;
        Ok(pool)
    }

    /// Moves to other cores: threads that stay are rebound at once, also in the middle of a chunk; surplus ones move
    /// to a core that is kept, and end after their chunk.
    ///
    /// # Errors
    /// When there are no threads to run on, or a core may not be used.
    pub fn bind(&self, binding: Binding) -> Result<(), PoolError> {
        let wanted = binding.threads();
        if wanted == 0 || wanted > THREADS_MAX {
            return Err(PoolError::Threads(wanted));
        }
        let mut inner = self.shared.lock();
        for (slot, thread) in inner.threads.iter().enumerate() {
            if let (Some(thread), Some(cpus)) = (thread, binding.cpus_of(slot)) {
                thread.bind(cpus)?;
            }
        }
        inner.binding = binding;
        self.shared
            .meter
            .set_lanes(u32::try_from(wanted).unwrap_or(u32::MAX));
        if inner.threads.len() < wanted {
            inner.threads.resize(wanted, None);
        }
        let missing: Vec<usize> = (0..wanted)
            .filter(|slot| inner.threads[*slot].is_none())
            .collect();
        drop(inner);
        for slot in missing {
            let shared = Arc::clone(&self.shared);
            let spawned = thread::Builder::new()
                .name(format!("env-{slot}"))
                .spawn(move || shared.run(slot));
            // It registers itself; until then the slot is free, so wait for it: two threads must not share one.
            spawned.map_err(PoolError::Thread)?;
            let mut inner = self.shared.lock();
            while inner.threads[slot].is_none() && inner.failure.is_none() {
                inner = self.shared.wait(inner);
            }
            if let Some(failure) = inner.failure.take() {
                return Err(failure.into());
            }
        }
        self.shared.work.notify_all();
        Ok(())
    }

    /// The observation that an idle environment's next chunk starts from.
    ///
    /// # Errors
    /// When there is no such environment, or it runs.
    pub fn observe(&self, env: usize) -> Result<Vec<f32>, PoolError> {
        let inner = self.shared.lock();
        let home = inner.homes.get(env).ok_or(PoolError::Unknown(env))?;
        let mut values = Vec::new();
        home.env
            .as_ref()
            .filter(|_| !home.busy)
            .ok_or(PoolError::Busy(env))?
            .observe(&mut values);
        Ok(values)
    }

    /// Gives an idle environment its next chunk.
    ///
    /// # Errors
    /// When there is no such environment, it has a chunk, or the actions are not whole.
    pub fn submit(&self, chunk: Chunk) -> Result<(), PoolError> {
        let (env, values, action_len) = (
            chunk.env,
            chunk.actions.len(),
            self.shared.config.action_len,
        );
        if values == 0 || action_len == 0 || values % action_len != 0 {
            return Err(PoolError::Actions {
                env,
                values,
                action_len,
            });
        }
        let mut inner = self.shared.lock();
        let home = inner.homes.get_mut(env).ok_or(PoolError::Unknown(env))?;
        if home.busy {
            return Err(PoolError::Busy(env));
        }
        home.busy = true;
        let outcomes = Vec::with_capacity(values / action_len);
        inner.enqueue(Task { chunk, outcomes }, self.shared.config.policy);
        drop(inner);
        self.shared.work.notify_all();
        Ok(())
    }

    /// How many environments there are.
    pub fn len(&self) -> usize {
        self.shared.lock().homes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The CPUs that each of the pool's threads may use, as the kernel says.
    pub fn affinities(&self) -> Vec<Vec<u32>> {
        let threads = self.shared.lock().threads.clone();
        threads.into_iter().flatten().map(Thread::cpus).collect()
    }
}

impl<E: Environment> Drop for EnvPool<E> {
    /// The threads end after the chunks that they are at.
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
    }
}

impl<E> Inner<E> {
    /// Makes a task ready; in lockstep only once its whole group has come as far.
    fn enqueue(&mut self, task: Task, policy: Policy) {
        let home = &self.homes[task.chunk.env];
        let group = home.group;
        if policy != Policy::Lockstep {
            let rank = Rank {
                remaining_chunks: task.chunk.remaining_chunks,
                mean_step_ns: mean_ns(home.step_ns, home.steps),
                usual_step_ns: mean_ns(self.step_ns, self.steps),
            };
            self.ready.push(rank, task);
            return;
        }
        self.waiting[group].push_back(task);
        let members = self.homes.iter().filter(|home| home.group == group).count();
        if self.waiting[group].len() == members {
            let rank = Rank {
                remaining_chunks: 0,
                mean_step_ns: 0.0,
                usual_step_ns: 0.0,
            };
            for task in std::mem::take(&mut self.waiting[group]) {
                self.ready.push(rank, task);
            }
        }
    }
}

impl<E: Environment> Shared<E> {
    fn lock(&self) -> MutexGuard<'_, Inner<E>> {
        // A thread that panicked in an environment leaves the tables whole; its environment is lost.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, inner: MutexGuard<'a, Inner<E>>) -> MutexGuard<'a, Inner<E>> {
        self.work
            .wait(inner)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the thread of one slot.
    fn run(&self, slot: usize) {
        {
            let mut inner = self.lock();
            let thread = Thread::current();
            if let Some(cpus) = inner.binding.cpus_of(slot)
                && let Err(failure) = thread.bind(cpus)
            {
                inner.failure = Some(failure);
                self.work.notify_all();
                return;
            }
            inner.threads[slot] = Some(thread);
            self.work.notify_all();
        }
        while let Some((task, env)) = self.next(slot) {
            self.execute(slot, task, env);
        }
    }

    fn next(&self, slot: usize) -> Option<(Task, E)> {
        let mut inner = self.lock();
        loop {
            if inner.closing || slot >= inner.binding.threads() {
                inner.threads[slot] = None;
                self.work.notify_all();
                return None;
            }
            if let Some(task) = inner.ready.pop()
                && let Some(env) = inner.homes[task.chunk.env].env.take()
            {
                return Some((task, env));
            }
            inner = self.wait(inner);
        }
    }

    /// Runs a task: all of its steps, or in lockstep one of them.
    fn execute(&self, slot: usize, mut task: Task, mut env: E) {
        let index = task.chunk.env;
        let action_len = self.config.action_len;
        let (started_ns, cpu_ns) = (boottime_ns(), thread_cpu_ns());
        let total = task.chunk.actions.len() / action_len;
        let until = match self.config.policy {
            Policy::Lockstep => task.outcomes.len() + 1,
            _ => total,
        };
        let from = task.outcomes.len();
        for action in task
            .chunk
            .actions
            .chunks_exact(action_len)
            .take(until)
            .skip(from)
        {
            task.outcomes.push(env.step(action));
        }
        let steps_end_ns = boottime_ns();
        let steps = until - from;
        let is_done = until == total;
        let episode_over = is_done && task.outcomes.iter().any(|outcome| outcome.done);
        let result = is_done.then(|| self.look(index, &mut env, episode_over));
        self.meter.push(Interval {
            lane: u32::try_from(slot).unwrap_or(u32::MAX),
            start_ns: started_ns,
            end_ns: boottime_ns(),
            units: steps as f64,
            batch: 1,
            cpu_ns: thread_cpu_ns().saturating_sub(cpu_ns),
        });
        let step_ns = steps_end_ns.saturating_sub(started_ns);
        let mut inner = self.lock();
        inner.steps += steps as u64;
        inner.step_ns += step_ns;
        let home = &mut inner.homes[index];
        home.env = Some(env);
        home.steps += steps as u64;
        home.step_ns += step_ns;
        home.episode += u64::from(episode_over);
        let Some((last, next)) = result else {
            inner.enqueue(task, self.config.policy);
            drop(inner);
            self.work.notify_all();
            return;
        };
        home.busy = false;
        drop(inner);
        (self.sink)(Finished {
            env: index,
            tag: task.chunk.tag,
            actions: task.chunk.actions,
            outcomes: task.outcomes,
            last,
            next,
        });
    }

    /// What is to be seen after a chunk, and what the next one starts from: a new episode if this one is over.
    fn look(&self, index: usize, env: &mut E, episode_over: bool) -> (Vec<f32>, Vec<f32>) {
        let (mut last, mut next) = (Vec::new(), Vec::new());
        env.observe(&mut last);
        if episode_over {
            let episode = self.lock().homes[index].episode + 1;
            env.reset(episode_seed(self.config.seed, index, episode));
            env.observe(&mut next);
        } else {
            next.clone_from(&last);
        }
        (last, next)
    }
}

#[cfg(test)]
mod tests;
