//! Emulated GPUs: whose contexts are on them, and which of them have to end. Shares themselves are given through the
//! worker's environment, and read when it creates its context; here they are only verified.
//!
//! A device that does not answer is reported as unavailable, and the daemon goes on. Neighbours (contexts of
//! processes that hold no share) are counted as unavailable, and never touched. A device that died is started again
//! where the daemon is to start it. Called by `reconcile`.

mod link;
mod revive;
mod start;

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_core::command::Seen;
use evenkeel_core::converge::{Client, Step, Want};
use evenkeel_core::id::{GpuId, LeaseId, Name};
use evenkeel_core::node::{Gpu, GpuBackend, GpuMode};
use evenkeel_core::unit::{Bytes, Millis, Sms, Time};
use evenkeel_gpu::wire::{ClientInfo, GpuInfo, GpuState};
use evenkeel_gpu::{ClientId, GpuSpec};

use super::{Backend, BackendError, GpuSight, View};
use crate::clock;
use crate::config::EmulatedConfig;
use crate::reconcile::Targets;
pub use link::{Link, LinkError};
use revive::Revival;
pub use start::{Served, StartError, Started, ensure_served};

/// A context without a lease counts only when it has been there for so long: a worker that is just attaching looks
/// like one until the targets name it.
const NEIGHBOUR_AFTER: Millis = Millis::secs(1);

/// One emulated GPU as the node has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulated {
    /// Its place on the node.
    pub id: GpuId,
    /// Its socket.
    pub socket: PathBuf,
    /// How far the daemon may go.
    pub mode: GpuMode,
    /// Memory that is not leased.
    pub reserved: Bytes,
}

impl Emulated {
    /// The GPU in the core's words.
    pub fn describe(&self, spec: &GpuSpec) -> Gpu {
        let name = |text: String| Name::new(&text).unwrap_or_else(|_| Name::unknown());
        let memory = Bytes(spec.memory_bytes);
        Gpu {
            id: self.id,
            uuid: name(format!("GPU-emulated-{}", self.id.0)),
            model: name(format!("emulated-{}", spec.name.replace(' ', "-"))),
            sms: Sms(spec.sms),
            memory,
            reserved_memory: self.reserved.min(memory),
            enforceable: spec.enforceable_sms().into_iter().map(Sms).collect(),
            numa: 0,
            backend: GpuBackend::Emulated,
            mode: self.mode,
        }
    }
}

/// Looks at emulated GPUs.
#[derive(Debug)]
pub struct EmulatedBackend {
    gpus: Vec<(Emulated, Link)>,
    /// Contexts without a share, since when.
    neighbours: BTreeMap<(GpuId, u64), Time>,
    /// None: somebody else starts the device.
    revival: Option<Revival>,
}

impl EmulatedBackend {
    /// For these GPUs. Connects when it looks, and again whenever a device comes back.
    pub fn new(gpus: Vec<Emulated>) -> Self {
        let link = |gpu: Emulated| {
            let link = Link::new(gpu.socket.clone());
            (gpu, link)
        };
        Self {
            gpus: gpus.into_iter().map(link).collect(),
            neighbours: BTreeMap::new(),
            revival: None,
        }
    }

    /// Starts the device again when it is gone, if this configuration says that the daemon starts it.
    #[must_use]
    pub fn reviving(self, config: &EmulatedConfig) -> Self {
        Self {
            revival: config.start.then(|| Revival::new(config.clone())),
            ..self
        }
    }

    /// What comes of a look in which nobody served any of the GPUs, or somebody did.
    fn revive(&mut self, gone: bool, now: Time, targets: &Targets, view: &mut View) {
        let Some(revival) = self.revival.as_mut().filter(|_| !self.gpus.is_empty()) else {
            return;
        };
        if !gone {
            return revival.is_there(now);
        }
        let node = &targets.node;
        let cores = node.cores.iter().map(|core| core.id).collect();
        let told = revival.is_gone(now, &node.cpus_of(&cores));
        for (gpu, _) in &self.gpus {
            let sight = view.gpus.get_mut(&gpu.id);
            if let Some(trouble) = sight.and_then(|sight| sight.trouble.as_mut()) {
                *trouble = format!("{trouble}; {told}");
            }
        }
    }
}

impl Backend for EmulatedBackend {
    fn name(&self) -> &'static str {
        "emulated"
    }

    fn observe(&mut self, targets: &Targets, view: &mut View) -> Result<(), BackendError> {
        let now = clock::now();
        let mut strangers = BTreeMap::new();
        // One process serves all of them.
        let mut gone = true;
        for (gpu, link) in &mut self.gpus {
            match link.look() {
                Ok((info, clients)) => {
                    gone = false;
                    let foreign = place(gpu.id, &clients, targets, view);
                    let here = settled(gpu.id, foreign, now, &self.neighbours, &mut strangers);
                    view.gpus.insert(gpu.id, sight(gpu, &info, &here));
                }
                Err(error) => {
                    // Nobody serves the socket: then there are no contexts either. A device that is silent proves
                    // nothing, so what is on it stays counted.
                    if error.is_absent() {
                        place(gpu.id, &[], targets, view);
                    } else {
                        gone = false;
                    }
                    let lost = view.gpus.entry(gpu.id);
                    lost.or_insert_with(|| all_of(targets, gpu.id, &error.to_string()));
                }
            }
        }
        self.neighbours = strangers;
        self.revive(gone, now, targets, view);
        Ok(())
    }

    fn apply(&mut self, _targets: &Targets, step: &Step) -> Result<bool, BackendError> {
        let Step::TerminateClient { client, .. } = step else {
            return Ok(false);
        };
        let ours = self.gpus.iter_mut().find(|(gpu, _)| gpu.id == client.gpu);
        let Some((gpu, link)) = ours.filter(|(gpu, _)| gpu.mode == GpuMode::Enforce) else {
            return Ok(false);
        };
        tracing::info!(
            gpu = gpu.id.0,
            client = client.client,
            pid = client.pid,
            "ending a GPU context"
        );
        link.terminate(ClientId(client.client))
            .map_err(|error| BackendError::Gpu {
                gpu: gpu.id,
                what: format!("cannot end context {}: {error}", client.client),
            })?;
        metrics::counter!("evenkeel_gpu_contexts_ended_total").increment(1);
        Ok(true)
    }
}

/// Gives each context to the trees that it belongs to; returns those that belong to nobody with a share.
fn place<'a>(
    gpu: GpuId,
    clients: &'a [ClientInfo],
    targets: &Targets,
    view: &mut View,
) -> Vec<&'a ClientInfo> {
    for target in &targets.targets {
        if let Some(sight) = view.trees.get_mut(&target.lease) {
            sight.seen.insert(gpu, Seen::default());
        }
    }
    let mut foreign = Vec::new();
    for info in clients {
        let owners = match info.pid {
            0 => Vec::new(), // in another pid namespace
            pid => view.owners_of(pid),
        };
        let (with_share, without): (Vec<_>, Vec<_>) = owners
            .into_iter()
            .partition(|lease| has_share(targets, *lease, gpu));
        if with_share.is_empty() {
            foreign.push(info);
        }
        let owners = if with_share.is_empty() {
            without
        } else {
            with_share
        };
        for lease in owners {
            let Some(sight) = view.trees.get_mut(&lease) else {
                continue;
            };
            sight.clients.push(Client {
                gpu,
                client: info.client.0,
                pid: info.pid,
            });
            let seen = sight.seen.entry(gpu).or_default();
            seen.clients += 1;
            seen.cap = seen.cap.max(Sms(info.sms));
            seen.memory += Bytes(info.memory_limit);
        }
    }
    foreign
}

/// Whether a lease has, or still counts for, a share of a GPU.
fn has_share(targets: &Targets, lease: LeaseId, gpu: GpuId) -> bool {
    let target = targets.targets.iter().find(|t| t.lease == lease);
    target.is_some_and(|t| !matches!(t.want, Want::Bound(_)) || t.gpus.contains(&gpu))
}

/// Those that have been there for a while: a worker that is just attaching is none.
fn settled(
    gpu: GpuId,
    foreign: Vec<&ClientInfo>,
    now: Time,
    known: &BTreeMap<(GpuId, u64), Time>,
    strangers: &mut BTreeMap<(GpuId, u64), Time>,
) -> Vec<ClientInfo> {
    let mut here = Vec::new();
    for info in foreign {
        let key = (gpu, info.client.0);
        let since = known.get(&key).copied().unwrap_or(now);
        strangers.insert(key, since);
        if since.after(NEIGHBOUR_AFTER) <= now {
            here.push(info.clone());
        }
    }
    here
}

/// What neighbours take: the SMs of their caps, and the memory that they may allocate; for one without a limit of its
/// own, what it has allocated.
fn taken(neighbours: &[ClientInfo], spec: &GpuSpec) -> (Sms, Bytes) {
    let memory = |info: &ClientInfo| {
        Bytes(if info.memory_limit < spec.memory_bytes {
            info.memory_limit
        } else {
            info.memory_used
        })
    };
    let sms: Sms = neighbours.iter().map(|info| Sms(info.sms)).sum();
    let memory: Bytes = neighbours.iter().map(memory).sum();
    (sms.min(Sms(spec.sms)), memory.min(Bytes(spec.memory_bytes)))
}

fn sight(gpu: &Emulated, info: &GpuInfo, neighbours: &[ClientInfo]) -> GpuSight {
    let described = gpu.describe(&info.spec);
    let (unavailable, trouble) = match info.state {
        GpuState::Active => (
            taken(neighbours, &info.spec),
            (!neighbours.is_empty())
                .then(|| format!("{}: {} contexts hold no lease", gpu.id, neighbours.len())),
        ),
        GpuState::Fault => (
            (described.sms, described.memory),
            Some(format!(
                "{} had a fault and waits until the processes that it hit have ended",
                gpu.id
            )),
        ),
    };
    GpuSight {
        gpu: Some(described),
        unavailable,
        trouble,
    }
}

/// A GPU that is lost, as it was installed.
fn all_of(targets: &Targets, gpu: GpuId, why: &str) -> GpuSight {
    let installed = targets.node.gpu(gpu);
    GpuSight {
        gpu: None,
        unavailable: installed.map_or((Sms(0), Bytes(0)), |g| (g.sms, g.memory)),
        trouble: Some(format!("{gpu} is lost: {why}")),
    }
}
