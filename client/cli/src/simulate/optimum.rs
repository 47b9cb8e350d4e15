//! The clairvoyant optimum: the best split of a job's part of a node for what is true at a moment, at no cost. Found by
//! the production solver on the true curves, with the true interference, then improved step by step under the simulation's
//! own formulas (the solver takes all stages as busy all the time). The measure of all policies, and nobody's prediction.

use std::collections::BTreeMap;

use evenkeel_core::allocate::{self, Inputs, Room};
use evenkeel_core::curve::Profile;
use evenkeel_core::job::{JobSpec, Policy};

use super::layout::Layout;
use super::world::{JobWorld, World};

/// Costs are told apart in steps of half a percent: a finer split is worth less than that.
const RESOLUTION: f64 = 0.005;
/// All SM counts that a GPU can enforce, and all cores of a server: the clairvoyant knows the whole curve.
const ALL: usize = 1 << 12;
/// Most steps of the improvement: more than a GPU has enforceable counts.
const STEPS_MAX: usize = 256;
/// Optima that are remembered; beyond it they are found again.
const KNOWN_MAX: usize = 4_096;

/// Finds optima for one job in its room.
pub(super) struct Optimum<'a> {
    world: &'a World<'a>,
    job: &'a JobWorld<'a>,
    spec: JobSpec,
    room: Room,
    profiles: Vec<Profile>,
    known: BTreeMap<Vec<i64>, Option<Layout>>,
}

impl<'a> Optimum<'a> {
    pub(super) fn new(world: &'a World<'a>, job: &'a JobWorld<'a>, room: Room) -> Self {
        let mut spec = job.job.spec.clone();
        spec.policy = Policy::Waterfill;
        Self {
            world,
            job,
            spec,
            room,
            profiles: job.sampled(&world.node, ALL, ALL),
            known: BTreeMap::new(),
        }
    }

    /// The best layout at these factors of cost; none where nothing fits.
    pub(super) fn at(&mut self, factors: &[f64]) -> Option<Layout> {
        let step = |factor: &f64| (factor.ln() / RESOLUTION).round() as i64;
        let key: Vec<i64> = factors.iter().map(step).collect();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let found = self
            .solved(factors)
            .map(|layout| self.improved(layout, factors));
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, found.clone());
        found
    }

    fn solved(&self, factors: &[f64]) -> Option<Layout> {
        let profiles: Vec<Option<&Profile>> = self.profiles.iter().map(Some).collect();
        let scale: Vec<f64> = factors.iter().map(|factor| 1.0 / factor).collect();
        let inputs = Inputs {
            profiles: &profiles,
            scale: &scale,
            eta: Some(self.job.job.overlap),
            yielded: Some(1.0 - self.job.job.discarded),
            kappa: Some(&self.job.job.kappa),
            ..self.job.told(&self.spec)
        };
        let alone = Inputs {
            kappa: None,
            ..inputs
        };
        let plans = [inputs, alone].into_iter().filter_map(|inputs| {
            let (plan, _) = allocate::plan(&inputs, &self.world.node, &self.room, None).ok()?;
            Some(Layout::of_plan(&plan))
        });
        plans.min_by(|a, b| {
            let period = |layout: &Layout| layout.pace(self.job, factors).period_s;
            period(a).total_cmp(&period(b))
        })
    }

    /// Moves SMs from stage to stage, one enforceable step at a time, while that makes the job faster.
    fn improved(&self, mut best: Layout, factors: &[f64]) -> Layout {
        let Some(gpu) = self.world.node.gpus.first() else {
            return best;
        };
        let counts = &gpu.enforceable;
        let users: Vec<usize> = (0..best.holds.len())
            .filter(|i| self.job.counts(*i) && self.job.laws[*i].uses_gpu())
            .collect();
        let mut period_s = best.pace(self.job, factors).period_s;
        for _ in 0..STEPS_MAX {
            let pairs = users
                .iter()
                .flat_map(|i| users.iter().map(move |j| (*i, *j)));
            let tried = pairs.filter(|(i, j)| i != j).filter_map(|(from, to)| {
                let mut layout = best.clone();
                let own = |i: usize| best.holds[i].sms as u32;
                let below = counts.partition_point(|c| c.0 < own(from)).checked_sub(1)?;
                let freed = own(from) - counts[below].0;
                let wanted = own(to) + freed;
                let given =
                    counts.get(counts.partition_point(|c| c.0 <= wanted).checked_sub(1)?)?;
                let limits = [from, to].map(|i| self.spec.stages[i].sms);
                if counts[below] < limits[0].0 || *given > limits[1].1 || given.0 <= own(to) {
                    return None;
                }
                for (i, sms) in [(from, counts[below]), (to, *given)] {
                    let spare = layout.holds[i].cap - layout.holds[i].sms;
                    layout.holds[i].sms = f64::from(sms.0);
                    layout.holds[i].cap = f64::from(sms.0) + spare;
                }
                Some((layout.pace(self.job, factors).period_s, layout))
            });
            match tried.min_by(|a, b| a.0.total_cmp(&b.0)) {
                Some((faster_s, layout)) if faster_s < period_s => {
                    (best, period_s) = (layout, faster_s);
                }
                _ => break,
            }
        }
        best
    }
}
