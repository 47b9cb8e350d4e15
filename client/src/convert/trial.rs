//! Trials by running workers.
use std::time::Duration;

use evenkeel_proto::v1 as pb;

use super::lease_ref;
use crate::clock::millis;
use crate::model::{LeaseRef, Trial, TrialAnswer, TrialRequest};

/// Bytes of a failure that the daemon takes.
const FAILURE_MAX: usize = 500;

/// A trial with the lease of the worker that is asked.
pub(crate) fn trial(w: pb::Trial) -> Option<(LeaseRef, Trial)> {
    let lease = w.lease?;
    let lease = LeaseRef {
        lease_id: lease.lease_id,
        fence: lease.fence,
    };
    let trial = Trial {
        id: w.trial_id,
        cores: w.cores,
        sms: w.sms,
        batch: w.batch.max(1),
        replicas: w.replicas.max(1),
        warmup: Duration::from_millis(w.warmup_ms),
        measure: Duration::from_millis(w.measure_ms),
    };
    Some((lease, trial))
}

/// An empty stage takes the offer back.
pub(crate) fn trial_offer(lease: LeaseRef, stage: String) -> pb::TrialOffer {
    pb::TrialOffer {
        lease: Some(lease_ref(lease)),
        stage,
    }
}

/// What is no measurement is a failure: the daemon would not take it, and whoever waits would wait on.
pub(crate) fn trial_result(lease: LeaseRef, trial_id: u64, answer: TrialAnswer) -> pb::TrialResult {
    let told = pb::TrialResult {
        lease: Some(lease_ref(lease)),
        trial_id,
        ..Default::default()
    };
    match answer {
        TrialAnswer::Measured {
            units_per_s,
            memory_bytes,
        } if units_per_s.is_finite() && units_per_s >= 0.0 => pb::TrialResult {
            units_per_s,
            memory_bytes,
            ..told
        },
        TrialAnswer::Measured { units_per_s, .. } => pb::TrialResult {
            failure: format!("the worker measured {units_per_s} units/s, which is no throughput"),
            ..told
        },
        TrialAnswer::Failed { why } => pb::TrialResult {
            failure: match why.trim() {
                "" => "the worker does not say why".to_owned(),
                why => why[..why.floor_char_boundary(FAILURE_MAX)].to_owned(),
            },
            ..told
        },
    }
}

impl From<TrialRequest> for pb::RunTrialRequest {
    fn from(r: TrialRequest) -> Self {
        Self {
            stage: r.stage,
            cores: r.trial.cores,
            sms: r.trial.sms,
            batch: r.trial.batch,
            replicas: r.trial.replicas,
            warmup_ms: millis(r.trial.warmup),
            measure_ms: millis(r.trial.measure),
            patience_ms: millis(r.patience),
        }
    }
}

impl From<pb::RunTrialResponse> for TrialAnswer {
    fn from(w: pb::RunTrialResponse) -> Self {
        match w.failure.is_empty() {
            true => Self::Measured {
                units_per_s: w.units_per_s,
                memory_bytes: w.memory_bytes,
            },
            false => Self::Failed { why: w.failure },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_measurement_is_a_failure_that_the_daemon_takes() {
        let lease = LeaseRef {
            lease_id: 3,
            fence: 2,
        };
        let measured = |units_per_s| TrialAnswer::Measured {
            units_per_s,
            memory_bytes: 7,
        };
        let told = trial_result(lease, 9, measured(5.0));
        assert_eq!(
            (told.trial_id, told.units_per_s, told.failure.len()),
            (9, 5.0, 0)
        );
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let told = trial_result(lease, 9, measured(bad));
            assert!(told.units_per_s == 0.0 && told.failure.contains("no throughput"));
        }
        for (why, bytes) in [(String::new(), 27), ("ö".repeat(400), 500)] {
            let told = trial_result(lease, 9, TrialAnswer::Failed { why });
            assert_eq!(told.failure.len(), bytes);
        }
    }
}
