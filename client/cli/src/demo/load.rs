//! The demo's work, as figures: the pipeline's sizes, and the kernels that generation and training declare to the
//! emulated GPU. The kernels stand for a vision-language-action policy of a size that a GPU is needed for; the policy
//! whose values are really computed is a small one (`policy`).

use evenkeel_gpu::{GpuSpec, KernelGroup};
use evenkeel_rollout::pipeline::PipelineSpec;

use super::seeds::{Drift, Stage};

/// Environments, in two groups.
pub(crate) const ENVS: usize = 32;
/// Groups that overlap simulation with generation.
pub(crate) const GROUPS: usize = 2;
/// Environments of one batch of generation: two batches of each group are under way, so that lists queue two deep.
pub(crate) const BATCH: usize = 8;
/// Environment steps of one chunk of actions.
pub(crate) const CHUNK: usize = 8;
/// Batches of one rollout, which is one training iteration: windows of 0.3 to 0.5 s.
pub(crate) const BATCHES_PER_ROLLOUT: u64 = 20;
/// Training may use data that are one version of the weights old.
pub(crate) const STALENESS: u64 = 1;
/// Lists of generation in the GPU's stream.
pub(crate) const DEPTH: usize = 2;
/// Work units (environment steps) of a batch.
pub(crate) const UNITS_PER_BATCH: f64 = (BATCH * CHUNK) as f64;
/// Work units of a rollout.
pub(crate) const UNITS_PER_ROLLOUT: f64 = UNITS_PER_BATCH * BATCHES_PER_ROLLOUT as f64;
/// From one stage to another, in the virtual pipeline: a socket and the host's work.
const HOP_NS: u64 = 1_000_000;

/// GPU memory of each stage, in bytes: weights, activations, optimizer states of the policy that is stood for. Where
/// several jobs are to fit one GPU, each stands for a policy of that fraction.
pub(crate) const fn memory(stage: Stage) -> u64 {
    match stage {
        Stage::Simulation => 0,
        Stage::Generation => 14 << 30,
        Stage::Training => 40 << 30,
    }
}

/// How heavy each stage is. The GPU's work is scaled by real parameters of the policy; the simulator's by substeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Load {
    /// Physics substeps of one environment step.
    pub(crate) substeps: u32,
    /// Denoising steps of one chunk.
    pub(crate) denoising_steps: u32,
    /// Epochs over one rollout.
    pub(crate) epochs: u32,
}

impl Load {
    /// Before any drift, with this resolution of the physics.
    pub(crate) const fn base(substeps: u32) -> Self {
        Self {
            substeps,
            denoising_steps: 8,
            epochs: 2,
        }
    }

    /// After a drift.
    pub(crate) fn drifted(self, drift: Drift) -> Self {
        let scale = |n: u32| (f64::from(n) * drift.factor).round().max(1.0) as u32;
        match drift.stage {
            Stage::Simulation => Self {
                substeps: scale(self.substeps),
                ..self
            },
            Stage::Generation => Self {
                denoising_steps: scale(self.denoising_steps),
                ..self
            },
            Stage::Training => Self {
                epochs: scale(self.epochs),
                ..self
            },
        }
    }

    /// The kernels of generation for one batch.
    ///
    /// Nobody's measurement: widths and times are chosen so that a list takes 10 to 20 ms (what a wall clock resolves
    /// well), and so that before a drift there is a balanced split with room on either side. The tests hold that.
    pub(crate) fn generation(self) -> Vec<KernelGroup> {
        // Narrow kernels in great number, as action heads launch them: beyond some 70 SMs more bring little.
        const WIDTHS: [u32; 14] = [
            14, 26, 34, 58, 74, 92, 116, 142, 170, 206, 244, 290, 346, 420,
        ];
        const LAUNCHES_PER_STEP: u32 = 6;
        let kernel = |width: u32| KernelGroup {
            flops: block_flops(7.2) * u64::from(width),
            // The wider ones read weights and caches: up to 1.8 TB/s.
            bytes: if width > 100 {
                u64::from(width) * 90_000
            } else {
                0
            },
            width_blocks: width,
            repeat: LAUNCHES_PER_STEP * self.denoising_steps,
        };
        WIDTHS.map(kernel).to_vec()
    }

    /// The kernels of one training iteration: a list for each epoch. Chosen likewise, for lists of 100 to 300 ms.
    pub(crate) fn training(self) -> Vec<Vec<KernelGroup>> {
        // Wide matrix products, whose time falls with every SM, and the optimizer, which is bound by the memory.
        const WIDTHS: [u32; 9] = [380, 530, 700, 860, 1_020, 1_240, 1_500, 1_810, 2_150];
        let product = |width: u32| KernelGroup {
            flops: block_flops(16.0) * u64::from(width),
            bytes: u64::from(width) * 60_000,
            width_blocks: width,
            repeat: 63,
        };
        let optimizer = KernelGroup {
            flops: 0,
            bytes: 2_200_000_000,
            width_blocks: 264,
            repeat: 8,
        };
        let epoch: Vec<KernelGroup> = WIDTHS.map(product).into_iter().chain([optimizer]).collect();
        vec![epoch; self.epochs as usize]
    }

    /// The same pipeline for virtual time; `step_ns` is what an environment step takes on a core.
    pub(crate) fn pipeline(self, gpu: GpuSpec, step_ns: u64) -> PipelineSpec {
        PipelineSpec {
            gpu,
            generate: self.generation(),
            train: self.training(),
            envs: ENVS,
            groups: GROUPS,
            batch: BATCH,
            chunk_steps: CHUNK as u32,
            batches_per_rollout: BATCHES_PER_ROLLOUT,
            staleness: STALENESS,
            depth: DEPTH,
            step_ns,
            step_spread_permille: 0,
            hop_ns: HOP_NS,
        }
    }
}

/// FLOPs of a block that takes so many microseconds on one SM of an H100 (989.4 TFLOP/s over 132 SMs).
const fn block_flops(us: f64) -> u64 {
    (us * 1e-6 * 989.4e12 / 132.0) as u64
}

#[cfg(test)]
mod tests {
    use evenkeel_gpu::solo_time_ns;
    use evenkeel_rollout::pipeline::sweep;

    use super::super::seeds::script;
    use super::*;

    fn best(
        load: Load,
    ) -> (
        evenkeel_rollout::pipeline::Split,
        evenkeel_rollout::pipeline::Outcome,
    ) {
        let spec = load.pipeline(GpuSpec::h100(), 100_000);
        sweep(&spec, &[1], 4, 12).unwrap()[0]
    }

    #[test]
    fn lists_are_as_long_as_a_wall_clock_can_tell() {
        let load = Load::base(8);
        let (split, outcome) = best(load);
        let gpu = GpuSpec::h100();
        let ms = |sms, list: &[KernelGroup]| solo_time_ns(&gpu, sms, list) as f64 * 1e-6;
        let generation = ms(split.generate_sms, &load.generation());
        assert!(
            (10.0..20.0).contains(&generation),
            "{generation} ms on {split:?}"
        );
        for list in load.training() {
            let training = ms(split.train_sms, &list);
            assert!(
                (100.0..300.0).contains(&training),
                "{training} ms on {split:?}"
            );
        }
        let window = UNITS_PER_ROLLOUT / outcome.units_per_s;
        assert!((0.3..0.5).contains(&window), "windows of {window} s");
    }

    #[test]
    fn before_a_drift_the_best_split_is_balanced() {
        let (split, outcome) = best(Load::base(8));
        assert!(outcome.gap() < 0.04, "{:.3} on {split:?}", outcome.gap());
    }

    #[test]
    fn a_drift_leaves_a_gap_and_a_better_split() {
        for seed in 1..=4 {
            let drift = script(seed).drift;
            let (before, _) = best(Load::base(8));
            let load = Load::base(8).drifted(drift);
            let spec = load.pipeline(GpuSpec::h100(), 100_000);
            let old = evenkeel_rollout::pipeline::run(&spec, before, 4, 12).unwrap();
            let (split, new) = best(load);
            let gain = new.units_per_s / old.units_per_s;
            assert!(old.gap() > 0.25, "seed {seed}: a gap of {:.3}", old.gap());
            assert!(
                gain > 1.05,
                "seed {seed}: {gain:.3} times on {split:?} instead of {before:?}"
            );
        }
    }
}
