//! The oracle: random one-job problems, and exhaustive search over them. Tests only; the product never searches
//! exhaustively. `EVENKEEL_ORACLE_CASES` sets how many problems a run takes (1,000 by default).
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
pub mod made;

use evenkeel_core::allocate::{Problem, Stage, Supply, ladder};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::id::Name;
use evenkeel_core::job::{Policy, Role, SmMode};
use evenkeel_core::unit::{Bytes, Rate, Sms};

/// How many problems to take.
pub fn cases(default: u64) -> u64 {
    std::env::var("EVENKEEL_ORACLE_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

/// A small seeded generator (splitmix64): the same seed, the same problem, on every machine.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// In `low..=high`.
    pub fn range(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % (u64::from(high - low) + 1)) as u32
    }
    /// In `low..high`.
    pub fn float(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }
    pub fn one_in(&mut self, n: u32) -> bool {
        self.range(1, n) == 1
    }
}

/// The SM counts that an MPS percentage of 1 to 100 leaves on a GPU with this granularity.
pub fn percentages(sms: u32, granularity: u32) -> Vec<Sms> {
    let mut counts: Vec<Sms> = (1..=100)
        .map(|p| sms * p / 100 / granularity * granularity)
        .filter(|s| *s > 0)
        .map(Sms)
        .collect();
    counts.dedup();
    counts
}

/// A random profile: a knee along SMs and along cores, batch sizes with diminishing returns, noise, outliers.
fn points(rng: &mut Rng, stage: &Stage, gpu_sms: u32, batches: &[u32]) -> Vec<Point> {
    let peak = rng.float(50.0, 400.0);
    let knee = rng.float(0.1, 1.2) * f64::from(gpu_sms);
    let shape = rng.float(0.4, 1.0);
    let noise = if rng.one_in(3) { 0.1 } else { 0.01 };
    let per_item = rng.range(0, 3);
    let counts: Vec<u32> = match rng.range(1, 3) {
        1 => vec![stage.cores.0.max(1)],
        2 => vec![stage.cores.0.max(1), stage.cores.1.max(1)],
        _ => (stage.cores.0.max(1)..=stage.cores.1.max(1)).collect(),
    };
    let mut points = Vec::new();
    for batch in batches {
        let gain = f64::from(*batch) / (f64::from(*batch) + rng.float(1.0, 8.0));
        for cores in &counts {
            let by_cores = f64::from(*cores).powf(rng.float(0.2, 1.0));
            let rungs = if stage.sms.1 == Sms(0) {
                1
            } else {
                rng.range(1, 6)
            };
            for _ in 0..rungs {
                let sms = if stage.sms.1 == Sms(0) {
                    0
                } else {
                    rng.range(1, gpu_sms)
                };
                let by_sms = if sms == 0 {
                    1.0
                } else {
                    (f64::from(sms) / knee).min(1.0).powf(shape)
                };
                let rate = peak * gain * by_cores * by_sms * rng.float(1.0 - noise, 1.0 + noise);
                let rate = if rng.one_in(12) { 0.0 } else { rate };
                points.push(Point {
                    cores: *cores,
                    sms: Sms(sms),
                    batch: *batch,
                    replicas: stage.workers,
                    rate: Rate::new(rate).unwrap(),
                    memory: Bytes(u64::from(per_item * batch + rng.range(0, 2))),
                    weight: f64::from(rng.range(1, 3)),
                    ..Point::default()
                });
            }
        }
    }
    points
}

fn stage(rng: &mut Rng, i: usize, role: Role, gpu_sms: u32) -> Stage {
    let least = rng.range(0, 1);
    let gpu = role != Role::Simulation || rng.one_in(2);
    let offered: &[u32] = [&[1u32][..], &[1, 4], &[2, 8, 16]][rng.range(0, 2) as usize];
    let mut stage = Stage {
        name: Name::new(["sim", "gen", "third", "fourth"][i]).unwrap(),
        role,
        workers: rng.range(1, 3),
        cores: (least, least + rng.range(0, 4)),
        sms: if gpu {
            (Sms(rng.range(0, 2)), Sms(rng.range(gpu_sms / 2, gpu_sms)))
        } else {
            (Sms(0), Sms(0))
        },
        batches: if rng.one_in(2) {
            offered.to_vec()
        } else {
            Vec::new()
        },
        memory: Bytes(rng.range(0, 3).into()),
        synchronous: rng.one_in(3),
        curve: None,
        scale: 1.0,
        learned: 0,
        fixed: false,
    };
    let points = points(rng, &stage, gpu_sms, offered);
    stage.curve =
        Curve::fit(&points, &[], rng.float(0.5, 1.5), stage.workers).filter(|_| !rng.one_in(25));
    stage
}

/// A random problem, small enough for exhaustive search.
pub fn problem(seed: u64) -> Problem {
    let mut rng = Rng(seed);
    let gpu_sms = rng.range(8, 28);
    let enforceable = percentages(gpu_sms, rng.range(1, 3));
    let roles: &[Role] = match rng.range(1, 8) {
        1 => &[Role::Generation, Role::Training],
        2 => &[
            Role::Simulation,
            Role::Generation,
            Role::Inference,
            Role::Training,
        ],
        3 => &[
            Role::Simulation,
            Role::Generation,
            Role::Training,
            Role::Other,
        ],
        4 => &[Role::Simulation, Role::Generation],
        _ => &[Role::Simulation, Role::Generation, Role::Training],
    };
    let cores = rng.range(roles.len() as u32, 12);
    let memory = u64::from(rng.range(4, 60));
    let stages = roles
        .iter()
        .enumerate()
        .map(|(i, role)| stage(&mut rng, i, *role, gpu_sms));
    let stages: Vec<Stage> = stages.collect();
    let n = stages.len();
    Problem {
        supply: Supply {
            cores,
            gpus: 1,
            sms: Sms(gpu_sms),
            enforceable,
            memory: Bytes(memory),
        },
        stages,
        groups: rng.range(1, 4).min(2),
        eta: rng.one_in(2).then(|| rng.float(0.6, 1.0)),
        yielded: if rng.one_in(2) {
            1.0
        } else {
            rng.float(0.5, 1.0)
        },
        kappa: rng.one_in(4).then(|| {
            (0..n)
                .map(|_| (0..n).map(|_| rng.float(0.0, 0.3)).collect())
                .collect()
        }),
        sm_mode: if rng.one_in(3) {
            SmMode::Cap
        } else {
            SmMode::Reserve
        },
        policy: Policy::Waterfill,
        caps: Default::default(),
    }
}

/// A job that shares a node with others: two or three measured stages on a small GPU.
pub fn sharing(rng: &mut Rng, supply: &Supply) -> Problem {
    let roles: &[Role] = match rng.range(1, 3) {
        1 => &[Role::Generation, Role::Training],
        _ => &[Role::Simulation, Role::Generation, Role::Training],
    };
    let gpu_sms = supply.sms.0;
    let stages = roles.iter().enumerate().map(|(i, role)| {
        loop {
            let mut s = stage(rng, i, *role, gpu_sms);
            s.workers = rng.range(1, 2);
            s.sms.0 = Sms(s.sms.0.0.min(1));
            s.cores.0 = s.cores.0.min(rng.range(0, 1));
            if s.curve.is_some() {
                break s;
            }
        }
    });
    let stages = stages.collect();
    Problem {
        supply: supply.clone(),
        stages,
        groups: if rng.one_in(4) { 1 } else { 2 },
        eta: None,
        yielded: 1.0,
        kappa: None,
        sm_mode: SmMode::Reserve,
        policy: Policy::Waterfill,
        caps: Default::default(),
    }
}

/// The best Θ by amounts: `[cores][SMs][bytes]`, none where nothing fits.
pub fn table(problem: &Problem) -> Vec<Vec<Vec<Option<f64>>>> {
    let (c, s, m) = (
        problem.supply.cores as usize,
        problem.supply.sms.0 as usize,
        problem.supply.memory.0 as usize,
    );
    let mut best = vec![vec![vec![None::<f64>; m + 1]; s + 1]; c + 1];
    let all: Vec<Vec<Choice>> = (0..problem.stages.len())
        .map(|i| choices(problem, i, None))
        .collect();
    fill(problem, &all, (0, 0, 0), &mut Vec::new(), &mut best);
    for i in 0..=c {
        for j in 0..=s {
            for k in 0..=m {
                let below = [
                    i.checked_sub(1).and_then(|i| best[i][j][k]),
                    j.checked_sub(1).and_then(|j| best[i][j][k]),
                    k.checked_sub(1).and_then(|k| best[i][j][k]),
                ];
                for b in below.into_iter().flatten() {
                    best[i][j][k] = Some(best[i][j][k].map_or(b, |x| x.max(b)));
                }
            }
        }
    }
    best
}

fn fill(
    problem: &Problem,
    all: &[Vec<Choice>],
    used: (usize, usize, usize),
    rates: &mut Vec<f64>,
    best: &mut [Vec<Vec<Option<f64>>>],
) {
    let Some(choices) = all.get(rates.len()) else {
        let theta = problem.combine(rates).2;
        let at = &mut best[used.0][used.1][used.2];
        *at = Some(at.map_or(theta, |b| b.max(theta)));
        return;
    };
    for c in choices {
        let next = (
            used.0 + c.cores as usize,
            used.1 + c.sms as usize,
            used.2 + c.memory as usize,
        );
        if next.0 < best.len() && next.1 < best[0].len() && next.2 < best[0][0].len() {
            rates.push(c.rate);
            fill(problem, all, next, rates, best);
            rates.pop();
        }
    }
}

/// One thing a stage can have in the exhaustive search.
#[derive(Clone, Copy, Debug)]
struct Choice {
    cores: u32,
    sms: u32,
    memory: u64,
    rate: f64,
}

/// The best Θ by trying every core count, every enforceable quota and every batch size of every stage; none if
/// nothing fits. Stages that were never measured have `fixed` shares (cores, SMs, batch): those of the solution.
pub fn exhaustive(
    problem: &Problem,
    fixed: impl Fn(usize) -> Option<(u32, Sms, u32)>,
) -> Option<f64> {
    let all: Vec<Vec<Choice>> = (0..problem.stages.len())
        .map(|i| choices(problem, i, fixed(i)))
        .collect();
    let mut best = None;
    let mut rates = vec![0.0; all.len()];
    let supply = &problem.supply;
    descend(
        problem,
        &all,
        0,
        (supply.cores, supply.sms.0, supply.memory.0),
        &mut rates,
        &mut best,
    );
    best
}

fn choices(problem: &Problem, i: usize, fixed: Option<(u32, Sms, u32)>) -> Vec<Choice> {
    let stage = &problem.stages[i];
    let rungs = ladder(
        &problem.supply.enforceable,
        stage.workers_per_gpu(problem.supply.gpus),
        stage.synchronous,
        (stage.sms.0, stage.sms.1.min(problem.supply.sms)),
    );
    let mut out = Vec::new();
    for batch in stage.choices() {
        for cores in stage.cores.0..=stage.cores.1.min(problem.supply.cores) {
            for sms in &rungs {
                if stage.curve.is_none() && fixed.is_some_and(|f| f != (cores, *sms, batch)) {
                    continue;
                }
                let rate = problem.rate(i, cores, *sms, batch).get();
                let memory = stage.memory_at(cores, batch).0;
                let choice = Choice {
                    cores,
                    sms: sms.0,
                    memory,
                    rate,
                };
                let covers = |c: &Choice| {
                    c.cores <= choice.cores
                        && c.sms <= choice.sms
                        && c.memory <= memory
                        && c.rate >= rate
                };
                if !out.iter().any(covers) {
                    out.push(choice); // not worth trying beside one that is no worse in any way
                }
            }
        }
    }
    out
}

fn descend(
    problem: &Problem,
    all: &[Vec<Choice>],
    i: usize,
    left: (u32, u32, u64),
    rates: &mut [f64],
    best: &mut Option<f64>,
) {
    let Some(choices) = all.get(i) else {
        let theta = problem.combine(rates).2;
        *best = Some(best.map_or(theta, |b| b.max(theta)));
        return;
    };
    for c in choices {
        if c.cores <= left.0 && c.sms <= left.1 && c.memory <= left.2 {
            rates[i] = c.rate;
            let left = (left.0 - c.cores, left.1 - c.sms, left.2 - c.memory);
            descend(problem, all, i + 1, left, rates, best);
        }
    }
}
