//! From rows to the parts of the durable state: the last step of start-up, shared by SQLite's loader and the
//! simulated world.
//!
//! Rows that contradict each other are refused ([`Corrupt`]); whether the state they add up to is a legal one
//! is asked of `evenkeel_core::invariant` by the caller.
use std::collections::BTreeMap;

use evenkeel_core::curve::Profile;
use evenkeel_core::grant::{Member, Vector};
use evenkeel_core::id::{JobId, LeaseId, StageId, WorkerId};
use evenkeel_core::job::{Job, Slot};
use evenkeel_core::lease::Lease;
use evenkeel_core::node::{Node, Unavailable};
use evenkeel_core::pool::Owner;
use evenkeel_core::state::{Effect, Parts, Remembered};

use super::rows::{JobRow, LeaseRow, RequestKey};
use super::tables::Tables;

/// Rows that contradict each other: somebody else wrote to the ledger, or its file is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ledger contradicts itself: {what}; restore a backup, or ask for help with a copy of the file"
)]
pub struct Corrupt {
    /// What is wrong, with the ids concerned.
    pub what: String,
}

fn corrupt<T>(what: impl Into<String>) -> Result<T, Corrupt> {
    Err(Corrupt { what: what.into() })
}

/// The parts that the tables hold.
pub fn load(tables: &Tables) -> Result<Parts, Corrupt> {
    let (mut leases, mut slots) = vectors(tables)?;
    let mut requests: BTreeMap<RequestKey, Remembered> = tables.requests.clone();
    for row in tables.leases.values() {
        if let Some(fence) = row.granted_fence {
            let effect = Effect::Lease {
                id: row.id,
                fence,
                end: None,
            };
            remember(
                &mut requests,
                (row.tenant.clone(), row.request),
                row.body,
                effect,
            )?;
        }
    }
    for row in tables.jobs.values().filter(|row| row.remembered) {
        let key = (row.tenant.clone(), row.request);
        remember(&mut requests, key, row.body, Effect::Job(row.id))?;
    }
    Ok(Parts {
        node: Node {
            kind: tables.node.kind,
            cores: tables.cores.values().cloned().collect(),
            reserved_cores: tables.node.reserved_cores.clone(),
            gpus: tables.gpus.values().cloned().collect(),
        },
        unavailable: Unavailable {
            cores: tables.node.unavailable_cores.clone(),
            gpus: tables.unavailable.clone(),
        },
        draining: tables.node.draining,
        leases: tables
            .leases
            .values()
            .map(|row| lease(row, leases.remove(&row.id).unwrap_or_default()))
            .collect(),
        requests: requests.into_iter().collect(),
        jobs: tables
            .jobs
            .values()
            .map(|row| job(row, &mut slots))
            .collect::<Result<_, _>>()?,
        profiles: tables
            .profiles
            .iter()
            .map(|(key, points)| Profile {
                key: key.clone(),
                points: points.values().cloned().collect(),
            })
            .collect(),
        next_lease: tables.next_lease,
        next_job: tables.next_job,
    })
}

fn remember(
    requests: &mut BTreeMap<RequestKey, Remembered>,
    key: RequestKey,
    body: evenkeel_core::id::BodyHash,
    effect: Effect,
) -> Result<(), Corrupt> {
    let what = format!("request {} of {} has two effects", key.1, key.0);
    match requests.insert(key, Remembered { body, effect }) {
        Some(_) => corrupt(what),
        None => Ok(()),
    }
}

/// Held and target of a lease.
type Vectors = (Vector, Vector);
type ByLease = BTreeMap<LeaseId, Vectors>;
type BySlot = BTreeMap<Member, Slot>;

/// What leases and slots have, from the rows of shares.
fn vectors(tables: &Tables) -> Result<(ByLease, BySlot), Corrupt> {
    let mut leases = ByLease::new();
    let empty = |(&member, &lease)| {
        (
            member,
            Slot {
                lease,
                unclaimed: Vector::empty(),
            },
        )
    };
    let mut slots: BySlot = tables.slots.iter().map(empty).collect();
    for row in tables.core_owners.values() {
        match row.owner {
            Owner::Lease(id) if tables.leases.contains_key(&id) => {
                let (held, target) = leases.entry(id).or_default();
                if row.held {
                    held.cores.insert(row.core);
                }
                if row.target {
                    target.cores.insert(row.core);
                }
            }
            Owner::Slot(member) if slots.contains_key(&member) => {
                slots
                    .entry(member)
                    .or_default()
                    .unclaimed
                    .cores
                    .insert(row.core);
            }
            owner => {
                return corrupt(format!(
                    "core {} belongs to {owner:?}, which is not there",
                    row.core
                ));
            }
        }
    }
    for row in tables.lease_gpus.values() {
        if !tables.leases.contains_key(&row.lease) {
            return corrupt(format!(
                "{} has a share of {} and is not there",
                row.lease, row.gpu
            ));
        }
        let (held, target) = leases.entry(row.lease).or_default();
        held.gpus.extend(row.held.map(|share| (row.gpu, share)));
        target.gpus.extend(row.target.map(|share| (row.gpu, share)));
    }
    for (&(member, gpu), &share) in &tables.slot_gpus {
        match slots.get_mut(&member) {
            Some(slot) => drop(slot.unclaimed.gpus.insert(gpu, share)),
            None => {
                return corrupt(format!(
                    "a share of {gpu} is kept for a slot of {}, which is not there",
                    member.job
                ));
            }
        }
    }
    Ok((leases, slots))
}

fn lease(row: &LeaseRow, (held, target): Vectors) -> Lease {
    Lease {
        id: row.id,
        tenant: row.tenant.clone(),
        request: row.request,
        body: row.body,
        ask: row.ask.clone(),
        enforced: row.enforced,
        resize: row.resize,
        processes: row.processes,
        ttl: row.ttl,
        priority: row.priority,
        fence: row.fence,
        generation: row.generation,
        held,
        target,
        batch: row.batch,
        phase: row.phase.clone(),
    }
}

fn job(row: &JobRow, slots: &mut BySlot) -> Result<Job, Corrupt> {
    let mut of_stage = |(stage, workers): (u8, &u32)| -> Result<Vec<Slot>, Corrupt> {
        (0..*workers)
            .map(|worker| {
                let (stage, worker) = (StageId(stage), WorkerId(worker));
                match slots.remove(&Member {
                    job: row.id,
                    stage,
                    worker,
                }) {
                    Some(slot) => Ok(slot),
                    None => corrupt(format!("{} has no slot for {worker} of {stage}", row.id)),
                }
            })
            .collect()
    };
    let slots = (0..)
        .zip(&row.shape)
        .map(&mut of_stage)
        .collect::<Result<_, _>>()?;
    Ok(Job {
        id: row.id,
        tenant: row.tenant.clone(),
        request: row.request,
        body: row.body,
        arrival: row.arrival,
        spec: row.spec.clone(),
        phase: row.phase,
        plan: row.plan.clone(),
        slots,
        scale: row.scale.clone(),
        learned: row.learned.clone(),
        kappa: row.kappa.clone(),
        moves: row.moves,
    })
}

/// Which ids are above what the counters say: an id would be used twice.
pub(super) fn numbered(tables: &Tables) -> Result<(), Corrupt> {
    let lease = tables
        .leases
        .keys()
        .next_back()
        .copied()
        .unwrap_or(LeaseId(0));
    let job = tables.jobs.keys().next_back().copied().unwrap_or(JobId(0));
    match lease < tables.next_lease && job < tables.next_job {
        true => Ok(()),
        false => corrupt(format!("{lease} or {job} is above the ledger's counters")),
    }
}
