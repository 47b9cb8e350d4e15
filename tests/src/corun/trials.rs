//! What a calibration would measure, in virtual time: each stage alone, and generation beside training.
use evenkeel_core::curve::corun::Caps;
use evenkeel_core::curve::{CoRun, Point, Profile, ProfileKey};
use evenkeel_core::unit::{Rate, Sms};
use evenkeel_gpu::model::ModelError;
use evenkeel_gpu::{ClientSpec, KernelGroup, Model, SubmissionId};
use evenkeel_rollout::pipeline::PipelineSpec;

use super::made::{CORES, STAGES, Triple, name, seconds};

/// SMs between two measured quotas.
const STEP_SMS: usize = 8;
/// Lists that each of a pair completes at least.
const LISTS: u64 = 24;
/// Lists of a stream at a time.
const DEPTH: usize = 2;

/// The lists of generation or of training, one after the other for ever, and the units of all of them.
fn work(spec: &PipelineSpec, training: bool) -> (Vec<Vec<KernelGroup>>, f64) {
    match training {
        true => (spec.train.clone(), spec.units_per_rollout()),
        false => (vec![spec.generate.clone()], spec.units_per_batch()),
    }
}

/// Units per second of generation or training with nobody beside it.
pub(super) fn alone(spec: &PipelineSpec, training: bool, sms: u32) -> f64 {
    let (lists, units) = work(spec, training);
    let took: f64 = lists.iter().map(|list| seconds(spec, sms, list)).sum();
    units / took
}

/// Units per second of generation and training, both busy all the time, with these caps.
///
/// # Errors
/// When the model refuses a share or a list.
pub(super) fn beside(spec: &PipelineSpec, caps: [u32; 2]) -> Result<[f64; 2], ModelError> {
    let mut model = Model::new(spec.gpu.clone());
    let works = [work(spec, false), work(spec, true)];
    let mut clients = Vec::new();
    for sms in caps {
        clients.push(model.connect(0, ClientSpec { sms, memory: 0 })?);
    }
    let (mut sent, mut done, mut busy) = ([0_u64; 2], [0_u64; 2], [0_u64; 2]);
    let mut submit = |model: &mut Model, at: u64, i: usize| {
        let lists = &works[i].0;
        let list = lists[sent[i] as usize % lists.len()].clone();
        sent[i] += 1;
        model.submit(at, clients[i], SubmissionId(sent[i]), list)
    };
    for i in 0..2 {
        for _ in 0..DEPTH {
            submit(&mut model, 0, i)?;
        }
    }
    let mut out = Vec::new();
    while done.iter().any(|n| *n < LISTS)
        && let Some(at) = model.next()
    {
        model.advance(at, &mut out);
        for end in out.drain(..) {
            let i = usize::from(end.client == clients[1]);
            done[i] += 1;
            busy[i] += end.end - end.start;
            submit(&mut model, at, i)?;
        }
    }
    let rate = |i: usize| {
        let per_list = works[i].1 / works[i].0.len() as f64;
        done[i] as f64 * per_list / (busy[i] as f64 * 1e-9)
    };
    Ok([rate(0), rate(1)])
}

fn point(cores: u32, sms: u32, rate: f64) -> Point {
    Point {
        cores,
        sms: Sms(sms),
        batch: 1,
        replicas: 1,
        rate: Rate::clamped(rate),
        weight: 1.0,
        ..Point::default()
    }
}

/// The profiles of a triple: a grid of quotas, each stage alone.
pub(super) fn profiles(triple: &Triple) -> Vec<Profile> {
    let spec = &triple.spec;
    let one_core = 1e9 / spec.step_ns as f64;
    let key = |i: usize| ProfileKey {
        tenant: name("t"),
        stage: name(&format!("corun/{}", STAGES[i].0)),
        gpu: name(if i == 0 { "none" } else { &spec.gpu.name }),
    };
    let counts = spec.gpu.enforceable_sms();
    let grid: Vec<u32> = (counts.iter().copied().skip(1).step_by(STEP_SMS / 2))
        .chain(counts.last().copied())
        .collect();
    let mut points = vec![
        (1..=CORES)
            .map(|c| point(c, 0, f64::from(c) * one_core))
            .collect(),
        Vec::new(),
        Vec::new(),
    ];
    for (i, training) in [(1, false), (2, true)] {
        points[i] = grid
            .iter()
            .map(|sms| point(0, *sms, alone(spec, training, *sms)))
            .collect();
    }
    let of = |(i, points)| Profile {
        key: key(i),
        points,
    };
    points.into_iter().enumerate().map(of).collect()
}

/// Adds a trial of generation beside training at this split.
///
/// # Errors
/// As [`beside`].
pub(super) fn add_pair(
    profiles: &mut [Profile],
    triple: &Triple,
    split: [u32; 2],
    caps: Caps,
) -> Result<(), ModelError> {
    let spec = &triple.spec;
    let all = Sms(spec.gpu.sms);
    // SMs come in pairs.
    let reached = split.map(|share| caps.reach(Sms(share), all).0 & !1);
    let rates = beside(spec, reached)?;
    for (own, other) in [(0, 1), (1, 0)] {
        let other_stage = profiles[other + 1].key.stage.clone();
        profiles[own + 1].points.push(Point {
            beside: Some(Box::new(CoRun {
                other: other_stage,
                other_sms: Sms(split[other]),
                caps,
                alone: Rate::clamped(alone(spec, own == 1, reached[own])),
                overlap: 1.0,
            })),
            ..point(0, split[own], rates[own])
        });
    }
    Ok(())
}

/// How much generation is slowed by training, and training by generation, at these caps.
///
/// # Errors
/// As [`beside`].
pub(super) fn kappa_at(spec: &PipelineSpec, caps: [u32; 2]) -> Result<[f64; 2], ModelError> {
    let together = beside(spec, caps)?;
    let lost = |i: usize| alone(spec, i == 1, caps[i]) / together[i] - 1.0;
    Ok([lost(0), lost(1)])
}
