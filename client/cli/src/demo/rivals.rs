//! What else could have been done, without a daemon: every static split in virtual time, the best three executed, the
//! old split kept, and no management at all.

use std::time::Duration;

use evenkeel_gpu::GpuSpec;
use evenkeel_rollout::affinity::Thread;
use evenkeel_rollout::pipeline::{Outcome, PipelineSpec, Split, run as run_virtually, sweep};

use super::DemoError;
use super::calibrate::Trial;
use super::fleet::{Fleet, Measured, Site};
use super::jobspec::{SIMULATOR_CORES_MAX, UNIT};
use super::load::Load;
use super::report::{Executed, Figures, Rivals};
use super::seeds::{Drift, Stage};
use super::show::Screen;
use super::talk::Share;
use super::watch::SplitShares;

/// Virtual iterations before and during the measurement: the model has no noise, so a few are enough.
const VIRTUAL_STEPS: (u64, u64) = (4, 12);
/// Splits that are executed: virtual time is right within a few thousandths, so the best one is among the first three.
const EXECUTED: usize = 3;
/// Core counts whose virtual throughputs are this close do the same: the fewest are taken.
const SAME: f64 = 0.999;
/// A pipeline that was just started is not measured yet.
const WARM_UP: Duration = Duration::from_secs(2);

/// Where rivals run.
pub(crate) struct Field<'a> {
    pub(crate) site: &'a Site,
    /// The load after the drift.
    pub(crate) load: Load,
    pub(crate) drift: Drift,
    pub(crate) trials: &'a [Trial],
    /// Cores that could be leased.
    pub(crate) cpus: Vec<u32>,
    /// Length of a measured phase.
    pub(crate) length: Duration,
}

impl Field<'_> {
    /// The pipeline in virtual time.
    fn spec(&self) -> PipelineSpec {
        self.load.pipeline(GpuSpec::h100(), self.step_ns())
    }

    /// Executes a split and measures it.
    fn go(&self, split: SplitShares) -> Result<Measured, DemoError> {
        execute(self.site, self.load, split, &self.cpus, self.length)
    }

    /// What an environment step takes on one core under the load after the drift.
    fn step_ns(&self) -> u64 {
        let one = |trial: &&Trial| trial.stage == Stage::Simulation && trial.cores == 1;
        let rate = self
            .trials
            .iter()
            .find(one)
            .map_or(f64::INFINITY, |trial| trial.units_per_s);
        let slower = match self.drift.stage {
            Stage::Simulation => self.drift.factor,
            Stage::Generation | Stage::Training => 1.0,
        };
        (1e9 / rate * slower) as u64
    }
}

/// Executes a static split without a daemon and measures it.
pub(crate) fn execute(
    site: &Site,
    load: Load,
    split: SplitShares,
    cpus: &[u32],
    length: Duration,
) -> Result<Measured, DemoError> {
    let cores = split.simulation_cores as usize;
    let share = |stage: Stage| {
        let (sms, cpus) = match stage {
            Stage::Simulation => (None, cpus.iter().copied().take(cores).collect()),
            Stage::Generation => (Some(split.generation_sms), Vec::new()),
            Stage::Training => (Some(split.training_sms), Vec::new()),
        };
        Share::Fixed {
            sms,
            cpus,
            threads: cores,
        }
    };
    measure(Fleet::pipeline(site, load, share)?, length)
}

fn measure(mut fleet: Fleet, length: Duration) -> Result<Measured, DemoError> {
    fleet.measure(WARM_UP, |_| Ok(()))?;
    let measured = fleet.measure(length, |_| Ok(()))?;
    fleet.end();
    Ok(measured)
}

/// Runs all rivals under the load after the drift, and puts them beside what was measured under the daemon.
pub(crate) fn compare(
    field: &Field<'_>,
    figures: &mut Figures,
    screen: &mut Screen,
) -> Result<(), DemoError> {
    let executed = execute_best(field, screen)?;
    screen.phase("without a daemon: the old split under the new load");
    let old = figures.split_before;
    let kept = Executed {
        split: old,
        units_per_s: field.go(old)?.units_per_s,
        virtual_units_per_s: virtually(&field.spec(), old)?,
    };
    screen.note(&format!("{old}: {:.0} {UNIT}/s", kept.units_per_s));
    screen.phase("without a daemon: unmanaged, no caps and no binding");
    let unmanaged_units_per_s = unmanaged(field)?;
    screen.note(&format!("unmanaged: {unmanaged_units_per_s:.0} {UNIT}/s"));
    sum_up(figures, executed, kept, unmanaged_units_per_s);
    Ok(())
}

/// The best static splits in virtual time, executed; and how many were swept.
fn execute_best(
    field: &Field<'_>,
    screen: &mut Screen,
) -> Result<(Vec<Executed>, usize), DemoError> {
    let most = field.cpus.len().min(SIMULATOR_CORES_MAX) as u32;
    let cores: Vec<u32> = (1..=most).collect();
    let swept = sweep(&field.spec(), &cores, VIRTUAL_STEPS.0, VIRTUAL_STEPS.1)?;
    screen.phase(&format!(
        "without a daemon: the best {EXECUTED} of {} static splits swept in virtual time, executed",
        swept.len()
    ));
    let mut executed = Vec::new();
    for (split, virtual_units_per_s) in best_of_each(&swept) {
        let units_per_s = field.go(split)?.units_per_s;
        screen.note(&format!("{split}: {units_per_s:.0} {UNIT}/s"));
        executed.push(Executed {
            split,
            units_per_s,
            virtual_units_per_s,
        });
    }
    Ok((executed, swept.len()))
}

/// What was measured without a daemon, beside what was measured under it.
fn sum_up(
    figures: &mut Figures,
    (mut executed, swept): (Vec<Executed>, usize),
    kept: Executed,
    unmanaged_units_per_s: f64,
) {
    executed.push(kept);
    let faster = |a: Executed, b: &Executed| {
        if b.units_per_s > a.units_per_s { *b } else { a }
    };
    let best = executed.iter().fold(kept, faster);
    let achievable_gain = best.units_per_s / kept.units_per_s;
    let gain = figures.rebalanced_units_per_s / kept.units_per_s;
    figures.rivals = Some(Rivals {
        best_static_units_per_s: best.units_per_s,
        best_static_split: best.split,
        achievable_gain,
        unmanaged_units_per_s,
        plan_vs_best: figures.rebalanced_units_per_s / best.units_per_s,
        realised_share_of_gain: if achievable_gain > 1.0 {
            (gain - 1.0) / (achievable_gain - 1.0)
        } else {
            1.0
        },
        swept,
        executed,
        detection_units_per_s: figures.static_units_per_s,
    });
    figures.static_units_per_s = kept.units_per_s;
    figures.gain = gain;
}

/// What virtual time says of a split.
fn virtually(spec: &PipelineSpec, split: SplitShares) -> Result<f64, DemoError> {
    let split = Split {
        generate_sms: split.generation_sms,
        train_sms: split.training_sms,
        cores: split.simulation_cores.max(1),
    };
    let outcome = run_virtually(spec, split, VIRTUAL_STEPS.0, VIRTUAL_STEPS.1)?;
    Ok(outcome.units_per_s)
}

/// No caps, no binding: the simulator has a thread for each CPU.
fn unmanaged(field: &Field<'_>) -> Result<f64, DemoError> {
    let threads = Thread::current().cpus().len();
    let fleet = Fleet::pipeline(field.site, field.load, |_| Share::Fixed {
        sms: None,
        cpus: Vec::new(),
        threads,
    })?;
    Ok(measure(fleet, field.length)?.units_per_s)
}

/// The best splits of the SMs, best first, each with the fewest cores that do the same.
fn best_of_each(swept: &[(Split, Outcome)]) -> Vec<(SplitShares, f64)> {
    let mut best: Vec<(SplitShares, f64)> = Vec::new();
    for (split, outcome) in swept {
        let shares = SplitShares {
            simulation_cores: split.cores,
            generation_sms: split.generate_sms,
            training_sms: split.train_sms,
        };
        let sms = |split: &SplitShares| (split.generation_sms, split.training_sms);
        match best
            .iter()
            .position(|(known, _)| sms(known) == sms(&shares))
        {
            Some(at) => {
                let (known, units) = &mut best[at];
                if shares.simulation_cores < known.simulation_cores
                    && outcome.units_per_s > SAME * *units
                {
                    (*known, *units) = (shares, outcome.units_per_s);
                }
            }
            None if best.len() < EXECUTED => best.push((shares, outcome.units_per_s)),
            None => {}
        }
    }
    best
}
