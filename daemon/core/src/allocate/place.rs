//! From amounts to ids: a [`Solution`] becomes a [`Plan`] with one vector for each worker.
//!
//! Not a search: quotas are given. Cores are whole, near the GPU (NUMA), and stay where they were as far as
//! possible. Callers: `plan` (admission, rebalancing, what-if) and nobody else.
//!
//! **Workers on GPUs.** With at least as many workers as GPUs, consecutive blocks of workers share a GPU, equal but
//! for one more on the first GPUs; with fewer, each worker has a consecutive block of GPUs and the stage's whole quota on each.
//! **Dividing a quota.** Cores and bytes: equal parts, the remainder to low indices. SMs: each worker gets an
//! enforceable count; the sum is at most the quota; see [`split_sms`].
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::{Resource, Share, Shortage, Solution, Supply};
use crate::cpuset::CpuSet;
use crate::grant::{GpuShare, Vector};
use crate::id::GpuId;
use crate::job::{JobSpec, Plan, StagePlan, StageSpec};
use crate::node::{Gpu, GpuMode, Node};
use crate::unit::{Bytes, Sms, Total as _};

/// What a job may use: what is free, and what it holds now. Without reserved and unavailable amounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Core ids.
    pub cores: CpuSet,
    /// SMs and bytes, by GPU.
    pub gpus: BTreeMap<GpuId, (Sms, Bytes)>,
}

/// The SM shares of `k` workers on one GPU that together have `quota`: each gets the largest enforceable count
/// that all can have; then, unless they are synchronous, low indices get the next larger one while it fits.
pub fn split_sms(enforceable: &[Sms], quota: Sms, k: u32, synchronous: bool) -> Vec<Sms> {
    let k = k.max(1);
    let at = enforceable.partition_point(|c| u64::from(c.0) * u64::from(k) <= u64::from(quota.0));
    let Some(low) = at.checked_sub(1).map(|i| enforceable[i]) else {
        return vec![Sms(0); k as usize];
    };
    let step = enforceable.get(at).map_or(0, |high| high.0 - low.0);
    let spare = quota.0 - low.0 * k;
    let raised = if synchronous {
        0
    } else {
        spare.checked_div(step).unwrap_or(0)
    };
    (0..k)
        .map(|i| if i < raised { Sms(low.0 + step) } else { low })
        .collect()
}

/// The GPUs, by place in the job's list, that worker `worker` of `workers` runs on.
pub fn gpus_of_worker(worker: u32, workers: u32, gpus: usize) -> core::ops::Range<usize> {
    let (i, w) = (worker as usize, workers.max(1) as usize);
    if gpus == 0 {
        return 0..0;
    }
    if w < gpus {
        return i * gpus / w..(i + 1) * gpus / w;
    }
    let (each, one_more) = (w / gpus, w % gpus);
    let crowded = one_more * (each + 1); // the workers on GPUs that have one more
    let at = if i < crowded {
        i / (each + 1)
    } else {
        one_more + (i - crowded) / each
    };
    let at = at.min(gpus - 1);
    at..at + 1
}

/// The GPUs a job runs on: those it names, those of its previous plan, else those with the most free SMs, then
/// bytes, then the lowest ids. Only those whose shares this daemon may lease and enforce.
pub fn choose_gpus(
    spec: &JobSpec,
    node: &Node,
    room: &Room,
    previous: Option<&Plan>,
) -> Result<Vec<GpuId>, Shortage> {
    gpus_beside(spec, node, room, previous, &BTreeMap::new())
}

/// The same beside others, of whom so many are on each GPU: the emptier ones first.
pub(super) fn gpus_beside(
    spec: &JobSpec,
    node: &Node,
    room: &Room,
    previous: Option<&Plan>,
    others: &BTreeMap<GpuId, u32>,
) -> Result<Vec<GpuId>, Shortage> {
    let needs = spec
        .stages
        .iter()
        .any(|s| s.sms.1 > Sms(0) || s.memory > Bytes(0));
    let wanted = match spec.gpus.len() {
        0 => usize::from(spec.gpu_count.max(u16::from(needs))),
        n => n,
    };
    let leased = |id: &GpuId| node.gpu(*id).is_some_and(|g| g.mode == GpuMode::Enforce);
    let there = |id: &GpuId| leased(id) && room.gpus.contains_key(id);
    let mut chosen: Vec<GpuId> = if spec.gpus.is_empty() {
        let had = previous.map_or(&[][..], |p| &p.gpus);
        let mut all: Vec<GpuId> = room.gpus.keys().copied().filter(there).collect();
        let free = |id: &GpuId| room.gpus.get(id).copied().unwrap_or_default();
        let beside = |id: &GpuId| others.get(id).copied().unwrap_or(0);
        let order = |id: &GpuId| {
            (
                !had.contains(id),
                beside(id),
                core::cmp::Reverse(free(id)),
                *id,
            )
        };
        all.sort_by_key(order);
        all.truncate(wanted);
        all
    } else {
        spec.gpus.iter().copied().filter(there).collect()
    };
    chosen.sort_unstable();
    chosen.dedup();
    if chosen.len() < wanted {
        let (needed, available) = (wanted as u64, chosen.len() as u64);
        let what = format!("job {}", spec.name);
        return Err(Shortage {
            what,
            resource: Resource::Gpus,
            gpu: None,
            needed,
            available,
        });
    }
    Ok(chosen)
}

/// What a job has to split on these GPUs: where they differ, the least of them.
pub fn supply_for(node: &Node, room: &Room, gpus: &[GpuId]) -> Supply {
    let installed: Vec<&Gpu> = gpus.iter().filter_map(|id| node.gpu(*id)).collect();
    let mut enforceable: Vec<Sms> = installed
        .first()
        .map_or_else(Vec::new, |g| g.enforceable.to_vec());
    for gpu in installed.iter().skip(1) {
        enforceable.retain(|s| gpu.enforceable.binary_search(s).is_ok());
    }
    enforceable.retain(|s| *s > Sms(0));
    let free = |id: &GpuId| room.gpus.get(id).copied().unwrap_or_default();
    Supply {
        cores: room.cores.len(),
        gpus: u16::try_from(gpus.len()).unwrap_or(u16::MAX),
        sms: gpus.iter().map(|id| free(id).0).min().unwrap_or_default(),
        enforceable,
        memory: gpus.iter().map(|id| free(id).1).min().unwrap_or_default(),
    }
}

/// Turns a solution into a plan on these GPUs. Errors say which resource is short, where, and by how much.
pub fn place(
    spec: &JobSpec,
    solution: &Solution,
    node: &Node,
    room: &Room,
    gpus: &[GpuId],
    previous: Option<&Plan>,
) -> Result<Plan, Shortage> {
    check_gpus(spec, solution, room, gpus)?;
    let enforceable = supply_for(node, room, gpus).enforceable;
    let cores = place_cores(spec, solution, node, room, gpus, previous)?;
    let stages =
        spec.stages
            .iter()
            .zip(&solution.stages)
            .zip(cores)
            .map(|((stage, share), cores)| {
                let shares = gpu_shares(stage, share, &enforceable, gpus);
                let workers = cores.into_iter().zip(shares);
                StagePlan {
                    workers: workers
                        .map(|(cores, gpus)| Vector { cores, gpus })
                        .collect(),
                    cores: share.cores,
                    sms: share.sms,
                    cap: share.cap,
                    memory: share.memory,
                    batch: share.batch,
                    predicted: share.rate,
                }
            });
    Ok(Plan {
        stages: stages.collect(),
        gpus: gpus.to_vec(),
        t_r: solution.t_r,
        t_train: solution.t_train,
        theta: solution.theta,
        binding: solution.binding,
        by: solution.by.clone(),
        why: solution.why.clone(),
        caps: solution.caps,
    })
}

fn check_gpus(
    spec: &JobSpec,
    solution: &Solution,
    room: &Room,
    gpus: &[GpuId],
) -> Result<(), Shortage> {
    let sms = solution.stages.iter().map(|s| u64::from(s.sms.0)).total();
    let memory: u64 = solution.stages.iter().map(|s| s.memory.0).total();
    let what = || format!("the split of job {}", spec.name);
    if gpus.is_empty() && (sms > 0 || memory > 0) {
        let resource = Resource::Gpus;
        return Err(Shortage {
            what: what(),
            resource,
            gpu: None,
            needed: 1,
            available: 0,
        });
    }
    for id in gpus {
        let free = room.gpus.get(id).copied().unwrap_or_default();
        for (resource, needed, available) in [
            (Resource::Sms, sms, u64::from(free.0.0)),
            (Resource::Memory, memory, free.1.0),
        ] {
            if needed > available {
                return Err(Shortage {
                    what: what(),
                    resource,
                    gpu: Some(*id),
                    needed,
                    available,
                });
            }
        }
    }
    Ok(())
}

/// Each worker's shares of the job's GPUs.
fn gpu_shares(
    stage: &StageSpec,
    share: &Share,
    enforceable: &[Sms],
    gpus: &[GpuId],
) -> Vec<BTreeMap<GpuId, GpuShare>> {
    let mut shares = vec![BTreeMap::new(); stage.workers as usize];
    if share.sms == Sms(0) && share.memory == Bytes(0) {
        return shares;
    }
    let most = stage.workers.max(1).div_ceil(gpus.len().max(1) as u32);
    for (at, id) in gpus.iter().enumerate() {
        let on = |w: &u32| gpus_of_worker(*w, stage.workers, gpus.len()).contains(&at);
        let here: Vec<u32> = (0..stage.workers).filter(on).collect();
        // Synchronous ranks are equal even on a GPU that has fewer of them.
        let k = if stage.synchronous {
            most
        } else {
            here.len() as u32
        };
        let guarantees = split_sms(enforceable, share.sms, k, stage.synchronous);
        let caps = split_sms(enforceable, share.cap, k, stage.synchronous);
        for (i, w) in here.iter().enumerate() {
            let memory = part(share.memory.0, here.len() as u64, i as u64);
            let (guarantee, cap) = (guarantees[i], caps[i].max(guarantees[i]));
            shares[*w as usize].insert(
                *id,
                GpuShare {
                    guarantee,
                    cap,
                    memory: Bytes(memory),
                },
            );
        }
    }
    shares
}

/// The `i`-th of `n` equal parts of `total`, the remainder to low indices.
const fn part(total: u64, n: u64, i: u64) -> u64 {
    total / n + (i < total % n) as u64
}

/// Each worker's core ids, by stage: first what it had, then free cores near its GPU.
fn place_cores(
    spec: &JobSpec,
    solution: &Solution,
    node: &Node,
    room: &Room,
    gpus: &[GpuId],
    previous: Option<&Plan>,
) -> Result<Vec<Vec<CpuSet>>, Shortage> {
    let needed: u64 = solution.stages.iter().map(|s| u64::from(s.cores)).total();
    let available = u64::from(room.cores.len());
    if needed > available {
        let what = format!("the split of job {}", spec.name);
        return Err(Shortage {
            what,
            resource: Resource::Cores,
            gpu: None,
            needed,
            available,
        });
    }
    let mut free = room.cores.clone();
    let mut given: Vec<Vec<CpuSet>> = Vec::with_capacity(spec.stages.len());
    let want = |s: usize, w: usize| {
        let (stage, share) = (&spec.stages[s], &solution.stages[s]);
        part(share.cores.into(), stage.workers.max(1).into(), w as u64) as u32
    };
    let home = |s: usize, w: usize| {
        let at = gpus_of_worker(w as u32, spec.stages[s].workers, gpus.len());
        gpus.get(at.start)
            .and_then(|id| node.gpu(*id))
            .map(|g| g.numa)
    };
    for (s, stage) in spec.stages.iter().enumerate() {
        let had = |w: usize| previous?.stages.get(s)?.workers.get(w).map(|v| &v.cores);
        let keep = (0..stage.workers as usize).map(|w| {
            let kept = had(w).map_or_else(CpuSet::new, |c| c.intersection(&free));
            let kept = nearest(node, &kept, home(s, w), &CpuSet::new(), want(s, w));
            free = free.difference(&kept);
            kept
        });
        given.push(keep.collect());
    }
    for (s, workers) in given.iter_mut().enumerate() {
        for (w, cores) in workers.iter_mut().enumerate() {
            let more = want(s, w) - cores.len();
            let added = nearest(node, &free, home(s, w), cores, more);
            free = free.difference(&added);
            *cores = cores.union(&added);
        }
    }
    Ok(given)
}

/// The `n` best cores of `from`: on the NUMA node where the worker has cores already, then on its GPU's, then
/// on the one that has room for all `n`, then by id.
fn nearest(node: &Node, from: &CpuSet, home: Option<u16>, has: &CpuSet, n: u32) -> CpuSet {
    if n == 0 {
        return CpuSet::new();
    }
    let numa = |id: u32| {
        let at = node.cores.binary_search_by_key(&id, |c| c.id);
        at.map_or(u16::MAX, |i| node.cores[i].numa)
    };
    let mut room: BTreeMap<u16, u32> = BTreeMap::new();
    for id in from.iter() {
        *room.entry(numa(id)).or_default() += 1;
    }
    let mut mine: BTreeMap<u16, u32> = BTreeMap::new();
    for id in has.iter() {
        *mine.entry(numa(id)).or_default() += 1;
    }
    let mut ids: Vec<u32> = from.iter().collect();
    ids.sort_by_key(|id| {
        let at = numa(*id);
        let had = core::cmp::Reverse(mine.get(&at).copied().unwrap_or(0));
        let roomy = room.get(&at).is_some_and(|r| *r >= n);
        (had, Some(at) != home, !roomy, at, *id)
    });
    ids.into_iter().take(n as usize).collect()
}
