//! What workers report and acknowledge.
use evenkeel_core::balance::{AGE_MAX_US, Busy, LANES_MAX, Report, StepReport};
use evenkeel_core::command::{Caller, Command};
use evenkeel_core::id::{Fence, Generation, LeaseId};
use evenkeel_proto::v1 as pb;

use super::vector::effective;
use super::{Bad, or_default};
use crate::api::limits::{INTERVALS_MAX, STEPS_MAX};

pub(super) fn lease_ref(w: Option<&pb::LeaseRef>) -> Result<(LeaseId, Fence), Bad> {
    w.map(|r| (LeaseId(r.lease_id), Fence(r.fence)))
        .ok_or_else(|| Bad::new("lease", "is missing"))
}

/// A report as a command. Stage, worker and time are the lease's and the daemon's to say.
pub(in crate::api) fn report(w: &pb::WorkReport, caller: &Caller) -> Result<Command, Bad> {
    let (lease, fence) = lease_ref(w.lease.as_ref())?;
    if w.intervals.len() > INTERVALS_MAX {
        let why = format!(
            "{} intervals; merge them to at most {INTERVALS_MAX}",
            w.intervals.len()
        );
        return Err(Bad::new("intervals", why));
    }
    if w.steps.len() > STEPS_MAX {
        let why = format!("{} steps; at most {STEPS_MAX} fit", w.steps.len());
        return Err(Bad::new("steps", why));
    }
    if w.lanes > LANES_MAX {
        let why = format!("{} lanes; at most {LANES_MAX} are possible", w.lanes);
        return Err(Bad::new("lanes", why));
    }
    let intervals = w.intervals.iter().enumerate();
    let busy = intervals
        .map(|(i, b)| interval(b, w.lanes).map_err(|e| e.within(format!("intervals[{i}]"))));
    let steps = w.steps.iter().enumerate();
    let steps = steps.map(|(i, s)| step(s).map_err(|e| e.within(format!("steps[{i}]"))));
    let report = Report {
        lanes: w.lanes,
        busy: busy.collect::<Result<_, _>>()?,
        steps: steps.collect::<Result<_, _>>()?,
        ..Report::default()
    };
    Ok(Command::Report {
        caller: caller.clone(),
        lease,
        fence,
        report: Box::new(report),
    })
}

fn interval(b: &pb::BusyInterval, lanes: u32) -> Result<Busy, Bad> {
    if b.lane >= LANES_MAX {
        let why = format!("{} is not below {LANES_MAX}, helpers included", b.lane);
        return Err(Bad::new("lane", why));
    }
    let units = countable("units", b.units)?;
    if b.lane >= lanes && units > 0.0 {
        let why = format!(
            "{units} on lane {} of {lanes}: they are counted from 0, and what is beyond is a helper without units",
            b.lane
        );
        return Err(Bad::new("units", why));
    }
    if b.busy_us > b.began_us_ago {
        let why = format!(
            "{} µs in a time that began {} µs ago",
            b.busy_us, b.began_us_ago
        );
        return Err(Bad::new("busy_us", why));
    }
    if b.began_us_ago > AGE_MAX_US {
        let why = format!("{} µs is more than a day ago", b.began_us_ago);
        return Err(Bad::new("began_us_ago", why));
    }
    Ok(Busy {
        lane: b.lane,
        start_us_ago: b.began_us_ago,
        dur_us: b.busy_us,
        units,
        batch: or_default(b.batch, 1),
    })
}

fn step(s: &pb::StepReport) -> Result<StepReport, Bad> {
    if s.n == 0 {
        return Err(Bad::new("n", "steps are counted from 1"));
    }
    Ok(StepReport {
        n: s.n,
        consumed: countable("consumed_units", s.consumed_units)?,
        discarded: countable("discarded_units", s.discarded_units)?,
    })
}

fn countable(field: &str, units: f64) -> Result<f64, Bad> {
    super::within(field, units, 0.0, evenkeel_core::balance::UNITS_MAX)
}

/// An acknowledgement as a command.
pub(in crate::api) fn acknowledge(w: &pb::Acknowledge, caller: &Caller) -> Result<Command, Bad> {
    let (lease, fence) = lease_ref(w.lease.as_ref())?;
    let said = w.effective.as_ref();
    let said = said.ok_or_else(|| Bad::new("effective", "say what the worker really has now"))?;
    Ok(Command::Acknowledge {
        caller: caller.clone(),
        lease,
        fence,
        generation: Generation(w.generation),
        effective: effective(said).map_err(|e| e.within("effective"))?,
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_core::id::Name;

    use super::*;

    fn check(name: &str, change: impl FnOnce(&mut pb::WorkReport), field: Option<&str>) {
        let mut w = pb::WorkReport {
            lease: Some(pb::LeaseRef {
                lease_id: 1,
                fence: 2,
            }),
            lanes: 2,
            intervals: vec![pb::BusyInterval {
                lane: 1,
                began_us_ago: 100,
                busy_us: 50,
                units: 8.0,
                ..Default::default()
            }],
            steps: vec![pb::StepReport {
                n: 1,
                consumed_units: 8.0,
                discarded_units: 0.0,
            }],
        };
        change(&mut w);
        let caller = Caller::user(Name::new("me").unwrap());
        let parsed = report(&w, &caller);
        assert_eq!(parsed.err().map(|b| b.field).as_deref(), field, "{name}");
    }

    #[test]
    fn what_cannot_be_true_is_refused() {
        check("all good", |_| {}, None);
        check("no lease", |w| w.lease = None, Some("lease"));
        check(
            "NaN",
            |w| w.intervals[0].units = f64::NAN,
            Some("intervals[0].units"),
        );
        check(
            "negative",
            |w| w.intervals[0].units = -1.0,
            Some("intervals[0].units"),
        );
        check(
            "infinite",
            |w| w.steps[0].consumed_units = f64::INFINITY,
            Some("steps[0].consumed_units"),
        );
        check(
            "future",
            |w| w.intervals[0].busy_us = 101,
            Some("intervals[0].busy_us"),
        );
        check(
            "overflow",
            |w| w.intervals[0].began_us_ago = u64::MAX,
            Some("intervals[0].began_us_ago"),
        );
        check(
            "a helper without units",
            |w| (w.intervals[0].lane, w.intervals[0].units) = (2, 0.0),
            None,
        );
        check(
            "a helper with units",
            |w| w.intervals[0].lane = 2,
            Some("intervals[0].units"),
        );
        check(
            "lane",
            |w| (w.intervals[0].lane, w.intervals[0].units) = (1_024, 0.0),
            Some("intervals[0].lane"),
        );
        check("all lanes", |w| w.lanes = LANES_MAX, None);
        check("one more", |w| w.lanes = LANES_MAX + 1, Some("lanes"));
        check("lanes", |w| w.lanes = u32::MAX, Some("lanes"));
        check("step 0", |w| w.steps[0].n = 0, Some("steps[0].n"));
        check(
            "too many",
            |w| w.intervals = vec![w.intervals[0]; 513],
            Some("intervals"),
        );
    }
}
