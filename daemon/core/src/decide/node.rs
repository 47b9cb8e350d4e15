//! Commands about the node and about profiles: discovery, drain, trials, imports.
use alloc::format;
use alloc::vec::Vec;

use super::{Answer, Decision};
use crate::command::{Caller, Rejection, Reply};
use crate::curve::conditions::CONDITION_MAX;
use crate::curve::{Point, Profile, ProfileKey};
use crate::event::Event;
use crate::node::{Core, Node, Unavailable};
use crate::state::Durable;

/// Points of one profile: a full grid of 8 batches × 16 cores × 66 SM counts fits.
pub const POINTS_MAX: usize = 10_000;
/// Profiles of one tenant: a hundred jobs of ten stages, and still quick to count.
pub const PROFILES_MAX: usize = 1_000;
/// Points of all profiles of one tenant: some 50 MB in memory, and more than years of calibrations make.
pub const TENANT_POINTS_MAX: usize = 1_000_000;

pub(super) fn trial(
    d: &Durable,
    key: &ProfileKey,
    point: &Point,
    replaces: bool,
) -> Result<Decision, Rejection> {
    check_point(point)?;
    let is_old = |p: &Point| replaces && p.same_place(point);
    let there = d
        .profiles()
        .get(key)
        .filter(|p| p.points.iter().any(is_old));
    if let Some(profile) = there {
        // Decided here, in one step: two calibrations at once lose nothing.
        let mut profile = profile.clone();
        profile.points.retain(|p| !is_old(p));
        profile.points.push(point.clone());
        return import(d, &profile);
    }
    let points = d.profiles().get(key).map_or(0, |p| p.points.len());
    check_room(d, key, points + 1)?;
    let event = Event::TrialReported {
        key: key.clone(),
        point: point.clone(),
    };
    Ok(Decision {
        events: [event].into(),
        reply: Answer::Reply(Reply::Points(points as u32 + 1)),
    })
}

pub(super) fn import(d: &Durable, profile: &Profile) -> Result<Decision, Rejection> {
    check_room(d, &profile.key, profile.points.len())?;
    profile.points.iter().try_for_each(check_point)?;
    let points = profile.points.len() as u32;
    let event = Event::ProfileImported {
        profile: profile.clone(),
    };
    Ok(Decision {
        events: [event].into(),
        reply: Answer::Reply(Reply::Points(points)),
    })
}

/// Whether a profile of so many points is within what its tenant may have, in the place of the one that is there.
fn check_room(d: &Durable, key: &ProfileKey, points: usize) -> Result<(), Rejection> {
    let others = d.profiles_of(&key.tenant).filter(|p| p.key != *key);
    let (n, of_others) = others.fold((0, 0), |(n, sum), p| (n + 1, sum + p.points.len()));
    for (what, has, limit) in [
        ("points of a profile", points, POINTS_MAX),
        ("profiles of one tenant", n + 1, PROFILES_MAX),
        (
            "points of all profiles of one tenant",
            points + of_others,
            TENANT_POINTS_MAX,
        ),
    ] {
        if has > limit {
            let limit = limit as u64;
            return Err(Rejection::Limit { what, limit });
        }
    }
    Ok(())
}

fn check_point(p: &Point) -> Result<(), Rejection> {
    let invalid = |field, why| Err(Rejection::Invalid { field, why });
    if !(p.weight.is_finite() && p.weight > 0.0) {
        return invalid(
            "weight",
            format!("{} is not a finite number above zero", p.weight),
        );
    }
    if p.batch == 0 || p.replicas == 0 {
        return invalid("batch", "batch and replicas are at least 1".into());
    }
    if p.cores == 0 && p.sms.0 == 0 {
        return invalid(
            "cores",
            "a trial without cores and SMs measures nothing".into(),
        );
    }
    if let Some(beside) = p.co_run()
        && !(beside.overlap > 0.0 && beside.overlap <= 1.0)
    {
        let why = format!("{} is not above 0 and at most 1", beside.overlap);
        return invalid("overlap", why);
    }
    let texts = p
        .conditions
        .iter()
        .flat_map(|c| [&c.cpu, &c.driver, &c.evenkeel]);
    if texts.into_iter().any(|text| text.len() > CONDITION_MAX) {
        let why = format!("a text of a condition is longer than {CONDITION_MAX} bytes");
        return invalid("conditions", why);
    }
    Ok(())
}

pub(super) fn drain(d: &Durable, caller: &Caller, draining: bool) -> Result<Decision, Rejection> {
    if !caller.admin {
        return Err(Rejection::NotAdmin);
    }
    let events: &[Event] = &[Event::NodeDrained { draining }];
    Ok(Decision::of(if d.draining() == draining {
        Vec::new()
    } else {
        events.to_vec()
    }))
}

/// Capacity is what is installed. It never falls below what is counted: what is missing becomes unavailable.
pub(super) fn discovered(d: &Durable, node: &Node, unavailable: &Unavailable) -> Decision {
    let mut events = Vec::new();
    let empty = d.leases().is_empty() && d.jobs().values().all(|j| j.slots.is_empty());
    let (mut node, mut unavailable) = (node.clone(), unavailable.clone());
    if !empty {
        keep_what_is_counted(d, &mut node, &mut unavailable);
    }
    if node != *d.node() {
        events.push(Event::NodeInstalled { node });
    }
    if unavailable != *d.unavailable() {
        events.push(Event::UnavailableChanged { unavailable });
    }
    Decision::of(events)
}

/// Hardware that vanished while something is counted on it stays in the books, as unavailable.
fn keep_what_is_counted(d: &Durable, node: &mut Node, unavailable: &mut Unavailable) {
    let old = d.node();
    let is_gone = |core: &&Core| node.cores.binary_search_by_key(&core.id, |c| c.id).is_err();
    let gone: Vec<&Core> = old.cores.iter().filter(is_gone).collect();
    if !gone.is_empty() {
        gone.iter()
            .for_each(|core| unavailable.cores.insert(core.id));
        let mut cores: Vec<Core> = node.cores.iter().chain(gone).cloned().collect();
        cores.sort_by_key(|c| c.id);
        node.cores = cores.into();
    }
    let owned: crate::cpuset::CpuSet = d.pool().owned().map(|(core, _)| core).collect();
    node.reserved_cores = node.reserved_cores.difference(&owned);
    for gpu in &old.gpus {
        let used = d.pool().used(gpu.id);
        let same = node.gpu(gpu.id).is_some_and(|g| {
            g.uuid == gpu.uuid && g.sms >= used.sms && g.leasable_memory() >= used.memory
        });
        if !same && used != Default::default() {
            node.gpus.retain(|g| g.id != gpu.id);
            node.gpus.push(gpu.clone());
            unavailable.gpus.insert(gpu.id, (gpu.sms, gpu.memory));
        }
    }
    node.gpus.sort_by_key(|g| g.id);
}
