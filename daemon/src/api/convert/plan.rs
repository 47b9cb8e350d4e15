//! Plans for the wire, and why they are so.
use evenkeel_core::job::{JobSpec, Plan};
use evenkeel_proto::v1 as pb;
use serde_json::Value;

use super::vector::{Around, vector};
use crate::handle::EventRecord;

/// A plan, with one vector for each worker.
pub(in crate::api) fn plan(spec: &JobSpec, p: &Plan, around: &Around<'_>) -> pb::Plan {
    let stage = |(i, s): (usize, &evenkeel_core::job::StagePlan)| pb::StagePlan {
        stage: spec
            .stages
            .get(i)
            .map(|s| s.name.to_string())
            .unwrap_or_default(),
        cores: s.cores,
        sms: s.sms.0,
        cap_sms: s.cap.0,
        memory_bytes: s.memory.0,
        batch: s.batch,
        predicted_units_per_s: s.predicted.get(),
        workers: s.workers.iter().map(|v| vector(v, around)).collect(),
    };
    let binding = spec.stages.get(usize::from(p.binding.0));
    pb::Plan {
        stages: p.stages.iter().enumerate().map(stage).collect(),
        gpus: p.gpus.iter().map(|g| g.0.into()).collect(),
        rollout_units_per_s: p.t_r.get(),
        train_units_per_s: p.t_train.get(),
        units_per_s: p.theta.get(),
        binding_stage: binding.map(|s| s.name.to_string()).unwrap_or_default(),
        by: p.by.to_string(),
        why: p.why.clone(),
    }
}

/// Why a job's shares are as they are, in sentences; `waits_for` says what it waits for, if it does.
pub(in crate::api) fn sentences(job: &pb::Job, waits_for: Option<String>) -> Vec<String> {
    let mut all = Vec::new();
    match &job.plan {
        Some(plan) => {
            all.push(format!("The split in force was computed by {}.", plan.by));
            all.extend(plan.why.iter().cloned());
        }
        None => all.push("The job has no split yet.".into()),
    }
    all.extend(waits_for);
    let unit = job.spec.as_ref().map_or("", |s| s.unit.as_str());
    if let Some(b) = job.balance.as_ref().filter(|b| b.windows > 0) {
        let slower = if b.rollout_units_per_s < b.train_units_per_s {
            "the rollout"
        } else {
            "training"
        };
        all.push(format!(
            "Measured over {} windows: the rollout does {:.1} and training {:.1} {unit} per busy second; the gap is \
             {:.1} %, {slower} is slower.",
            b.windows,
            b.rollout_units_per_s,
            b.train_units_per_s,
            b.gap * 100.0
        ));
        if !b.last.is_empty() {
            all.push(format!("Last decision: {}", b.last));
        }
    } else if job.plan.is_some() {
        all.push("Nothing has been measured since the daemon started.".into());
    }
    let silence = job.balance.as_ref().map(|b| b.waits_for.clone());
    all.extend(silence.filter(|s| !s.is_empty()));
    if job.moving {
        all.push("A move is under way: not every worker has confirmed its new share.".into());
    }
    all.push(match job.moves {
        0 if job.plan.is_none() => return all,
        0 => "Its shares have not moved yet.".into(),
        1 => "Its shares have moved once.".into(),
        n => format!("Its shares have moved {n} times."),
    });
    all
}

/// One decision about a job's shares, from the audit trail.
pub(in crate::api) fn decision(record: &EventRecord) -> pb::Decision {
    let event: Value = serde_json::from_str(&record.json).unwrap_or_default();
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let (kind, reason) = match record.kind.as_str() {
        "job_admitted" => {
            let by = text(&event["plan"]["by"]).unwrap_or_default();
            (
                "admitted",
                format!("admitted with a split computed by {by}"),
            )
        }
        "job_replanned" => ("moved", text(&event["reason"]).unwrap_or_default()),
        "job_stayed" => ("stayed", text(&event["reason"]).unwrap_or_default()),
        "job_refitted" => ("refitted", refitted(&event)),
        other => (other, String::new()),
    };
    pb::Decision {
        event_seq: record.seq,
        unix_ms: record.unix_ms,
        kind: kind.to_owned(),
        reason,
    }
}

fn refitted(event: &Value) -> String {
    let factors = event["scale"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let factors: Vec<String> = (factors.iter())
        .filter_map(Value::as_f64)
        .map(|f| format!("{f:.2}"))
        .collect();
    format!(
        "curves refitted from live rates; measured ÷ profiled by stage: {}",
        factors.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_stage_is_among_the_reasons() {
        let silent =
            "Nothing is measured, so nothing can move: train has reported no work for 42 s.";
        let job = |waits_for: &str| pb::Job {
            balance: Some(pb::Balance {
                waits_for: waits_for.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert!(sentences(&job(silent), None).iter().any(|s| s == silent));
        assert!(sentences(&job(""), None).iter().all(|s| !s.is_empty()));
    }
}
