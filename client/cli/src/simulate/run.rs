//! One policy on one node: jobs come, run and go; between two such moments each runs by itself. Called by `fleet` for
//! each node and policy.

use evenkeel_core::allocate::Inputs;
use evenkeel_core::curve::Profile;

use super::chunk::ChunkEngine;
use super::keeper::{Change, Keeper, Seen, spec_under};
use super::layout::Layout;
use super::optimum::Optimum;
use super::policy::Policy;
use super::rivals;
use super::scenario::Fidelity;
use super::step::StepEngine;
use super::tally::Tally;
use super::together::{Candidate, plan_node};
use super::world::{JobWorld, World};

/// Most windows or chunks of one job under one policy. Beyond it something is written in the wrong unit.
pub(super) const EVENTS_MAX: u64 = 200_000_000;

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

/// Runs a policy on a node. A reason, if it is not possible there.
pub(super) fn run(
    world: &World<'_>,
    policy: Policy,
    fidelity: Fidelity,
    horizon_s: f64,
) -> Result<Tally, String> {
    let stages = world.jobs.iter().map(|j| j.laws.len()).sum();
    let mut tally = Tally::new(horizon_s, world.jobs.len(), stages);
    let mut running: Vec<Option<Running<'_>>> = world.jobs.iter().map(|_| None).collect();
    let mut now_s = 0.0;
    let moments = moments(world, horizon_s);
    for until_s in moments {
        assign(world, policy, fidelity, now_s, &mut running, &mut tally)?;
        for (job, run) in world.jobs.iter().zip(&mut running) {
            tally.next_job();
            if !is_present(job, now_s) {
                continue;
            }
            tally.present_s[job.index] += until_s - now_s;
            match run {
                Some(run) => run.until(until_s, &mut tally)?,
                None => tally.waited_s[job.index] += until_s - now_s,
            }
        }
        now_s = until_s;
    }
    Ok(tally)
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

/// Gives the jobs that are there their parts of the node.
fn assign<'a>(
    world: &'a World<'a>,
    policy: Policy,
    fidelity: Fidelity,
    now_s: f64,
    running: &mut [Option<Running<'a>>],
    tally: &mut Tally,
) -> Result<(), String> {
    let present: Vec<&JobWorld<'_>> = world
        .jobs
        .iter()
        .filter(|job| is_present(job, now_s))
        .collect();
    let specs: Vec<_> = present.iter().map(|job| spec_under(job, policy)).collect();
    let profiles: Vec<Vec<Option<&Profile>>> = present
        .iter()
        .map(|job| match policy {
            Policy::Even => Vec::new(),
            _ => job.profiles.iter().map(Some).collect(),
        })
        .collect();
    let candidates = present.iter().enumerate().map(|(at, job)| {
        let fresh = || Inputs {
            profiles: &profiles[at],
            ..job.told(&specs[at])
        };
        let keeper = running[job.index]
            .as_ref()
            .and_then(|run| match &run.owner {
                Owner::Keeper(keeper) => Some(keeper),
                _ => None,
            });
        Candidate {
            inputs: keeper.map_or_else(fresh, |keeper| keeper.known(&profiles[at])),
            weight: job.job.weight,
            gpus: job.gpus,
            // Whoever was not measured would keep what it had, and that would not be even any more.
            previous: keeper
                .filter(|_| policy != Policy::Even)
                .map(|keeper| keeper.plan()),
        }
    });
    let planned = plan_node(&world.node, &world.room, &candidates.collect::<Vec<_>>());
    for (job, planned) in present.iter().copied().zip(planned) {
        let planned = match planned {
            Ok(planned) => planned,
            // Whoever does not fit beside others waits for them; whoever does not fit alone never runs.
            Err(why) if present.len() == 1 => {
                return Err(format!(
                    "job {} does not fit on the node: {why}",
                    job.job.spec.name
                ));
            }
            Err(_) => {
                running[job.index] = None;
                continue;
            }
        };
        if let Some(run) = &mut running[job.index] {
            run.reassign(world, policy, planned, now_s, tally)?;
            continue;
        }
        let (room, plan) = (planned.room, planned.plan);
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
        let engine = match fidelity {
            Fidelity::Step => Engine::Step(StepEngine::new(job, now_s)),
            Fidelity::Chunk => Engine::Chunk(Box::new(ChunkEngine::new(job, &layout, now_s)?)),
        };
        running[job.index] = Some(Running {
            job,
            engine,
            owner,
            layout,
            held_to_s: now_s,
        });
    }
    // Who has gone holds nothing any more.
    for (job, run) in world.jobs.iter().zip(running.iter_mut()) {
        if !is_present(job, now_s) {
            *run = None;
        }
    }
    Ok(())
}

impl<'a> Running<'a> {
    /// Other jobs came or went: another part of the node.
    fn reassign(
        &mut self,
        world: &'a World<'a>,
        policy: Policy,
        planned: super::together::Planned,
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
        let mut windows: u64 = 0;
        while let Some(seen) = self.advance(until_s, tally)? {
            windows += 1;
            if windows > EVENTS_MAX {
                return Err(too_many(self.job));
            }
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
