//! Windows: reports are summed until every training worker has finished a step, then turned into rates.
//!
//! Window n closes when every training worker has reported step n; the other stages count what arrived since
//! window n−1 closed. A window in which some stage of the balance has no data neither counts nor resets: it is
//! thrown away as a window, and its data go on into the next one.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::report::Report;
use super::silent::{Missing, Silent};
use super::{Declared, JobContext, Measured};
use crate::id::{StageId, WorkerId};
use crate::job::Role;
use crate::unit::{Rate, Time};

/// Most windows kept, whatever the job asks for.
pub(super) const KEEP_MAX: usize = 256;
/// Most batch sizes told apart in one window.
const BATCHES_MAX: usize = 16;
/// Windows after which a silent worker's last rate no longer stands in for it.
const STALE_WINDOWS: u64 = 5;

/// A stage's throughput in a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageMeasure {
    /// Units per second while busy, over all its workers.
    pub rate: Rate,
    /// The batch size that most of the units ran at.
    pub batch: u32,
}

/// A closed window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// By stage; none where nothing is reported (roles outside the balance).
    pub stages: Vec<Option<StageMeasure>>,
    /// Rollout throughput, discarded units taken off.
    pub t_r: Rate,
    /// Training throughput.
    pub t_train: Rate,
    /// Consumed ÷ (consumed + discarded).
    pub yielded: f64,
}

/// What went through in a window, beside the rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Flow {
    /// Microseconds since the window before closed; none of the first.
    pub wall_us: Option<u64>,
    /// By stage: units.
    pub units: Vec<f64>,
    /// By stage: busy microseconds of a lane, on average.
    pub busy_us: Vec<f64>,
}

/// Sums of a worker since the last window closed, and its last rate.
#[derive(Clone, Debug, Default)]
struct Worker {
    lanes: u32,
    units: f64,
    busy_us: u64,
    helpers_us: BTreeMap<u32, u64>,
    batches: BTreeMap<u32, f64>,
    last_step: Option<u64>,
    /// Its first step since it was seen or forgotten; may be lower than the last window's.
    is_new: bool,
    rate: Option<(f64, u64)>, // with the number of the window it is from
}

/// When a worker last said what a window needs. Outlives its restarts.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    work: Option<Time>,
    step: Option<Time>,
}

/// Accumulates reports into windows.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    workers: BTreeMap<(StageId, WorkerId), Worker>,
    heard: BTreeMap<(StageId, WorkerId), Heard>,
    consumed: f64,
    discarded: f64,
    closings: u64,
    /// The step that the last window closed with.
    closed: Option<u64>,
    /// When that was.
    closed_at: Option<Time>,
    last_report: Option<Time>,
}

impl Worker {
    fn add(&mut self, report: &Report) -> (f64, f64) {
        self.lanes = report.lanes;
        for b in &report.busy {
            if b.lane < report.lanes {
                self.busy_us = self.busy_us.saturating_add(b.dur_us);
                self.units += b.units;
                if self.batches.len() < BATCHES_MAX || self.batches.contains_key(&b.batch) {
                    *self.batches.entry(b.batch).or_default() += b.units;
                }
            } else {
                let helper = self.helpers_us.entry(b.lane).or_default();
                *helper = helper.saturating_add(b.dur_us);
            }
        }
        let (mut consumed, mut discarded) = (0.0, 0.0);
        for step in &report.steps {
            if self.last_step.is_some_and(|last| step.n <= last) {
                continue; // sent again after a reconnect
            }
            self.is_new |= self.last_step.is_none();
            self.last_step = Some(step.n);
            consumed += step.consumed;
            discarded += step.discarded;
        }
        (consumed, discarded)
    }

    /// Units per second while busy: all lanes together, bounded by each helper lane. None without data.
    fn measure(&self) -> Option<f64> {
        if self.busy_us == 0 || self.units <= 0.0 {
            return None;
        }
        let lanes = self.units * f64::from(self.lanes) / (self.busy_us as f64 * 1e-6);
        let helper = self.helpers_us.values().copied().max().filter(|us| *us > 0);
        let rate = helper.map_or(lanes, |us| lanes.min(self.units / (us as f64 * 1e-6)));
        (rate.is_finite() && rate > 0.0).then_some(rate)
    }

    fn clear(&mut self) {
        self.units = 0.0;
        self.busy_us = 0;
        self.helpers_us.clear();
        self.batches.clear();
    }
}

impl Windows {
    pub(super) fn ingest(&mut self, report: &Report) {
        self.last_report = Some(report.at);
        let key = (report.stage, report.worker);
        let worker = self.workers.entry(key).or_default();
        let last_step = worker.last_step;
        let (consumed, discarded) = worker.add(report);
        let heard = self.heard.entry(key).or_default();
        if report.busy.iter().any(|b| b.units > 0.0) {
            heard.work = Some(report.at);
        }
        if worker.last_step != last_step {
            heard.step = Some(report.at);
        }
        self.consumed += consumed;
        self.discarded += discarded;
    }

    pub(super) fn forget(&mut self, stage: StageId, worker: WorkerId) {
        self.workers.remove(&(stage, worker));
    }

    pub(super) const fn last_report(&self) -> Option<Time> {
        self.last_report
    }

    /// Throws away what has not made a window yet; step numbers stay known.
    pub(super) fn discard(&mut self) {
        for worker in self.workers.values_mut() {
            worker.clear();
            worker.rate = None;
        }
        self.closed = self
            .workers
            .values()
            .filter_map(|w| w.last_step)
            .max()
            .or(self.closed);
        self.consumed = 0.0;
        self.discarded = 0.0;
    }

    /// Closes a window if every training worker has finished a step since the last one; none if it is not
    /// complete or has no data. Several steps at once make one window.
    pub(super) fn close(
        &mut self,
        ctx: &JobContext<'_>,
        eta: Option<f64>,
    ) -> Option<(Window, Flow)> {
        let step = self.step_of_all(ctx)?;
        let stages = &ctx.spec.stages;
        for (i, stage) in stages.iter().enumerate() {
            let reports = stage.role != Role::Other;
            if reports && !self.has_news(StageId(i as u8), stage.workers) {
                return None; // no data: what has arrived waits for the window that has
            }
        }
        self.closings += 1;
        let measured: Vec<Option<StageMeasure>> =
            (0..stages.len()).map(|i| self.stage(ctx, i)).collect();
        let flow = self.flow(stages.len());
        self.closed = Some(step);
        self.closed_at = self.last_report;
        self.workers.values_mut().for_each(Worker::clear);
        let all = self.consumed + self.discarded;
        let yielded = if all > 0.0 { self.consumed / all } else { 1.0 };
        (self.consumed, self.discarded) = (0.0, 0.0);
        Some((window(ctx, eta, measured, yielded), flow))
    }

    /// What has come in since the last window closed.
    fn flow(&self, stages: usize) -> Flow {
        let wall = self.closed_at.zip(self.last_report);
        let mut flow = Flow {
            wall_us: wall.map(|(from, to)| to.since(from).0.saturating_mul(1_000)),
            units: alloc::vec![0.0; stages],
            busy_us: alloc::vec![0.0; stages],
        };
        let mut lanes = alloc::vec![0_u32; stages];
        for ((stage, _), worker) in &self.workers {
            let i = usize::from(stage.0);
            flow.units[i] += worker.units;
            flow.busy_us[i] += worker.busy_us as f64;
            lanes[i] += worker.lanes;
        }
        for (busy, lanes) in flow.busy_us.iter_mut().zip(lanes) {
            *busy /= f64::from(lanes.max(1));
        }
        flow
    }

    /// The newest step that every training worker has reported, if it is newer than the last window's. A worker
    /// that restarted from a checkpoint counts its steps from there.
    fn step_of_all(&mut self, ctx: &JobContext<'_>) -> Option<u64> {
        let mut newest: Option<u64> = None;
        for (i, stage) in ctx.spec.stages.iter().enumerate() {
            if stage.role != Role::Training {
                continue;
            }
            for w in 0..stage.workers {
                let worker = self.workers.get_mut(&(StageId(i as u8), WorkerId(w)))?;
                let step = worker.last_step?;
                if core::mem::take(&mut worker.is_new) && self.closed.is_some_and(|c| step <= c) {
                    self.closed = step.checked_sub(1);
                }
                newest = Some(newest.map_or(step, |n| n.min(step)));
            }
        }
        newest.filter(|step| self.closed.is_none_or(|closed| *step > closed))
    }

    /// Whether every worker of a stage has a rate, fresh or recent, and one of them a fresh one.
    fn has_news(&self, stage: StageId, workers: u32) -> bool {
        let mut fresh = false;
        for w in 0..workers {
            if !self.has_rate((stage, WorkerId(w))) {
                return false;
            }
            fresh |= self.has_fresh((stage, WorkerId(w)));
        }
        fresh
    }
    fn has_fresh(&self, key: (StageId, WorkerId)) -> bool {
        let worker = self.workers.get(&key);
        worker.is_some_and(|w| w.measure().is_some())
    }
    fn has_rate(&self, key: (StageId, WorkerId)) -> bool {
        let last = self.workers.get(&key).and_then(|w| w.rate);
        let recent = last.is_some_and(|(_, from)| from + STALE_WINDOWS > self.closings);
        recent || self.has_fresh(key)
    }

    /// The stages that keep the next window from closing. `began`: since when anybody could have been heard.
    pub(super) fn silent(&self, stages: &[Declared], began: Time) -> Vec<Silent> {
        let counted = stages.iter().enumerate();
        let counted = counted.filter(|(_, stage)| stage.role != Role::Other);
        let silent = |(i, stage): (usize, &Declared)| {
            let id = StageId(i as u8);
            let any_fresh = (0..stage.workers).any(|w| self.has_fresh((id, WorkerId(w))));
            let missing = |w| self.missing((id, WorkerId(w)), stage.role, any_fresh);
            let workers = (0..stage.workers).filter_map(|w| {
                let (missing, heard) = missing(w)?;
                let since = heard.unwrap_or(began);
                Some(Silent {
                    stage: id,
                    worker: Some(WorkerId(w)),
                    missing,
                    since,
                    // Before the last window closed nothing more was needed of it.
                    waited_for: self.closed_at.map_or(since, |at| at.max(since)),
                })
            });
            Silent::of_stage(workers.collect(), stage.workers)
        };
        counted.filter_map(silent).collect()
    }

    /// What a window still needs of a worker, and when that last came; none: nothing.
    fn missing(
        &self,
        key: (StageId, WorkerId),
        role: Role,
        any_fresh: bool,
    ) -> Option<(Missing, Option<Time>)> {
        let heard = self.heard.get(&key).copied().unwrap_or_default();
        // Where nobody of the stage has anything new, everybody is waited for.
        if !any_fresh || !self.has_rate(key) {
            return Some((Missing::Work, heard.work));
        }
        let new = |w: &Worker, n| w.is_new || self.closed.is_none_or(|closed| n > closed);
        let worker = self.workers.get(&key);
        let stepped = worker.is_some_and(|w| w.last_step.is_some_and(|n| new(w, n)));
        (role == Role::Training && !stepped).then_some((Missing::Step, heard.step))
    }

    /// A stage's rate: the sum over its workers; synchronous: the slowest times their number.
    fn stage(&mut self, ctx: &JobContext<'_>, i: usize) -> Option<StageMeasure> {
        let stage = ctx.spec.stages.get(i).filter(|s| s.role != Role::Other)?;
        let (mut sum, mut slowest) = (0.0, f64::INFINITY);
        let mut batches: BTreeMap<u32, f64> = BTreeMap::new();
        for w in 0..stage.workers {
            let worker = self.workers.get_mut(&(StageId(i as u8), WorkerId(w)))?;
            if let Some(rate) = worker.measure() {
                worker.rate = Some((rate, self.closings));
            }
            let (rate, _) = worker.rate?;
            sum += rate;
            slowest = slowest.min(rate);
            for (batch, units) in &worker.batches {
                *batches.entry(*batch).or_default() += units;
            }
        }
        let rate = if stage.synchronous {
            slowest * f64::from(stage.workers)
        } else {
            sum
        };
        let most = batches.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Some(StageMeasure {
            rate: Rate::clamped(rate),
            batch: most.map_or(1, |b| b.0),
        })
    }
}

/// Both sides' throughput from the stages' rates.
fn window(
    ctx: &JobContext<'_>,
    eta: Option<f64>,
    stages: Vec<Option<StageMeasure>>,
    yielded: f64,
) -> Window {
    let of = |rollout: bool| {
        let with_role = ctx.spec.stages.iter().zip(&stages);
        with_role
            .filter(move |(s, _)| s.role.is_rollout() == rollout)
            .filter_map(|(_, m)| *m)
    };
    let eta = eta.unwrap_or(1.0);
    let rollout = if ctx.spec.groups == 1 {
        let sum = of(true).fold(0.0, |sum, m| sum + 1.0 / m.rate.get());
        (sum > 0.0).then(|| eta / sum)
    } else {
        of(true)
            .map(|m| m.rate.get())
            .reduce(f64::min)
            .map(|r| eta * r)
    };
    let train = of(false).map(|m| m.rate.get()).reduce(f64::min);
    let t_r = rollout.map(|r| r * yielded).or(train).unwrap_or(0.0);
    let t_train = train.unwrap_or(t_r);
    Window {
        stages,
        t_r: Rate::clamped(t_r),
        t_train: Rate::clamped(t_train),
        yielded,
    }
}

/// The median of numbers without NaN; the mean of the middle two of an even count; zero of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.len() % 2, half.checked_sub(1)) {
        (1, _) => values[half],
        (_, Some(below)) => values[below] / 2.0 + values[half] / 2.0,
        (_, None) => 0.0,
    }
}

/// Median throughputs of both sides.
pub(super) fn medians(windows: &[&Window]) -> (Rate, Rate) {
    let of = |f: fn(&Window) -> f64| Rate::clamped(median(windows.iter().map(|w| f(w)).collect()));
    (of(|w| w.t_r.get()), of(|w| w.t_train.get()))
}

/// Standard error of the median of `ln(T_r/T_train)`: 1.25 times that of a mean (normal noise). Zero of fewer than three.
fn standard_error(windows: &[&Window]) -> f64 {
    const OF_MEDIAN: f64 = 1.2533;
    let both = |w: &&Window| w.t_r > Rate::ZERO && w.t_train > Rate::ZERO;
    let logs = windows.iter().copied().filter(both);
    let logs: Vec<f64> = logs
        .map(|w| libm::log(w.t_r.get() / w.t_train.get()))
        .collect();
    let n = logs.len() as f64;
    if logs.len() < 3 {
        return 0.0;
    }
    let mean = logs.iter().sum::<f64>() / n;
    let squares: f64 = logs.iter().map(|l| (l - mean) * (l - mean)).sum();
    OF_MEDIAN * libm::sqrt(squares / (n - 1.0) / n)
}

/// The windows, newest first, smoothed by medians; none without a window.
pub(super) fn smooth(windows: &[&Window]) -> Option<Measured> {
    let newest = windows.first()?;
    let (t_r, t_train) = medians(windows);
    let stages = (0..newest.stages.len()).map(|i| {
        let batch = newest.stages[i]?.batch;
        let same = windows
            .iter()
            .filter_map(|w| w.stages.get(i).copied().flatten());
        let rates = same
            .filter(|m| m.batch == batch)
            .map(|m| m.rate.get())
            .collect();
        Some(StageMeasure {
            rate: Rate::clamped(median(rates)),
            batch,
        })
    });
    Some(Measured {
        stages: stages.collect(),
        t_r,
        t_train,
        yielded: median(windows.iter().map(|w| w.yielded).collect()),
        windows: windows.len() as u32,
        error: standard_error(windows),
        overlap: Vec::new(),
    })
}
