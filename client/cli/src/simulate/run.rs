//! One policy on one node: jobs come, run and go; between two such moments each runs by itself. Called by `fleet` for
//! each node and policy.

use evenkeel_core::allocate::Inputs;
use evenkeel_core::curve::Profile;
use evenkeel_core::job::JobSpec;

use super::chunk::ChunkEngine;
use super::keeper::{Change, Keeper, spec_under};
use super::layout::Layout;
use super::meter::Seen;
use super::optimum::Optimum;
use super::policy::Policy;
use super::rivals;
use super::scenario::Fidelity;
use super::step::StepEngine;
use super::tally::Tally;
use super::together::{Candidate, Planned, plan_node};
use super::world::{JobWorld, World};

/// Most chunks of one job under one policy: a quarter of an hour of waiting. Beyond it something is written in the wrong
/// unit.
pub(super) const EVENTS_MAX: u64 = 200_000_000;
/// Most windows of one job under one policy, for the same reason: a month of windows of a quarter of a second.
const WINDOWS_MAX: f64 = 1e7;

/// How a job is run.
enum Engine<'a> {
    Step(StepEngine),
    Chunk(Box<ChunkEngine<'a>>),
}

/// Who decides on its shares.
enum Owner<'a> {
    Nobody,
    Keeper(Box<Keeper<'a>>),
    Optimum(Box<Optimum<'a>>),
}

/// A job that runs.
struct Running<'a> {
    job: &'a JobWorld<'a>,
    engine: Engine<'a>,
    owner: Owner<'a>,
    layout: Layout,
    /// Up to when its holdings are in the tally.
    held_to_s: f64,
}

/// A node under a policy.
struct NodeRun<'a> {
    world: &'a World<'a>,
    policy: Policy,
    fidelity: Fidelity,
    running: Vec<Option<Running<'a>>>,
    tally: Tally,
}

/// Runs a policy on a node. A reason, if it is not possible there.
pub(super) fn run(
    world: &World<'_>,
    policy: Policy,
    fidelity: Fidelity,
    horizon_s: f64,
) -> Result<Tally, String> {
    let stages = world.jobs.iter().map(|j| j.laws.len()).sum();
    let mut node = NodeRun {
        world,
        policy,
        fidelity,
        running: world.jobs.iter().map(|_| None).collect(),
        tally: Tally::new(horizon_s, world.jobs.len(), stages),
    };
    let mut now_s = 0.0;
    for until_s in moments(world, horizon_s) {
        node.assign(now_s)?;
        node.until(now_s, until_s)?;
        now_s = until_s;
    }
    Ok(node.tally)
}

fn is_present(job: &JobWorld<'_>, now_s: f64) -> bool {
    job.arrives_s <= now_s && now_s < job.ends_s
}

/// When jobs come or go, ascending, and the end.
fn moments(world: &World<'_>, horizon_s: f64) -> Vec<f64> {
    let both = world
        .jobs
        .iter()
        .flat_map(|job| [job.arrives_s, job.ends_s]);
    let mut moments: Vec<f64> = both.filter(|at| *at > 0.0 && *at < horizon_s).collect();
    moments.push(horizon_s);
    moments.sort_by(f64::total_cmp);
    moments.dedup();
    moments
}

impl<'a> NodeRun<'a> {
    /// Runs every job up to a moment.
    fn until(&mut self, now_s: f64, until_s: f64) -> Result<(), String> {
        let tally = &mut self.tally;
        for (job, run) in self.world.jobs.iter().zip(&mut self.running) {
            tally.next_job();
            if !is_present(job, now_s) {
                continue;
            }
            tally.present_s[job.index] += until_s - now_s;
            match run {
                Some(run) => run.until(until_s, tally)?,
                None => tally.waited_s[job.index] += until_s - now_s,
            }
        }
        Ok(())
    }

    /// Gives the jobs that are there their parts of the node.
    fn assign(&mut self, now_s: f64) -> Result<(), String> {
        let world = self.world;
        let jobs = world.jobs.iter();
        let present: Vec<&JobWorld<'_>> = jobs.filter(|job| is_present(job, now_s)).collect();
        for (job, run) in world.jobs.iter().zip(&mut self.running) {
            // Who has gone holds nothing any more.
            run.take_if(|_| !is_present(job, now_s));
        }
        for (job, planned) in present.iter().copied().zip(self.plan(&present)) {
            match planned {
                Ok(planned) => self.place(job, planned, now_s)?,
                // Whoever does not fit beside others waits for them; whoever does not fit alone never runs.
                Err(why) if present.len() == 1 => {
                    let name = &job.job.spec.name;
                    return Err(format!("job {name} does not fit on the node: {why}"));
                }
                Err(_) => self.running[job.index] = None,
            }
        }
        Ok(())
    }

    /// Plans of the jobs that are there.
    fn plan(&self, present: &[&JobWorld<'_>]) -> Vec<Result<Planned, String>> {
        let specs = present.iter().map(|job| spec_under(job, self.policy));
        let specs: Vec<JobSpec> = specs.collect();
        let is_even = self.policy == Policy::Even;
        let profiles = present.iter().map(|job| match is_even {
            true => Vec::new(),
            false => job.profiles.iter().map(Some).collect(),
        });
        let profiles: Vec<Vec<Option<&Profile>>> = profiles.collect();
        let candidates = present.iter().enumerate().map(|(at, job)| {
            let keeper = self.running[job.index]
                .as_ref()
                .and_then(|run| match &run.owner {
                    Owner::Keeper(keeper) => Some(keeper),
                    _ => None,
                });
            let fresh = || Inputs {
                profiles: &profiles[at],
                ..job.told(&specs[at])
            };
            Candidate {
                inputs: keeper.map_or_else(fresh, |keeper| keeper.known(&profiles[at])),
                // Whoever was not measured would keep what it had, and that would not be even any more.
                previous: keeper.filter(|_| !is_even).map(|keeper| keeper.plan()),
            }
        });
        let candidates: Vec<Candidate<'_>> = candidates.collect();
        plan_node(&self.world.node, &self.world.room, &candidates)
    }

    /// Gives a job its part of the node: a new one, if it is running already.
    fn place(&mut self, job: &'a JobWorld<'a>, planned: Planned, now_s: f64) -> Result<(), String> {
        let (world, policy) = (self.world, self.policy);
        if let Some(run) = &mut self.running[job.index] {
            return run.reassign(world, policy, planned, now_s, &mut self.tally);
        }
        let Planned { room, plan } = planned;
        let split = Layout::of_plan(&plan);
        let (owner, layout) = match policy {
            Policy::WholeGpu | Policy::Collocated | Policy::Hybrid | Policy::Unmanaged => {
                (Owner::Nobody, rivals::layout(policy, world, job, &room)?)
            }
            Policy::Clairvoyant => {
                let mut optimum = Optimum::new(world, job, room);
                let layout = optimum.at(&job.factors(now_s)).unwrap_or(split);
                (Owner::Optimum(Box::new(optimum)), layout)
            }
            _ => {
                let keeper = Keeper::new(world, job, policy, (room, plan));
                (Owner::Keeper(Box::new(keeper)), split)
            }
        };
        let period_s = layout.pace(job, &job.factors(now_s)).period_s;
        if !(period_s.is_finite() && self.tally.horizon_s() / period_s <= WINDOWS_MAX) {
            return Err(windows_of(job, period_s));
        }
        let engine = match self.fidelity {
            Fidelity::Step => Engine::Step(StepEngine::new(job, now_s)),
            Fidelity::Chunk => Engine::Chunk(Box::new(ChunkEngine::new(job, &layout, now_s)?)),
        };
        self.running[job.index] = Some(Running {
            job,
            engine,
            owner,
            layout,
            held_to_s: now_s,
        });
        Ok(())
    }
}

/// What is said of an iteration that takes far too little time, or for ever.
fn windows_of(job: &JobWorld<'_>, period_s: f64) -> String {
    let name = &job.job.spec.name;
    if period_s.is_finite() {
        format!(
            "an iteration of job {name} takes {period_s:.2e} s, and more than {WINDOWS_MAX:.0e} of them would be \
             simulated: make units_per_iteration larger, or simulate fewer seconds"
        )
    } else {
        format!(
            "a stage of job {name} would do no work with what it holds, so no iteration ever ends"
        )
    }
}

impl<'a> Running<'a> {
    /// Other jobs came or went: another part of the node.
    fn reassign(
        &mut self,
        world: &'a World<'a>,
        policy: Policy,
        planned: Planned,
        now_s: f64,
        tally: &mut Tally,
    ) -> Result<(), String> {
        match &mut self.owner {
            Owner::Nobody => {
                let layout = rivals::layout(policy, world, self.job, &planned.room)?;
                self.adopt(layout);
            }
            Owner::Optimum(_) => {
                let mut optimum = Optimum::new(world, self.job, planned.room);
                let layout = optimum.at(&self.job.factors(now_s));
                self.owner = Owner::Optimum(Box::new(optimum));
                self.adopt(layout.unwrap_or_else(|| Layout::of_plan(&planned.plan)));
            }
            Owner::Keeper(keeper) => {
                if let Some(change) = keeper.replanned(planned.room, planned.plan) {
                    let layout = Layout::of_plan(keeper.plan());
                    self.adopt(layout);
                    self.pause(&change, now_s, tally);
                }
            }
        }
        Ok(())
    }

    /// Runs up to a moment.
    fn until(&mut self, until_s: f64, tally: &mut Tally) -> Result<(), String> {
        while let Some(seen) = self.advance(until_s, tally)? {
            let now_s = self.now_s();
            match &mut self.owner {
                Owner::Nobody => {}
                Owner::Optimum(optimum) => {
                    let best = optimum.at(&self.job.factors(now_s));
                    if let Some(best) = best.filter(|best| *best != self.layout) {
                        self.note_held(now_s, tally);
                        self.adopt(best);
                    }
                }
                Owner::Keeper(keeper) => {
                    if let Some(change) = keeper.window(&seen) {
                        let layout = Layout::of_plan(keeper.plan());
                        self.note_held(now_s, tally);
                        self.adopt(layout);
                        self.pause(&change, now_s, tally);
                    }
                }
            }
        }
        self.note_held(until_s, tally);
        Ok(())
    }

    fn advance(&mut self, until_s: f64, tally: &mut Tally) -> Result<Option<Seen>, String> {
        match &mut self.engine {
            Engine::Step(step) => Ok(step.advance(self.job, &self.layout, until_s, tally)),
            Engine::Chunk(chunk) => chunk.advance(self.job, &self.layout, until_s, tally),
        }
    }

    fn now_s(&self) -> f64 {
        match &self.engine {
            Engine::Step(step) => step.now_s(),
            Engine::Chunk(chunk) => chunk.now_s(),
        }
    }

    fn adopt(&mut self, layout: Layout) {
        self.layout = layout;
        match &mut self.engine {
            Engine::Step(step) => step.changed(),
            Engine::Chunk(chunk) => chunk.changed(self.job, &self.layout),
        }
    }

    fn pause(&mut self, change: &Change, now_s: f64, tally: &mut Tally) {
        tally.moved(
            now_s,
            change.pause_s,
            self.job.job.spec.name.as_str(),
            &change.why,
        );
        match &mut self.engine {
            Engine::Step(step) => step.pause(change.pause_s),
            Engine::Chunk(chunk) => chunk.pause(change.pause_s),
        }
    }

    /// Puts what it has held since the last change into the tally.
    fn note_held(&mut self, now_s: f64, tally: &mut Tally) {
        let before: usize = self.job.stages_before;
        for (i, hold) in self.layout.holds.iter().enumerate() {
            let sms = if hold.sms > 0.0 { hold.sms } else { hold.cap };
            let span = (self.held_to_s, now_s);
            tally.hold(before + i, span, sms * hold.gpus, f64::from(hold.cores));
        }
        self.held_to_s = now_s;
    }
}

/// What is said of a scenario in which far too much happens.
pub(super) fn too_many(job: &JobWorld<'_>) -> String {
    format!(
        "more than {EVENTS_MAX} events of job {}: simulate fewer seconds, make units_per_iteration larger, or use \
         fidelity = \"step\"",
        job.job.spec.name
    )
}
