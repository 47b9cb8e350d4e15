//! Line 4, on the demo's real stages: how many trials a calibration makes of them, and what its plan loses against that of the
//! whole grid; and what else can be tried of them (a running worker, caps that overlap). All by the real programs, each
//! calibration on a daemon of its own with an emulated GPU.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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
    let whole = Calibrated::by(JOB, &["--full", "--no-pairs"]).await?;
    let few = Calibrated::by(JOB, &["--no-pairs"]).await?;
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
        Row::judged(
            "generation by a running worker that offers itself, against its benchmark",
            "within 5 % at each share",
            by_worker(&whole).await,
        ),
        Row::judged(
            "a job in `cap`: trials of generation beside training with caps kept, of 1.5 times, of the whole GPU",
            "each stored for both, and a plan",
            overlapping().await,
        ),
    ])
}

/// The same stage measured by a worker that runs already.
async fn by_worker(whole: &Calibrated) -> anyhow::Result<(String, bool)> {
    let site = Site::start().await?;
    let (before, generation) = JOB
        .split_once("batches = [4, 8, 16]")
        .context("another job")?;
    let command = "command = [\"evenkeel\", \"demo\", \"trial\"]\nsms = [6, 14, 22, 30, 38, 46, 54, 62, 70, 78, 86, 94, 102, 110, 122, 132]";
    let asked = generation.replacen(command, "worker = true\nsms = [30, 62, 94, 132]", 1);
    ensure!(asked != generation, "another job");
    let file = site.job(&format!("{before}batches = [4, 8, 16]{asked}"))?;
    let _worker = site.worker("generation")?;
    site.evenkeel(&[
        "calibrate",
        &file,
        "--stage",
        "generation",
        "--full",
        "--no-pairs",
    ])?;
    let (own, all) = (site.points()?, &whole.points["generation"]);
    let own = own.get("generation").context("nothing was measured")?;
    let mut off: f64 = 0.0;
    for p in own {
        let same = |q: &&Point| (q.sms, q.batch) == (p.sms, p.batch);
        let by_command = all.iter().find(same).context("another share")?;
        off = off.max((p.rate.get() / by_command.rate.get() - 1.0).abs());
    }
    Ok((
        format!("{} shares, at most {:.2} % off", own.len(), 100.0 * off),
        own.len() == 12 && off <= 0.05,
    ))
}

/// Which caps were tried of a pair, in a job whose stages may overlap.
async fn overlapping() -> anyhow::Result<(String, bool)> {
    let site = Site::start().await?;
    let file = site.job(&JOB.replace("groups = 2", "groups = 2\nsm_mode = \"cap\""))?;
    site.evenkeel(&["calibrate", &file])?;
    let profiles: Value = serde_json::from_str(&site.evenkeel(&["calibrate", "export"])?)?;
    let mut shown = Vec::new();
    for (own, other) in [("generation", "training"), ("training", "generation")] {
        let is_own = |p: &&Value| p["key"]["stage"] == format!("demo/{own}");
        let profile = profiles.as_array().and_then(|all| all.iter().find(is_own));
        let points = profile.and_then(|p| p["points"].as_array());
        for caps in ["reserve", "half_more", "none"] {
            let beside = |p: &&Value| {
                let b = &p["beside"];
                b["stage"] == format!("demo/{other}") && b["caps"] == caps
            };
            let point = points.and_then(|all| all.iter().find(beside));
            let point = point.with_context(|| format!("{own} was not tried with `{caps}`"))?;
            let (rate, alone) = (
                number(point, "units_per_s")?,
                number(&point["beside"], "alone_units_per_s")?,
            );
            shown.push(format!("{own} {caps} {rate:.0} of {alone:.0}"));
        }
    }
    let plan: Value = serde_json::from_str(&site.evenkeel(&["plan", &file, "-o", "json"])?)?;
    let theta = number(&plan, "units_per_s")?;
    Ok((
        format!("{}; the plan: {theta:.0} units/s", shown.join(", ")),
        theta > 0.0,
    ))
}

/// A daemon with an emulated GPU, in a folder of its own.
struct Site {
    dir: tempfile::TempDir,
    daemon: Daemon,
    _device: Device,
    ours: PathBuf,
}

/// A process that ends with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // `evenkeel run` gives its lease back on SIGTERM.
        let pid = i32::try_from(self.0.id()).unwrap_or(i32::MAX);
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGTERM,
        )
        .ok();
        self.0.wait().ok();
    }
}

impl Site {
    async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("evenkeel-accept-")
            .tempdir()?;
        let gpus = dir.path().join("gpus");
        let config = format!(
            "[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\ndir = {gpus:?}\nmodel = \"h100\"\n"
        );
        let device = Device::in_folder(&gpus);
        let daemon = Daemon::in_folder(&dir.path().join("daemon"), &config).await?;
        Ok(Self {
            dir,
            daemon,
            _device: device,
            ours: program("evenkeel")?,
        })
    }

    /// Writes the job's file, with benchmarks that run this build.
    fn job(&self, text: &str) -> anyhow::Result<String> {
        let file = self.dir.path().join("demo.toml");
        let ours = format!("{:?}", self.ours);
        std::fs::write(&file, text.replace("\"evenkeel\"", &ours))?;
        Ok(file.to_str().context("an odd path")?.to_owned())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.ours);
        command
            .args(arguments)
            .env("EVENKEEL_SOCKET", self.daemon.socket());
        command
    }

    fn evenkeel(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let out = self.command(arguments).output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "{arguments:?}: {}", said.trim());
        Ok(String::from_utf8(out.stdout)?)
    }

    /// A worker of the demo that offers itself for trials.
    fn worker(&self, stage: &str) -> anyhow::Result<Ended> {
        let ours: &Path = &self.ours;
        let ours = ours.to_str().context("an odd path")?;
        let lease = [
            "run",
            "--quiet",
            "--sm",
            "100%",
            "--gpu-memory",
            "20GiB",
            "--",
            ours,
        ];
        let offer = ["demo", "trial", "--offer", stage];
        let mut command = self.command(&[&lease[..], &offer[..]].concat());
        Ok(Ended(command.stderr(Stdio::null()).spawn()?))
    }

    fn points(&self) -> anyhow::Result<BTreeMap<String, Vec<Point>>> {
        points(&serde_json::from_str(
            &self.evenkeel(&["calibrate", "export"])?,
        )?)
    }
}

/// A stage's share: cores, SMs, batch size.
type Share = (u32, u32, u32);

/// What one calibration left.
struct Calibrated {
    points: BTreeMap<String, Vec<Point>>,
    plan: Vec<Share>,
}

impl Calibrated {
    async fn by(job: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let site = Site::start().await?;
        let file = site.job(job)?;
        site.evenkeel(&[&["calibrate", &file], arguments].concat())?;
        let plan: Value = serde_json::from_str(&site.evenkeel(&["plan", &file, "-o", "json"])?)?;
        Ok(Self {
            points: site.points()?,
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
        let stage = profile["key"]["stage"].as_str();
        let stage = stage.context("a profile of nothing")?;
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
