//! The simulation against what is known without it: closed forms, conservation, the clairvoyant, repetition, and the
//! scenarios that ship.

mod closed_forms;
mod policies;
mod shipped;

use std::path::Path;

use super::chunk::ChunkEngine;
use super::layout::Layout;
use super::scenario::{Fidelity, Scenario};
use super::step::StepEngine;
use super::tally::Tally;
use super::world::{JobWorld, World};

/// A scenario of one job in which every figure can be put in: rates are independent of shares unless asked for.
#[derive(Clone, Debug)]
struct Plain {
    head: &'static str,
    node: &'static str,
    job: String,
    spec: &'static str,
    simulation: String,
    generation: String,
    training: String,
    more: &'static str,
}

/// A GPU stage that does so much with any share.
fn flat(units_per_s: f64) -> String {
    format!("max_units_per_s = {units_per_s}\nknee_sms = 2\n")
}

/// 64 environments whose steps take exactly 10 ms: 100 steps a second on each core.
const STEADY: &str = "environments = 64\nchunk = 4\nstep = \"10ms\"\ndistribution = \"constant\"\n";

impl Default for Plain {
    fn default() -> Self {
        Self {
            head: "",
            node: "cores = 10\ngpus = 1\ngpu = \"h100\"",
            job: "units_per_iteration = 1280".to_owned(),
            spec: "groups = 2",
            simulation: STEADY.to_owned(),
            generation: flat(1_000.0),
            training: flat(700.0),
            more: "",
        }
    }
}

impl Plain {
    fn text(&self) -> String {
        let Self {
            head,
            node,
            job,
            spec,
            simulation,
            generation,
            training,
            more,
        } = self;
        let stage = |name: &str, keys: &str| {
            format!("[[jobs.spec.stages]]\nname = \"{name}\"\nrole = \"{name}\"\n{keys}\n")
        };
        format!(
            "name = \"plain\"\nseconds = 600\n{head}\n[node]\n{node}\n[[jobs]]\n{job}\n[jobs.spec]\nname = \"j\"\n\
             unit = \"env_step\"\n{spec}\n{}{}{}[jobs.stages.simulation]\n{simulation}\n\
             [jobs.stages.generation]\n{generation}\n[jobs.stages.training]\n{training}\n{more}\n",
            stage("simulation", "min_cores = 1\nno_gpu = true"),
            stage("generation", "cores = 1\nmin_sms = 2\nmemory = \"10GiB\""),
            stage("training", "cores = 1\nmin_sms = 2\nmemory = \"10GiB\""),
        )
    }

    fn scenario(&self) -> Scenario {
        let text = self.text();
        Scenario::parse(&text, "plain.toml", Path::new("."))
            .unwrap_or_else(|f| panic!("{f}\n{text}"))
    }
}

/// The units a second that a layout comes to, after a warm-up of as long again.
fn throughput(world: &World<'_>, layout: &Layout, fidelity: Fidelity, seconds: f64) -> f64 {
    let job = &world.jobs[0];
    let mut tally = Tally::new(2.0 * seconds, 1, job.laws.len());
    run_to(job, layout, fidelity, &[seconds, 2.0 * seconds], &mut tally)[0] / seconds
}

/// Units trained on between each two moments, from the first to the last.
fn run_to(
    job: &JobWorld<'_>,
    layout: &Layout,
    fidelity: Fidelity,
    moments: &[f64],
    tally: &mut Tally,
) -> Vec<f64> {
    let mut step = StepEngine::new(job, 0.0);
    let mut chunk = ChunkEngine::new(job, layout, 0.0).ok();
    let mut found = Vec::new();
    for &until_s in moments {
        match fidelity {
            Fidelity::Step => while step.advance(job, layout, until_s, tally).is_some() {},
            Fidelity::Chunk => {
                let chunk = chunk.as_mut().unwrap();
                while chunk
                    .advance(job, layout, until_s, tally)
                    .unwrap()
                    .is_some()
                {}
            }
        }
        found.push(tally.units[0]);
    }
    found.windows(2).map(|two| two[1] - two[0]).collect()
}

/// The layout that the waterfill allocator plans, with all the cores that are left for the simulator.
fn planned(world: &World<'_>) -> Layout {
    use evenkeel_core::allocate::{Inputs, plan};
    let job = &world.jobs[0];
    let profiles: Vec<_> = job.profiles.iter().map(Some).collect();
    let inputs = Inputs {
        profiles: &profiles,
        ..job.told(&job.job.spec)
    };
    let (plan, _) = plan(&inputs, &world.node, &world.room, None).unwrap();
    let mut layout = Layout::of_plan(&plan);
    // A plan takes no more cores than it needs; formulas are of a whole number of rounds.
    layout.holds[0].cores = world.node.cores.len() as u32 - 2;
    layout
}

#[track_caller]
fn near(what: &str, found: f64, expect: f64, within: f64) {
    let off = (found / expect - 1.0).abs();
    assert!(
        off <= within,
        "{what}: {found} instead of {expect} ({:.2} % off)",
        100.0 * off
    );
}
