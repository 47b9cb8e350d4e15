//! Whether amounts fit on the node now, where, and if not: what is short, by how much, and who holds it.
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::cap::Ceiling;
use super::job::resource_of;
use crate::allocate::Refusal;
use crate::command::{Rejection, Resource};
use crate::grant::{GpuAsk, GpuShare, SmAsk, Vector};
use crate::id::GpuId;
use crate::node::{Gpu, GpuMode};
use crate::pool::{GpuUse, Owner};
use crate::state::Durable;
use crate::unit::{Bytes, Sms, Total as _};

/// The vector for a lease of its own, whoever asks: cores of one NUMA node where that is possible, GPUs named or the
/// fullest that still has room (so that whole GPUs stay free).
pub fn fit(d: &Durable, cores: u32, asks: &[GpuAsk]) -> Result<Vector, Rejection> {
    fit_within(d, &Ceiling::default(), cores, asks)
}

/// The same for a tenant.
pub(super) fn fit_under(
    d: &Durable,
    ceiling: &Ceiling,
    cores: u32,
    asks: &[GpuAsk],
) -> Result<Vector, Rejection> {
    match fit_within(d, ceiling, cores, asks) {
        Err(_) if !ceiling.is_open() && fit(d, cores, asks).is_ok() => {
            Err(ceiling.refusal(d, cores, asks))
        }
        found => found,
    }
}

fn fit_within(
    d: &Durable,
    ceiling: &Ceiling,
    cores: u32,
    asks: &[GpuAsk],
) -> Result<Vector, Rejection> {
    let all = d.pool().leasable_cores();
    if cores > all {
        return Err(Rejection::Never {
            resource: Resource::Cores,
            asked: cores.into(),
            has: all.into(),
        });
    }
    let gpus = fit_gpus(d, ceiling, asks)?;
    let near = gpus.keys().find_map(|id| d.node().gpu(*id)).map(|g| g.numa);
    let picked = pick_cores(d, cores, near).filter(|_| cores <= ceiling.cores());
    let cores = picked.ok_or_else(|| short_of_cores(d, cores))?;
    Ok(Vector { cores, gpus })
}

/// Whether amounts would fit on all that is available, with nobody else there but the cap of who asks.
pub(super) fn possible(d: &Durable, ceiling: &Ceiling, cores: u32, asks: &[GpuAsk]) -> bool {
    cores <= d.pool().open_cores().len().min(ceiling.cores())
        && assign(d, asks, |g| ceiling.on(g.id, available_on(d, g))).is_some()
}

/// What of a GPU can be leased, whoever has it now.
pub(super) fn available_on(d: &Durable, gpu: &Gpu) -> GpuUse {
    let (sms, memory) = d
        .unavailable()
        .gpus
        .get(&gpu.id)
        .copied()
        .unwrap_or_default();
    GpuUse {
        sms: gpu.sms - sms,
        memory: gpu.leasable_memory() - memory,
    }
}

/// `n` free cores: of the wanted NUMA node if they suffice, else of the first that suffices, else the lowest.
fn pick_cores(d: &Durable, n: u32, near: Option<u16>) -> Option<crate::cpuset::CpuSet> {
    let free = d.pool().free_cores();
    if free.len() < n {
        return None;
    }
    let nodes = d.pool().numa_nodes();
    if nodes.len() > 1 {
        let wanted = near.into_iter().chain(nodes.keys().copied());
        for numa in wanted {
            let local = nodes
                .get(&numa)
                .map(|set| free.intersection(set))
                .unwrap_or_default();
            if local.len() >= n {
                return Some(local.take(n));
            }
        }
    }
    Some(free.take(n))
}

/// Who holds the most cores.
fn biggest_on_cores(d: &Durable) -> Option<String> {
    let owners = d.pool().core_owners();
    let (owner, n) = owners.first()?;
    let cores = if *n == 1 { "core" } else { "cores" };
    Some(format!("{} ({n} {cores})", owner_name(d, *owner)))
}

/// What a job lacks for which there is no plan on what is free.
pub(super) fn short_for_job(d: &Durable, refusal: &Refusal) -> Rejection {
    let Some(short) = refusal.shortage() else {
        let why = format!("no split of what is free does: {refusal}");
        return Rejection::Invalid { field: "job", why };
    };
    let resource = resource_of(short);
    let holder = match resource {
        Resource::Cores => biggest_on_cores(d),
        Resource::Sms(gpu) => biggest_on_gpu(d, gpu, false),
        Resource::Memory(gpu) => biggest_on_gpu(d, gpu, true),
        Resource::Gpus => biggest_on_gpu(d, None, false),
    };
    Rejection::Short {
        resource,
        asked: short.needed,
        free: short.available,
        short_by: short.short_by().max(1),
        holder,
    }
}

fn short_of_cores(d: &Durable, asked: u32) -> Rejection {
    let free = d.pool().free_cores().len();
    let holder = biggest_on_cores(d);
    Rejection::Short {
        resource: Resource::Cores,
        asked: asked.into(),
        free: free.into(),
        short_by: u64::from(asked.saturating_sub(free)).max(1),
        holder,
    }
}

/// A person's name for an owner. Says nothing about another tenant but that it is another.
fn owner_name(d: &Durable, owner: Owner) -> String {
    match owner {
        Owner::Lease(id) => match d.leases().get(&id) {
            Some(l) => format!("{id} of {}", l.tenant),
            None => format!("{id}"),
        },
        Owner::Slot(m) => match d.jobs().get(&m.job) {
            Some(j) => format!("job {} of {}", j.spec.name, j.tenant),
            None => format!("{}", m.job),
        },
    }
}

/// SMs as asked, rounded up to what the GPU can enforce.
pub(super) fn wanted_sms(gpu: &Gpu, ask: SmAsk) -> Option<Sms> {
    let exact = match ask {
        SmAsk::Count(n) => n,
        SmAsk::Percent(p) => {
            let exact = (u64::from(gpu.sms.0) * u64::from(p)).div_ceil(100);
            Sms(u32::try_from(exact).unwrap_or(u32::MAX))
        }
    };
    // 100 % of a GPU whose granularity does not divide it is all that can be enforced.
    gpu.round_up(exact).or_else(|| match ask {
        SmAsk::Percent(p) if p <= 100 => gpu.enforceable.last().copied(),
        _ => None,
    })
}

/// The share that an ask would have of a GPU on which so much is free.
fn share_of(gpu: &Gpu, free: GpuUse, ask: &GpuAsk) -> Option<GpuShare> {
    let named = ask.gpu.is_none_or(|id| id == gpu.id) && gpu.mode == GpuMode::Enforce;
    let sms = wanted_sms(gpu, ask.sms).filter(|sms| named && *sms <= free.sms)?;
    (ask.memory <= free.memory).then_some(GpuShare {
        guarantee: sms,
        cap: sms,
        memory: ask.memory,
    })
}

/// A GPU of its own for each ask, or what is short.
fn fit_gpus(
    d: &Durable,
    ceiling: &Ceiling,
    asks: &[GpuAsk],
) -> Result<BTreeMap<GpuId, GpuShare>, Rejection> {
    let free = |g: &Gpu| ceiling.on(g.id, d.pool().free_on(d.node(), d.unavailable(), g.id));
    let all = |g: &Gpu| GpuUse {
        sms: g.sms,
        memory: g.leasable_memory(),
    };
    if let Some(found) = assign(d, asks, free) {
        return Ok(found);
    }
    let never = |ask: &&GpuAsk| assign(d, core::slice::from_ref(*ask), all).is_none();
    if let Some(ask) = asks.iter().find(never) {
        return Err(short_on_gpu(d, ask));
    }
    let has = enforced(d).count() as u64;
    let asked = asks.len() as u64;
    if assign(d, asks, all).is_none() {
        return Err(Rejection::Never {
            resource: Resource::Gpus,
            asked,
            has,
        });
    }
    let short = |ask: &&GpuAsk| assign(d, core::slice::from_ref(*ask), free).is_none();
    if let Some(ask) = asks.iter().find(short) {
        return Err(short_on_gpu(d, ask));
    }
    // Each alone has room, and not all at once: count how far the first of them come.
    let fits = |n: &usize| assign(d, &asks[..*n], free).is_some();
    let free = (1..asks.len()).rev().find(fits).unwrap_or(0) as u64;
    Err(Rejection::Short {
        resource: Resource::Gpus,
        asked,
        free,
        short_by: asked.saturating_sub(free).max(1),
        holder: biggest_on_gpu(d, None, false),
    })
}

pub(super) fn enforced(d: &Durable) -> impl Iterator<Item = &Gpu> {
    d.node().gpus.iter().filter(|g| g.mode == GpuMode::Enforce)
}

/// A GPU of its own for each ask: the fullest that has room, so that whole GPUs stay free, moved aside where that is
/// in another ask's way (a bipartite matching by augmenting paths, Kuhn 1955). None only if there is no such
/// assignment.
fn assign(
    d: &Durable,
    asks: &[GpuAsk],
    free: impl Fn(&Gpu) -> GpuUse,
) -> Option<BTreeMap<GpuId, GpuShare>> {
    let mut gpus: Vec<(&Gpu, GpuUse)> = enforced(d).map(|g| (g, free(g))).collect();
    gpus.sort_by_key(|(g, f)| (f.sms, f.memory, g.id));
    let mut taken: Vec<Option<usize>> = gpus.iter().map(|_| None).collect();
    let can = |ask: usize, at: usize| share_of(gpus[at].0, gpus[at].1, &asks[ask]);
    for ask in 0..asks.len() {
        let mut tried: Vec<bool> = gpus.iter().map(|_| false).collect();
        if !augment(ask, &can, &mut taken, &mut tried) {
            return None;
        }
    }
    let given = taken.iter().enumerate();
    Some(
        given
            .filter_map(|(at, ask)| Some((gpus[at].0.id, can((*ask)?, at)?)))
            .collect(),
    )
}

/// Finds a GPU for an ask; those that are taken may be given up if their ask finds another. At most as deep as there
/// are asks.
fn augment(
    ask: usize,
    can: &impl Fn(usize, usize) -> Option<GpuShare>,
    taken: &mut [Option<usize>],
    tried: &mut [bool],
) -> bool {
    let fits = |at: &usize| can(ask, *at).is_some();
    let mine: Vec<usize> = (0..taken.len()).filter(fits).collect();
    if let Some(at) = mine.iter().find(|at| taken[**at].is_none()) {
        taken[*at] = Some(ask);
        return true;
    }
    for at in mine {
        if core::mem::replace(&mut tried[at], true) {
            continue;
        }
        if taken[at].is_none_or(|other| augment(other, can, taken, tried)) {
            taken[at] = Some(ask);
            return true;
        }
    }
    false
}

const fn max(a: GpuUse, b: GpuUse) -> GpuUse {
    GpuUse {
        sms: if a.sms.0 > b.sms.0 { a.sms } else { b.sms },
        memory: if a.memory.0 > b.memory.0 {
            a.memory
        } else {
            b.memory
        },
    }
}

/// What is short for one ask: on the named GPU, or on the best.
fn short_on_gpu(d: &Durable, ask: &GpuAsk) -> Rejection {
    let candidates: Vec<&Gpu> = enforced(d)
        .filter(|g| ask.gpu.is_none_or(|id| id == g.id))
        .collect();
    if candidates.is_empty() {
        return match ask.gpu {
            Some(id) => Rejection::NotFound(format!("{id} (in mode enforce)")),
            None => Rejection::Never {
                resource: Resource::Gpus,
                asked: 1,
                has: 0,
            },
        };
    }
    let (mut most, mut free, mut can_ever) = (GpuUse::default(), GpuUse::default(), false);
    for gpu in &candidates {
        let all = GpuUse {
            sms: gpu.sms,
            memory: gpu.leasable_memory(),
        };
        most = max(most, all);
        free = max(free, d.pool().free_on(d.node(), d.unavailable(), gpu.id));
        can_ever |= share_of(gpu, all, ask).is_some();
    }
    let asked = |g: &&Gpu| {
        wanted_sms(g, ask.sms).unwrap_or(match ask.sms {
            SmAsk::Count(n) => n,
            SmAsk::Percent(p) => Sms(p.into()),
        })
    };
    let sms = candidates.iter().map(asked).min().unwrap_or_default();
    let memory_is_short = ask.memory > if can_ever { free.memory } else { most.memory };
    let (resource, asked, free, has) = if memory_is_short {
        let resource = Resource::Memory(ask.gpu);
        (resource, ask.memory.0, free.memory.0, most.memory.0)
    } else {
        let resource = Resource::Sms(ask.gpu);
        (resource, sms.0.into(), free.sms.0.into(), most.sms.0.into())
    };
    if !can_ever {
        return Rejection::Never {
            resource,
            asked,
            has,
        };
    }
    Rejection::Short {
        resource,
        asked,
        free,
        short_by: asked.saturating_sub(free).max(1),
        holder: biggest_on_gpu(d, ask.gpu, memory_is_short),
    }
}

/// Who holds the most of a GPU. Only asked when something is short.
fn biggest_on_gpu(d: &Durable, gpu: Option<GpuId>, memory: bool) -> Option<String> {
    let amount = |v: &Vector| -> u64 {
        let of = |s: &GpuShare| {
            if memory {
                s.memory.0
            } else {
                s.guarantee.0.into()
            }
        };
        v.gpus
            .iter()
            .filter(|(id, _)| gpu.is_none_or(|g| g == **id))
            .map(|(_, s)| of(s))
            .total()
    };
    let leases = d
        .leases()
        .values()
        .map(|l| (amount(&l.counted()), Owner::Lease(l.id)));
    let kept = d
        .jobs()
        .values()
        .flat_map(crate::state::slots)
        .map(|(m, s)| (amount(&s.unclaimed), Owner::Slot(m)));
    let (n, owner) = leases
        .chain(kept)
        .max_by_key(|(n, _)| *n)
        .filter(|(n, _)| *n > 0)?;
    let amount = if memory {
        format!("{}", Bytes(n))
    } else {
        format!("{n} {}", if n == 1 { "SM" } else { "SMs" })
    };
    Some(format!("{} ({amount})", owner_name(d, owner)))
}
