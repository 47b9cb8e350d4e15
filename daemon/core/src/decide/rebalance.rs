//! Whether a job's shares move: a better split has to pay for the pause that the move costs.
//!
//! Pure functions on values: no state, no command. `decide::job` calls [`judge`] with what the job's
//! [`Watch`](crate::balance::Watch) said and turns the decision into events; the watch hears of it after their commit.
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::allocate::{
    Inputs, Outlook, Problem, Room, Share, Solution, keep_caps, outlook, pin, place, problem_for,
    solve, supply_for,
};
use crate::balance::{Measured, REFIT_GAP, Refit, StayReason, Trigger, Verdict, blame, refit};
use crate::curve::corun;
use crate::grant::Resize;
use crate::job::Plan;
use crate::node::Node;
use crate::unit::{Millis, Rate, Sms};

/// Everything that a judgement depends on.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The job, its profiles, the factors and points in force, and the stages that stay as they are.
    pub inputs: Inputs<'a>,
    /// The split in force.
    pub plan: &'a Plan,
    /// Installed hardware.
    pub node: &'a Node,
    /// What the job may use, its present holdings included.
    pub room: &'a Room,
    /// Why it is looked at, and what was measured.
    pub verdict: &'a Verdict,
    /// What moves have cost so far.
    pub costs: Costs<'a>,
    /// What live intervals say of the interference ([`Watch::kappa`](crate::balance::Watch::kappa)); `inputs` has what was
    /// known of it before. Empty: nothing.
    pub live: &'a [Vec<Option<f64>>],
}

/// Measured costs of a move; what was not measured comes from the job's settings, and the decision says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs<'a> {
    /// Pause of a stage that restarts, by stage; none, or beyond the end: not measured yet.
    pub restarts: &'a [Option<Millis>],
    /// Pause of the pipeline while units in flight are drained.
    pub drain: Option<Millis>,
}

/// What comes of it. The refit holds either way: its factors and points are to be committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What was learned about the curves; none where nothing could be measured.
    pub refit: Option<Refit>,
    /// What the split in force is expected to do by it.
    pub outlook: Option<Outlook>,
    /// Whether the shares move.
    pub decision: Decision,
}

/// Whether the shares move.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// They move.
    Move(Box<Move>),
    /// They stay.
    Stay {
        /// Why, from a closed list.
        reason: StayReason,
        /// Why, with figures.
        detail: String,
    },
}

/// A move that pays.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The new split, placed.
    pub plan: Plan,
    /// The same with its search.
    pub solution: Solution,
    /// Predicted relative gain in job throughput, 0.1 for 10 %.
    pub predicted_gain: f64,
    /// Expected pause, in seconds.
    pub cost_s: f64,
    /// Sentences for a person.
    pub reasons: Vec<String>,
}

impl Judgement {
    /// One line for the audit trail.
    pub fn sentence(&self) -> String {
        match &self.decision {
            Decision::Move(m) => m.reasons.join(" "),
            Decision::Stay { detail, .. } => detail.clone(),
        }
    }
}

/// Judges one verdict.
pub fn judge(case: &Case<'_>) -> Judgement {
    let stay = |reason, detail: String| Decision::Stay { reason, detail };
    let measured = &case.verdict.measured;
    let supply = || supply_for(case.node, case.room, &case.plan.gpus);
    let mut before = match problem_for(&with_yield(case.inputs, measured), supply()) {
        Ok(problem) => problem,
        Err(e) => {
            let decision = stay(StayReason::NotMeasured, e.to_string());
            return Judgement {
                refit: None,
                outlook: None,
                decision,
            };
        }
    };
    let now = Solution::of_plan(case.plan);
    let kappa = interference(case, &before, &now);
    before.kappa.clone_from(&kappa);
    let refit = refit(
        &case.inputs.spec.stages,
        &before,
        &now.stages,
        case.inputs.scale,
        case.inputs.learned,
        measured,
        case.verdict.trigger,
    );
    let inputs = Inputs {
        scale: &refit.scale,
        learned: &refit.learned,
        kappa: kappa.as_deref(),
        ..case.inputs
    };
    let (outlook, decision) = match problem_for(&with_yield(inputs, measured), supply()) {
        Ok(problem) => (
            Some(outlook(&problem, &now)),
            decide(case, problem, &now, &refit),
        ),
        Err(e) => (None, stay(StayReason::NotMeasured, e.to_string())),
    };
    Judgement {
        refit: Some(refit),
        outlook,
        decision,
    }
}

/// What the stages cost each other, as far as it is known now. A changed load says nothing about that; a changed split does.
fn interference(case: &Case<'_>, problem: &Problem, now: &Solution) -> Option<Vec<Vec<f64>>> {
    let inputs = &case.inputs;
    let shares: Vec<Sms> = now.stages.iter().map(|s| s.sms).collect();
    let before = inputs.known_interference(inputs.caps, Some(&shares));
    let trigger = case.verdict.trigger;
    let fresh = trigger == Trigger::Start && !inputs.is_refitted();
    if trigger == Trigger::Detector {
        return corun::numbers(&before);
    }
    let stages = inputs.spec.stages.len();
    let known = blame::known(stages, &before, case.live, fresh);
    blame::attribute(problem, &now.stages, &case.verdict.measured, &known, fresh)
}

fn with_yield<'a>(inputs: Inputs<'a>, measured: &Measured) -> Inputs<'a> {
    let yielded = (measured.yielded > 0.0).then_some(measured.yielded);
    Inputs { yielded, ..inputs }
}

fn decide(case: &Case<'_>, mut problem: Problem, now: &Solution, refit: &Refit) -> Decision {
    let stay = |reason, detail: String| Decision::Stay { reason, detail };
    let (rules, measured) = (&case.inputs.spec.rebalance, &case.verdict.measured);
    if !rules.enabled {
        return stay(
            StayReason::Disabled,
            "The job's shares are frozen (rebalance is off).".into(),
        );
    }
    if let Some((reason, detail)) = nothing_to_correct(case.verdict.trigger, measured) {
        return stay(reason, detail);
    }
    let pinned = case.inputs.pinned;
    pin(&mut problem, pinned, now);
    let theta = problem.predict(&now.stages).theta;
    let mut new = match solve(&problem, Some(now)) {
        Ok(new) => new,
        Err(e) => return stay(StayReason::NoSplit, e.to_string()),
    };
    keep_caps(&mut new, pinned, now);
    if new.same_shares(now) {
        let detail = format!("The split in force is the best one at {theta} as measured.");
        return stay(StayReason::AlreadyBest, detail);
    }
    let gain = if theta > Rate::ZERO {
        new.theta.get() / theta.get() - 1.0
    } else {
        f64::MAX
    };
    let (cost_s, basis) = cost(case, now, &new);
    let horizon_s = seconds(rules.horizon);
    let figures = format!(
        "The best split would do {} instead of {theta} (+{:.1} %)",
        new.theta,
        100.0 * gain.min(1e3)
    );
    if new.theta <= theta || gain < rules.min_gain {
        let detail = format!("{figures}; a move needs +{:.1} %.", 100.0 * rules.min_gain);
        return stay(StayReason::GainTooSmall, detail);
    }
    // Units won in what is left of the horizon after the pause, against units lost in the pause.
    if gain * (horizon_s - cost_s) <= cost_s {
        let detail = format!(
            "{figures}; a pause of {cost_s:.1} s{basis} does not pay within {horizon_s:.0} s."
        );
        return stay(StayReason::DoesNotPay, detail);
    }
    match place(
        case.inputs.spec,
        &new,
        case.node,
        case.room,
        &case.plan.gpus,
        Some(case.plan),
    ) {
        Ok(plan) => {
            let mut reasons = [case.verdict.why.clone()].to_vec();
            reasons.extend(refit.why.iter().cloned());
            reasons.push(format!("{figures} for a pause of {cost_s:.1} s{basis}."));
            reasons.extend(changes(case, now, &new));
            let solution = new;
            Decision::Move(Box::new(Move {
                plan,
                solution,
                predicted_gain: gain,
                cost_s,
                reasons,
            }))
        }
        Err(e) => stay(StayReason::NoSplit, e.to_string()),
    }
}

/// Refits that only correct the curves: after a refit's own move, and where both sides are close together.
fn nothing_to_correct(trigger: Trigger, measured: &Measured) -> Option<(StayReason, String)> {
    let gap = measured.gap();
    match trigger {
        Trigger::AfterRefit => {
            let detail = "The curves were refitted; the split came from a refit already.";
            Some((StayReason::OnlyRefit, detail.into()))
        }
        Trigger::Start | Trigger::AfterMove if gap < REFIT_GAP => {
            let detail = format!(
                "The curves were refitted; the gap is only {:.1} %.",
                100.0 * gap
            );
            Some((StayReason::Balanced, detail))
        }
        Trigger::Start | Trigger::AfterMove if gap < measured.noise_gap() => {
            let detail = format!(
                "The curves were refitted; the gap of {:.1} % is no more than noise can open ({:.1} % over {} windows).",
                100.0 * gap,
                100.0 * measured.noise_gap(),
                measured.windows
            );
            Some((StayReason::Balanced, detail))
        }
        _ => None,
    }
}

/// The pause that the move costs, in seconds, and what is known of it: the drain, and the slowest restart of the
/// stages that shrink and that of those that grow (shrink goes before grow; restarts of one round run side by side).
fn cost(case: &Case<'_>, now: &Solution, new: &Solution) -> (f64, String) {
    let gpu = |s: &Share| (s.sms, s.cap, s.memory);
    let grows = |a: &Share, b: &Share| b.sms > a.sms || b.memory > a.memory;
    let specs = case.inputs.spec.stages.iter().enumerate();
    let restarts: Vec<Restart<'_>> = specs
        .zip(now.stages.iter().zip(&new.stages))
        .filter(|((_, spec), (a, b))| gpu(a) != gpu(b) && spec.resize == Resize::Restart)
        .map(|((i, spec), (a, b))| Restart {
            stage: &spec.name,
            grows: grows(a, b),
            measured: case.costs.restarts.get(i).copied().flatten(),
        })
        .collect();
    let assumed = case.inputs.spec.rebalance.restart_cost;
    let round = |grows: bool| {
        let of_round = restarts.iter().filter(|r| r.grows == grows);
        let slowest = of_round.map(|r| r.measured.unwrap_or(assumed)).max();
        slowest.map_or(0.0, seconds)
    };
    let pause = round(false) + round(true) + case.costs.drain.map_or(0.0, seconds);
    (pause, basis(&restarts, assumed))
}

/// A stage that a move restarts.
struct Restart<'a> {
    stage: &'a crate::id::Name,
    grows: bool,
    measured: Option<Millis>,
}

/// Where the pause of each restart comes from; nothing where nothing restarts.
fn basis(restarts: &[Restart<'_>], assumed: Millis) -> String {
    if restarts.is_empty() {
        return String::new();
    }
    let of = |r: &Restart<'_>| match r.measured {
        Some(took) => format!("{}'s restart took {took}", r.stage),
        None => format!(
            "{}'s restart was not measured yet, taken as {assumed}",
            r.stage
        ),
    };
    let all: Vec<String> = restarts.iter().map(of).collect();
    format!(" ({})", all.join("; "))
}

fn changes(case: &Case<'_>, now: &Solution, new: &Solution) -> Vec<String> {
    let line = |name: &crate::id::Name, a: &Share, b: &Share| {
        let part = |label: &str, a: u64, b: u64| (a != b).then(|| format!("{label} {a} → {b}"));
        let sms = |s: Sms| u64::from(s.0);
        let parts: Vec<String> = [
            part("cores", a.cores.into(), b.cores.into()),
            part("SMs", sms(a.sms), sms(b.sms)),
            part("batch", a.batch.into(), b.batch.into()),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!parts.is_empty()).then(|| format!("{name}: {}.", parts.join(", ")))
    };
    let stages = case.inputs.spec.stages.iter();
    stages
        .zip(now.stages.iter().zip(&new.stages))
        .filter_map(|(s, (a, b))| line(&s.name, a, b))
        .collect()
}

fn seconds(d: Millis) -> f64 {
    d.0 as f64 / 1000.0
}

#[cfg(test)]
mod tests;
