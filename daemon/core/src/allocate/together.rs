//! Several jobs of one node planned at once: each gets its fair part (`fair`), and inside it the best split (`solve`).
//!
//! From jobs to placed plans; pure, like `plan` for one job. The daemon calls it when a job wants in and when one has
//! left, the what-if simulation likewise. Jobs that keep what they have take no part: their shares are not in the room.
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::fair::{Allotment, Allotments, Claim, Part, allot};
use super::guess;
use super::idle::idle;
use super::pin::{keep_caps, pin};
use super::place::{Room, gpus_beside, place, supply_for};
use super::{
    Infeasible, Inputs, Problem, Refusal, Resource, Shortage, Solution, problem_for, solve,
};
use crate::cpuset::CpuSet;
use crate::id::{GpuId, Name};
use crate::job::{Plan, SmMode};
use crate::node::Node;
use crate::unit::{Bytes, Rate, Sms, Total as _};

/// A job that wants its part.
#[derive(Clone, Copy, Debug)]
pub struct Bidder<'a> {
    /// The job, and what is known of it.
    pub inputs: Inputs<'a>,
    /// The plan in force, if it has one.
    pub previous: Option<&'a Plan>,
    /// Whose it is, for [`TenantRoom`].
    pub tenant: &'a Name,
}

/// What a tenant's bidders may have together: its cap, less what it has beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRoom<'a> {
    /// Whose.
    pub tenant: &'a Name,
    /// Cores.
    pub cores: u32,
    /// SMs and bytes, by GPU.
    pub gpus: BTreeMap<GpuId, (Sms, Bytes)>,
}

/// One job's part.
#[derive(Clone, Debug, PartialEq)]
pub struct Portion {
    /// Placed.
    pub plan: Plan,
    /// The same with its search.
    pub solution: Solution,
    /// Predicted throughput over what it would do alone, over its weight.
    pub level: f64,
    /// What it would do with all of the room.
    pub alone: Rate,
    /// What it does with the shares that it has, by the same curves; none of one that has none.
    pub now: Option<Rate>,
}

/// A bidder with what follows from it.
struct Entrant<'a> {
    bidder: &'a Bidder<'a>,
    gpus: Vec<GpuId>,
    /// As measured.
    problem: Problem,
    /// With guesses where nothing was measured.
    guessed: Problem,
    before: Option<Solution>,
    alone: Rate,
}

/// The fairest plans of these jobs on `room` (all that they may have together), in their order. Refuses if not
/// everybody's least fits.
pub fn plan_together(
    bidders: &[Bidder<'_>],
    node: &Node,
    room: &Room,
    caps: &[TenantRoom<'_>],
) -> Result<Vec<Portion>, Refusal> {
    let entrants = enter(bidders, node, room)?;
    let (limits, counts) = limits(&entrants, room, caps);
    let claims: Vec<Claim<'_>> = entrants
        .iter()
        .zip(counts)
        .map(|(e, counts)| Claim {
            problem: &e.guessed,
            scale: e.bidder.inputs.spec.weight * e.alone.get(),
            counts,
        })
        .collect();
    let found = allot(&claims, &limits).ok_or_else(|| short(&entrants, room))?;
    let solutions = split(&entrants, room, &found)?;
    let plans = put(&entrants, &solutions, node, room)?;
    let portions = entrants.iter().zip(solutions).zip(plans);
    Ok(portions
        .map(|((e, mut solution), mut plan)| {
            let weight = e.bidder.inputs.spec.weight;
            let level = if e.alone > Rate::ZERO && solution.theta > Rate::ZERO {
                solution.theta.get() / e.alone.get() / weight
            } else {
                0.0
            };
            if bidders.len() > 1 {
                let why = sentence(bidders.len(), level * weight, weight, found.exact);
                solution.why.push(why.clone());
                plan.why.push(why);
            }
            Portion {
                plan,
                solution,
                level,
                alone: e.alone,
                now: e
                    .before
                    .as_ref()
                    .map(|had| e.problem.predict(&had.stages).theta),
            }
        })
        .collect())
}

fn sentence(jobs: usize, part: f64, weight: f64, exact: bool) -> String {
    let heavy = if weight == 1.0 {
        String::new()
    } else {
        format!(" (its weight is {weight})")
    };
    let how = if exact {
        ""
    } else {
        "; with so many jobs the fair parts are found by a heuristic"
    };
    if part > 0.0 {
        format!(
            "{jobs} jobs share the node: this one does {:.0} % of what it would do alone{heavy}{how}.",
            100.0 * part
        )
    } else {
        format!(
            "{jobs} jobs share the node; nothing of this one was measured, so its part is a guess{heavy}{how}."
        )
    }
}

/// What each would do alone, on the GPUs that it gets.
fn enter<'a>(
    bidders: &'a [Bidder<'a>],
    node: &Node,
    room: &Room,
) -> Result<Vec<Entrant<'a>>, Refusal> {
    let mut load: BTreeMap<GpuId, u32> = BTreeMap::new();
    for gpu in bidders
        .iter()
        .filter_map(|b| b.previous)
        .flat_map(|p| &p.gpus)
    {
        *load.entry(*gpu).or_default() += 1;
    }
    let mut entrants = Vec::with_capacity(bidders.len());
    for bidder in bidders {
        let inputs = &bidder.inputs;
        let gpus = gpus_beside(inputs.spec, node, room, bidder.previous, &load)?;
        if bidder.previous.is_none() {
            gpus.iter()
                .for_each(|gpu| *load.entry(*gpu).or_default() += 1);
        }
        let mut problem = problem_for(inputs, supply_for(node, room, &gpus))?;
        let before = bidder.previous.map(Solution::of_plan);
        if let Some(now) = &before {
            pin(&mut problem, inputs.pinned, now);
        }
        let alone = solve(&problem, None)?;
        let (guessed, theta) = match guess::filled_in(&problem, &alone) {
            Some(guessed) => {
                let theta = solve(&guessed, None)?.theta;
                (guessed, theta)
            }
            None => (problem.clone(), alone.theta),
        };
        entrants.push(Entrant {
            bidder,
            gpus,
            problem,
            guessed,
            before,
            alone: theta,
        });
    }
    Ok(entrants)
}

/// Everything that the jobs draw on together, and which job draws on what.
fn limits(
    entrants: &[Entrant<'_>],
    room: &Room,
    caps: &[TenantRoom<'_>],
) -> (Vec<u64>, Vec<Vec<(usize, Part)>>) {
    let mut amounts: Vec<u64> = [u64::from(room.cores.len())].into();
    let mut counts: Vec<Vec<(usize, Part)>> =
        entrants.iter().map(|_| [(0, Part::Cores)].into()).collect();
    let mut on_gpus = |gpus: &BTreeMap<GpuId, (Sms, Bytes)>,
                       of: &dyn Fn(&Entrant<'_>) -> bool,
                       amounts: &mut Vec<u64>| {
        for (gpu, (sms, memory)) in gpus {
            let (at, here) = (amounts.len(), |e: &&Entrant<'_>| {
                of(e) && e.gpus.contains(gpu)
            });
            if !entrants.iter().any(|e| here(&e)) {
                continue;
            }
            amounts.extend([u64::from(sms.0), memory.0]);
            for (list, _) in counts.iter_mut().zip(entrants).filter(|(_, e)| here(e)) {
                list.extend([(at, Part::Sms), (at + 1, Part::Memory)]);
            }
        }
    };
    on_gpus(&room.gpus, &|_| true, &mut amounts);
    for cap in caps {
        on_gpus(&cap.gpus, &|e| e.bidder.tenant == cap.tenant, &mut amounts);
    }
    for cap in caps {
        let at = amounts.len();
        amounts.push(cap.cores.into());
        for (list, _) in counts
            .iter_mut()
            .zip(entrants)
            .filter(|(_, e)| e.bidder.tenant == cap.tenant)
        {
            list.push((at, Part::Cores));
        }
    }
    (amounts, counts)
}

/// What is short if not everybody's least fits.
fn short(entrants: &[Entrant<'_>], room: &Room) -> Refusal {
    let what = || format!("the least of all {} jobs together", entrants.len());
    let cores: u64 = entrants
        .iter()
        .flat_map(|e| &e.problem.stages)
        .map(|s| u64::from(s.cores.0))
        .total();
    let has = u64::from(room.cores.len());
    if cores > has {
        return Shortage {
            what: what(),
            resource: Resource::Cores,
            gpu: None,
            needed: cores,
            available: has,
        }
        .into();
    }
    for (gpu, (sms, _)) in &room.gpus {
        let here = entrants.iter().filter(|e| e.gpus.contains(gpu));
        let needed: u64 = here
            .flat_map(|e| &e.problem.stages)
            .map(|s| u64::from(s.sms.0.0))
            .total();
        if needed > u64::from(sms.0) {
            let (resource, available) = (Resource::Sms, sms.0.into());
            return Shortage {
                what: what(),
                resource,
                gpu: Some(*gpu),
                needed,
                available,
            }
            .into();
        }
    }
    let most = |f: fn(&(Sms, Bytes)) -> u64| room.gpus.values().map(f).max().unwrap_or(0);
    Infeasible::NoCombination {
        cores: room.cores.len(),
        sms: most(|g| g.0.0.into()) as u32,
        memory: Bytes(most(|g| g.1.0)),
    }
    .into()
}

/// What is left of everything when all allotments are given, and how many draw on each GPU.
struct Left {
    cores: u32,
    gpus: BTreeMap<GpuId, (u32, u64, u32)>,
}

impl Left {
    fn of(entrants: &[Entrant<'_>], room: &Room, given: &[Allotment]) -> Self {
        let mut left = Self {
            cores: room.cores.len(),
            gpus: room
                .gpus
                .iter()
                .map(|(id, (sms, memory))| (*id, (sms.0, memory.0, 0)))
                .collect(),
        };
        for (e, a) in entrants.iter().zip(given) {
            left.cores = left.cores.saturating_sub(a.cores);
            for gpu in &e.gpus {
                if let Some((sms, memory, jobs)) = left.gpus.get_mut(gpu) {
                    *sms = sms.saturating_sub(a.sms);
                    *memory = memory.saturating_sub(a.memory);
                    *jobs += 1;
                }
            }
        }
        left
    }
    /// SMs and bytes that are left on every one of these GPUs, in equal parts for those who draw on them.
    fn part(&self, gpus: &[GpuId]) -> (u32, u64) {
        let parts = gpus.iter().filter_map(|gpu| self.gpus.get(gpu));
        let parts = parts
            .map(|(sms, memory, jobs)| (sms / jobs.max(&1), memory / u64::from(*jobs.max(&1))));
        parts
            .reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))
            .unwrap_or_default()
    }
}

/// Each job's best split of its allotment and of its part of what is left over.
fn split(
    entrants: &[Entrant<'_>],
    room: &Room,
    found: &Allotments,
) -> Result<Vec<Solution>, Refusal> {
    let mut given = found.of.clone();
    if !found.exact {
        improve(entrants, room, &mut given);
    }
    let left = Left::of(entrants, room, &given);
    let solution = |(e, a): (&Entrant<'_>, &Allotment)| -> Result<Solution, Refusal> {
        let (sms, memory) = left.part(&e.gpus);
        let problem = within(
            &e.problem,
            a.cores,
            a.sms.saturating_add(sms),
            a.memory.saturating_add(memory),
        );
        // A stage that was never measured would keep what it had: here its part is what it goes by.
        let measured = problem.balanced_throughout();
        let mut solution = solve(&problem, e.before.as_ref().filter(|_| measured))?;
        if let Some(now) = &e.before {
            keep_caps(&mut solution, e.bidder.inputs.pinned, now);
        }
        match idle(&e.bidder.inputs, &problem, &solution) {
            Some(idle) => Err(idle.into()),
            None => Ok(solution),
        }
    };
    entrants.iter().zip(&given).map(solution).collect()
}

/// A job's problem with so much to split.
fn within(problem: &Problem, cores: u32, sms: u32, memory: u64) -> Problem {
    let mut problem = problem.clone();
    problem.supply.cores = cores;
    problem.supply.sms = Sms(sms);
    problem.supply.memory = Bytes(memory);
    problem
}

/// What the heuristic left lying goes, from the lowest level up, to whoever does more with it.
fn improve(entrants: &[Entrant<'_>], room: &Room, given: &mut [Allotment]) {
    let mut order: Vec<usize> = (0..given.len()).collect();
    order.sort_by(|a, b| given[*a].level.total_cmp(&given[*b].level).then(a.cmp(b)));
    for j in order {
        let (e, left) = (&entrants[j], Left::of(entrants, room, given));
        let on = |f: fn(&(u32, u64, u32)) -> u64| {
            e.gpus
                .iter()
                .filter_map(|g| left.gpus.get(g))
                .map(f)
                .min()
                .unwrap_or(0)
        };
        let a = given[j];
        let most = within(
            &e.guessed,
            a.cores.saturating_add(left.cores),
            a.sms.saturating_add(on(|g| g.0.into()) as u32),
            a.memory.saturating_add(on(|g| g.1)),
        );
        let least = Problem {
            sm_mode: SmMode::Cap,
            ..most
        };
        let Ok(better) = solve(&least, None) else {
            continue;
        };
        if better.theta.get() > a.level * e.bidder.inputs.spec.weight * e.alone.get() {
            given[j] = Allotment {
                cores: better.stages.iter().map(|s| s.cores).total(),
                sms: better.stages.iter().map(|s| s.sms.0).total(),
                memory: better.stages.iter().map(|s| s.memory.0).total(),
                level: better.theta.get() / e.bidder.inputs.spec.weight / e.alone.get(),
            };
        }
    }
}

/// Core ids for everybody: who needs no more than it had keeps of its own; the others add from what nobody keeps.
fn put(
    entrants: &[Entrant<'_>],
    solutions: &[Solution],
    node: &Node,
    room: &Room,
) -> Result<Vec<Plan>, Refusal> {
    let had = |e: &Entrant<'_>| -> CpuSet {
        let workers = e
            .bidder
            .previous
            .into_iter()
            .flat_map(|p| &p.stages)
            .flat_map(|s| &s.workers);
        workers
            .fold(CpuSet::new(), |all, v| all.union(&v.cores))
            .intersection(&room.cores)
    };
    let had: Vec<CpuSet> = entrants.iter().map(had).collect();
    let wants: Vec<u32> = solutions
        .iter()
        .map(|s| s.stages.iter().map(|x| x.cores).total())
        .collect();
    let grows = |j: &usize| wants[*j] > had[*j].len();
    let (grow, keep): (Vec<usize>, Vec<usize>) = (0..entrants.len()).partition(grows);
    let mut free = room.cores.clone();
    let mut plans: Vec<Option<Plan>> = entrants.iter().map(|_| None).collect();
    for (at, j) in keep.iter().chain(&grow).enumerate() {
        let cores = if at < keep.len() {
            had[*j].clone()
        } else {
            let others = grow.iter().filter(|o| *o != j && plans[**o].is_none());
            let kept = others.fold(CpuSet::new(), |all, o| all.union(&had[*o]));
            free.difference(&kept).union(&had[*j])
        };
        let (e, own) = (
            &entrants[*j],
            Room {
                cores,
                gpus: room.gpus.clone(),
            },
        );
        let plan = place(
            e.bidder.inputs.spec,
            &solutions[*j],
            node,
            &own,
            &e.gpus,
            e.bidder.previous,
        )?;
        for worker in plan.stages.iter().flat_map(|s| &s.workers) {
            free = free.difference(&worker.cores);
        }
        plans[*j] = Some(plan);
    }
    Ok(plans.into_iter().flatten().collect())
}
