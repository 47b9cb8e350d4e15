//! A report as a picture: throughput over time by policy, and the shares of one policy's stages as bands below it; drifts
//! and moves are marked. Plain SVG, written here: a few lines and areas need no library. Called by `cmd::simulate`.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::policy::Policy;
use super::report::{Band, Report, Row, Timeline};
use crate::units::show_rate;

const WIDTH: f64 = 980.0;
const LEFT: f64 = 70.0;
/// The charts' own width; the legends are to the right of it.
const FIELD: f64 = 660.0;
const LEGEND: f64 = LEFT + FIELD + 22.0;
const TOP: f64 = 78.0;
const RATES_HEIGHT: f64 = 250.0;
const BANDS_HEIGHT: f64 = 130.0;
/// Between charts: an axis, its title, and the next chart's title.
const BETWEEN: f64 = 52.0;
/// Lines of a legend.
const LINE: f64 = 17.0;
/// More bands than this cannot be told apart: stages of the same name are shown as one.
const BANDS_MAX: usize = 9;
/// More labels than this overlap.
const LABELS_MAX: usize = 6;

/// A line's colour and dashes: families of policies share a colour. (Okabe and Ito's palette.)
const fn style(policy: Policy) -> (&'static str, &'static str) {
    match policy {
        Policy::WholeGpu => ("#999999", ""),
        Policy::Collocated => ("#999999", "7 3"),
        Policy::Hybrid => ("#999999", "2 3"),
        Policy::Even => ("#cc79a7", ""),
        Policy::Unmanaged => ("#e69f00", ""),
        Policy::EbrlOnce => ("#009e73", "2 3"),
        Policy::EbrlStreak => ("#009e73", ""),
        Policy::EbrlCusum => ("#009e73", "7 3"),
        Policy::WaterfillStreak => ("#0072b2", ""),
        Policy::WaterfillCusum => ("#0072b2", "7 3"),
        Policy::Clairvoyant => ("#000000", "1 3"),
    }
}

/// Colours of bands.
const BANDS: [&str; BANDS_MAX] = [
    "#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999",
    "#b3d4a5",
];

/// The time axis.
struct Time {
    seconds: f64,
    unit_s: f64,
    unit: &'static str,
}

impl Time {
    fn over(seconds: f64) -> Self {
        let (unit_s, unit) = match seconds {
            s if s <= 600.0 => (1.0, "seconds"),
            s if s <= 4.0 * 3_600.0 => (60.0, "minutes"),
            s if s <= 4.0 * 86_400.0 => (3_600.0, "hours"),
            _ => (86_400.0, "days"),
        };
        Self {
            seconds,
            unit_s,
            unit,
        }
    }
    fn x(&self, at_s: f64) -> f64 {
        LEFT + FIELD * (at_s / self.seconds).clamp(0.0, 1.0)
    }
}

/// The picture.
pub(crate) fn svg(report: &Report) -> String {
    let timeline = &report.timeline;
    let time = Time::over(report.seconds);
    let bands = grouped(&timeline.shares);
    let with_sms = timeline.sms > 0.0 && !bands.is_empty();
    let with_cores = !bands.is_empty() && bands.iter().any(|b| b.cores.iter().any(|c| *c > 0.0));
    let charts = f64::from(u8::from(with_sms) + u8::from(with_cores));
    let height = TOP + RATES_HEIGHT + charts * (BETWEEN + BANDS_HEIGHT) + 44.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let title = format!("{}: {} per second", report.scenario, report.unit);
    text(
        &mut out,
        (LEFT, 24.0),
        "start",
        "font-weight=\"bold\" font-size=\"15\"",
        &title,
    );
    rates(&mut out, report, &time);
    let mut top = TOP + RATES_HEIGHT + BETWEEN;
    let whose = timeline.shares_of.map_or("", Policy::name);
    if with_sms {
        let chart = Bands {
            top,
            title: &format!("SMs held under {whose}, of {:.0}", timeline.sms),
            most: timeline.sms,
        };
        chart.draw(&mut out, &time, &bands, |b| &b.sms);
        moves(&mut out, timeline, &time, top);
        top += BANDS_HEIGHT + BETWEEN;
    }
    if with_cores {
        let chart = Bands {
            top,
            title: &format!("Cores held under {whose}, of {:.0}", timeline.cores),
            most: timeline.cores,
        };
        chart.draw(&mut out, &time, &bands, |b| &b.cores);
    }
    let below = (LEFT + FIELD, height - 10.0);
    text(
        &mut out,
        below,
        "end",
        "",
        &format!("time in {}", time.unit),
    );
    out += "</svg>\n";
    out
}

/// Throughput by policy.
fn rates(out: &mut String, report: &Report, time: &Time) {
    let lines = &report.timeline.units_per_s;
    let most = lines
        .iter()
        .flat_map(|l| &l.points)
        .fold(0.0_f64, |a, b| a.max(*b));
    let most = if most > 0.0 { most * 1.05 } else { 1.0 };
    axes(out, time, TOP, RATES_HEIGHT, most);
    let bottom = TOP + RATES_HEIGHT;
    let drifts = &report.timeline.drifts;
    for (n, drift) in drifts.iter().enumerate() {
        let x = time.x(drift.at_s);
        let (from, to) = (TOP - 4.0, bottom);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {from}V{to}\" stroke=\"#d55e00\" stroke-dasharray=\"3 3\"/>"
        );
        if drifts.len() <= LABELS_MAX {
            // Neighbours' labels are on lines of their own, and end where the field does.
            let y = TOP - 8.0 - 14.0 * (n % 2) as f64;
            let anchor = if x > LEFT + 0.7 * FIELD {
                "end"
            } else {
                "start"
            };
            text(
                out,
                (x, y),
                anchor,
                "fill=\"#d55e00\" font-size=\"11\"",
                &drift.what,
            );
        }
    }
    for line in lines {
        let (colour, dashes) = style(line.policy);
        let points = line.points.iter().enumerate().map(|(i, rate)| {
            let at_s = (i as f64 + 0.5) * report.timeline.step_s;
            format!(
                "{:.1},{:.1}",
                time.x(at_s),
                bottom - RATES_HEIGHT * rate / most
            )
        });
        let points: Vec<String> = points.collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" \
             stroke-dasharray=\"{dashes}\"/>",
            points.join(" ")
        );
    }
    legend(out, &report.policies);
}

/// Policies, the fastest first, with their means.
fn legend(out: &mut String, rows: &[Row]) {
    let mut known: Vec<(&Row, f64)> = rows
        .iter()
        .filter_map(|row| Some((row, row.units_per_s?)))
        .collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    text(
        out,
        (LEGEND + 200.0, TOP),
        "end",
        "font-size=\"11\"",
        "mean",
    );
    for (n, (row, mean)) in known.iter().enumerate() {
        let y = TOP + LINE * (n as f64 + 1.0);
        let (colour, dashes) = style(row.policy);
        let _ = writeln!(
            out,
            "<path d=\"M{LEGEND} {}h26\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dashes}\"/>",
            y - 4.0
        );
        text(out, (LEGEND + 33.0, y), "start", "", row.policy.name());
        text(out, (LEGEND + 200.0, y), "end", "", &show_rate(*mean));
    }
}

/// A chart of stacked bands.
struct Bands<'a> {
    top: f64,
    title: &'a str,
    most: f64,
}

impl Bands<'_> {
    fn draw(&self, out: &mut String, time: &Time, bands: &[Band], of: impl Fn(&Band) -> &Vec<f64>) {
        let place = (LEFT, self.top - 12.0);
        text(out, place, "start", "font-weight=\"bold\"", self.title);
        let shown: Vec<(usize, &Band)> = bands
            .iter()
            .enumerate()
            .filter(|(_, b)| of(b).iter().any(|v| *v > 0.0))
            .collect();
        let bottom = self.top + BANDS_HEIGHT;
        let y = |value: f64| bottom - BANDS_HEIGHT * (value / self.most).clamp(0.0, 1.0);
        let n = bands.first().map_or(0, |b| of(b).len());
        let mut below = vec![0.0; n];
        for (line, (i, band)) in shown.iter().enumerate() {
            let above: Vec<f64> = below.iter().zip(of(band)).map(|(a, b)| a + b).collect();
            let x = |bin: usize| time.x(time.seconds * bin as f64 / n as f64);
            let mut path = String::new();
            // Steps, not slopes: shares jump.
            for (bin, value) in above.iter().enumerate() {
                let start = if bin == 0 { "M" } else { "L" };
                let _ = write!(
                    path,
                    "{start}{:.1} {:.1}H{:.1}",
                    x(bin),
                    y(*value),
                    x(bin + 1)
                );
            }
            for (bin, value) in below.iter().enumerate().rev() {
                let _ = write!(path, "L{:.1} {:.1}H{:.1}", x(bin + 1), y(*value), x(bin));
            }
            let colour = BANDS[i % BANDS.len()];
            let _ = writeln!(
                out,
                "<path d=\"{path}Z\" fill=\"{colour}\" fill-opacity=\"0.8\"/>"
            );
            let at = self.top + LINE * line as f64 + 4.0;
            let _ = writeln!(
                out,
                "<rect x=\"{LEGEND}\" y=\"{at}\" width=\"12\" height=\"12\" fill=\"{colour}\" \
                 fill-opacity=\"0.8\"/>"
            );
            let name = match band.job.as_str() {
                "" => band.stage.clone(),
                job => format!("{job}/{}", band.stage),
            };
            text(out, (LEGEND + 18.0, at + 10.5), "start", "", &name);
            below = above;
        }
        axes(out, time, self.top, BANDS_HEIGHT, self.most);
    }
}

/// When shares moved: a mark above the bands.
fn moves(out: &mut String, timeline: &Timeline, time: &Time, top: f64) {
    for mark in &timeline.moves {
        let x = time.x(mark.at_s);
        let (from, to) = (top - 8.0, top + BANDS_HEIGHT);
        let _ = writeln!(
            out,
            "<path d=\"M{:.1} {from}h8l-4 7z\" fill=\"#000000\"/><path d=\"M{x:.1} {top}V{to}\" \
             stroke=\"#000000\" stroke-width=\"0.6\"/>",
            x - 4.0
        );
    }
    if !timeline.moves.is_empty() {
        let n = timeline.moves.len();
        let whose = if timeline.is_of_many {
            " on the first node"
        } else {
            ""
        };
        let what = format!("▾ shares moved{whose} ({n})");
        text(
            out,
            (LEFT + FIELD, top - 12.0),
            "end",
            "font-size=\"11\"",
            &what,
        );
    }
}

/// Both axes of a chart, from zero.
fn axes(out: &mut String, time: &Time, top: f64, height: f64, most: f64) {
    let bottom = top + height;
    let step = nice(most / 4.0);
    let mut value = 0.0;
    while value <= most {
        let y = bottom - height * value / most;
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {y:.1}h{FIELD}\" stroke=\"#000000\" stroke-opacity=\"0.13\"/>"
        );
        text(out, (LEFT - 7.0, y + 4.0), "end", "", &short(value));
        value += step;
    }
    let whole = time.seconds / time.unit_s;
    let step = nice(whole / 8.0);
    let mut at = 0.0;
    while at <= whole * (1.0 + 1e-9) {
        let x = time.x(at * time.unit_s);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {bottom}v5\" stroke=\"#000000\" stroke-opacity=\"0.5\"/>"
        );
        text(out, (x, bottom + 18.0), "middle", "", &short(at));
        at += step;
    }
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT} {top}V{bottom}h{FIELD}\" fill=\"none\" stroke=\"#000000\" \
         stroke-opacity=\"0.5\"/>"
    );
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, what: &str) {
    let safe = what
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{safe}</text>"
    );
}

/// The smallest of 1, 2, 5 × 10^n that is at least this.
fn nice(least: f64) -> f64 {
    let decade = 10f64.powf(least.max(f64::MIN_POSITIVE).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].into_iter();
    let fitting = steps
        .map(|s| s * decade)
        .find(|s| *s >= least * (1.0 - 1e-9));
    fitting.unwrap_or(least)
}

/// As short as it goes: 0.1, 10, 10k.
fn short(value: f64) -> String {
    let rounded = |v: f64| format!("{}", (v * 1_000.0).round() / 1_000.0);
    match value {
        v if v >= 1e9 => format!("{}G", rounded(v / 1e9)),
        v if v >= 1e6 => format!("{}M", rounded(v / 1e6)),
        v if v >= 1e4 => format!("{}k", rounded(v / 1e3)),
        v => rounded(v),
    }
}

/// The bands, those of the same stage name as one where there are too many.
fn grouped(bands: &[Band]) -> Vec<Band> {
    if bands.len() <= BANDS_MAX {
        return bands.to_vec();
    }
    let mut by_stage: BTreeMap<&str, Band> = BTreeMap::new();
    for band in bands {
        let group = by_stage.entry(&band.stage).or_insert_with(|| Band {
            job: String::new(),
            stage: band.stage.clone(),
            sms: vec![0.0; band.sms.len()],
            cores: vec![0.0; band.cores.len()],
        });
        group
            .sms
            .iter_mut()
            .zip(&band.sms)
            .for_each(|(a, b)| *a += b);
        group
            .cores
            .iter_mut()
            .zip(&band.cores)
            .for_each(|(a, b)| *a += b);
    }
    by_stage.into_values().take(BANDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_steps() {
        for (least, expect) in [
            (1.0, 1.0),
            (1.1, 2.0),
            (33.0, 50.0),
            (0.06, 0.1),
            (700.0, 1_000.0),
        ] {
            assert!(
                (nice(least) / expect - 1.0).abs() < 1e-9,
                "{least}: {}",
                nice(least)
            );
        }
        let shown = [0.0, 0.25, 950.0, 12_000.0, 2.5e6].map(short);
        assert_eq!(shown, ["0", "0.25", "950", "12k", "2.5M"]);
    }
}
