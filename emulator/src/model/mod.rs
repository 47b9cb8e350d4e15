//! The model of an emulated GPU: a library without a clock. Callers say when things happen, and are told when work
//! completes; the device process drives it by the wall clock, tests and sweeps by virtual time.
//!
//! Time is nanoseconds since whenever the caller likes. Events happen at their ideal times, however late or in
//! whatever portions `advance` is called; the same calls give the same answers, to the nanosecond.
//!
//! Every call with a time first lets everything happen that lies before it. A time before the model's `now` (the last
//! thing that happened) counts as `now`: a submission that arrives late starts at the earliest moment that does not
//! rewrite history.

mod error;
mod kernel;
mod share;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use error::ModelError;
pub use kernel::{KernelGroup, solo_time_ns};
use stream::{Client, Running};

use crate::limits::{MAX_CLIENTS, MAX_GROUPS, MAX_QUEUED};
use crate::spec::GpuSpec;

/// A client context of one GPU. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// A submission, named by its client; it comes back in the [`Completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SubmissionId(pub u64);

/// What a client context may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSpec {
    /// The cap in SMs; rounded up to the granularity. Caps of several clients may overlap.
    pub sms: u32,
    /// The limit of its device memory in bytes. Limits may add up to more than the GPU has.
    pub memory: u64,
}

/// A submission that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose it was.
    pub client: ClientId,
    /// The name it was submitted under.
    pub id: SubmissionId,
    /// When its first kernel was launched: its submission or the end of the one before it, whichever was later.
    pub start: u64,
    /// When its last kernel ended.
    pub end: u64,
}

/// A client as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStats {
    /// Its cap in SMs, effective.
    pub sms: u32,
    /// Its memory limit in bytes.
    pub memory_limit: u64,
    /// Bytes that it has allocated.
    pub memory_used: u64,
    /// Nanoseconds during which one of its submissions was under way, up to the time asked about; also while it had
    /// no SMs to go on with.
    pub busy_ns: u64,
    /// Submissions that wait or run.
    pub queued: usize,
}

/// One emulated GPU and the clients on it.
#[derive(Clone, Debug)]
pub struct Model {
    spec: GpuSpec,
    now: u64,
    next_client: u64,
    clients: BTreeMap<ClientId, Client>,
    /// Completions that happened while the model caught up with a call other than `advance`.
    done: Vec<Completion>,
}

impl Model {
    /// An idle GPU at time 0. The specification should be valid ([`GpuSpec::validate`]).
    pub fn new(spec: GpuSpec) -> Self {
        Self {
            spec,
            now: 0,
            next_client: 1,
            clients: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// What the GPU is.
    pub fn spec(&self) -> &GpuSpec {
        &self.spec
    }

    /// When the last thing happened, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Creates a client context.
    ///
    /// # Errors
    /// When the GPU serves [`MAX_CLIENTS`] already, or the share is more than the GPU has.
    pub fn connect(&mut self, at: u64, client: ClientSpec) -> Result<ClientId, ModelError> {
        let sms = self.grant(client.sms)?;
        if client.memory > self.spec.memory_bytes {
            return Err(ModelError::MemoryLimit {
                asked: client.memory,
                installed: self.spec.memory_bytes,
            });
        }
        if self.clients.len() >= MAX_CLIENTS {
            return Err(ModelError::TooManyClients);
        }
        self.catch_up(at);
        let id = ClientId(self.next_client);
        self.next_client += 1;
        let client = Client::new(sms, client.memory);
        self.clients.insert(id, client);
        Ok(id)
    }

    /// Ends a client: its SMs and memory are free from `at` on, its queue is forgotten without completions.
    ///
    /// # Errors
    /// When there is no such client.
    pub fn disconnect(&mut self, at: u64, id: ClientId) -> Result<(), ModelError> {
        self.client(id)?;
        self.catch_up(at);
        self.clients.remove(&id);
        self.repace();
        Ok(())
    }

    /// Changes a client's cap and returns what is effective (`sms` rounded up to the granularity; 0 stops the
    /// client). Kernels that run go on at the new pace from `at`.
    ///
    /// # Errors
    /// When there is no such client or the GPU has fewer SMs; nothing changes then.
    pub fn resize(&mut self, at: u64, id: ClientId, sms: u32) -> Result<u32, ModelError> {
        self.client(id)?;
        let effective = self.grant(sms)?;
        self.catch_up(at);
        self.client_mut(id)?.sms = effective;
        self.repace();
        Ok(effective)
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// When there is no such client, or its limit or the GPU's memory would be exceeded.
    pub fn alloc(&mut self, id: ClientId, bytes: u64) -> Result<(), ModelError> {
        let used: u64 = self.clients.values().map(|client| client.memory_used).sum();
        let gpu_free = self.spec.memory_bytes - used;
        let client = self.client_mut(id)?;
        let free = gpu_free.min(client.memory_limit - client.memory_used);
        if bytes > free {
            return Err(ModelError::OutOfMemory {
                asked: bytes,
                free,
                limit: client.memory_limit,
            });
        }
        client.memory_used += bytes;
        Ok(())
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// When there is no such client or it has allocated less.
    pub fn free(&mut self, id: ClientId, bytes: u64) -> Result<(), ModelError> {
        let client = self.client_mut(id)?;
        if bytes > client.memory_used {
            return Err(ModelError::NotAllocated {
                asked: bytes,
                used: client.memory_used,
            });
        }
        client.memory_used -= bytes;
        Ok(())
    }

    /// Puts a list of kernels into the client's stream, behind what is there.
    ///
    /// # Errors
    /// When there is no such client, its queue is full, or the list is empty, too long or has a kernel that is
    /// out of range; nothing changes then.
    pub fn submit(
        &mut self,
        at: u64,
        client: ClientId,
        id: SubmissionId,
        groups: Vec<KernelGroup>,
    ) -> Result<(), ModelError> {
        self.client(client)?;
        if groups.is_empty() || groups.len() > MAX_GROUPS {
            return Err(ModelError::ListLength {
                groups: groups.len(),
            });
        }
        for (index, group) in groups.iter().enumerate() {
            if let Some(must) = group.fault() {
                return Err(ModelError::Kernel { index, must });
            }
        }
        // What completes until `at` makes room.
        self.catch_up(at);
        let now = self.now;
        let state = self.client_mut(client)?;
        if state.queued() >= MAX_QUEUED {
            return Err(ModelError::QueueFull);
        }
        if state.submit(now, id, groups) {
            self.repace();
        }
        Ok(())
    }

    /// Lets everything happen that lies at or before `to`, and appends what completed, in order of time and client.
    pub fn advance(&mut self, to: u64, out: &mut Vec<Completion>) {
        self.run(to);
        out.append(&mut self.done);
    }

    /// When the next thing happens, so that `advance` should be called; `None` while nothing runs.
    pub fn next(&self) -> Option<u64> {
        if !self.done.is_empty() {
            return Some(self.now);
        }
        self.next_event()
    }

    /// The clients and what they use at time `at`, ascending.
    pub fn clients(&self, at: u64) -> impl Iterator<Item = (ClientId, ClientStats)> + '_ {
        self.clients
            .iter()
            .map(move |(id, client)| (*id, client.stats(at)))
    }

    /// One client and what it uses at time `at`.
    pub fn stats(&self, at: u64, id: ClientId) -> Option<ClientStats> {
        self.clients.get(&id).map(|client| client.stats(at))
    }

    /// SMs that do work at this moment, on average over launch gaps; at most the GPU's.
    pub fn sms_in_use(&self) -> f64 {
        let working = |client: &Client| {
            let (launch, running) = (client.launch(&self.spec)?, client.running.as_ref()?);
            Some(share::occupancy(&launch) * launch.period_ns / running.period_ns)
        };
        self.clients.values().filter_map(working).sum()
    }

    /// Bytes per second that are moved at this moment; at most the GPU's bandwidth.
    pub fn bandwidth_in_use(&self) -> f64 {
        let drawn = |client: &Client| {
            let (launch, running) = (client.launch(&self.spec)?, client.running.as_ref()?);
            Some(launch.bytes / running.period_ns * 1e9)
        };
        self.clients.values().filter_map(drawn).sum()
    }

    fn grant(&self, sms: u32) -> Result<u32, ModelError> {
        self.spec.granted_sms(sms).ok_or(ModelError::Sms {
            asked: sms,
            installed: self.spec.sms,
        })
    }

    fn client(&self, id: ClientId) -> Result<&Client, ModelError> {
        self.clients.get(&id).ok_or(ModelError::UnknownClient(id))
    }

    fn client_mut(&mut self, id: ClientId) -> Result<&mut Client, ModelError> {
        self.clients
            .get_mut(&id)
            .ok_or(ModelError::UnknownClient(id))
    }

    fn next_event(&self) -> Option<u64> {
        let ends = self
            .clients
            .values()
            .filter_map(|client| client.running.as_ref().map(Running::end));
        ends.filter(|&end| end != u64::MAX).min()
    }

    fn catch_up(&mut self, at: u64) {
        self.run(at);
        self.now = self.now.max(at);
    }

    fn run(&mut self, to: u64) {
        while let Some(at) = self.next_event().filter(|&at| at <= to) {
            self.now = at;
            for (id, client) in &mut self.clients {
                if client
                    .running
                    .as_ref()
                    .is_some_and(|running| running.end() == at)
                {
                    self.done.extend(client.finish_group(*id, at));
                }
            }
            self.repace();
        }
    }

    /// Gives everyone that runs its pace from now on.
    fn repace(&mut self) {
        let mut launches = Vec::with_capacity(self.clients.len());
        let mut runners = Vec::with_capacity(self.clients.len());
        for client in self.clients.values_mut() {
            let launch = client.launch(&self.spec);
            let Some(running) = client.running.as_mut() else {
                continue;
            };
            match launch {
                Some(launch) => {
                    launches.push(launch);
                    runners.push(running);
                }
                None => running.change_pace(self.now, f64::INFINITY),
            }
        }
        for (running, period_ns) in runners
            .into_iter()
            .zip(share::periods_ns(&self.spec, &launches))
        {
            running.change_pace(self.now, period_ns);
        }
    }
}
