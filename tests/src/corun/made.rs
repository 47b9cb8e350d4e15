//! Random pipelines of three stages whose kernels draw on the same memory bandwidth, and the job that declares them.
#![allow(clippy::expect_used, reason = "constants of this file")]
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{JobSpec, Policy, RebalanceSpec, Role, SmMode, StageSpec};
use evenkeel_core::node::{Core, Gpu, GpuBackend, GpuMode, Node, PoolKind};
use evenkeel_core::unit::{Bytes, Sms};
use evenkeel_gpu::{GpuSpec, KernelGroup, solo_time_ns};
use evenkeel_rollout::pipeline::PipelineSpec;

use crate::world::Rng;

/// Cores that the simulator may have.
pub(super) const CORES: u32 = 4;
/// The stages, in the job's order.
pub(super) const STAGES: [(&str, Role); 3] = [
    ("simulation", Role::Simulation),
    ("generation", Role::Generation),
    ("training", Role::Training),
];

/// A pipeline of three stages.
#[derive(Clone, Debug)]
pub struct Triple {
    /// What it runs, and on which GPU.
    pub spec: PipelineSpec,
}

/// From 0 to 1.
fn unit(rng: &mut Rng) -> f64 {
    rng.below(1 << 32) as f64 / (1_u64 << 32) as f64
}

fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * unit(rng)
}

/// A kernel whose blocks take `us` on an SM, and that would draw this part of the memory's bandwidth on all of the GPU.
fn kernel(gpu: &GpuSpec, width_blocks: u32, us: f64, drawn: f64, repeat: u32) -> KernelGroup {
    let block_flops = gpu.flops_per_s as f64 / f64::from(gpu.sms) * us * 1e-6;
    let waves = f64::from(width_blocks.div_ceil(gpu.sms));
    let took_s = waves * us * 1e-6;
    KernelGroup {
        flops: (block_flops * f64::from(width_blocks)) as u64,
        bytes: (drawn * gpu.memory_bandwidth_bytes_per_s as f64 * took_s) as u64,
        width_blocks,
        repeat,
    }
}

/// The triple of a seed: narrow kernels in great number for generation, micro-batches of wide ones and an optimizer for
/// training, a
/// simulator that is up to a half faster or a tenth slower than both together.
pub fn triple(seed: u64) -> Triple {
    let mut rng = Rng::new(seed).branch("triple", 0);
    let rng = &mut rng;
    let gpu = match rng.below(3) {
        0 => GpuSpec::a100_80gb(),
        1 => GpuSpec::h100(),
        _ => GpuSpec::h200(),
    };
    let hunger = between(rng, 0.8, 2.2);
    let generate = (0..10)
        .map(|_| {
            let (width, us) = (rng.range(14, 420) as u32, between(rng, 4.0, 12.0));
            kernel(&gpu, width, us, hunger * between(rng, 0.3, 1.5), 40)
        })
        .collect();
    let hunger = between(rng, 0.8, 2.2);
    let micro = rng.range(4, 8);
    let product = |_| {
        let (width, us) = (rng.range(300, 2_200) as u32, between(rng, 8.0, 20.0));
        kernel(&gpu, width, us, hunger * between(rng, 0.3, 1.5), 16)
    };
    let batch: Vec<KernelGroup> = (0..8).map(product).collect();
    let mut train = vec![batch; micro as usize];
    if let Some(last) = train.last_mut() {
        last.push(KernelGroup {
            flops: 0,
            bytes: (between(rng, 0.2, 1.0) * 1e9) as u64,
            width_blocks: 264,
            repeat: 8,
        });
    }
    let mut spec = PipelineSpec {
        train,
        generate,
        gpu,
        envs: 32,
        groups: 2,
        batch: 8,
        chunk_steps: 8,
        batches_per_rollout: rng.range(10, 30),
        staleness: 1,
        depth: 2,
        step_ns: 1,
        step_spread_permille: 200,
        hop_ns: 200_000,
    };
    // As fast on its cores as half of the GPU would make generation and training.
    let half = spec.gpu.sms / 2;
    let generation = spec.units_per_batch() / seconds(&spec, half, &spec.generate);
    let training: f64 = spec.train.iter().map(|l| seconds(&spec, half, l)).sum();
    let balanced = generation.min(spec.units_per_rollout() / training);
    let cores = rng.range(1, CORES.into()) as f64;
    spec.step_ns = (1e9 * cores / (balanced * between(rng, 0.9, 1.5))) as u64;
    Triple { spec }
}

/// Seconds of a list alone on so many SMs.
pub(super) fn seconds(spec: &PipelineSpec, sms: u32, list: &[KernelGroup]) -> f64 {
    solo_time_ns(&spec.gpu, sms, list) as f64 * 1e-9
}

pub(super) fn name(s: &str) -> Name {
    Name::new(s).expect("a constant is a name")
}

impl Triple {
    /// A node with the triple's GPU and the simulator's cores.
    pub fn node(&self) -> Node {
        let core = |id| Core {
            id,
            cpus: CpuSet::range(id, id),
            numa: 0,
            package: 0,
        };
        let spec = &self.spec.gpu;
        let gpu = Gpu {
            id: GpuId(0),
            uuid: name("GPU-0"),
            model: name(&spec.name),
            sms: Sms(spec.sms),
            memory: Bytes::gib(40),
            reserved_memory: Bytes(0),
            enforceable: spec.enforceable_sms().into_iter().map(Sms).collect(),
            numa: 0,
            backend: GpuBackend::Emulated,
            mode: GpuMode::Enforce,
        };
        Node {
            kind: PoolKind::Local,
            cores: (0..CORES).map(core).collect(),
            reserved_cores: CpuSet::new(),
            gpus: vec![gpu],
        }
    }

    /// The job that runs it.
    pub fn job(&self, sm_mode: SmMode) -> JobSpec {
        let stage = |(n, role): (&str, Role)| {
            let simulates = role == Role::Simulation;
            StageSpec {
                name: name(n),
                role,
                workers: 1,
                processes: 1,
                cores: if simulates { (1, CORES) } else { (0, 0) },
                sms: match simulates {
                    true => (Sms(0), Sms(0)),
                    false => (Sms(2), Sms(self.spec.gpu.sms)),
                },
                memory: Bytes(0),
                batches: Vec::new(),
                synchronous: false,
                resize: Resize::Live,
                profile: None,
            }
        };
        JobSpec {
            name: name("corun"),
            unit: name("env_step"),
            priority: 0,
            weight: 1.0,
            gpus: vec![GpuId(0)],
            gpu_count: 1,
            groups: 2,
            policy: Policy::Waterfill,
            sm_mode,
            rebalance: RebalanceSpec::default(),
            stages: STAGES.map(stage).to_vec(),
        }
    }
}
