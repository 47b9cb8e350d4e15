//! Several jobs on one node: what each may use, and its plan in there. The only place that plans a node's jobs, so that
//! another way to share a node between jobs is put in here and nowhere else.
//!
//! For now each GPU's SMs and memory are divided among the jobs on it by weight, and the cores among all jobs; the
//! production allocator plans each job in its part. Who came last waits if not everybody fits.

use std::collections::BTreeMap;

use evenkeel_core::allocate::{self, Inputs, Room};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::GpuId;
use evenkeel_core::job::Plan;
use evenkeel_core::node::Node;
use evenkeel_core::unit::{Bytes, Sms};

/// A job that wants a part of the node; they are given in the order of their arrival.
pub(super) struct Candidate<'a> {
    pub(super) inputs: Inputs<'a>,
    pub(super) weight: f64,
    pub(super) gpus: u16,
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
    let mut waiting: BTreeMap<usize, String> = BTreeMap::new();
    loop {
        let admitted: Vec<usize> = (0..jobs.len())
            .filter(|i| !waiting.contains_key(i))
            .collect();
        let rooms = divide(node, all, jobs, &admitted);
        let mut plans = BTreeMap::new();
        let mut refused = None;
        for (&i, room) in admitted.iter().zip(rooms) {
            let job = &jobs[i];
            // What it had may be more than its part is now.
            let planned = allocate::plan(&job.inputs, node, &room, job.previous)
                .or_else(|_| allocate::plan(&job.inputs, node, &room, None));
            match planned {
                Ok((plan, _)) => drop(plans.insert(i, Planned { room, plan })),
                Err(why) => refused = Some(why.to_string()),
            }
        }
        match (refused, admitted.last()) {
            (Some(why), Some(last)) => drop(waiting.insert(*last, why)),
            _ => {
                let of = |i| match plans.remove(&i) {
                    Some(planned) => Ok(planned),
                    None => Err(waiting.remove(&i).unwrap_or_default()),
                };
                return (0..jobs.len()).map(of).collect();
            }
        }
    }
}

/// The parts of the node that the admitted jobs may use.
fn divide(node: &Node, all: &Room, jobs: &[Candidate<'_>], admitted: &[usize]) -> Vec<Room> {
    let placed = deal(all, jobs, admitted);
    let weight_on = |gpu: &GpuId| -> f64 {
        let there = admitted
            .iter()
            .zip(&placed)
            .filter(|(_, gpus)| gpus.contains(gpu));
        there.map(|(i, _)| jobs[*i].weight).sum()
    };
    let weights: f64 = admitted.iter().map(|i| jobs[*i].weight).sum();
    let cores: Vec<u32> = all.cores.iter().collect();
    let (mut rooms, mut before) = (Vec::with_capacity(admitted.len()), 0.0);
    for (i, gpus) in admitted.iter().zip(&placed) {
        let edge = |weight: f64| (cores.len() as f64 * weight / weights + 1e-9).floor() as usize;
        let own = &cores[edge(before)..edge(before + jobs[*i].weight)];
        before += jobs[*i].weight;
        let part = |gpu: &GpuId| {
            let (sms, memory) = all.gpus.get(gpu).copied().unwrap_or_default();
            let share = jobs[*i].weight / weight_on(gpu);
            let sms_part = Sms((f64::from(sms.0) * share + 1e-9).floor() as u32);
            let enforced = node.gpu(*gpu).map_or(sms_part, |g| match share {
                whole if whole >= 1.0 => sms_part,
                _ => g.round_down(sms_part),
            });
            (*gpu, (enforced, Bytes((memory.0 as f64 * share) as u64)))
        };
        rooms.push(Room {
            cores: own.iter().copied().collect::<CpuSet>(),
            gpus: gpus.iter().map(part).collect(),
        });
    }
    rooms
}

/// Deals GPUs out: those that a job names or has; else those on which the fewest are.
fn deal(all: &Room, jobs: &[Candidate<'_>], admitted: &[usize]) -> Vec<Vec<GpuId>> {
    let mut crowd: BTreeMap<GpuId, u32> = all.gpus.keys().map(|id| (*id, 0)).collect();
    let mut placed = Vec::with_capacity(admitted.len());
    for i in admitted {
        let job = &jobs[*i];
        let named = &job.inputs.spec.gpus;
        let mut chosen: Vec<GpuId> = if named.is_empty() {
            let mut free: Vec<(u32, GpuId)> = crowd.iter().map(|(id, n)| (*n, *id)).collect();
            free.sort_unstable();
            free.iter()
                .take(usize::from(job.gpus))
                .map(|f| f.1)
                .collect()
        } else {
            named.clone()
        };
        chosen.sort_unstable();
        for id in &chosen {
            *crowd.entry(*id).or_default() += 1;
        }
        placed.push(chosen);
    }
    placed
}
