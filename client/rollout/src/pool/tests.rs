//! The pool on real threads: determinism, rebinding, refusals.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;

/// Adds up its actions in an order-dependent way; some of its steps are slow.
struct Counter {
    state: f64,
    steps: u64,
    slow_us: u64,
}

impl Environment for Counter {
    fn reset(&mut self, seed: u64) {
        self.state = (seed % 1_000) as f64;
        self.steps = 0;
    }
    fn observe(&self, into: &mut Vec<f32>) {
        into.push(self.state as f32);
    }
    fn step(&mut self, action: &[f32]) -> Outcome {
        if self.slow_us > 0 {
            thread::sleep(Duration::from_micros(self.slow_us));
        }
        self.state = (self.state * 1.7 + f64::from(action[0])) % 1_000.0;
        self.steps += 1;
        let done = self.steps.is_multiple_of(6);
        Outcome {
            reward: action[0],
            done,
            success: done,
        }
    }
}

fn pool(
    envs: usize,
    policy: Policy,
    binding: Binding,
    slow_us: u64,
) -> (EnvPool<Counter>, Receiver<Finished>) {
    let config = PoolConfig {
        policy,
        action_len: 1,
        seed: 7,
        groups: 2,
    };
    let counters = (0..envs)
        .map(|env| Counter {
            state: 0.0,
            steps: 0,
            slow_us: slow_us * (env as u64 % 3),
        })
        .collect();
    let (sender, receiver) = channel();
    let sink = move |finished| drop(sender.send(finished));
    let pool = EnvPool::start(config, counters, binding, Arc::new(Meter::new(1)), sink);
    (pool.unwrap(), receiver)
}

/// Every environment runs `chunks` chunks of four steps; what each saw, by environment.
fn history(policy: Policy, threads: usize, slow_us: u64) -> Vec<Vec<f32>> {
    const ENVS: usize = 6;
    const CHUNKS: u32 = 5;
    let (pool, finished) = pool(ENVS, policy, Binding::Free(threads), slow_us);
    let mut seen: Vec<Vec<f32>> = (0..ENVS).map(|env| pool.observe(env).unwrap()).collect();
    let submit = |env: usize, chunk: u32| {
        let actions = (0..4)
            .map(|step| (env as u32 + chunk * step) as f32)
            .collect();
        let remaining_chunks = CHUNKS - chunk;
        let chunk = Chunk {
            env,
            actions,
            remaining_chunks,
            tag: chunk.into(),
        };
        pool.submit(chunk).unwrap();
    };
    (0..ENVS).for_each(|env| submit(env, 0));
    for _ in 0..ENVS as u32 * CHUNKS {
        let done = finished.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(done.outcomes.len(), 4);
        seen[done.env].extend(&done.last);
        seen[done.env].extend(&done.next);
        let next = done.tag as u32 + 1;
        if next < CHUNKS {
            submit(done.env, next);
        }
    }
    seen
}

#[test]
fn an_environment_does_the_same_whatever_the_schedule() {
    let expect = history(Policy::Fifo, 1, 0);
    assert!(
        expect
            .iter()
            .any(|seen| seen.len() > 1 && seen[0] != seen[1]),
        "it does something"
    );
    for policy in [
        Policy::LongestRemaining,
        Policy::LongestStep,
        Policy::Fifo,
        Policy::Lockstep,
    ] {
        for threads in [1, 3] {
            assert_eq!(
                history(policy, threads, 200),
                expect,
                "{policy:?} on {threads} threads"
            );
        }
    }
}

#[test]
fn an_episode_ends_with_its_chunk() {
    let (pool, finished) = pool(1, Policy::Fifo, Binding::Free(1), 0);
    let chunk = |tag| Chunk {
        env: 0,
        actions: vec![1.0; 4],
        remaining_chunks: 1,
        tag,
    };
    pool.submit(chunk(0)).unwrap();
    let first = finished.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(first.last == first.next && first.outcomes.iter().all(|o| !o.done));
    pool.submit(chunk(1)).unwrap();
    let second = finished.recv_timeout(Duration::from_secs(30)).unwrap();
    let ends: Vec<bool> = second.outcomes.iter().map(|o| o.done).collect();
    assert_eq!(
        ends,
        [false, true, false, false],
        "the sixth step ends it; the chunk is run to its end"
    );
    assert_ne!(second.last, second.next, "a new episode");
    assert_eq!(pool.observe(0).unwrap(), second.next);
}

#[test]
fn threads_move_when_the_cores_do() {
    let cpus = Thread::current().cpus();
    let first = Binding::Cores(vec![cpus[0]]);
    let (pool, finished) = pool(4, Policy::Fifo, first, 2_000);
    assert_eq!(pool.affinities(), [vec![cpus[0]]]);
    for env in 0..4 {
        let chunk = Chunk {
            env,
            actions: vec![1.0; 20],
            remaining_chunks: 1,
            tag: 0,
        };
        pool.submit(chunk).unwrap();
    }
    if let Some(&other) = cpus.get(1) {
        // In the middle of chunks: one thread moves, another one starts.
        pool.bind(Binding::Cores(vec![other, cpus[0]])).unwrap();
        assert_eq!(pool.affinities(), [vec![other], vec![cpus[0]]]);
        pool.bind(Binding::Cores(vec![other])).unwrap();
        assert_eq!(
            pool.affinities()[0],
            [other],
            "the surplus thread is on a kept core until it ends"
        );
        assert!(pool.affinities().iter().all(|cpus| *cpus == [other]));
    }
    for _ in 0..4 {
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (pool, _finished) = pool(2, Policy::Fifo, Binding::Free(1), 20_000);
    let chunk = |env, values| Chunk {
        env,
        actions: vec![0.0; values],
        remaining_chunks: 1,
        tag: 0,
    };
    assert!(matches!(
        pool.submit(chunk(9, 1)),
        Err(PoolError::Unknown(9))
    ));
    assert!(matches!(
        pool.submit(chunk(0, 0)),
        Err(PoolError::Actions { .. })
    ));
    pool.submit(chunk(1, 5)).unwrap();
    assert!(matches!(pool.submit(chunk(1, 1)), Err(PoolError::Busy(1))));
    assert!(matches!(pool.observe(1), Err(PoolError::Busy(1))));
    assert!(matches!(
        pool.bind(Binding::Free(0)),
        Err(PoolError::Threads(0))
    ));
    assert!(matches!(
        pool.bind(Binding::Cores(vec![100_000])),
        Err(PoolError::Bind(_))
    ));
}
