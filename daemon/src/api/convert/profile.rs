//! Profiles: measurements in, fitted curves out.
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::curve::conditions::CONDITION_MAX;
use evenkeel_core::curve::corun::Caps;
use evenkeel_core::curve::{CoRun, Conditions, Curve, KNEE, Point, Profile, ProfileKey, front};
use evenkeel_core::decide::node::POINTS_MAX;
use evenkeel_core::id::Name;
use evenkeel_core::job::{BATCH_MAX, CORES_MAX, MEMORY_MAX, PROCESSES_MAX, SMS_MAX};
use evenkeel_core::unit::{Bytes, Rate, Sms};
use evenkeel_proto::v1 as pb;

use super::{Bad, at_most, name, or_default, within};
use crate::api::limits::RATE_MAX;

/// Most that a measurement may count.
const WEIGHT_MAX: f64 = 1e9;

/// A profile's key. It belongs to the caller.
pub(in crate::api) fn key(w: Option<&pb::ProfileKey>, tenant: &Name) -> Result<ProfileKey, Bad> {
    let w = w.ok_or_else(|| {
        Bad::new(
            "key",
            "is missing; give the stage's fingerprint and the GPU's model",
        )
    })?;
    Ok(ProfileKey {
        tenant: tenant.clone(),
        stage: name("key.stage", &w.stage)?,
        gpu: name("key.gpu", &w.gpu).map_err(|bad| match w.gpu.is_empty() {
            true => Bad::new(
                "key.gpu",
                "is missing; use `none` for a stage without a GPU",
            ),
            false => bad,
        })?,
    })
}

/// A measurement.
pub(in crate::api) fn point(w: &pb::ProfilePoint) -> Result<Point, Bad> {
    if w.batch == 0 {
        return Err(Bad::new(
            "batch",
            "is at least 1; 1 where the stage has none",
        ));
    }
    if w.cores == 0 && w.sms == 0 {
        return Err(Bad::new(
            "cores",
            "a trial without cores and SMs measures nothing",
        ));
    }
    let weight = if w.weight == 0.0 { 1.0 } else { w.weight };
    if w.units_per_s > RATE_MAX && w.units_per_s.is_finite() {
        let why = format!("{} is more than anything does", w.units_per_s);
        return Err(Bad::new("units_per_s", why));
    }
    Ok(Point {
        cores: at_most("cores", w.cores, CORES_MAX)?,
        sms: Sms(at_most("sms", w.sms, SMS_MAX)?),
        batch: at_most("batch", w.batch, BATCH_MAX)?,
        replicas: at_most("replicas", or_default(w.replicas, 1), PROCESSES_MAX)?,
        rate: Rate::new(w.units_per_s).map_err(|e| Bad::new("units_per_s", e))?,
        memory: Bytes(at_most("memory_bytes", w.memory_bytes, MEMORY_MAX)?),
        weight: within("weight", weight, f64::MIN_POSITIVE, WEIGHT_MAX)?,
        beside: w.beside.as_ref().map(co_run).transpose()?.map(Box::new),
        conditions: w
            .conditions
            .as_ref()
            .map(conditions)
            .transpose()?
            .map(Box::new),
    })
}

/// What ran beside a measurement.
fn co_run(w: &pb::CoRun) -> Result<CoRun, Bad> {
    let parse = || {
        let alone = w.alone_units_per_s;
        if !(alone > 0.0 && alone <= RATE_MAX) {
            let why = format!("{alone} is no throughput above 0; it is compared with this one");
            return Err(Bad::new("alone_units_per_s", why));
        }
        Ok(CoRun {
            other: name("stage", &w.stage)?,
            other_sms: Sms(at_most("sms", w.sms, SMS_MAX)?),
            caps: match pb::CoRunCaps::try_from(w.caps) {
                Ok(pb::CoRunCaps::Unspecified | pb::CoRunCaps::Reserve) => Caps::Reserve,
                Ok(pb::CoRunCaps::HalfMore) => Caps::HalfMore,
                Ok(pb::CoRunCaps::None) => Caps::None,
                Err(_) => {
                    let why = format!("{} is not known; 1 is reserve, 2 half more, 3 none", w.caps);
                    return Err(Bad::new("caps", why));
                }
            },
            alone: Rate::new(alone).map_err(|e| Bad::new("alone_units_per_s", e))?,
            overlap: within("overlap", w.overlap, f64::MIN_POSITIVE, 1.0)?,
        })
    };
    parse().map_err(|bad: Bad| bad.within("beside"))
}

/// What a measurement was made with.
fn conditions(w: &pb::Conditions) -> Result<Conditions, Bad> {
    let text = |field: &'static str, text: &str| match text.len() > CONDITION_MAX {
        true => {
            let why = format!("is longer than {CONDITION_MAX} bytes");
            Err(Bad::new(field, why).within("conditions"))
        }
        false => Ok(text.to_owned()),
    };
    Ok(Conditions {
        cpu: text("cpu", &w.cpu)?,
        driver: text("driver", &w.driver)?,
        evenkeel: text("evenkeel", &w.evenkeel)?,
    })
}

fn told_co_run(c: &CoRun) -> pb::CoRun {
    let caps = match c.caps {
        Caps::Reserve => pb::CoRunCaps::Reserve,
        Caps::HalfMore => pb::CoRunCaps::HalfMore,
        Caps::None => pb::CoRunCaps::None,
    };
    pb::CoRun {
        stage: c.other.to_string(),
        sms: c.other_sms.0,
        caps: caps.into(),
        alone_units_per_s: c.alone.get(),
        overlap: c.overlap,
    }
}

fn told_conditions(c: &Conditions) -> pb::Conditions {
    pb::Conditions {
        cpu: c.cpu.clone(),
        driver: c.driver.clone(),
        evenkeel: c.evenkeel.clone(),
    }
}

/// A whole profile. Whatever tenant it names, it becomes the caller's.
pub(in crate::api) fn profile(w: Option<&pb::Profile>, tenant: &Name) -> Result<Profile, Bad> {
    let w = w.ok_or_else(|| Bad::new("profile", "is missing"))?;
    let parse = || {
        if w.points.len() > POINTS_MAX {
            let why = format!("{} points; a profile holds {POINTS_MAX}", w.points.len());
            return Err(Bad::new("points", why));
        }
        let points = w.points.iter().enumerate();
        let points = points.map(|(i, p)| point(p).map_err(|e| e.within(format!("points[{i}]"))));
        Ok(Profile {
            key: key(w.key.as_ref(), tenant)?,
            points: points.collect::<Result<_, _>>()?,
        })
    };
    parse().map_err(|e| e.within("profile"))
}

/// A profile as it was measured.
pub(in crate::api) fn profile_points(p: &Profile) -> pb::Profile {
    let point = |p: &Point| pb::ProfilePoint {
        cores: p.cores,
        sms: p.sms.0,
        batch: p.batch,
        replicas: p.replicas,
        units_per_s: p.rate.get(),
        memory_bytes: p.memory.0,
        weight: p.weight,
        beside: p.co_run().map(told_co_run),
        conditions: p.conditions.as_deref().map(told_conditions),
    };
    pb::Profile {
        points: p.points.iter().map(point).collect(),
        ..summary(p)
    }
}

/// A profile without its points.
pub(in crate::api) fn summary(p: &Profile) -> pb::Profile {
    pb::Profile {
        key: Some(pb::ProfileKey {
            stage: p.key.stage.to_string(),
            gpu: p.key.gpu.to_string(),
        }),
        tenant: p.key.tenant.to_string(),
        points: Vec::new(),
        point_count: u32::try_from(p.points.len()).unwrap_or(u32::MAX),
    }
}

/// The fitted curves of each measured number of replicas: along SMs, one for each measured pair of cores and batch size;
/// along cores, one for each batch size, where nothing was measured on a GPU.
pub(in crate::api) fn curves(p: &Profile) -> Vec<pb::Curve> {
    let has_gpu = p.points.iter().any(|p| p.sms > Sms(0));
    let mut all = Vec::new();
    for (replicas, fit) in front::by_replicas(&p.points) {
        match has_gpu {
            true => all.extend(along_sms(&fit, replicas, &p.points)),
            false => all.extend(
                fit.batches()
                    .map(|batch| along_cores(&fit, replicas, batch)),
            ),
        }
    }
    all
}

fn along_sms(fit: &Curve, replicas: u32, points: &[Point]) -> Vec<pb::Curve> {
    let mut sms: BTreeMap<(u32, u32), BTreeSet<Sms>> = BTreeMap::new();
    for point in points
        .iter()
        .filter(|p| p.replicas == replicas && p.beside.is_none())
    {
        let counts = sms.entry((point.batch, point.cores)).or_default();
        counts.insert(point.sms);
    }
    let along = |slice: &evenkeel_core::curve::Slice| {
        let counts = sms.get(&(slice.batch, slice.cores));
        let counts: Vec<Sms> = counts.map_or_else(Vec::new, |set| set.iter().copied().collect());
        let point = |q: &Sms| pb::CurvePoint {
            quota: q.0,
            units_per_s: slice.rate(*q),
            relative_error: fit.error(slice.cores, *q, slice.batch).unwrap_or(0.0),
        };
        pb::Curve {
            cores: slice.cores,
            batch: slice.batch,
            points: counts.iter().map(point).collect(),
            knee: fit
                .knee(slice.cores, slice.batch, &counts)
                .map_or(0, |q| q.0),
            replicas,
            memory_bytes: slice.memory.0,
        }
    };
    fit.slices().iter().map(along).collect()
}

fn along_cores(fit: &Curve, replicas: u32, batch: u32) -> pb::Curve {
    let slices = fit.of_batch(batch);
    let points: Vec<pb::CurvePoint> = (slices.iter())
        .map(|s| pb::CurvePoint {
            quota: s.cores,
            units_per_s: s.rate(Sms(0)),
            relative_error: fit.error(s.cores, Sms(0), batch).unwrap_or(0.0),
        })
        .collect();
    let best = points.iter().map(|p| p.units_per_s).fold(0.0, f64::max);
    let knee = points.iter().find(|p| p.units_per_s >= best * KNEE);
    pb::Curve {
        cores: 0,
        batch,
        knee: knee.map_or(0, |p| p.quota),
        points,
        replicas,
        memory_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cores: u32, sms: u32, units_per_s: f64) -> pb::ProfilePoint {
        pb::ProfilePoint {
            cores,
            sms,
            batch: 1,
            units_per_s,
            ..Default::default()
        }
    }

    fn of(points: Vec<pb::ProfilePoint>) -> Profile {
        let w = pb::Profile {
            key: Some(pb::ProfileKey {
                stage: "j/s".into(),
                gpu: "none".into(),
            }),
            tenant: "somebody".into(),
            points,
            point_count: 0,
        };
        profile(Some(&w), &Name::new("me").unwrap()).unwrap()
    }

    #[test]
    fn curves_run_along_what_was_measured() {
        let gpu = curves(&of(vec![
            at(1, 10, 50.0),
            at(1, 20, 99.0),
            at(1, 40, 100.0),
        ]));
        assert_eq!(gpu.len(), 1);
        assert_eq!((gpu[0].cores, gpu[0].knee), (1, 20));
        assert_eq!(gpu[0].points.len(), 3);
        let cores = curves(&of(vec![at(1, 0, 10.0), at(2, 0, 20.0), at(4, 0, 20.5)]));
        assert_eq!((cores[0].cores, cores[0].knee), (0, 2));
        assert_eq!(cores[0].points[2].quota, 4);
        assert!(curves(&of(vec![])).is_empty());
    }

    #[test]
    fn a_co_run_is_kept_beside_the_curve_and_told_as_it_came() {
        let beside = pb::CoRun {
            stage: "j/t".into(),
            sms: 66,
            caps: pb::CoRunCaps::HalfMore.into(),
            alone_units_per_s: 50.0,
            overlap: 0.9,
        };
        let conditions = pb::Conditions {
            cpu: "a CPU".into(),
            ..Default::default()
        };
        let with = pb::ProfilePoint {
            beside: Some(beside.clone()),
            conditions: Some(conditions.clone()),
            ..at(1, 20, 40.0)
        };
        let profile = of(vec![at(1, 20, 50.0), with.clone()]);
        assert_eq!(curves(&profile)[0].points[0].units_per_s, 50.0);
        let told = &profile_points(&profile).points[1];
        assert_eq!(told.beside.as_ref(), Some(&beside));
        assert_eq!(told.conditions.as_ref(), Some(&conditions));
        for (overlap, alone_units_per_s) in [(0.0, 50.0), (1.1, 50.0), (f64::NAN, 50.0), (0.5, 0.0)]
        {
            let bad = pb::CoRun {
                overlap,
                alone_units_per_s,
                ..beside.clone()
            };
            let with = pb::ProfilePoint {
                beside: Some(bad),
                ..with.clone()
            };
            assert!(point(&with).unwrap_err().field.starts_with("beside."));
        }
        let unknown = pb::ProfilePoint {
            beside: Some(pb::CoRun { caps: 77, ..beside }),
            ..with
        };
        assert_eq!(point(&unknown).unwrap_err().field, "beside.caps");
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        for (name, w, field) in [
            ("NaN", at(1, 1, f64::NAN), "units_per_s"),
            ("negative", at(1, 1, -1.0), "units_per_s"),
            ("infinite", at(1, 1, f64::INFINITY), "units_per_s"),
            ("nothing", at(0, 0, 1.0), "cores"),
            ("too much", at(u32::MAX, 1, 1.0), "cores"),
            ("too fast", at(1, 1, 1e300), "units_per_s"),
            (
                "batch",
                pb::ProfilePoint {
                    batch: 0,
                    ..at(1, 1, 1.0)
                },
                "batch",
            ),
            (
                "weight",
                pb::ProfilePoint {
                    weight: f64::NAN,
                    ..at(1, 1, 1.0)
                },
                "weight",
            ),
            (
                "weight",
                pb::ProfilePoint {
                    weight: -1.0,
                    ..at(1, 1, 1.0)
                },
                "weight",
            ),
        ] {
            assert_eq!(point(&w).unwrap_err().field, field, "{name}");
        }
        let profile = of(vec![at(1, 0, 1.0)]);
        assert_eq!(
            profile.key.tenant.as_str(),
            "me",
            "an imported profile is the caller's"
        );
    }
}
