//! The jobs that the demo submits: one worker for each stage, all resized live.

use std::collections::BTreeSet;

use evenkeel_client::{JobSpec, Node, Policy, RebalanceSpec, ResizeMode, Role, StageSpec};

use super::DemoPolicy;
use super::load::{GROUPS, memory};
use super::seeds::Stage;

/// Its name.
pub(crate) const JOB: &str = "reach";
/// The name of the one that comes second, where there are two.
pub(crate) const SECOND: &str = "reach-2";
/// Its work unit.
pub(crate) const UNIT: &str = "env_step";
/// The most cores that the simulator may have; a demo needs no more.
pub(crate) const SIMULATOR_CORES_MAX: usize = 2;
/// With so many cores that can be leased for each job, the hosts of generation and training get one each. With fewer
/// they run in the shared set.
const CORES_FOR_HOSTS: usize = 5;

/// Cores that can be leased on this node, lowest first.
pub(crate) fn leasable_cores(node: &Node) -> Vec<u32> {
    let reserved: BTreeSet<u32> = node.reserved_cores.iter().collect();
    node.cores
        .iter()
        .filter(|core| !reserved.contains(core))
        .collect()
}

/// The job on this node, which is one of so many there.
pub(crate) fn job(node: &Node, policy: DemoPolicy, jobs: usize) -> JobSpec {
    let hosts = u32::from(leasable_cores(node).len() >= CORES_FOR_HOSTS * jobs);
    let stage = |stage: Stage| {
        let role = match stage {
            Stage::Simulation => Role::Simulation,
            Stage::Generation => Role::Generation,
            Stage::Training => Role::Training,
        };
        let mut spec = StageSpec::new(stage.name(), role);
        spec.resize = ResizeMode::Live;
        spec.memory_bytes = memory(stage) / jobs as u64;
        if stage == Stage::Simulation {
            spec.no_gpu = true;
            spec.min_cores = 1;
            spec.max_cores = Some(SIMULATOR_CORES_MAX as u32);
        } else {
            spec.min_sms = 2;
            spec.min_cores = hosts;
            spec.max_cores = Some(hosts).filter(|n| *n > 0);
            spec.no_cores = hosts == 0;
        }
        spec
    };
    let mut job = JobSpec::new(JOB, UNIT);
    job.groups = GROUPS as u32;
    job.policy = match policy {
        DemoPolicy::Waterfill => Policy::Waterfill,
        DemoPolicy::Ebrl => Policy::Ebrl,
    };
    job.rebalance = RebalanceSpec::default();
    job.stages = Stage::ALL.map(stage).to_vec();
    job
}

/// Another job of the same kind: it goes by the first one's profiles.
pub(crate) fn another(first: &JobSpec, name: &str) -> JobSpec {
    let mut job = first.clone();
    for (stage, of_first) in job.stages.iter_mut().zip(&first.stages) {
        stage.profile = Some(first.fingerprint(of_first));
    }
    name.clone_into(&mut job.name);
    job
}
