//! What people see: a live table on a terminal, plain lines elsewhere, nothing where a program reads the JSON.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crossterm::style::Stylize;
use crossterm::{cursor, queue, terminal};
use evenkeel_client::Job;

use super::calibrate::Trial;
use super::fleet::Fleet;
use super::report::{Figures, SteadyFigures};
use super::seeds::Stage;
use super::watch::Rebalance;

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(2);
/// Cells of the gap's bar.
const BAR: usize = 30;
/// The gap at which the bar is full.
const BAR_FULL: f64 = 0.5;
/// The detector's threshold, where the bar changes its colour.
const THRESHOLD: f64 = 0.15;
/// Windows that the detector wants.
const STREAK: u32 = 20;
/// Steps over which the live throughput is counted.
const RECENT: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Live,
    Lines,
    Silent,
}

/// Where the story is told.
pub(crate) struct Screen {
    mode: Mode,
    started: Instant,
    /// Lines of the table that is being overwritten.
    drawn: u16,
    told: Option<Instant>,
    trials: usize,
    out: Box<dyn Write + Send>,
}

impl Screen {
    /// Silent for programs; live on a terminal.
    pub(crate) fn new(json: bool, terminal: bool) -> Self {
        let mode = match (json, terminal) {
            (true, _) => Mode::Silent,
            (false, true) => Mode::Live,
            (false, false) => Mode::Lines,
        };
        Self {
            mode,
            started: Instant::now(),
            drawn: 0,
            told: None,
            trials: 0,
            out: Box::new(io::stdout()),
        }
    }

    /// A new part of the story.
    pub(crate) fn phase(&mut self, what: &str) {
        self.drawn = 0;
        self.told = None;
        self.line(&format!(
            "[{:5.1} s] {what}",
            self.started.elapsed().as_secs_f64()
        ));
    }

    /// A remark inside a part.
    pub(crate) fn note(&mut self, what: &str) {
        self.drawn = 0;
        self.line(&format!("          {what}"));
    }

    /// A pair of shares was tried.
    pub(crate) fn trial(&mut self, pair: &[Trial; 2]) {
        self.trials += 1;
        let text = format!(
            "          trial {:2}: generation on {:3} SMs {:6.0}/s, training on {:3} SMs {:6.0}/s",
            self.trials, pair[0].sms, pair[0].units_per_s, pair[1].sms, pair[1].units_per_s
        );
        match self.mode {
            Mode::Live => self.redraw(&[text]),
            Mode::Lines if self.trials % 8 == 1 => self.line(&text),
            Mode::Lines | Mode::Silent => {}
        }
    }

    /// The job as it is.
    pub(crate) fn live(&mut self, job: &Job, fleet: &Fleet, moves: &[Rebalance]) {
        match self.mode {
            Mode::Live => {
                let table = table(job, fleet, moves);
                self.redraw(&table);
            }
            Mode::Lines if self.told.is_none_or(|at| at.elapsed() >= LINE_EVERY) => {
                self.told = Some(Instant::now());
                self.line(&plain(job, fleet));
            }
            Mode::Lines | Mode::Silent => {}
        }
    }

    /// The closing words of a run with a drift.
    pub(crate) fn summary(&mut self, figures: &Figures) {
        self.drawn = 0;
        for line in summary(figures) {
            self.line(&line);
        }
    }

    /// The closing words of a run without one.
    pub(crate) fn steady_summary(&mut self, figures: &SteadyFigures) {
        self.drawn = 0;
        let unit = figures.unit;
        self.line("");
        self.line(&format!(
            "Without a drift: {} moves; managed {:.0} {unit}/s, the same split without a daemon {:.0} {unit}/s: {:.1} %.",
            figures.moves,
            figures.managed_units_per_s,
            figures.static_units_per_s,
            100.0 * figures.ratio
        ));
        self.line("The GPU was EMULATED: its timing is a model, its shares and their enforcement are real processes.");
    }

    fn line(&mut self, text: &str) {
        if self.mode != Mode::Silent {
            // A reader that has gone does not end the measurement.
            writeln!(self.out, "{text}")
                .and_then(|()| self.out.flush())
                .ok();
        }
    }

    fn redraw(&mut self, lines: &[String]) {
        let mut draw = || -> io::Result<()> {
            if self.drawn > 0 {
                queue!(
                    self.out,
                    cursor::MoveToPreviousLine(self.drawn),
                    terminal::Clear(terminal::ClearType::FromCursorDown)
                )?;
            }
            for line in lines {
                writeln!(self.out, "{line}")?;
            }
            self.out.flush()
        };
        draw().ok();
        self.drawn = u16::try_from(lines.len()).unwrap_or(0);
    }
}

/// Units per second over the newest steps, and the success rate of their episodes.
fn recent(fleet: &Fleet) -> (f64, f64) {
    let steps = &fleet.steps[fleet.steps.len().saturating_sub(RECENT)..];
    let ([first, rest @ ..], Some(last)) = (steps, steps.last()) else {
        return (0.0, 0.0);
    };
    let seconds = last.end_ns.saturating_sub(first.end_ns) as f64 * 1e-9;
    let units: f64 = rest.iter().map(|step| step.consumed).sum();
    let (ends, successes) = steps.iter().fold((0, 0), |(ends, successes), step| {
        (ends + step.episodes, successes + step.successes)
    });
    let rate = if seconds > 0.0 { units / seconds } else { 0.0 };
    (rate, f64::from(successes) / f64::from(ends.max(1)))
}

fn shares(job: &Job) -> Vec<(String, u32, u32, f64)> {
    let plan = job.plan.clone().unwrap_or_default();
    let rates = job
        .balance
        .as_ref()
        .map(|b| b.stage_units_per_s.clone())
        .unwrap_or_default();
    let row = |(index, stage): (usize, evenkeel_client::StagePlan)| {
        let rate = rates.get(index).copied().unwrap_or(0.0);
        (stage.stage, stage.cores, stage.cap_sms, rate)
    };
    plan.stages.into_iter().enumerate().map(row).collect()
}

fn plain(job: &Job, fleet: &Fleet) -> String {
    let balance = job.balance.clone().unwrap_or_default();
    let (rate, success) = recent(fleet);
    let shares: Vec<String> = shares(job)
        .into_iter()
        .map(|(stage, cores, sms, rate)| match stage.as_str() {
            name if name == Stage::Simulation.name() => {
                format!("{stage} {cores}c {rate:.0}/s")
            }
            _ => format!("{stage} {sms} SMs {rate:.0}/s"),
        })
        .collect();
    format!(
        "          step {:4}  {rate:6.0} steps/s  {}  gap {:4.1} %  streak {:2}  success {:3.0} %  {}",
        fleet.steps.last().map_or(0, |step| step.n),
        shares.join("  "),
        100.0 * balance.gap,
        balance.streak,
        100.0 * success,
        balance.state
    )
}

fn bar(gap: f64) -> String {
    let cells = ((gap / BAR_FULL) * BAR as f64)
        .round()
        .clamp(0.0, BAR as f64) as usize;
    let text = format!("{}{}", "#".repeat(cells), ".".repeat(BAR - cells));
    if gap > THRESHOLD {
        text.red().to_string()
    } else {
        text.green().to_string()
    }
}

fn table(job: &Job, fleet: &Fleet, moves: &[Rebalance]) -> Vec<String> {
    let balance = job.balance.clone().unwrap_or_default();
    let (rate, success) = recent(fleet);
    let mut lines = vec![format!(
        "  {:<12} {:>6} {:>6}  {:>14}",
        "stage", "cores", "SMs", "busy steps/s"
    )];
    for (stage, cores, sms, rate) in shares(job) {
        lines.push(format!("  {stage:<12} {cores:>6} {sms:>6}  {rate:>14.0}"));
    }
    lines.push(format!(
        "  training step {}: {rate:.0} env steps/s, {:.0} % of the episodes reach their goal",
        fleet.steps.last().map_or(0, |step| step.n),
        100.0 * success
    ));
    lines.push(format!(
        "  gap {} {:4.1} %   streak {:2} of {STREAK}   {}",
        bar(balance.gap),
        100.0 * balance.gap,
        balance.streak,
        balance.state
    ));
    let width = terminal::size().map_or(100, |(columns, _)| usize::from(columns));
    let words = moves
        .last()
        .map_or(balance.last.as_str(), |last| last.reason.as_str());
    let room = width.saturating_sub(4).max(20);
    // One line: a table that wraps cannot be drawn over.
    lines.push(format!(
        "  {}",
        words.chars().take(room).collect::<String>()
    ));
    lines
}

fn summary(figures: &Figures) -> Vec<String> {
    let unit = figures.unit;
    let mut lines = vec![
        String::new(),
        format!(
            "Measured, in {unit}/s ({} s a phase):",
            figures.phase_seconds
        ),
        format!(
            "  before the drift   {:7.0}   {}   gap {:.1} %",
            figures.before_drift_units_per_s,
            figures.split_before,
            100.0 * figures.before_gap
        ),
        format!(
            "  old split after it {:7.0}   {}; noticed and moved after {:.1} s",
            figures.static_units_per_s,
            figures.drift.describe(),
            figures.detection_seconds
        ),
        format!(
            "  rebalanced         {:7.0}   {}   gap {:.1} %",
            figures.rebalanced_units_per_s,
            figures.split_after,
            100.0 * figures.after_gap
        ),
        format!(
            "  gain               {:6.2}x   predicted {:.2}x, {} move{}",
            figures.gain,
            figures.predicted_gain,
            figures.rebalances.len(),
            if figures.rebalances.len() == 1 {
                ""
            } else {
                "s"
            }
        ),
    ];
    lines.extend(closing(figures));
    lines
}

/// Rivals, moves, and what was real.
fn closing(figures: &Figures) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(extra) = &figures.rivals {
        lines.extend([
            format!(
                "  best static split  {:7.0}   {}   of {} swept; the plan did {:.1} % of it",
                extra.best_static_units_per_s,
                extra.best_static_split,
                extra.swept,
                100.0 * extra.plan_vs_best
            ),
            format!(
                "  unmanaged          {:7.0}   no caps, no binding",
                extra.unmanaged_units_per_s
            ),
        ]);
    }
    for rebalance in &figures.rebalances {
        let took = rebalance
            .seconds_to_last_confirmed_grow
            .map_or_else(String::new, |s| format!(" (confirmed after {s:.2} s)"));
        lines.push(format!(
            "  step {}: {} -> {}{took}",
            rebalance.step, rebalance.before, rebalance.after
        ));
        lines.push(format!("    {}", rebalance.reason));
    }
    lines.push(format!(
        "  the policy reached its goal in {:.0} % of the episodes at first, {:.0} % at the end",
        100.0 * figures.success_rate_first,
        100.0 * figures.success_rate_last
    ));
    lines.push(format!(
        "  promised twice: for {:.2} s in {} looks of a separate observer",
        figures.overcommit_seconds, figures.observer.looks
    ));
    lines.push(
        "The GPU was EMULATED: its timing is a model. The daemon, the leases, the processes, the physics, the policy \
         and its training were real."
            .to_owned(),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_with_the_gap() {
        let cells = |gap| bar(gap).matches('#').count();
        assert_eq!(
            (cells(0.0), cells(0.25), cells(0.5), cells(0.9)),
            (0, 15, 30, 30)
        );
    }
}
