//! Curves on a terminal: throughput over quota, the knee as `^` on the axis, two standard errors as `|`. Pure.
use evenkeel_client::Curve;

use crate::units::show_rate;

/// One mark for each curve, in turn.
pub(super) const MARKS: [char; 8] = ['o', 'x', '+', '*', '#', '@', '%', '&'];

const WIDTH: usize = 60;
const HEIGHT: usize = 14;

/// The plot, line by line; empty if there is nothing to see.
pub(super) fn draw(curves: &[Curve], quota: &str) -> Vec<String> {
    let points = || curves.iter().flat_map(|c| c.points.iter());
    let most = points().map(|p| p.quota).max().unwrap_or(0);
    let best = points().map(|p| p.units_per_s).fold(0.0, f64::max);
    if most == 0 || best <= 0.0 {
        return Vec::new();
    }
    let column = |quota: u32| (quota as usize * (WIDTH - 1)) / most as usize;
    let row = |rate: f64| HEIGHT - 1 - ((rate / best) * (HEIGHT - 1) as f64).round() as usize;
    let mut cells = vec![[' '; WIDTH]; HEIGHT];
    let mut axis = ['-'; WIDTH];
    for (mark, curve) in MARKS.iter().cycle().zip(curves) {
        // Bars first, marks over them: two standard errors, where they are known and large enough to be seen.
        for point in curve.points.iter().filter(|p| p.relative_error > 0.0) {
            let off = 2.0 * point.relative_error * point.units_per_s;
            let at = |rate: f64| row(rate.clamp(0.0, best));
            for cells in &mut cells[at(point.units_per_s + off)..=at(point.units_per_s - off)] {
                cells[column(point.quota)] = '|';
            }
        }
        for point in &curve.points {
            cells[row(point.units_per_s.clamp(0.0, best))][column(point.quota)] = *mark;
        }
        axis[column(curve.knee.min(most))] = '^';
    }
    let top = show_rate(best);
    let margin = top.len().max(1);
    let mut lines: Vec<String> = cells
        .iter()
        .enumerate()
        .map(|(i, cells)| {
            let label = if i == 0 { top.as_str() } else { "" };
            let line: String = cells.iter().collect();
            format!("{label:>margin$} |{}", line.trim_end())
        })
        .collect();
    lines.push(format!(
        "{:>margin$} +{}",
        "0",
        axis.iter().collect::<String>()
    ));
    lines.push(format!(
        "{:>margin$}  0{:>w$}",
        "",
        format!("{most} {quota}"),
        w = WIDTH - 1
    ));
    lines
}

#[cfg(test)]
mod tests {
    use evenkeel_client::CurvePoint;

    use super::*;

    #[test]
    fn a_curve_rises_to_the_right_and_has_its_knee_on_the_axis() {
        let point = |quota, units_per_s| CurvePoint {
            quota,
            units_per_s,
            relative_error: 0.05,
        };
        let curve = Curve {
            cores: 1,
            batch: 16,
            points: vec![point(10, 100.0), point(50, 400.0), point(100, 420.0)],
            knee: 50,
            replicas: 1,
            memory_bytes: 0,
        };
        let lines = draw(&[curve], "SMS");
        assert_eq!(lines.len(), HEIGHT + 2);
        assert!(
            lines[0].starts_with("420 |") && lines[0].ends_with('o'),
            "{}",
            lines[0]
        );
        assert_eq!(lines[HEIGHT].find('^'), Some(5 + (50 * (WIDTH - 1)) / 100));
        let bar = lines.iter().filter(|l| l[5..].contains('|')).count();
        assert!(bar > 0, "{lines:?}");
        assert!(draw(&[], "SMS").is_empty());
    }
}
