//! The closing words of a run with two jobs: what each did and was predicted to do, what moved when and why, and what was
//! real. Text only; `show` prints it.

use super::figures::{Figures, Phase};
use crate::demo::closing::{PROSE, WHAT_WAS_REAL, promised_twice, row};
use crate::text::wrapped;

/// How the figures are to be read.
const LEGEND: &str = "The plan: what the split in force was expected to do when it was made. A split: cores of the \
                      simulation, SMs of generation + SMs of training.";

/// Of a run with two jobs.
pub(super) fn summary(figures: &Figures) -> Vec<String> {
    let (first, second) = (figures.first_job, figures.second_job);
    let mut lines = vec![
        String::new(),
        format!(
            "Measured in {}/s, environment steps per second, {} s a phase:",
            figures.unit, figures.phase_seconds
        ),
        String::new(),
        phase(&format!("{first} alone"), &figures.first_alone),
        phase(&format!("{first} beside it"), &figures.first_shared),
        phase(second, &figures.second_shared),
        phase(&format!("{first} alone again"), &figures.first_after),
        String::new(),
    ];
    lines.extend(wrapped(LEGEND, 0, PROSE));
    lines.push(String::new());
    lines.extend(arrival(figures));
    lines.extend(departure(figures));
    lines.extend(refitted(figures));
    let levels = format!(
        "Beside each other {first} did {:.0} % and {second} {:.0} % of what {first} did alone; by their plans {:.0} % and \
         {:.0} %.",
        100.0 * figures.first_shared.level,
        100.0 * figures.second_shared.level,
        100.0 * figures.first_shared.predicted_level,
        100.0 * figures.second_shared.predicted_level
    );
    lines.extend(wrapped(&levels, 0, PROSE));
    lines.extend(promised_twice(&figures.observer));
    lines.push(String::new());
    lines.extend(wrapped(WHAT_WAS_REAL, 0, PROSE));
    lines
}

/// What a job did in a phase.
fn phase(what: &str, phase: &Phase) -> String {
    let plan = format!(
        "plan {:.0}: {:.1} %",
        phase.predicted_units_per_s,
        100.0 * phase.measured_over_predicted
    );
    row(
        what,
        format!("{:.0}", phase.measured_units_per_s),
        &format!("{plan:<19}  {}", phase.split),
    )
}

/// What the curves said when they had been corrected by what was measured.
fn refitted(figures: &Figures) -> Vec<String> {
    let phases = [
        (figures.first_job, &figures.first_alone),
        (figures.first_job, &figures.first_shared),
        (figures.second_job, &figures.second_shared),
        (figures.first_job, &figures.first_after),
    ];
    let said = phases.map(|(job, phase)| {
        format!(
            "{job} {:.0} ({:.1} %)",
            phase.refitted_units_per_s,
            100.0 * phase.measured_over_refitted
        )
    });
    let text = format!(
        "In the same order, the curves as refitted from what was measured said, and was done: {}.",
        said.join(", ")
    );
    wrapped(&text, 0, PROSE)
}

/// The second job came.
fn arrival(figures: &Figures) -> Vec<String> {
    let (first, second, arrival) = (figures.first_job, figures.second_job, &figures.arrival);
    let promised = arrival
        .second_admitted_seconds
        .map_or_else(String::new, |s| {
            format!("was promised its part after {s:.2} s, ")
        });
    let came = format!(
        "{second} came: {first} had confirmed its smaller share after {:.2} s: {} -> {}. Why:",
        arrival.first_confirmed_seconds, arrival.first_split_before, arrival.first_split_after
    );
    let mut lines = wrapped(&came, 0, PROSE);
    lines.extend(wrapped(&arrival.first_reason, 2, PROSE));
    let runs = format!(
        "{second} {promised}and did its first training step after {:.2} s, on {}. Why:",
        arrival.second_runs_seconds, arrival.second_split
    );
    lines.extend(wrapped(&runs, 0, PROSE));
    lines.extend(wrapped(&arrival.second_reason, 2, PROSE));
    lines
}

/// The second job ended.
fn departure(figures: &Figures) -> Vec<String> {
    let (first, second, departure) = (figures.first_job, figures.second_job, &figures.departure);
    let back = if departure.everything_back {
        "had everything back"
    } else {
        "had NOT everything back, but what it was given was confirmed"
    };
    let ended = format!(
        "{second} ended: its workers were gone after {:.2} s, and {first} {back} after {:.2} s: {} -> {}. Why:",
        departure.second_ended_seconds,
        departure.first_confirmed_seconds,
        departure.first_split_before,
        departure.first_split_after
    );
    let mut lines = wrapped(&ended, 0, PROSE);
    lines.extend(wrapped(&departure.first_reason, 2, PROSE));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::figures::Departure;
    use super::super::figures::tests::figures;
    use super::*;

    /// The words as one line.
    fn text(figures: &Figures) -> String {
        let words = summary(figures);
        for line in &words {
            assert!(line.chars().count() <= PROSE, "{line}");
        }
        words.join(" ")
    }

    #[test]
    fn the_closing_has_the_figures_and_each_transition_and_says_what_was_emulated() {
        let text = text(&figures());
        for part in [
            "reach alone             3120   plan 3100: 100.6 %   2 cores, 56 + 76 SMs",
            "reach beside it         1710   plan 1700: 100.6 %   1 core, 24 + 42 SMs",
            "reach-2                 1690   plan 1700: 99.4 %    1 core, 24 + 42 SMs",
            "reach alone again       3110   plan 3100: 100.3 %   2 cores, 56 + 76 SMs",
            "reach-2 came: reach had confirmed its smaller share after 0.38 s: 2 cores, 56 +",
            "job reach-2 came: from 3100 to 1700, 55 %",
            "reach-2 was promised its part after 0.01 s, and did its first training step after",
            "2 jobs share the node: this one does 55 %",
            "reach had everything back after 0.52 s",
            "reach 3120 (100.0 %), reach 1710 (100.0 %)",
            "Beside each other reach did 55 % and reach-2 54 % of what reach did alone",
            "Nothing was promised twice",
            "The GPU was EMULATED",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn what_did_not_come_back_is_told() {
        let figures = figures();
        let departure = Departure {
            everything_back: false,
            ..figures.departure.clone()
        };
        let text = text(&Figures {
            departure,
            ..figures
        });
        assert!(text.contains("reach had NOT everything back"), "{text}");
    }
}
