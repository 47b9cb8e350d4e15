//! What a job declares, parsed; every default is filled in.
use evenkeel_core::id::GpuId;
use evenkeel_core::job::{
    BATCH_MAX, BATCHES_MAX, CORES_MAX, Detector, JobSpec, MEMORY_MAX, PROCESSES_MAX, Policy,
    RULE_MS_MAX, RULE_WINDOWS_MAX, RebalanceSpec, Role, SMS_MAX, STAGES_MAX, ShrinkFallback,
    SmMode, StageSpec, WEIGHT_RANGE, WORKERS_MAX,
};
use evenkeel_core::unit::{Bytes, Millis, Sms};
use evenkeel_proto::v1 as pb;

use super::vector::gpu_id;
use super::{Bad, at_most, name, optional_name, or_default, resize, within};
use crate::api::limits::JOB_GPUS_MAX;

/// "No limit of its own".
pub(super) const NO_LIMIT: u32 = u32::MAX;

/// A job as declared.
pub(in crate::api) fn spec(w: &pb::JobSpec) -> Result<JobSpec, Bad> {
    let stages = stages(w)?;
    let needs_gpu = stages
        .iter()
        .any(|s| s.sms.1 > Sms(0) || s.memory > Bytes(0));
    Ok(JobSpec {
        name: name("name", &w.name)?,
        unit: name("unit", &w.unit)?,
        priority: w.priority,
        weight: weight(w.weight)?,
        gpus: gpus(&w.gpus)?,
        gpu_count: gpu_count(w.gpu_count, needs_gpu && w.gpus.is_empty())?,
        groups: groups(w.groups)?,
        policy: policy(&w.policy)?.unwrap_or_default(),
        sm_mode: sm_mode(&w.sm_mode)?,
        rebalance: match &w.rebalance {
            Some(rules) => rebalance(rules).map_err(|e| e.within("rebalance"))?,
            None => RebalanceSpec::default(),
        },
        stages,
    })
}

fn gpus(w: &[u32]) -> Result<Vec<GpuId>, Bad> {
    if w.len() > JOB_GPUS_MAX {
        let why = format!("{} GPUs; at most {JOB_GPUS_MAX} can be named", w.len());
        return Err(Bad::new("gpus", why));
    }
    let mut gpus = w
        .iter()
        .map(|n| gpu_id("gpus", *n))
        .collect::<Result<Vec<_>, _>>()?;
    gpus.sort_unstable();
    if let Some(twice) = gpus.windows(2).find(|two| two[0] == two[1]) {
        return Err(Bad::new("gpus", format!("{} is named twice", twice[0])));
    }
    Ok(gpus)
}

fn gpu_count(n: u32, needed: bool) -> Result<u16, Bad> {
    let n = if n == 0 && needed { 1 } else { n };
    match u16::try_from(n) {
        Ok(n) if usize::from(n) <= JOB_GPUS_MAX => Ok(n),
        _ => Err(Bad::new(
            "gpu_count",
            format!("{n} is more than {JOB_GPUS_MAX}"),
        )),
    }
}

fn weight(given: Option<f64>) -> Result<f64, Bad> {
    let (least, most) = WEIGHT_RANGE;
    match given.unwrap_or(1.0) {
        w if w >= least && w <= most => Ok(w),
        w => Err(Bad::new("weight", format!("{w} is not {least} to {most}"))),
    }
}

fn groups(n: u32) -> Result<u32, Bad> {
    match or_default(n, 2) {
        n @ 1..=2 => Ok(n),
        n => {
            let why = format!("{n}: 1 runs the rollout's stages in turn, 2 overlaps them");
            Err(Bad::new("groups", why))
        }
    }
}

/// Empty: none given.
pub(in crate::api) fn policy(text: &str) -> Result<Option<Policy>, Bad> {
    match text {
        "" => Ok(None),
        "waterfill" => Ok(Some(Policy::Waterfill)),
        "ebrl" => Ok(Some(Policy::Ebrl)),
        other => {
            let why = format!(
                "`{}` is unknown; use waterfill or ebrl",
                super::shortened(other)
            );
            Err(Bad::new("policy", why))
        }
    }
}

fn sm_mode(text: &str) -> Result<SmMode, Bad> {
    match text {
        "" | "reserve" => Ok(SmMode::Reserve),
        "cap" => Ok(SmMode::Cap),
        other => {
            let why = format!(
                "`{}` is unknown; use reserve or cap",
                super::shortened(other)
            );
            Err(Bad::new("sm_mode", why))
        }
    }
}

fn stages(w: &pb::JobSpec) -> Result<Vec<StageSpec>, Bad> {
    if w.stages.is_empty() || w.stages.len() > STAGES_MAX {
        let why = format!("{} stages; a job has 1 to {STAGES_MAX}", w.stages.len());
        return Err(Bad::new("stages", why));
    }
    let mut stages: Vec<StageSpec> = Vec::with_capacity(w.stages.len());
    for (i, s) in w.stages.iter().enumerate() {
        let stage = stage(s).map_err(|e| e.within(format!("stages[{i}]")))?;
        if stages.iter().any(|other| other.name == stage.name) {
            let why = format!("two stages are named {}", stage.name);
            return Err(Bad::new(format!("stages[{i}].name"), why));
        }
        stages.push(stage);
    }
    Ok(stages)
}

fn stage(w: &pb::StageSpec) -> Result<StageSpec, Bad> {
    let workers = or_default(w.workers, 1);
    if workers > WORKERS_MAX {
        let why = format!("{workers} is more than {WORKERS_MAX}");
        return Err(Bad::new("workers", why));
    }
    if w.batches.len() > BATCHES_MAX {
        let why = format!(
            "{} batch sizes; at most {BATCHES_MAX} are tried",
            w.batches.len()
        );
        return Err(Bad::new("batches", why));
    }
    if w.batches.contains(&0) {
        return Err(Bad::new("batches", "a batch size is at least 1"));
    }
    for batch in &w.batches {
        at_most("batches", *batch, BATCH_MAX)?;
    }
    let sms = if w.no_gpu {
        if w.min_sms != 0 || w.max_sms != 0 || w.memory_bytes != 0 {
            let why = "the stage has no_gpu set: leave min_sms, max_sms and memory_bytes out";
            return Err(Bad::new("no_gpu", why));
        }
        (0, 0)
    } else {
        range(("min_sms", w.min_sms), ("max_sms", w.max_sms), SMS_MAX)?
    };
    let cores = if w.no_cores {
        if w.min_cores != 0 || w.max_cores != 0 {
            let why = "the stage has no_cores set: leave min_cores and max_cores out";
            return Err(Bad::new("no_cores", why));
        }
        (0, 0)
    } else {
        range(
            ("min_cores", w.min_cores),
            ("max_cores", w.max_cores),
            CORES_MAX,
        )?
    };
    Ok(StageSpec {
        name: name("name", &w.name)?,
        role: role(w.role)?,
        workers,
        processes: at_most("processes", or_default(w.processes, 1), PROCESSES_MAX)?,
        cores,
        sms: (Sms(sms.0), Sms(sms.1)),
        memory: Bytes(at_most("memory_bytes", w.memory_bytes, MEMORY_MAX)?),
        batches: w.batches.clone(),
        synchronous: w.synchronous,
        resize: resize("resize", w.resize)?,
        profile: optional_name("profile", &w.profile)?,
    })
}

fn range(least: (&str, u32), most: (&str, u32), limit: u32) -> Result<(u32, u32), Bad> {
    let low = at_most(least.0, least.1, limit)?;
    let high = match most.1 {
        0 => NO_LIMIT,
        n => at_most(most.0, n, limit)?,
    };
    if low > high {
        let why = format!("{high} is less than the least, {low}");
        return Err(Bad::new(most.0, why));
    }
    Ok((low, high))
}

fn role(w: i32) -> Result<Role, Bad> {
    match pb::StageRole::try_from(w) {
        Ok(pb::StageRole::Simulation) => Ok(Role::Simulation),
        Ok(pb::StageRole::Generation) => Ok(Role::Generation),
        Ok(pb::StageRole::Training) => Ok(Role::Training),
        Ok(pb::StageRole::Inference) => Ok(Role::Inference),
        Ok(pb::StageRole::Other) => Ok(Role::Other),
        Ok(pb::StageRole::Unspecified) | Err(_) => {
            let why =
                "say what the stage does: simulation, generation, training, inference or other";
            Err(Bad::new("role", why))
        }
    }
}

/// When a job's shares may move.
pub(in crate::api) fn rebalance(w: &pb::RebalanceSpec) -> Result<RebalanceSpec, Bad> {
    let default = RebalanceSpec::default();
    let time = |field: &str, given: Option<u64>, default: Millis| match given {
        Some(ms) if ms > RULE_MS_MAX => {
            Err(Bad::new(field, format!("{ms} ms is more than a year")))
        }
        given => Ok(given.map_or(default, Millis)),
    };
    let count = |field: &str, given: Option<u32>, default: u32| match given {
        Some(n) if n > RULE_WINDOWS_MAX => Err(Bad::new(
            field,
            format!("{n} windows are more than {RULE_WINDOWS_MAX}"),
        )),
        given => Ok(given.unwrap_or(default)),
    };
    Ok(RebalanceSpec {
        enabled: !w.frozen,
        detector: detector(w)?,
        cooldown_windows: count(
            "cooldown_windows",
            w.cooldown_windows,
            default.cooldown_windows,
        )?,
        horizon: time("horizon_ms", w.horizon_ms, default.horizon)?,
        restart_cost: time("restart_cost_ms", w.restart_cost_ms, default.restart_cost)?,
        min_gain: within(
            "min_gain",
            w.min_gain.unwrap_or(default.min_gain),
            0.0,
            100.0,
        )?,
        shrink_timeout: time(
            "shrink_timeout_ms",
            w.shrink_timeout_ms,
            default.shrink_timeout,
        )?,
        fallback: if w.escalate {
            ShrinkFallback::Escalate
        } else {
            ShrinkFallback::Wait
        },
        refit_windows: count("refit_windows", w.refit_windows, default.refit_windows)?,
    })
}

fn detector(w: &pb::RebalanceSpec) -> Result<Detector, Bad> {
    match w.detector.as_str() {
        "" | "streak" => {
            let windows = w.windows.unwrap_or(20);
            if windows == 0 || windows > RULE_WINDOWS_MAX {
                let why = format!("{windows} is not 1 to {RULE_WINDOWS_MAX}");
                return Err(Bad::new("windows", why));
            }
            let gap = within("gap", w.gap.unwrap_or(0.15), 0.0, 1.0)?;
            Ok(Detector::Streak { gap, windows })
        }
        "cusum" => Ok(Detector::Cusum {
            slack: within("cusum_slack", w.cusum_slack.unwrap_or(0.05), 0.0, 100.0)?,
            threshold: within(
                "cusum_threshold",
                w.cusum_threshold.unwrap_or(0.5),
                1e-9,
                1e6,
            )?,
        }),
        other => {
            let why = format!(
                "`{}` is unknown; use streak or cusum",
                super::shortened(other)
            );
            Err(Bad::new("detector", why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::declared::spec_wire;
    use super::*;

    fn job() -> pb::JobSpec {
        pb::JobSpec {
            name: "pick".into(),
            unit: "env_step".into(),
            stages: vec![
                pb::StageSpec {
                    name: "sim".into(),
                    role: pb::StageRole::Simulation.into(),
                    no_gpu: true,
                    ..Default::default()
                },
                pb::StageSpec {
                    name: "train".into(),
                    role: pb::StageRole::Training.into(),
                    memory_bytes: 1 << 30,
                    batches: vec![32, 64],
                    ..Default::default()
                },
            ],
            ..Default::default()
        }
    }

    fn check(name: &str, change: impl FnOnce(&mut pb::JobSpec), field: Option<&str>) {
        let mut w = job();
        change(&mut w);
        let parsed = spec(&w);
        assert_eq!(parsed.err().map(|b| b.field).as_deref(), field, "{name}");
    }

    fn rules(change: impl FnOnce(&mut pb::RebalanceSpec)) -> Option<pb::RebalanceSpec> {
        let mut rules = pb::RebalanceSpec::default();
        change(&mut rules);
        Some(rules)
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn bad_fields_are_named() {
        check("all good", |_| {}, None);
        check("no name", |w| w.name.clear(), Some("name"));
        check("no unit", |w| w.unit.clear(), Some("unit"));
        check("no stages", |w| w.stages.clear(), Some("stages"));
        check(
            "nine stages",
            |w| w.stages = vec![w.stages[0].clone(); 9],
            Some("stages"),
        );
        check(
            "two of a name",
            |w| w.stages[1].name = "sim".into(),
            Some("stages[1].name"),
        );
        check("no role", |w| w.stages[0].role = 0, Some("stages[0].role"));
        check("role 77", |w| w.stages[0].role = 77, Some("stages[0].role"));
        check(
            "least above most",
            |w| {
                (w.stages[1].min_cores, w.stages[1].max_cores) = (3, 2);
            },
            Some("stages[1].max_cores"),
        );
        check(
            "no GPU, but SMs",
            |w| w.stages[0].min_sms = 1,
            Some("stages[0].no_gpu"),
        );
        check("no cores", |w| w.stages[1].no_cores = true, None);
        check(
            "no cores, but a least",
            |w| (w.stages[1].no_cores, w.stages[1].min_cores) = (true, 1),
            Some("stages[1].no_cores"),
        );
        check(
            "no cores, but a most",
            |w| (w.stages[1].no_cores, w.stages[1].max_cores) = (true, 1),
            Some("stages[1].no_cores"),
        );
        check(
            "batch 0",
            |w| w.stages[1].batches = vec![0],
            Some("stages[1].batches"),
        );
        check(
            "cores",
            |w| w.stages[0].min_cores = u32::MAX,
            Some("stages[0].min_cores"),
        );
        check(
            "SMs",
            |w| w.stages[1].max_sms = u32::MAX,
            Some("stages[1].max_sms"),
        );
        check(
            "memory",
            |w| w.stages[1].memory_bytes = u64::MAX,
            Some("stages[1].memory_bytes"),
        );
        check(
            "workers",
            |w| w.stages[1].workers = u32::MAX,
            Some("stages[1].workers"),
        );
        check("policy", |w| w.policy = "best".into(), Some("policy"));
        check("groups", |w| w.groups = 3, Some("groups"));
        for weight in [0.0, -1.0, 1e9, f64::INFINITY, f64::NAN] {
            check("weight", |w| w.weight = Some(weight), Some("weight"));
        }
        check("a GPU twice", |w| w.gpus = vec![1, 1], Some("gpus"));
        check("GPU 65536", |w| w.gpus = vec![65_536], Some("gpus"));
        check(
            "NaN gap",
            |w| w.rebalance = rules(|r| r.gap = Some(f64::NAN)),
            Some("rebalance.gap"),
        );
        check(
            "gain",
            |w| w.rebalance = rules(|r| r.min_gain = Some(-0.1)),
            Some("rebalance.min_gain"),
        );
        check(
            "windows",
            |w| w.rebalance = rules(|r| r.windows = Some(0)),
            Some("rebalance.windows"),
        );
        check(
            "horizon",
            |w| w.rebalance = rules(|r| r.horizon_ms = Some(u64::MAX)),
            Some("rebalance.horizon_ms"),
        );
    }

    #[test]
    fn what_is_told_reads_back_as_the_same() {
        let parsed = spec(&job()).unwrap();
        assert_eq!(parsed.gpu_count, 1, "a stage needs a GPU");
        assert_eq!(parsed.stages[0].sms, (Sms(0), Sms(0)));
        assert_eq!(spec(&spec_wire(&parsed)).unwrap(), parsed);
        let mut hosted = job();
        hosted.stages[1].no_cores = true;
        let parsed = spec(&hosted).unwrap();
        assert_eq!(parsed.stages[1].cores, (0, 0));
        assert!(parsed.stages[0].cores.1 > 0, "0 on the wire is no limit");
        assert_eq!(spec(&spec_wire(&parsed)).unwrap(), parsed);
        let mut frozen = job();
        frozen.rebalance = rules(|r| {
            r.frozen = true;
            r.detector = "cusum".into();
        });
        let parsed = spec(&frozen).unwrap();
        assert!(!parsed.rebalance.enabled);
        assert_eq!(spec(&spec_wire(&parsed)).unwrap(), parsed);
    }
}
