//! A job and its profiles in the core's words. What the daemon checks at its door is checked here, too: the core trusts
//! what it is given.

use evenkeel_client::{self as client, Profile};
use evenkeel_core::curve::{self, Point, ProfileKey};
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{
    JobSpec, Policy, RebalanceSpec, Role, STAGES_MAX, SmMode, StageSpec, WORKERS_MAX,
};
use evenkeel_core::unit::{Bytes, Rate, Sms};

use super::node::GPUS_MAX;
use crate::fail::Failure;

/// "No limit of its own".
const NO_LIMIT: u32 = u32::MAX;
/// Cores, SMs and batch sizes that may be named: more than there are, and no sum of them overflows.
const COUNT_MAX: u32 = 1 << 16;
/// Bytes that may be named (1 PiB); likewise.
const MEMORY_MAX: u64 = 1 << 50;
/// Whose the plan is: nobody's.
const NOBODY: &str = "offline";

fn bad(of: &str, what: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{of}: {what}"))
}

fn name(of: &str, text: &str) -> Result<Name, Failure> {
    Name::new(text).map_err(|error| bad(of, format_args!("`{text}`: {error}")))
}

/// A job as declared.
pub(super) fn declared(spec: &client::JobSpec) -> Result<JobSpec, Failure> {
    let of = format!("job {}", spec.name);
    let stages: Vec<StageSpec> = spec.stages.iter().map(stage).collect::<Result<_, _>>()?;
    if stages.is_empty() || stages.len() > STAGES_MAX {
        let has = stages.len();
        return Err(bad(
            &of,
            format_args!("{has} stages; a job has 1 to {STAGES_MAX}"),
        ));
    }
    for (i, stage) in stages.iter().enumerate() {
        if stages[..i].iter().any(|other| other.name == stage.name) {
            return Err(bad(
                &of,
                format_args!("two stages are named {}", stage.name),
            ));
        }
    }
    if !(1..=2).contains(&spec.groups) {
        let why = "groups: 1 runs the rollout's stages in turn, 2 overlaps them";
        return Err(bad(&of, why));
    }
    let gpu = |id: &u32| {
        let id = u16::try_from(*id).map_err(|_| bad(&of, format_args!("there is no GPU {id}")))?;
        Ok(GpuId(id))
    };
    let mut gpus: Vec<GpuId> = spec.gpus.iter().map(gpu).collect::<Result<_, Failure>>()?;
    gpus.sort_unstable();
    gpus.dedup();
    let needs = stages
        .iter()
        .any(|s| s.sms.1 > Sms(0) || s.memory > Bytes(0));
    let gpu_count = match spec.gpu_count {
        0 => u32::from(needs && gpus.is_empty()),
        n => n,
    };
    if i64::from(gpu_count) > GPUS_MAX {
        return Err(bad(&of, format_args!("gpu_count is more than {GPUS_MAX}")));
    }
    Ok(JobSpec {
        name: name(&of, &spec.name)?,
        unit: name(&of, &spec.unit)?,
        priority: spec.priority,
        gpus,
        gpu_count: u16::try_from(gpu_count).unwrap_or(u16::MAX),
        groups: spec.groups,
        policy: match spec.policy {
            client::Policy::Waterfill => Policy::Waterfill,
            client::Policy::Ebrl => Policy::Ebrl,
        },
        sm_mode: match spec.sm_mode {
            client::SmMode::Reserve => SmMode::Reserve,
            client::SmMode::Cap => SmMode::Cap,
        },
        // When shares move has no part in the first plan.
        rebalance: RebalanceSpec::default(),
        stages,
    })
}

fn stage(spec: &client::StageSpec) -> Result<StageSpec, Failure> {
    let of = format!("stage {}", spec.name);
    if spec.workers == 0 || spec.workers > WORKERS_MAX {
        let why = format_args!("{} workers; it has 1 to {WORKERS_MAX}", spec.workers);
        return Err(bad(&of, why));
    }
    if spec.batches.contains(&0) {
        return Err(bad(&of, "a batch size is at least 1"));
    }
    if spec.memory_bytes > MEMORY_MAX {
        return Err(bad(&of, "that much GPU memory is nowhere"));
    }
    let sms = if spec.no_gpu || spec.max_sms == Some(0) {
        if spec.min_sms > 0 || spec.max_sms.is_some_and(|n| n > 0) || spec.memory_bytes > 0 {
            let why = "it says no_gpu: leave min_sms, max_sms and memory out";
            return Err(bad(&of, why));
        }
        (0, 0)
    } else {
        range(&of, "sms", spec.min_sms, spec.max_sms)?
    };
    let cores = if spec.no_cores || spec.max_cores == Some(0) {
        if spec.min_cores > 0 || spec.max_cores.is_some_and(|n| n > 0) {
            let why = "it says no_cores: leave min_cores and max_cores out";
            return Err(bad(&of, why));
        }
        (0, 0)
    } else {
        range(&of, "cores", spec.min_cores, spec.max_cores)?
    };
    Ok(StageSpec {
        name: name(&of, &spec.name)?,
        role: match spec.role {
            client::Role::Simulation => Role::Simulation,
            client::Role::Generation => Role::Generation,
            client::Role::Training => Role::Training,
            client::Role::Inference => Role::Inference,
            client::Role::Other => Role::Other,
        },
        workers: spec.workers,
        processes: spec.processes.max(1),
        cores,
        sms: (Sms(sms.0), Sms(sms.1)),
        memory: Bytes(spec.memory_bytes),
        batches: spec.batches.clone(),
        synchronous: spec.synchronous,
        resize: Resize::default(),
        profile: spec.profile.as_deref().map(|p| name(&of, p)).transpose()?,
    })
}

/// Least and most; none, or 0: no limit.
fn range(of: &str, what: &str, least: u32, most: Option<u32>) -> Result<(u32, u32), Failure> {
    let most = most.filter(|n| *n > 0);
    for n in [Some(least), most].into_iter().flatten() {
        if n > COUNT_MAX {
            return Err(bad(
                of,
                format_args!("{n} {what} are more than {COUNT_MAX}"),
            ));
        }
    }
    let most = most.unwrap_or(NO_LIMIT);
    if least > most {
        let why = format_args!("min_{what} = {least} is more than max_{what} = {most}");
        return Err(bad(of, why));
    }
    Ok((least, most))
}

/// A profile as measured.
pub(super) fn profile(profile: &Profile) -> Result<curve::Profile, Failure> {
    let of = format!("the profile of {}", profile.key.stage);
    let point = |(i, p): (usize, &client::ProfilePoint)| {
        let wrong = |what: String| bad(&of, format_args!("point {}: {what}", i + 1));
        if p.batch == 0 {
            return Err(wrong(
                "batch is at least 1; 1 where the stage has none".to_owned(),
            ));
        }
        if p.cores == 0 && p.sms == 0 {
            return Err(wrong(
                "a trial without cores and SMs measures nothing".to_owned(),
            ));
        }
        if p.cores.max(p.sms) > COUNT_MAX || p.memory_bytes > MEMORY_MAX {
            return Err(wrong("no machine is that large".to_owned()));
        }
        if !(p.weight.is_finite() && p.weight > 0.0) {
            return Err(wrong(format!("weight = {} is not above 0", p.weight)));
        }
        Ok(Point {
            cores: p.cores,
            sms: Sms(p.sms),
            batch: p.batch,
            replicas: p.replicas.max(1),
            rate: Rate::new(p.units_per_s).map_err(|error| wrong(error.to_string()))?,
            memory: Bytes(p.memory_bytes),
            weight: p.weight,
        })
    };
    let points = profile.points.iter().enumerate();
    Ok(curve::Profile {
        key: ProfileKey {
            tenant: name(&of, NOBODY)?,
            stage: name(&of, &profile.key.stage)?,
            gpu: name(&of, &profile.key.gpu)?,
        },
        points: points.map(point).collect::<Result<_, _>>()?,
    })
}
