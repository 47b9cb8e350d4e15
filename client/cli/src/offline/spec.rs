//! A job in the core's words. What the daemon checks at its door is checked here, too: the core trusts what it is given.

use evenkeel_client as client;
use evenkeel_core::command::Rejection;
use evenkeel_core::decide::job::check;
use evenkeel_core::grant::Resize;
use evenkeel_core::id::{GpuId, Name};
use evenkeel_core::job::{
    BATCH_MAX, BATCHES_MAX, CORES_MAX, Detector, JobSpec, MEMORY_MAX, PROCESSES_MAX, Policy,
    RULE_MS_MAX, RULE_WINDOWS_MAX, RebalanceSpec, Role, SMS_MAX, STAGES_MAX, SmMode, StageSpec,
    WEIGHT_RANGE, WORKERS_MAX,
};
use evenkeel_core::unit::{Bytes, Millis, Sms};

use super::node::GPUS_MAX;
use crate::fail::Failure;

/// "No limit of its own".
const NO_LIMIT: u32 = u32::MAX;

/// What is wrong with a job, and where in it.
#[derive(Debug, PartialEq)]
pub(crate) struct Bad {
    /// Which stage, from 0; none: the job itself.
    pub(crate) stage: Option<usize>,
    /// The key as a job file has it.
    pub(crate) key: &'static str,
    /// Whose it is, what is wrong, and what would be right.
    pub(crate) why: String,
}

/// What is wrong with a key of a job or of one of its stages.
#[derive(Clone, Copy)]
struct Of<'a> {
    stage: Option<usize>,
    name: &'a str,
}

impl Of<'_> {
    fn bad(self, key: &'static str, what: impl std::fmt::Display) -> Bad {
        let whose = self.stage.map_or("job", |_| "stage");
        Bad {
            stage: self.stage,
            key,
            why: format!("{whose} {}: {what}", self.name),
        }
    }
    fn name(self, key: &'static str, text: &str) -> Result<Name, Bad> {
        Name::new(text).map_err(|error| self.bad(key, format_args!("{key} `{text}`: {error}")))
    }
    fn at_most<T: PartialOrd + std::fmt::Display>(
        self,
        key: &'static str,
        n: T,
        most: T,
    ) -> Result<T, Bad> {
        if n > most {
            return Err(self.bad(key, format_args!("{key} = {n} is more than {most}")));
        }
        Ok(n)
    }
    fn within(self, key: &'static str, x: f64, least: f64, most: f64) -> Result<f64, Bad> {
        if x.is_finite() && x >= least && x <= most {
            return Ok(x);
        }
        Err(self.bad(key, format_args!("{key} = {x} is not {least} to {most}")))
    }
    /// What the core says of it.
    fn refused(self, rejection: Rejection) -> Bad {
        match rejection {
            Rejection::Invalid { field, why } => self.bad(field, why),
            other => self.bad("", other),
        }
    }
}

/// Keys of a job file's own table; the others that no stage has are of its `[rebalance]`.
const OF_JOB: [&str; 10] = [
    "name",
    "unit",
    "priority",
    "weight",
    "gpus",
    "gpu_count",
    "groups",
    "stages",
    "rebalance",
    "",
];

impl Bad {
    /// The key's path in a job file, such as `stages[2].min_sms`.
    pub(crate) fn path(&self) -> String {
        let key = self.key;
        match self.stage {
            Some(i) if key == "stages" || key.is_empty() => format!("stages[{i}]"),
            Some(i) => format!("stages[{i}].{key}"),
            None if OF_JOB.contains(&key) => key.to_owned(),
            None => format!("rebalance.{key}"),
        }
    }
}

impl From<Bad> for Failure {
    fn from(bad: Bad) -> Self {
        Self::usage(bad.why)
    }
}

/// A job as declared.
pub(super) fn declared(spec: &client::JobSpec) -> Result<JobSpec, Bad> {
    let of = Of {
        stage: None,
        name: &spec.name,
    };
    let (n, least) = (spec.stages.len(), 1);
    if !(least..=STAGES_MAX).contains(&n) {
        return Err(of.bad(
            "stages",
            format_args!("{n} stages; it has {least} to {STAGES_MAX}"),
        ));
    }
    let stages = stages(spec)?;
    let gpus = gpus(of, &spec.gpus)?;
    let needs = stages
        .iter()
        .any(|s| s.sms.1 > Sms(0) || s.memory > Bytes(0));
    let gpu_count = match spec.gpu_count {
        0 => u32::from(needs && gpus.is_empty()),
        n => n,
    };
    let gpus_max = u32::try_from(GPUS_MAX).unwrap_or(u32::MAX);
    of.at_most("gpu_count", gpu_count, gpus_max)?;
    let job = JobSpec {
        name: of.name("name", &spec.name)?,
        unit: of.name("unit", &spec.unit)?,
        priority: spec.priority,
        weight: of.within("weight", spec.weight, WEIGHT_RANGE.0, WEIGHT_RANGE.1)?,
        gpus,
        gpu_count: u16::try_from(gpu_count).unwrap_or(u16::MAX),
        groups: if spec.groups == 0 { 2 } else { spec.groups },
        policy: match spec.policy {
            client::Policy::Waterfill => Policy::Waterfill,
            client::Policy::Ebrl => Policy::Ebrl,
        },
        sm_mode: match spec.sm_mode {
            client::SmMode::Reserve => SmMode::Reserve,
            client::SmMode::Cap => SmMode::Cap,
        },
        rebalance: rules(of, &spec.rebalance)?,
        stages,
    };
    // Each stage by itself first: then it is known which one is meant.
    for (i, stage) in job.stages.iter().enumerate() {
        let alone = JobSpec {
            stages: vec![stage.clone()],
            groups: 1,
            rebalance: RebalanceSpec::default(),
            ..job.clone()
        };
        check(&alone).map_err(|why| {
            let of = Of {
                stage: Some(i),
                ..of
            };
            // The core's sentence names the stage.
            Bad {
                why: why_of(&why),
                ..of.refused(why)
            }
        })?;
    }
    check(&job).map_err(|why| of.refused(why))?;
    Ok(job)
}

/// Its stages, each by another name.
fn stages(spec: &client::JobSpec) -> Result<Vec<StageSpec>, Bad> {
    let mut stages: Vec<StageSpec> = Vec::with_capacity(spec.stages.len());
    for (i, said) in spec.stages.iter().enumerate() {
        let stage = stage(i, said)?;
        if let Some(first) = stages.iter().position(|s| s.name == stage.name) {
            let of = Of {
                stage: Some(i),
                name: &said.name,
            };
            let what = format_args!("its name is that of stages[{first}], too; give each its own");
            return Err(of.bad("name", what));
        }
        stages.push(stage);
    }
    Ok(stages)
}

/// The sentence of a refusal, without the field.
fn why_of(rejection: &Rejection) -> String {
    match rejection {
        Rejection::Invalid { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

fn gpus(of: Of<'_>, ids: &[u32]) -> Result<Vec<GpuId>, Bad> {
    let gpus_max = usize::try_from(GPUS_MAX).unwrap_or(usize::MAX);
    of.at_most("gpus", ids.len(), gpus_max)?;
    let gpu = |id: &u32| match u16::try_from(*id) {
        Ok(id) => Ok(GpuId(id)),
        Err(_) => Err(of.bad("gpus", format_args!("there is no GPU {id}"))),
    };
    let mut gpus: Vec<GpuId> = ids.iter().map(gpu).collect::<Result<_, Bad>>()?;
    gpus.sort_unstable();
    match gpus.windows(2).find(|two| two[0] == two[1]) {
        Some(twice) => Err(of.bad("gpus", format_args!("{} is named twice", twice[0]))),
        None => Ok(gpus),
    }
}

fn stage(at: usize, spec: &client::StageSpec) -> Result<StageSpec, Bad> {
    let of = Of {
        stage: Some(at),
        name: &spec.name,
    };
    of.at_most("workers", spec.workers, WORKERS_MAX)?;
    of.at_most("batches", spec.batches.len(), BATCHES_MAX)?;
    for batch in &spec.batches {
        of.at_most("batches", *batch, BATCH_MAX)?;
    }
    let sms = if spec.no_gpu || spec.max_sms == Some(0) {
        if spec.min_sms > 0 || spec.max_sms.is_some_and(|n| n > 0) || spec.memory_bytes > 0 {
            let why = "it says no_gpu: leave min_sms, max_sms and memory out";
            return Err(of.bad("no_gpu", why));
        }
        (0, 0)
    } else {
        let (least, most) = (spec.min_sms, spec.max_sms);
        range(of, ["min_sms", "max_sms"], least, most, SMS_MAX)?
    };
    let cores = if spec.no_cores || spec.max_cores == Some(0) {
        if spec.min_cores > 0 || spec.max_cores.is_some_and(|n| n > 0) {
            let why = "it says no_cores: leave min_cores and max_cores out";
            return Err(of.bad("no_cores", why));
        }
        (0, 0)
    } else {
        let (least, most) = (spec.min_cores, spec.max_cores);
        range(of, ["min_cores", "max_cores"], least, most, CORES_MAX)?
    };
    Ok(StageSpec {
        name: of.name("name", &spec.name)?,
        role: match spec.role {
            client::Role::Simulation => Role::Simulation,
            client::Role::Generation => Role::Generation,
            client::Role::Training => Role::Training,
            client::Role::Inference => Role::Inference,
            client::Role::Other => Role::Other,
        },
        workers: spec.workers.max(1),
        processes: of.at_most("processes", spec.processes.max(1), PROCESSES_MAX)?,
        cores,
        sms: (Sms(sms.0), Sms(sms.1)),
        memory: Bytes(of.at_most("memory", spec.memory_bytes, MEMORY_MAX)?),
        batches: spec.batches.clone(),
        synchronous: spec.synchronous,
        resize: Resize::default(),
        profile: match &spec.profile {
            Some(profile) => Some(of.name("profile", profile)?),
            None => None,
        },
    })
}

/// Least and most; none, or 0: no limit.
fn range(
    of: Of<'_>,
    [low, high]: [&'static str; 2],
    least: u32,
    most: Option<u32>,
    limit: u32,
) -> Result<(u32, u32), Bad> {
    let most = most.filter(|n| *n > 0);
    of.at_most(low, least, limit)?;
    of.at_most(high, most.unwrap_or(0), limit)?;
    let most = most.unwrap_or(NO_LIMIT);
    if least > most {
        let why = format_args!("{low} = {least} is more than {high} = {most}");
        return Err(of.bad(high, why));
    }
    Ok((least, most))
}

/// When its shares may move. It has no part in a first plan, but may be wrong all the same.
fn rules(of: Of<'_>, spec: &client::RebalanceSpec) -> Result<RebalanceSpec, Bad> {
    let default = RebalanceSpec::default();
    let time = |key, given: Option<u64>, or: Millis| match given {
        Some(ms) if ms > RULE_MS_MAX => Err(of.bad(key, format_args!("{key} is more than a year"))),
        given => Ok(given.map_or(or, Millis)),
    };
    let count =
        |key, given: Option<u32>, or| of.at_most(key, given.unwrap_or(or), RULE_WINDOWS_MAX);
    let detector = match spec.detector {
        client::Detector::Streak => Detector::Streak {
            gap: of.within("gap", spec.gap.unwrap_or(0.15), 0.0, 1.0)?,
            windows: match count("windows", spec.windows, 20)? {
                0 => return Err(of.bad("windows", "windows = 0: it is at least 1")),
                n => n,
            },
        },
        client::Detector::Cusum => Detector::Cusum {
            slack: of.within("cusum_slack", spec.cusum_slack.unwrap_or(0.1), 0.0, 100.0)?,
            threshold: {
                let threshold = spec.cusum_threshold.unwrap_or(0.5);
                of.within("cusum_threshold", threshold, 1e-9, 1e6)?
            },
        },
    };
    Ok(RebalanceSpec {
        detector,
        cooldown_windows: count(
            "cooldown_windows",
            spec.cooldown_windows,
            default.cooldown_windows,
        )?,
        horizon: time("horizon", spec.horizon_ms, default.horizon)?,
        restart_cost: time("restart_cost", spec.restart_cost_ms, default.restart_cost)?,
        min_gain: of.within(
            "min_gain",
            spec.min_gain.unwrap_or(default.min_gain),
            0.0,
            100.0,
        )?,
        shrink_timeout: time(
            "shrink_timeout",
            spec.shrink_timeout_ms,
            default.shrink_timeout,
        )?,
        refit_windows: count("refit_windows", spec.refit_windows, default.refit_windows)?,
        ..default
    })
}
