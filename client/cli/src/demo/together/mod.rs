//! The demo with two jobs: the second comes, the first shrinks to its fair part, both run, the second ends, the first has
//! everything back. Nothing drifts. `figures` is what programs read of it, `closing` what people do, `trail` reads the
//! moments of a transition from the daemon's audit trail.

mod closing;
mod figures;
mod trail;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use evenkeel_client::{Job, JobSpec};
use evenkeel_rollout::affinity::boottime_ns;

use super::fleet::{Fleet, Measured, Site};
use super::jobspec::{JOB, SECOND, UNIT, another};
use super::show::{Screen, View};
use super::story::{Prepared, policy_name, prepare};
use super::talk::Down;
use super::watch::{SplitShares, Watch};
use super::{DemoArgs, DemoError};
use figures::{Arrival, Departure, Figures, Phase};
use trail::{confirmed_ms, first_ms, last_seq, unix_ms};

/// How long one look at the workers of a job waits for them to say something.
const LISTEN: Duration = Duration::from_millis(25);
/// How long a transition may take: seconds, of which a loaded machine takes more. The workers of the second job wait
/// less long for their leases, and then say themselves what they lack.
const TRANSITION_WITHIN: Duration = Duration::from_secs(30);
/// How long two jobs may take until their curves are refitted and their shares are at rest: up to 32 windows that half
/// of the GPU makes as long as a second, perhaps a move, and the same again.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// A job that runs.
struct Running<'a> {
    fleet: Fleet,
    watch: Watch<'a>,
}

impl Running<'_> {
    /// Takes in what its workers and the daemon say.
    fn listen(&mut self) -> Result<(), DemoError> {
        self.fleet.listen(LISTEN)?;
        if self.fleet.is_ready() {
            self.fleet.check_stall()?;
        }
        self.watch.poll(&self.fleet)?;
        Ok(())
    }

    fn view(&self) -> View<'_> {
        View {
            job: &self.watch.job,
            fleet: &self.fleet,
            moves: &self.watch.moves,
        }
    }

    fn is_at_rest(&self) -> Result<bool, DemoError> {
        Ok(self.watch.is_settled() && self.watch.is_refitted()?)
    }
}

/// What the daemon says before a phase is measured.
#[derive(Clone, Copy)]
struct Foretold {
    predicted_units_per_s: f64,
    refitted_units_per_s: f64,
    split: SplitShares,
    moves: u32,
}

/// What runs on the node.
struct Together<'a> {
    stage: &'a Prepared,
    screen: &'a mut Screen,
    observer: Fleet,
    first: Running<'a>,
    second: Option<Running<'a>>,
}

/// Tells the whole story; the figures at its end.
pub(crate) fn run(
    args: &DemoArgs,
    stop: &Arc<AtomicBool>,
    mut screen: Screen,
) -> Result<Figures, DemoError> {
    let started = Instant::now();
    let stage = prepare(args, stop, &mut screen)?;
    let mut figures = told(args, &stage, &mut screen)?;
    figures.run_seconds = started.elapsed().as_secs_f64();
    screen.close(&closing::summary(&figures));
    Ok(figures)
}

fn told(args: &DemoArgs, stage: &Prepared, screen: &mut Screen) -> Result<Figures, DemoError> {
    let length = Duration::from_secs(args.seconds);
    screen.phase(
        "submitting the first job; its workers take their leases, and it has the node for itself",
    );
    let mut node = Together::start(stage, screen)?;
    node.settle()?;
    node.screen.phase(&format!("{JOB} alone"));
    let (alone, _) = node.measure(length)?;

    node.screen.phase(&format!(
        "{SECOND} comes: its admission is promised, {JOB} gives up what is more than its fair part"
    ));
    let mut arrival = node.arrive()?;
    node.screen.phase(
        "both settle: the curves are refitted once from what each measures beside the other",
    );
    arrival.settled_seconds = node.settle()?;
    node.screen.phase(&format!("{JOB} and {SECOND} together"));
    let (shared, second) = node.measure(length)?;
    let second = second.unwrap_or_default();

    node.screen
        .phase(&format!("{SECOND} ends: what it had goes back to {JOB}"));
    let departure = node.depart(alone.split)?;
    node.settle()?;
    node.screen.phase(&format!("{JOB} alone again"));
    let (after, _) = node.measure(length)?;
    let found = node.end()?;
    let by_alone = |phase: Phase| phase.levelled(&alone);
    Ok(Figures {
        gpu_is_emulated: true,
        jobs: args.jobs,
        seed: args.seed,
        policy: policy_name(args.policy),
        unit: UNIT,
        phase_seconds: args.seconds,
        first_job: JOB,
        second_job: SECOND,
        first_alone: by_alone(alone.clone()),
        first_shared: by_alone(shared),
        second_shared: by_alone(second),
        first_after: by_alone(after),
        arrival,
        departure,
        overcommit_seconds: found.overcommit_seconds,
        observer: found,
        physics_substeps: stage.load.substeps,
        run_seconds: 0.0,
    })
}

impl<'a> Together<'a> {
    /// The first job, with an observer.
    fn start(stage: &'a Prepared, screen: &'a mut Screen) -> Result<Self, DemoError> {
        stage.client.submit(JobSpec::request_id(), &stage.spec)?;
        let fleet = stage.managed()?;
        let observer = stage.observe(&fleet)?;
        let watch = Watch::new(&stage.client, JOB)?;
        Ok(Self {
            stage,
            screen,
            observer,
            first: Running { fleet, watch },
            second: None,
        })
    }

    /// Takes in what all workers and the daemon say, and shows it.
    fn turn(&mut self) -> Result<(), DemoError> {
        self.first.listen()?;
        if let Some(second) = &mut self.second {
            second.listen()?;
        }
        let views = [Some(&self.first), self.second.as_ref()];
        let views: Vec<View<'_>> = views.into_iter().flatten().map(Running::view).collect();
        self.screen.several(&views);
        Ok(())
    }

    /// Lets everything run until something is so; the seconds that it took.
    fn until(
        &mut self,
        what: &'static str,
        within: Duration,
        is_so: impl Fn(&Self) -> Result<bool, DemoError>,
    ) -> Result<f64, DemoError> {
        let began = Instant::now();
        while !is_so(self)? {
            self.turn()?;
            if began.elapsed() > within {
                return Err(DemoError::NotWithin {
                    what,
                    seconds: within.as_secs(),
                    last: self.last_words(),
                });
            }
        }
        Ok(began.elapsed().as_secs_f64())
    }

    fn last_words(&self) -> String {
        let second = self.second.as_ref().map(|second| &second.watch);
        let watches = std::iter::once(&self.first.watch).chain(second);
        let words = watches.map(|watch| format!("{}: {}", watch.name, watch.last_word()));
        words.collect::<Vec<_>>().join("; ")
    }

    /// Until the curves of all jobs are refitted and their shares are at rest.
    fn settle(&mut self) -> Result<f64, DemoError> {
        self.until("a refit of all jobs", SETTLED_WITHIN, |node| {
            let second = node.second.as_ref().map_or(Ok(true), Running::is_at_rest)?;
            Ok(second && node.first.is_at_rest()?)
        })
    }

    /// Measures all jobs over the same time, and compares them with what was foretold.
    fn measure(&mut self, length: Duration) -> Result<(Phase, Option<Phase>), DemoError> {
        let first_foretold = foretold(&self.first.watch)?;
        let second_foretold = self
            .second
            .as_ref()
            .map(|s| foretold(&s.watch))
            .transpose()?;
        let (from_ns, until) = (boottime_ns(), Instant::now() + length);
        while Instant::now() < until {
            self.turn()?;
        }
        let to_ns = boottime_ns();
        let phase = |running: &Running<'_>, foretold: Foretold| {
            let measured = running.fleet.measured(from_ns, to_ns);
            phase(&running.watch, foretold, measured)
        };
        let second = self.second.as_ref().zip(second_foretold);
        Ok((
            phase(&self.first, first_foretold),
            second.map(|(running, foretold)| phase(running, foretold)),
        ))
    }

    /// The second job comes, and runs.
    fn arrive(&mut self) -> Result<Arrival, DemoError> {
        let stage = self.stage;
        let (before, moves) = (self.first.watch.split(), self.first.watch.moves.len());
        let known = last_seq(&self.first.watch.events()?);
        let spec = another(&stage.spec, SECOND);
        // Arms of its own: other targets, other noise.
        let site = Site {
            seed: stage.site.seed.wrapping_add(1),
            ..stage.site.clone()
        };
        let (came, came_ns) = (Instant::now(), boottime_ns());
        stage.client.submit(JobSpec::request_id(), &spec)?;
        let fleet = stage.launch(&site, SECOND)?;
        let watch = Watch::new(&stage.client, SECOND)?;
        self.second = Some(Running { fleet, watch });

        let second = |node: &Self, is_so: fn(&Running<'_>) -> bool| {
            Ok(node.second.as_ref().is_some_and(is_so))
        };
        self.until(
            "the start of the second job's workers",
            TRANSITION_WITHIN,
            |node| second(node, |running| running.fleet.is_ready()),
        )?;
        // From here on its simulator is bound to cores that are its own.
        let fleets = std::iter::once(&self.first).chain(&self.second);
        let watched = fleets.flat_map(|running| stage.watched(&running.fleet));
        self.observer.tell(&Down::Watch(watched.collect()));
        self.until(
            "the move of the first job to its fair part",
            TRANSITION_WITHIN,
            |node| {
                let watch = &node.first.watch;
                Ok(watch.moves.len() > moves && !watch.job.moving)
            },
        )?;
        let waited = came.elapsed().as_secs_f64();
        self.until(
            "the second job's first training step",
            TRANSITION_WITHIN,
            |node| second(node, |running| !running.fleet.steps.is_empty()),
        )?;
        self.arrived(before, moves, known, (came_ns, waited))
    }

    /// When what happened, and why.
    fn arrived(
        &self,
        before: SplitShares,
        moves: usize,
        known: u64,
        (came_ns, waited): (u64, f64),
    ) -> Result<Arrival, DemoError> {
        let moved = self.first.watch.moves.get(moves);
        let mut arrival = Arrival {
            first_confirmed_seconds: waited,
            first_split_before: before,
            first_split_after: moved.map_or(before, |moved| moved.after),
            first_reason: moved.map(|m| m.reason.clone()).unwrap_or_default(),
            ..Arrival::default()
        };
        let Some(second) = &self.second else {
            return Ok(arrival);
        };
        let step_ns = second
            .fleet
            .steps
            .first()
            .map_or(came_ns, |step| step.end_ns);
        arrival.second_runs_seconds = step_ns.saturating_sub(came_ns) as f64 * 1e-9;
        arrival.second_split = second.watch.split();
        arrival.second_reason = last_why(&second.watch.job);
        let events = second.watch.events()?;
        if let Some(submitted) = first_ms(&events, "job_submitted") {
            let since = |ms: u64| ms.saturating_sub(submitted) as f64 / 1e3;
            arrival.second_admitted_seconds = first_ms(&events, "job_admitted").map(since);
            if let Some(held) = confirmed_ms(&self.first.watch.events()?, known) {
                arrival.first_confirmed_seconds = since(held);
            }
        }
        Ok(arrival)
    }

    /// The second job ends, and the first takes what it leaves.
    fn depart(&mut self, alone: SplitShares) -> Result<Departure, DemoError> {
        let (before, moves) = (self.first.watch.split(), self.first.watch.moves.len());
        let known = last_seq(&self.first.watch.events()?);
        let (ends, ends_ms) = (Instant::now(), unix_ms());
        if let Some(second) = self.second.take() {
            second.fleet.end();
            self.stage.client.cancel_job(SECOND)?;
        }
        let workers_ended_seconds = ends.elapsed().as_secs_f64();
        let watched = self.stage.watched(&self.first.fleet);
        self.observer.tell(&Down::Watch(watched));
        self.until(
            "the move of the first job to the whole node",
            TRANSITION_WITHIN,
            |node| {
                let watch = &node.first.watch;
                Ok(watch.moves.len() > moves && !watch.job.moving)
            },
        )?;
        let waited = ends.elapsed().as_secs_f64();
        let held = confirmed_ms(&self.first.watch.events()?, known);
        let split_after = self.first.watch.split();
        let moved = self.first.watch.moves.get(moves);
        Ok(Departure {
            second_ended_seconds: workers_ended_seconds,
            first_confirmed_seconds: held
                .map_or(waited, |ms| ms.saturating_sub(ends_ms) as f64 / 1e3),
            everything_back: split_after.covers(alone),
            first_split_before: before,
            first_split_after: split_after,
            first_reason: moved.map(|m| m.reason.clone()).unwrap_or_default(),
        })
    }

    /// What the observer found; everything ends.
    fn end(mut self) -> Result<super::talk::Observed, DemoError> {
        let found = self.observer.found()?;
        self.observer.end();
        self.first.fleet.end();
        self.stage.client.cancel_job(JOB)?;
        Ok(found)
    }
}

/// What the daemon says that a job will do.
fn foretold(watch: &Watch<'_>) -> Result<Foretold, DemoError> {
    let plan = watch.job.plan.as_ref();
    Ok(Foretold {
        predicted_units_per_s: plan.map_or(0.0, |plan| plan.units_per_s),
        refitted_units_per_s: watch.refitted_units_per_s()?,
        split: watch.split(),
        moves: watch.job.moves,
    })
}

/// What was measured of a job, beside what was foretold.
fn phase(watch: &Watch<'_>, foretold: Foretold, measured: Measured) -> Phase {
    let over = |predicted: f64| match predicted > 0.0 {
        true => measured.units_per_s / predicted,
        false => 0.0,
    };
    Phase {
        measured_units_per_s: measured.units_per_s,
        predicted_units_per_s: foretold.predicted_units_per_s,
        measured_over_predicted: over(foretold.predicted_units_per_s),
        refitted_units_per_s: foretold.refitted_units_per_s,
        measured_over_refitted: over(foretold.refitted_units_per_s),
        level: 0.0,
        predicted_level: 0.0,
        split: foretold.split,
        gap: watch.gap(),
        steps: measured.steps,
        staleness_most: measured.staleness,
        moves: watch.job.moves,
        moves_meanwhile: watch.job.moves.saturating_sub(foretold.moves),
    }
}

/// The daemon's last sentence on a job's plan: where jobs share a node, it says what part of it this one has.
fn last_why(job: &Job) -> String {
    let plan = job.plan.as_ref();
    plan.and_then(|plan| plan.why.last().cloned())
        .unwrap_or_default()
}
