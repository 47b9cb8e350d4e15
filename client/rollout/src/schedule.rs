//! Which ready environment gets the next free core. Pure: no threads, no clock.

/// The order in which ready environments get cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Chunks left × mean step time: likely stragglers first, without starving the others (default). Step times within
    /// an eighth of the pool's usual one count as equal, and equals run as they came: an order made of noise would
    /// mix the environments of all batches, so that every batch ends late and the policy stands idle.
    #[default]
    LongestRemaining,
    /// The longest mean step time, as published (EBRL). A static priority: under a fixed quota it can starve short
    /// environments.
    LongestStep,
    /// First come, first served.
    Fifo,
    /// Every environment of a group waits for the slowest after each step, as RLinf's vector environments do.
    Lockstep,
}

/// What the order depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rank {
    /// Chunks that the environment still has to do in this rollout, this one included.
    pub(crate) remaining_chunks: u32,
    /// Its mean step time so far, in nanoseconds; 0: unknown.
    pub(crate) mean_step_ns: f64,
    /// The mean step time of all environments so far, in nanoseconds; 0: unknown.
    pub(crate) usual_step_ns: f64,
}

/// Step times are told apart by steps of this ratio, the usual one in the middle of a step.
const STEP_TIME_RATIO: f64 = 1.28;

impl Rank {
    /// The step time over the usual one, as a whole power of the ratio.
    fn slowness(self) -> f64 {
        let relative = self.mean_step_ns / self.usual_step_ns;
        if !relative.is_finite() || relative <= 0.0 {
            return 1.0;
        }
        STEP_TIME_RATIO.powf((relative.ln() / STEP_TIME_RATIO.ln()).round())
    }
}

/// Environments that are ready to run, in the order of a policy; equals by arrival.
#[derive(Debug)]
pub(crate) struct ReadyQueue<T> {
    policy: Policy,
    waiting: Vec<(f64, u64, T)>,
    arrivals: u64,
}

impl<T> ReadyQueue<T> {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            waiting: Vec::new(),
            arrivals: 0,
        }
    }

    pub(crate) fn push(&mut self, rank: Rank, value: T) {
        let key = match self.policy {
            Policy::LongestRemaining => f64::from(rank.remaining_chunks) * rank.slowness(),
            Policy::LongestStep => rank.mean_step_ns,
            Policy::Fifo | Policy::Lockstep => 0.0,
        };
        self.waiting.push((key, self.arrivals, value));
        self.arrivals += 1;
    }

    /// The one that runs next. Linear in what waits: at most the environments of one process.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let order = |(_, a): &(usize, &(f64, u64, T)), (_, b): &(usize, &(f64, u64, T))| {
            a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))
        };
        let (at, _) = self.waiting.iter().enumerate().max_by(order)?;
        Some(self.waiting.swap_remove(at).2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Environments `(name, chunks left, mean step time)` in order of arrival, and the order in which they run where
    /// a step usually takes 20.
    fn check(policy: Policy, ready: &[(char, u32, f64)], expect: &str) {
        let mut queue = ReadyQueue::new(policy);
        for &(name, remaining_chunks, mean_step_ns) in ready {
            queue.push(
                Rank {
                    remaining_chunks,
                    mean_step_ns,
                    usual_step_ns: 20.0,
                },
                name,
            );
        }
        let order: String = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, expect, "{policy:?}");
    }

    #[test]
    fn each_policy_has_its_order() {
        let ready = [('a', 9, 10.0), ('b', 1, 50.0), ('c', 3, 20.0)];
        check(Policy::LongestRemaining, &ready, "acb"); // 90, 50, 60
        check(Policy::LongestStep, &ready, "bca");
        check(Policy::Fifo, &ready, "abc");
        check(Policy::Lockstep, &ready, "abc");
    }

    #[test]
    fn equals_run_as_they_came() {
        let unknown = [('a', 2, 0.0), ('b', 2, 0.0), ('c', 2, 0.0)];
        check(Policy::LongestRemaining, &unknown, "abc");
        check(Policy::LongestStep, &unknown, "abc");
        let noisy = [('a', 2, 19.0), ('b', 2, 22.0), ('c', 2, 18.1)];
        check(Policy::LongestRemaining, &noisy, "abc");
        check(
            Policy::LongestRemaining,
            &[('a', 2, 20.0), ('b', 2, 26.0)],
            "ba",
        );
    }
}
