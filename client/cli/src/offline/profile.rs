//! Profiles in the core's words. What the daemon checks at its door is checked here, too: the core trusts what it is
//! given, and of a file with several profiles none is to be stored if one of them would be refused.

use std::collections::BTreeMap;
use std::fmt::Display;

use evenkeel_client::{self as client, Profile, ProfilePoint};
use evenkeel_core::curve::conditions::CONDITION_MAX;
use evenkeel_core::curve::corun::Caps;
use evenkeel_core::curve::{self, CoRun, Point, ProfileKey};
use evenkeel_core::decide::node::POINTS_MAX;
use evenkeel_core::id::Name;
use evenkeel_core::job::{BATCH_MAX, CORES_MAX, MEMORY_MAX, PROCESSES_MAX, SMS_MAX};
use evenkeel_core::unit::{Bytes, Rate, Sms};

use crate::fail::Failure;

/// Whose the plan is: nobody's.
const NOBODY: &str = "offline";
/// Work units per second that a measurement may claim; the daemon's limit. Beyond 2^53 a count is no longer exact.
pub(crate) const RATE_MAX: f64 = 9_007_199_254_740_992.0;
/// Most that a measurement may count; the daemon's limit.
const WEIGHT_MAX: f64 = 1e9;

/// What is wrong with a part of a profile.
#[derive(Debug, PartialEq)]
pub(crate) struct BadField {
    /// Its path in JSON, such as `points[2].batch`.
    pub(crate) path: String,
    /// What is wrong, and what would be right.
    pub(crate) why: String,
}

impl BadField {
    fn new(path: impl Into<String>, why: impl Display) -> Self {
        Self {
            path: path.into(),
            why: why.to_string(),
        }
    }
    /// The same, seen from what is around it.
    pub(super) fn within(self, outer: impl Display) -> Self {
        Self {
            path: format!("{outer}.{}", self.path),
            ..self
        }
    }
}

impl From<BadField> for Failure {
    fn from(bad: BadField) -> Self {
        Self::usage(format!("{}: {}", bad.path, bad.why))
    }
}

/// A profile as measured.
pub(crate) fn profile(profile: &Profile) -> Result<curve::Profile, BadField> {
    let named = |path: &str, text: &str| name(path, text).map_err(|bad| bad.within("key"));
    let key = ProfileKey {
        tenant: name("tenant", NOBODY)?,
        stage: named("stage", &profile.key.stage)?,
        gpu: named("gpu", &profile.key.gpu)?,
    };
    let n = profile.points.len();
    if n == 0 {
        let why = "there is no measurement, and an import replaces what is stored";
        return Err(BadField::new("points", why));
    }
    if n > POINTS_MAX {
        let why = format_args!("{n} measurements; a profile holds {POINTS_MAX} at most");
        return Err(BadField::new("points", why));
    }
    let points = profile.points.iter().enumerate();
    let points = points.map(|(i, p)| point(p).map_err(|bad| bad.within(format!("points[{i}]"))));
    Ok(curve::Profile {
        key,
        points: points.collect::<Result<_, _>>()?,
    })
}

/// Whether several profiles can stand beside each other: the second of a stage and a GPU model would replace the first.
pub(crate) fn one_of_each<'p>(
    profiles: impl IntoIterator<Item = (String, &'p Profile)>,
) -> Result<(), Failure> {
    let mut seen: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for (place, profile) in profiles {
        let key = &profile.key;
        if let Some(first) = seen.insert((&key.stage, &key.gpu), place.clone()) {
            let (stage, gpu) = (&key.stage, &key.gpu);
            let what =
                format!("{place}: a second profile of {stage} on {gpu}; the first is {first}");
            return Err(Failure::usage(what).hint("Put the points of both into one of them."));
        }
    }
    Ok(())
}

/// A measurement.
pub(crate) fn point(p: &ProfilePoint) -> Result<Point, BadField> {
    if p.batch == 0 {
        let why = "it is at least 1; 1 where the stage has none";
        return Err(BadField::new("batch", why));
    }
    if p.replicas == 0 {
        return Err(BadField::new("replicas", "it is at least 1"));
    }
    if p.cores == 0 && p.sms == 0 {
        let why = "a trial without cores and SMs measures nothing";
        return Err(BadField::new("cores", why));
    }
    Ok(Point {
        cores: at_most("cores", p.cores, CORES_MAX)?,
        sms: Sms(at_most("sms", p.sms, SMS_MAX)?),
        batch: at_most("batch", p.batch, BATCH_MAX)?,
        replicas: at_most("replicas", p.replicas, PROCESSES_MAX)?,
        rate: rate("units_per_s", p.units_per_s)?,
        memory: Bytes(at_most("memory_bytes", p.memory_bytes, MEMORY_MAX)?),
        weight: above_zero("weight", p.weight, WEIGHT_MAX)?,
        beside: match &p.beside {
            Some(c) => Some(Box::new(co_run(c).map_err(|bad| bad.within("beside"))?)),
            None => None,
        },
        conditions: match &p.conditions {
            Some(c) => {
                check_conditions(c).map_err(|bad| bad.within("conditions"))?;
                Some(Box::new(conditions(c)))
            }
            None => None,
        },
    })
}

fn name(path: &str, text: &str) -> Result<Name, BadField> {
    Name::new(text).map_err(|error| {
        let text = crate::mistake::cut(text);
        BadField::new(path, format_args!("`{text}`: {error}"))
    })
}

fn at_most<T: PartialOrd + Display>(path: &str, n: T, most: T) -> Result<T, BadField> {
    match n <= most {
        true => Ok(n),
        false => Err(BadField::new(path, format_args!("{n} is more than {most}"))),
    }
}

fn rate(path: &str, x: f64) -> Result<Rate, BadField> {
    if x.is_finite() && x > RATE_MAX {
        let why = format_args!("{x:e} is more than {RATE_MAX:e}, the most that is believed");
        return Err(BadField::new(path, why));
    }
    Rate::new(x).map_err(|error| BadField::new(path, error))
}

fn above_zero(path: &str, x: f64, most: f64) -> Result<f64, BadField> {
    match x.is_finite() && x > 0.0 && x <= most {
        true => Ok(x),
        false => Err(BadField::new(
            path,
            format_args!("{x:?} is not above 0 and at most {most:?}"),
        )),
    }
}

/// How far stages could go, in the core's words.
pub(crate) const fn caps(c: client::CoRunCaps) -> Caps {
    match c {
        client::CoRunCaps::Reserve => Caps::Reserve,
        client::CoRunCaps::HalfMore => Caps::HalfMore,
        client::CoRunCaps::None => Caps::None,
    }
}

fn co_run(c: &client::CoRun) -> Result<CoRun, BadField> {
    let alone = above_zero("alone_units_per_s", c.alone_units_per_s, RATE_MAX)?;
    Ok(CoRun {
        other: name("stage", &c.stage)?,
        other_sms: Sms(at_most("sms", c.sms, SMS_MAX)?),
        caps: caps(c.caps),
        alone: rate("alone_units_per_s", alone)?,
        overlap: above_zero("overlap", c.overlap, 1.0)?,
    })
}

fn check_conditions(c: &client::Conditions) -> Result<(), BadField> {
    let texts = [
        ("cpu", &c.cpu),
        ("driver", &c.driver),
        ("evenkeel", &c.evenkeel),
    ];
    match texts.iter().find(|(_, text)| text.len() > CONDITION_MAX) {
        Some((path, _)) => Err(BadField::new(
            *path,
            format_args!("it is longer than {CONDITION_MAX} bytes"),
        )),
        None => Ok(()),
    }
}

/// What a measurement was made with.
pub(crate) fn conditions(c: &client::Conditions) -> curve::Conditions {
    curve::Conditions {
        cpu: c.cpu.clone(),
        driver: c.driver.clone(),
        evenkeel: c.evenkeel.clone(),
    }
}
