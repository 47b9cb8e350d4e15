//! Profiles for people: what was measured, the fitted curves, the knees, how sure they are, and what is stale or foreign.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_client::{Client, CoRunCaps, FittedProfile, JobSpec, Node, Profile, ProfilePoint};
use evenkeel_core::curve::{corun, front};
use evenkeel_core::unit::Sms;
use serde::Serialize;

use super::{NO_GPU, campaign, conditions, find, picture, plot};
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::offline;
use crate::out;
use crate::table::{right, table};
use crate::units::{counted, show_bytes, show_rate};

/// Files that are drawn beside the text.
pub(super) struct Pictures {
    pub(super) svg: Option<PathBuf>,
    pub(super) png: Option<PathBuf>,
}

#[derive(Serialize)]
struct ProfileList {
    profiles: Vec<Profile>,
}

/// A profile as it is shown to programs: with what a person is told in words.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    fitted: &'a FittedProfile,
    remarks: &'a [String],
}

/// All profiles in a line each.
pub(super) async fn all(globals: &Globals) -> Result<(), Failure> {
    let client = globals.client()?;
    let profiles = client.profiles().await.doing("list profiles")?;
    if globals.json() {
        out::json(&ProfileList { profiles });
        return Ok(());
    }
    if profiles.is_empty() {
        out::note("nothing was measured yet; `evenkeel calibrate job.toml` does it");
        return Ok(());
    }
    let node = client.node().await.doing("look at the node")?;
    let mut list = table(["STAGE", "GPU", "POINTS", ""]);
    for profile in &profiles {
        list.add_row(vec![
            profile.key.stage.as_str().into(),
            profile.key.gpu.as_str().into(),
            right(profile.point_count),
            (if is_foreign(&profile.key.gpu, &node) {
                "foreign"
            } else {
                ""
            })
            .into(),
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
    pictures: Pictures,
) -> Result<(), Failure> {
    let client = globals.client()?;
    let key = find(&client, stage, gpu).await?;
    let doing = format!("show the profile of {}", key.stage);
    let fitted = client.profile(key).await.doing(doing)?;
    let node = client.node().await.doing("look at the node")?;
    let remarks = of_profile(&fitted.profile, &node);
    if globals.json() {
        out::json(&Shown {
            fitted: &fitted,
            remarks: &remarks,
        });
    } else {
        show(&fitted, &remarks);
    }
    draw(&fitted, &remarks, &pictures)
}

fn draw(fitted: &FittedProfile, remarks: &[String], pictures: &Pictures) -> Result<(), Failure> {
    let svg = picture::svg(fitted, remarks);
    let put = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).doing(format_args!("write the picture {}", path.display()))
    };
    if let Some(path) = &pictures.svg {
        put(path, svg.as_bytes())?;
    }
    if let Some(path) = &pictures.png {
        put(path, &picture::png(&svg)?)?;
    }
    Ok(())
}

fn is_foreign(gpu: &str, node: &Node) -> bool {
    gpu != NO_GPU && node.gpus.iter().all(|g| g.model != gpu)
}

/// What should be known of a profile before it is believed: that it is of another GPU, or was measured with another driver,
/// CPU or version than there is now.
fn of_profile(profile: &Profile, node: &Node) -> Vec<String> {
    let mut remarks = Vec::new();
    if is_foreign(&profile.key.gpu, node) {
        let models: BTreeSet<&str> = node.gpus.iter().map(|g| g.model.as_str()).collect();
        let here = match models.is_empty() {
            true => "no GPU".to_owned(),
            false => models.into_iter().collect::<Vec<_>>().join(", "),
        };
        remarks.push(format!(
            "foreign: measured on {}, and this node has {here}",
            profile.key.gpu
        ));
    }
    let now = offline::conditions(conditions::here());
    if let Ok(known) = offline::profile(profile) {
        let stale = known.stale(&now);
        if !stale.is_empty() {
            let what = stale.join("; ");
            remarks.push(format!(
                "stale: {what}; `evenkeel calibrate --again` measures anew"
            ));
        }
    }
    remarks
}

/// The same of the profiles that a job's plan rests on.
pub(crate) async fn remarks(client: &Client, spec: &JobSpec) -> Result<Vec<String>, Failure> {
    let node = client.node().await.doing("look at the node")?;
    let profiles = client.profiles().await.doing("list profiles")?;
    let mut remarks = Vec::new();
    for stage in &spec.stages {
        let fingerprint = spec.fingerprint(stage);
        let of_stage = profiles.iter().filter(|p| p.key.stage == fingerprint);
        for listed in of_stage.filter(|p| !is_foreign(&p.key.gpu, &node)) {
            let key = listed.key.clone();
            let doing = format!("look at the profile of {fingerprint}");
            let profile = client.export_profile(key).await.doing(doing)?;
            let told = of_profile(&profile, &node).into_iter();
            remarks.extend(told.map(|r| format!("profile of {fingerprint}: {r}")));
        }
        let mut of_stage = profiles
            .iter()
            .filter(|p| p.key.stage == fingerprint)
            .peekable();
        if of_stage.peek().is_some() && of_stage.all(|p| is_foreign(&p.key.gpu, &node)) {
            let what = "foreign: it was measured on other GPUs only, so the plan does without it";
            remarks.push(format!("profile of {fingerprint}: {what}"));
        }
    }
    Ok(remarks)
}

fn show(fitted: &FittedProfile, remarks: &[String]) {
    let profile = &fitted.profile;
    out::text(format_args!("{} on {}", profile.key.stage, profile.key.gpu));
    for remark in remarks {
        out::wrapped(remark);
    }
    let mut points = table(["CORES", "BATCH", "REPLICAS", "SMS", "UNITS/S", "MEMORY", ""]);
    for p in &profile.points {
        points.add_row(vec![
            right(p.cores),
            right(p.batch),
            right(p.replicas),
            right(p.sms),
            right(show_rate(p.units_per_s)),
            right(show_bytes(p.memory_bytes)),
            note_of(p).into(),
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
    out::text(knees(fitted, quota));
    for line in plot::draw(&fitted.curves, quota) {
        out::text(line);
    }
    show_front(profile);
    show_pairs(profile);
}

fn note_of(p: &ProfilePoint) -> String {
    match &p.beside {
        _ if p.units_per_s == 0.0 => "does not fit".to_owned(),
        None => String::new(),
        Some(c) => format!(
            "beside {} with {} SMs{}; {} alone, together {:.0} % of its time",
            c.stage,
            c.sms,
            match c.caps {
                CoRunCaps::Reserve => "",
                CoRunCaps::HalfMore => ", caps half as much again",
                CoRunCaps::None => ", caps the whole GPU",
            },
            show_rate(c.alone_units_per_s),
            100.0 * c.overlap
        ),
    }
}

fn knees(fitted: &FittedProfile, quota: &str) -> comfy_table::Table {
    let mut knees = table([
        "CURVE",
        "CORES",
        "BATCH",
        "REPLICAS",
        "KNEE",
        "UNITS/S THERE",
        "ERROR",
        "BEST",
        "MEMORY",
    ]);
    for (mark, curve) in plot::MARKS.iter().cycle().zip(&fitted.curves) {
        let at_knee = curve.points.iter().find(|p| p.quota == curve.knee);
        let best = curve
            .points
            .iter()
            .map(|p| p.units_per_s)
            .fold(0.0, f64::max);
        // Two standard errors: the truth is within them nineteen times in twenty.
        let error = at_knee.map(|p| 2.0 * p.relative_error).filter(|e| *e > 0.0);
        knees.add_row(vec![
            mark.to_string().into(),
            right(curve.cores),
            right(curve.batch),
            right(curve.replicas),
            right(format!("{} {quota}", curve.knee)),
            right(at_knee.map_or("-".to_owned(), |p| show_rate(p.units_per_s))),
            right(error.map_or("?".to_owned(), |e| format!("±{:.1} %", e * 100.0))),
            right(show_rate(best)),
            right(show_bytes(curve.memory_bytes)),
        ]);
    }
    knees
}

/// The choices of batch size and replicas that no other beats, with all cores and SMs that were measured.
fn show_front(profile: &Profile) {
    let points = campaign::core(&profile.points);
    let curves = front::by_replicas(&points);
    let cores = points.iter().map(|p| p.cores).max().unwrap_or(0);
    let sms = points.iter().map(|p| p.sms).max().unwrap_or(Sms(0));
    let choices = front::pareto(&curves, cores, sms);
    if choices.len() < 2 {
        return;
    }
    out::text("");
    let mut list = table(["BATCH", "REPLICAS", "UNITS/S AT MOST", "MEMORY"]);
    for c in choices {
        list.add_row(vec![
            right(c.batch),
            right(c.replicas),
            right(show_rate(c.rate.get())),
            right(show_bytes(c.memory.0)),
        ]);
    }
    out::text(list);
}

/// What other stages cost it.
fn show_pairs(profile: &Profile) {
    let others: BTreeSet<(&str, CoRunCaps)> = profile
        .points
        .iter()
        .filter_map(|p| p.beside.as_ref().map(|c| (c.stage.as_str(), c.caps)))
        .collect();
    for (other, caps) in others {
        let of_other = |p: &&ProfilePoint| {
            let beside = p.beside.as_ref();
            beside.is_some_and(|c| (c.stage.as_str(), c.caps) == (other, caps))
        };
        let some: Vec<ProfilePoint> = profile.points.iter().filter(of_other).cloned().collect();
        if let Some(kappa) = corun::median_of(&campaign::core(&some)) {
            let percent = (1.0 - 1.0 / (1.0 + kappa)) * 100.0;
            out::wrapped(&format!(
                "beside {other} it loses {percent:.0} % while both are busy{} (κ {kappa:.2}, from {})",
                match caps {
                    CoRunCaps::Reserve => "",
                    CoRunCaps::HalfMore => " and may use half as many SMs again",
                    CoRunCaps::None => " and may use the whole GPU",
                },
                counted(some.len() as u64, "trial")
            ));
        }
    }
}
