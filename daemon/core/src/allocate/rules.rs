//! What must hold of every solution: one named function for each rule. Not part of the search; the tests, the
//! simulated world and `solve`'s callers in debug builds run them.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Problem, Share, Solution, ladder};
use crate::job::SmMode;
use crate::unit::{Bytes, Rate, Sms};

/// A rule that a solution breaks: the rule's name, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The function's name.
    pub rule: &'static str,
    /// What is wrong.
    pub how: String,
}

type Rule = fn(&Problem, &Solution) -> Option<String>;

/// Every rule, by name.
pub const RULES: [(&str, Rule); 9] = [
    ("one_share_per_stage", one_share_per_stage),
    ("sums_within_supply", sums_within_supply),
    ("quotas_enforceable", quotas_enforceable),
    ("shares_within_declared_range", shares_within_declared_range),
    ("batches_offered", batches_offered),
    ("memory_covers_the_batch", memory_covers_the_batch),
    ("rates_are_the_curves", rates_are_the_curves),
    ("theta_is_the_slower_side", theta_is_the_slower_side),
    ("explains_itself", explains_itself),
];

/// All rules that `solution` breaks.
pub fn broken(problem: &Problem, solution: &Solution) -> Vec<Broken> {
    let check =
        |(rule, f): &(&'static str, Rule)| f(problem, solution).map(|how| Broken { rule, how });
    match check(&RULES[0]) {
        Some(first) => [first].into(),
        None => RULES.iter().filter_map(check).collect(),
    }
}

fn first(
    problem: &Problem,
    s: &Solution,
    f: impl Fn(usize, &Share) -> Option<String>,
) -> Option<String> {
    s.stages.iter().enumerate().find_map(|(i, share)| {
        f(i, share).map(|how| format!("stage {}: {how}", problem.stages[i].name))
    })
}

/// As many shares as stages.
pub fn one_share_per_stage(p: &Problem, s: &Solution) -> Option<String> {
    let (shares, stages) = (s.stages.len(), p.stages.len());
    (shares != stages).then(|| format!("{shares} shares for {stages} stages"))
}

/// Cores, guarantees and bytes fit.
pub fn sums_within_supply(p: &Problem, s: &Solution) -> Option<String> {
    let cores: u64 = s.stages.iter().map(|x| u64::from(x.cores)).sum();
    let sms: u64 = s.stages.iter().map(|x| u64::from(x.sms.0)).sum();
    let memory: u128 = s.stages.iter().map(|x| u128::from(x.memory.0)).sum();
    let over = cores > p.supply.cores.into()
        || sms > p.supply.sms.0.into()
        || memory > p.supply.memory.0.into();
    over.then(|| format!("{cores} cores, {sms} SMs, {memory} bytes of {:?}", p.supply))
}

/// Guarantees and caps are sums of enforceable shares, one for each worker.
pub fn quotas_enforceable(p: &Problem, s: &Solution) -> Option<String> {
    first(p, s, |i, x| {
        let stage = &p.stages[i];
        let k = stage.workers_per_gpu(p.supply.gpus);
        let whole = (Sms(0), p.supply.sms.max(x.cap));
        let rungs = ladder(&p.supply.enforceable, k, stage.synchronous, whole);
        let off = [x.sms, x.cap]
            .into_iter()
            .find(|q| rungs.binary_search(q).is_err())?;
        Some(format!("{off} cannot be divided over {k} workers on a GPU"))
    })
}

/// Cores and SMs within what the stage declares; the cap not below the guarantee nor above the GPU.
pub fn shares_within_declared_range(p: &Problem, s: &Solution) -> Option<String> {
    first(p, s, |i, x| {
        let stage = &p.stages[i];
        let cores = (stage.cores.0..=stage.cores.1).contains(&x.cores);
        let sms = x.sms >= stage.sms.0 && x.cap <= stage.sms.1;
        let cap = x.cap >= x.sms && x.cap <= p.supply.sms;
        let reserve = p.sm_mode == SmMode::Cap || x.cap == x.sms;
        (!(cores && sms && cap && reserve)).then(|| format!("{x:?}"))
    })
}

/// The batch size is one that the stage offers.
pub fn batches_offered(p: &Problem, s: &Solution) -> Option<String> {
    first(p, s, |i, x| {
        let offered = p.stages[i].choices();
        (!offered.contains(&x.batch)).then(|| format!("batch {} is not in {offered:?}", x.batch))
    })
}

/// The memory is what the stage needs at that batch size.
pub fn memory_covers_the_batch(p: &Problem, s: &Solution) -> Option<String> {
    first(p, s, |i, x| {
        let needs: Bytes = p.stages[i].memory_at(x.cores, x.batch);
        (x.memory < needs).then(|| format!("{} at batch {}, needs {needs}", x.memory, x.batch))
    })
}

/// Predicted rates are what the curves say.
pub fn rates_are_the_curves(p: &Problem, s: &Solution) -> Option<String> {
    let yields = p.predict(&s.stages);
    first(p, s, |i, x| {
        let rate = yields.rates[i];
        (x.rate != rate).then(|| format!("predicted {}, the curve says {rate}", x.rate))
    })
}

/// Θ is the lower of both sides, and they follow from the rates.
pub fn theta_is_the_slower_side(p: &Problem, s: &Solution) -> Option<String> {
    let rates: Vec<f64> = s.stages.iter().map(|x| x.rate.get()).collect();
    let (t_r, t_train, theta) = p.combine(&rates);
    let expect = [t_r, t_train, theta].map(Rate::clamped);
    let got = [s.t_r, s.t_train, s.theta];
    let binds = s.binding == p.binding(&rates);
    (got != expect || !binds).then(|| format!("{got:?} and {}, should be {expect:?}", s.binding))
}

/// There is at least one sentence.
pub fn explains_itself(_: &Problem, s: &Solution) -> Option<String> {
    s.why
        .iter()
        .all(|w| w.trim().is_empty())
        .then(|| "no sentence says why".into())
}
