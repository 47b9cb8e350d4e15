//! The allocator: which share of cores, SMs and memory each stage of a job gets, and at which batch size.
//!
//! Pure: [`solve`] is a function of a [`Problem`] and the previous [`Solution`]. It knows amounts, not ids:
//! `place` turns a solution into core ids and per-worker vectors. `decide` and the offline planner call both
//! through [`plan()`]. The README beside this file says how and why.
use alloc::string::String;
use alloc::vec::Vec;

use crate::curve::corun::Caps;
use crate::curve::{Curve, spread_out};
use crate::id::{GpuId, Name, StageId};
use crate::job::{Plan, Policy, Role, SmMode};
use crate::unit::{Bytes, Rate, Sms};

mod ebrl;
mod explain;
pub mod fair;
mod finish;
mod guess;
mod idle;
mod offer;
mod options;
mod outlook;
mod pin;
mod place;
mod predict;
mod problem;
pub mod rules;
pub mod rules_together;
mod together;
mod waterfill;

pub use idle::Idle;
pub use options::ladder;
pub use outlook::{Outlook, outlook};
pub use pin::{keep_caps, pin};
pub use place::{Room, choose_gpus, gpus_of_worker, place, split_sms, supply_for};
pub use predict::Prediction;
pub use problem::{BadProblem, Inputs, Refusal, plan, problem_for};
pub use together::{Bidder, Portion, TenantRoom, plan_together};

/// What the job may use: amounts that are free to it, its own present holdings included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supply {
    /// Whole cores.
    pub cores: u32,
    /// GPUs of the job; one SM split holds for all of them.
    pub gpus: u16,
    /// SMs on each GPU (where GPUs differ, the least).
    pub sms: Sms,
    /// SM counts that every one of these GPUs can enforce, ascending, without zero.
    pub enforceable: Vec<Sms>,
    /// Bytes on each GPU (where GPUs differ, the least).
    pub memory: Bytes,
}

/// A stage as the allocator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Name, for sentences.
    pub name: Name,
    /// Decides on which side of the balance its throughput counts.
    pub role: Role,
    /// Worker processes; each gets an enforceable share of its own (see [`ladder`]).
    pub workers: u32,
    /// Least and most cores.
    pub cores: (u32, u32),
    /// Least and most SMs on each GPU.
    pub sms: (Sms, Sms),
    /// Batch sizes it may run at; empty: those of its curve.
    pub batches: Vec<u32>,
    /// Bytes on each GPU, where the curve does not say.
    pub memory: Bytes,
    /// The slowest rank counts: shares are equal, a core that cannot be given to every rank is worth nothing.
    pub synchronous: bool,
    /// Its GPU share can never change: what is lent to it beyond its guarantee could not be called back, so nothing is.
    pub fixed: bool,
    /// Measured throughput, refit factor included. None: never measured; the stage gets an even share.
    pub curve: Option<Curve>,
    /// The factor that is in the curve already (live ÷ profiled), for sentences.
    pub scale: f64,
    /// Measured live points that are in the curve, for sentences.
    pub learned: usize,
}

/// Everything that a split depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What there is.
    pub supply: Supply,
    /// The stages, in the job's order; at most [`crate::job::STAGES_MAX`].
    pub stages: Vec<Stage>,
    /// Groups of environments: 2 overlap rollout stages (the slowest binds), 1 runs them in turn (harmonic).
    pub groups: u32,
    /// Efficiency of the overlap, in (0, 1], as measured. None: taken as 1, and said so.
    pub eta: Option<f64>,
    /// Share of the rollout's units that training consumes, in (0, 1]; 1 until measured.
    pub yielded: f64,
    /// Slow-down of stage i by a busy stage j: `T_i = T_i alone / (1 + Σ_j κ_ij)`, all stages taken as busy all
    /// the time. None: taken as 0, and said so.
    pub kappa: Option<Vec<Vec<f64>>>,
    /// Whether spare SMs raise guarantees or caps.
    pub sm_mode: SmMode,
    /// How far stages may go beyond their guarantees, in `cap`; `kappa` is what they cost each other then. With
    /// [`Caps::Reserve`] it is what nobody is promised.
    pub caps: Caps,
    /// Which algorithm.
    pub policy: Policy,
}

/// What one stage gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Cores of the whole stage.
    pub cores: u32,
    /// Guaranteed SMs on each GPU: a sum of enforceable shares.
    pub sms: Sms,
    /// Cap on each GPU; at least `sms`.
    pub cap: Sms,
    /// Bytes on each GPU.
    pub memory: Bytes,
    /// Batch size; 1 where it has none.
    pub batch: u32,
    /// Predicted throughput of the stage; zero if it was never measured.
    pub rate: Rate,
}

/// What more of a resource would bring to Θ, in work units per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Marginals {
    /// One more core.
    pub core: f64,
    /// `granule` more SMs on each GPU.
    pub sms: f64,
    /// The smallest step between enforceable counts.
    pub granule: Sms,
    /// One more GiB on each GPU.
    pub gib: f64,
}

/// A split, with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// One for each stage.
    pub stages: Vec<Share>,
    /// Predicted rollout throughput.
    pub t_r: Rate,
    /// Predicted training throughput; without a training stage, the rollout's (and the other way round).
    pub t_train: Rate,
    /// Predicted throughput of the job: the lower of the two.
    pub theta: Rate,
    /// The stage that binds.
    pub binding: StageId,
    /// What more would bring.
    pub marginals: Marginals,
    /// Sentences for a person.
    pub why: Vec<String>,
    /// Who computed it: `waterfill`, `ebrl`, `even` (no curve at all), `declared` (nothing to choose).
    pub by: Name,
    /// Splits or targets that were tried.
    pub evaluations: u32,
    /// False: the search hit its limit, and the answer is a good one but perhaps not the best.
    pub exact: bool,
    /// How far stages may go beyond their guarantees.
    pub caps: Caps,
}

/// Most batch sizes that a stage chooses from: as many as a job may declare. Of more that were measured, so many are
/// taken, evenly spread.
pub const CHOICES_MAX: usize = 64;

/// A resource that can be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Whole cores.
    Cores,
    /// SMs.
    Sms,
    /// Bytes of GPU memory.
    Memory,
    /// Whole GPUs.
    Gpus,
}

/// Too little of something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} needs {}, only {} free{}: short by {}",
    Amount(*.resource, *.needed), Amount(*.resource, *.available),
    On(*.gpu), Amount(*.resource, .needed.saturating_sub(*.available)))]
pub struct Shortage {
    /// Who needs it.
    pub what: String,
    /// Of what.
    pub resource: Resource,
    /// On which GPU, where it matters.
    pub gpu: Option<GpuId>,
    /// How much (cores, SMs, bytes, GPUs).
    pub needed: u64,
    /// How much there is.
    pub available: u64,
}

impl Shortage {
    /// How much is missing.
    pub const fn short_by(&self) -> u64 {
        self.needed.saturating_sub(self.available)
    }
}

struct Amount(Resource, u64);
impl core::fmt::Display for Amount {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.0, self.1) {
            (Resource::Memory, n) => Bytes(n).fmt(f),
            (Resource::Cores, 1) => f.write_str("1 core"),
            (Resource::Cores, n) => write!(f, "{n} cores"),
            (Resource::Sms, n) => write!(f, "{n} SMs"),
            (Resource::Gpus, 1) => f.write_str("1 GPU"),
            (Resource::Gpus, n) => write!(f, "{n} GPUs"),
        }
    }
}
struct On(Option<GpuId>);
impl core::fmt::Display for On {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.map_or(Ok(()), |gpu| write!(f, " on {gpu}"))
    }
}

/// Why there is no split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// The least that the stages need of one resource is more than there is.
    #[error(transparent)]
    Short(#[from] Shortage),
    /// Each resource would do, but no combination of the stages' options fits all of them at once.
    #[error(
        "no combination of the stages' options fits {cores} cores, {sms} SMs and {memory} at once"
    )]
    NoCombination {
        /// Cores there are.
        cores: u32,
        /// SMs there are on each GPU.
        sms: u32,
        /// Memory there is on each GPU.
        memory: Bytes,
    },
    /// The search reached its limit before it found any split.
    #[error(
        "{combinations} combinations of the stages' options were looked at and none fits; nobody knows about the rest: declare fewer batch sizes, or narrower ranges of cores"
    )]
    Unfinished {
        /// How many were looked at.
        combinations: u64,
    },
    /// The problem contradicts itself.
    #[error("the job cannot be planned: {0}")]
    Malformed(&'static str),
}

impl Problem {
    /// The SMs on each GPU that a stage can use with this guarantee while the others are busy, too: an enforceable share.
    pub fn reach(&self, stage: usize, sms: Sms) -> Sms {
        let Some(s) = self
            .stages
            .get(stage)
            .filter(|s| self.caps != Caps::Reserve && !s.fixed)
        else {
            return sms;
        };
        let most = self.caps.reach(sms, self.supply.sms).min(s.sms.1.max(sms));
        let k = s.workers_per_gpu(self.supply.gpus);
        let range = (sms, most);
        let reached = ladder(&self.supply.enforceable, k, s.synchronous, range).pop();
        reached.unwrap_or(sms)
    }

    /// Throughput of a stage with a share: the one forward function that every search and check uses. Zero if it
    /// was never measured.
    pub fn rate(&self, stage: usize, cores: u32, sms: Sms, batch: u32) -> Rate {
        let Some((s, curve)) = self
            .stages
            .get(stage)
            .and_then(|s| Some((s, s.curve.as_ref()?)))
        else {
            return Rate::ZERO;
        };
        Rate::clamped(curve.rate(s.effective_cores(cores), sms, batch).get() * self.slowdown(stage))
    }

    /// [`Problem::rate`] at each of `counts` (ascending), the same numbers in one walk; empty if never measured.
    pub(crate) fn rates(&self, stage: usize, cores: u32, counts: &[Sms], batch: u32) -> Vec<f64> {
        let Some((s, curve)) = self
            .stages
            .get(stage)
            .and_then(|s| Some((s, s.curve.as_ref()?)))
        else {
            return Vec::new();
        };
        let slowdown = self.slowdown(stage);
        let (slice, factor) = curve.slice(s.effective_cores(cores), batch);
        let rate = |alone: f64| Rate::clamped(Rate::clamped(alone * factor).get() * slowdown).get();
        slice.rates(counts).map(rate).collect()
    }

    /// The factor that interference leaves of a stage's rate, in (0, 1], with every other stage busy all the time.
    pub fn slowdown(&self, stage: usize) -> f64 {
        self.slowdown_beside(stage, |_| 1.0)
    }
    /// The same where stage j is busy in `u(j)` of the stage's busy time. Stages that run in turn are never busy at once.
    pub fn slowdown_beside(&self, stage: usize, u: impl Fn(usize) -> f64) -> f64 {
        let row = self.kappa.as_ref().and_then(|k| k.get(stage));
        let in_turn = |j: usize| self.in_turn(stage, j);
        let sum: f64 = row.map_or(0.0, |row| {
            row.iter()
                .enumerate()
                .filter(|(j, k)| *j != stage && **k > 0.0 && !in_turn(*j))
                .map(|(j, k)| *k * u(j).clamp(0.0, 1.0))
                .sum()
        });
        1.0 / (1.0 + sum)
    }

    /// Whether two stages run in turn, and are never busy at once: those of the rollout with one group of environments.
    pub(crate) fn in_turn(&self, stage: usize, other: usize) -> bool {
        let is_rollout = |j: usize| self.stages.get(j).is_some_and(|s| s.role.is_rollout());
        self.groups == 1 && is_rollout(stage) && is_rollout(other)
    }

    /// Whether the stage takes part in the balance: it has a curve, and its role counts.
    pub fn balanced(&self, stage: usize) -> bool {
        self.stages
            .get(stage)
            .is_some_and(|s| s.role != Role::Other && s.curve.is_some())
    }

    /// Whether the stage counts in the balance and nothing of it was measured.
    pub(crate) fn is_unmeasured(&self, stage: usize) -> bool {
        let stage = self.stages.get(stage);
        stage.is_some_and(|s| s.role != Role::Other && s.curve.is_none())
    }
    /// Whether every stage that counts was measured.
    pub(crate) fn balanced_throughout(&self) -> bool {
        !(0..self.stages.len()).any(|i| self.is_unmeasured(i))
    }

    /// Job throughput from the stages' rates: `(T_r, T_train, Θ)`. `T_r = η · yield · min` over rollout stages, or
    /// `η · yield / Σ 1/T` where one group runs them in turn; a missing side takes the other's value.
    pub fn combine(&self, rates: &[f64]) -> (f64, f64, f64) {
        let of = |rollout: bool| {
            self.stages
                .iter()
                .zip(rates)
                .enumerate()
                .filter(move |(i, (s, _))| self.balanced(*i) && s.role.is_rollout() == rollout)
        };
        let eta = self.rollout_factor();
        let rollout = if self.groups == 1 {
            let (n, sum) = of(true).fold((0, 0.0), |(n, sum), (_, (_, r))| (n + 1, sum + 1.0 / r));
            (n > 0).then(|| eta / sum)
        } else {
            of(true)
                .map(|(_, (_, r))| *r)
                .reduce(f64::min)
                .map(|r| eta * r)
        };
        let train = of(false).map(|(_, (_, r))| *r).reduce(f64::min);
        let t_r = rollout.or(train).unwrap_or(0.0);
        let t_train = train.unwrap_or(t_r);
        (t_r, t_train, t_r.min(t_train))
    }

    /// The least rate at which a rollout stage of one group can still help to reach `target`, with all others of the
    /// group at their best. A little too low rather than too high: it only spares a search what cannot do.
    fn least_in_sum(&self, stage: usize, bests: &[f64], target: f64) -> f64 {
        const SLACK: f64 = 1e-9;
        if target <= 0.0 {
            return 0.0;
        }
        let in_sum = |j: &usize| self.balanced(*j) && self.stages[*j].role.is_rollout();
        let others = (0..bests.len()).filter(|j| *j != stage).filter(in_sum);
        let taken: f64 = others.map(|j| 1.0 / bests[j]).sum();
        let left = self.rollout_factor() / target * (1.0 + SLACK) - taken;
        if left > 0.0 {
            1.0 / left
        } else {
            f64::INFINITY
        }
    }

    /// The stage that binds Θ at these rates: the slowest stage of the slower side.
    pub fn binding(&self, rates: &[f64]) -> StageId {
        let (t_r, t_train, _) = self.combine(rates);
        let on_side = |i: usize| {
            self.balanced(i)
                && (self.stages[i].role.is_rollout() == (t_r <= t_train) || t_r == t_train)
        };
        let at = (0..rates.len()).filter(|i| on_side(*i)).min_by(|a, b| {
            self.weighted(*a, rates[*a])
                .total_cmp(&self.weighted(*b, rates[*b]))
        });
        StageId(u8::try_from(at.unwrap_or(0)).unwrap_or(u8::MAX))
    }

    /// What the rollout's own throughput is multiplied by: overlap times yield.
    pub(crate) fn rollout_factor(&self) -> f64 {
        self.eta.unwrap_or(1.0) * self.yielded
    }

    /// A stage's rate as it counts towards Θ when it binds alone: rollout stages times overlap and yield.
    pub(crate) fn weighted(&self, stage: usize, rate: f64) -> f64 {
        if self.stages[stage].role.is_rollout() {
            self.rollout_factor() * rate
        } else {
            rate
        }
    }
}

impl Stage {
    /// Cores that do work: a synchronous stage counts only those that every worker gets.
    pub fn effective_cores(&self, cores: u32) -> u32 {
        if self.synchronous && self.workers > 1 && cores >= self.workers {
            cores - cores % self.workers
        } else {
            cores
        }
    }
    /// The batch sizes to choose from, ascending: those declared that were measured; without a declaration
    /// those measured; where none of the declared was measured, the declared ones; 1 where there is none.
    pub fn choices(&self) -> Vec<u32> {
        let measured: Vec<u32> = self.curve.iter().flat_map(Curve::batches).collect();
        let declared = self.batches.iter().copied();
        let mut all: Vec<u32> = match &self.batches {
            none if none.is_empty() => measured,
            all if all.iter().all(|b| !measured.contains(b)) => declared.collect(),
            _ => declared.filter(|b| measured.contains(b)).collect(),
        };
        all.sort_unstable();
        all.dedup();
        let all = spread_out(all, CHOICES_MAX);
        if all.is_empty() { [1].into() } else { all }
    }
    /// Bytes on each GPU that the stage needs with so many cores at a batch size.
    pub fn memory_at(&self, cores: u32, batch: u32) -> Bytes {
        match self
            .curve
            .as_ref()
            .map(|c| c.memory(self.effective_cores(cores), batch))
        {
            None | Some(Bytes(0)) => self.memory,
            Some(measured) => measured,
        }
    }
    /// Workers that share one GPU of the job.
    pub fn workers_per_gpu(&self, gpus: u16) -> u32 {
        self.workers.max(1).div_ceil(u32::from(gpus.max(1)))
    }
    /// Whether it uses a GPU at all.
    pub fn uses_gpu(&self) -> bool {
        self.sms.1 > Sms(0) || self.memory > Bytes(0)
    }
}

impl Solution {
    /// The shares that a plan gives, as a `previous` for [`solve`].
    pub fn of_plan(plan: &Plan) -> Self {
        Self {
            stages: plan
                .stages
                .iter()
                .map(|s| Share {
                    cores: s.cores,
                    sms: s.sms,
                    cap: s.cap,
                    memory: s.memory,
                    batch: s.batch,
                    rate: s.predicted,
                })
                .collect(),
            t_r: plan.t_r,
            t_train: plan.t_train,
            theta: plan.theta,
            binding: plan.binding,
            marginals: Marginals::default(),
            why: plan.why.clone(),
            by: plan.by.clone(),
            evaluations: 0,
            exact: true,
            caps: plan.caps,
        }
    }
    /// The shares alone.
    pub fn same_shares(&self, other: &Self) -> bool {
        let key = |s: &Share| (s.cores, s.sms, s.cap, s.memory, s.batch);
        self.stages.len() == other.stages.len()
            && self
                .stages
                .iter()
                .zip(&other.stages)
                .all(|(a, b)| key(a) == key(b))
    }
}

/// The best split of `problem` by its policy; among equal ones the nearest to `previous`. Deterministic and
/// idempotent: `solve(p, Some(&s)) == s` for an `s` that `solve(p, _)` gave.
pub fn solve(problem: &Problem, previous: Option<&Solution>) -> Result<Solution, Infeasible> {
    let first = split(problem, previous);
    if first.is_err() && previous.is_some() && problem.stages.iter().any(|s| s.curve.is_none()) {
        return split(problem, None); // what an unmeasured stage had may be too much now
    }
    first
}

fn split(problem: &Problem, previous: Option<&Solution>) -> Result<Solution, Infeasible> {
    let menus = options::Menus::of(problem, previous)?;
    let mut search = waterfill::Search::new(problem, &menus);
    let found = match problem.policy {
        Policy::Waterfill => waterfill::solve(&mut search, previous),
        Policy::Ebrl => ebrl::solve(&mut search),
    };
    match found {
        Some(picks) => Ok(explain::solution(&mut search, picks)),
        None if search.is_spent() => Err(Infeasible::Unfinished {
            combinations: waterfill::NODES_MAX,
        }),
        None => Err(options::shortage(problem, &menus)),
    }
}
