//! Caps beyond guarantees are lent: they are called back where somebody else has been given what lies under them.
//!
//! Within a job caps may overlap (`sm_mode = cap`); what is another's is reserved for it, whoever lent it before. Guarantees,
//! cores and memory stay as they are here, and who can never change its share (`fixed`, in use) keeps its cap.
use alloc::collections::BTreeMap;
use alloc::format;

use super::job::{inputs_of, pinned, profiles_of};
use super::room::{counted_for, free_room};
use crate::allocate::{Inputs, Room, Solution, outlook, problem_for, supply_for};
use crate::balance::Watch;
use crate::event::Event;
use crate::id::GpuId;
use crate::job::{Job, JobPhase, Plan, SmMode, StagePlan};
use crate::node::Node;
use crate::state::Durable;
use crate::unit::{Sms, Total as _};
use crate::volatile::Volatile;

/// The next job that has to give caps back. Call again after applying it, until there is none.
pub(super) fn next(d: &Durable, v: &Volatile) -> Option<Event> {
    let mut lent = d.jobs().values().filter(|j| lends(j)).peekable();
    lent.peek()?;
    let left = Left::of(d);
    lent.find_map(|job| recalled(d, v, job, &left))
}

/// Whether a job's stages may use more than they are promised.
fn lends(job: &Job) -> bool {
    let beyond = |plan: &Plan| plan.stages.iter().any(|s| s.cap > s.sms);
    job.phase == JobPhase::Admitted
        && job.spec.sm_mode == SmMode::Cap
        && job.plan.as_ref().is_some_and(beyond)
}

/// What is left of each GPU when leases without a job, and losses, are taken off; and what jobs' plans promise of it.
struct Left {
    to_jobs: BTreeMap<GpuId, Sms>,
    promised: BTreeMap<GpuId, Sms>,
}

impl Left {
    fn of(d: &Durable) -> Self {
        let free = free_room(d).gpus;
        let mut to_jobs: BTreeMap<GpuId, Sms> = free.iter().map(|(id, f)| (*id, f.0)).collect();
        let mut promised = BTreeMap::new();
        for job in d.jobs().values() {
            for (id, (sms, _)) in counted_for(d, job).gpus {
                *to_jobs.entry(id).or_default() += sms;
            }
            let Some(plan) = &job.plan else { continue };
            for id in &plan.gpus {
                *promised.entry(*id).or_default() += promises(plan);
            }
        }
        Self { to_jobs, promised }
    }

    /// How far the caps of a plan may go: over what is nobody else's on any of its GPUs.
    fn most(&self, plan: &Plan) -> Sms {
        let on = |id: &GpuId| {
            let jobs = self.to_jobs.get(id).copied().unwrap_or_default();
            let promised = self.promised.get(id).copied().unwrap_or_default();
            jobs.saturating_sub(promised.saturating_sub(promises(plan)))
        };
        plan.gpus.iter().map(on).min().unwrap_or_default()
    }
}

/// SMs that a plan promises its stages on each of its GPUs.
fn promises(plan: &Plan) -> Sms {
    Sms(plan.stages.iter().map(|s| s.sms.0).total())
}

fn recalled(d: &Durable, v: &Volatile, job: &Job, left: &Left) -> Option<Event> {
    let had = job.plan.as_ref()?;
    let most = left.most(had);
    let pins = pinned(d, job);
    let mut plan = had.clone();
    let movable = plan.stages.iter_mut().zip(&pins).filter(|(_, pin)| !**pin);
    for (stage, _) in movable.filter(|(stage, _)| stage.cap > most) {
        trim(d.node(), stage, most);
    }
    if plan.stages == had.stages {
        return None;
    }
    expect(d, v, (job, &pins), most, &mut plan);
    let why = format!(
        "others have been given SMs under its caps: they go up to {most} from now on, its guarantees stay."
    );
    Some(Event::JobReplanned {
        id: job.id,
        plan,
        reason: why,
    })
}

/// Lowers the caps of a stage's workers in proportion, to counts that the GPU can enforce, and never below a guarantee.
fn trim(node: &Node, stage: &mut StagePlan, most: Sms) {
    let before = u64::from(stage.cap.0.max(1));
    let mut on: BTreeMap<GpuId, Sms> = BTreeMap::new();
    let shares = stage.workers.iter_mut().flat_map(|w| w.gpus.iter_mut());
    for (id, share) in shares {
        let part = u64::from(share.cap.0) * u64::from(most.0) / before;
        let part = Sms(u32::try_from(part).unwrap_or(u32::MAX));
        let cap = node.gpu(*id).map_or(Sms(0), |g| g.round_down(part));
        share.cap = share.cap.min(cap.max(share.guarantee));
        *on.entry(*id).or_default() += share.cap;
    }
    let cap = on.into_values().max().unwrap_or_default();
    stage.cap = stage.cap.min(cap.max(stage.sms));
}

/// What the plan does with these caps. Where that cannot be told, the old promise stands until it is measured.
fn expect(d: &Durable, v: &Volatile, (job, pins): (&Job, &[bool]), most: Sms, plan: &mut Plan) {
    let profiles = profiles_of(d, &job.tenant, &job.spec);
    let inputs = Inputs {
        eta: v.watches.get(&job.id).and_then(Watch::eta),
        ..inputs_of(job, &profiles, pins)
    };
    let (own, free) = (counted_for(d, job), free_room(d));
    let on = |map: &Room, id: &GpuId| map.gpus.get(id).map_or(Default::default(), |g| g.1);
    let room = Room {
        cores: own.cores.union(&free.cores),
        gpus: (plan.gpus.iter())
            .map(|id| (*id, (most, on(&own, id) + on(&free, id))))
            .collect(),
    };
    if let Ok(problem) = problem_for(&inputs, supply_for(d.node(), &room, &plan.gpus)) {
        plan.expect(&outlook(&problem, &Solution::of_plan(plan)));
    }
}
