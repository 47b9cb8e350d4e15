//! Whether amounts fit on the node now, where, and if not: what is short, by how much, and who holds it.
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::command::{Rejection, Resource};
use crate::grant::{GpuAsk, GpuShare, SmAsk, Vector};
use crate::id::GpuId;
use crate::node::{Gpu, GpuMode};
use crate::pool::{GpuUse, Owner};
use crate::state::Durable;
use crate::unit::{Bytes, Sms};

/// The vector for a lease of its own: cores of one NUMA node where that is possible, GPUs named or the fullest
/// that still has room (so that whole GPUs stay free).
pub fn fit(d: &Durable, cores: u32, asks: &[GpuAsk]) -> Result<Vector, Rejection> {
    let all = d.node().leasable_cores().len();
    if cores > all {
        return Err(Rejection::Never {
            resource: Resource::Cores,
            asked: cores.into(),
            has: all.into(),
        });
    }
    let mut gpus: BTreeMap<GpuId, GpuShare> = BTreeMap::new();
    for ask in asks {
        let (id, share) = fit_gpu(d, ask, &gpus)?;
        gpus.insert(id, share);
    }
    let near = gpus.keys().find_map(|id| d.node().gpu(*id)).map(|g| g.numa);
    let cores = pick_cores(d, cores, near).ok_or_else(|| short_of_cores(d, cores))?;
    Ok(Vector { cores, gpus })
}

/// `n` free cores: of the wanted NUMA node if they suffice, else of the first that suffices, else the lowest.
fn pick_cores(d: &Durable, n: u32, near: Option<u16>) -> Option<crate::cpuset::CpuSet> {
    let free = d.pool().free_cores();
    if free.len() < n {
        return None;
    }
    let nodes = d.node().numa_nodes();
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

fn short_of_cores(d: &Durable, asked: u32) -> Rejection {
    let free = d.pool().free_cores().len();
    let holder = d
        .pool()
        .core_owners()
        .first()
        .map(|(o, n)| format!("{} ({n} cores)", owner_name(d, *o)));
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
fn wanted_sms(gpu: &Gpu, ask: SmAsk) -> Option<Sms> {
    let exact = match ask {
        SmAsk::Count(n) => n,
        SmAsk::Percent(p) => Sms((u64::from(gpu.sms.0) * u64::from(p)).div_ceil(100) as u32),
    };
    // 100 % of a GPU whose granularity does not divide it is all that can be enforced.
    gpu.round_up(exact).or_else(|| match ask {
        SmAsk::Percent(p) if p <= 100 => gpu.enforceable.last().copied(),
        _ => None,
    })
}

fn fit_gpu(
    d: &Durable,
    ask: &GpuAsk,
    taken: &BTreeMap<GpuId, GpuShare>,
) -> Result<(GpuId, GpuShare), Rejection> {
    let candidates: Vec<&Gpu> = (d.node().gpus.iter())
        .filter(|g| ask.gpu.is_none_or(|id| id == g.id) && g.mode == GpuMode::Enforce)
        .filter(|g| !taken.contains_key(&g.id))
        .collect();
    if candidates.is_empty() {
        let has = d
            .node()
            .gpus
            .iter()
            .filter(|g| g.mode == GpuMode::Enforce)
            .count() as u64;
        return Err(match ask.gpu.filter(|id| !taken.contains_key(id)) {
            Some(id) => Rejection::NotFound(format!("{id} (in mode enforce)")),
            None => Rejection::Never {
                resource: Resource::Gpus,
                asked: taken.len() as u64 + 1,
                has,
            },
        });
    }
    let mut best: Option<(GpuUse, GpuId, GpuShare)> = None;
    let (mut most, mut free_most) = (GpuUse::default(), GpuUse::default());
    let mut can_ever = false;
    for gpu in candidates {
        let free = d.pool().free_on(d.node(), d.unavailable(), gpu.id);
        most = max(
            most,
            GpuUse {
                sms: gpu.sms,
                memory: gpu.leasable_memory(),
            },
        );
        free_most = max(free_most, free);
        let Some(sms) = wanted_sms(gpu, ask.sms) else {
            continue;
        };
        if ask.memory > gpu.leasable_memory() {
            continue;
        }
        can_ever = true;
        if sms <= free.sms && ask.memory <= free.memory {
            let share = GpuShare {
                guarantee: sms,
                cap: sms,
                memory: ask.memory,
            };
            let key = (free.sms, free.memory);
            if best.as_ref().is_none_or(|(b, ..)| key < (b.sms, b.memory)) {
                best = Some((free, gpu.id, share));
            }
        }
    }
    match best {
        Some((_, id, share)) => Ok((id, share)),
        None => Err(short_on_gpu(d, ask, can_ever, most, free_most)),
    }
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

fn short_on_gpu(
    d: &Durable,
    ask: &GpuAsk,
    can_ever: bool,
    most: GpuUse,
    free: GpuUse,
) -> Rejection {
    let asked = |g: &Gpu| {
        wanted_sms(g, ask.sms).unwrap_or(match ask.sms {
            SmAsk::Count(n) => n,
            SmAsk::Percent(p) => Sms(p.into()),
        })
    };
    let sms = d.node().gpus.iter().map(asked).min().unwrap_or_default();
    let memory_is_short = if can_ever {
        ask.memory > free.memory
    } else {
        ask.memory > most.memory
    };
    let (resource, asked, free, has) = if memory_is_short {
        (
            Resource::Memory(ask.gpu),
            ask.memory.0,
            free.memory.0,
            most.memory.0,
        )
    } else {
        (
            Resource::Sms(ask.gpu),
            sms.0.into(),
            free.sms.0.into(),
            most.sms.0.into(),
        )
    };
    if !can_ever {
        return Rejection::Never {
            resource,
            asked,
            has,
        };
    }
    let holder = biggest_on_gpu(d, ask.gpu, memory_is_short);
    Rejection::Short {
        resource,
        asked,
        free,
        short_by: asked.saturating_sub(free).max(1),
        holder,
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
            .sum()
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
        format!("{n} SMs")
    };
    Some(format!("{} ({amount})", owner_name(d, owner)))
}
