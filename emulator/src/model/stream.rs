//! One client's stream: its queue in order, and how far the front of it is. It keeps time between two changes of
//! pace; what the pace is, `share` decides.

use std::collections::VecDeque;

use super::kernel::{KernelGroup, Launch, whole_ns};
use super::{ClientId, ClientStats, Completion, SubmissionId};
use crate::spec::GpuSpec;

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) sms: u32,
    pub(super) memory_limit: u64,
    pub(super) memory_used: u64,
    busy_ns: u64,
    /// In order; the front one runs.
    queue: VecDeque<Submission>,
    /// Where the front submission is; `None` exactly if the queue is empty.
    pub(super) running: Option<Running>,
}

#[derive(Clone, Debug)]
struct Submission {
    id: SubmissionId,
    groups: Vec<KernelGroup>,
}

/// The group that runs, and its pace since the last moment at which the pace changed.
#[derive(Clone, Debug)]
pub(super) struct Running {
    start: u64,
    group: usize,
    since: u64,
    /// Launches left at `since`.
    left: f64,
    /// Nanoseconds per launch from `since` on; infinite while the client has no SMs.
    pub(super) period_ns: f64,
}

impl Running {
    pub(super) fn end(&self) -> u64 {
        if self.period_ns.is_finite() {
            self.since
                .saturating_add(whole_ns(self.left * self.period_ns))
        } else {
            u64::MAX
        }
    }

    pub(super) fn change_pace(&mut self, at: u64, period_ns: f64) {
        // Only a change moves the anchor: a stretch of constant pace is one multiplication, however it was cut.
        if self.period_ns.to_bits() != period_ns.to_bits() {
            self.left = (self.left - (at - self.since) as f64 / self.period_ns).max(0.0);
            self.since = at;
            self.period_ns = period_ns;
        }
    }
}

impl Client {
    pub(super) fn new(sms: u32, memory_limit: u64) -> Self {
        Self {
            sms,
            memory_limit,
            memory_used: 0,
            busy_ns: 0,
            queue: VecDeque::new(),
            running: None,
        }
    }

    /// Submissions that wait or run.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Appends to the queue; says whether it started at once, so that paces change.
    pub(super) fn submit(&mut self, at: u64, id: SubmissionId, groups: Vec<KernelGroup>) -> bool {
        self.queue.push_back(Submission { id, groups });
        let idle = self.running.is_none();
        if idle {
            self.start_front(at);
        }
        idle
    }

    /// The launch that the front submission is at; `None` if nothing is queued or there are no SMs.
    pub(super) fn launch(&self, spec: &GpuSpec) -> Option<Launch> {
        let group = self
            .queue
            .front()?
            .groups
            .get(self.running.as_ref()?.group)?;
        Launch::alone(spec, self.sms, group)
    }

    fn start_front(&mut self, at: u64) {
        // Waits at an infinite period until the pace is set, in the same call.
        self.running = self.queue.front().map(|submission| Running {
            start: at,
            group: 0,
            since: at,
            left: submission
                .groups
                .first()
                .map_or(0.0, |group| f64::from(group.repeat)),
            period_ns: f64::INFINITY,
        });
    }

    /// The running group ended at `at`; on to the next one, or to the next submission.
    pub(super) fn finish_group(&mut self, client: ClientId, at: u64) -> Option<Completion> {
        let running = self.running.as_mut()?;
        let next = running.group + 1;
        if let Some(group) = self.queue.front()?.groups.get(next) {
            let left = f64::from(group.repeat);
            *running = Running {
                start: running.start,
                group: next,
                since: at,
                left,
                period_ns: f64::INFINITY,
            };
            return None;
        }
        let start = running.start;
        self.busy_ns += at - start;
        let submission = self.queue.pop_front()?;
        self.start_front(at);
        Some(Completion {
            client,
            id: submission.id,
            start,
            end: at,
        })
    }

    pub(super) fn stats(&self, at: u64) -> ClientStats {
        let running = self
            .running
            .as_ref()
            .map_or(0, |running| at.saturating_sub(running.start));
        ClientStats {
            sms: self.sms,
            memory_limit: self.memory_limit,
            memory_used: self.memory_used,
            busy_ns: self.busy_ns + running,
            queued: self.queued(),
        }
    }
}
