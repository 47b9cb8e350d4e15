//! Who slows whom, from busy intervals alone: how much of a stage's busy time another one was busy, too (`u`), and how
//! much longer a unit takes while it is (`κ`).
//!
//! A unit of stage i takes `τ = τ0 · (1 + Σ_j κ_ij · u_j)` seconds of a lane. Each interval is one observation of τ and of
//! the u_j over it; κ is what least squares over many of them say, forgetting slowly. It tells something only where j is
//! now busy and now waits: a κ whose standard error is too large is not told. Volatile, like all of `balance`.
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::report::Report;

/// Intervals of a stage that wait for the others' reports. The oldest go first.
const WAITING_MAX: usize = 4_096;
/// What is left of an observation's weight a window later: some hundred windows count.
const MEMORY: f64 = 0.99;
/// A κ is told when its standard error is below this, or below a quarter of itself.
const SURE: f64 = 0.05;
/// Largest κ: a stage that runs twenty times slower is not interfered with but starved.
const KAPPA_MAX: f64 = 20.0;
/// Standard errors that chance still explains.
const CHANCE: f64 = 3.0;
/// Least observations before anything is told.
const OBSERVATIONS_MIN: f64 = 30.0;

/// A time in which a lane of a stage was busy, in microseconds of the daemon's clock.
#[derive(Clone, Copy, Debug)]
struct Spell {
    from_us: u64,
    to_us: u64,
    units: f64,
    batch: u32,
}

/// One stage's intervals and sums.
#[derive(Clone, Debug, Default)]
struct Track {
    waiting: VecDeque<Spell>,
    /// When it was busy, as far back as anybody's waiting interval reaches: ascending, without overlaps.
    past: Vec<(u64, u64)>,
    /// Everything before it has been reported.
    reported_us: u64,
    batch: u32,
    fit: Fit,
    /// Busy time, and that of it in which each stage was busy.
    busy: f64,
    beside: Vec<f64>,
    /// A window has closed since the split is in force: before that, stages that start wait for each other.
    in_swing: bool,
}

/// Sums of a weighted least-squares fit of τ on (1, u_1, …).
#[derive(Clone, Debug, Default)]
struct Fit {
    n: f64,
    weight: f64,
    xx: Vec<Vec<f64>>,
    xy: Vec<f64>,
    yy: f64,
}

/// The overlaps of all stages of a job.
#[derive(Clone, Debug)]
pub(super) struct Overlaps {
    tracks: Vec<Track>,
    /// Up to when everybody had reported at the last two windows: an interval that is reported later began before.
    known_us: [u64; 2],
    /// What was known of each κ before the split changed: it is the pair's, not the split's.
    known: Vec<Vec<Option<f64>>>,
}

impl Overlaps {
    pub(super) fn of(stages: usize) -> Self {
        Self {
            tracks: vec![Track::default(); stages],
            known_us: [0; 2],
            known: vec![vec![None; stages]; stages],
        }
    }

    /// Takes a report's intervals in.
    pub(super) fn ingest(&mut self, report: &Report) {
        let now_us = report.at.0.saturating_mul(1_000);
        let Some(track) = self.tracks.get_mut(usize::from(report.stage.0)) else {
            return;
        };
        track.reported_us = track.reported_us.max(now_us);
        for b in report
            .busy
            .iter()
            .filter(|b| b.lane < report.lanes && b.dur_us > 0)
        {
            let from_us = now_us.saturating_sub(b.start_us_ago);
            if track.waiting.len() == WAITING_MAX {
                track.waiting.pop_front();
            }
            track.waiting.push_back(Spell {
                from_us,
                to_us: from_us.saturating_add(b.dur_us),
                units: b.units,
                batch: b.batch,
            });
        }
    }

    /// A window has closed: what all stages have reported joins the sums.
    pub(super) fn close(&mut self) {
        // A stage that reports nothing at all (of another role, say) is waited for by nobody.
        let reported = self.tracks.iter().map(|t| t.reported_us);
        let known_us = reported.filter(|us| *us > 0).min().unwrap_or(0);
        let busy: Vec<Vec<(u64, u64)>> = self.tracks.iter().map(Track::union).collect();
        for (i, track) in self.tracks.iter_mut().enumerate() {
            track.fit.forget(MEMORY);
            track.busy *= MEMORY;
            track.beside.iter_mut().for_each(|b| *b *= MEMORY);
            let (done, waits): (Vec<Spell>, Vec<Spell>) =
                track.waiting.iter().partition(|s| s.to_us <= known_us);
            track.observe(i, &done, &busy);
            track.in_swing = true;
            track.waiting = waits.into();
        }
        let waiting = self.tracks.iter().flat_map(|t| &t.waiting);
        let first_us = waiting.map(|s| s.from_us).min().unwrap_or(known_us);
        let needed_us = first_us.min(self.known_us[0]);
        self.known_us = [self.known_us[1], known_us];
        for (track, mut union) in self.tracks.iter_mut().zip(busy) {
            union.retain(|(_, to)| *to > needed_us);
            let most = union.len().saturating_sub(WAITING_MAX);
            union.drain(..most);
            track.past = union;
        }
    }

    /// The split has changed: what a unit takes is another thing now. What was found out of each pair stays known.
    pub(super) fn discard(&mut self) {
        self.known = self.kappa();
        for track in &mut self.tracks {
            let reported_us = track.reported_us;
            *track = Track {
                reported_us,
                ..Track::default()
            };
        }
    }

    /// Of each stage's busy time, the share in which each other one was busy; none before anything is known.
    pub(super) fn shares(&self) -> Option<Vec<Vec<f64>>> {
        let known = self.tracks.iter().any(|t| t.busy > 0.0);
        let share = |t: &Track, j: usize| {
            let beside = t.beside.get(j).copied().unwrap_or(0.0);
            if t.busy > 0.0 {
                (beside / t.busy).clamp(0.0, 1.0)
            } else {
                1.0
            }
        };
        let n = self.tracks.len();
        let row = |(i, t): (usize, &Track)| {
            (0..n)
                .map(|j| if i == j { 0.0 } else { share(t, j) })
                .collect()
        };
        known.then(|| self.tracks.iter().enumerate().map(row).collect())
    }

    /// Each κ_ij that is known well enough.
    pub(super) fn kappa(&self) -> Vec<Vec<Option<f64>>> {
        let n = self.tracks.len();
        let row = |(i, t): (usize, &Track)| -> Vec<Option<f64>> {
            let fitted = t.fit.solve();
            let at = |j: usize| {
                let (slopes, errors) = fitted.as_ref()?;
                let (base, slope, error) = (slopes[0], slopes[j + 1], errors[j + 1]);
                if i == j || base <= 0.0 {
                    return None;
                }
                let (kappa, error) = (slope / base, error / base);
                let sure = error.is_finite() && error <= SURE.max(libm::fabs(kappa) / 4.0);
                sure.then(|| kappa.clamp(0.0, KAPPA_MAX))
            };
            (0..n).map(|j| at(j).or(self.known[i][j])).collect()
        };
        self.tracks.iter().enumerate().map(row).collect()
    }
}

impl Track {
    /// When any lane was busy: ascending, without overlaps.
    fn union(&self) -> Vec<(u64, u64)> {
        let waiting = self.waiting.iter().map(|s| (s.from_us, s.to_us));
        let mut all: Vec<(u64, u64)> = self.past.iter().copied().chain(waiting).collect();
        all.sort_unstable();
        let mut union: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match union.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => union.push((from, to)),
            }
        }
        union
    }

    fn observe(&mut self, i: usize, done: &[Spell], busy: &[Vec<(u64, u64)>]) {
        self.beside.resize(busy.len(), 0.0);
        let mut row = vec![0.0; busy.len() + 1];
        for s in done {
            if s.batch != self.batch {
                self.batch = s.batch;
                self.fit = Fit::default(); // a unit of another batch takes another time
            }
            let length = (s.to_us - s.from_us) as f64;
            let counted = if self.in_swing { 1.0 } else { 0.0 };
            self.busy += length * counted;
            row[0] = 1.0;
            for (j, other) in busy.iter().enumerate() {
                let both = if i == j {
                    0.0
                } else {
                    covered(other, s.from_us, s.to_us) as f64
                };
                self.beside[j] += both * counted;
                row[j + 1] = both / length;
            }
            if s.units > 0.0 {
                self.fit.add(&row, length / s.units, s.units);
            }
        }
    }
}

/// Microseconds of `[from, to)` that a union covers.
fn covered(union: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let first = union.partition_point(|(_, end)| *end <= from);
    let inside = union[first..].iter().take_while(|(start, _)| *start < to);
    inside
        .map(|(start, end)| (*end).min(to) - (*start).max(from))
        .sum()
}

impl Fit {
    fn forget(&mut self, kept: f64) {
        self.n *= kept;
        self.weight *= kept;
        self.yy *= kept;
        self.xy.iter_mut().for_each(|v| *v *= kept);
        self.xx.iter_mut().flatten().for_each(|v| *v *= kept);
    }

    fn add(&mut self, x: &[f64], y: f64, weight: f64) {
        if self.xy.len() != x.len() {
            *self = Self {
                xx: vec![vec![0.0; x.len()]; x.len()],
                xy: vec![0.0; x.len()],
                ..Self::default()
            };
        }
        self.n += 1.0;
        self.weight += weight;
        self.yy += weight * y * y;
        for (a, xa) in x.iter().enumerate() {
            self.xy[a] += weight * xa * y;
            for (b, xb) in x.iter().enumerate() {
                self.xx[a][b] += weight * xa * xb;
            }
        }
    }

    /// Coefficients and their standard errors; a variable that hardly varies has an infinite one, and 0. No slope is below 0:
    /// a neighbour does not help, but one that does its part of each batch in a fixed time seems to (the longer the batch
    /// takes, the smaller its share of it), and would take the blame off the one that slows.
    fn solve(&self) -> Option<(Vec<f64>, Vec<f64>)> {
        let n = self.xy.len();
        if self.n < OBSERVATIONS_MIN || n == 0 || self.weight <= 0.0 {
            return None;
        }
        let mean = |a: usize| self.xx[0][a] / self.weight;
        let varies = |a: usize| self.xx[a][a] / self.weight - mean(a) * mean(a) > 1e-4;
        let mut used: Vec<usize> = (0..n).filter(|a| *a == 0 || varies(*a)).collect();
        // Of those left out: how sure it is that they cost nothing.
        let mut left_out: Vec<(usize, f64)> = Vec::new();
        loop {
            let (slopes, mut errors) = self.solve_for(&used)?;
            let costly = used.iter().skip(1).copied();
            let lowest = costly.min_by(|a, b| slopes[*a].total_cmp(&slopes[*b]));
            let Some(helps) = lowest.filter(|a| slopes[*a] < 0.0) else {
                left_out.iter().for_each(|(a, error)| errors[*a] = *error);
                return Some((slopes, errors));
            };
            // Negative beyond chance is no zero: something else moves with it, and nothing is known.
            let by_chance = slopes[helps] >= -CHANCE * errors[helps];
            left_out.push((
                helps,
                if by_chance {
                    errors[helps]
                } else {
                    f64::INFINITY
                },
            ));
            used.retain(|a| *a != helps);
        }
    }

    /// Least squares on these variables, the constant among them.
    fn solve_for(&self, used: &[usize]) -> Option<(Vec<f64>, Vec<f64>)> {
        let n = self.xy.len();
        let matrix: Vec<Vec<f64>> = used
            .iter()
            .map(|a| used.iter().map(|b| self.xx[*a][*b]).collect())
            .collect();
        let inverse = inverse(matrix)?;
        let right: Vec<f64> = used.iter().map(|a| self.xy[*a]).collect();
        let (mut slopes, mut errors) = (vec![0.0; n], vec![f64::INFINITY; n]);
        let product = |row: &Vec<f64>| -> f64 { row.iter().zip(&right).map(|(a, b)| a * b).sum() };
        let found: Vec<f64> = inverse.iter().map(product).collect();
        let explained: f64 = found.iter().zip(&right).map(|(a, b)| a * b).sum();
        let freedom = (self.n - used.len() as f64).max(1.0);
        // Per observation of the mean weight.
        let residual = ((self.yy - explained) / self.weight).max(0.0) * self.n / freedom;
        for (at, a) in used.iter().enumerate() {
            slopes[*a] = found[at];
            errors[*a] = libm::sqrt((residual * inverse[at][at] * self.weight / self.n).max(0.0));
        }
        Some((slopes, errors))
    }
}

/// Gauss and Jordan with pivots; none if singular.
fn inverse(mut m: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let n = m.len();
    for (i, row) in m.iter_mut().enumerate() {
        row.extend((0..n).map(|j| if i == j { 1.0 } else { 0.0 }));
    }
    for c in 0..n {
        let pivot = (c..n).max_by(|a, b| libm::fabs(m[*a][c]).total_cmp(&libm::fabs(m[*b][c])))?;
        if libm::fabs(m[pivot][c]) < 1e-12 {
            return None;
        }
        m.swap(c, pivot);
        let scale = m[c][c];
        m[c].iter_mut().for_each(|v| *v /= scale);
        let row = m[c].clone();
        for (_, other) in m.iter_mut().enumerate().filter(|(r, _)| *r != c) {
            let factor = other[c];
            other
                .iter_mut()
                .zip(&row)
                .for_each(|(o, v)| *o -= factor * v);
        }
    }
    Some(m.into_iter().map(|mut row| row.split_off(n)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::Busy;
    use crate::id::{StageId, WorkerId};
    use crate::unit::Time;

    /// Two stages; the second is busy `on` of each 100 ms; a unit of the first takes 1 ms, and κ more of it beside the
    /// second. Each interval is 7 ms long or so.
    fn world(kappa: f64, on_ms: u64, noise: f64, windows: u64) -> Overlaps {
        let mut o = Overlaps::of(2);
        let mut z = 1_u64;
        let mut random = || {
            z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (z >> 33) as f64 / (1_u64 << 31) as f64
        };
        for w in 1..=windows {
            let at = Time(w * 1_000);
            let busy = |start_us_ago, dur_us, units| Busy {
                lane: 0,
                start_us_ago,
                dur_us,
                units,
                batch: 1,
            };
            let report = |stage, busy| Report {
                stage: StageId(stage),
                worker: WorkerId(0),
                at,
                lanes: 1,
                busy,
                steps: Vec::new(),
            };
            let second = (0..10)
                .map(|k| busy(1_000_000 - k * 100_000, on_ms * 1_000, 1.0))
                .collect();
            let mut first = Vec::new();
            let mut t = 0_u64;
            while t + 7_000 < 1_000_000 {
                let length = 5_000 + (random() * 2_000.0) as u64;
                let overlap: u64 = (0..10)
                    .map(|k: u64| {
                        let (a, b) = (k * 100_000, k * 100_000 + on_ms * 1_000);
                        b.min(t + length).saturating_sub(a.max(t))
                    })
                    .sum();
                let u = overlap as f64 / length as f64;
                let per_unit = 1_000.0 * (1.0 + kappa * u) * (1.0 + noise * (2.0 * random() - 1.0));
                first.push(busy(1_000_000 - t, length, length as f64 / per_unit));
                t += length;
            }
            o.ingest(&report(0, first));
            o.ingest(&report(1, second));
            o.close();
        }
        o
    }

    #[test]
    fn kappa_and_the_overlap_are_found_in_noise() {
        for (kappa, on_ms, noise) in [
            (0.0, 40, 0.05),
            (0.3, 60, 0.1),
            (1.5, 30, 0.1),
            (0.5, 90, 0.05),
        ] {
            let o = world(kappa, on_ms, noise, 20);
            let found = o.kappa()[0][1].unwrap();
            assert!(
                (found - kappa).abs() < 0.05 + 0.1 * kappa,
                "{found} for {kappa}"
            );
            let u = o.shares().unwrap()[0][1];
            assert!((u - on_ms as f64 / 100.0).abs() < 0.02, "{u}");
        }
    }

    /// A long interval is reported when it ends: what was beside its beginning has been reported long before.
    #[test]
    fn an_interval_that_began_windows_ago_is_still_compared_with_what_was_beside_it() {
        let mut o = Overlaps::of(2);
        let report = |stage, at, start_us_ago, dur_us| Report {
            stage: StageId(stage),
            worker: WorkerId(0),
            at: Time(at),
            lanes: 1,
            busy: vec![Busy {
                lane: 0,
                start_us_ago,
                dur_us,
                units: 1.0,
                batch: 1,
            }],
            steps: Vec::new(),
        };
        for w in 1..=6_u64 {
            // The second stage is busy all the time and says so each second; the first one after two seconds.
            o.ingest(&report(1, 1_000 * w, 1_000_000, 1_000_000));
            if w % 2 == 0 {
                o.ingest(&report(0, 1_000 * w, 2_000_000, 2_000_000));
            }
            o.close();
        }
        assert_eq!(o.shares().unwrap()[0][1], 1.0);
    }

    #[test]
    fn nothing_is_told_of_a_stage_that_never_waits_and_a_move_forgets_no_kappa() {
        assert_eq!(world(0.5, 100, 0.05, 20).kappa()[0][1], None);
        let mut o = world(0.5, 50, 0.05, 20);
        assert!(o.kappa()[0][1].is_some());
        assert_eq!(o.kappa()[0][0], None, "nobody slows itself");
        o.discard();
        assert!(o.kappa()[0][1].is_some(), "it is the pair's");
        assert_eq!(o.shares(), None, "this is the split's");
    }
}
