//! Stages that slow each other on the emulated GPU: whether the production allocator predicts what co-running costs, finds it
//! out from busy intervals alone, and plans as well as an executed sweep.
//!
//! Everything runs in virtual time: kernels on the GPU's model, the pipeline of `evenkeel_rollout::pipeline`, and the core's
//! own curves, watch, judge and solver. Not a test by itself: `tests/corun.rs` and `accept` judge the figures.
mod live;
mod made;
mod trials;

use anyhow::Context as _;
use evenkeel_core::curve::Profile;
use evenkeel_core::curve::corun::Caps;
use evenkeel_core::job::SmMode;
use evenkeel_rollout::pipeline::{Outcome, Split, run};

use live::{Keeper, split_of};
use made::CORES;
pub use made::{Triple, triple};

/// A stage is worth the name of a victim from this loss on.
const MISSES: f64 = 0.25;
/// Iterations under observation.
const STEPS: u64 = 200;
/// Most moves until shares are at rest.
const MOVES: usize = 6;
/// Iterations before an execution is measured, and measured ones.
const EXECUTED: (u64, u64) = (4, 40);
/// The same for each split of a sweep.
const SWEPT: (u64, u64) = (4, 12);
/// SMs between two caps of a sweep in which they may overlap.
const CAP_STEP: usize = 6;

/// What became of one triple under one way of sharing SMs.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Predicted over executed throughput of the plan that calibration leads to, less one.
    pub error: f64,
    /// The same of the plan after operation has refitted it.
    pub settled_error: f64,
    /// Its executed throughput over that of the best executed split.
    pub of_best: f64,
    /// Moves until it was at rest.
    pub moves: usize,
}

/// How well κ was found out: generation beside training, and the other way round.
#[derive(Clone, Copy, Debug)]
pub struct Kappa {
    /// From two saturated streams at the same shares.
    pub truth: f64,
    /// From operation alone.
    pub found: f64,
}

impl Kappa {
    /// Below this a neighbour costs less than a tenth, and a share of it says nothing.
    pub const OF_NOTE: f64 = 0.1;

    /// How far off it was found: as a share of it; of one that is not of note, as it is.
    pub fn error(&self) -> f64 {
        if self.truth >= Self::OF_NOTE {
            (self.found / self.truth - 1.0).abs()
        } else {
            (self.found - self.truth).abs()
        }
    }
}

/// All that is asked about one triple.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Its seed.
    pub seed: u64,
    /// By how much the plan of curves alone promises too much.
    pub misses: f64,
    /// Generation beside training, and training beside generation.
    pub kappa: Vec<Kappa>,
    /// With shares kept.
    pub reserve: Found,
    /// With caps that may overlap, against every pair of caps.
    pub cap: Found,
}

/// The figures of a seed's triple; none where the rates of its stages alone are near enough to those beside each other.
///
/// # Errors
/// When the model refuses a share or a list, or the allocator has no plan.
pub fn figures(seed: u64) -> anyhow::Result<Option<Figures>> {
    let triple = triple(seed);
    let mut alone = Keeper::new(&triple, SmMode::Reserve, trials::profiles(&triple))?;
    let split = split_of(&alone.plan);
    let truth = trials::kappa_at(&triple.spec, [split.generate_sms, split.train_sms])?;
    if truth.into_iter().fold(0.0, f64::max) < MISSES {
        return Ok(None);
    }
    let misses = error(&triple, &alone)?;
    alone.freeze();
    alone.run(STEPS)?;
    let found = alone.kappa().context("nothing was found of κ")?;
    let pairs = truth.into_iter().zip(found);
    Ok(Some(Figures {
        seed,
        misses,
        kappa: pairs.map(|(truth, found)| Kappa { truth, found }).collect(),
        reserve: managed(&triple, SmMode::Reserve)?,
        cap: managed(&triple, SmMode::Cap)?,
    }))
}

/// Calibrates, plans, operates until the shares are at rest, and compares with the sweep.
fn managed(triple: &Triple, sm_mode: SmMode) -> anyhow::Result<Found> {
    let mut keeper = Keeper::new(triple, sm_mode, calibrated(triple, sm_mode)?)?;
    let first = error(triple, &keeper)?;
    let mut moves = 0;
    while moves < MOVES && keeper.run(STEPS)? {
        moves += 1;
    }
    let executed = execute(triple, split_of(&keeper.plan), EXECUTED)?;
    Ok(Found {
        error: first,
        settled_error: error(triple, &keeper)?,
        of_best: executed.units_per_s / best(triple, sm_mode)?,
        moves,
    })
}

/// What a calibration measures: each stage alone, then pairs at the split that would be planned, twice; where caps may go
/// beyond shares, with such caps, too.
fn calibrated(triple: &Triple, sm_mode: SmMode) -> anyhow::Result<Vec<Profile>> {
    let mut profiles = trials::profiles(triple);
    for _ in 0..2 {
        let plan = Keeper::new(triple, sm_mode, profiles.clone())?.plan;
        let split = [plan.stages[1].sms.0, plan.stages[2].sms.0];
        let tried = match sm_mode {
            SmMode::Reserve => &Caps::ALL[..1],
            SmMode::Cap => &Caps::ALL[..],
        };
        for caps in tried {
            trials::add_pair(&mut profiles, triple, split, *caps)?;
        }
    }
    Ok(profiles)
}

/// Predicted over executed throughput of a plan, less one.
fn error(triple: &Triple, keeper: &Keeper) -> anyhow::Result<f64> {
    let executed = execute(triple, split_of(&keeper.plan), EXECUTED)?;
    Ok(keeper.plan.theta.get() / executed.units_per_s - 1.0)
}

fn execute(triple: &Triple, split: Split, (warm, steps): (u64, u64)) -> anyhow::Result<Outcome> {
    Ok(run(&triple.spec, split, warm, steps)?)
}

/// The most that any split executes: of shares that add up to the GPU's SMs; or of any two caps.
fn best(triple: &Triple, sm_mode: SmMode) -> anyhow::Result<f64> {
    let counts = triple.spec.gpu.enforceable_sms();
    let all = triple.spec.gpu.sms;
    let mut pairs = Vec::new();
    for generate in &counts {
        let rest = counts.iter().rev().find(|sms| **sms + generate <= all);
        pairs.extend(rest.map(|train| (*generate, *train)));
    }
    if sm_mode == SmMode::Cap {
        let coarse = || counts.iter().rev().step_by(CAP_STEP / 2);
        for generate in coarse() {
            pairs.extend(coarse().map(|train| (*generate, *train)));
        }
    }
    let mut most = 0.0_f64;
    for (generate_sms, train_sms) in pairs {
        let split = |cores| Split {
            generate_sms,
            train_sms,
            cores,
        };
        // More cores never do less: they are not what is shared here.
        let outcome = execute(triple, split(CORES), SWEPT)?;
        most = most.max(outcome.units_per_s);
    }
    Ok(most)
}
