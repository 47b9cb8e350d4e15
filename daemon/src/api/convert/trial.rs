//! Trials by running workers: what is offered, asked for, and told.
use std::time::Duration;

use evenkeel_core::id::{Fence, LeaseId, Name};
use evenkeel_proto::v1 as pb;

use super::report::lease_ref;
use super::{Bad, at_most, name, optional_name, or_default, within};
use crate::api::limits::{
    PLAN_CORES_MAX, PLAN_SMS_MAX, RATE_MAX, REASON_MAX, TRIAL_MAX, TRIAL_PATIENCE,
};

/// Batch sizes and replicas beyond this are mistakes of a unit.
const COUNT_MAX: u32 = 1 << 20;

/// What somebody wants to have measured.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::api) struct Wanted {
    /// The fingerprint of the stage's profile.
    pub(in crate::api) stage: Name,
    /// Without the lease and the number, which are the worker's.
    pub(in crate::api) trial: pb::Trial,
    /// How long the answer may take.
    pub(in crate::api) within: Duration,
}

/// A worker's offer: its lease, and the stage that it measures; none: it takes its offer back.
pub(in crate::api) fn offer(w: &pb::TrialOffer) -> Result<(LeaseId, Fence, Option<Name>), Bad> {
    let (lease, fence) = lease_ref(w.lease.as_ref())?;
    Ok((lease, fence, optional_name("stage", &w.stage)?))
}

/// Whose result it is. Its values are checked.
pub(in crate::api) fn trial_result(w: &pb::TrialResult) -> Result<(LeaseId, Fence), Bad> {
    within("units_per_s", w.units_per_s, 0.0, RATE_MAX)?;
    if w.failure.len() > REASON_MAX {
        let why = format!("has {} bytes; {REASON_MAX} are told", w.failure.len());
        return Err(Bad::new("failure", why));
    }
    lease_ref(w.lease.as_ref())
}

/// What is to be measured.
pub(in crate::api) fn trial(w: &pb::RunTrialRequest) -> Result<Wanted, Bad> {
    let warmup = time("warmup_ms", w.warmup_ms)?;
    let measure = time("measure_ms", w.measure_ms)?;
    if measure.is_zero() {
        return Err(Bad::new("measure_ms", "is 0; say how long to measure"));
    }
    let patience = match w.patience_ms {
        0 => TRIAL_PATIENCE,
        ms => time("patience_ms", ms)?,
    };
    Ok(Wanted {
        stage: name("stage", &w.stage)?,
        trial: pb::Trial {
            cores: at_most("cores", w.cores, PLAN_CORES_MAX)?,
            sms: at_most("sms", w.sms, PLAN_SMS_MAX)?,
            batch: at_most("batch", or_default(w.batch, 1), COUNT_MAX)?,
            replicas: at_most("replicas", or_default(w.replicas, 1), COUNT_MAX)?,
            warmup_ms: w.warmup_ms,
            measure_ms: w.measure_ms,
            ..Default::default()
        },
        within: warmup + measure + patience,
    })
}

fn time(field: &str, ms: u64) -> Result<Duration, Bad> {
    let time = Duration::from_millis(ms);
    if time > TRIAL_MAX {
        return Err(Bad::new(field, format!("{ms} ms is more than a day")));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_named() {
        let good = || pb::RunTrialRequest {
            stage: "j/gen".to_owned(),
            sms: 33,
            warmup_ms: 500,
            measure_ms: 2_000,
            ..Default::default()
        };
        let asked = trial(&good()).unwrap();
        assert_eq!(asked.within, Duration::from_millis(62_500));
        assert_eq!((asked.trial.batch, asked.trial.replicas), (1, 1));
        let check = |change: &dyn Fn(&mut pb::RunTrialRequest), field: &str| {
            let mut asked = good();
            change(&mut asked);
            assert_eq!(trial(&asked).unwrap_err().field, field);
        };
        check(&|w| w.stage = String::new(), "stage");
        check(&|w| w.measure_ms = 0, "measure_ms");
        check(&|w| w.measure_ms = u64::MAX, "measure_ms");
        check(&|w| w.warmup_ms = 86_400_001, "warmup_ms");
        check(&|w| w.patience_ms = u64::MAX, "patience_ms");
        check(&|w| w.cores = u32::MAX, "cores");
        check(&|w| w.sms = u32::MAX, "sms");
        check(&|w| w.batch = u32::MAX, "batch");
        let lease = Some(pb::LeaseRef::default());
        for (units_per_s, failure) in [(f64::NAN, 0), (-1.0, 0), (1.0, REASON_MAX + 1)] {
            let failure = "x".repeat(failure);
            let told = pb::TrialResult {
                lease,
                units_per_s,
                failure,
                ..Default::default()
            };
            trial_result(&told).unwrap_err();
        }
    }
}
