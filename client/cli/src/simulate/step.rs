//! The coarse engine: one event for each training iteration. Rollout *i* begins when rollout *i − 1* is done and training
//! has finished iteration *i − 1 − staleness*; training of *i* begins when both its rollout and the training before are
//! done. What each takes follows from `layout` and a draw of the window's work.

use std::collections::VecDeque;

use super::layout::{Layout, Pace, Sharing};
use super::meter::Seen;
use super::random::{Chance, Purpose};
use super::tally::Tally;
use super::world::JobWorld;

/// One job's pipeline.
pub(super) struct StepEngine {
    work: Chance,
    /// When the newest iteration was finished.
    at_s: f64,
    /// When the newest rollout was.
    rolled_s: f64,
    /// When the iterations were finished on which the next rollouts depend, the oldest first.
    finished: VecDeque<f64>,
    /// Part of the next iteration that was done before the run was interrupted.
    progress: f64,
    /// Last pace, and what it was of.
    paced: Option<(Vec<f64>, Pace)>,
}

impl StepEngine {
    pub(super) fn new(job: &JobWorld<'_>, now_s: f64) -> Self {
        Self {
            work: job.chance(Purpose::Work),
            at_s: now_s,
            rolled_s: now_s,
            finished: VecDeque::new(),
            progress: 0.0,
            paced: None,
        }
    }

    /// When the newest iteration was finished.
    pub(super) const fn now_s(&self) -> f64 {
        self.at_s
    }

    /// The layout has changed.
    pub(super) fn changed(&mut self) {
        self.paced = None;
    }

    /// Everything stands still for so long.
    pub(super) fn pause(&mut self, seconds: f64) {
        self.at_s += seconds;
        self.rolled_s += seconds;
        self.finished.iter_mut().for_each(|at| *at += seconds);
    }

    /// Runs one iteration; none if it does not end before `limit_s`, and the part that was done counts.
    pub(super) fn advance(
        &mut self,
        job: &JobWorld<'_>,
        layout: &Layout,
        limit_s: f64,
        tally: &mut Tally,
    ) -> Option<Seen> {
        if self.at_s >= limit_s {
            return None;
        }
        let mut pace = self.pace(job, layout);
        let truths = &job.job.stages;
        for (rate, truth) in pace.rates.iter_mut().zip(truths) {
            *rate /= self.work.factor(truth.variation);
        }
        let times = layout.times(job, &pace.rates);
        let left = 1.0 - self.progress;
        let (rollout_s, train_s) = (times.rollout_s * left, times.train_s * left);
        let staleness = job.job.staleness as usize;
        let sync_s = job.job.weight_sync_s * left;
        let (rolled_s, ends_s) = match layout.sharing {
            Sharing::Phases { switch_s, .. } => {
                let ends_s = self.at_s + rollout_s + train_s + 2.0 * switch_s * left + sync_s;
                (ends_s, ends_s)
            }
            Sharing::Together => {
                let depends_s = if self.finished.len() > staleness {
                    self.finished[0]
                } else {
                    f64::NEG_INFINITY
                };
                // With staleness 0 the rollout waits for the weights as it waits for training.
                let own_sync_s = if staleness > 0 { sync_s } else { 0.0 };
                let rolled_s = self.rolled_s.max(depends_s) + rollout_s + own_sync_s;
                (rolled_s, self.at_s.max(rolled_s) + train_s + sync_s)
            }
        };
        let from_s = self.at_s;
        let whole = ends_s <= limit_s;
        let part = if whole {
            1.0
        } else {
            (limit_s - from_s) / (ends_s - from_s)
        };
        let units = job.job.units_per_iteration * left * part;
        tally.credit(job.index, (from_s, ends_s.min(limit_s)), units);
        tally.events += 1;
        for (i, rate) in pace
            .rates
            .iter()
            .enumerate()
            .filter(|(i, _)| job.counts(*i))
        {
            tally.busy_sm_s += pace.busy_sms[i] * job.work(i) * left * part / rate;
        }
        if !whole {
            self.progress += left * part;
            self.at_s = limit_s;
            return None;
        }
        self.progress = 0.0;
        (self.at_s, self.rolled_s) = (ends_s, rolled_s);
        if self.finished.len() > staleness {
            self.finished.pop_front();
        }
        self.finished.push_back(ends_s);
        tally.gap(times.gap());
        Some(Seen {
            from_s,
            at_s: ends_s,
            rates: pace.rates,
            slowdowns: pace.slowdowns,
            done: None,
            consumed: job.job.units_per_iteration,
            discarded: job.units_rolled() - job.job.units_per_iteration,
        })
    }

    /// The pace now; found anew only when costs or shares have changed.
    fn pace(&mut self, job: &JobWorld<'_>, layout: &Layout) -> Pace {
        let factors = job.factors(self.at_s);
        match &self.paced {
            Some((of, pace)) if *of == factors => pace.clone(),
            _ => {
                let pace = layout.pace(job, &factors);
                self.paced = Some((factors, pace.clone()));
                pace
            }
        }
    }
}
