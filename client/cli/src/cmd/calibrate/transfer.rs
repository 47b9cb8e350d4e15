//! Profiles out of the daemon and into it, as JSON or CSV. All of a file is read and checked before any of it is stored.
use std::path::Path;

use clap::Args;
use evenkeel_client::{Client, PROFILE_BYTES_MAX, Profile, ProfileKey};
use evenkeel_core::decide::node::{PROFILES_MAX, TENANT_POINTS_MAX};

use super::{find, rows};
use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::files;
use crate::mistake;
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
    if let Some(large) = profiles.iter().find(|p| p.wire_bytes() > PROFILE_BYTES_MAX) {
        let (stage, bytes) = (&large.key.stage, large.wire_bytes());
        let what = format!(
            "{}: the profile of {stage} takes {bytes} bytes, and {PROFILE_BYTES_MAX} are taken at once",
            file.display()
        );
        return Err(Failure::usage(what).hint(
            "Leave out some repeats, or what it was measured with (cpu, driver, evenkeel).",
        ));
    }
    let client = globals.client()?;
    check_room(&client, &profiles).await?;
    let mut stored: Vec<String> = Vec::new();
    for profile in profiles {
        let stage = profile.key.stage.clone();
        let imported = client.import_profile(profile).await;
        let points = imported
            .doing(format_args!("import the profile of {stage}"))
            .map_err(|failure| match stored.is_empty() {
                true => failure,
                // Each profile is stored whole or not at all; the file is not one transaction.
                false => failure.hint(format!(
                    "Stored before it: {}; nothing after it. The same command starts again from the first.",
                    stored.join(", ")
                )),
            })?;
        out::note(format_args!("{stage} has {points} points now"));
        stored.push(stage);
    }
    Ok(())
}

/// Whether there is room for all of them beside what is stored: the daemon would say so in the middle.
async fn check_room(client: &Client, profiles: &[Profile]) -> Result<(), Failure> {
    let there = client.profiles().await.doing("list profiles")?;
    // An admin sees those of all tenants, and has no means to tell which are counted.
    if there.windows(2).any(|two| two[0].tenant != two[1].tenant) {
        return Ok(());
    }
    let others = there
        .iter()
        .filter(|old| profiles.iter().all(|new| new.key != old.key));
    let (n, points) = others.fold((0, 0), |(n, sum), p| (n + 1, sum + p.point_count as usize));
    let added: usize = profiles.iter().map(|p| p.points.len()).sum();
    for (what, stored, added, most) in [
        ("profiles", n, profiles.len(), PROFILES_MAX),
        ("measurements", points, added, TENANT_POINTS_MAX),
    ] {
        if stored + added > most {
            return Err(Failure::new(format!(
                "cannot import {added} {what}: {stored} others are stored, and {most} are kept of one tenant"
            )));
        }
    }
    Ok(())
}

/// The profiles of a file, JSON or CSV, checked as the daemon would check them.
pub(crate) fn read_profiles(path: &Path) -> Result<Vec<Profile>, Failure> {
    let text = files::read(path, "profiles", FILE_MAX)?;
    parse(&text).map_err(|what| {
        let path = path.display();
        Failure::usage(format!("{path} is not a file of profiles: {what}"))
            .hint("`evenkeel calibrate export` prints one, with --csv as CSV.")
    })
}

/// What a text says, or where it says what that is wrong.
fn parse(text: &str) -> Result<Vec<Profile>, String> {
    let is_list = match text.trim_start().chars().next() {
        Some('[') => true,
        Some('{') => false,
        _ => return rows::read(text).map_err(|bad| bad.0),
    };
    let profiles: Vec<Profile> = match is_list {
        true => serde_json::from_str(text),
        false => serde_json::from_str(text).map(|profile| vec![profile]),
    }
    .map_err(|error| json_mistake(&error))?;
    if profiles.is_empty() {
        return Err("there is no profile in it".to_owned());
    }
    if profiles.len() > PROFILES_MAX {
        let n = profiles.len();
        return Err(format!(
            "{n} profiles; {PROFILES_MAX} are kept of one tenant"
        ));
    }
    for (i, profile) in profiles.iter().enumerate() {
        offline::profile(profile).map_err(|bad| match is_list {
            true => format!("[{i}].{}: {}", bad.path, bad.why),
            false => format!("{}: {}", bad.path, bad.why),
        })?;
    }
    let placed = profiles.iter().enumerate();
    offline::one_of_each(placed.map(|(i, profile)| (format!("[{i}]"), profile)))
        .map_err(|failure| failure.what)?;
    Ok(profiles)
}

/// What the parser says, with its place before it.
fn json_mistake(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let said = error.to_string();
    let what = said.strip_suffix(&format!(" at line {line} column {column}"));
    let what = mistake::in_words(what.unwrap_or(&said));
    format!("line {line}, column {column}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: &str = r#"{"cores": 1, "sms": 10, "batch": 1, "units_per_s": 5}"#;

    fn profile(stage: &str, points: &str) -> String {
        format!(r#"{{"key": {{"stage": "{stage}", "gpu": "H100"}}, "points": [{points}]}}"#)
    }

    #[test]
    fn repeats_are_kept_and_nothing_else_is_lost() {
        let twice = format!("{POINT}, {POINT}");
        let read = parse(&profile("j/s", &twice)).unwrap();
        assert_eq!(read[0].points.len(), 2);
        let two = format!("[{}, {}]", profile("j/s", POINT), profile("j/t", POINT));
        assert_eq!(parse(&two).unwrap().len(), 2);
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn mistakes_are_named_with_their_place() {
        let point = |from: &str, to: &str| {
            assert!(POINT.contains(from), "{from}");
            profile("j/s", &format!("{POINT},\n{}", POINT.replacen(from, to, 1)))
        };
        for (text, expect) in [
            (
                point("units_per_s", "untis_per_s"),
                "line 2, column 49: unknown key `untis_per_s`; did you mean `units_per_s`?",
            ),
            (
                point("5}", "\"5/s\"}"),
                "line 2, column 56: the text `5/s` is not a number",
            ),
            (
                point("10", "\"50%\""),
                "line 2, column 25: the text `50%` is not a whole number",
            ),
            (
                point("1,", "-1,"),
                "line 2, column 12: `-1` is not a whole number, 0 or more",
            ),
            (
                point("\"batch\": 1, ", ""),
                "line 2, column 41: the key `batch` is missing",
            ),
            (point("5}", "NaN}"), "line 2, column 52: expected value"),
            (
                point("5}", "1e400}"),
                "line 2, column 56: number out of range",
            ),
            (
                point("5}", "-5}"),
                "points[1].units_per_s: a throughput must be a finite number",
            ),
            (
                point("\"batch\": 1", "\"batch\": 0"),
                "points[1].batch: it is at least 1",
            ),
            (
                point("\"batch\": 1", "\"batch\": 99999999"),
                "points[1].batch: 99999999 is more than",
            ),
            (
                point("5}", "5, \"replicas\": 99999}"),
                "points[1].replicas: 99999 is more than",
            ),
            (
                point("5}", "5, \"weight\": 0}"),
                "points[1].weight: 0.0 is not above 0",
            ),
            (
                point("5}", "5, \"weight\": 1e12}"),
                "points[1].weight: 1000000000000.0 is not above 0 and at most",
            ),
            (profile("j s", POINT), "key.stage: `j s`"),
            (profile("j/s", ""), "points: there is no measurement"),
            ("[]".to_owned(), "there is no profile in it"),
            (
                format!("[{}, {}]", profile("j/s", POINT), profile("j/s", POINT)),
                "[1]: a second profile of j/s on H100; the first is [0]",
            ),
            (
                format!("[{}, {}]", profile("j/s", POINT), profile("j/t", "{}")),
                "line 1, column 164: the key `cores` is missing",
            ),
            (
                profile("j/s", &vec![POINT; 100_000].join(",")),
                "points: 100000 measurements; a profile holds 10000",
            ),
        ] {
            let said = parse(&text).unwrap_err();
            assert!(said.contains(expect), "{said}\nnot {expect}");
        }
    }
}
