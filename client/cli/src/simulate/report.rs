//! What a simulation found: figures with units in their names, for JSON, and a table of them for people.

use comfy_table::Table;
use serde::Serialize;

use super::fleet::{Order, Outcomes};
use super::policy::Policy;
use super::scenario::{Fidelity, Scenario};
use super::tally::{BINS, Mark, Tally};
use crate::table::{right, table};
use crate::units::show_rate;

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) fidelity: Fidelity,
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) nodes: u32,
    /// The work unit of all jobs; `units` where they differ.
    pub(crate) unit: String,
    pub(crate) policies: Vec<Row>,
    pub(crate) timeline: Timeline,
}

/// What one policy came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) policy: Policy,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_possible: Option<String>,
    /// Units trained on per simulated second, over all nodes and jobs.
    pub(crate) units_per_s: Option<f64>,
    /// Share of what the clairvoyant did; over jobs the mean.
    pub(crate) of_clairvoyant: Option<f64>,
    pub(crate) moves: u64,
    /// Seconds in which pipelines stood still for moves.
    pub(crate) paused_s: f64,
    /// Share of the SM time in which no SM had work.
    pub(crate) gpu_idle_share: Option<f64>,
    /// Largest gap of rollout and training over five windows.
    pub(crate) worst_gap: f64,
    pub(crate) windows: u64,
    pub(crate) events: u64,
    pub(crate) jobs: Vec<JobRow>,
}

/// What one job came to, over all nodes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobRow {
    pub(crate) job: String,
    /// Units trained on per second in which it was there.
    pub(crate) units_per_s: f64,
    /// Seconds in which it waited for room.
    pub(crate) waited_s: f64,
}

/// How it went over time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Timeline {
    /// Length of one point.
    pub(crate) step_s: f64,
    /// Units per second at each point, by policy.
    pub(crate) units_per_s: Vec<Line>,
    /// Whose shares the bands are.
    pub(crate) shares_of: Option<Policy>,
    /// What each stage held at each point.
    pub(crate) shares: Vec<Band>,
    /// When shares moved on the first node, under the policy that the bands are of.
    pub(crate) moves: Vec<Mark>,
    /// When costs begin to change, for certain: drifts without jitter.
    pub(crate) drifts: Vec<Mark>,
    /// There are several nodes: moves are of the first, all else is of all.
    #[serde(skip)]
    pub(crate) is_of_many: bool,
    /// SMs and cores of all nodes.
    pub(crate) sms: f64,
    pub(crate) cores: f64,
}

/// A policy's throughput over time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) policy: Policy,
    pub(crate) points: Vec<f64>,
}

/// A stage's shares over time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Band {
    pub(crate) job: String,
    pub(crate) stage: String,
    pub(crate) sms: Vec<f64>,
    pub(crate) cores: Vec<f64>,
}

impl Report {
    pub(super) fn new(order: &Order<'_>, outcomes: &Outcomes, shares_of: Policy) -> Self {
        let scenario = order.scenario;
        let best = outcomes.iter().find(|o| o.0 == Policy::Clairvoyant);
        let best = best.and_then(|o| o.1.as_ref().ok());
        let rows = outcomes.iter().map(|(policy, outcome)| match outcome {
            Ok(tally) => row(order, *policy, tally, best),
            Err(why) => impossible(*policy, why),
        });
        Self {
            scenario: scenario.name.clone(),
            about: scenario.about.clone(),
            fidelity: order.fidelity,
            seed: order.seed,
            seconds: order.seconds,
            nodes: scenario.nodes.count,
            unit: unit(scenario),
            policies: rows.collect(),
            timeline: timeline(order, outcomes, shares_of),
        }
    }

    /// For people.
    pub(crate) fn table(&self) -> Table {
        let rate = format!("{}/s", self.unit);
        let mut table = table([
            "POLICY",
            &rate,
            "OF BEST",
            "MOVES",
            "PAUSED",
            "GPU IDLE",
            "WORST GAP",
        ]);
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let or_none = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
        for row in &self.policies {
            match row.units_per_s {
                Some(units_per_s) => table.add_row([
                    comfy_table::Cell::new(row.policy.name()),
                    right(show_rate(units_per_s)),
                    right(or_none(row.of_clairvoyant)),
                    right(row.moves),
                    right(format!("{:.0} s", row.paused_s)),
                    right(or_none(row.gpu_idle_share)),
                    right(percent(row.worst_gap)),
                ]),
                None => table.add_row([row.policy.name(), "-"]),
            };
        }
        table
    }

    /// Why some policies have no figures: a line for each reason.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in &self.policies {
            let Some(why) = row.not_possible.as_deref() else {
                continue;
            };
            match said.iter_mut().find(|(known, _)| *known == why) {
                Some((_, policies)) => policies.push(row.policy.name()),
                None => said.push((why, vec![row.policy.name()])),
            }
        }
        let line = |(why, policies): (&str, Vec<&str>)| format!("{}: {why}", policies.join(", "));
        said.into_iter().map(line).collect()
    }
}

fn unit(scenario: &Scenario) -> String {
    let mut units = scenario.jobs.iter().map(|j| j.spec.unit.as_str());
    let first = units.next().unwrap_or("unit");
    if units.all(|unit| unit == first) {
        first.to_owned()
    } else {
        "units".to_owned()
    }
}

fn impossible(policy: Policy, why: &str) -> Row {
    Row {
        policy,
        not_possible: Some(why.to_owned()),
        units_per_s: None,
        of_clairvoyant: None,
        moves: 0,
        paused_s: 0.0,
        gpu_idle_share: None,
        worst_gap: 0.0,
        windows: 0,
        events: 0,
        jobs: Vec::new(),
    }
}

fn row(order: &Order<'_>, policy: Policy, tally: &Tally, best: Option<&Tally>) -> Row {
    let scenario = order.scenario;
    let shares = best.map(|best| {
        let both = tally
            .units
            .iter()
            .zip(&best.units)
            .filter(|(_, b)| **b > 0.0);
        both.map(|(a, b)| a / b).collect::<Vec<f64>>()
    });
    let mean = |all: Vec<f64>| {
        let n = all.len() as f64;
        (n > 0.0).then(|| all.iter().sum::<f64>() / n)
    };
    let installed_sm_s = installed_sms(scenario) * order.seconds;
    let jobs = scenario.jobs.iter().enumerate().map(|(i, job)| JobRow {
        job: job.spec.name.to_string(),
        units_per_s: tally.units[i] / tally.present_s[i].max(f64::MIN_POSITIVE),
        waited_s: tally.waited_s[i],
    });
    Row {
        policy,
        not_possible: None,
        units_per_s: Some(tally.units.iter().sum::<f64>() / order.seconds),
        of_clairvoyant: shares.and_then(mean),
        moves: tally.moves,
        paused_s: tally.paused_s,
        gpu_idle_share: (installed_sm_s > 0.0)
            .then(|| (1.0 - tally.busy_sm_s / installed_sm_s).max(0.0)),
        worst_gap: tally.worst_gap,
        windows: tally.windows,
        events: tally.events,
        jobs: jobs.collect(),
    }
}

fn installed_sms(scenario: &Scenario) -> f64 {
    let nodes = &scenario.nodes;
    let of_gpu = nodes.gpu.as_ref().map_or(0, |gpu| gpu.sms);
    f64::from(nodes.count) * f64::from(nodes.gpus) * f64::from(of_gpu)
}

fn timeline(order: &Order<'_>, outcomes: &Outcomes, shares_of: Policy) -> Timeline {
    let scenario = order.scenario;
    let step_s = order.seconds / BINS as f64;
    let possible = outcomes
        .iter()
        .filter_map(|(p, o)| Some((*p, o.as_ref().ok()?)));
    let lines = possible.clone().map(|(policy, tally)| Line {
        policy,
        points: tally.bins.iter().map(|units| units / step_s).collect(),
    });
    let wanted = possible.clone().find(|(policy, _)| *policy == shares_of);
    let shown = wanted.or_else(|| possible.clone().next_back());
    let stages = scenario.jobs.iter().flat_map(|job| {
        let of_job = job.spec.stages.iter();
        of_job.map(move |stage| (job.spec.name.to_string(), stage.name.to_string()))
    });
    let shares = shown.map_or_else(Vec::new, |(_, tally)| {
        let per_s = |held: &[f64]| held.iter().map(|x| x / step_s).collect();
        let held = stages.zip(&tally.held);
        held.map(|((job, stage), held)| Band {
            job,
            stage,
            sms: per_s(&held.sm_s),
            cores: per_s(&held.core_s),
        })
        .collect()
    });
    let drifts = scenario
        .jobs
        .iter()
        .filter(|job| job.jitter_s <= 0.0)
        .flat_map(|job| {
            job.drifts.iter().map(|drift| Mark {
                at_s: job.arrives_s + drift.at_s,
                job: job.spec.name.to_string(),
                what: format!("{} × {}", job.spec.stages[drift.stage].name, drift.factor),
            })
        });
    let nodes = &scenario.nodes;
    Timeline {
        step_s,
        units_per_s: lines.collect(),
        shares_of: shown.map(|s| s.0),
        shares,
        moves: shown.map_or_else(Vec::new, |(_, tally)| tally.marks.clone()),
        drifts: drifts.filter(|mark| mark.at_s < order.seconds).collect(),
        is_of_many: nodes.count > 1,
        sms: installed_sms(scenario),
        cores: f64::from(nodes.count) * f64::from(nodes.cores),
    }
}
