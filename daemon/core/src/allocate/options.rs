//! What each stage may choose from: a menu of rows (cores, batch, bytes) with the rate at every quota of its SM
//! ladder. Tables, not decisions; `waterfill`, `ebrl` and `finish` read them.
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::{Infeasible, Problem, Resource, Shortage, Solution, Stage};
use crate::curve::{Curve, spread_out};
use crate::job::STAGES_MAX;
use crate::unit::{Bytes, Sms, Total as _};

/// The SM quotas that a stage can have on one GPU, ascending: sums of one enforceable share per worker on it.
///
/// With `k` workers on a GPU each gets the same enforceable count or its successor (the larger ones go to low
/// indices); a synchronous stage only takes equal shares. Limited to `range`; zero is on it if the range starts
/// there.
pub fn ladder(enforceable: &[Sms], k: u32, synchronous: bool, range: (Sms, Sms)) -> Vec<Sms> {
    let (k, most) = (u64::from(k.max(1)), u64::from(range.1.0));
    let mut rungs: Vec<u64> = vec![0];
    for (i, low) in enforceable.iter().enumerate() {
        let low = u64::from(low.0);
        if k * low > most {
            break;
        }
        rungs.push(k * low);
        if let (false, Some(high)) = (synchronous, enforceable.get(i + 1)) {
            let step = u64::from(high.0) - low;
            rungs.extend(
                (1..k)
                    .map(|a| k * low + a * step)
                    .take_while(|q| *q <= most),
            );
        }
    }
    rungs.retain(|q| *q >= u64::from(range.0.0));
    rungs
        .into_iter()
        .filter_map(|q| u32::try_from(q).ok())
        .map(Sms)
        .collect()
}

/// Most rows of one menu: eight batch sizes at 64 core counts. Of more, each batch size keeps its share of core counts,
/// evenly spread, its least and its most among them.
const ROWS_MAX: usize = 512;
/// Most rates of one menu, a megabyte of them: 512 rows where a GPU has 256 counts, fewer where it is imagined with more.
const RATES_MAX: usize = 1 << 17;

/// One choice of cores and batch size.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub cores: u32,
    pub batch: u32,
    pub memory: u64,
    /// Rate at each rung of the ladder, never falling.
    pub rates: Vec<f64>,
}

/// What one stage may choose from.
#[derive(Clone, Debug)]
pub(super) struct Menu {
    /// SM quotas, ascending; at least one.
    pub ladder: Vec<u32>,
    /// Choices, in canonical order: ascending batch, then cores.
    pub rows: Vec<Row>,
    /// Its rate counts towards Θ.
    pub balanced: bool,
    /// What its rate is multiplied by on the way to Θ where the slowest binds.
    pub weight: f64,
}

impl Menu {
    /// The highest rate it can reach at all.
    pub(super) fn best(&self) -> f64 {
        self.rows
            .iter()
            .filter_map(|r| r.rates.last())
            .copied()
            .fold(0.0, f64::max)
    }
}

/// What is left to give: cores, SMs and bytes on each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub cores: u32,
    pub sms: u32,
    pub memory: u64,
}

impl Budget {
    pub(super) fn minus(self, cores: u32, sms: u32, memory: u64) -> Option<Self> {
        Some(Self {
            cores: self.cores.checked_sub(cores)?,
            sms: self.sms.checked_sub(sms)?,
            memory: self.memory.checked_sub(memory)?,
        })
    }
}

/// All menus of a problem.
#[derive(Clone, Debug)]
pub(super) struct Menus {
    pub stages: Vec<Menu>,
    pub budget: Budget,
    /// The smallest step between enforceable counts.
    pub granule: u32,
}

impl Menus {
    /// Builds every stage's menu, a little wider than the supply so that the marginals can be read off too.
    /// A stage without a curve keeps what `previous` gave it, if it may, else gets an even share.
    pub(super) fn of(problem: &Problem, previous: Option<&Solution>) -> Result<Self, Infeasible> {
        check(problem)?;
        let supply = &problem.supply;
        let counts = &supply.enforceable;
        let granule = counts
            .windows(2)
            .map(|w| w[1].0 - w[0].0)
            .chain(counts.first().map(|c| c.0))
            .min();
        let granule = granule.unwrap_or(0);
        let even = even_shares(problem);
        let fixed = |i: usize| {
            let stage = &problem.stages[i];
            let had = previous.and_then(|p| p.stages.get(i)).filter(|had| {
                let cores = (stage.cores.0..=stage.cores.1).contains(&had.cores);
                cores
                    && rungs(problem, stage, stage.sms.1)
                        .binary_search(&had.sms)
                        .is_ok()
            });
            had.map_or(even[i], |had| (had.cores, had.sms.0))
        };
        let stages = (0..problem.stages.len())
            .map(|i| menu(problem, i, granule, fixed(i)))
            .collect();
        let budget = Budget {
            cores: supply.cores,
            sms: supply.sms.0,
            memory: supply.memory.0,
        };
        Ok(Self {
            stages,
            budget,
            granule,
        })
    }
}

fn check(problem: &Problem) -> Result<(), Infeasible> {
    let bad = |why| Err(Infeasible::Malformed(why));
    if problem.stages.is_empty() {
        return bad("it has no stage");
    }
    if problem.stages.len() > STAGES_MAX {
        return bad("it has more stages than the search covers");
    }
    if problem.eta.is_some_and(|eta| !(eta > 0.0 && eta <= 1.0)) {
        return bad("the efficiency of the overlap is not above 0 and at most 1");
    }
    if !(problem.yielded > 0.0 && problem.yielded <= 1.0) {
        return bad("the share of consumed units is not above 0 and at most 1");
    }
    if problem.supply.enforceable.windows(2).any(|w| w[0] >= w[1]) {
        return bad("the enforceable SM counts do not ascend");
    }
    if problem
        .stages
        .iter()
        .any(|s| s.cores.0 > s.cores.1 || s.sms.0 > s.sms.1)
    {
        return bad("a stage's least is more than its most");
    }
    for s in &problem.stages {
        if rungs(problem, s, s.sms.1).is_empty() {
            let k = s.workers_per_gpu(problem.supply.gpus);
            let count = problem
                .supply
                .enforceable
                .iter()
                .find(|c| c.0.saturating_mul(k) >= s.sms.0.0);
            let needed = count.map_or(s.sms.0.0, |c| c.0.saturating_mul(k));
            return Err(Shortage {
                what: format!("stage {} with {k} workers on a GPU", s.name),
                resource: Resource::Sms,
                gpu: None,
                needed: needed.into(),
                available: supply_or_most(problem, s).into(),
            }
            .into());
        }
    }
    Ok(())
}

fn supply_or_most(problem: &Problem, stage: &Stage) -> u32 {
    problem.supply.sms.min(stage.sms.1).0
}

fn rungs(problem: &Problem, stage: &Stage, most: Sms) -> Vec<Sms> {
    let k = stage.workers_per_gpu(problem.supply.gpus);
    ladder(
        &problem.supply.enforceable,
        k,
        stage.synchronous,
        (stage.sms.0, most),
    )
}

/// The cores and SMs that a stage without a curve gets: all stages start at their least, and what is left goes
/// round one step at a time to those below their most.
fn even_shares(problem: &Problem) -> Vec<(u32, u32)> {
    let stages = &problem.stages;
    let mut cores: Vec<u32> = stages.iter().map(|s| s.cores.0).collect();
    let mut spare = problem
        .supply
        .cores
        .saturating_sub(cores.iter().copied().total());
    let mut gave = true;
    while spare > 0 && gave {
        gave = false;
        for (c, s) in cores.iter_mut().zip(stages) {
            if *c < s.cores.1 && spare > 0 {
                *c += 1;
                spare -= 1;
                gave = true;
            }
        }
    }
    let ladders: Vec<Vec<Sms>> = stages.iter().map(|s| rungs(problem, s, s.sms.1)).collect();
    let mut at: Vec<usize> = vec![0; stages.len()];
    let used: Sms = ladders.iter().filter_map(|l| l.first()).copied().sum();
    let mut spare = (problem.supply.sms - used).0;
    loop {
        let step =
            |i: usize, at: &[usize]| Some(ladders[i].get(at[i] + 1)?.0 - ladders[i].get(at[i])?.0);
        let next = (0..stages.len())
            .filter(|i| step(*i, &at).is_some_and(|d| d <= spare))
            .min_by_key(|i| ladders[*i][at[*i]]);
        let Some(i) = next else { break };
        spare -= step(i, &at).unwrap_or(0);
        at[i] += 1;
    }
    let sms = ladders
        .iter()
        .zip(at)
        .map(|(l, i)| l.get(i).map_or(0, |q| q.0));
    cores.into_iter().zip(sms).collect()
}

fn menu(problem: &Problem, i: usize, granule: u32, fixed: (u32, u32)) -> Menu {
    let stage = &problem.stages[i];
    let weight = problem.weighted(i, 1.0);
    let Some(curve) = stage.curve.as_ref() else {
        let batch = stage.batches.iter().min().copied().unwrap_or(1);
        let row = Row {
            cores: fixed.0,
            batch,
            memory: stage.memory.0,
            rates: vec![0.0],
        };
        return Menu {
            ladder: vec![fixed.1],
            rows: vec![row],
            balanced: false,
            weight,
        };
    };
    let most = Sms(problem.supply.sms.0.saturating_add(granule)).min(stage.sms.1);
    let mut ladder = rungs(problem, stage, most);
    if ladder.is_empty() {
        ladder = rungs(problem, stage, stage.sms.1);
        ladder.truncate(1);
    }
    let balanced = problem.balanced(i);
    if !balanced {
        ladder.truncate(1); // a stage outside the balance gets the least that it asks for
    }
    let reached: Vec<Sms> = ladder.iter().map(|sms| problem.reach(i, *sms)).collect();
    let mut rows = Vec::new();
    let choices = stage.choices();
    let rows_max = ROWS_MAX.min(RATES_MAX / ladder.len().max(1));
    let levels_max = (rows_max / choices.len().max(1)).max(2);
    for batch in choices {
        let levels = core_levels(stage, curve, batch, problem.supply.cores.saturating_add(1));
        for cores in spread_out(levels, levels_max) {
            let rates = problem.rates(i, cores, &reached, batch);
            rows.push(Row {
                cores,
                batch,
                memory: stage.memory_at(cores, batch).0,
                rates,
            });
        }
    }
    let ladder = ladder.into_iter().map(|q| q.0).collect();
    Menu {
        ladder,
        rows,
        balanced,
        weight,
    }
}

/// The core counts worth trying: the least allowed, each count at which the rate can rise, up to what there is.
fn core_levels(stage: &Stage, curve: &Curve, batch: u32, supply: u32) -> Vec<u32> {
    let (least, most) = (stage.cores.0, stage.cores.1.min(supply.max(stage.cores.0)));
    let whole = |c: u32| {
        if stage.synchronous && c > stage.workers.max(1) {
            c.checked_next_multiple_of(stage.workers.max(1))
                .unwrap_or(u32::MAX)
        } else {
            c
        }
    };
    let slices = curve.of_batch(batch);
    let lowest = slices.first().map_or(0, |s| s.cores);
    let mut levels: Vec<u32> = core::iter::once(least)
        .chain(least..lowest.min(most))
        .chain(slices.iter().map(|s| whole(s.cores)))
        .filter(|c| (least..=most).contains(c))
        .collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

/// What is short when nothing fits.
pub(super) fn shortage(problem: &Problem, menus: &Menus) -> Infeasible {
    let least =
        |f: &dyn Fn(&Menu) -> Option<u64>| -> u64 { menus.stages.iter().filter_map(f).total() };
    let cores = least(&|m| m.rows.iter().map(|r| r.cores.into()).min());
    let sms = least(&|m| m.ladder.first().map(|q| u64::from(*q)));
    let memory = least(&|m| m.rows.iter().map(|r| r.memory).min());
    let budget = menus.budget;
    for (resource, needed, available) in [
        (Resource::Cores, cores, budget.cores.into()),
        (Resource::Sms, sms, budget.sms.into()),
        (Resource::Memory, memory, budget.memory),
    ] {
        if needed > available {
            let what = format!("the least of all {} stages", problem.stages.len());
            return Shortage {
                what,
                resource,
                gpu: None,
                needed,
                available,
            }
            .into();
        }
    }
    Infeasible::NoCombination {
        cores: budget.cores,
        sms: budget.sms,
        memory: Bytes(budget.memory),
    }
}
