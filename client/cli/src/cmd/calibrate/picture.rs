//! A profile's curves as a picture: throughput over quota, measured points with their error bars, the fit, the knee.
//! Plain SVG, written here: one chart needs no library. Pixels are made of it by `resvg`.
use std::fmt::Write as _;

use evenkeel_client::{Curve, FittedProfile, ProfilePoint};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg;

use crate::fail::Failure;
use crate::units::{show_bytes, show_rate};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 78.0;
const TOP: f64 = 56.0;
const FIELD: (f64, f64) = (520.0, 330.0);
/// The legend has room for so many curves; the best ones.
const CURVES_MAX: usize = 8;
/// Pixels of the picture for each unit of the SVG: sharp on a screen of today.
const SCALE: f32 = 2.0;
/// Standard errors of an error bar: about 95 % of the times the truth is within.
const BARS: f64 = 2.0;
/// Colours that are told apart by everybody (Okabe and Ito), and dashes for the second round.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
];

/// What is drawn: the curves that do most, best first.
struct Chart<'a> {
    curves: Vec<&'a Curve>,
    points: &'a [ProfilePoint],
    /// Whether the quota is SMs, not cores.
    sms: bool,
    most_quota: f64,
    most_rate: f64,
}

/// The picture as SVG. `unit` is what the job counts.
pub(super) fn svg(fitted: &FittedProfile, remarks: &[String]) -> String {
    let chart = Chart::of(fitted);
    let key = &fitted.profile.key;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"DejaVu Sans, Liberation Sans, Arial, sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let title = format!("Throughput of {} on {}", key.stage, key.gpu);
    text(
        &mut out,
        (LEFT, 26.0),
        "font-size=\"15\" font-weight=\"bold\"",
        &title,
    );
    if let Some(first) = remarks.first() {
        text(&mut out, (LEFT, 44.0), "fill=\"#b00020\"", first);
    }
    chart.axes(&mut out);
    // What is best is drawn last, above the others.
    for (i, curve) in chart.curves.iter().enumerate().rev() {
        chart.curve(&mut out, curve, COLOURS[i % COLOURS.len()]);
    }
    chart.legend(&mut out, fitted.curves.len());
    out += "</svg>\n";
    out
}

/// The picture as PNG.
pub(super) fn png(svg: &str) -> Result<Vec<u8>, Failure> {
    let wrong = |what: String| Failure::new(format!("cannot draw the picture: {what}"));
    let mut options = usvg::Options::default();
    options.fontdb_mut().load_system_fonts();
    if options.fontdb.is_empty() {
        return Err(wrong("this system has no fonts".to_owned())
            .hint("Install one (fonts-dejavu-core, say), or draw it with --svg."));
    }
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| wrong(error.to_string()))?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let pixels = size.and_then(|size| Pixmap::new(size.width(), size.height()));
    let mut pixels = pixels.ok_or_else(|| wrong("it has no size".to_owned()))?;
    resvg::render(
        &tree,
        Transform::from_scale(SCALE, SCALE),
        &mut pixels.as_mut(),
    );
    pixels
        .encode_png()
        .map_err(|error| wrong(error.to_string()))
}

impl<'a> Chart<'a> {
    fn of(fitted: &'a FittedProfile) -> Self {
        let best = |c: &Curve| c.points.iter().map(|p| p.units_per_s).fold(0.0, f64::max);
        let mut curves: Vec<&Curve> = fitted.curves.iter().collect();
        curves.sort_by(|a, b| best(b).total_cmp(&best(a)));
        curves.truncate(CURVES_MAX);
        let points = &fitted.profile.points;
        let sms = points.iter().any(|p| p.sms > 0);
        let quota = |p: &ProfilePoint| if sms { p.sms } else { p.cores };
        let most = points.iter().map(quota).max().unwrap_or(1);
        let fit = curves.iter().flat_map(|c| &c.points).map(|p| p.units_per_s);
        let measured = points.iter().map(|p| p.units_per_s);
        Self {
            most_quota: round_up(f64::from(most)),
            most_rate: round_up(fit.chain(measured).fold(0.0, f64::max) * 1.02),
            curves,
            points,
            sms,
        }
    }

    fn at(&self, quota: f64, rate: f64) -> (f64, f64) {
        let right = (quota / self.most_quota).clamp(0.0, 1.0);
        let up = (rate / self.most_rate).clamp(0.0, 1.0);
        (LEFT + FIELD.0 * right, TOP + FIELD.1 * (1.0 - up))
    }

    fn axes(&self, out: &mut String) {
        let bottom = TOP + FIELD.1;
        for n in 0..=5 {
            let share = f64::from(n) / 5.0;
            let (x, y) = self.at(self.most_quota * share, self.most_rate * share);
            let (right, quota) = (LEFT + FIELD.0, self.most_quota * share);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {TOP}V{bottom}M{LEFT} {y:.1}H{right}\" stroke=\"#e4e4e4\"/>"
            );
            let quota = if quota.fract() == 0.0 {
                format!("{quota:.0}")
            } else {
                format!("{quota:.1}")
            };
            text(out, (x, bottom + 18.0), "text-anchor=\"middle\"", &quota);
            let rate = show_rate(self.most_rate * share);
            text(out, (LEFT - 8.0, y + 4.0), "text-anchor=\"end\"", &rate);
        }
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{}\" stroke=\"#444444\" fill=\"none\"/>",
            LEFT + FIELD.0
        );
        let below = if self.sms { "SMs on each GPU" } else { "cores" };
        let middle = LEFT + FIELD.0 / 2.0;
        text(
            out,
            (middle, bottom + 40.0),
            "text-anchor=\"middle\"",
            below,
        );
        let y = TOP + FIELD.1 / 2.0;
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 20 {y})\"");
        text(out, (20.0, y), &turned, "work units per second");
    }

    /// One curve: the fit, what was measured with error bars, and its knee.
    fn curve(&self, out: &mut String, curve: &Curve, colour: &str) {
        let start = if self.sms { "M" } else { "" };
        let mut path = String::new();
        if !start.is_empty() {
            let (x, y) = self.at(0.0, 0.0); // linear to zero at quota zero
            let _ = write!(path, "M{x:.1} {y:.1}");
        }
        for p in &curve.points {
            let (x, y) = self.at(f64::from(p.quota), p.units_per_s);
            let sign = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{sign}{x:.1} {y:.1}");
        }
        let _ = writeln!(
            out,
            "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"1.8\" fill=\"none\"/>"
        );
        for p in curve.points.iter().filter(|p| p.relative_error > 0.0) {
            let off = BARS * p.relative_error * p.units_per_s;
            let (x, high) = self.at(f64::from(p.quota), p.units_per_s + off);
            let (_, low) = self.at(f64::from(p.quota), p.units_per_s - off);
            let (a, b) = (x - 4.0, x + 4.0);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {high:.1}V{low:.1}M{a:.1} {high:.1}H{b:.1}M{a:.1} {low:.1}H{b:.1}\" \
                 stroke=\"{colour}\" stroke-opacity=\"0.7\"/>"
            );
        }
        for p in self.points.iter().filter(|p| self.is_of(p, curve)) {
            let quota = if self.sms { p.sms } else { p.cores };
            let (x, y) = self.at(f64::from(quota), p.units_per_s);
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#ffffff\" stroke=\"{colour}\" stroke-width=\"1.4\"/>"
            );
        }
        if let Some(knee) = curve.points.iter().find(|p| p.quota == curve.knee) {
            let (x, y) = self.at(f64::from(knee.quota), knee.units_per_s);
            let (a, b, c, d) = (x - 7.0, y - 7.0, x + 7.0, y + 7.0);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {b:.1}L{c:.1} {y:.1}L{x:.1} {d:.1}L{a:.1} {y:.1}Z\" fill=\"{colour}\"/>"
            );
        }
    }

    /// Whether a measurement belongs to a curve (along cores, a curve has no cores of its own).
    fn is_of(&self, p: &ProfilePoint, curve: &Curve) -> bool {
        let same = p.batch == curve.batch && p.replicas == curve.replicas;
        let cores = !self.sms || p.cores == curve.cores;
        same && cores && p.beside.is_none() && p.units_per_s > 0.0
    }

    fn legend(&self, out: &mut String, of: usize) {
        let left = LEFT + FIELD.0 + 24.0;
        let mut y = TOP + 6.0;
        for (curve, colour) in self.curves.iter().zip(COLOURS) {
            let mut name = format!("batch {}", curve.batch);
            if self.sms && curve.cores > 0 {
                let _ = write!(
                    name,
                    ", {}",
                    crate::units::counted(curve.cores.into(), "core")
                );
            }
            if curve.replicas > 1 {
                let _ = write!(name, ", {} replicas", curve.replicas);
            }
            let quota = if self.sms { "SMs" } else { "cores" };
            let mut more = format!("knee at {} {quota}", curve.knee);
            if curve.memory_bytes > 0 {
                let _ = write!(more, ", {}", show_bytes(curve.memory_bytes));
            }
            let _ = writeln!(
                out,
                "<path d=\"M{left} {y:.1}h20\" stroke=\"{colour}\" stroke-width=\"2.4\"/>"
            );
            text(out, (left + 28.0, y + 4.0), "", &name);
            text(
                out,
                (left + 28.0, y + 19.0),
                "fill=\"#666666\" font-size=\"11\"",
                &more,
            );
            y += 36.0;
        }
        y = TOP + FIELD.1 - 34.0;
        let grey = "fill=\"#666666\" font-size=\"11\"";
        if of > self.curves.len() {
            let what = format!("the best {} of {of} curves", self.curves.len());
            text(out, (left, y - 18.0), grey, &what);
        }
        text(
            out,
            (left, y),
            grey,
            "\u{25cb} measured   \u{25c6} knee (95 % of the best)",
        );
        text(
            out,
            (left, y + 16.0),
            grey,
            "bars: two standard errors of the fit",
        );
        if self
            .points
            .iter()
            .all(|p| p.beside.is_some() || p.weight <= 0.0)
            || self.no_errors()
        {
            text(out, (left, y + 32.0), grey, "no bars: nothing was repeated");
        }
    }

    fn no_errors(&self) -> bool {
        let mut all = self.curves.iter().flat_map(|c| &c.points);
        all.all(|p| p.relative_error <= 0.0)
    }
}

/// The next number of one significant digit or a half of it, for an axis that ends at something round.
fn round_up(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return 1.0;
    }
    let one = 10f64.powf(x.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.5, 10.0];
    let fits = steps.into_iter().find(|step| step * one >= x);
    fits.unwrap_or(10.0) * one
}

fn text(out: &mut String, (x, y): (f64, f64), how: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {how}>{words}</text>");
}

#[cfg(test)]
mod tests {
    use evenkeel_client::{CurvePoint, Profile, ProfileKey};

    use super::*;

    pub(super) fn fitted() -> FittedProfile {
        let point = |sms, units_per_s| ProfilePoint {
            cores: 1,
            sms,
            batch: 16,
            units_per_s,
            ..ProfilePoint::default()
        };
        let at = |quota, units_per_s| CurvePoint {
            quota,
            units_per_s,
            relative_error: 0.02,
        };
        FittedProfile {
            profile: Profile {
                key: ProfileKey {
                    stage: "j/<s>".into(),
                    gpu: "H100".into(),
                },
                points: vec![point(14, 100.0), point(66, 390.0), point(132, 400.0)],
                ..Profile::default()
            },
            curves: vec![Curve {
                cores: 1,
                batch: 16,
                points: vec![at(14, 100.0), at(66, 390.0), at(132, 400.0)],
                knee: 66,
                replicas: 1,
                memory_bytes: 5 << 30,
            }],
        }
    }

    #[test]
    fn a_picture_has_axes_points_bars_fit_knee_and_legend() {
        let svg = svg(&fitted(), &["stale: driver 1, now 2".to_owned()]);
        for part in [
            "work units per second",
            "SMs on each GPU",
            "j/&lt;s>",
            "knee at 66 SMs, 5 GiB",
            "stale: driver 1",
        ] {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("stroke-opacity").count(), 3);
    }

    #[test]
    fn axes_end_at_something_round() {
        for (x, expect) in [
            (132.0, 150.0),
            (401.0, 500.0),
            (8.0, 10.0),
            (0.0, 1.0),
            (3.0, 3.0),
        ] {
            assert_eq!(round_up(x), expect, "{x}");
        }
    }
}
