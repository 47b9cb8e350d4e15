//! Calibration's order of trials, replayed against curves that are known: how few trials give a plan as good as the
//! whole grid's, and what it does with noise, outliers, walls of memory and stages that never work.
//! `EVENKEEL_TRIALS_CASES` sets how many stage triples are tried (50 by default).
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod oracle;

use evenkeel_core::allocate::{Problem, Solution, Stage, Supply, solve};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::id::Name;
use evenkeel_core::job::{Policy, Role, SmMode};
use evenkeel_core::trials::{Campaign, Next, Rules, Sampled, Spot, Stop, Why, next};
use evenkeel_core::unit::{Bytes, Rate, Sms};
use oracle::{Rng, percentages};

const SEED: u64 = 0x7121a15;
const GPU_SMS: u32 = 132;
const PERCENTS: [u32; 8] = [10, 20, 30, 40, 50, 60, 80, 100];

/// A stage whose true throughput is known: `T(q) = most · min(1, (q/knee)^shape)` along SMs and cores, and a gain from
/// batching that levels off. A larger batch may need more SMs to fill.
#[derive(Clone, Debug)]
struct Truth {
    most: f64,
    sm_knee: f64,
    sm_shape: f64,
    core_knee: f64,
    core_shape: f64,
    half_batch: f64,
    knee_grows: f64,
    memory: (u64, u64),
    noise: f64,
    bumps: u64,
}

impl Truth {
    fn rate(&self, cores: u32, sms: u32, batch: u32) -> f64 {
        let batch = f64::from(batch);
        let gain = batch / (batch + self.half_batch);
        let knee = self.sm_knee * batch.powf(self.knee_grows);
        let by = |q: u32, knee: f64, shape: f64| (f64::from(q) / knee).min(1.0).powf(shape);
        let by_sms = if self.sm_knee > 0.0 { by(sms, knee, self.sm_shape) } else { 1.0 };
        self.most * gain * by_sms * by(cores, self.core_knee, self.core_shape)
    }

    /// A trial: noise of its own, and a small bump that belongs to the point, so that curves are not quite monotone.
    fn trial(&self, spot: Spot, rng: &mut Rng) -> Point {
        let place = u64::from(spot.cores * 7919 + spot.sms.0 * 104_729 + spot.batch);
        let bump = Rng(self.bumps ^ place).float(0.995, 1.005);
        let noise: f64 = 1.0 + self.noise * (0..12).map(|_| rng.float(-0.5, 0.5)).sum::<f64>();
        let memory = self.memory.0 + self.memory.1 * u64::from(spot.batch);
        Point {
            cores: spot.cores,
            sms: spot.sms,
            batch: spot.batch,
            replicas: spot.replicas,
            rate: Rate::new(self.rate(spot.cores, spot.sms.0, spot.batch) * noise * bump).unwrap(),
            memory: Bytes(memory),
            weight: 1.0,
        }
    }
}

/// Three stages of one job, with their grids.
struct Triple {
    problem: Problem,
    truths: Vec<Truth>,
    grids: Vec<Vec<Spot>>,
}

fn grid(cores: &[u32], sms: &[u32], batches: &[u32]) -> Vec<Spot> {
    let mut all = Vec::new();
    for &cores in cores {
        for &batch in batches {
            all.extend(sms.iter().map(|&sms| Spot { cores, sms: Sms(sms), batch, replicas: 1 }));
        }
    }
    all
}

fn stage(name: &str, role: Role, cores: (u32, u32), gpu: bool) -> Stage {
    Stage {
        name: Name::new(name).unwrap(),
        role,
        workers: 1,
        cores,
        sms: (Sms(0), Sms(if gpu { GPU_SMS } else { 0 })),
        batches: Vec::new(),
        memory: Bytes(0),
        synchronous: false,
        curve: None,
        scale: 1.0,
        learned: 0,
    }
}

fn triple(seed: u64) -> Triple {
    let mut rng = Rng(SEED.wrapping_mul(seed + 1));
    let renders = rng.one_in(4);
    let enforceable = percentages(GPU_SMS, 2);
    let at_least = |p: &u32| enforceable.iter().map(|c| c.0).find(|c| *c >= GPU_SMS * p / 100);
    let sms: Vec<u32> = PERCENTS.iter().filter_map(at_least).collect();
    let unit = rng.float(500.0, 5_000.0);
    let mut truth = |cores: f64, gpu: bool| Truth {
        most: unit * rng.float(1.2, 3.5),
        sm_knee: if gpu { rng.float(0.15, 1.3) * f64::from(GPU_SMS) } else { 0.0 },
        sm_shape: rng.float(0.5, 1.0),
        core_knee: cores * rng.float(0.5, 1.2),
        core_shape: rng.float(0.6, 1.0),
        half_batch: rng.float(1.0, 16.0),
        knee_grows: if rng.one_in(2) { 0.0 } else { rng.float(0.0, 0.1) },
        memory: (u64::from(rng.range(2, 12)) << 30, u64::from(rng.range(50, 600)) << 20),
        noise: rng.float(0.02, 0.03),
        bumps: rng.next(),
    };
    let mut truths = vec![truth(14.0, renders), truth(2.0, true), truth(2.0, true)];
    if renders {
        truths[0].sm_knee *= 0.4;
    } else {
        truths[0].memory = (0, 0);
    }
    let few = [sms[0], sms[1], sms[3], sms[7]];
    let grids = vec![
        grid(&[1, 2, 4, 8, 12], if renders { &few } else { &[0] }, &[16, 32, 64]),
        grid(&[1, 2], &sms, &[8, 16, 32]),
        grid(&[1, 2], &sms, &[32, 64]),
    ];
    let stages = vec![
        stage("simulation", Role::Simulation, (1, 16), renders),
        stage("generation", Role::Generation, (1, 4), true),
        stage("training", Role::Training, (1, 4), true),
    ];
    let problem = Problem {
        supply: Supply {
            cores: 16,
            gpus: 1,
            sms: Sms(GPU_SMS),
            enforceable,
            memory: Bytes::gib(80),
        },
        stages,
        groups: 2,
        eta: None,
        yielded: 1.0,
        kappa: None,
        sm_mode: SmMode::Reserve,
        policy: Policy::Waterfill,
    };
    Triple { problem, truths, grids }
}

impl Triple {
    /// The plan that the daemon would make of these points.
    fn plan(&self, points: &[Vec<Point>]) -> Solution {
        let mut problem = self.problem.clone();
        for (stage, points) in problem.stages.iter_mut().zip(points) {
            stage.curve = Curve::fit(points, &[], 1.0, 1);
        }
        solve(&problem, None).unwrap()
    }

    /// What a plan really does.
    fn executed(&self, plan: &Solution) -> f64 {
        let mut problem = self.problem.clone();
        let rates: Vec<f64> = (plan.stages.iter().zip(&self.truths))
            .map(|(s, t)| t.rate(s.cores, s.sms.0, s.batch))
            .collect();
        for (stage, rate) in problem.stages.iter_mut().zip(&rates) {
            let point = Spot { cores: 1, sms: Sms(0), batch: 1, replicas: 1 };
            stage.curve = Curve::fit(&[measured(point, *rate)], &[], 1.0, 1);
        }
        problem.combine(&rates).2
    }

    fn whole_grid(&self, rng: &mut Rng) -> Vec<Vec<Point>> {
        let all = |(grid, truth): (&Vec<Spot>, &Truth)| {
            grid.iter().map(|s| truth.trial(*s, rng)).collect()
        };
        self.grids.iter().zip(&self.truths).map(all).collect()
    }

    fn grid_size(&self) -> usize {
        self.grids.iter().map(Vec::len).sum()
    }
}

fn measured(spot: Spot, rate: f64) -> Point {
    Point {
        cores: spot.cores,
        sms: spot.sms,
        batch: spot.batch,
        replicas: spot.replicas,
        rate: Rate::new(rate).unwrap(),
        memory: Bytes(0),
        weight: 1.0,
    }
}

/// Asks for trials until it stops, at most `most`.
fn calibrate(
    problem: &Problem,
    grids: &[Vec<Spot>],
    most: usize,
    mut trial: impl FnMut(usize, Spot) -> Point,
) -> (Vec<Vec<Point>>, Option<Stop>) {
    let empty = |grid: &Vec<Spot>| Sampled { grid: grid.clone(), points: Vec::new() };
    let mut stages: Vec<Sampled> = grids.iter().map(empty).collect();
    let log = std::env::var("EVENKEEL_TRIALS_LOG").is_ok();
    for n in 0..most {
        let campaign = Campaign { problem, stages: &stages, rules: Rules::default() };
        match next(&campaign) {
            Next::Try(t) => {
                let point = trial(t.stage, t.spot);
                if log {
                    println!("{n:3} {} {:?} {:?} -> {:.0}", t.stage, t.spot, t.why, point.rate.get());
                }
                stages[t.stage].points.push(point);
            }
            Next::Stop(stop) => return (stages.into_iter().map(|s| s.points).collect(), Some(stop)),
        }
    }
    (stages.into_iter().map(|s| s.points).collect(), None)
}

fn cases() -> u64 {
    let asked = std::env::var("EVENKEEL_TRIALS_CASES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(50)
}

#[test]
fn a_third_of_the_grid_gives_a_plan_as_good_as_all_of_it() {
    let (mut shares, mut losses, mut to_best) = (Vec::new(), Vec::new(), Vec::new());
    let mut whys = [0; 5];
    for seed in 0..cases() {
        let triple = triple(seed);
        let mut rng = Rng(seed);
        let full = triple.executed(&triple.plan(&triple.whole_grid(&mut rng)));
        let most = triple.grid_size();
        let (points, stop) = calibrate(&triple.problem, &triple.grids, most, |i, spot| {
            triple.truths[i].trial(spot, &mut rng)
        });
        let trials: usize = points.iter().map(Vec::len).sum();
        let few = triple.executed(&triple.plan(&points));
        let exact: Vec<Vec<Point>> = (triple.grids.iter().zip(&triple.truths))
            .map(|(g, t)| g.iter().map(|s| Point { rate: Rate::new(t.rate(s.cores, s.sms.0, s.batch)).unwrap(), ..t.trial(*s, &mut rng) }).collect())
            .collect();
        let best = triple.executed(&triple.plan(&exact));
        let share = trials as f64 / triple.grid_size() as f64;
        let loss = 1.0 - few / full;
        println!("{seed:3}: {trials:3} of {:3} ({:.0} %), loss {:+.2} % (to best: few {:+.2} %, full {:+.2} %) {stop:?}", triple.grid_size(), share * 100.0, loss * 100.0, 100.0 * (1.0 - few / best), 100.0 * (1.0 - full / best));
        shares.push(share);
        losses.push(loss);
        to_best.push(1.0 - few / best);
        whys[0] += 1;
    }
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let most = |v: &[f64]| v.iter().copied().fold(f64::MIN, f64::max);
    println!(
        "share of the grid: mean {:.3}, most {:.3}; loss to the whole grid's plan: mean {:.4}, most {:.4}; to the best: {:.4} {:.4}",
        mean(&shares), most(&shares), mean(&losses), most(&losses), mean(&to_best), most(&to_best)
    );
    let _ = Why::Corner;
    assert!(most(&shares) <= 1.0 / 3.0, "{shares:?}");
    assert!(most(&losses) <= 0.02, "{losses:?}");
}
