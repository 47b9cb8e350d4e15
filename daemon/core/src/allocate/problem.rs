//! From a job and its profiles to a [`Problem`], and the whole way from a job to a plan in one call.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::explain;
use super::idle::{Idle, idle};
use super::pin::{keep_caps, pin};
use super::place::{Room, choose_gpus, place, supply_for};
use super::{Infeasible, Problem, Shortage, Solution, Stage, Supply, solve};
use crate::curve::corun::Caps;
use crate::curve::{Curve, Point, Profile, corun};
use crate::grant::Resize;
use crate::job::{JobSpec, Plan, STAGES_MAX, SmMode, WORKERS_MAX};
use crate::node::Node;
use crate::unit::{Rate, Sms};

/// What is known about a job beside its declaration. All slices are by stage; shorter ones count as unknown.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// As declared.
    pub spec: &'a JobSpec,
    /// Profiles measured by `calibrate` on this kind of GPU.
    pub profiles: &'a [Option<&'a Profile>],
    /// Live ÷ profiled rate (`Job::scale`).
    pub scale: &'a [f64],
    /// Points measured live (`Job::learned`).
    pub learned: &'a [Vec<Point>],
    /// Measured efficiency of the rollout's overlap.
    pub eta: Option<f64>,
    /// Measured share of the rollout's units that training consumes; none: all.
    pub yielded: Option<f64>,
    /// How far stages go beyond their guarantees in the plan in force.
    pub caps: Caps,
    /// Interference as measured live. None: as co-run trials in the profiles say; of a refitted job nothing is known then, since
    /// its factors have it in them.
    pub kappa: Option<&'a [Vec<f64>]>,
    /// Stages that keep the GPU share and the batch size that the previous plan gives them.
    pub pinned: &'a [bool],
}

/// Rounds in which a split and the interference that it brings are made to agree.
const ROUNDS: usize = 3;

impl<'a> Inputs<'a> {
    /// What the stages cost each other with these caps: as measured live; before that, as co-run trials say, near these shares.
    pub fn interference(&self, caps: Caps, near: Option<&[Sms]>) -> Option<Vec<Vec<f64>>> {
        corun::numbers(&self.known_interference(caps, near))
    }

    /// The same, none where nothing is known of a pair.
    pub fn known_interference(&self, caps: Caps, near: Option<&[Sms]>) -> Vec<Vec<Option<f64>>> {
        let row = |row: &Vec<f64>| row.iter().copied().map(Some).collect();
        match self.kappa {
            Some(live) => live.iter().map(row).collect(),
            None if self.is_refitted() => Vec::new(),
            None => corun::tried(self.profiles, caps, near),
        }
    }

    /// Whether the curves are no longer as they were profiled.
    pub fn is_refitted(&self) -> bool {
        self.scale.iter().any(|s| *s != 1.0) || self.learned.iter().any(|l| !l.is_empty())
    }

    /// Nothing known but the declaration.
    pub const fn declared(spec: &'a JobSpec) -> Self {
        Self {
            spec,
            profiles: &[],
            scale: &[],
            learned: &[],
            eta: None,
            yielded: None,
            caps: Caps::Reserve,
            kappa: None,
            pinned: &[],
        }
    }
}

/// Why a job and its profiles make no problem.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadProblem {
    /// The refit factor of a stage is not a positive number.
    #[error("the refit factor of stage {stage} is {factor}; it must be finite and above zero")]
    Scale {
        /// The stage's index.
        stage: usize,
        /// The factor.
        factor: f64,
    },
    /// The job has no stages, or too many.
    #[error("a job has 1 to {STAGES_MAX} stages; this one has {has}")]
    Stages {
        /// How many it has.
        has: usize,
    },
    /// A stage has too many workers: each has to be placed.
    #[error("stage {stage} has {has} workers; at most {WORKERS_MAX} are possible")]
    Workers {
        /// The stage's index.
        stage: usize,
        /// How many it has.
        has: u32,
    },
}

/// Why a job gets no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The inputs contradict themselves.
    #[error(transparent)]
    Problem(#[from] BadProblem),
    /// No split fits.
    #[error(transparent)]
    Split(#[from] Infeasible),
    /// The split does not fit on this node's cores and GPUs.
    #[error(transparent)]
    Place(#[from] Shortage),
    /// A stage would do no work.
    #[error(transparent)]
    Idle(#[from] Idle),
}

impl Refusal {
    /// What is short, where that is the reason.
    pub const fn shortage(&self) -> Option<&Shortage> {
        match self {
            Self::Place(s) | Self::Split(Infeasible::Short(s)) => Some(s),
            _ => None,
        }
    }
}

/// The allocation problem of a job on a supply. A stage without a usable profile or learned point has no curve:
/// it gets an even share, labelled as a guess.
pub fn problem_for(inputs: &Inputs<'_>, supply: Supply) -> Result<Problem, BadProblem> {
    let spec = inputs.spec;
    if spec.stages.is_empty() || spec.stages.len() > STAGES_MAX {
        return Err(BadProblem::Stages {
            has: spec.stages.len(),
        });
    }
    let mut stages = Vec::with_capacity(spec.stages.len());
    for (i, s) in spec.stages.iter().enumerate() {
        let scale = inputs.scale.get(i).copied().unwrap_or(1.0);
        if !(scale.is_finite() && scale > 0.0) {
            return Err(BadProblem::Scale {
                stage: i,
                factor: scale,
            });
        }
        if s.workers > WORKERS_MAX {
            return Err(BadProblem::Workers {
                stage: i,
                has: s.workers,
            });
        }
        let profile = inputs.profiles.get(i).copied().flatten();
        let points = profile.map_or(&[][..], |p| &p.points);
        let learned = inputs.learned.get(i).map_or(&[][..], |l| l);
        stages.push(Stage {
            name: s.name.clone(),
            role: s.role,
            workers: s.workers,
            cores: s.cores,
            sms: s.sms,
            batches: s.batches.clone(),
            memory: s.memory,
            synchronous: s.synchronous,
            fixed: s.resize == Resize::Fixed,
            curve: Curve::fit(points, learned, scale, s.workers),
            scale,
            learned: learned.len(),
        });
    }
    let caps = match spec.sm_mode {
        SmMode::Cap => inputs.caps,
        SmMode::Reserve => Caps::Reserve,
    };
    Ok(Problem {
        supply,
        stages,
        groups: spec.groups,
        eta: inputs.eta,
        yielded: inputs.yielded.unwrap_or(1.0),
        kappa: inputs.interference(caps, None),
        sm_mode: spec.sm_mode,
        caps,
        policy: spec.policy,
    })
}

/// From a job to a placed plan: GPUs, supply, problem, split, cores. Refuses a split in which a stage of the balance
/// would do no work. `room` is what the job may use, its present
/// holdings included. The previous plan keeps what can be kept.
pub fn plan(
    inputs: &Inputs<'_>,
    node: &Node,
    room: &Room,
    previous: Option<&Plan>,
) -> Result<(Plan, Solution), Refusal> {
    let gpus = choose_gpus(inputs.spec, node, room, previous)?;
    let mut problem = problem_for(inputs, supply_for(node, room, &gpus))?;
    let before = previous.map(Solution::of_plan);
    if let Some(now) = &before {
        pin(&mut problem, inputs.pinned, now);
    }
    let mut solution = settle(inputs, &mut problem, before.as_ref())?;
    if let Some(now) = &before {
        keep_caps(&mut solution, inputs.pinned, now);
    }
    if let Some(idle) = idle(inputs, &problem, &solution) {
        return Err(idle.into());
    }
    let plan = place(inputs.spec, &solution, node, room, &gpus, previous)?;
    Ok((plan, solution))
}

/// The best split. How far stages may go beyond their guarantees is chosen once, before anything was measured live: in `cap`
/// by the trials with such caps, if there are any, else not at all.
fn settle(
    inputs: &Inputs<'_>,
    problem: &mut Problem,
    previous: Option<&Solution>,
) -> Result<Solution, Infeasible> {
    let mut best = with_own_interference(inputs, problem, previous);
    if inputs.kappa.is_some() || problem.sm_mode == SmMode::Reserve {
        return best;
    }
    let tried = |caps: &Caps| *caps != problem.caps && inputs.interference(*caps, None).is_some();
    let others: Vec<Caps> = Caps::ALL.into_iter().filter(tried).collect();
    let mut yields: Vec<(Caps, Rate)> = Vec::new();
    yields.extend(best.iter().map(|kept| (problem.caps, kept.theta)));
    for caps in others {
        let mut other = Problem {
            caps,
            kappa: inputs.interference(caps, None),
            ..problem.clone()
        };
        let found = match (caps, &best) {
            // Whatever is promised does the same: the promises stay.
            (Caps::None, Ok(kept)) => Ok(beyond(&other, kept)),
            _ => with_own_interference(inputs, &mut other, previous),
        };
        let Ok(found) = found else { continue };
        yields.push((caps, found.theta));
        if best.as_ref().map_or(true, |best| found.theta > best.theta) {
            (*problem, best) = (other, Ok(found));
        }
    }
    if let Ok(best) = &mut best {
        let lost = yields.into_iter().filter(|(caps, _)| *caps != best.caps);
        best.why
            .extend(lost.map(|(caps, theta)| not_taken(caps, theta)));
    }
    best
}

/// Why stages may not go so far beyond their shares, or not only so far.
fn not_taken(caps: Caps, theta: Rate) -> String {
    let with = match caps {
        Caps::Reserve => "With what nobody is promised, and no more",
        Caps::HalfMore => "With caps of half as much again as is promised",
        Caps::None => "With the whole GPU as everybody's cap",
    };
    format!("{with}, it would do {theta}: no better, by the trials of pairs.")
}

/// The same promises with caps as far as `problem` lets them go.
fn beyond(problem: &Problem, kept: &Solution) -> Solution {
    let mut found = Solution {
        caps: problem.caps,
        ..kept.clone()
    };
    for (i, share) in found.stages.iter_mut().enumerate() {
        if problem.balanced(i) {
            share.cap = problem.reach(i, share.sms);
        }
    }
    explain::retell(problem, &mut found);
    found
}

/// The best split with such caps. Where interference is known from co-run trials, it depends on the split: each round solves
/// with that of the round before, and of all rounds the split counts that yields most with its own.
fn with_own_interference(
    inputs: &Inputs<'_>,
    problem: &mut Problem,
    previous: Option<&Solution>,
) -> Result<Solution, Infeasible> {
    let near = |s: &Solution| s.stages.iter().map(|s| s.sms).collect::<Vec<Sms>>();
    if let (None, Some(now)) = (inputs.kappa, previous) {
        problem.kappa = inputs.interference(problem.caps, Some(&near(now)));
    }
    let mut solution = solve(problem, previous)?;
    if inputs.kappa.is_some() || problem.kappa.is_none() {
        return Ok(solution);
    }
    let mut best: Option<(Rate, Problem, Solution)> = None;
    for round in 1..=ROUNDS {
        let kappa = inputs.interference(problem.caps, Some(&near(&solution)));
        let is_settled = kappa == problem.kappa;
        problem.kappa = kappa;
        let theta = problem.predict(&solution.stages).theta;
        if best.as_ref().is_none_or(|(most, ..)| theta > *most) {
            best = Some((theta, problem.clone(), solution.clone()));
        }
        if is_settled || round == ROUNDS {
            break;
        }
        solution = solve(problem, previous)?;
    }
    let Some((_, own, mut found)) = best else {
        return Ok(solution);
    };
    *problem = own;
    explain::retell(problem, &mut found);
    Ok(found)
}
