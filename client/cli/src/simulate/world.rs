//! A node of a scenario as it really is: hardware, jobs, what their stages truly do on this node, and what `calibrate`
//! would have measured of them before they started. Built for one node at a time, so that a fleet needs no memory for
//! nodes that are not being simulated.

use evenkeel_core::allocate::{Inputs, Room};
use evenkeel_core::curve::{Point, Profile, ProfileKey};
use evenkeel_core::id::Name;
use evenkeel_core::job::{JobSpec, Role, StageSpec};
use evenkeel_core::node::Node;
use evenkeel_core::unit::{Bytes, Rate, Sms};

use super::drift::Drift;
use super::law::Law;
use super::layout::Hold;
use super::random::{Chance, Purpose};
use super::scenario::{Job, Scenario};
use crate::fail::Failure;
use crate::offline::Sizes;

/// SM counts of a profile: as many as a patient calibration tries.
const PROFILE_SMS: usize = 17;
/// Core counts of a profile.
const PROFILE_CORES: usize = 24;

/// One node.
#[derive(Debug)]
pub(super) struct World<'a> {
    /// Installed hardware.
    pub(super) node: Node,
    /// All of it.
    pub(super) room: Room,
    /// SMs of one GPU.
    pub(super) sms: f64,
    /// Memory of one GPU that can be leased.
    pub(super) memory: Bytes,
    /// The jobs, in the scenario's order.
    pub(super) jobs: Vec<JobWorld<'a>>,
}

/// A job on this node.
#[derive(Debug)]
pub(super) struct JobWorld<'a> {
    /// Its place in the scenario.
    pub(super) index: usize,
    /// As the scenario has it.
    pub(super) job: &'a Job,
    /// What its stages do on this node.
    pub(super) laws: Vec<Law>,
    /// How their costs change on this node.
    pub(super) drifts: Vec<Drift>,
    /// When it comes.
    pub(super) arrives_s: f64,
    /// When it goes.
    pub(super) ends_s: f64,
    /// GPUs that it runs on.
    pub(super) gpus: u16,
    /// Stages of the jobs before it: where its own begin when all are counted.
    pub(super) stages_before: usize,
    /// What was measured of its stages, alone, at the cost of the start.
    pub(super) profiles: Vec<Profile>,
    seed: u64,
    node: u32,
}

impl<'a> World<'a> {
    /// The node `index` of a scenario.
    pub(super) fn new(scenario: &'a Scenario, seed: u64, index: u32) -> Result<Self, Failure> {
        let nodes = &scenario.nodes;
        let sizes = Sizes {
            cores: nodes.cores,
            gpus: Some(nodes.gpus),
            gpu: nodes.gpu.clone(),
            sms: None,
            memory_bytes: None,
        };
        let mut hardware = None;
        for job in &scenario.jobs {
            hardware = Some(sizes.node(&job.spec)?);
        }
        let Some((node, room)) = hardware else {
            return Err(Failure::usage("the scenario has no jobs"));
        };
        let gpu = node.gpus.first();
        let (sms, memory) = gpu.map_or((0.0, Bytes(0)), |g| {
            (f64::from(g.sms.0), g.leasable_memory())
        });
        let jobs = scenario.jobs.iter().enumerate();
        let jobs = jobs.map(|(i, job)| JobWorld::new(scenario, &node, seed, index, (i, job)));
        Ok(Self {
            jobs: jobs.collect(),
            node,
            room,
            sms,
            memory,
        })
    }
}

impl<'a> JobWorld<'a> {
    fn new(
        scenario: &Scenario,
        node: &Node,
        seed: u64,
        number: u32,
        (index, job): (usize, &'a Job),
    ) -> Self {
        let mut variety = Chance::of(seed, number, index, Purpose::Variety);
        let laws = job.stages.iter().map(|truth| match scenario.nodes.variety {
            none if none <= 0.0 => truth.law.clone(),
            some => truth.law.slower(variety.factor(some)),
        });
        let laws: Vec<Law> = laws.collect();
        let mut jitter = Chance::of(seed, number, index, Purpose::Jitter);
        let later = jitter.unit() * job.jitter_s;
        let arrives_s = if job.arrives_s > 0.0 {
            job.arrives_s + later
        } else {
            0.0
        };
        let drifts = job.drifts.iter().map(|drift| Drift {
            at_s: drift.at_s + jitter.unit() * job.jitter_s,
            ..*drift
        });
        let mut world = Self {
            index,
            job,
            laws,
            drifts: drifts.collect(),
            arrives_s,
            ends_s: job.ends_s.map_or(f64::INFINITY, |ends| ends + later),
            gpus: gpus_of(&job.spec),
            stages_before: scenario.jobs[..index].iter().map(|j| j.stages.len()).sum(),
            profiles: Vec::new(),
            seed,
            node: number,
        };
        world.profiles = world.sampled(node, PROFILE_SMS, PROFILE_CORES);
        world
    }

    /// A stream of chance of this job on this node.
    pub(super) fn chance(&self, purpose: Purpose) -> Chance {
        Chance::of(self.seed, self.node, self.index, purpose)
    }

    /// By what each stage's cost is multiplied at a time of the simulation.
    pub(super) fn factors(&self, time_s: f64) -> Vec<f64> {
        let mut factors = vec![1.0; self.laws.len()];
        for drift in &self.drifts {
            factors[drift.stage] *= drift.at(time_s - self.arrives_s);
        }
        factors
    }

    /// What a stage does alone with so many SMs of what it holds, in units a second.
    pub(super) fn alone(&self, stage: usize, hold: &Hold, sms: f64, factor: f64) -> f64 {
        let rate = self.laws[stage].rate(hold.cores, sms, hold.gpus, hold.batch);
        rate * hold.speed / factor
    }

    /// Whether the stage takes part in the balance.
    pub(super) fn counts(&self, stage: usize) -> bool {
        self.job.spec.stages[stage].role != Role::Other
    }

    /// Whether it is a stage of the rollout.
    pub(super) fn is_rollout(&self, stage: usize) -> bool {
        self.job.spec.stages[stage].role.is_rollout()
    }

    /// Units that the rollout has to make for one iteration.
    pub(super) fn units_rolled(&self) -> f64 {
        self.job.units_per_iteration / (1.0 - self.job.discarded)
    }

    /// Profiles of all stages with so many different SM and core counts, as measured alone before the start.
    pub(super) fn sampled(&self, node: &Node, sms: usize, cores: usize) -> Vec<Profile> {
        let stages = self.job.spec.stages.iter().zip(&self.laws);
        let sampled = stages.map(|(spec, law)| self.profile(spec, law, node, (sms, cores)));
        sampled.collect()
    }

    fn profile(&self, spec: &StageSpec, law: &Law, node: &Node, most: (usize, usize)) -> Profile {
        let gpu = node.gpus.first();
        let counts = |g: &evenkeel_core::node::Gpu| spread(g.enforceable.to_vec(), most.0);
        let sms = match gpu.filter(|_| law.uses_gpu() && spec.sms.1 > Sms(0)) {
            Some(gpu) => counts(gpu),
            None => vec![Sms(0)],
        };
        let node_cores = node.cores.len() as u32;
        let cores = match law {
            Law::Environments { crowd, .. } => {
                spread((1..=crowd.lanes(node_cores)).collect(), most.1)
            }
            Law::Points(curve) => {
                let mut all: Vec<u32> = curve.slices().iter().map(|s| s.cores).collect();
                all.sort_unstable();
                all.dedup();
                all
            }
            Law::Family(_) => vec![spec.cores.0.max(1).min(spec.cores.1)],
        };
        let batches = match law {
            Law::Points(curve) if spec.batches.is_empty() => curve.batches().collect(),
            _ if spec.batches.is_empty() => vec![1],
            _ => spec.batches.clone(),
        };
        let mut points = Vec::with_capacity(sms.len() * cores.len() * batches.len());
        for &batch in &batches {
            for &cores in &cores {
                for &sms in &sms {
                    let rate = law.rate(cores, f64::from(sms.0), f64::from(self.gpus), batch);
                    points.push(Point {
                        cores,
                        sms,
                        batch,
                        replicas: spec.workers,
                        rate: Rate::clamped(rate),
                        memory: Bytes(0),
                        weight: 1.0,
                        ..Point::default()
                    });
                }
            }
        }
        let name = |text: &str| Name::new(text).unwrap_or_else(|_| Name::unknown());
        let key = ProfileKey {
            tenant: name("simulated"),
            stage: spec.name.clone(),
            gpu: gpu.map_or_else(|| name("none"), |g| g.model.clone()),
        };
        Profile { key, points }
    }

    /// What the planner is told beside profiles. Not what is discarded: that is measured, as in the daemon.
    pub(super) fn told<'i>(&'i self, spec: &'i JobSpec) -> Inputs<'i> {
        Inputs {
            eta: self.job.overlap_known.then_some(self.job.overlap),
            kappa: self.job.kappa_known.then_some(&self.job.kappa[..]),
            ..Inputs::declared(spec)
        }
    }
}

/// How many GPUs a job runs on.
fn gpus_of(spec: &JobSpec) -> u16 {
    let needs = spec
        .stages
        .iter()
        .any(|s| s.sms.1 > Sms(0) || s.memory > Bytes(0));
    match spec.gpus.len() {
        0 => spec.gpu_count.max(u16::from(needs)),
        named => u16::try_from(named).unwrap_or(u16::MAX),
    }
}

/// At most `most` of these, evenly spread, the first and the last among them.
fn spread<T: Copy>(all: Vec<T>, most: usize) -> Vec<T> {
    let n = all.len();
    if n <= most || most < 2 {
        return all;
    }
    (0..most).map(|i| all[i * (n - 1) / (most - 1)]).collect()
}
