//! Profiles for people: what was measured, the fitted curves, the knees.
use evenkeel_client::{FittedProfile, Profile};
use serde::Serialize;

use super::{find, plot};
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::table::{right, table};
use crate::units::{show_bytes, show_rate};

#[derive(Serialize)]
struct ProfileList {
    profiles: Vec<Profile>,
}

/// All profiles in a line each.
pub(super) async fn all(globals: &Globals) -> Result<(), Failure> {
    let profiles = globals.client()?.profiles().await.doing("list profiles")?;
    if globals.json() {
        out::json(&ProfileList { profiles });
        return Ok(());
    }
    if profiles.is_empty() {
        out::note("nothing was measured yet; `evenkeel calibrate job.toml` does it");
        return Ok(());
    }
    let mut list = table(["STAGE", "GPU", "POINTS"]);
    for profile in &profiles {
        list.add_row(vec![
            profile.key.stage.as_str().into(),
            profile.key.gpu.as_str().into(),
            right(profile.point_count),
        ]);
    }
    out::text(list);
    Ok(())
}

/// One profile with its curves.
pub(super) async fn one(
    globals: &Globals,
    stage: String,
    gpu: Option<String>,
) -> Result<(), Failure> {
    let client = globals.client()?;
    let key = find(&client, stage, gpu).await?;
    let doing = format!("show the profile of {}", key.stage);
    let fitted = client.profile(key).await.doing(doing)?;
    if globals.json() {
        out::json(&fitted);
    } else {
        show(&fitted);
    }
    Ok(())
}

fn show(fitted: &FittedProfile) {
    let profile = &fitted.profile;
    out::text(format_args!("{} on {}", profile.key.stage, profile.key.gpu));
    let mut points = table(["CORES", "BATCH", "SMS", "UNITS/S", "MEMORY", ""]);
    for p in &profile.points {
        points.add_row(vec![
            right(p.cores),
            right(p.batch),
            right(p.sms),
            right(show_rate(p.units_per_s)),
            right(show_bytes(p.memory_bytes)),
            (if p.units_per_s == 0.0 {
                "does not fit"
            } else {
                ""
            })
            .into(),
        ]);
    }
    out::text(points);
    if fitted.curves.is_empty() {
        return;
    }
    let quota = if profile.points.iter().any(|p| p.sms > 0) {
        "SMS"
    } else {
        "CORES"
    };
    out::text("");
    let mut knees = table(["CURVE", "CORES", "BATCH", "KNEE", "UNITS/S THERE", "BEST"]);
    for (mark, curve) in plot::MARKS.iter().cycle().zip(&fitted.curves) {
        let at_knee = curve.points.iter().find(|p| p.quota == curve.knee);
        let best = curve
            .points
            .iter()
            .map(|p| p.units_per_s)
            .fold(0.0, f64::max);
        knees.add_row(vec![
            mark.to_string().into(),
            right(curve.cores),
            right(curve.batch),
            right(format!("{} {quota}", curve.knee)),
            right(at_knee.map_or("-".to_owned(), |p| show_rate(p.units_per_s))),
            right(show_rate(best)),
        ]);
    }
    out::text(knees);
    for line in plot::draw(&fitted.curves, quota) {
        out::text(line);
    }
}
