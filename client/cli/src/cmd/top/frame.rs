//! One picture of the node, its jobs and its leases, as lines of text. Pure: what is drawn follows from what is given.
use std::time::Duration;

use evenkeel_client::{Balance, Gpu, Job, Lease, Node, Plan};

use super::View;
use crate::cmd::leases::{phase, purpose, show_shares};
use crate::text::{cell, cut, wrapped};
use crate::units::{counted, moved, show_bytes, show_duration, show_rate};

/// The default threshold of the gap, where the job does not set one.
const GAP: f64 = 0.15;
/// The default length of a streak, likewise.
const WINDOWS: u32 = 20;
/// Full scale of the gap's bar.
const GAP_SCALE: f64 = 0.5;
/// Lines that the last decision about a job may take.
const REASON_LINES: usize = 3;

/// What a line is, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Title,
    Bad,
}

/// A line of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) tone: Tone,
}

fn line(text: impl Into<String>) -> Line {
    Line {
        text: text.into(),
        tone: Tone::Plain,
    }
}

fn title(text: impl Into<String>) -> Line {
    Line {
        text: text.into(),
        tone: Tone::Title,
    }
}

fn bad(text: impl Into<String>) -> Line {
    Line {
        text: text.into(),
        tone: Tone::Bad,
    }
}

/// The picture, no line of it wider than `width`.
pub(super) fn draw(view: &View, width: usize) -> Vec<Line> {
    let node = &view.node;
    let mut lines = vec![head(node), cores(node, width)];
    lines.extend(node.gpus.iter().flat_map(|gpu| gpu_lines(gpu, width)));
    for trouble in &node.troubles {
        lines.extend(
            wrapped(&format!("! {trouble}"), 0, width)
                .into_iter()
                .map(bad),
        );
    }
    if view.jobs.is_empty() {
        lines.push(line(""));
        lines.push(line("no jobs; submit one with `evenkeel submit job.toml`"));
    }
    for job in &view.jobs {
        lines.push(line(""));
        lines.extend(job_lines(job, width));
    }
    lines.extend(lease_lines(&view.leases, node));
    for line in &mut lines {
        line.text = cut(&line.text, width);
    }
    lines
}

/// At most `height` lines of the picture; the last one says how many are missing.
pub(super) fn fit(mut lines: Vec<Line>, height: usize) -> Vec<Line> {
    if lines.len() > height {
        let kept = height.saturating_sub(1);
        let missing = lines.len() - kept;
        lines.truncate(kept);
        lines.push(title(format!("… {missing} more lines")));
        lines.truncate(height);
    }
    lines
}

fn head(node: &Node) -> Line {
    let mut text = format!(
        "evenkeel {} on {}, up {}: {}, {} queued",
        node.version,
        node.name,
        show_duration(Duration::from_millis(node.uptime_ms)),
        counted(node.live_leases.into(), "lease"),
        node.queued
    );
    if node.draining {
        text.push_str(", draining");
    }
    if node.degraded {
        return bad(format!("{text}, DEGRADED (no new grants)"));
    }
    title(text)
}

fn cores(node: &Node, width: usize) -> Line {
    let all = node.cores.len();
    let used = node.used_cores.len();
    let share = ratio(used as f64, all as f64);
    line(format!(
        "cores  {} {used} of {all} leased or kept for jobs, {} for the system",
        bar(share, bar_width(width)),
        node.reserved_cores.len()
    ))
}

fn gpu_lines(gpu: &Gpu, width: usize) -> Vec<Line> {
    let wide = bar_width(width);
    let sms = ratio(gpu.used_sms.into(), gpu.sms.into());
    let bytes = ratio(
        gpu.used_memory_bytes as f64,
        gpu.leasable_memory_bytes as f64,
    );
    let mut lines = vec![
        line(format!(
            "gpu {:<2} {} {} of {} SMs  {} ({}, {})",
            gpu.id,
            bar(sms, wide),
            gpu.used_sms,
            gpu.sms,
            gpu.model,
            gpu.backend,
            gpu.mode
        )),
        line(format!(
            "       {} {} of {}",
            bar(bytes, wide),
            show_bytes(gpu.used_memory_bytes),
            show_bytes(gpu.leasable_memory_bytes)
        )),
    ];
    if gpu.unavailable_sms > 0 || gpu.unavailable_memory_bytes > 0 {
        lines.push(bad(format!(
            "       neighbours without a lease, or a loss: {} SMs, {}",
            gpu.unavailable_sms,
            show_bytes(gpu.unavailable_memory_bytes)
        )));
    }
    lines
}

fn job_lines(job: &Job, width: usize) -> Vec<Line> {
    let unit = &job.spec.unit;
    let balance = job.balance.clone().unwrap_or_default();
    let state = if balance.state.is_empty() { "" } else { ", " };
    let mut lines = vec![title(format!(
        "job {} of {} ({}{state}{}), {}{}",
        job.spec.name,
        job.tenant,
        job.phase.as_str(),
        balance.state,
        moved(job.moves),
        if job.moving { ", moving now" } else { "" }
    ))];
    if let Some(plan) = &job.plan {
        lines.extend(stage_lines(plan, &balance));
    }
    if balance.windows > 0 {
        lines.push(line(format!(
            "  rollout {} {unit}/s, training {} {unit}/s after {} steps",
            show_rate(balance.rollout_units_per_s),
            show_rate(balance.train_units_per_s),
            balance.windows
        )));
        lines.push(gap_line(job, &balance, width));
    }
    let reason = wrapped(&balance.last, 2, width);
    lines.extend(reason.into_iter().take(REASON_LINES).map(line));
    lines
}

/// Columns that fit into 80 characters.
fn stage_lines(plan: &Plan, balance: &Balance) -> Vec<Line> {
    let mut lines = vec![line(format!(
        "  {:<14} {:>5} {:>9} {:>9} {:>5} {:>11} {:>10}",
        "STAGE", "CORES", "SMS", "MEMORY", "BATCH", "PREDICTED/S", "MEASURED/S"
    ))];
    for (i, stage) in plan.stages.iter().enumerate() {
        let measured = balance.stage_units_per_s.get(i).filter(|r| **r > 0.0);
        let binds = if stage.stage == plan.binding_stage {
            "  binds"
        } else {
            ""
        };
        let sms = if stage.cap_sms > stage.sms {
            format!("{}–{}", stage.sms, stage.cap_sms)
        } else {
            stage.sms.to_string()
        };
        lines.push(line(format!(
            "  {} {:>5} {sms:>9} {:>9} {:>5} {:>11} {:>10}{binds}",
            cell(&stage.stage, 14),
            stage.cores,
            show_bytes(stage.memory_bytes),
            stage.batch,
            show_rate(stage.predicted_units_per_s),
            measured.map_or("-".to_owned(), |r| show_rate(*r)),
        )));
    }
    lines
}

fn gap_line(job: &Job, balance: &Balance, width: usize) -> Line {
    let threshold = job.spec.rebalance.gap.unwrap_or(GAP);
    let windows = job.spec.rebalance.windows.unwrap_or(WINDOWS);
    let wide = bar_width(width);
    let mut bar: Vec<char> = bar(balance.gap / GAP_SCALE, wide).chars().collect();
    // The bar has a bracket on either side.
    let mark = 1 + (threshold / GAP_SCALE * wide as f64).round() as usize;
    if let Some(place) = bar.get_mut(mark.min(wide)) {
        *place = '|';
    }
    let side = if balance.rollout_units_per_s < balance.train_units_per_s {
        "rollout"
    } else {
        "training"
    };
    let text = format!(
        "  gap  {} {:.1} % ({side} is slower), streak {}/{windows}",
        bar.into_iter().collect::<String>(),
        balance.gap * 100.0,
        balance.streak
    );
    if balance.gap > threshold {
        bad(text)
    } else {
        line(text)
    }
}

/// Columns that fit into 80 characters.
fn lease_lines(leases: &[Lease], node: &Node) -> Vec<Line> {
    let mut lines = Vec::new();
    if leases.is_empty() && node.live_leases > 0 {
        lines.push(line(""));
        lines.push(line(
            "the leases are too many to show; see `evenkeel leases`",
        ));
    }
    if leases.is_empty() {
        return lines;
    }
    lines.push(line(""));
    lines.push(title(format!(
        "{:>5} {:<21} {:<11} {:<8} {:<22} {:>7}",
        "LEASE", "FOR", "PHASE", "CORES", "GPU SHARES", "LEFT"
    )));
    for lease in leases {
        let whose = match lease.member {
            Some(_) => purpose(lease),
            None => format!("{}, pid {}", lease.tenant, lease.pid),
        };
        let cores = match lease.held.cores.is_empty() {
            true => "-".to_owned(),
            false => lease.held.cores.to_string(),
        };
        let text = format!(
            "{:>5} {} {} {} {} {:>7}",
            lease.id,
            cell(&whose, 21),
            cell(&phase(lease), 11),
            cell(&cores, 8),
            cell(&show_shares(&lease.held), 22),
            show_duration(Duration::from_millis(lease.remaining_ms)),
        );
        lines.push(if lease.suspect { bad(text) } else { line(text) });
    }
    lines
}

const fn bar_width(width: usize) -> usize {
    let quarter = width / 4;
    if quarter < 10 {
        10
    } else if quarter > 40 {
        40
    } else {
        quarter
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// `[████····]`
fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("[{}{}]", "█".repeat(full), "·".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use evenkeel_client::{GpuShare, JobSpec, LeasePhase, StagePlan, Vector};

    use super::*;

    fn view() -> View {
        let stage = |name: &str, sms| StagePlan {
            stage: name.to_owned(),
            cores: 2,
            sms,
            cap_sms: sms,
            memory_bytes: 24 << 30,
            batch: 16,
            predicted_units_per_s: 1000.0,
            ..StagePlan::default()
        };
        let job = Job {
            id: 1,
            tenant: "alice".to_owned(),
            spec: JobSpec::new("reach", "env_step"),
            phase: evenkeel_client::JobPhase::Admitted,
            plan: Some(Plan {
                stages: vec![stage("generation", 40), stage("training", 92)],
                binding_stage: "training".to_owned(),
                ..Plan::default()
            }),
            balance: Some(Balance {
                windows: 30,
                rollout_units_per_s: 1000.0,
                train_units_per_s: 750.0,
                gap: 0.25,
                streak: 7,
                stage_units_per_s: vec![1000.0, 750.0],
                last: "stayed: too little to gain".to_owned(),
                state: "watching".to_owned(),
            }),
            leases: Vec::new(),
            moves: 1,
            moving: false,
        };
        let lease = Lease {
            id: 17,
            tenant: "alice".to_owned(),
            pid: 4321,
            phase: LeasePhase::Active,
            held: Vector {
                cores: "0-3".parse().unwrap(),
                gpus: vec![GpuShare {
                    guarantee_sms: 40,
                    cap_sms: 40,
                    memory_bytes: 10 << 30,
                    ..GpuShare::default()
                }],
                ..Vector::default()
            },
            remaining_ms: 29_500,
            enforced: true,
            ..Lease::default()
        };
        View {
            node: Node {
                live_leases: 1,
                gpus: vec![Gpu {
                    model: "emulated-h100".to_owned(),
                    backend: "emulated".to_owned(),
                    mode: "enforce".to_owned(),
                    sms: 132,
                    used_sms: 132,
                    ..Gpu::default()
                }],
                ..Node::default()
            },
            jobs: vec![job],
            leases: vec![lease],
        }
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_picture_shows_shares_rates_gap_reason_and_holders() {
        let lines = draw(&view(), 80);
        let text = texts(&lines).join("\n");
        for part in [
            "132 of 132 SMs  emulated-h100 (emulated, enforce)",
            "25.0 %",
            "training is slower",
            "streak 7/20",
            "binds",
            "too little",
            "750",
            "   17 alice, pid 4321       active      0-3      gpu 0: 40 SMs, 10 GiB   29.5 s",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let gap = lines.iter().find(|l| l.text.contains("gap")).unwrap();
        assert_eq!(gap.tone, Tone::Bad, "a quarter is more than 15 %");
        let cells = gap.text.matches('█').count();
        assert_eq!(cells, 9, "half of 20, less the mark: {}", gap.text);
    }

    #[test]
    fn nothing_of_it_is_cut_off_at_80_columns() {
        let lines = draw(&view(), 80);
        assert!(!texts(&lines).join("").contains('…'), "{lines:#?}");
        for width in [80, 40, 10] {
            let lines = draw(&view(), width);
            assert!(lines.iter().all(|l| l.text.chars().count() <= width));
        }
    }

    #[test]
    fn what_does_not_fit_on_the_screen_is_counted() {
        let lines = draw(&view(), 80);
        let all = lines.len();
        assert_eq!(fit(lines.clone(), all), lines);
        let short = fit(lines.clone(), 5);
        assert_eq!(short.len(), 5);
        assert_eq!(short[4].text, format!("… {} more lines", all - 4));
        assert_eq!(fit(lines, 0).len(), 0);
    }

    #[test]
    fn bars_never_overflow() {
        for share in [-1.0, 0.0, 0.5, 1.0, 7.0, f64::NAN] {
            assert_eq!(bar(share, 10).chars().count(), 12, "{share}");
        }
    }
}
