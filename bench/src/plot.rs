//! The report as a picture: throughput against clients, and the 99th percentile against the rate of arrivals, both
//! axes logarithmic. Plain SVG, written here: two charts need no library.
use std::fmt::Write as _;

use crate::peers::Kind;
use crate::report::{Found, Report};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
/// A chart's own field, and where the two begin.
const FIELD: (f64, f64) = (350.0, 270.0);
const LEFTS: [f64; 2] = [70.0, 530.0];
const TOP: f64 = 40.0;

/// A line's colour and dashes: told apart without colours, too. (Okabe and Ito's palette.)
const fn style(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::EvenkeelUnix => ("#0072b2", ""),
        Kind::EvenkeelTcp => ("#0072b2", "6 3"),
        Kind::EvenkeelTls => ("#0072b2", "2 3"),
        Kind::EvenkeelOff => ("#56b4e9", ""),
        Kind::EvenkeelBare => ("#999999", "2 3"),
        Kind::EtcdOne => ("#d55e00", "6 3"),
        Kind::EtcdDisjoint => ("#d55e00", ""),
        Kind::Redis => ("#cc79a7", ""),
        Kind::RedisEverysec => ("#cc79a7", "6 3"),
        Kind::PostgresOne => ("#009e73", "6 3"),
        Kind::PostgresSkip => ("#009e73", ""),
    }
}

/// What one peer shows in a chart.
struct Line {
    kind: Kind,
    points: Vec<(f64, f64)>,
}

/// The picture.
pub fn svg(report: &Report) -> String {
    let measured = || report.peers.iter().filter(|p| p.skipped.is_empty());
    let lines = |of: fn(&Found) -> Vec<(f64, f64)>| -> Vec<Line> {
        measured()
            .map(|p| Line {
                kind: p.kind,
                points: of(p),
            })
            .collect()
    };
    let throughput = lines(|p| {
        let point = |p: &crate::report::Point| (p.size as f64, p.per_second);
        p.closed.iter().map(point).collect()
    });
    let tail = lines(|p| {
        // A rate that was not kept up with has no latency: it grows as long as one looks.
        let kept = p.open.iter().filter(|p| p.keeps_up());
        kept.map(|p| (p.asked_per_second, p.latency.p99_ms))
            .collect()
    });
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    chart(
        &mut out,
        LEFTS[0],
        ["Operations a second", "clients"],
        &throughput,
    );
    chart(
        &mut out,
        LEFTS[1],
        ["p99 in ms, from when due", "arrivals a second"],
        &tail,
    );
    legend(&mut out, &throughput);
    out += "</svg>\n";
    out
}

/// A logarithmic axis over whole decades.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|v| *v > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(l, h), v| (l.min(v), h.max(v)));
        if !low.is_finite() {
            return Self {
                low: 0.0,
                high: 1.0,
            };
        }
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        Self {
            low,
            high: high.max(low + 1.0),
        }
    }
    /// From 0 at the low end to 1 at the high one.
    fn at(&self, value: f64) -> f64 {
        (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low)
    }
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (low, high) = (self.low as i32, self.high as i32);
        (low..=high).map(|n| 10f64.powi(n))
    }
}

fn chart(out: &mut String, left: f64, [title, below]: [&str; 2], lines: &[Line]) {
    let all = || lines.iter().flat_map(|l| &l.points);
    let (xs, ys) = (
        Axis::over(all().map(|p| p.0)),
        Axis::over(all().map(|p| p.1)),
    );
    let (width, height) = FIELD;
    let place = |(x, y): (f64, f64)| {
        (
            left + width * xs.at(x),
            TOP + height * (1.0 - ys.at(y).clamp(0.0, 1.0)),
        )
    };
    let bottom = TOP + height;
    let _ = writeln!(
        out,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
        TOP - 16.0
    );
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{below}</text>",
        left + width,
        bottom + 30.0
    );
    for x in xs.ticks() {
        let at = left + width * xs.at(x);
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#dddddd\"/><text x=\"{at:.1}\" y=\"{}\" \
             text-anchor=\"middle\">{}</text>",
            bottom + 15.0,
            number(x)
        );
    }
    for y in ys.ticks() {
        let at = TOP + height * (1.0 - ys.at(y));
        let _ = writeln!(
            out,
            "<path d=\"M{left} {at:.1}H{}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            left + width,
            left - 6.0,
            at + 4.0,
            number(y)
        );
    }
    for line in lines.iter().filter(|l| !l.points.is_empty()) {
        let (colour, dashes) = style(line.kind);
        let points: Vec<(f64, f64)> = line.points.iter().copied().map(place).collect();
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dashes}\"/>",
            path.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>"
            );
        }
    }
}

/// As short as it goes: 0.1, 10, 10k.
fn number(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.0}M", value / 1e6)
    } else if value >= 1e3 {
        format!("{:.0}k", value / 1e3)
    } else {
        format!("{value}")
    }
}

fn legend(out: &mut String, lines: &[Line]) {
    const COLUMNS: usize = 4;
    const COLUMN: f64 = 210.0;
    for (n, line) in lines.iter().enumerate() {
        let x = LEFTS[0] + COLUMN * (n % COLUMNS) as f64;
        let y = TOP + FIELD.1 + 55.0 + 16.0 * (n / COLUMNS) as f64;
        let (colour, dashes) = style(line.kind);
        let _ = writeln!(
            out,
            "<path d=\"M{x} {y}h28\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dashes}\"/><text \
             x=\"{}\" y=\"{}\">{}</text>",
            x + 34.0,
            y + 4.0,
            line.kind.name()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_cover_their_values_in_whole_decades() {
        let axis = Axis::over([3.0, 250.0].into_iter());
        assert_eq!(axis.ticks().collect::<Vec<_>>(), [1.0, 10.0, 100.0, 1000.0]);
        assert!((axis.at(1.0), axis.at(1000.0)) == (0.0, 1.0));
        assert_eq!(Axis::over(std::iter::empty()).ticks().count(), 2);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.01, 1.0, 100.0, 10_000.0, 1e6].map(number);
        assert_eq!(shown, ["0.01", "1", "100", "10k", "1M"]);
    }
}
