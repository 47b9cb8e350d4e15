//! Several jobs on one node: what each may use, and its plan in there. The only place that plans a node's jobs.
//!
//! The production allocator plans them together, as the daemon does when a job comes or goes; who came last waits if not
//! everybody fits. In between each job is planned by itself, in a room of its own: what its plan has, and an even part of
//! what nobody has.

use std::collections::BTreeMap;

use evenkeel_core::allocate::{self, Bidder, Inputs, Room};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::grant::Vector;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::Plan;
use evenkeel_core::node::Node;
use evenkeel_core::unit::{Bytes, Sms};

/// A job that wants a part of the node; they come in the order of their arrival.
pub(super) struct Candidate<'a> {
    pub(super) inputs: Inputs<'a>,
    pub(super) previous: Option<&'a Plan>,
}

/// What a job gets.
#[derive(Debug)]
pub(super) struct Planned {
    /// What it may use.
    pub(super) room: Room,
    /// Its split.
    pub(super) plan: Plan,
}

/// Plans the jobs of a node. A reason instead of a plan: the job waits.
pub(super) fn plan_node(
    node: &Node,
    all: &Room,
    jobs: &[Candidate<'_>],
) -> Vec<Result<Planned, String>> {
    let (mut admitted, mut waiting) = (jobs.len(), Vec::new());
    let plans = loop {
        match plans(node, all, &jobs[..admitted]) {
            Ok(plans) => break plans,
            Err(why) => {
                waiting.push(Err(why));
                admitted -= 1;
            }
        }
    };
    let rooms = rooms(all, &plans);
    let planned = rooms.into_iter().zip(plans);
    let planned = planned.map(|(room, plan)| Ok(Planned { room, plan }));
    // Those that wait were found last to first.
    planned.chain(waiting.into_iter().rev()).collect()
}

fn plans(node: &Node, all: &Room, jobs: &[Candidate<'_>]) -> Result<Vec<Plan>, String> {
    match jobs {
        [] => Ok(Vec::new()),
        [job] => {
            // What it had may be more or less than there is now.
            let planned = allocate::plan(&job.inputs, node, all, job.previous)
                .or_else(|_| allocate::plan(&job.inputs, node, all, None));
            planned
                .map(|(plan, _)| vec![plan])
                .map_err(|why| why.to_string())
        }
        several => {
            // One tenant: caps are no part of a scenario.
            let tenant = Name::unknown();
            let bidders = several.iter().map(|job| Bidder {
                inputs: job.inputs,
                previous: job.previous,
                tenant: &tenant,
            });
            let bidders: Vec<Bidder<'_>> = bidders.collect();
            let portions = allocate::plan_together(&bidders, node, all, &[]);
            let portions = portions.map_err(|why| why.to_string())?;
            Ok(portions.into_iter().map(|portion| portion.plan).collect())
        }
    }
}

/// What each plan's job may use: what the plan has, and an even part of what nobody has.
fn rooms(all: &Room, plans: &[Plan]) -> Vec<Room> {
    let owned: Vec<Room> = plans.iter().map(own).collect();
    let mut free_cores = all.cores.clone();
    for room in &owned {
        free_cores = free_cores.difference(&room.cores);
    }
    let n = plans.len() as u32;
    let used = |gpu: &GpuId| -> (Sms, Bytes) {
        let shares = || owned.iter().filter_map(|room| room.gpus.get(gpu));
        (shares().map(|s| s.0).sum(), shares().map(|s| s.1).sum())
    };
    let mut rooms = owned.clone();
    for (i, room) in (0..n).zip(&mut rooms) {
        let part = free_cores.take((free_cores.len()).div_ceil(n - i));
        free_cores = free_cores.difference(&part);
        room.cores = room.cores.union(&part);
        for (gpu, has) in &mut room.gpus {
            let (sms, memory) = all.gpus.get(gpu).copied().unwrap_or_default();
            let (used_sms, used_memory) = used(gpu);
            let sharers = owned
                .iter()
                .filter(|room| room.gpus.contains_key(gpu))
                .count() as u32;
            has.0 += Sms((sms - used_sms).0 / sharers);
            has.1 += Bytes((memory - used_memory).0 / u64::from(sharers));
        }
    }
    rooms
}

/// What a plan has.
fn own(plan: &Plan) -> Room {
    let vectors = || plan.stages.iter().flat_map(|stage| &stage.workers);
    let cores = vectors().fold(CpuSet::new(), |sum, vector: &Vector| {
        sum.union(&vector.cores)
    });
    let mut gpus: BTreeMap<GpuId, (Sms, Bytes)> = plan
        .gpus
        .iter()
        .map(|id| (*id, Default::default()))
        .collect();
    for (id, share) in vectors().flat_map(|vector| &vector.gpus) {
        let has = gpus.entry(*id).or_default();
        has.0 += share.guarantee;
        has.1 += share.memory;
    }
    Room { cores, gpus }
}
