//! What people see: a live table on a terminal, plain lines elsewhere, nothing where a program reads the JSON.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crossterm::style::Stylize;
use crossterm::{cursor, queue, terminal};
use evenkeel_client::Job;

use super::calibrate::Trial;
use super::closing::PROSE;
use super::fleet::Fleet;
use super::seeds::Stage;
use super::watch::Rebalance;
use crate::text::{cut, wrapped};

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(2);
/// Cells of the gap's bar.
const BAR: usize = 30;
/// The gap at which the bar is full.
const BAR_FULL: f64 = 0.5;
/// The detector's default threshold, where the bar changes its colour.
const THRESHOLD: f64 = 0.15;
/// Windows that the detector wants by default.
const STREAK: u32 = 20;
/// Steps over which the live throughput is counted: some seconds.
const RECENT: usize = 8;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Live,
    Lines,
    Silent,
}

/// What there is to see of a job.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) job: &'a Job,
    pub(crate) fleet: &'a Fleet,
    pub(crate) moves: &'a [Rebalance],
}

impl View<'_> {
    fn gap(&self) -> f64 {
        self.job.balance.as_ref().map_or(0.0, |balance| balance.gap)
    }
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
        let mut at = format!("[{:5.1} s] ", self.started.elapsed().as_secs_f64());
        for line in wrapped(what, at.len(), PROSE) {
            let text = line.trim_start();
            self.line(&format!("{at}{text}"));
            at = " ".repeat(at.len());
        }
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
            Mode::Live => self.redraw(&[text], str::to_owned),
            Mode::Lines if self.trials % 8 == 1 => self.line(&text),
            Mode::Lines | Mode::Silent => {}
        }
    }

    /// The job as it is.
    pub(crate) fn live(&mut self, job: &Job, fleet: &Fleet, moves: &[Rebalance]) {
        match self.mode {
            Mode::Live => {
                let gap = job.balance.as_ref().map_or(0.0, |balance| balance.gap);
                let threshold = job.spec.rebalance.gap.unwrap_or(THRESHOLD);
                self.redraw(&table(job, fleet, moves), |line| {
                    painted(line, gap, threshold)
                });
            }
            Mode::Lines if self.told.is_none_or(|at| at.elapsed() >= LINE_EVERY) => {
                self.told = Some(Instant::now());
                self.line(&plain(job, fleet));
            }
            Mode::Lines | Mode::Silent => {}
        }
    }

    /// Several jobs as they are.
    pub(crate) fn several(&mut self, views: &[View<'_>]) {
        match self.mode {
            Mode::Live => {
                let tables = views.iter().map(|view| {
                    let title = format!("  {} ({})", view.job.spec.name, view.job.phase.as_str());
                    let rows = table(view.job, view.fleet, view.moves);
                    std::iter::once(title).chain(rows)
                });
                let lines: Vec<String> = tables.flatten().collect();
                let gaps: Vec<f64> = views.iter().map(View::gap).collect();
                self.redraw(&lines, |line| {
                    let of = gaps.iter().find(|gap| line.contains(&bar(**gap)));
                    of.map_or_else(|| line.to_owned(), |gap| painted(line, *gap, THRESHOLD))
                });
            }
            Mode::Lines if self.told.is_none_or(|at| at.elapsed() >= LINE_EVERY) => {
                self.told = Some(Instant::now());
                for view in views {
                    let (name, line) = (&view.job.spec.name, plain(view.job, view.fleet));
                    self.line(&format!("          {name:<8} {}", line.trim_start()));
                }
            }
            Mode::Lines | Mode::Silent => {}
        }
    }

    /// The closing words.
    pub(crate) fn close(&mut self, words: &[String]) {
        self.drawn = 0;
        for line in words {
            self.line(line);
        }
    }

    fn line(&mut self, text: &str) {
        if self.mode != Mode::Silent {
            // A reader that has gone does not end the measurement.
            writeln!(self.out, "{text}")
                .and_then(|()| self.out.flush())
                .ok();
        }
    }

    /// Draws over what was drawn last; each line is cut to the terminal's width (a table whose lines wrap cannot be
    /// drawn over), then painted.
    fn redraw(&mut self, lines: &[String], paint: impl Fn(&str) -> String) {
        // Some terminals do not know their size and say 0.
        let width = terminal::size().map_or(0, |(columns, _)| usize::from(columns));
        let width = if width == 0 { PROSE } else { width };
        let mut draw = || -> io::Result<()> {
            if self.drawn > 0 {
                queue!(
                    self.out,
                    cursor::MoveToPreviousLine(self.drawn),
                    terminal::Clear(terminal::ClearType::FromCursorDown)
                )?;
            }
            for line in lines {
                writeln!(self.out, "{}", paint(&cut(line, width)))?;
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

/// The gap as a bar, without its colour.
fn bar(gap: f64) -> String {
    let cells = ((gap / BAR_FULL) * BAR as f64)
        .round()
        .clamp(0.0, BAR as f64) as usize;
    format!("{}{}", "#".repeat(cells), ".".repeat(BAR - cells))
}

/// The table on a terminal: plain lines, not cut yet.
fn table(job: &Job, fleet: &Fleet, moves: &[Rebalance]) -> Vec<String> {
    let balance = job.balance.clone().unwrap_or_default();
    let (rate, success) = recent(fleet);
    let mut lines = vec![format!(
        "  {:<12} {:>6} {:>16}  {:>18}",
        "stage", "cores", "SMs (emulated)", "env steps/s busy"
    )];
    for (stage, cores, sms, rate) in shares(job) {
        lines.push(format!("  {stage:<12} {cores:>6} {sms:>16}  {rate:>18.0}"));
    }
    lines.push(format!(
        "  step {}: {rate:.0} env steps/s; {:.0} % of the episodes reach their goal",
        fleet.steps.last().map_or(0, |step| step.n),
        100.0 * success
    ));
    lines.push(format!(
        "  gap {} {:4.1} %  streak {:2} of {}  {}",
        bar(balance.gap),
        100.0 * balance.gap,
        balance.streak,
        job.spec.rebalance.windows.unwrap_or(STREAK),
        balance.state
    ));
    let words = moves
        .last()
        .map_or(balance.last.as_str(), |last| last.reason.as_str());
    lines.push(format!("  {words}"));
    lines
}

/// The gap's bar in its colour, in a line that was cut already; NO_COLOR is heeded by crossterm.
fn painted(line: &str, gap: f64, threshold: f64) -> String {
    let plain = bar(gap);
    let styled = if gap > threshold {
        plain.as_str().red()
    } else {
        plain.as_str().green()
    };
    line.replacen(&plain, &styled.to_string(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_before_it_is_painted() {
        let line = format!("  gap {} 25.0 %", bar(0.25));
        assert_eq!(cut(&line, 80), line);
        assert_eq!(cut(&line, 8), "  gap #…");
        assert_eq!(painted(&cut(&line, 8), 0.25, 0.15), "  gap #…");
        assert!(painted(&line, 0.25, 0.15).contains(&bar(0.25)));
    }

    #[test]
    fn the_bar_grows_with_the_gap() {
        let cells = |gap| bar(gap).matches('#').count();
        assert_eq!(
            (cells(0.0), cells(0.25), cells(0.5), cells(0.9)),
            (0, 15, 30, 30)
        );
    }
}
