//! The demo's load as a scenario: the same pipeline, with curves that were sampled from the emulated GPU's model in virtual
//! time, so that a simulation can be compared with a run of the demo. `config/scenarios/demo.toml` is what this writes; a
//! test holds that it still is.

use std::fmt::Write as _;

use evenkeel_gpu::GpuSpec;
use evenkeel_rollout::pipeline::{PipelineError, Split, run};

use crate::demo::load::{BATCH, CHUNK, ENVS, GROUPS, Load, STALENESS, UNITS_PER_ROLLOUT};
use crate::demo::seeds::{Script, Stage};

/// Virtual iterations before and during a sample; the model has no noise.
const VIRTUAL_STEPS: (u64, u64) = (4, 12);
/// Between two sampled shares of generation, in SMs.
const STRIDE: usize = 4;
/// An environment step on a core, in nanoseconds: short enough that the GPU binds, as in the demo.
pub(super) const STEP_NS: u64 = 100_000;

/// A scenario of the demo before and after a seed's drift, as a file.
///
/// # Errors
/// When the emulated GPU refuses the demo's load.
pub(super) fn scenario(load: Load, script: Script) -> Result<String, PipelineError> {
    let drift = script.drift;
    let mut out = format!(
        "# The demo (`evenkeel demo --seed 1`) as a scenario. Written by `simulate/demo.rs`: the points are the EMULATED\n\
         # GPU's model of an H100 in virtual time, generation and training running together at shares that add up to\n\
         # the GPU. They are no measurement of a GPU.\n\
         #\n\
         # Shows: what the demo should do, to be compared with what it does.\n\
         name = \"demo\"\n\
         about = \"The demo's load; {}'s work grows to {} times after a minute.\"\n\
         seconds = \"3m\"\n\
         fidelity = \"chunk\"\n\n\
         [node]\ncores = 2\ngpus = 1\ngpu = \"h100\"\n\n\
         [[jobs]]\nunits_per_iteration = {UNITS_PER_ROLLOUT}\nstaleness = {STALENESS}\n\n\
         [jobs.spec]\nname = \"reach\"\nunit = \"env_step\"\ngroups = {GROUPS}\n",
        drift.stage.name(),
        drift.factor
    );
    for stage in Stage::ALL {
        let name = stage.name();
        let _ = write!(
            out,
            "\n[[jobs.spec.stages]]\nname = \"{name}\"\nrole = \"{name}\"\n"
        );
        out += match stage {
            Stage::Simulation => "min_cores = 1\nmax_cores = 2\nno_gpu = true\nresize = \"live\"\n",
            Stage::Generation => {
                "no_cores = true\nmin_sms = 2\nmemory = \"14GiB\"\nbatches = [8]\nresize = \"live\"\n"
            }
            Stage::Training => {
                "no_cores = true\nmin_sms = 2\nmemory = \"40GiB\"\nresize = \"live\"\n"
            }
        };
    }
    let _ = write!(
        out,
        "\n[jobs.stages.simulation]\nenvironments = {ENVS}\nchunk = {CHUNK}\nstep = {}\n",
        STEP_NS as f64 * 1e-9
    );
    let (generation, training) = samples(load)?;
    for (stage, batch, points) in [
        (Stage::Generation, BATCH, generation),
        (Stage::Training, 1, training),
    ] {
        let _ = write!(out, "\n[jobs.stages.{}]\npoints = [\n", stage.name());
        for (sms, units_per_s) in points {
            let _ = writeln!(
                out,
                "    {{ sms = {sms}, batch = {batch}, units_per_s = {units_per_s:.1} }},"
            );
        }
        out += "]\n";
    }
    let _ = write!(
        out,
        "\n[[jobs.drifts]]\nstage = \"{}\"\nat = \"1m\"\nfactor = {}\n",
        drift.stage.name(),
        drift.factor
    );
    Ok(out)
}

/// A share of a stage, and what it does with it.
type Samples = Vec<(u32, f64)>;

/// Generation and training beside each other, at shares that add up to the GPU.
fn samples(load: Load) -> Result<(Samples, Samples), PipelineError> {
    let gpu = GpuSpec::h100();
    let spec = load.pipeline(gpu.clone(), STEP_NS);
    let counts = gpu.enforceable_sms();
    let (mut generation, mut training) = (Vec::new(), Vec::new());
    for &generate_sms in counts.iter().step_by(STRIDE) {
        let rest = gpu.sms.saturating_sub(generate_sms);
        let Some(&train_sms) = counts.iter().rev().find(|sms| **sms <= rest) else {
            continue;
        };
        let split = Split {
            generate_sms,
            train_sms,
            cores: 1,
        };
        let outcome = run(&spec, split, VIRTUAL_STEPS.0, VIRTUAL_STEPS.1)?;
        generation.push((generate_sms, outcome.generate_units_per_s));
        training.push((train_sms, outcome.train_units_per_s));
    }
    training.reverse();
    Ok((generation, training))
}
