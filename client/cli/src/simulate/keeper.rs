//! A job under the production rebalancer: its [`Watch`] is fed what meters would show, and [`judge`] decides, as in the
//! daemon; here is only what the daemon's commands do around them. Called by `run` after each window.

use evenkeel_core::allocate::{Inputs, Room};
use evenkeel_core::balance::{Free, JobContext, Verdict, Watch};
use evenkeel_core::curve::{Point, Profile};
use evenkeel_core::decide::rebalance::{Case, Costs, Decision, judge};
use evenkeel_core::grant::Resize;
use evenkeel_core::id::StageId;
use evenkeel_core::job::{JobSpec, Plan};
use evenkeel_core::unit::{Bytes, Millis, Sms};

use super::meter::{Meter, Seen, time};
use super::policy::{Policy, Watcher};
use super::random::{Chance, Purpose};
use super::world::{JobWorld, World};

/// How much restarts of the same stage differ.
const RESTART_SPREAD: f64 = 0.1;
/// A job that an allocator planned, and that a rebalancer may move.
pub(super) struct Keeper<'a> {
    world: &'a World<'a>,
    job: &'a JobWorld<'a>,
    spec: JobSpec,
    room: Room,
    plan: Plan,
    watch: Option<Watch>,
    scale: Vec<f64>,
    learned: Vec<Vec<Point>>,
    kappa: Vec<Vec<f64>>,
    pinned: Vec<bool>,
    meter: Meter,
    restarts: Chance,
}

/// A change of shares.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// How long the pipeline stands still for it.
    pub(super) pause_s: f64,
    /// Why, in words.
    pub(super) why: String,
}

impl<'a> Keeper<'a> {
    pub(super) fn new(
        world: &'a World<'a>,
        job: &'a JobWorld<'a>,
        policy: Policy,
        (room, plan): (Room, Plan),
    ) -> Self {
        let spec = spec_under(job, policy);
        let n = spec.stages.len();
        let watched = policy.watcher().is_some();
        let watch = watched.then(|| Watch::new(&spec, time(job.arrives_s)));
        Self {
            world,
            job,
            room,
            plan,
            watch,
            scale: vec![1.0; n],
            learned: vec![Vec::new(); n],
            kappa: Vec::new(),
            pinned: spec
                .stages
                .iter()
                .map(|s| s.resize == Resize::Fixed)
                .collect(),
            meter: Meter::new(job),
            restarts: job.chance(Purpose::Restarts),
            spec,
        }
    }

    /// The split in force.
    pub(super) const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the watch makes of interference.
    #[cfg(test)]
    pub(super) fn kappa(&self) -> Vec<Vec<Option<f64>>> {
        self.watch.as_ref().map_or_else(Vec::new, Watch::kappa)
    }

    /// What is known about the job for a plan of the whole node. `profiles` are its own.
    pub(super) fn known<'k>(&'k self, profiles: &'k [Option<&'k Profile>]) -> Inputs<'k> {
        let told = self.job.told(&self.spec);
        Inputs {
            profiles,
            scale: &self.scale,
            learned: &self.learned,
            kappa: match self.kappa.is_empty() {
                true => told.kappa,
                false => Some(&self.kappa),
            },
            caps: self.plan.caps,
            pinned: &self.pinned,
            ..told
        }
    }

    /// Another room and plan, because other jobs came or went.
    pub(super) fn replanned(&mut self, room: Room, plan: Plan) -> Option<Change> {
        self.room = room;
        let cooldown = self.spec.rebalance.cooldown_windows;
        let why = "Other jobs came or went.";
        let change = self.adopt(plan, why.to_owned());
        if let (Some(watch), Some(_)) = (&mut self.watch, &change) {
            watch.moved(cooldown, why.to_owned());
        }
        change
    }

    /// Takes a window in; says whether and how the shares move.
    pub(super) fn window(&mut self, seen: &Seen) -> Option<Change> {
        let watch = self.watch.as_mut()?;
        let spec = (&self.spec, &self.plan);
        for report in self.meter.reports(self.job, spec, seen) {
            // A report that is refused changes nothing: the window stays open, as with a worker that errs.
            watch.ingest(&report).ok();
        }
        let free = self.free();
        let context = JobContext {
            spec: &self.spec,
            plan: &self.plan,
            settled: true,
            free,
        };
        let verdict = self.watch.as_mut()?.poll(&context)?;
        self.judged(&verdict, free)
    }

    fn judged(&mut self, verdict: &Verdict, free: Free) -> Option<Change> {
        let profiles: Vec<Option<&Profile>> = self.job.profiles.iter().map(Some).collect();
        let watch = self.watch.as_ref()?;
        let (restarts, live) = (watch.restart_costs(), watch.kappa());
        let costs = Costs {
            restarts: &restarts,
            ..Costs::default()
        };
        let judgement = judge(&Case {
            inputs: self.known(&profiles),
            plan: &self.plan,
            node: &self.world.node,
            room: &self.room,
            verdict,
            costs,
            live: &live,
        });
        let sentence = judgement.sentence();
        let watch = self.watch.as_mut()?;
        match &judgement.decision {
            Decision::Move(_) => {
                watch.moved(self.spec.rebalance.cooldown_windows, sentence.clone());
            }
            Decision::Stay { reason, detail } => watch.stayed(free, *reason, detail.clone()),
        }
        if let Some(refit) = judgement.refit {
            (self.scale, self.learned) = (refit.scale, refit.learned);
            self.kappa = refit.kappa;
        }
        match judgement.decision {
            Decision::Move(moved) => self.adopt(moved.plan, sentence),
            Decision::Stay { .. } => None,
        }
    }

    /// Puts a plan in force: stages whose GPU share changes restart, those that shrink before those that grow.
    fn adopt(&mut self, plan: Plan, why: String) -> Option<Change> {
        let before = std::mem::replace(&mut self.plan, plan);
        let same_place = before.gpus == self.plan.gpus;
        let (mut shrinks_s, mut grows_s, mut changed) = (0.0_f64, 0.0_f64, false);
        let shares = before.stages.iter().zip(&self.plan.stages).enumerate();
        for (i, (a, b)) in shares {
            let gpu = |s: &evenkeel_core::job::StagePlan| (s.sms, s.cap, s.memory);
            changed |= gpu(a) != gpu(b) || a.cores != b.cores || a.batch != b.batch;
            let uses_gpu = b.sms > Sms(0) || a.sms > Sms(0);
            let moves = gpu(a) != gpu(b) || (uses_gpu && !same_place);
            if !moves || self.spec.stages[i].resize != Resize::Restart {
                continue;
            }
            let took_s = self.job.job.stages[i].restart_s * self.restarts.factor(RESTART_SPREAD);
            if let Some(watch) = &mut self.watch {
                watch.restarted(StageId(i as u8), Millis((took_s * 1_000.0) as u64));
            }
            let round = if b.sms > a.sms || b.memory > a.memory {
                &mut grows_s
            } else {
                &mut shrinks_s
            };
            *round = round.max(took_s);
        }
        changed.then_some(Change {
            pause_s: shrinks_s + grows_s,
            why,
        })
    }

    /// What is free in its room beside its plan.
    fn free(&self) -> Free {
        let used = |f: fn(&evenkeel_core::job::StagePlan) -> u64| -> u64 {
            self.plan.stages.iter().map(f).sum()
        };
        let rooms = || self.room.gpus.values();
        let sms = rooms().map(|g| g.0).min().unwrap_or_default();
        let memory = rooms().map(|g| g.1).min().unwrap_or_default();
        Free {
            cores: self
                .room
                .cores
                .len()
                .saturating_sub(used(|s| s.cores.into()) as u32),
            sms: Sms(sms.0.saturating_sub(used(|s| s.sms.0.into()) as u32)),
            memory: Bytes(memory.0.saturating_sub(used(|s| s.memory.0))),
        }
    }
}

/// The job with the allocator and the detector of a policy.
pub(super) fn spec_under(job: &JobWorld<'_>, policy: Policy) -> JobSpec {
    let mut spec = job.job.spec.clone();
    spec.policy = policy.allocator();
    let detectors = &job.job.detectors;
    match policy.watcher() {
        Some(Watcher::Streak) => spec.rebalance.detector = detectors.streak,
        Some(Watcher::Cusum) => spec.rebalance.detector = detectors.cusum,
        None => {}
    }
    spec
}
