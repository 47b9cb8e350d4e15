//! What a stage really does: its throughput at a share, alone, at the cost of work that it starts with. This is the truth
//! of a simulation, which a policy never sees: it sees profiles that were sampled from it (`world`), and meters.

use evenkeel_core::curve::Curve;
use evenkeel_core::unit::Sms;

use super::random::Chance;

/// The truth about one stage.
#[derive(Clone, Debug)]
pub(super) enum Law {
    /// Environments that are stepped on cores, with a bound by a GPU where they render.
    Environments {
        /// How many, and what a step takes.
        crowd: Crowd,
        /// What the GPU allows; none where they do not render.
        render: Option<Family>,
    },
    /// Work on a GPU whose throughput follows a family of curves.
    Family(Family),
    /// Measured points: of one GPU where they have SMs, of the whole stage where they have cores only.
    Points(Curve),
}

/// `T(q) = T_max · min(1, (q / knee)^exponent) · b / (b + half)`: a family that real curves of networks on partitioned
/// GPUs follow closely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Family {
    /// The most, with all the SMs that help and the largest batch, on one GPU, in work units per second.
    pub(super) max_units_per_s: f64,
    /// More SMs bring nothing.
    pub(super) knee_sms: f64,
    /// 1: in proportion; below: the first SMs bring more than the last.
    pub(super) exponent: f64,
    /// The batch size at which half of the most is reached; 0: batches do not matter.
    pub(super) batch_half: f64,
}

/// Environments and what their steps take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Crowd {
    /// How many.
    pub(super) environments: u32,
    /// Steps of one chunk of actions.
    pub(super) chunk_steps: u32,
    /// Mean time of a step on a core, in seconds, of an environment that is no straggler.
    pub(super) step_s: f64,
    /// Coefficient of variation of a step.
    pub(super) spread: f64,
    /// Steps are gamma-distributed instead of lognormal.
    pub(super) gamma: bool,
    /// Share of the environments that are stragglers.
    pub(super) straggler_share: f64,
    /// How many times longer a straggler's step takes.
    pub(super) straggler_times: f64,
    /// Probability that a step ends an episode.
    pub(super) reset_probability: f64,
    /// What the reset that follows takes, in seconds.
    pub(super) reset_s: f64,
}

impl Family {
    fn rate(&self, sms: f64, batch: u32) -> f64 {
        let part = (sms / self.knee_sms).clamp(0.0, 1.0).powf(self.exponent);
        let batch = f64::from(batch.max(1));
        self.max_units_per_s * part * batch / (batch + self.batch_half)
    }
}

impl Crowd {
    /// Mean core time of an environment step, its part of the resets included, in seconds.
    pub(super) fn mean_step_s(&self) -> f64 {
        let stragglers = 1.0 + self.straggler_share * (self.straggler_times - 1.0);
        self.step_s * stragglers + self.reset_probability * self.reset_s
    }

    /// How many of the environments are stragglers: the first ones of each group's turn, spread evenly.
    pub(super) fn is_straggler(&self, environment: usize) -> bool {
        let upto = |n: usize| (n as f64 * self.straggler_share + 0.5).floor();
        upto(environment + 1) > upto(environment)
    }

    /// Core time of one chunk of one environment, in seconds.
    pub(super) fn chunk_s(&self, environment: usize, chance: &mut Chance) -> f64 {
        let mean = if self.is_straggler(environment) {
            self.step_s * self.straggler_times
        } else {
            self.step_s
        };
        let mut total = 0.0;
        for _ in 0..self.chunk_steps {
            total += mean
                * if self.gamma {
                    chance.gamma_factor(self.spread)
                } else {
                    chance.factor(self.spread)
                };
            if self.reset_probability > 0.0 && chance.unit() < self.reset_probability {
                total += self.reset_s;
            }
        }
        total
    }

    /// Cores that can work at the same time.
    pub(super) fn lanes(&self, cores: u32) -> u32 {
        cores.min(self.environments)
    }
}

impl Law {
    /// Work units per second of a stage with so many cores, and SMs on each of `gpus` GPUs, at a batch size. GPUs scale
    /// in proportion: stages of this kind are data-parallel.
    pub(super) fn rate(&self, cores: u32, sms: f64, gpus: f64, batch: u32) -> f64 {
        match self {
            Self::Environments { crowd, render } => {
                let stepped = f64::from(crowd.lanes(cores)) / crowd.mean_step_s();
                let drawn = render.map_or(f64::INFINITY, |r| gpus * r.rate(sms, batch));
                stepped.min(drawn)
            }
            Self::Family(family) => gpus * family.rate(sms, batch),
            Self::Points(curve) => {
                let at = |sms: u32| curve.rate(cores, Sms(sms), batch).get();
                let below = sms.max(0.0).floor();
                let part = sms.max(0.0) - below;
                let rate = at(below as u32) * (1.0 - part);
                let rate = rate
                    + if part > 0.0 {
                        at(below as u32 + 1) * part
                    } else {
                        0.0
                    };
                if self.uses_gpu() { gpus * rate } else { rate }
            }
        }
    }

    /// Whether SMs matter to it.
    pub(super) fn uses_gpu(&self) -> bool {
        match self {
            Self::Environments { render, .. } => render.is_some(),
            Self::Family(_) => true,
            Self::Points(curve) => {
                let slices = curve.slices().iter();
                slices
                    .clone()
                    .any(|s| s.rate(Sms(0)) < s.rate(Sms(u32::MAX)))
            }
        }
    }

    /// SMs of one GPU beyond which it gains nothing: what it can occupy when nobody caps it.
    pub(super) fn useful_sms(&self, all: f64, batch: u32) -> f64 {
        match self {
            Self::Environments { render: None, .. } => 0.0,
            Self::Environments {
                render: Some(f), ..
            }
            | Self::Family(f) => f.knee_sms.min(all),
            Self::Points(curve) => {
                let counts: Vec<Sms> = (1..=all as u32).map(Sms).collect();
                let cores = curve.of_batch(batch).last().map_or(0, |s| s.cores);
                let knee = curve.knee(cores, batch, &counts);
                knee.map_or(0.0, |k| f64::from(k.0))
            }
        }
    }

    /// The same stage where each unit takes `times` as long.
    pub(super) fn slower(&self, times: f64) -> Self {
        let family = |f: &Family| Family {
            max_units_per_s: f.max_units_per_s / times,
            ..*f
        };
        match self {
            Self::Environments { crowd, render } => Self::Environments {
                crowd: Crowd {
                    step_s: crowd.step_s * times,
                    reset_s: crowd.reset_s * times,
                    ..*crowd
                },
                render: render.as_ref().map(family),
            },
            Self::Family(f) => Self::Family(family(f)),
            Self::Points(curve) => Self::Points(curve.scaled(1.0 / times)),
        }
    }

    /// Its environments, where it has any.
    pub(super) fn crowd(&self) -> Option<&Crowd> {
        match self {
            Self::Environments { crowd, .. } => Some(crowd),
            _ => None,
        }
    }
}
