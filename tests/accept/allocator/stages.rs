//! Line 4, on the demo's real stages: how many trials a calibration makes of them, and what its plan loses against that of the
//! whole grid. Each of both is measured by the real programs, on a daemon of its own with an emulated GPU.
use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, ensure};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::unit::{Rate, Sms};
use serde_json::Value;

use crate::daemon::{Daemon, Device, program};
use crate::row::Row;

/// The demo's stages as a job.
const JOB: &str = include_str!("../../../examples/demo.toml");
/// Stages, in the order of the job file.
const STAGES: [&str; 3] = ["simulation", "generation", "training"];

pub(super) async fn measure() -> anyhow::Result<Vec<Row>> {
    let whole = Calibrated::by(&["--full", "--no-pairs"]).await?;
    let few = Calibrated::by(&["--no-pairs"]).await?;
    let (trials, grid) = (few.trials(), whole.trials());
    let share = trials as f64 / grid as f64;
    let (best, found) = (whole.theta(&whole.plan)?, whole.theta(&few.plan)?);
    let loss = 1.0 - found / best;
    Ok(vec![
        Row::new(
            "trials of the demo's real stages (EMULATED GPU, real physics)",
            "≤ a third of the full grid's",
            format!("{trials} of {grid}, {:.1} %", 100.0 * share),
            share <= 1.0 / 3.0,
        ),
        Row::new(
            "their plan, on the curves of the full grid, against the full grid's",
            "within 2 %",
            format!(
                "{:.2} % lost: {found:.0} of {best:.0} units/s; {} instead of {}",
                100.0 * loss,
                few.told(),
                whole.told()
            ),
            loss <= 0.02,
        ),
    ])
}

/// A stage's share: cores, SMs, batch size.
type Share = (u32, u32, u32);

/// What one calibration left.
struct Calibrated {
    points: BTreeMap<String, Vec<Point>>,
    plan: Vec<Share>,
}

impl Calibrated {
    async fn by(arguments: &[&str]) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-accept-")
            .tempdir()?;
        let gpus = dir.path().join("gpus");
        let config = format!(
            "[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\ndir = {gpus:?}\nmodel = \"h100\"\n"
        );
        let _device = Device::in_folder(&gpus);
        let daemon = Daemon::in_folder(&dir.path().join("daemon"), &config).await?;
        let ours = program("evenkeel")?;
        let job = JOB.replace("\"evenkeel\"", &format!("{ours:?}"));
        let file = dir.path().join("demo.toml");
        std::fs::write(&file, job)?;
        let run = |arguments: &[&str]| -> anyhow::Result<String> {
            let out = Command::new(&ours)
                .args(arguments)
                .env("EVENKEEL_SOCKET", daemon.socket())
                .output()?;
            let said = String::from_utf8_lossy(&out.stderr);
            ensure!(out.status.success(), "{arguments:?}: {}", said.trim());
            Ok(String::from_utf8(out.stdout)?)
        };
        let file = file.to_str().context("an odd path")?;
        run(&[&["calibrate", file], arguments].concat())?;
        let profiles: Value = serde_json::from_str(&run(&["calibrate", "export"])?)?;
        let plan: Value = serde_json::from_str(&run(&["plan", file, "-o", "json"])?)?;
        Ok(Self {
            points: points(&profiles)?,
            plan: shares(&plan)?,
        })
    }

    fn trials(&self) -> usize {
        self.points.values().map(Vec::len).sum()
    }

    /// What a plan yields on these curves: the slowest stage.
    fn theta(&self, plan: &[Share]) -> anyhow::Result<f64> {
        let mut least = f64::INFINITY;
        for (stage, (cores, sms, batch)) in STAGES.iter().zip(plan) {
            let points = self
                .points
                .get(*stage)
                .with_context(|| format!("no {stage}"))?;
            let curve = Curve::fit(points, &[], 1.0, 1).with_context(|| (*stage).to_owned())?;
            least = least.min(curve.rate(*cores, Sms(*sms), *batch).get());
        }
        Ok(least)
    }

    fn told(&self) -> String {
        let shares = self.plan.iter();
        let told = shares.map(|(cores, sms, batch)| match sms {
            0 => format!("{cores} cores"),
            _ => format!("{sms} SMs at batch {batch}"),
        });
        told.collect::<Vec<_>>().join(", ")
    }
}

fn number(v: &Value, key: &str) -> anyhow::Result<f64> {
    v[key].as_f64().with_context(|| format!("no {key} in {v}"))
}

fn whole(v: &Value, key: &str) -> anyhow::Result<u32> {
    Ok(number(v, key)? as u32)
}

/// The points of an export, by stage.
fn points(profiles: &Value) -> anyhow::Result<BTreeMap<String, Vec<Point>>> {
    let mut all = BTreeMap::new();
    for profile in profiles.as_array().context("profiles are no list")? {
        let stage = profile["stage"].as_str().context("a profile of nothing")?;
        let stage = stage.rsplit('/').next().unwrap_or(stage).to_owned();
        let mut points = Vec::new();
        for p in profile["points"].as_array().context("no points")? {
            points.push(Point {
                cores: whole(p, "cores")?,
                sms: Sms(whole(p, "sms")?),
                batch: whole(p, "batch")?,
                replicas: whole(p, "replicas")?,
                rate: Rate::clamped(number(p, "units_per_s")?),
                weight: 1.0,
                ..Point::default()
            });
        }
        all.insert(stage, points);
    }
    Ok(all)
}

/// The shares of a plan, in the order of the stages.
fn shares(plan: &Value) -> anyhow::Result<Vec<Share>> {
    let stages = plan["stages"].as_array().context("a plan without stages")?;
    let of = |name: &&str| {
        let stage = stages.iter().find(|s| s["stage"] == **name);
        let s = stage.with_context(|| format!("the plan has no {name}"))?;
        Ok((whole(s, "cores")?, whole(s, "sms")?, whole(s, "batch")?))
    };
    STAGES.iter().map(of).collect()
}
