//! How the stages of a job hold a node, and the pace that follows from it: rates under contention, and how long an
//! iteration's rollout and training take. The formulas are in `docs/simulate.md`. Nothing here chooses a share.

use evenkeel_core::job::Plan;

use super::world::JobWorld;

/// What one stage holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hold {
    /// Whole cores.
    pub(super) cores: u32,
    /// SMs on each of its GPUs that are its own.
    pub(super) sms: f64,
    /// SMs on each of its GPUs that it may use: those beyond its own are for whoever is busy.
    pub(super) cap: f64,
    /// GPUs.
    pub(super) gpus: f64,
    /// Batch size; 1 where it has none.
    pub(super) batch: u32,
    /// What is left of its speed by how it is held: below 1 where threads are not bound, say.
    pub(super) speed: f64,
}

/// When stages run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sharing {
    /// All at the same time.
    Together,
    /// Rollout and training take turns, with a switch of so many seconds between them.
    Phases {
        /// What a switch takes.
        switch_s: f64,
        /// The rollout's own stages take turns, too.
        alone: bool,
    },
}

/// How the stages of a job hold the node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    /// When they run.
    pub(super) sharing: Sharing,
    /// They are on different GPUs and do not slow each other down.
    pub(super) is_apart: bool,
    /// What each other busy stage on the GPU costs on top of κ, where nothing keeps them off each other's SMs.
    pub(super) mixing: f64,
    /// What each stage holds.
    pub(super) holds: Vec<Hold>,
}

/// What follows from a layout at some cost of work.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    /// Units a second of each stage while it is busy; infinite for stages outside the balance.
    pub(super) rates: Vec<f64>,
    /// By how much its neighbours slow each stage down: `1 + Σ κ_ij · u_j`.
    pub(super) slowdowns: Vec<f64>,
    /// SMs that each stage keeps busy while it works, over all its GPUs.
    pub(super) busy_sms: Vec<f64>,
    /// Seconds from one iteration to the next.
    pub(super) period_s: f64,
}

/// What an iteration takes at some rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    /// Rollout throughput, what is discarded taken off.
    pub(super) t_r: f64,
    /// Training throughput.
    pub(super) t_train: f64,
    /// Seconds of the rollout.
    pub(super) rollout_s: f64,
    /// Seconds of training.
    pub(super) train_s: f64,
}

/// Rounds of the fixed point between rates and busy shares, and the change below which it stands.
const ROUNDS_MAX: u32 = 60;
const SETTLED: f64 = 1e-9;

impl Layout {
    /// A plan's split.
    pub(super) fn of_plan(plan: &Plan) -> Self {
        let gpus = plan.gpus.len() as f64;
        let holds = plan.stages.iter().map(|s| Hold {
            cores: s.cores,
            sms: f64::from(s.sms.0),
            cap: f64::from(s.cap.max(s.sms).0),
            gpus,
            batch: s.batch,
            speed: 1.0,
        });
        Self {
            sharing: Sharing::Together,
            is_apart: false,
            mixing: 0.0,
            holds: holds.collect(),
        }
    }

    /// Whether what one stage does depends on what others do.
    fn is_contended(&self, job: &JobWorld<'_>) -> bool {
        let slowed = job.job.kappa.iter().flatten().any(|k| *k > 0.0);
        self.sharing == Sharing::Together
            && ((slowed && !self.is_apart) || self.holds.iter().any(|h| h.cap > h.sms))
    }

    /// The pace at these factors of cost.
    pub(super) fn pace(&self, job: &JobWorld<'_>, factors: &[f64]) -> Pace {
        let mut busy = vec![if self.is_contended(job) { 0.5 } else { 0.0 }; self.holds.len()];
        let mut pace = self.at_busy(job, factors, &busy);
        if !self.is_contended(job) {
            return pace;
        }
        for _ in 0..ROUNDS_MAX {
            let mut change: f64 = 0.0;
            for (i, u) in busy.iter_mut().enumerate() {
                let new = job.work(i) / (pace.rates[i] * pace.period_s).max(f64::MIN_POSITIVE);
                let next = 0.5 * (*u + new.min(1.0));
                change = change.max((next - *u).abs());
                *u = next;
            }
            pace = self.at_busy(job, factors, &busy);
            if change < SETTLED {
                break;
            }
        }
        pace
    }

    /// The pace if each stage is busy for such a share of the time, whatever the others do.
    fn at_busy(&self, job: &JobWorld<'_>, factors: &[f64], busy: &[f64]) -> Pace {
        let n = self.holds.len();
        let (mut rates, mut busy_sms) = (vec![f64::INFINITY; n], vec![0.0; n]);
        let mut slowdowns = vec![1.0; n];
        for i in (0..n).filter(|i| job.counts(*i)) {
            let hold = &self.holds[i];
            let usable = self.usable_sms(job, i, busy);
            slowdowns[i] = self.slowdown(job, i, busy);
            rates[i] = job.alone(i, hold, usable, factors[i]) / slowdowns[i];
            busy_sms[i] = job.laws[i].useful_sms(usable, hold.batch) * hold.gpus;
        }
        let period_s = self.times(job, &rates).period_s(self, job);
        Pace {
            rates,
            slowdowns,
            busy_sms,
            period_s,
        }
    }

    /// SMs of one GPU that a busy stage can use: its own, and of those that are nobody's an even part with whoever else
    /// is busy, or what they have no use for.
    pub(super) fn usable_sms(&self, job: &JobWorld<'_>, stage: usize, busy: &[f64]) -> f64 {
        let hold = &self.holds[stage];
        let spare = hold.cap - hold.sms;
        if spare <= 0.0 {
            return hold.sms;
        }
        let others = (0..busy.len()).filter(|j| *j != stage && job.laws[*j].uses_gpu());
        let (mut crowd, mut wanted) = (0.0, 0.0);
        for j in others {
            let other = &self.holds[j];
            let useful = job.laws[j].useful_sms(other.cap, other.batch);
            crowd += busy[j];
            wanted += busy[j] * (useful - other.sms).max(0.0);
        }
        let even = spare / (1.0 + crowd);
        hold.sms + even.max(spare - wanted)
    }

    /// `1 + Σ (κ_ij + mixing) · u_j`.
    pub(super) fn slowdown(&self, job: &JobWorld<'_>, stage: usize, busy: &[f64]) -> f64 {
        if self.is_apart || self.sharing != Sharing::Together {
            return 1.0;
        }
        let on_gpu = |i: usize| job.laws[i].uses_gpu();
        let cost = |(j, k): (usize, &f64)| {
            let mixed = if j != stage && on_gpu(stage) && on_gpu(j) {
                self.mixing
            } else {
                0.0
            };
            (k + mixed) * busy[j]
        };
        1.0 + job.job.kappa[stage]
            .iter()
            .enumerate()
            .map(cost)
            .sum::<f64>()
    }

    /// What an iteration takes at these rates.
    pub(super) fn times(&self, job: &JobWorld<'_>, rates: &[f64]) -> Times {
        let of = |rollout: bool| {
            let counted = (0..rates.len()).filter(|i| job.counts(*i));
            counted
                .filter(move |i| job.is_rollout(*i) == rollout)
                .map(|i| rates[i])
        };
        let in_turn =
            job.job.spec.groups == 1 || matches!(self.sharing, Sharing::Phases { alone: true, .. });
        let rolled = if in_turn {
            1.0 / of(true).map(|r| 1.0 / r).sum::<f64>()
        } else {
            of(true).fold(f64::INFINITY, f64::min)
        };
        let rolled = rolled * job.job.overlap * (1.0 - job.job.discarded);
        let trained = of(false).fold(f64::INFINITY, f64::min);
        let units = job.job.units_per_iteration;
        Times {
            t_r: rolled.min(f64::MAX),
            t_train: trained.min(f64::MAX),
            rollout_s: units / rolled,
            train_s: units / trained,
        }
    }
}

impl Times {
    /// Seconds from one iteration to the next once the pipeline is full.
    fn period_s(&self, layout: &Layout, job: &JobWorld<'_>) -> f64 {
        let (rollout_s, train_s) = (self.rollout_s, self.train_s);
        let period_s = match layout.sharing {
            Sharing::Phases { switch_s, .. } => rollout_s + train_s + 2.0 * switch_s,
            Sharing::Together if job.job.staleness == 0 => rollout_s + train_s,
            Sharing::Together => rollout_s.max(train_s),
        };
        period_s + job.job.weight_sync_s
    }

    /// `1 − min/max` of both sides.
    pub(super) fn gap(&self) -> f64 {
        let (low, high) = (self.t_r.min(self.t_train), self.t_r.max(self.t_train));
        if high > 0.0 && high < f64::MAX {
            1.0 - low / high
        } else {
            0.0
        }
    }
}

impl JobWorld<'_> {
    /// Units that a stage works through in one iteration; none outside the balance.
    pub(super) fn work(&self, stage: usize) -> f64 {
        if !self.counts(stage) {
            0.0
        } else if self.is_rollout(stage) {
            self.units_rolled()
        } else {
            self.job.units_per_iteration
        }
    }
}
