//! Turns picks into a [`Solution`] that explains itself. No choices are made here.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::options::ladder;
use super::waterfill::{Pick, Search};
use super::{Marginals, Problem, Share, Solution, finish};
use crate::curve::corun::Caps;
use crate::id::{Name, StageId};
use crate::job::{Policy, Role, SmMode};
use crate::unit::{Bytes, Rate, Sms, Total as _};

/// The solution of a search: shares, caps, predictions, marginals, sentences.
pub(super) fn solution(search: &mut Search<'_>, picks: Vec<Pick>) -> Solution {
    let problem = search.problem;
    let spare = finish::spare(search, &picks);
    let theta = search.theta(&picks);
    let exact = !search.is_spent();
    let marginals = finish::marginals(search, theta);
    let stages: Vec<Share> = picks
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let menu = &search.menus.stages[i];
            let row = &menu.rows[p.row];
            let sms = Sms(menu.ladder[p.rung]);
            let cap = match problem.sm_mode {
                SmMode::Cap if problem.stages[i].fixed => sms,
                SmMode::Cap if menu.balanced && problem.caps != Caps::Reserve => {
                    problem.reach(i, sms)
                }
                SmMode::Cap if menu.balanced => cap(problem, i, sms, spare),
                _ => sms,
            };
            Share {
                cores: row.cores,
                sms,
                cap,
                memory: Bytes(row.memory),
                batch: row.batch,
                rate: Rate::ZERO,
            }
        })
        .collect();
    let mut solution = Solution {
        stages,
        t_r: Rate::ZERO,
        t_train: Rate::ZERO,
        theta: Rate::ZERO,
        binding: StageId(0),
        marginals,
        why: Vec::new(),
        by: by(problem),
        evaluations: search.evaluations,
        exact,
        caps: problem.caps,
    };
    retell(problem, &mut solution);
    if exact && search.is_spent() {
        let why =
            "The search for what more would bring reached its limit: it may be more than that.";
        solution.why.push(why.into());
    }
    solution
}

/// What a solution's shares yield under `problem`, and why: its predictions and sentences, written anew.
pub(super) fn retell(problem: &Problem, solution: &mut Solution) {
    let yields = problem.predict(&solution.stages);
    for (share, rate) in solution.stages.iter_mut().zip(&yields.rates) {
        share.rate = *rate;
    }
    let rates: Vec<f64> = yields.rates.iter().map(|r| r.get()).collect();
    (solution.t_r, solution.t_train) = (yields.t_r, yields.t_train);
    solution.theta = yields.theta;
    solution.binding = problem.binding(&rates);
    let used: u32 = solution.stages.iter().map(|s| s.sms.0).total();
    let spare = problem.supply.sms.0.saturating_sub(used);
    solution.why = sentences(problem, solution, spare);
}

/// In `cap` each stage may also use the SMs that nobody is promised.
fn cap(problem: &Problem, i: usize, sms: Sms, spare: u32) -> Sms {
    let stage = &problem.stages[i];
    let most = Sms(sms.0.saturating_add(spare))
        .min(stage.sms.1)
        .min(problem.supply.sms);
    let k = stage.workers_per_gpu(problem.supply.gpus);
    ladder(
        &problem.supply.enforceable,
        k,
        stage.synchronous,
        (sms, most),
    )
    .pop()
    .unwrap_or(sms)
}

fn by(problem: &Problem) -> Name {
    let fixed = problem
        .stages
        .iter()
        .all(|s| s.cores.0 == s.cores.1 && s.sms.0 == s.sms.1);
    let measured = problem.stages.iter().any(|s| s.curve.is_some());
    let name = match (measured, fixed, problem.policy) {
        (false, true, _) => "declared",
        (false, false, _) => "even",
        (true, _, Policy::Waterfill) => "waterfill",
        (true, _, Policy::Ebrl) => "ebrl",
    };
    #[expect(clippy::expect_used, reason = "constants of this function")]
    Name::new(name).expect("a policy's name is a name")
}

fn share(name: &Name, s: &Share) -> String {
    let cores = if s.cores == 1 {
        "1 core"
    } else {
        &format!("{} cores", s.cores)
    };
    let gpu = if s.sms > Sms(0) {
        format!(", {}", s.sms)
    } else {
        String::new()
    };
    format!("{name} ({cores}{gpu}, batch {})", s.batch)
}

fn sentences(problem: &Problem, solution: &Solution, spare: u32) -> Vec<String> {
    let mut why = Vec::new();
    let balanced: Vec<usize> = (0..problem.stages.len())
        .filter(|i| problem.balanced(*i))
        .collect();
    if balanced.is_empty() {
        why.push(match solution.by.as_str() {
            "declared" => "Nothing to choose: every stage declares exactly what it gets.".into(),
            _ => {
                "No stage was measured yet: cores and SMs are split evenly as a first guess.".into()
            }
        });
    } else {
        binding(problem, solution, &mut why);
        why.push(marginals(&solution.marginals, solution.theta));
    }
    for (stage, given) in problem.stages.iter().zip(&solution.stages) {
        if stage.curve.is_none() && !balanced.is_empty() {
            why.push(format!(
                "{} was not measured: it has an even share until it is.",
                share(&stage.name, given)
            ));
        }
        if stage.curve.is_some() && (stage.scale - 1.0).abs() > 0.005 {
            why.push(format!(
                "{} runs live at {:.2} times its profile; its curve is scaled.",
                stage.name, stage.scale
            ));
        }
        if stage.learned > 0 {
            why.push(format!(
                "{}'s curve holds {} live points.",
                stage.name, stage.learned
            ));
        }
    }
    why.extend(beyond(problem.caps).map(String::from));
    if spare > 0 && problem.sm_mode == SmMode::Reserve {
        why.push(format!(
            "{} stay idle: no stage may take them, or no enforceable share is that small.",
            Sms(spare)
        ));
    }
    if !balanced.is_empty() {
        if problem.yielded < 0.995 {
            why.push(format!(
                "Training consumes {:.0} % of the rollout's units; the rest is stale or filtered.",
                problem.yielded * 100.0
            ));
        }
        match problem.eta {
            Some(eta) => why.push(format!(
                "The rollout's stages overlap at {:.0} % as measured.",
                eta * 100.0
            )),
            None => why.push(
                "The overlap of the rollout's stages was not measured: taken as perfect.".into(),
            ),
        }
        interference(problem, &mut why);
    }
    if !solution.exact {
        why.push("The search reached its limit: this split is good, perhaps not the best.".into());
    }
    why
}

/// How far stages may go beyond what they are promised, where trials of that did most.
const fn beyond(caps: Caps) -> Option<&'static str> {
    match caps {
        Caps::Reserve => None,
        Caps::HalfMore => Some(
            "Each stage may use half as many SMs again as it is promised: that did most in trials.",
        ),
        Caps::None => Some(
            "Each stage may use all SMs of the GPU, whatever it is promised: that did most in trials.",
        ),
    }
}

/// Interference of less than this is not worth a word.
const KAPPA_TOLD: f64 = 0.02;

/// Who slows whom, as measured.
fn interference(problem: &Problem, why: &mut Vec<String>) {
    let Some(kappa) = &problem.kappa else {
        why.push("Interference between stages was not measured: taken as none.".into());
        return;
    };
    let named = |i: usize| problem.stages.get(i).map(|s| &s.name);
    for (i, row) in kappa.iter().enumerate() {
        for (j, k) in row.iter().enumerate().filter(|(_, k)| **k >= KAPPA_TOLD) {
            if let (Some(slow), Some(busy)) = (named(i), named(j)) {
                why.push(format!(
                    "While {busy} is busy, too, {slow} does {:.0} % less (κ = {k:.2}).",
                    100.0 * k / (1.0 + k)
                ));
            }
        }
    }
}

fn binding(problem: &Problem, solution: &Solution, why: &mut Vec<String>) {
    let at = usize::from(solution.binding.0);
    let (stage, given) = (&problem.stages[at], &solution.stages[at]);
    why.push(format!(
        "{} binds: it does {}.",
        share(&stage.name, given),
        given.rate
    ));
    let side = |r: Role| {
        if r.is_rollout() {
            "rollout"
        } else {
            "training"
        }
    };
    let has = |rollout: bool| {
        (0..problem.stages.len())
            .any(|i| problem.balanced(i) && problem.stages[i].role.is_rollout() == rollout)
    };
    if has(true) && has(false) {
        why.push(format!(
            "The rollout does {}, training {}; the {} side is the slower one.",
            solution.t_r,
            solution.t_train,
            side(stage.role)
        ));
    }
}

fn marginals(m: &Marginals, theta: Rate) -> String {
    let gain = |v: f64| {
        if v <= 0.0 {
            String::from("nothing")
        } else if theta > Rate::ZERO {
            format!("{} (+{:.1} %)", Rate::clamped(v), 100.0 * v / theta.get())
        } else {
            format!("{}", Rate::clamped(v))
        }
    };
    format!(
        "One more core would bring {}, {} more {}, one more GiB {}.",
        gain(m.core),
        m.granule,
        gain(m.sms),
        gain(m.gib)
    )
}
