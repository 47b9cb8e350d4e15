//! Which trial is next: the one that teaches most about the plan (the core's `trials`), or the whole grid in order.
use std::collections::BTreeSet;

use evenkeel_client::{Gpu, JobSpec, Node, Profile, ProfileKey, ProfilePoint};
use evenkeel_core::allocate::{Problem, Share, Supply};
use evenkeel_core::curve::corun::{self, Caps};
use evenkeel_core::trials::{self, Next, Rules, Sampled, Stop, Why};
use evenkeel_core::unit::{Bytes, Sms};

use super::grid::Point;
use super::measure::Work;
use crate::fail::Failure;
use crate::offline;

/// Repeats of a point that the plan rests on, where nobody says how many.
const REPEATS: u32 = 4;
/// A campaign may make a third of the whole grid's trials...
const SHARE: usize = 3;
/// ... but so many for each stage: on a grid of five points a third says nothing.
const LEAST: usize = 8;

/// How trials are chosen.
pub(super) enum Campaign {
    /// By what they teach. The problem has all stages of the job, measured or not.
    Adaptive {
        problem: Box<Problem>,
        rules: Rules,
        /// What is known of stages that are not measured now, by stage of the job.
        others: Vec<Vec<ProfilePoint>>,
    },
    /// All of them, as they stand in each stage's `todo`.
    Full,
}

/// What comes next.
pub(super) enum Choice {
    /// A trial: which work, where, and for what, in words.
    Try(usize, Point, String),
    /// None, and why.
    Done(String),
}

/// What the whole node could give the job.
pub(super) fn supply(node: &Node, gpu: Option<&Gpu>, gpus: u32) -> Supply {
    let cores = node.cores.len().saturating_sub(node.reserved_cores.len());
    let sms = gpu.map_or(0, |gpu| gpu.sms);
    let counts = match gpu.map_or(&[][..], |gpu| &gpu.enforceable_sms) {
        [] => (1..=sms).collect(),
        counts => counts.to_vec(),
    };
    Supply {
        cores: u32::try_from(cores).unwrap_or(u32::MAX),
        gpus: u16::try_from(gpus.max(1)).unwrap_or(u16::MAX),
        sms: Sms(sms),
        enforceable: counts.into_iter().map(Sms).collect(),
        memory: Bytes(gpu.map_or(0, |gpu| gpu.leasable_memory_bytes)),
    }
}

impl Campaign {
    /// A campaign that looks for the best plan. `repeats`: most trials of a point.
    pub(super) fn adaptive(
        spec: &JobSpec,
        supply: Supply,
        works: &[Work<'_>],
        others: Vec<Vec<ProfilePoint>>,
        repeats: Option<u32>,
    ) -> Result<Self, Failure> {
        let whole: usize = works.iter().map(|w| w.grid.len()).sum();
        let most = whole.div_ceil(SHARE).max(LEAST * works.len());
        Ok(Self::Adaptive {
            problem: Box::new(offline::problem(spec, supply)?),
            rules: Rules {
                repeats: repeats.unwrap_or(REPEATS),
                most: u32::try_from(most).unwrap_or(u32::MAX),
                ..Rules::default()
            },
            others,
        })
    }

    /// Most trials that can still come.
    pub(super) fn bound(&self, works: &[Work<'_>]) -> usize {
        match self {
            Self::Full => works.iter().map(|w| w.todo.len()).sum(),
            Self::Adaptive { rules, .. } => {
                let alone = |w: &Work<'_>| w.known.iter().filter(|p| p.beside.is_none()).count();
                let made: usize = works.iter().map(alone).sum();
                (rules.most as usize).saturating_sub(made)
            }
        }
    }

    /// What each stage of the plan would get that one would get now, with what is known of interference: cores, SMs and
    /// batch size. None where nothing can be planned yet, and with the whole grid in order.
    pub(super) fn planned(&self, works: &[Work<'_>]) -> Option<Vec<Share>> {
        let Self::Adaptive {
            problem,
            rules,
            others,
        } = self
        else {
            return None;
        };
        let profile = |stage: usize| {
            let work = works.iter().find(|w| w.index == stage)?;
            let profile = Profile {
                key: work.key.clone(),
                points: work.known.clone(),
                ..Profile::default()
            };
            offline::profile(&profile).ok()
        };
        let profiles: Vec<_> = (0..problem.stages.len()).map(profile).collect();
        let known: Vec<_> = profiles.iter().map(Option::as_ref).collect();
        let problem = Problem {
            kappa: corun::kappa(&known, Caps::Reserve, None),
            ..(**problem).clone()
        };
        let campaign = trials::Campaign {
            stages: &sampled(&problem, works, others),
            rules: *rules,
            problem: &problem,
        };
        Some(trials::planned(&campaign)?.stages)
    }

    /// The next trial.
    pub(super) fn next(&self, works: &[Work<'_>]) -> Choice {
        let Self::Adaptive {
            problem,
            rules,
            others,
        } = self
        else {
            let next = |(i, w): (usize, &Work<'_>)| Some((i, *w.todo.front()?));
            return match works.iter().enumerate().find_map(next) {
                Some((work, point)) => Choice::Try(work, point, String::new()),
                None => Choice::Done("the whole grid is measured".to_owned()),
            };
        };
        let stages = sampled(problem, works, others);
        let campaign = trials::Campaign {
            problem,
            stages: &stages,
            rules: *rules,
        };
        match trials::next(&campaign) {
            Next::Stop(stop) => Choice::Done(told(stop)),
            Next::Try(trial) => match works.iter().position(|w| w.index == trial.stage) {
                Some(work) => Choice::Try(work, Point::of(trial.spot), reason(trial.why)),
                None => Choice::Done("nothing is left to try".to_owned()),
            },
        }
    }
}

/// What was measured, by stage of the job.
fn sampled(problem: &Problem, works: &[Work<'_>], others: &[Vec<ProfilePoint>]) -> Vec<Sampled> {
    let of = |stage: usize| {
        let work = works.iter().find(|w| w.index == stage);
        Sampled {
            grid: work.map_or_else(Vec::new, |w| w.grid.iter().map(|p| p.spot()).collect()),
            points: core(work.map_or(&others[stage], |w| &w.known)),
        }
    };
    (0..problem.stages.len()).map(of).collect()
}

/// Points in the core's words. What is no measurement was refused when it was stored.
pub(super) fn core(points: &[ProfilePoint]) -> Vec<evenkeel_core::curve::Point> {
    let profile = Profile {
        key: ProfileKey {
            stage: "stage".to_owned(),
            gpu: "gpu".to_owned(),
        },
        points: points.to_vec(),
        ..Profile::default()
    };
    offline::profile(&profile).map_or_else(|_| Vec::new(), |p| p.points)
}

/// What a trial is for.
fn reason(why: Why) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    match why {
        Why::Corner => "the most that it can have".to_owned(),
        Why::Promise(gain) if gain.is_finite() => {
            format!("a plan could be better by {}", percent(gain))
        }
        Why::Promise(_) => "there is no plan yet".to_owned(),
        Why::Doubt => "it contradicts its neighbours, or itself".to_owned(),
        Why::Loose(error) => format!("the plan rests on it, known to ±{}", percent(error)),
        Why::Replicas => "another number of replicas".to_owned(),
    }
}

/// Why it stops.
fn told(stop: Stop) -> String {
    let better = |by: f64| match by.is_finite() && by > 0.0005 {
        true => format!("no plan can be better by more than {:.1} %", by * 100.0),
        false => "no better plan can be hoped for".to_owned(),
    };
    match stop {
        Stop::Tight(by) => format!("{}, as far as curves are as they usually are", better(by)),
        Stop::All => "everything on the grid was tried".to_owned(),
        Stop::Spent(by) if by.is_infinite() => {
            "its trials are used up, and there is no plan yet; --full goes on".to_owned()
        }
        Stop::Spent(by) if by > 0.0005 => format!(
            "its trials are used up (a third of the grid, repeats counted); {}, and --full looks for it",
            better(by)
        ),
        Stop::Spent(by) => format!(
            "its trials are used up (a third of the grid, repeats counted); {}",
            better(by)
        ),
        Stop::Nothing => "no stage works anywhere".to_owned(),
    }
}

/// The points of `grid` that something was measured at.
pub(super) fn known_of(grid: &[Point], known: &[ProfilePoint]) -> BTreeSet<Point> {
    let is_known = |point: &&Point| known.iter().any(|k| point.is_of(k));
    grid.iter().filter(is_known).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_sentences() {
        assert_eq!(
            reason(Why::Promise(0.123)),
            "a plan could be better by 12.3 %"
        );
        assert!(told(Stop::Tight(0.01)).starts_with("no plan can be better by more than 1.0 %"));
        assert!(told(Stop::Tight(0.0)).starts_with("no better plan"));
        assert!(told(Stop::Spent(f64::INFINITY)).contains("no plan yet"));
    }

    #[test]
    fn a_supply_is_the_whole_node() {
        let node = Node {
            cores: "0-7".parse().unwrap(),
            reserved_cores: "0".parse().unwrap(),
            ..Node::default()
        };
        let gpu = Gpu {
            sms: 4,
            ..Gpu::default()
        };
        let supply = supply(&node, Some(&gpu), 0);
        assert_eq!((supply.cores, supply.gpus), (7, 1));
        assert_eq!(supply.enforceable.len(), 4);
    }
}
