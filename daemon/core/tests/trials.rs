//! Calibration's order of trials, replayed against curves that are known: how few trials give a plan as good as the
//! whole grid's, and what it does with noise, outliers, walls of memory and stages that never work.
//! `EVENKEEL_TRIALS_CASES` sets how many stage triples are tried (50 by default).
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
mod oracle;

use evenkeel_core::allocate::{Problem, Solution, Stage, Supply, solve};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::id::Name;
use evenkeel_core::job::{Policy, Role, SmMode};
use evenkeel_core::trials::{Campaign, Next, Rules, Sampled, Spot, Stop, Trial, Why, next};
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
        let by_sms = if self.sm_knee > 0.0 {
            by(sms, knee, self.sm_shape)
        } else {
            1.0
        };
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
            ..Point::default()
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
            all.extend(sms.iter().map(|&sms| Spot {
                cores,
                sms: Sms(sms),
                batch,
                replicas: 1,
            }));
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
        fixed: false,
    }
}

/// Three stages on 16 cores and one GPU.
fn problem(stages: Vec<Stage>, enforceable: Vec<Sms>) -> Problem {
    Problem {
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
        caps: Default::default(),
    }
}

fn triple(seed: u64) -> Triple {
    let mut rng = Rng(SEED.wrapping_mul(seed + 1));
    let renders = rng.one_in(4);
    let enforceable = percentages(GPU_SMS, 2);
    let at_least = |p: &u32| {
        enforceable
            .iter()
            .map(|c| c.0)
            .find(|c| *c >= GPU_SMS * p / 100)
    };
    let sms: Vec<u32> = PERCENTS.iter().filter_map(at_least).collect();
    let unit = rng.float(500.0, 5_000.0);
    let mut truth = |cores: f64, gpu: bool| Truth {
        most: unit * rng.float(1.2, 3.5),
        sm_knee: if gpu {
            rng.float(0.15, 1.3) * f64::from(GPU_SMS)
        } else {
            0.0
        },
        sm_shape: rng.float(0.5, 1.0),
        core_knee: cores * rng.float(0.5, 1.2),
        core_shape: rng.float(0.6, 1.0),
        half_batch: rng.float(1.0, 16.0),
        knee_grows: if rng.one_in(2) {
            0.0
        } else {
            rng.float(0.0, 0.1)
        },
        memory: (
            u64::from(rng.range(2, 12)) << 30,
            u64::from(rng.range(50, 600)) << 20,
        ),
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
        grid(
            &[1, 2, 4, 8, 12],
            if renders { &few } else { &[0] },
            &[16, 32, 64],
        ),
        grid(&[1, 2], &sms, &[8, 16, 32]),
        grid(&[1, 2], &sms, &[32, 64]),
    ];
    let stages = vec![
        stage("simulation", Role::Simulation, (1, 16), renders),
        stage("generation", Role::Generation, (1, 4), true),
        stage("training", Role::Training, (1, 4), true),
    ];
    let problem = problem(stages, enforceable);
    Triple {
        problem,
        truths,
        grids,
    }
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
            let point = Spot {
                cores: 1,
                sms: Sms(0),
                batch: 1,
                replicas: 1,
            };
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
        ..Point::default()
    }
}

/// Asks for trials until it stops.
fn calibrate(
    problem: &Problem,
    grids: &[Vec<Spot>],
    rules: Rules,
    mut trial: impl FnMut(usize, Spot) -> Point,
) -> (Vec<Vec<Point>>, Vec<Trial>, Stop) {
    let empty = |grid: &Vec<Spot>| Sampled {
        grid: grid.clone(),
        points: Vec::new(),
    };
    let mut stages: Vec<Sampled> = grids.iter().map(empty).collect();
    let mut made = Vec::new();
    loop {
        let campaign = Campaign {
            problem,
            stages: &stages,
            rules,
        };
        match next(&campaign) {
            Next::Try(t) => {
                stages[t.stage].points.push(trial(t.stage, t.spot));
                made.push(t);
            }
            Next::Stop(stop) => {
                let points = stages.into_iter().map(|s| s.points).collect();
                return (points, made, stop);
            }
        }
        assert!(made.len() < 10_000, "it never stops");
    }
}

fn cases() -> u64 {
    let asked = std::env::var("EVENKEEL_TRIALS_CASES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(50)
}

/// What a column of figures amounts to: mean, 95th percentile, most.
fn summary(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let n = figures.len();
    let mean = figures.iter().sum::<f64>() / n as f64;
    (mean, figures[n * 95 / 100], figures[n - 1])
}

#[test]
fn a_third_of_the_grid_gives_a_plan_as_good_as_all_of_it() {
    let (mut shares, mut losses, mut whys) = (Vec::new(), Vec::new(), [0_usize; 4]);
    for seed in 0..cases() {
        let triple = triple(seed);
        let mut rng = Rng(seed);
        let full = triple.executed(&triple.plan(&triple.whole_grid(&mut rng)));
        let size = triple.grid_size();
        let rules = Rules {
            most: size as u32 / 3,
            ..Rules::default()
        };
        let trial = |i: usize, spot| triple.truths[i].trial(spot, &mut rng);
        let (points, made, stop) = calibrate(&triple.problem, &triple.grids, rules, trial);
        let loss = 1.0 - triple.executed(&triple.plan(&points)) / full;
        println!(
            "{seed:3}: {:2} trials of {size}, loss {:+.2} %, {stop:?}",
            made.len(),
            loss * 100.0
        );
        for trial in &made {
            whys[match trial.why {
                Why::Corner => 0,
                Why::Promise(_) => 1,
                Why::Doubt => 2,
                Why::Loose(_) | Why::Replicas => 3,
            }] += 1;
        }
        shares.push(made.len() as f64 / size as f64);
        losses.push(loss);
    }
    let (share, loss) = (summary(shares), summary(losses));
    println!("trials of the grid (mean, 95th percentile, most): {share:.3?}");
    println!("loss to the whole grid's plan (likewise): {loss:.4?}");
    println!("corners, promises, doubts, repeats: {whys:?}");
    assert!(whys.iter().all(|n| *n > 0), "a kind of trial is missing");
    assert!(share.2 <= 1.0 / 3.0, "too many trials");
    assert!(loss.2 <= 0.02, "too bad a plan");
}

/// Generation and training on 16 cores and one GPU, nine quotas and two batch sizes each, without noise.
fn pair() -> Triple {
    let mut triple = triple(4);
    for (i, truth) in triple.truths.iter_mut().enumerate() {
        *truth = Truth {
            most: 1_000.0 * (i + 1) as f64,
            sm_knee: if i == 0 { 0.0 } else { 80.0 },
            sm_shape: 0.9,
            core_knee: 4.0,
            core_shape: 1.0,
            half_batch: 4.0,
            knee_grows: 0.0,
            memory: (1 << 30, 100 << 20),
            noise: 0.0,
            bumps: 0,
        };
    }
    triple
}

#[test]
fn a_cold_first_trial_and_an_outlier_are_found_and_repeated() {
    let triple = pair();
    let mut calls = 0;
    let (points, made, _) = calibrate(
        &triple.problem,
        &triple.grids,
        Rules::default(),
        |i, spot| {
            calls += 1;
            let mut point = triple.truths[i].trial(spot, &mut Rng(1));
            if calls <= 3 {
                point.rate = Rate::clamped(point.rate.get() * 0.3); // the first of each stage
            }
            if calls == 9 {
                point.rate = Rate::clamped(point.rate.get() * 10.0);
            }
            point
        },
    );
    let doubts = made.iter().filter(|t| t.why == Why::Doubt).count();
    assert!(doubts >= 4, "{made:?}");
    let best = triple.executed(&triple.plan(&triple.whole_grid(&mut Rng(1))));
    let got = triple.executed(&triple.plan(&points));
    assert!(got > 0.98 * best, "{got} of {best}");
}

#[test]
fn what_does_not_fit_is_found_once_and_not_tried_again_with_more() {
    let triple = pair();
    let trial = |i: usize, spot: Spot| {
        let mut point = triple.truths[i].trial(spot, &mut Rng(1));
        if i > 0 && spot.batch >= 32 {
            point.rate = Rate::ZERO;
        }
        point
    };
    let (points, made, stop) = calibrate(&triple.problem, &triple.grids, Rules::default(), trial);
    let failed = points[1].iter().filter(|p| p.rate == Rate::ZERO).count();
    assert_eq!(failed, 1, "generation's batch of 32, with all there is");
    assert!(points[1].iter().any(|p| p.batch == 16));
    assert_eq!(
        points[2].len(),
        3,
        "no batch of training fits, and nothing else: it is given up"
    );
    assert!(matches!(stop, Stop::Tight(_)), "{stop:?}");
    assert!(made.len() < triple.grid_size() / 3, "{}", made.len());
}

#[test]
fn a_job_of_which_nothing_works_is_given_up() {
    let triple = pair();
    let fails = |_: usize, spot: Spot| measured(spot, 0.0);
    let (points, _, stop) = calibrate(&triple.problem, &triple.grids, Rules::default(), fails);
    assert_eq!(stop, Stop::Nothing);
    assert_eq!(points.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 3]);
}

#[test]
fn other_numbers_of_replicas_are_seen_once_each() {
    let triple = pair();
    let mut grids = triple.grids.clone();
    let twice = |s: &Spot| Spot { replicas: 2, ..*s };
    let more: Vec<Spot> = grids[1].iter().map(twice).collect();
    grids[1].extend(more);
    let trial = |i: usize, spot: Spot| triple.truths[i].trial(spot, &mut Rng(1));
    let (points, made, _) = calibrate(&triple.problem, &grids, Rules::default(), trial);
    let two: Vec<&Point> = points[1].iter().filter(|p| p.replicas == 2).collect();
    assert_eq!(two.len(), 1);
    assert_eq!((two[0].cores, two[0].sms), (2, Sms(GPU_SMS)));
    assert_eq!(made.iter().filter(|t| t.why == Why::Replicas).count(), 1);
}

#[test]
fn it_goes_on_where_it_was_and_stops_where_it_may() {
    let triple = pair();
    let trial = |i: usize, spot: Spot| triple.truths[i].trial(spot, &mut Rng(1));
    let (all, made, _) = calibrate(&triple.problem, &triple.grids, Rules::default(), trial);
    let half = made.len() / 2;
    let rules = Rules {
        most: half as u32,
        ..Rules::default()
    };
    let (some, first, stop) = calibrate(&triple.problem, &triple.grids, rules, trial);
    assert_eq!(first, made[..half]);
    assert!(
        matches!(stop, Stop::Spent(promise) if promise > 0.0),
        "{stop:?}"
    );
    let mut stages: Vec<Sampled> = (triple.grids.iter().zip(some))
        .map(|(grid, points)| Sampled {
            grid: grid.clone(),
            points,
        })
        .collect();
    for expected in &made[half..] {
        let campaign = Campaign {
            problem: &triple.problem,
            stages: &stages,
            rules: Rules::default(),
        };
        assert_eq!(next(&campaign), Next::Try(*expected));
        let point = trial(expected.stage, expected.spot);
        stages[expected.stage].points.push(point);
    }
    let same = stages
        .iter()
        .map(|s| s.points.len())
        .eq(all.iter().map(Vec::len));
    assert!(same);
}
