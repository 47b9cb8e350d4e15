//! The job as the daemon tells it, polled while the pipeline runs: shares, throughputs, gap, streak, moves.

use std::time::{Duration, Instant};

use evenkeel_client::{Event, EventFilter, Job, PlanRequest, blocking};
use serde::{Deserialize, Serialize};

use super::DemoError;
use super::fleet::Fleet;
use super::seeds::Stage;
use super::show::Screen;

/// Between two looks at the job.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long one wait for the workers takes.
const LISTEN: Duration = Duration::from_millis(50);
/// How long a job may take until its curves are refitted and its shares are at rest.
const SETTLED_WITHIN: Duration = Duration::from_secs(45);
/// Windows after a move within which the refit is over: the daemon's 8, and two that close late.
const WINDOWS_TO_REFIT: u64 = 10;

/// A split, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SplitShares {
    /// Cores of the simulation.
    pub(crate) simulation_cores: u32,
    /// SMs of generation.
    pub(crate) generation_sms: u32,
    /// SMs of training.
    pub(crate) training_sms: u32,
}

impl SplitShares {
    /// Whether this is no less of anything than another split is altogether.
    pub(crate) fn covers(self, other: Self) -> bool {
        let sms = |split: Self| split.generation_sms + split.training_sms;
        self.simulation_cores >= other.simulation_cores && sms(self) >= sms(other)
    }
}

impl std::fmt::Display for SplitShares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} core{}, {} + {} SMs",
            self.simulation_cores,
            if self.simulation_cores == 1 { "" } else { "s" },
            self.generation_sms,
            self.training_sms
        )
    }
}

/// A move of the shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rebalance {
    /// Training steps done when it was seen.
    pub(crate) step: u64,
    /// The daemon's sentences.
    pub(crate) reason: String,
    pub(crate) before: SplitShares,
    pub(crate) after: SplitShares,
    /// From the decision to the moment at which the last lease that grew was confirmed; none: not confirmed yet.
    pub(crate) seconds_to_last_confirmed_grow: Option<f64>,
}

/// Watches the job.
pub(crate) struct Watch<'a> {
    client: &'a blocking::Client,
    /// The job's name.
    pub(crate) name: &'static str,
    looked: Option<Instant>,
    pub(crate) job: Job,
    /// Windows closed when the shares moved last.
    windows_at_move: u64,
    /// When a move was seen first, while it is under way.
    moving_since: Option<Instant>,
    pub(crate) moves: Vec<Rebalance>,
    /// Throughput that the sides' busy rates allowed, just before the last move.
    pub(crate) theta_before_move: f64,
}

impl<'a> Watch<'a> {
    /// Of the job of this name.
    pub(crate) fn new(client: &'a blocking::Client, name: &'static str) -> Result<Self, DemoError> {
        Ok(Self {
            client,
            name,
            looked: None,
            job: client.job(name)?,
            windows_at_move: 0,
            moving_since: None,
            moves: Vec::new(),
            theta_before_move: 0.0,
        })
    }

    /// The split of the plan in force.
    pub(crate) fn split(&self) -> SplitShares {
        split_of(&self.job)
    }

    /// Looks at the job if it is time, and shows it.
    pub(crate) fn look(&mut self, fleet: &Fleet, screen: &mut Screen) -> Result<(), DemoError> {
        if self.poll(fleet)? {
            screen.live(&self.job, fleet, &self.moves);
        }
        Ok(())
    }

    /// Looks at the job if it is time; whether it was.
    pub(crate) fn poll(&mut self, fleet: &Fleet) -> Result<bool, DemoError> {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(false);
        }
        self.looked = Some(Instant::now());
        let new = self.client.job(self.name)?;
        if new.moves > self.job.moves {
            let old = self.job.balance.as_ref();
            self.theta_before_move =
                old.map_or(0.0, |b| b.rollout_units_per_s.min(b.train_units_per_s));
            self.windows_at_move = new.balance.as_ref().map_or(0, |b| b.windows);
            self.moving_since = Some(Instant::now());
            self.moves.push(Rebalance {
                step: fleet.steps.last().map_or(0, |step| step.n),
                reason: self.reason()?,
                before: split_of(&self.job),
                after: split_of(&new),
                seconds_to_last_confirmed_grow: None,
            });
        }
        self.job = new;
        if !self.job.moving && self.moving_since.take().is_some() {
            let took = self.confirmed_after()?;
            if let Some(last) = self.moves.last_mut() {
                last.seconds_to_last_confirmed_grow = took;
            }
        }
        Ok(true)
    }

    /// Why the shares moved last.
    fn reason(&self) -> Result<String, DemoError> {
        let explained = self.client.explain(self.name)?;
        let moved = explained.decisions.into_iter().find(|d| d.kind == "moved");
        Ok(moved.map(|decision| decision.reason).unwrap_or_default())
    }

    /// From the audit trail: the time from the last replanning to the last share that was confirmed after it.
    fn confirmed_after(&self) -> Result<Option<f64>, DemoError> {
        let events = self.events()?;
        let Some(at) = events.iter().rposition(|e| e.kind == "job_replanned") else {
            return Ok(None);
        };
        let held = events[at..].iter().rfind(|e| e.kind == "lease_held");
        let ms = held.map(|held| held.unix_ms.saturating_sub(events[at].unix_ms));
        Ok(ms.map(|ms| ms as f64 / 1e3))
    }

    /// The newest events of the job in the audit trail, oldest first.
    pub(crate) fn events(&self) -> Result<Vec<Event>, DemoError> {
        let filter = EventFilter {
            job: Some(self.name.to_owned()),
            newest: true,
            ..EventFilter::default()
        };
        let (events, _) = self.client.block(self.client.inner().events(&filter))?;
        Ok(events)
    }

    /// Whether the shares are at rest, and so many windows closed that the refit should be over.
    pub(crate) fn is_settled(&self) -> bool {
        let windows = self.job.balance.as_ref().map_or(0, |b| b.windows);
        !self.job.moving && windows >= self.windows_at_move + WINDOWS_TO_REFIT
    }

    /// Whether the refit really is over: it was decided to stay since the split came into force. A refit that cannot
    /// tell its gap from noise waits for more windows.
    pub(crate) fn is_refitted(&self) -> Result<bool, DemoError> {
        let explained = self.client.explain(self.name)?;
        let kinds = ["stayed", "moved", "admitted"];
        let mut decisions = explained.decisions.iter();
        let newest = decisions.find(|d| kinds.contains(&d.kind.as_str()));
        Ok(newest.is_some_and(|decision| decision.kind == "stayed"))
    }

    /// The best that the job could do on what it has and what is free, by its curves as they are refitted now.
    pub(crate) fn refitted_units_per_s(&self) -> Result<f64, DemoError> {
        let request = PlanRequest {
            spec: self.job.spec.clone(),
            profiles: Vec::new(),
            cores: None,
            sms: None,
            memory_bytes: None,
        };
        Ok(self.client.solve_plan(request)?.units_per_s)
    }

    /// Lets the pipeline run until the curves are refitted and the shares are at rest.
    pub(crate) fn settle(
        &mut self,
        fleet: &mut Fleet,
        screen: &mut Screen,
    ) -> Result<(), DemoError> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        while !self.is_settled() {
            fleet.listen(LISTEN)?;
            fleet.check_stall()?;
            self.look(fleet, screen)?;
            if Instant::now() > deadline {
                return Err(DemoError::Unsettled {
                    seconds: SETTLED_WITHIN.as_secs(),
                    last: self.last_word(),
                });
            }
        }
        Ok(())
    }

    /// What the balance said last.
    pub(crate) fn last_word(&self) -> String {
        let balance = self.job.balance.clone().unwrap_or_default();
        format!(
            "after {} windows it is {} with a gap of {:.1} %: {}",
            balance.windows,
            balance.state,
            balance.gap * 100.0,
            balance.last
        )
    }

    /// The gap as it is measured now.
    pub(crate) fn gap(&self) -> f64 {
        self.job.balance.as_ref().map_or(0.0, |b| b.gap)
    }
}

/// The split of a job's plan.
fn split_of(job: &Job) -> SplitShares {
    let stage = |name: &str| {
        let plan = job.plan.as_ref()?;
        plan.stages.iter().find(|stage| stage.stage == name)
    };
    SplitShares {
        simulation_cores: stage(Stage::Simulation.name()).map_or(0, |s| s.cores),
        generation_sms: stage(Stage::Generation.name()).map_or(0, |s| s.cap_sms),
        training_sms: stage(Stage::Training.name()).map_or(0, |s| s.cap_sms),
    }
}
