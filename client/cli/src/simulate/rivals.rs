//! The ways to share a node that nobody plans: whole GPUs, turns, phases, no management. Each is given its best static
//! form for the costs of the start; how it does later is up to the load. Called by `run`.

use evenkeel_core::allocate::Room;
use evenkeel_core::unit::{Bytes, Sms};

use super::layout::{Hold, Layout, Sharing};
use super::policy::Policy;
use super::world::{JobWorld, World};

/// What is left of a simulator's speed when its threads are not bound to cores of its own. Measured by others: 64 unbound
/// threads did 0.90 of 32 bound ones on 32 cores (Motphys/UniLab#1328), and keeping the learner's threads away brought
/// 10 % (Motphys/MotrixLab#62).
const UNBOUND: f64 = 0.9;
/// What a busy neighbour on the GPU costs a stage that nobody caps, on top of κ. Measured by others: two models on one
/// H20 did 100.6 items/s under managed MPS and 84.3 without (Tencent-Hunyuan/UniRL#492).
const UNCAPPED: f64 = 100.6 / 84.3 - 1.0;
/// Passing the turn while the weights stay (RLinf: under 50 ms).
const LIGHT_SWITCH_S: f64 = 0.05;
/// Passing the turn where one has to leave the memory for the other to fit (RLinf: 200 to 500 ms).
const FULL_SWITCH_S: f64 = 0.5;

/// The layout of a policy without an allocator; a reason where it is not possible.
pub(super) fn layout(
    policy: Policy,
    world: &World<'_>,
    job: &JobWorld<'_>,
    room: &Room,
) -> Result<Layout, String> {
    let part = Part::of(world, job, room);
    match policy {
        Policy::WholeGpu => part.whole(),
        Policy::Collocated => Ok(part.turns(true, None)),
        Policy::Hybrid => part.hybrid(),
        _ => Ok(part.unmanaged()),
    }
}

/// What a job has to share among its stages.
struct Part<'a> {
    job: &'a JobWorld<'a>,
    cores: u32,
    gpus: u32,
    sms: f64,
    /// All of the GPUs are the job's.
    is_whole: bool,
    /// All stages fit into the memory at the same time.
    fits: bool,
}

impl<'a> Part<'a> {
    fn of(world: &World<'_>, job: &'a JobWorld<'a>, room: &Room) -> Self {
        let sms = room
            .gpus
            .values()
            .map(|g| f64::from(g.0.0))
            .fold(f64::INFINITY, f64::min);
        let sms = if sms.is_finite() { sms } else { 0.0 };
        let needed: Bytes = job.job.spec.stages.iter().map(|s| s.memory).sum();
        Self {
            job,
            cores: room.cores.len(),
            gpus: room.gpus.len() as u32,
            sms,
            is_whole: sms >= world.sms,
            fits: needed <= world.memory,
        }
    }

    fn uses_gpu(&self, stage: usize) -> bool {
        self.job.laws[stage].uses_gpu() && self.job.job.spec.stages[stage].sms.1 > Sms(0)
    }

    /// What a stage holds: its least cores, the simulator all that is left of them.
    fn hold(&self, stage: usize, gpus: f64) -> Hold {
        let specs = &self.job.job.spec.stages;
        let least = |i: usize| match self.job.laws[i].crowd() {
            Some(_) => specs[i].cores.0,
            None => specs[i].cores.0.max(1).min(specs[i].cores.1),
        };
        let others: u32 = (0..specs.len()).filter(|i| *i != stage).map(least).sum();
        let cores = if self.uses_gpu(stage) && self.job.laws[stage].crowd().is_none() {
            least(stage)
        } else {
            self.cores
                .saturating_sub(others)
                .max(least(stage))
                .min(specs[stage].cores.1)
        };
        let mut hold = Hold {
            cores,
            sms: self.sms,
            cap: self.sms,
            gpus: if self.uses_gpu(stage) { gpus } else { 0.0 },
            batch: 1,
            speed: 1.0,
        };
        let rate = |batch: u32| {
            let tried = Hold { batch, ..hold };
            self.job.alone(stage, &tried, self.sms, 1.0)
        };
        let batches = specs[stage].batches.iter().copied();
        let best = batches.max_by(|a, b| rate(*a).total_cmp(&rate(*b)));
        hold.batch = best.unwrap_or(1);
        hold
    }

    fn holds(&self, gpus: impl Fn(usize) -> f64) -> Vec<Hold> {
        let stages = 0..self.job.laws.len();
        stages.map(|stage| self.hold(stage, gpus(stage))).collect()
    }

    /// Whole GPUs to each stage that needs any: of all ways to deal them out, the fastest.
    fn whole(&self) -> Result<Layout, String> {
        let users: Vec<usize> = (0..self.job.laws.len())
            .filter(|i| self.uses_gpu(*i))
            .collect();
        if users.len() > 1 && (self.gpus as usize) < users.len() {
            return Err(format!(
                "not possible: {} stages need a GPU each, the job has {}",
                users.len(),
                self.gpus
            ));
        }
        if !self.is_whole {
            return Err("not possible: the job has a part of its GPUs, no whole one".to_owned());
        }
        let layout = |dealt: &[u32]| {
            let gpus = |stage| {
                let at = users.iter().position(|i| *i == stage);
                at.map_or(0.0, |at| f64::from(dealt[at]))
            };
            Layout {
                sharing: Sharing::Together,
                is_apart: true,
                mixing: 0.0,
                holds: self.holds(gpus),
            }
        };
        let dealt = deals(self.gpus, users.len());
        self.fastest(dealt.iter().map(|d| layout(d)))
            .ok_or_else(|| "not possible".to_owned())
    }

    fn fastest(&self, layouts: impl Iterator<Item = Layout>) -> Option<Layout> {
        let factors = self.job.factors(self.job.arrives_s);
        let paced = layouts.map(|l| (l.pace(self.job, &factors).period_s, l));
        paced.min_by(|a, b| a.0.total_cmp(&b.0)).map(|p| p.1)
    }

    fn switch_s(&self) -> f64 {
        let by_memory = if self.fits {
            LIGHT_SWITCH_S
        } else {
            FULL_SWITCH_S
        };
        self.job.job.switch_s.unwrap_or(by_memory)
    }

    /// Turns on all GPUs; `gpus` of the stages of a rollout that does not take turns itself.
    fn turns(&self, alone: bool, gpus: Option<&dyn Fn(usize) -> f64>) -> Layout {
        let all = f64::from(self.gpus);
        Layout {
            sharing: Sharing::Phases {
                switch_s: self.switch_s(),
                alone,
            },
            is_apart: true,
            mixing: 0.0,
            holds: self.holds(|stage| gpus.map_or(all, |gpus| gpus(stage))),
        }
    }

    /// Simulation and generation on GPUs of their own (where simulation needs any), then training on all of them.
    fn hybrid(&self) -> Result<Layout, String> {
        let rollout: Vec<usize> = (0..self.job.laws.len())
            .filter(|i| self.job.is_rollout(*i) && self.uses_gpu(*i))
            .collect();
        if rollout.len() > 1 && (self.gpus as usize) < rollout.len() {
            return Err(format!(
                "not possible: {} stages of the rollout need a GPU each, the job has {}",
                rollout.len(),
                self.gpus
            ));
        }
        let layouts = deals(self.gpus, rollout.len()).into_iter().map(|dealt| {
            let gpus = |stage| match rollout.iter().position(|i| *i == stage) {
                Some(at) => f64::from(dealt[at]),
                None => f64::from(self.gpus),
            };
            self.turns(false, Some(&gpus))
        });
        self.fastest(layouts)
            .ok_or_else(|| "not possible".to_owned())
    }

    /// No caps, no binding.
    fn unmanaged(&self) -> Layout {
        let mut holds = self.holds(|_| f64::from(self.gpus));
        for (stage, hold) in holds.iter_mut().enumerate() {
            hold.sms = 0.0;
            hold.cap = if self.uses_gpu(stage) { self.sms } else { 0.0 };
            if !self.uses_gpu(stage) {
                hold.speed = UNBOUND;
            }
        }
        Layout {
            sharing: Sharing::Together,
            is_apart: false,
            mixing: UNCAPPED,
            holds,
        }
    }
}

/// All ways to deal `gpus` out to so many stages, each at least one; one empty way where there are none.
fn deals(gpus: u32, stages: usize) -> Vec<Vec<u32>> {
    match stages {
        0 => vec![Vec::new()],
        1 => vec![vec![gpus]],
        _ => {
            let rest = stages as u32 - 1;
            let firsts = 1..=gpus.saturating_sub(rest);
            let with = |first: u32| {
                let others = deals(gpus - first, stages - 1).into_iter();
                others.map(move |mut dealt| {
                    dealt.insert(0, first);
                    dealt
                })
            };
            firsts.flat_map(with).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_dealt_out_in_every_way() {
        assert_eq!(deals(3, 2), [[1, 2], [2, 1]]);
        assert_eq!(deals(4, 3), [[1, 1, 2], [1, 2, 1], [2, 1, 1]]);
        assert_eq!(deals(5, 1), [[5]]);
        assert_eq!(deals(1, 2), Vec::<Vec<u32>>::new());
        assert_eq!(deals(8, 0), [Vec::<u32>::new()]);
    }
}
