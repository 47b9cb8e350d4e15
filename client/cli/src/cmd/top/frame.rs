//! One picture of the node and its jobs, as lines of text. Pure: what is drawn follows from what is given.
use evenkeel_client::{Balance, Gpu, Job, Node};

use super::View;
use crate::units::{show_bytes, show_duration, show_rate, times};

/// The default threshold of the gap, where the job does not set one.
const GAP: f64 = 0.15;
/// Full scale of the gap's bar.
const GAP_SCALE: f64 = 0.5;

/// The picture.
pub(super) fn draw(view: &View, width: usize) -> Vec<String> {
    let node = &view.node;
    let mut lines = vec![head(node), cores(node, width)];
    lines.extend(node.gpus.iter().flat_map(|gpu| gpu_lines(gpu, width)));
    lines.extend(node.troubles.iter().map(|t| format!("! {t}")));
    if view.jobs.is_empty() {
        lines.push(String::new());
        lines.push("no jobs; submit one with `evenkeel submit job.toml`".to_owned());
    }
    for job in &view.jobs {
        lines.push(String::new());
        lines.extend(job_lines(job, width));
    }
    lines
}

fn head(node: &Node) -> String {
    let mut line = format!(
        "evenkeel {} on {}, up {}: {} leases, {} queued",
        node.version,
        node.name,
        show_duration(std::time::Duration::from_millis(node.uptime_ms)),
        node.live_leases,
        node.queued
    );
    if node.draining {
        line.push_str(", draining");
    }
    if node.degraded {
        line.push_str(", DEGRADED (no new grants)");
    }
    line
}

fn cores(node: &Node, width: usize) -> String {
    let all = node.cores.len();
    let used = node.used_cores.len();
    let share = ratio(used as f64, all as f64);
    let text = format!(
        "{used} of {all} leased, {} for the system",
        node.reserved_cores.len()
    );
    format!("cores  {} {text}", bar(share, bar_width(width)))
}

fn gpu_lines(gpu: &Gpu, width: usize) -> [String; 2] {
    let wide = bar_width(width);
    let sms = ratio(gpu.used_sms.into(), gpu.sms.into());
    let bytes = ratio(
        gpu.used_memory_bytes as f64,
        gpu.leasable_memory_bytes as f64,
    );
    let mut about = format!("{} ({}, {})", gpu.model, gpu.backend, gpu.mode);
    if gpu.unavailable_sms > 0 || gpu.unavailable_memory_bytes > 0 {
        about.push_str(&format!(
            "; neighbours have {} SMs, {}",
            gpu.unavailable_sms,
            show_bytes(gpu.unavailable_memory_bytes)
        ));
    }
    [
        format!(
            "gpu {:<2} {} {} of {} SMs  {about}",
            gpu.id,
            bar(sms, wide),
            gpu.used_sms,
            gpu.sms
        ),
        format!(
            "       {} {} of {}",
            bar(bytes, wide),
            show_bytes(gpu.used_memory_bytes),
            show_bytes(gpu.leasable_memory_bytes)
        ),
    ]
}

fn job_lines(job: &Job, width: usize) -> Vec<String> {
    let unit = &job.spec.unit;
    let balance = job.balance.clone().unwrap_or_default();
    let state = if balance.state.is_empty() { "" } else { ", " };
    let mut lines = vec![format!(
        "job {} of {} ({}{state}{}), moved {}{}",
        job.spec.name,
        job.tenant,
        job.phase.as_str(),
        balance.state,
        times(job.moves),
        if job.moving { ", moving now" } else { "" }
    )];
    if let Some(plan) = &job.plan {
        lines.push(format!(
            "  {:<14} {:>6} {:>10} {:>10} {:>6} {:>12} {:>12}",
            "STAGE", "CORES", "SMS", "MEMORY", "BATCH", "PREDICTED/S", "MEASURED/S"
        ));
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
            lines.push(format!(
                "  {:<14} {:>6} {sms:>10} {:>10} {:>6} {:>12} {:>12}{binds}",
                stage.stage,
                stage.cores,
                show_bytes(stage.memory_bytes),
                stage.batch,
                show_rate(stage.predicted_units_per_s),
                measured.map_or("-".to_owned(), |r| show_rate(*r)),
            ));
        }
    }
    if balance.windows > 0 {
        let threshold = job.spec.rebalance.gap.unwrap_or(GAP);
        lines.push(format!(
            "  rollout {} {unit}/s, training {} {unit}/s after {} steps",
            show_rate(balance.rollout_units_per_s),
            show_rate(balance.train_units_per_s),
            balance.windows
        ));
        lines.push(gap_line(
            &balance,
            threshold,
            job.spec.rebalance.windows.unwrap_or(20),
            width,
        ));
    }
    if !balance.last.is_empty() {
        lines.push(format!("  {}", balance.last));
    }
    lines
}

fn gap_line(balance: &Balance, threshold: f64, windows: u32, width: usize) -> String {
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
    format!(
        "  gap    {} {:.1} % ({side} is slower), streak {}/{windows}",
        bar.into_iter().collect::<String>(),
        balance.gap * 100.0,
        balance.streak
    )
}

const fn bar_width(width: usize) -> usize {
    let third = width / 3;
    if third < 10 {
        10
    } else if third > 40 {
        40
    } else {
        third
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
    use evenkeel_client::{JobSpec, Plan, StagePlan};

    use super::*;

    #[test]
    fn a_picture_shows_shares_rates_gap_and_reason() {
        let stage = |name: &str, sms| StagePlan {
            stage: name.to_owned(),
            cores: 2,
            sms,
            cap_sms: sms,
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
        let view = View {
            node: Node::default(),
            jobs: vec![job],
        };
        let text = draw(&view, 90).join("\n");
        for part in [
            "25.0 %",
            "training is slower",
            "streak 7/20",
            "binds",
            "too little",
            "750",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let gap = text.lines().find(|l| l.contains("gap")).unwrap();
        assert_eq!(
            gap.matches('█').count(),
            14,
            "half of 30, less the mark: {gap}"
        );
    }

    #[test]
    fn bars_never_overflow() {
        for share in [-1.0, 0.0, 0.5, 1.0, 7.0, f64::NAN] {
            assert_eq!(bar(share, 10).chars().count(), 12, "{share}");
        }
    }
}
