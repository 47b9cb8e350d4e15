//! What must hold of the plans of several jobs together: one named function for each rule, as `rules` has them for one job.
//! Not part of the search; tests and debug builds of the daemon run them.
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::rules::Broken;
use super::{Bidder, Portion, Room, TenantRoom};
use crate::cpuset::CpuSet;
use crate::grant::Vector;
use crate::id::GpuId;
use crate::unit::{Bytes, Sms};

/// Plans that were made together.
#[derive(Clone, Copy, Debug)]
pub struct Joint<'a> {
    /// Who asked.
    pub bidders: &'a [Bidder<'a>],
    /// What each got, in their order.
    pub portions: &'a [Portion],
    /// All that they may have together.
    pub room: &'a Room,
    /// What tenants may have.
    pub caps: &'a [TenantRoom<'a>],
}

type Rule = fn(&Joint<'_>) -> Option<String>;

/// Every rule, by name.
pub const RULES: [(&str, Rule); 6] = [
    ("one_portion_per_bidder", one_portion_per_bidder),
    ("cores_have_one_owner", cores_have_one_owner),
    ("gpus_hold_all_shares", gpus_hold_all_shares),
    ("nobody_goes_below_its_least", nobody_goes_below_its_least),
    ("tenants_keep_their_caps", tenants_keep_their_caps),
    ("levels_are_numbers", levels_are_numbers),
];

/// All rules that the plans break.
pub fn broken(joint: &Joint<'_>) -> Vec<Broken> {
    let check = |(rule, f): &(&'static str, Rule)| f(joint).map(|how| Broken { rule, how });
    match check(&RULES[0]) {
        Some(first) => [first].into(),
        None => RULES.iter().filter_map(check).collect(),
    }
}

/// Cores, and SMs and bytes by GPU, of some portions.
fn held<'a>(portions: impl Iterator<Item = &'a Portion>) -> (u32, BTreeMap<GpuId, (Sms, Bytes)>) {
    let (mut cores, mut gpus) = (0_u32, BTreeMap::new());
    for worker in workers(portions) {
        cores = cores.saturating_add(worker.cores.len());
        for (id, share) in &worker.gpus {
            let on: &mut (Sms, Bytes) = gpus.entry(*id).or_default();
            on.0 += share.guarantee;
            on.1 += share.memory;
        }
    }
    (cores, gpus)
}

fn workers<'a>(portions: impl Iterator<Item = &'a Portion>) -> impl Iterator<Item = &'a Vector> {
    portions
        .flat_map(|p| &p.plan.stages)
        .flat_map(|s| &s.workers)
}

/// As many portions as bidders, and as many shares as each has stages.
pub fn one_portion_per_bidder(j: &Joint<'_>) -> Option<String> {
    let (has, asked) = (j.portions.len(), j.bidders.len());
    if has != asked {
        return Some(format!("{has} portions for {asked} bidders"));
    }
    let both = j.bidders.iter().zip(j.portions);
    both.enumerate().find_map(|(i, (b, p))| {
        let (stages, shares) = (b.inputs.spec.stages.len(), p.plan.stages.len());
        (stages != shares).then(|| format!("bidder {i}: {shares} shares for {stages} stages"))
    })
}

/// No core is given twice, and none that is not there.
pub fn cores_have_one_owner(j: &Joint<'_>) -> Option<String> {
    let mut all = CpuSet::new();
    for worker in workers(j.portions.iter()) {
        let twice = all.intersection(&worker.cores);
        if !twice.is_empty() {
            return Some(format!("cores {twice} are given twice"));
        }
        all = all.union(&worker.cores);
    }
    let foreign = all.difference(&j.room.cores);
    (!foreign.is_empty()).then(|| format!("cores {foreign} are not theirs to have"))
}

/// On each GPU the guarantees and the memory of all are there.
pub fn gpus_hold_all_shares(j: &Joint<'_>) -> Option<String> {
    let (_, gpus) = held(j.portions.iter());
    gpus.into_iter().find_map(|(id, (sms, memory))| {
        let (all_sms, all_memory) = j.room.gpus.get(&id).copied().unwrap_or_default();
        (sms > all_sms || memory > all_memory)
            .then(|| format!("{id}: {sms} and {memory} of {all_sms} and {all_memory}"))
    })
}

/// Every stage has what it declares as its least, and no more than its most.
pub fn nobody_goes_below_its_least(j: &Joint<'_>) -> Option<String> {
    j.bidders
        .iter()
        .zip(j.portions)
        .find_map(|(bidder, portion)| {
            let spec = bidder.inputs.spec;
            let both = spec.stages.iter().zip(&portion.plan.stages);
            both.into_iter().find_map(|(stage, share)| {
                let cores = (stage.cores.0..=stage.cores.1).contains(&share.cores);
                let sms = (stage.sms.0..=stage.sms.1).contains(&share.sms);
                (!cores || !sms).then(|| {
                    format!(
                        "{}'s {}: {} cores and {} where {:?} and {:?} are declared",
                        spec.name, stage.name, share.cores, share.sms, stage.cores, stage.sms
                    )
                })
            })
        })
}

/// No tenant's jobs have more than its cap leaves them.
pub fn tenants_keep_their_caps(j: &Joint<'_>) -> Option<String> {
    j.caps.iter().find_map(|cap| {
        let own = j.bidders.iter().zip(j.portions);
        let own = own.filter(|(b, _)| b.tenant == cap.tenant).map(|(_, p)| p);
        let (cores, gpus) = held(own);
        if cores > cap.cores {
            return Some(format!("{}: {cores} cores of {}", cap.tenant, cap.cores));
        }
        gpus.into_iter().find_map(|(id, (sms, memory))| {
            let (most_sms, most_memory) = cap.gpus.get(&id).copied()?;
            (sms > most_sms || memory > most_memory).then(|| {
                format!(
                    "{} on {id}: {sms} and {memory} of {most_sms} and {most_memory}",
                    cap.tenant
                )
            })
        })
    })
}

/// Levels are finite and not negative.
pub fn levels_are_numbers(j: &Joint<'_>) -> Option<String> {
    let bad = j.portions.iter().map(|p| p.level);
    bad.into_iter()
        .find(|level| !(level.is_finite() && *level >= 0.0))
        .map(|level| format!("a level of {level}"))
}
