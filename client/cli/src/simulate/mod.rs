//! What if: a discrete-event simulation of asynchronous RL pipelines in virtual time, under every way to share a node.
//!
//! The allocators and the rebalancer are the core's own, called as the daemon calls them (`together`, `keeper`,
//! `optimum`); everything else here is the world around them. No daemon, no clock: the same scenario and seed give the
//! same result. `docs/simulate.md` says what is modelled and with which formulas. Called by `cmd::simulate`.
//!
//! *scenario → world (what is true on a node) → run (who decides) → step | chunk (what happens) → tally → report, picture*

mod chunk;
mod demo;
mod drift;
mod fleet;
mod keeper;
mod law;
mod layout;
mod meter;
mod optimum;
mod picture;
mod policy;
mod random;
mod report;
mod rivals;
mod run;
mod scenario;
mod step;
mod tally;
#[cfg(test)]
mod tests;
mod together;
mod world;

pub(crate) use picture::svg;
pub(crate) use policy::Policy;
pub(crate) use report::Report;
pub(crate) use scenario::{Fidelity, Scenario};

use crate::demo::load::Load;
use crate::demo::seeds::script;
use crate::fail::Failure;

/// Substeps of the demo's physics. They matter to its simulator only, which is declared by its step time here.
const SUBSTEPS: u32 = 8;

/// What is asked of a scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// Only these; none: all.
    pub(crate) policies: Vec<Policy>,
    /// Another seed than the scenario's.
    pub(crate) seed: Option<u64>,
    /// Another length than the scenario's.
    pub(crate) seconds: Option<f64>,
    /// Another fidelity than the scenario's.
    pub(crate) fidelity: Option<Fidelity>,
    /// Whose shares the timeline shows.
    pub(crate) shares_of: Option<Policy>,
    /// Threads; none: as many as there are CPUs.
    pub(crate) threads: Option<usize>,
}

/// The scenario of the demo with a seed, as a file.
pub(crate) fn demo_scenario(seed: u64) -> Result<String, Failure> {
    let written = demo::scenario(Load::base(SUBSTEPS), script(seed));
    written.map_err(|error| Failure::new(format!("cannot sample the demo's load: {error}")))
}

/// Simulates a scenario. `tick` is called after each policy of each node.
pub(crate) fn simulate(
    scenario: &Scenario,
    wish: &Wish,
    tick: &(dyn Fn() + Sync),
) -> Result<Report, Failure> {
    let mut policies = wish.policies.clone();
    policies.sort_unstable();
    policies.dedup();
    if policies.is_empty() {
        policies = Policy::all().to_vec();
    }
    let order = fleet::Order {
        scenario,
        policies: &policies,
        seed: wish.seed.unwrap_or(scenario.seed),
        seconds: wish.seconds.unwrap_or(scenario.seconds),
        fidelity: wish.fidelity.unwrap_or(scenario.fidelity),
        threads: wish.threads,
    };
    let outcomes = fleet::simulate(&order, tick)?;
    if let Some((_, Err(why))) = outcomes.first()
        && outcomes.iter().all(|(_, outcome)| outcome.is_err())
    {
        return Err(Failure::new(format!(
            "cannot simulate {}: {why}",
            scenario.name
        )));
    }
    let shares_of = wish.shares_of.unwrap_or(Policy::WaterfillStreak);
    Ok(Report::new(&order, &outcomes, shares_of))
}
