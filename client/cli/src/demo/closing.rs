//! The closing words of the demo: what was measured, how to read it, and what was real. Text only; `show` prints it.

use super::report::{Figures, SteadyFigures};
use super::talk::Observed;
use super::watch::Rebalance;
use crate::text::wrapped;

/// Characters of a line of prose, and the width of a terminal that does not know its own.
pub(super) const PROSE: usize = 80;
/// How the figures are to be read.
const LEGEND: &str = "A split: cores of the simulation, SMs of generation + SMs of training. The gap: how far the \
                      slower of rollout (simulation and generation) and training is behind the faster one.";
/// Nobody is told that it was a real GPU.
pub(super) const WHAT_WAS_REAL: &str = "The GPU was EMULATED: a model says how long each kernel takes, so these figures are no \
                             measurement of an H100. Real were the daemon, its leases, the processes and what they \
                             exchanged, the physics, the policy and its training.";

/// Of a run with a drift.
pub(super) fn summary(figures: &Figures) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "Measured in {}/s, environment steps per second, {} s a phase:",
            figures.unit, figures.phase_seconds
        ),
        String::new(),
        row(
            "before the drift",
            format!("{:.0}", figures.before_drift_units_per_s),
            &format!(
                "{}   gap {:.1} %",
                figures.split_before,
                100.0 * figures.before_gap
            ),
        ),
        row(
            "after it, old split",
            format!("{:.0}", figures.static_units_per_s),
            &format!(
                "{}   noticed after {:.1} s",
                figures.split_before, figures.detection_seconds
            ),
        ),
        row(
            "after it, new split",
            format!("{:.0}", figures.rebalanced_units_per_s),
            &format!(
                "{}   gap {:.1} %",
                figures.split_after,
                100.0 * figures.after_gap
            ),
        ),
        row(
            "gain",
            format!("{:.2}x", figures.gain),
            &format!(
                "the plan promised {:.2}x; {}",
                figures.predicted_gain,
                times(figures.rebalances.len(), "move")
            ),
        ),
    ];
    lines.extend(rivals(figures));
    lines.push(String::new());
    lines.extend(wrapped(LEGEND, 0, PROSE));
    lines.push(String::new());
    let drift = format!("The drift was scripted: {}.", figures.drift.describe());
    lines.extend(wrapped(&drift, 0, PROSE));
    lines.extend(moves(&figures.rebalances));
    let learned = format!(
        "The policy reached its goal in {:.0} % of the episodes at first, in {:.0} % at the end.",
        100.0 * figures.success_rate_first,
        100.0 * figures.success_rate_last
    );
    lines.extend(wrapped(&learned, 0, PROSE));
    lines.extend(promised_twice(&figures.observer));
    lines.push(String::new());
    lines.extend(wrapped(WHAT_WAS_REAL, 0, PROSE));
    lines
}

/// What else could have been done, where that was measured.
fn rivals(figures: &Figures) -> Vec<String> {
    let Some(extra) = &figures.rivals else {
        return Vec::new();
    };
    vec![
        row(
            "best static split",
            format!("{:.0}", extra.best_static_units_per_s),
            &format!(
                "{}   the plan did {:.1} % of it",
                extra.best_static_split,
                100.0 * extra.plan_vs_best
            ),
        ),
        row(
            "unmanaged",
            format!("{:.0}", extra.unmanaged_units_per_s),
            "no caps, no binding, no daemon",
        ),
    ]
}

/// What moved, and why.
fn moves(rebalances: &[Rebalance]) -> Vec<String> {
    let mut lines = Vec::new();
    for rebalance in rebalances {
        let took = rebalance
            .seconds_to_last_confirmed_grow
            .map_or_else(String::new, |s| format!(", confirmed after {s:.2} s"));
        let moved = format!(
            "Moved at step {}: {} -> {}{took}. Why:",
            rebalance.step, rebalance.before, rebalance.after
        );
        lines.extend(wrapped(&moved, 0, PROSE));
        lines.extend(wrapped(&rebalance.reason, 2, PROSE));
    }
    lines
}

/// Whether a share was ever in two hands.
pub(super) fn promised_twice(observer: &Observed) -> Vec<String> {
    let (seconds, looks) = (observer.overcommit_seconds, observer.looks);
    let text = if seconds > 0.0 {
        let first = &observer.first;
        format!("Something was PROMISED TWICE for {seconds:.2} s in {looks} looks: {first}.")
    } else {
        format!(
            "Nothing was promised twice: a process of its own read all shares back in {looks} looks."
        )
    };
    wrapped(&text, 0, PROSE)
}

/// Of a run without one.
pub(super) fn steady_summary(figures: &SteadyFigures) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "Measured in {}/s, environment steps per second; means of {}, {} s a run:",
            figures.unit,
            times(figures.pairs.len(), "pair"),
            figures.phase_seconds
        ),
        String::new(),
        row(
            "under the daemon",
            format!("{:.0}", figures.managed_units_per_s),
            &times(figures.moves as usize, "move"),
        ),
        row(
            "the same split alone",
            format!("{:.0}", figures.static_units_per_s),
            &format!("the daemon's runs did {:.1} % of it", 100.0 * figures.ratio),
        ),
        String::new(),
    ];
    lines.extend(promised_twice(&figures.observer));
    lines.push(String::new());
    lines.extend(wrapped(WHAT_WAS_REAL, 0, PROSE));
    lines
}

/// One figure of the closing words.
pub(super) fn row(what: &str, figure: String, more: &str) -> String {
    format!("  {what:<20} {figure:>7}   {more}")
        .trim_end()
        .to_owned()
}

fn times(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::super::seeds::script;
    use super::super::watch::SplitShares;
    use super::*;

    fn figures() -> Figures {
        let split = |generation_sms| SplitShares {
            simulation_cores: 2,
            generation_sms,
            training_sms: 132 - generation_sms,
        };
        Figures {
            gpu_is_emulated: true,
            seed: 1,
            policy: "waterfill".to_owned(),
            drift: script(1).drift,
            unit: "env_step",
            phase_seconds: 20,
            before_drift_units_per_s: 3_127.4,
            static_units_per_s: 2_106.2,
            rebalanced_units_per_s: 2_672.8,
            gain: 1.269,
            predicted_gain: 1.251,
            before_gap: 0.01,
            after_gap: 0.021,
            split_before: split(56),
            split_after: split(66),
            detection_seconds: 14.34,
            rebalances: vec![Rebalance {
                step: 143,
                reason: "the rollout has been slower for 20 steps ".repeat(4),
                before: split(56),
                after: split(66),
                seconds_to_last_confirmed_grow: Some(0.12),
            }],
            staleness_most: 1,
            success_rate_first: 0.2,
            success_rate_last: 0.6,
            overcommit_seconds: 0.0,
            observer: Observed {
                looks: 4_321,
                ..Observed::default()
            },
            physics_substeps: 9,
            run_seconds: 84.0,
            rivals: None,
        }
    }

    #[test]
    fn the_closing_has_the_figures_fits_a_terminal_and_says_what_was_emulated() {
        let words = summary(&figures());
        for line in &words {
            assert!(line.chars().count() <= PROSE, "{line}");
        }
        let text = words.join(" ");
        for part in [
            "before the drift        3127   2 cores, 56 + 76 SMs   gap 1.0 %",
            "after it, old split     2106   2 cores, 56 + 76 SMs   noticed after 14.3 s",
            "after it, new split     2673   2 cores, 66 + 66 SMs   gap 2.1 %",
            "gain                   1.27x   the plan promised 1.25x; 1 move",
            "Nothing was promised twice",
            "4321 looks",
            "The GPU was EMULATED",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn what_was_promised_twice_is_told() {
        let figures = Figures {
            overcommit_seconds: 0.4,
            observer: Observed {
                looks: 7,
                overcommit_seconds: 0.4,
                sms_most: 134,
                first: "caps of 134 SMs on a GPU of 132".to_owned(),
            },
            ..figures()
        };
        let text = summary(&figures).join(" ");
        assert!(
            text.contains("PROMISED TWICE for 0.40 s in 7 looks: caps of 134 SMs"),
            "{text}"
        );
    }
}
