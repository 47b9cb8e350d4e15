//! How the cost of a stage's work changes over time: steps, ramps and swings. A factor of 1.5 means that a unit takes 1.5
//! times as long as at the start, whatever share the stage has. Not noise, which is `random`'s. Used by `world`.

/// How a cost changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// At once.
    Step,
    /// Evenly over so many seconds.
    Ramp {
        /// How long it takes.
        over_s: f64,
    },
    /// To and fro, without an end, between the start's cost and the factor's.
    Swing {
        /// From one least cost to the next.
        period_s: f64,
        /// Jumps between the two instead of gliding.
        square: bool,
    },
}

/// One change of one stage's cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drift {
    /// The stage's index.
    pub(super) stage: usize,
    /// When it begins, in seconds after the job's arrival.
    pub(super) at_s: f64,
    /// What the cost is multiplied by in the end.
    pub(super) factor: f64,
    /// How it gets there.
    pub(super) shape: Shape,
}

impl Drift {
    /// The factor at a time, in seconds after the job's arrival.
    pub(super) fn at(&self, time_s: f64) -> f64 {
        let since = time_s - self.at_s;
        if since < 0.0 {
            return 1.0;
        }
        let part = match self.shape {
            Shape::Step => 1.0,
            Shape::Ramp { over_s } => (since / over_s).min(1.0),
            Shape::Swing { period_s, square } => {
                let turn = (since / period_s).fract();
                if square {
                    f64::from(u8::from(turn >= 0.5))
                } else {
                    0.5 - 0.5 * (std::f64::consts::TAU * turn).cos()
                }
            }
        };
        // Factors multiply, so the way between 1 and a factor is even in its logarithm.
        self.factor.powf(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_change_as_they_are_described() {
        let drift = |shape| Drift {
            stage: 0,
            at_s: 10.0,
            factor: 4.0,
            shape,
        };
        let ramp = Shape::Ramp { over_s: 20.0 };
        let swing = |square| Shape::Swing {
            period_s: 8.0,
            square,
        };
        for (shape, time_s, expect) in [
            (Shape::Step, 9.9, 1.0),
            (Shape::Step, 10.0, 4.0),
            (ramp, 10.0, 1.0),
            (ramp, 20.0, 2.0),
            (ramp, 99.0, 4.0),
            (swing(false), 14.0, 4.0),
            (swing(false), 12.0, 2.0),
            (swing(false), 18.0, 1.0),
            (swing(true), 13.0, 1.0),
            (swing(true), 15.0, 4.0),
        ] {
            let found = drift(shape).at(time_s);
            assert!(
                (found - expect).abs() < 1e-9,
                "{shape:?} at {time_s}: {found}"
            );
        }
    }
}
