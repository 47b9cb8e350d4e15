//! Profiles out of the daemon and into it, as JSON or CSV. All of a file is read and checked before any of it is stored.
use std::fs;
use std::path::Path;

use clap::Args;
use evenkeel_client::{Profile, ProfileKey};

use super::{find, rows};
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::offline;
use crate::out;

/// The largest file that is read: a hundred full profiles.
const FILE_MAX: u64 = 256 << 20;

/// Which profiles, and how they are written.
#[derive(Args, Debug)]
pub(super) struct ExportArgs {
    /// The stages, JOB/STAGE or what the job file calls their profiles; all profiles if left out
    stages: Vec<String>,
    /// The GPU model it was measured on; the node's if left out
    #[arg(long)]
    gpu: Option<String>,
    /// As CSV, with a row for each measurement
    #[arg(long)]
    csv: bool,
    /// As JSON, which is what you get if you say nothing
    #[arg(long, conflicts_with = "csv")]
    json: bool,
}

pub(super) async fn export(globals: &Globals, args: ExportArgs) -> Result<(), Failure> {
    let client = globals.client()?;
    let mut keys = Vec::new();
    if args.stages.is_empty() {
        let all = client.profiles().await.doing("list profiles")?;
        let of_gpu = |key: &ProfileKey| args.gpu.as_ref().is_none_or(|gpu| *gpu == key.gpu);
        keys.extend(all.into_iter().map(|p| p.key).filter(of_gpu));
    }
    let only_one = args.stages.len() == 1;
    for stage in args.stages {
        keys.push(find(&client, stage, args.gpu.clone()).await?);
    }
    let mut profiles = Vec::with_capacity(keys.len());
    for key in keys {
        let doing = format!("export the profile of {}", key.stage);
        profiles.push(client.export_profile(key).await.doing(doing)?);
    }
    if args.csv {
        let text = rows::write(&profiles).doing("write the profiles as CSV")?;
        out::text(text.trim_end());
        return Ok(());
    }
    match profiles.as_slice() {
        [profile] if only_one => out::json(profile),
        profiles => out::json(&profiles),
    }
    Ok(())
}

pub(super) async fn import(globals: &Globals, file: &Path) -> Result<(), Failure> {
    let profiles = read_profiles(file)?;
    // Each of them is checked as the daemon would, so that a bad one leaves the good ones unstored, too.
    for profile in &profiles {
        offline::profile(profile).map_err(|failure| failure.about(&file.display().to_string()))?;
    }
    let client = globals.client()?;
    for profile in profiles {
        let stage = profile.key.stage.clone();
        let points = client
            .import_profile(profile)
            .await
            .doing(format_args!("import the profile of {stage}"))?;
        out::note(format_args!("{stage} has {points} points now"));
    }
    Ok(())
}

/// The profiles of a file, JSON or CSV.
pub(crate) fn read_profiles(path: &Path) -> Result<Vec<Profile>, Failure> {
    let doing = format!("read the profiles {}", path.display());
    let read = fs::metadata(path).and_then(|about| match about.len() > FILE_MAX {
        true => Err(std::io::Error::other(
            "it is too large to be a file of profiles",
        )),
        false => fs::read_to_string(path),
    });
    let text = read
        .doing(doing)
        .map_err(|failure| failure.code(crate::fail::USAGE))?;
    let wrong = |what: String| {
        Failure::usage(format!(
            "{} is not a file of profiles: {what}",
            path.display()
        ))
        .hint("`evenkeel calibrate export` prints one, with --csv as CSV.")
    };
    match text.trim_start().chars().next() {
        Some('[') => serde_json::from_str(&text).map_err(|error| wrong(error.to_string())),
        Some('{') => serde_json::from_str(&text)
            .map(|profile| vec![profile])
            .map_err(|error| wrong(error.to_string())),
        _ => rows::read(&text).map_err(|bad| wrong(bad.0)),
    }
}
