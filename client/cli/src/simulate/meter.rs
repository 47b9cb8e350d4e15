//! What workers would report of a window: busy intervals with their units, and the finished step. The fine engine knows
//! when each stage was busy; for the coarse one, times are made up that fit its rates, and in which units take as much
//! longer beside a busy neighbour as they truly do, so that whoever estimates interference from them finds it.

use evenkeel_core::balance::{AGE_MAX_US, BUSY_MAX, Busy, LANES_MAX, Report, StepReport};
use evenkeel_core::id::{StageId, WorkerId};
use evenkeel_core::job::{JobSpec, Plan, Role};
use evenkeel_core::unit::Time;

use super::random::{Chance, Purpose};
use super::world::JobWorld;

/// Parts of a window in which a stage of the rollout works once each, in the coarse engine: batches.
const PARTS: usize = 4;

/// A time in which a lane of a stage was busy, in seconds of the simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spell {
    pub(super) lane: u32,
    pub(super) from_s: f64,
    pub(super) to_s: f64,
    pub(super) units: f64,
}

/// What one stage did in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Done {
    pub(super) lanes: u32,
    pub(super) spells: Vec<Spell>,
}

/// A window as it was, before meters add their noise.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// When it opened.
    pub(super) from_s: f64,
    /// When it closed.
    pub(super) at_s: f64,
    /// Units a busy second, by stage.
    pub(super) rates: Vec<f64>,
    /// By how much neighbours slowed each stage down, on average; empty where it is known who was busy when.
    pub(super) slowdowns: Vec<f64>,
    /// By stage, where the engine knows it.
    pub(super) done: Option<Vec<Done>>,
    /// Units that training consumed.
    pub(super) consumed: f64,
    /// Units that were thrown away.
    pub(super) discarded: f64,
}

/// Makes reports of windows.
pub(super) struct Meter {
    chance: Chance,
    step: u64,
}

impl Meter {
    pub(super) fn new(job: &JobWorld<'_>) -> Self {
        Self {
            chance: job.chance(Purpose::Meter),
            step: 0,
        }
    }

    /// The reports of a window, by all workers.
    pub(super) fn reports(
        &mut self,
        job: &JobWorld<'_>,
        (spec, plan): (&JobSpec, &Plan),
        seen: &Seen,
    ) -> Vec<Report> {
        self.step += 1;
        let done = match &seen.done {
            Some(done) => done.clone(),
            None => self.made_up(job, seen),
        };
        let mut reports = Vec::with_capacity(done.len());
        for (i, stage) in spec.stages.iter().enumerate() {
            let noise = self.chance.factor(job.job.stages[i].noise);
            if stage.role == Role::Other {
                continue;
            }
            let each = f64::from(stage.workers.max(1));
            let busy = busy(&done[i], seen.at_s, (noise / each, plan.stages[i].batch));
            let step = StepReport {
                n: self.step,
                consumed: seen.consumed / each,
                discarded: seen.discarded / each,
            };
            for worker in 0..stage.workers {
                reports.push(Report {
                    stage: StageId(i as u8),
                    worker: WorkerId(worker),
                    at: time(seen.at_s),
                    lanes: done[i].lanes.clamp(1, LANES_MAX),
                    busy: busy.clone(),
                    steps: if stage.role == Role::Training {
                        vec![step]
                    } else {
                        Vec::new()
                    },
                });
            }
        }
        reports
    }

    /// Times that fit a window's rates: training at its end, the rollout's stages once in each part of it.
    fn made_up(&mut self, job: &JobWorld<'_>, seen: &Seen) -> Vec<Done> {
        let length_s = seen.at_s - seen.from_s;
        let mut all: Vec<Done> = Vec::with_capacity(seen.rates.len());
        for (i, rate) in seen.rates.iter().enumerate() {
            let busy_s = (job.work(i) / rate).min(length_s);
            let mut spells = Vec::with_capacity(PARTS);
            let parts = if job.is_rollout(i) { PARTS } else { 1 };
            let (part_s, each_s) = (length_s / parts as f64, busy_s / parts as f64);
            for part in (0..parts).filter(|_| busy_s > 0.0) {
                let late_s = if parts == 1 {
                    part_s - each_s
                } else {
                    self.chance.unit() * (part_s - each_s)
                };
                let from_s = seen.from_s + part as f64 * part_s + late_s;
                spells.push(Spell {
                    lane: 0,
                    from_s,
                    to_s: from_s + each_s,
                    units: 0.0,
                });
            }
            all.push(Done { lanes: 1, spells });
        }
        let when: Vec<Vec<Spell>> = all.iter().map(|done| done.spells.clone()).collect();
        for (i, done) in all.iter_mut().enumerate() {
            let kappa = &job.job.kappa[i];
            // What it does alone, less what its neighbours in just this spell cost.
            let alone = seen.rates[i] * seen.slowdowns.get(i).copied().unwrap_or(1.0);
            for spell in &mut done.spells {
                let slowed = kappa
                    .iter()
                    .zip(&when)
                    .map(|(k, other)| k * covered(spell, other));
                let length_s = spell.to_s - spell.from_s;
                spell.units = length_s * alone / (1.0 + slowed.sum::<f64>());
            }
        }
        all
    }
}

/// Share of a spell that others cover.
fn covered(spell: &Spell, others: &[Spell]) -> f64 {
    let overlap = |o: &Spell| (spell.to_s.min(o.to_s) - spell.from_s.max(o.from_s)).max(0.0);
    let sum: f64 = others.iter().map(overlap).sum();
    sum / (spell.to_s - spell.from_s).max(f64::MIN_POSITIVE)
}

/// Spells as they are reported at `at_s`, merged where they are too many.
fn busy(done: &Done, at_s: f64, (times, batch): (f64, u32)) -> Vec<Busy> {
    let ago_us = |at: f64| (((at_s - at).max(0.0) * 1e6).round() as u64).min(AGE_MAX_US);
    let told = done.spells.iter().map(|spell| Busy {
        lane: spell.lane.min(LANES_MAX - 1),
        start_us_ago: ago_us(spell.from_s),
        dur_us: ago_us(spell.from_s) - ago_us(spell.to_s),
        units: spell.units * times,
        batch: batch.max(1),
    });
    let mut told: Vec<Busy> = told.collect();
    if told.len() <= BUSY_MAX {
        return told;
    }
    told.sort_by_key(|b| (b.lane, std::cmp::Reverse(b.start_us_ago)));
    told.dedup_by(|next, first| {
        let same = next.lane == first.lane;
        if same {
            first.dur_us += next.dur_us;
            first.units += next.units;
        }
        same
    });
    told
}

/// A time of the simulation as the watch counts it.
pub(super) fn time(seconds: f64) -> Time {
    Time((seconds.max(0.0) * 1_000.0) as u64)
}
