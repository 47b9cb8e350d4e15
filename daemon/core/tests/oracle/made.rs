//! Problems made by hand: each stage has one of the shapes that trip an allocator, in all pairs, on small supplies.
use evenkeel_core::allocate::{Problem, Stage, Supply};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::id::Name;
use evenkeel_core::job::{Policy, Role, SmMode};
use evenkeel_core::unit::{Bytes, Rate, Sms};

/// What a stage's measurements look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// More SMs measured slower than fewer, here and there.
    NonMonotone,
    /// The same whatever it gets.
    Flat,
    /// Nothing below a quota, everything from there on.
    Cliff,
    /// A single measurement.
    OnePoint,
    /// Steps: many quotas do the same.
    Ties,
    /// Measured, and did nothing.
    Zero,
    /// Fast batches that hardly fit.
    MemoryWall,
    /// Cores do what SMs could.
    Substitute,
}

pub const SHAPES: [Shape; 8] = [
    Shape::NonMonotone,
    Shape::Flat,
    Shape::Cliff,
    Shape::OnePoint,
    Shape::Ties,
    Shape::Zero,
    Shape::MemoryWall,
    Shape::Substitute,
];
const GPU_SMS: u32 = 16;

fn rate(shape: Shape, cores: u32, sms: u32, batch: u32) -> f64 {
    let q = f64::from(sms);
    match shape {
        Shape::NonMonotone => 10.0 * q + if sms.is_multiple_of(3) { -14.0 } else { 5.0 },
        Shape::Flat => 60.0,
        Shape::Cliff => {
            if sms >= 7 {
                90.0
            } else {
                1.0
            }
        }
        Shape::OnePoint | Shape::MemoryWall => 9.0 * q * f64::from(batch).sqrt(),
        Shape::Ties => 20.0 * f64::from(sms / 4 + 1),
        Shape::Zero => 0.0,
        Shape::Substitute => 6.0 * q + 40.0 * f64::from(cores),
    }
}

fn points(shape: Shape) -> Vec<Point> {
    let batches: &[u32] = if shape == Shape::MemoryWall {
        &[1, 4, 16]
    } else {
        &[1]
    };
    let cores: &[u32] = if shape == Shape::Substitute {
        &[1, 2, 3]
    } else {
        &[1]
    };
    let counts: Vec<u32> = if shape == Shape::OnePoint {
        vec![8]
    } else {
        (1..=GPU_SMS).collect()
    };
    let mut all = Vec::new();
    for &batch in batches {
        for &cores in cores {
            for &sms in &counts {
                all.push(Point {
                    cores,
                    sms: Sms(sms),
                    batch,
                    replicas: 1,
                    rate: Rate::clamped(rate(shape, cores, sms, batch)),
                    memory: Bytes(1_000 * u64::from(batch)),
                    weight: 1.0,
                    ..Point::default()
                });
            }
        }
    }
    all
}

fn stage(name: &str, role: Role, shape: Shape) -> Stage {
    Stage {
        name: Name::new(name).unwrap(),
        role,
        workers: 1,
        cores: (0, 3),
        sms: (Sms(0), Sms(GPU_SMS)),
        batches: Vec::new(),
        memory: Bytes(1_000),
        synchronous: false,
        curve: Curve::fit(&points(shape), &[], 1.0, 1),
        scale: 1.0,
        learned: 0,
        fixed: false,
    }
}

/// The `i`-th of them; the first 200 differ in shapes, supplies or groups.
pub fn made(i: u64) -> Problem {
    let at = |n: u64| SHAPES[(n % 8) as usize];
    let (first, second, third) = (at(i), at(i / 8), at(i / 3 + 5));
    let stages = vec![
        stage("sim", Role::Simulation, third),
        stage("gen", Role::Generation, first),
        stage("train", Role::Training, second),
    ];
    Problem {
        supply: Supply {
            cores: 2 + (i / 64 % 4) as u32,
            gpus: 1,
            sms: Sms(GPU_SMS),
            enforceable: (1..=GPU_SMS).map(Sms).collect(),
            memory: Bytes([4_000, 9_000, 21_000][(i % 3) as usize]),
        },
        stages,
        groups: if i.is_multiple_of(5) { 1 } else { 2 },
        eta: None,
        yielded: 1.0,
        kappa: None,
        sm_mode: if i.is_multiple_of(7) {
            SmMode::Cap
        } else {
            SmMode::Reserve
        },
        caps: Default::default(),
        policy: Policy::Waterfill,
    }
}
