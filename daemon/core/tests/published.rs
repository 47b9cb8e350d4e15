//! What the published rule (`ebrl`) loses on curves of the usual shape, by how many SMs the simulator needs: the table of
//! docs/allocation.md. `T(q) = T_max · min(1, (q/knee)^a)`, the family that real stages follow.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]
use evenkeel_core::allocate::{Problem, Stage, Supply, solve};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::id::Name;
use evenkeel_core::job::{Policy, Role, SmMode};
use evenkeel_core::unit::{Bytes, Rate, Sms};

const SMS: u32 = 132;
/// Of the GPU, in percent; 0: it needs none.
const KNEES: [u32; 7] = [0, 10, 20, 40, 60, 80, 100];
const CASES: u64 = 300;

/// splitmix64, from 0 to 1.
struct Rng(u64);

impl Rng {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }
}

fn stage(name: &str, role: Role, most: f64, knee: f64, exponent: f64) -> Stage {
    let needs_sms = knee > 0.0;
    let counts = if needs_sms { 1..=SMS / 2 } else { 0..=0 };
    let rate = |sms: u32| match needs_sms {
        true => most * (f64::from(sms) / knee).min(1.0).powf(exponent),
        false => most,
    };
    let points: Vec<Point> = counts
        .map(|n| Point {
            cores: 1,
            sms: Sms(2 * n),
            batch: 1,
            replicas: 1,
            rate: Rate::clamped(rate(2 * n)),
            weight: 1.0,
            ..Point::default()
        })
        .collect();
    Stage {
        name: Name::new(name).unwrap(),
        role,
        workers: 1,
        cores: (1, 1),
        sms: (Sms(0), Sms(if needs_sms { SMS } else { 0 })),
        batches: Vec::new(),
        memory: Bytes(0),
        synchronous: false,
        curve: Curve::fit(&points, &[], 1.0, 1),
        scale: 1.0,
        learned: 0,
        fixed: false,
    }
}

/// The loss of one random problem, as a share of what `waterfill` gets.
fn loss(knee_percent: u32, rng: &mut Rng) -> f64 {
    let all = f64::from(SMS);
    let mut other = |name, role| {
        let (most, knee) = (rng.between(50.0, 200.0), rng.between(0.3, 1.3) * all);
        stage(name, role, most, knee, rng.between(0.5, 1.0))
    };
    let (generation, training) = (
        other("generation", Role::Generation),
        other("training", Role::Training),
    );
    let knee = f64::from(knee_percent) / 100.0 * all;
    let (most, exponent) = (rng.between(50.0, 200.0), rng.between(0.5, 1.0));
    let simulation = stage("simulation", Role::Simulation, most, knee, exponent);
    let problem = |policy| Problem {
        supply: Supply {
            cores: 3,
            gpus: 1,
            sms: Sms(SMS),
            enforceable: (1..=SMS / 2).map(|n| Sms(2 * n)).collect(),
            memory: Bytes(0),
        },
        stages: vec![simulation.clone(), generation.clone(), training.clone()],
        groups: 2,
        eta: None,
        yielded: 1.0,
        kappa: None,
        sm_mode: SmMode::Reserve,
        caps: evenkeel_core::curve::corun::Caps::Reserve,
        policy,
    };
    let theta = |policy| solve(&problem(policy), None).unwrap().theta.get();
    let (published, best) = (theta(Policy::Ebrl), theta(Policy::Waterfill));
    assert!(published <= best && best > 0.0, "{published} {best}");
    1.0 - published / best
}

#[test]
fn the_published_rule_loses_by_what_the_simulator_takes() {
    let mut means = Vec::new();
    for knee in KNEES {
        let mut rng = Rng(u64::from(knee) + 1);
        let mut losses: Vec<f64> = (0..CASES).map(|_| loss(knee, &mut rng)).collect();
        losses.sort_by(f64::total_cmp);
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        let at = |part: f64| losses[(part * (losses.len() - 1) as f64) as usize];
        println!(
            "ebrl: simulator's knee at {knee} %: mean {:.4} median {:.4} p90 {:.4} most {:.4}",
            mean,
            at(0.5),
            at(0.9),
            at(1.0)
        );
        means.push(mean);
    }
    assert!(
        means[0] < 0.01,
        "without a simulator on the GPU it is a split of two: {means:?}"
    );
    assert!(means[6] > 0.2, "{means:?}");
    assert!(means.is_sorted(), "{means:?}");
}
