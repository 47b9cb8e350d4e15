//! Watching a running job: what its workers report, the throughput of both sides, and when their gap matters.
//!
//! Volatile: nothing here is in the ledger; after a restart it fills again within a few windows. It judges
//! nothing: it says *that* the sides have drifted apart ([`Verdict`]); whether a move pays is
//! `decide::rebalance`. The state holds one [`Watch`] for each job, ingests reports and polls it.
//!
//! Rates count busy time only, so that waiting for the other side does not hide an imbalance: with a staleness
//! bound both sides do the same units per wall second.
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::id::{StageId, WorkerId};
use crate::job::{Detector, JobSpec, Plan, Role};
use crate::unit::{Bytes, Millis, Rate, Sms, Time};

pub mod blame;
mod detect;
mod eta;
mod overlap;
mod refit;
mod report;
mod restarts;
mod silent;
mod window;

pub use detect::{Alarm, Side};
pub use refit::{LEARNED_MAX, OFF_PREDICTION, Refit, refit};
pub use report::{
    AGE_MAX_US, BATCH_MAX, BUSY_MAX, BadReport, Busy, LANES_MAX, Report, STEPS_MAX, StepReport,
    UNITS_MAX,
};
pub use silent::{Missing, SILENT_AFTER, Silent};
pub use window::{StageMeasure, Window};

use detect::Alarmist;
use eta::Eta;
use overlap::Overlaps;
use restarts::Restarts;
use window::Windows;

/// Windows over which rates are smoothed, by their median.
pub const SMOOTH: usize = 5;
/// A stay is judged again once the signed gap has moved by this much from the judged one.
pub const REARM_GAP: f64 = 0.05;
/// A refit that cannot tell its gap from noise waits for twice as many windows, up to so many times.
const REFIT_PATIENCE: u32 = 4;
/// Standard errors beyond which a gap is no longer noise.
const SIGMAS: f64 = 3.5;
/// A gap below this after a refit is noise or rounding: nothing to correct.
pub const REFIT_GAP: f64 = 0.05;
/// A move back within so many windows of the one before says that the load swings.
const SWING_WINDOWS: u32 = 200;
/// The longest that a swinging load is left alone.
const COOLDOWN_MAX: u32 = 1_000;
/// A change is answered by what was measured over at least and at most so many windows since it.
const FRESH_MIN: u32 = 6;
/// See [`FRESH_MIN`].
const FRESH_MAX: u32 = 20;
/// Reasons kept for `top`.
const REASONS_MAX: usize = 5;

/// What a poll needs to know about the job just now.
#[derive(Clone, Copy, Debug)]
pub struct JobContext<'a> {
    /// As declared.
    pub spec: &'a JobSpec,
    /// The split in force.
    pub plan: &'a Plan,
    /// No resize of this job is under way. While one is, what arrives is thrown away: it belongs to no split.
    pub settled: bool,
    /// What is free beside the job: a stay is judged again when it changes.
    pub free: Free,
}

/// What is free beside a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Whole cores.
    pub cores: u32,
    /// SMs on each of the job's GPUs (the least).
    pub sms: Sms,
    /// Bytes on each of the job's GPUs (the least).
    pub memory: Bytes,
}

/// A job's throughput as measured, smoothed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// By stage; none for a stage that reports nothing.
    pub stages: Vec<Option<StageMeasure>>,
    /// Rollout throughput, discarded units taken off.
    pub t_r: Rate,
    /// Training throughput.
    pub t_train: Rate,
    /// Share of the rollout's units that were consumed, 0 to 1.
    pub yielded: f64,
    /// Windows that are in it.
    pub windows: u32,
    /// Standard error of `ln(t_r / t_train)` as smoothed, from how the windows scatter; 0 of fewer than three.
    #[serde(default)]
    pub error: f64,
    /// Of each stage's busy time, the share in which each other stage was busy; empty: not known, taken as all.
    #[serde(default)]
    pub overlap: Vec<Vec<f64>>,
}

impl Measured {
    /// The gap, `1 − min/max`, 0 to 1.
    pub fn gap(&self) -> f64 {
        crate::unit::gap(self.t_r, self.t_train)
    }
    /// The slower side.
    pub fn slower(&self) -> Side {
        if self.t_r < self.t_train {
            Side::Rollout
        } else {
            Side::Training
        }
    }
    /// The gap that noise alone opens now and then: one below it says nothing.
    pub fn noise_gap(&self) -> f64 {
        1.0 - libm::exp(-self.sigmas() * self.error)
    }
    /// Standard errors that chance hardly ever reaches. Few windows know their own scatter badly: more of them there.
    fn sigmas(&self) -> f64 {
        SIGMAS * (1.0 + 4.0 / f64::from(self.windows.max(1)))
    }
    /// The gap with a sign: positive while the rollout is slower.
    pub fn signed_gap(&self) -> f64 {
        match self.slower() {
            Side::Rollout => self.gap(),
            Side::Training => -self.gap(),
        }
    }
}

/// Why a job is looked at now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// First refit after the start.
    Start,
    /// The refit after a move that a detector caused.
    AfterMove,
    /// The refit after a move that a refit caused: it rescales, and moves nothing, so that a chain ends.
    AfterRefit,
    /// The detector fired.
    Detector,
}

/// What a poll says: the controller should look at this job.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Why.
    pub trigger: Trigger,
    /// What was measured.
    pub measured: Measured,
    /// A sentence for a person.
    pub why: String,
}

/// Why shares did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StayReason {
    /// The job's shares are frozen.
    Disabled,
    /// A refit that only corrects the curves.
    OnlyRefit,
    /// Both sides are close together after a refit; nothing to correct.
    Balanced,
    /// The split in force is the best one.
    AlreadyBest,
    /// There is a better one, by less than is worth a move.
    GainTooSmall,
    /// The gain would not pay for the pause within the horizon.
    DoesNotPay,
    /// No split fits just now.
    NoSplit,
    /// Too little was measured.
    NotMeasured,
}

/// One decision that was taken about the job, for `top` and `explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remark {
    /// Windows closed when it was taken.
    pub window: u64,
    /// None: the shares moved.
    pub stayed: Option<StayReason>,
    /// In words.
    pub detail: String,
}

/// What `top` shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Smoothed; none before the first window.
    pub measured: Option<Measured>,
    /// The last window as it was.
    pub last: Option<Window>,
    /// Windows closed with data since the job started.
    pub windows: u64,
    /// Windows since the start or the last move.
    pub since_move: u32,
    /// Windows in which nothing is judged yet.
    pub cooldown: u32,
    /// The detector's counter: windows of the streak, or the sum in log units.
    pub alarm: Alarm,
    /// A stay was decided and nothing has changed since.
    pub held: bool,
    /// The newest decisions, oldest first.
    pub remarks: Vec<Remark>,
    /// The stages that keep the next window from closing; all of them right after one has closed.
    pub silent: Vec<Silent>,
}

impl View {
    /// Which stages have kept windows from closing for a while, in a sentence for a person; none if none has. `is_manned`
    /// says of which stages a worker is there.
    pub fn silence(
        &self,
        spec: &JobSpec,
        is_manned: impl Fn(StageId) -> bool,
        now: Time,
    ) -> Option<String> {
        silent::sentence(&self.silent, &spec.stages, is_manned, now)
    }
}

/// What is declared of a stage, as far as windows depend on it.
#[derive(Clone, Copy, Debug)]
struct Declared {
    /// A report from anybody else is refused, which also bounds what is kept.
    workers: u32,
    role: Role,
}

/// Watches one job. Volatile.
#[derive(Clone, Debug)]
pub struct Watch {
    stages: Vec<Declared>,
    began: Time,
    windows: Windows,
    overlaps: Overlaps,
    eta: Eta,
    restarts: Restarts,
    alarm: Alarmist,
    recent: VecDeque<Window>,
    closed: u64,
    since_move: u32,
    cooldown: u32,
    swing: Swing,
    origin: Origin,
    refitted: bool,
    judged: Option<(f64, Free)>,
    /// The newest verdict; kept until the controller says what came of it.
    pending: Option<(Trigger, Measured)>,
    /// What the sides should do since the last refit; before it, what the plan predicts.
    expected: Option<(Rate, Rate)>,
    remarks: VecDeque<Remark>,
}

/// Moves to and fro: each one back soon after the one before makes the next cool-down four times as long, or shares would
/// follow a load that has turned again by the time they have moved.
#[derive(Clone, Copy, Debug, Default)]
struct Swing {
    /// The slower side that the last move answered.
    side: Option<Side>,
    turns: u32,
    /// The last cool-down, in windows.
    cooldown: u32,
}

impl Swing {
    /// A move for `slower`, so many windows after the last move: how long the cool-down is.
    fn cooldown(&mut self, slower: Side, since: u32, declared: u32) -> u32 {
        let turned = self.side.replace(slower).is_some_and(|last| last != slower);
        let soon = since < SWING_WINDOWS.max(self.cooldown.saturating_mul(2));
        self.turns = if turned && soon { self.turns + 1 } else { 0 };
        let longer = declared
            .max(1)
            .saturating_mul(4_u32.saturating_pow(self.turns));
        self.cooldown = if self.turns == 0 {
            declared
        } else {
            longer.min(COOLDOWN_MAX.max(declared))
        };
        self.cooldown
    }
}

/// What brought the split in force about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    #[default]
    Start,
    /// The detector, or a person.
    Move,
    Refit,
}

impl Watch {
    /// A job that has just started (or a daemon that has).
    pub fn new(spec: &JobSpec, now: Time) -> Self {
        let declared = |s: &crate::job::StageSpec| Declared {
            workers: s.workers,
            role: s.role,
        };
        Self {
            stages: spec.stages.iter().map(declared).collect(),
            began: now,
            windows: Windows::default(),
            overlaps: Overlaps::of(spec.stages.len()),
            eta: Eta::default(),
            restarts: Restarts::of(spec.stages.len()),
            alarm: Alarmist::default(),
            recent: VecDeque::new(),
            closed: 0,
            since_move: 0,
            cooldown: 0,
            swing: Swing::default(),
            origin: Origin::default(),
            refitted: false,
            judged: None,
            pending: None,
            expected: None,
            remarks: VecDeque::new(),
        }
    }

    /// Takes a report in. Refuses what cannot be true; a refused report changes nothing.
    pub fn ingest(&mut self, report: &Report) -> Result<(), BadReport> {
        let (stage, worker) = (report.stage, report.worker);
        if self
            .stages
            .get(usize::from(stage.0))
            .is_none_or(|s| worker.0 >= s.workers)
        {
            return Err(BadReport::Unknown { stage, worker });
        }
        report.check()?;
        self.windows.ingest(report);
        self.overlaps.ingest(report);
        Ok(())
    }

    /// Forgets a worker: it has restarted, or another process holds its lease. Its next report starts anew.
    pub fn forget(&mut self, stage: StageId, worker: WorkerId) {
        self.windows.forget(stage, worker);
    }

    /// A worker of the stage has restarted with another share and works again.
    pub fn restarted(&mut self, stage: StageId, took: Millis) {
        self.restarts.note(stage, took);
    }
    /// What a restart of each stage takes: the median of its newest ones; none where it has not restarted yet.
    pub fn restart_costs(&self) -> Vec<Option<Millis>> {
        self.restarts.medians()
    }

    /// What was reported so far belongs to a split that is no longer in force.
    fn forget_split(&mut self) {
        self.windows.discard();
        self.overlaps.discard();
        self.eta.discard();
    }

    /// Efficiency of the rollout's overlap, in (0, 1]; none: not measured.
    pub fn eta(&self) -> Option<f64> {
        self.eta.told()
    }
    /// `κ_ij`, by how much a busy stage j slows stage i; none where it is not known well enough.
    pub fn kappa(&self) -> Vec<Vec<Option<f64>>> {
        self.overlaps.kappa()
    }

    /// Closes a window if it is complete, and says whether the controller should look at the job. Call it after
    /// each report; at most one verdict per window.
    pub fn poll(&mut self, ctx: &JobContext<'_>) -> Option<Verdict> {
        if !ctx.settled {
            self.forget_split();
            return None;
        }
        let (window, flow) = self.windows.close(ctx, self.eta.told())?;
        self.overlaps.close();
        self.eta.observe(ctx.spec, &window, &flow);
        self.closed += 1;
        self.since_move = self.since_move.saturating_add(1);
        self.alarm_on(&window, ctx);
        self.recent.push_back(window);
        let refit = ctx
            .spec
            .rebalance
            .refit_windows
            .saturating_mul(REFIT_PATIENCE);
        let keep = SMOOTH
            .max(FRESH_MAX as usize)
            .max(refit as usize)
            .min(window::KEEP_MAX);
        while self.recent.len() > keep {
            self.recent.pop_front();
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.alarm.reset();
        }
        let verdict = self.verdict(ctx);
        self.pending = verdict.as_ref().map(|v| (v.trigger, v.measured.clone()));
        verdict
    }

    /// Feeds the detector: the streak with smoothed throughputs, the sum with the window's own.
    fn alarm_on(&mut self, window: &Window, ctx: &JobContext<'_>) {
        let mut smoothed: Vec<&Window> = self.recent.iter().rev().take(SMOOTH - 1).collect();
        smoothed.insert(0, window);
        let (t_r, t_train) = window::medians(&smoothed);
        let planned = self.expected.unwrap_or((ctx.plan.t_r, ctx.plan.t_train));
        self.alarm.observe(
            &ctx.spec.rebalance.detector,
            (t_r, t_train),
            window,
            planned,
        );
    }

    fn verdict(&mut self, ctx: &JobContext<'_>) -> Option<Verdict> {
        let rebalance = &ctx.spec.rebalance;
        if !self.refitted && rebalance.refit_windows > 0 {
            if self.since_move < rebalance.refit_windows {
                return None; // the detector's counter runs, but the curves are not trusted before the refit
            }
            let trigger = match self.origin {
                Origin::Start => Trigger::Start,
                Origin::Move => Trigger::AfterMove,
                Origin::Refit => Trigger::AfterRefit,
            };
            let measured = self.measured(self.since_move as usize)?;
            if self.is_unclear(&measured, rebalance.refit_windows) {
                return None;
            }
            let why = alloc::format!(
                "{} windows measured since {}: the curves are refitted from co-running rates.",
                self.since_move,
                if trigger == Trigger::Start {
                    "the start"
                } else {
                    "the move"
                }
            );
            return Some(Verdict {
                trigger,
                measured,
                why,
            });
        }
        if self.cooldown > 0 || !self.alarm.fires(&rebalance.detector) {
            return None;
        }
        // Over the windows since the change; of very few, one waits for more.
        let since = self.alarm.windows(&rebalance.detector);
        if since < FRESH_MIN && matches!(rebalance.detector, Detector::Cusum { .. }) {
            return None;
        }
        let measured = self.measured((since.min(FRESH_MAX) as usize).max(SMOOTH))?;
        let moved = |(gap, free): &(f64, Free)| {
            libm::fabs(measured.signed_gap() - gap) >= REARM_GAP || *free != ctx.free
        };
        if !self.judged.as_ref().is_none_or(moved) {
            return None;
        }
        let why = self.alarm.sentence(&rebalance.detector, &measured);
        Some(Verdict {
            trigger: Trigger::Detector,
            measured,
            why,
        })
    }

    /// Whether a refit would be better off with more windows: noise could have opened the gap, and the patience is not at
    /// its end. It looks again at 2 and 4 times as many windows, not at each: who looks often enough sees anything.
    fn is_unclear(&self, measured: &Measured, refit_windows: u32) -> bool {
        let (n, gap) = (self.since_move, measured.gap());
        let most = (refit_windows.saturating_mul(REFIT_PATIENCE)).min(window::KEEP_MAX as u32);
        let looks = (n / refit_windows).is_power_of_two() && n % refit_windows == 0;
        let owed = self.pending.is_some(); // the verdict of the window before, which nobody answered
        n < most && ((!looks && !owed) || (gap >= REFIT_GAP && gap < measured.noise_gap()))
    }

    /// The controller looked at the newest verdict, and the shares stay (its refit, if any, is committed): quiet
    /// until the gap moves or free resources change.
    pub fn stayed(&mut self, free: Free, reason: StayReason, detail: String) {
        self.refitted = true;
        self.alarm.reset();
        if let Some((trigger, measured)) = self.pending.take() {
            self.expected = Some((measured.t_r, measured.t_train));
            self.alarm
                .rebase(measured.t_r, measured.t_train, measured.windows);
            self.judged = (trigger == Trigger::Detector).then(|| (measured.signed_gap(), free));
        }
        self.remark(Some(reason), detail);
    }

    /// The shares move, because of the newest verdict or on somebody's word: everything measured so far belongs
    /// to the old split.
    pub fn moved(&mut self, cooldown_windows: u32, detail: String) {
        let mut cooldown = cooldown_windows;
        let pending = self.pending.take();
        if let Some((_, measured)) = pending.as_ref().filter(|(t, _)| *t != Trigger::Start) {
            let slower = measured.slower();
            cooldown = self.swing.cooldown(slower, self.since_move, cooldown);
        }
        self.origin = match pending {
            Some((Trigger::Start | Trigger::AfterMove | Trigger::AfterRefit, _)) => Origin::Refit,
            Some((Trigger::Detector, _)) | None => Origin::Move,
        };
        self.forget_split();
        self.recent.clear();
        self.alarm.moved();
        self.judged = None;
        self.expected = None;
        self.refitted = false;
        self.since_move = 0;
        self.cooldown = cooldown;
        self.remark(None, detail);
    }

    fn remark(&mut self, stayed: Option<StayReason>, detail: String) {
        if self.remarks.len() == REASONS_MAX {
            self.remarks.pop_front();
        }
        self.remarks.push_back(Remark {
            window: self.closed,
            stayed,
            detail,
        });
    }

    /// Smoothed over the newest `n` windows; none before the first.
    pub fn measured(&self, n: usize) -> Option<Measured> {
        let newest: Vec<&Window> = self.recent.iter().rev().take(n.max(1)).collect();
        let overlap = self.overlaps.shares().unwrap_or_default();
        window::smooth(&newest).map(|m| Measured { overlap, ..m })
    }

    /// What `top` shows.
    pub fn view(&self) -> View {
        View {
            measured: self.measured(SMOOTH),
            last: self.recent.back().cloned(),
            windows: self.closed,
            since_move: self.since_move,
            cooldown: self.cooldown,
            alarm: self.alarm.level(),
            held: self.judged.is_some(),
            remarks: self.remarks.iter().cloned().collect(),
            silent: self.windows.silent(&self.stages, self.began),
        }
    }

    /// When the last report came in.
    pub const fn last_report(&self) -> Option<Time> {
        self.windows.last_report()
    }
}

#[cfg(test)]
mod tests;
