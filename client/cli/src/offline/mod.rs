//! Planning without a daemon: a job, measured profiles and a node of given sizes in, the plan out.
//!
//! The planning is the core's, the same call that the daemon makes; here is only what it plans with (`node`, `spec`)
//! and how its answer reads. Nothing is asked, nothing is changed. Called by `cmd::plan`.

mod node;
mod profile;
mod spec;

use evenkeel_client::{JobSpec, Plan, Profile, StagePlan};
use evenkeel_core::allocate::{self, Inputs, Problem, Refusal, Supply};
use evenkeel_core::curve;
use evenkeel_core::job;

pub(crate) use node::{CORES_MAX, GPUS_MAX, SMS_MAX, Sizes};
pub(crate) use profile::{RATE_MAX, caps, conditions, one_of_each, point, profile};
pub(crate) use spec::Bad;

use crate::fail::Failure;

/// Whether a job makes sense by itself: the checks of the daemon's door and of the core, which need no node.
pub(crate) fn check(spec: &JobSpec) -> Result<(), Bad> {
    spec::declared(spec).map(drop)
}

/// A job in the core's words, checked likewise.
pub(crate) fn declared(spec: &JobSpec) -> Result<job::JobSpec, Bad> {
    spec::declared(spec)
}

/// The allocation problem of a job on a supply, with no curve yet: what a campaign of trials is about.
pub(crate) fn problem(spec: &JobSpec, supply: Supply) -> Result<Problem, Failure> {
    let declared = spec::declared(spec)?;
    allocate::problem_for(&Inputs::declared(&declared), supply)
        .map_err(|error| Failure::usage(format!("job {}: {error}", spec.name)))
}

/// A plan, and what should be known of how it came about.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// Remarks for a person: profiles of other hardware, say.
    pub(crate) remarks: Vec<String>,
}

/// The plan that a job would get alone on a node of these sizes.
pub(crate) fn plan(
    spec: &JobSpec,
    profiles: &[Profile],
    sizes: &Sizes,
) -> Result<Planned, Failure> {
    let declared = spec::declared(spec)?;
    let (node, room) = sizes.node(&declared)?;
    let (chosen, remarks) = choose(spec, profiles, sizes)?;
    let known: Vec<Option<&curve::Profile>> = chosen.iter().map(Option::as_ref).collect();
    let inputs = Inputs {
        profiles: &known,
        ..Inputs::declared(&declared)
    };
    let (plan, _) =
        allocate::plan(&inputs, &node, &room, None).map_err(|refusal| refused(spec, &refusal))?;
    Ok(Planned {
        plan: told(&declared, &plan),
        remarks,
    })
}

/// The profile of each stage: measured on this kind of GPU where there is one, else the first of that stage.
fn choose(
    spec: &JobSpec,
    profiles: &[Profile],
    sizes: &Sizes,
) -> Result<(Vec<Option<curve::Profile>>, Vec<String>), Failure> {
    let mut remarks = Vec::new();
    let mut used = vec![false; profiles.len()];
    let mut chosen = Vec::with_capacity(spec.stages.len());
    for stage in &spec.stages {
        let fingerprint = spec.fingerprint(stage);
        let of_stage = || (0..profiles.len()).filter(|i| profiles[*i].key.stage == fingerprint);
        of_stage().for_each(|i| used[i] = true);
        let fitting = of_stage().find(|i| sizes.is_of(&profiles[*i].key.gpu));
        let Some(at) = fitting.or_else(|| of_stage().next()) else {
            chosen.push(None);
            continue;
        };
        let profile = &profiles[at];
        if fitting.is_none() && !stage.no_gpu {
            remarks.push(format!(
                "{fingerprint} was measured on {}; it is taken to do the same on {}",
                profile.key.gpu,
                sizes.model()
            ));
        }
        let known = profile::profile(profile).map_err(|bad| bad.within(&profile.key.stage))?;
        chosen.push(Some(known));
    }
    for (profile, _) in profiles.iter().zip(used).filter(|(_, used)| !used) {
        let stages = spec.stages.iter().map(|stage| spec.fingerprint(stage));
        remarks.push(format!(
            "the profile of {} is of no stage of this job ({})",
            profile.key.stage,
            stages.collect::<Vec<_>>().join(", ")
        ));
    }
    Ok((chosen, remarks))
}

/// What is short, and what to do about it.
fn refused(spec: &JobSpec, refusal: &Refusal) -> Failure {
    use evenkeel_core::allocate::Resource;
    let mut failure = Failure::new(format!(
        "cannot plan job {}: no split fits: {refusal}",
        spec.name
    ));
    let (short_of, more) = match refusal.shortage().map(|short| short.resource) {
        Some(Resource::Cores) => ("cores", "--cores"),
        Some(Resource::Sms) => ("sms", "--gpu or --sms"),
        Some(Resource::Memory) => ("memory", "--gpu or --gpu-memory"),
        Some(Resource::Gpus) => ("gpus", "--gpus (and --gpu for their kind)"),
        None => return failure,
    };
    failure.short_of = Some(short_of.to_owned());
    failure.hint(format!(
        "Plan with a larger node ({more}), or ask for less in the job file."
    ))
}

/// A plan in the client's words, as the daemon would tell it: without vectors for the workers.
fn told(spec: &job::JobSpec, plan: &job::Plan) -> Plan {
    let stages = spec.stages.iter().zip(&plan.stages);
    let binding = spec.stages.get(usize::from(plan.binding.0));
    Plan {
        stages: stages
            .map(|(stage, share)| StagePlan {
                stage: stage.name.to_string(),
                cores: share.cores,
                sms: share.sms.0,
                cap_sms: share.cap.0,
                memory_bytes: share.memory.0,
                batch: share.batch,
                predicted_units_per_s: share.predicted.get(),
                workers: Vec::new(),
            })
            .collect(),
        gpus: plan.gpus.iter().map(|id| id.0.into()).collect(),
        rollout_units_per_s: plan.t_r.get(),
        train_units_per_s: plan.t_train.get(),
        units_per_s: plan.theta.get(),
        binding_stage: binding.map(|s| s.name.to_string()).unwrap_or_default(),
        by: plan.by.to_string(),
        why: plan.why.clone(),
    }
}

#[cfg(test)]
mod tests;
