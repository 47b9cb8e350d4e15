//! What a scenario's parts mean together: names that have to match, keys that belong to each other, files beside it. Each
//! complaint has the file, line and column, says what is wrong, and what would be right.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use evenkeel_client::{self as client, ResizeMode};
use evenkeel_core::curve::{Curve, Point};
use evenkeel_core::grant::Resize;
use evenkeel_core::job::{JobSpec, Role, StageSpec};
use evenkeel_core::unit::{Bytes, Rate, Sms};
use evenkeel_gpu::GpuSpec;
use toml::Spanned;

use super::fields::{DRIFTS_MAX, JOBS_MAX, POINTS_MAX, SECONDS_MAX};
use super::file::{
    Distribution, DriftFile, DriftKind, JobEntry, NodeFile, PointFile, ScenarioFile, TruthFile,
};
use super::{Detectors, Fidelity, Job, Nodes, Scenario, Truth};
use crate::cmd::calibrate::read_profiles;
use crate::fail::Failure;
use crate::files;
use crate::jobfile::{JobFile, place_of};
use crate::mistake;
use crate::nearest::nearest;
use crate::offline::{self, CORES_MAX, GPUS_MAX};
use crate::simulate::drift::{Drift, Shape};
use crate::simulate::law::{Crowd, Family, Law};

/// The text under the reader's eyes.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) name: &'a str,
    pub(super) beside: &'a Path,
    /// Another length than the scenario's, if one is wished for.
    pub(super) seconds: Option<f64>,
}

impl Reader<'_> {
    pub(super) fn scenario(&self) -> Result<Scenario, Failure> {
        let file: ScenarioFile = toml::from_str(self.text).map_err(|error| {
            let missing = error.message().starts_with("missing field");
            let span = error.span().filter(|span| !missing || span.start > 0);
            match span {
                Some(span) => self.wrong(&span, mistake::in_words(error.message())),
                None => {
                    let what = mistake::in_words(error.message());
                    Failure::usage(format!("{}: {what}", self.name))
                }
            }
        })?;
        let span = file.node.span();
        let nodes = self.nodes(file.node.into_inner(), &span)?;
        if file.jobs.is_empty() || file.jobs.len() > JOBS_MAX {
            let has = file.jobs.len();
            return Err(Failure::usage(format!(
                "{}: {has} jobs; a scenario has 1 to {JOBS_MAX} [[jobs]]",
                self.name
            )));
        }
        let mut jobs: Vec<Job> = Vec::with_capacity(file.jobs.len());
        for (i, entry) in file.jobs.into_iter().enumerate() {
            let span = entry.span();
            let entry = entry.into_inner();
            let longest = file.seconds.max(self.seconds.unwrap_or(0.0));
            self.in_time(&entry, i, longest)?;
            let job = self.job(entry, i, &span, &nodes)?;
            if jobs.iter().any(|other| other.spec.name == job.spec.name) {
                let twice = format!(
                    "two jobs are called {}; give each a name of its own",
                    job.spec.name
                );
                return Err(self.wrong(&span, twice));
            }
            if file.fidelity == Fidelity::Chunk {
                check_chunks(&job).map_err(|why| self.wrong(&span, why))?;
            }
            jobs.push(job);
        }
        Ok(Scenario {
            name: file.name,
            about: file.about,
            seconds: file.seconds,
            seed: file.seed,
            fidelity: file.fidelity,
            nodes,
            jobs,
        })
    }

    /// A complaint about what is written there.
    fn wrong(&self, span: &Range<usize>, what: impl std::fmt::Display) -> Failure {
        Failure::usage(format!(
            "{}: {what}",
            files::place(self.name, self.text, span)
        ))
    }

    /// Where a key is; its path where it is not found in the text.
    fn key(&self, path: &str) -> String {
        match place_of(self.text, path) {
            Some(span) => files::place(self.name, self.text, &span),
            None => format!("{}: {path}", self.name),
        }
    }

    /// What would happen when the simulation is over, or the job, is a mistake of a unit: it would be left out in silence.
    fn in_time(&self, entry: &JobEntry, at: usize, seconds: f64) -> Result<(), Failure> {
        let wrong = |key: String, what: String| {
            Failure::usage(what).about(&self.key(&format!("jobs[{at}].{key}")))
        };
        let arrives = entry.arrives;
        if arrives >= seconds {
            let what =
                format!("the job arrives at {arrives} s, and the simulation ends at {seconds} s");
            return Err(wrong("arrives".to_owned(), what));
        }
        if let Some(ends) = entry.ends.filter(|ends| *ends <= arrives) {
            let what = format!("the job ends ({ends} s) before it arrives ({arrives} s)");
            return Err(wrong("ends".to_owned(), what));
        }
        let (end, whose) = match entry.ends.filter(|ends| *ends < seconds) {
            Some(ends) => (ends, "its job"),
            None => (seconds, "the simulation"),
        };
        for (i, drift) in entry.drifts.iter().enumerate() {
            let begins = arrives + drift.get_ref().at;
            if begins >= end {
                let what = format!(
                    "the drift begins at {begins} s (`at` counts from the job's arrival), and {whose} ends at {end} s"
                );
                return Err(wrong(format!("drifts[{i}].at"), what));
            }
        }
        Ok(())
    }

    fn nodes(&self, file: NodeFile, span: &Range<usize>) -> Result<Nodes, Failure> {
        let cores = *file.cores.get_ref();
        if cores == 0 || i64::from(cores) > CORES_MAX {
            let what = format!("cores = {cores}: a node has 1 to {CORES_MAX}");
            return Err(self.wrong(&file.cores.span(), what));
        }
        let gpus = file.gpus.as_ref().map_or(0, |g| *g.get_ref());
        if let Some(written) = file.gpus.as_ref().filter(|_| i64::from(gpus) > GPUS_MAX) {
            let what = format!("gpus = {gpus}: a node has at most {GPUS_MAX}");
            return Err(self.wrong(&written.span(), what));
        }
        let known = || format!("known are {}", GpuSpec::PRESETS.join(", "));
        let gpu = match &file.gpu {
            Some(kind) => Some(GpuSpec::preset(kind.get_ref()).ok_or_else(|| {
                let what = format!("`{}` is no GPU that is known; {}", kind.get_ref(), known());
                self.wrong(&kind.span(), what)
            })?),
            None => None,
        };
        if gpus > 0 && gpu.is_none() {
            let what = format!(
                "the node has GPUs; say of which kind: gpu = \"h100\" ({})",
                known()
            );
            return Err(self.wrong(span, what));
        }
        Ok(Nodes {
            count: file.count,
            cores,
            gpus,
            gpu: gpu.filter(|_| gpus > 0),
            variety: file.variety,
        })
    }

    /// A stage that may use a GPU needs a node with one.
    fn has_gpus(&self, spec: &JobSpec, at: usize, nodes: &Nodes) -> Result<(), Failure> {
        let needs = |s: &StageSpec| s.sms.1 > Sms(0) || s.memory > Bytes(0);
        let Some(stage) = spec
            .stages
            .iter()
            .position(needs)
            .filter(|_| nodes.gpus == 0)
        else {
            return Ok(());
        };
        let name = &spec.stages[stage].name;
        let what = format!(
            "stage {name} may use a GPU, and the node has none; say no_gpu = true there, or gpus and gpu in [node]"
        );
        let key = format!("jobs[{at}].spec.stages[{stage}]");
        Err(Failure::usage(what).about(&self.key(&key)))
    }

    fn job(
        &self,
        entry: JobEntry,
        at: usize,
        span: &Range<usize>,
        nodes: &Nodes,
    ) -> Result<Job, Failure> {
        let (spec, detectors) = self.spec(&entry, at, span, nodes)?;
        self.has_gpus(&spec, at, nodes)?;
        let names: Vec<&str> = spec.stages.iter().map(|s| s.name.as_str()).collect();
        for (name, truth) in &entry.stages {
            index(&names, name).map_err(|what| self.wrong(&truth.span(), what))?;
        }
        let mut stages = Vec::with_capacity(names.len());
        for stage in &spec.stages {
            let Some(truth) = entry.stages.get(stage.name.as_str()) else {
                let name = &stage.name;
                let what =
                    format!("what stage {name} really does is missing: add [jobs.stages.{name}]");
                return Err(self.wrong(span, what));
            };
            let restart_s = spec.rebalance.restart_cost.0 as f64 / 1_000.0;
            stages.push(self.truth(truth.get_ref(), &truth.span(), stage.role, restart_s)?);
        }
        let kappa = self.kappa(&entry, &names)?;
        if entry.drifts.len() > DRIFTS_MAX {
            let what = format!(
                "{} drifts; a job has at most {DRIFTS_MAX}",
                entry.drifts.len()
            );
            return Err(self.wrong(span, what));
        }
        let drift = |d: &Spanned<DriftFile>| {
            drift(d.get_ref(), &names).map_err(|what| self.wrong(&d.span(), what))
        };
        let drifts = entry.drifts.iter().map(drift).collect::<Result<_, _>>()?;
        Ok(Job {
            spec,
            detectors,
            arrives_s: entry.arrives,
            ends_s: entry.ends,
            jitter_s: entry.jitter,
            units_per_iteration: entry.units_per_iteration,
            staleness: entry.staleness,
            weight_sync_s: entry.weight_sync,
            discarded: entry.discarded,
            overlap: entry.overlap,
            overlap_known: entry.overlap_known,
            kappa,
            kappa_known: entry.interference_known,
            switch_s: entry.switch,
            stages,
            drifts,
        })
    }

    /// The job as the daemon would take it, and both detectors with its settings.
    fn spec(
        &self,
        entry: &JobEntry,
        index: usize,
        span: &Range<usize>,
        nodes: &Nodes,
    ) -> Result<(JobSpec, Detectors), Failure> {
        let (file, at) = match (&entry.spec, &entry.file) {
            (Some(spec), None) => {
                let file = spec.get_ref();
                file.check().map_err(|wrong| {
                    let path = format!("jobs[{index}].spec.{}", wrong.path);
                    wrong.failure.about(&self.key(&path))
                })?;
                (file.clone(), spec.span())
            }
            (None, Some(path)) => {
                let read = JobFile::load(&self.beside.join(path.get_ref()), None);
                let read = read.map_err(|failure| self.wrong(&path.span(), failure.what))?;
                (read, path.span())
            }
            _ => {
                let what =
                    "a job is either written here, [jobs.spec], or in a file, file = \"job.toml\"";
                return Err(self.wrong(span, what));
            }
        };
        let wrong = |failure: Failure| self.wrong(&at, failure.what);
        let wire = file
            .spec(nodes.gpu.as_ref().map(|g| g.sms))
            .map_err(wrong)?;
        let declared = |detector| {
            let mut wire = wire.clone();
            wire.rebalance.detector = detector;
            offline::declared(&wire).map_err(|bad| wrong(bad.into()))
        };
        let detectors = Detectors {
            streak: declared(client::Detector::Streak)?.rebalance.detector,
            cusum: declared(client::Detector::Cusum)?.rebalance.detector,
        };
        let mut spec = declared(wire.rebalance.detector)?;
        // How shares change has no part in a plan, but in a simulation.
        for (stage, said) in spec.stages.iter_mut().zip(&wire.stages) {
            stage.resize = match said.resize {
                ResizeMode::Live => Resize::Live,
                ResizeMode::Restart => Resize::Restart,
                ResizeMode::Fixed => Resize::Fixed,
            };
        }
        spec.rebalance.enabled = !wire.rebalance.frozen;
        Ok((spec, detectors))
    }

    fn truth(
        &self,
        file: &TruthFile,
        span: &Range<usize>,
        role: Role,
        restart_s: f64,
    ) -> Result<Truth, Failure> {
        Ok(Truth {
            law: self.law(file, span, role)?,
            variation: file.variation,
            noise: file.noise,
            restart_s: file.restart.unwrap_or(restart_s),
        })
    }

    fn law(&self, file: &TruthFile, span: &Range<usize>, role: Role) -> Result<Law, Failure> {
        let wrong = |what: &str| Err(self.wrong(span, what));
        let family = match (file.max_units_per_s, file.knee_sms) {
            (Some(max_units_per_s), Some(knee_sms)) => Some(Family {
                max_units_per_s,
                knee_sms,
                exponent: file.exponent,
                batch_half: file.batch_half,
            }),
            (None, None) => None,
            _ => return wrong("max_units_per_s and knee_sms belong together: write both"),
        };
        match (
            file.environments,
            file.step,
            &family,
            &file.points,
            &file.profile,
        ) {
            (Some(environments), Some(step_s), _, None, None) if role == Role::Simulation => {
                let crowd = crowd(file, environments, step_s);
                Ok(Law::Environments {
                    crowd,
                    render: family,
                })
            }
            (Some(_), Some(_), ..) => wrong(
                "environments and their steps are a stage of the role simulation, without points or a profile",
            ),
            (Some(_), None, ..) | (None, Some(_), ..) => {
                wrong("environments and step belong together: write both")
            }
            (None, None, Some(family), None, None) => Ok(Law::Family(*family)),
            (None, None, None, Some(points), None) => self.points(points, span),
            (None, None, None, None, Some(path)) => self
                .profile(path.get_ref())
                .map_err(|what| self.wrong(&path.span(), what)),
            _ => wrong(
                "a stage has one truth: environments and step, or max_units_per_s and knee_sms, or points, or a profile",
            ),
        }
    }

    fn points(&self, points: &[Spanned<PointFile>], span: &Range<usize>) -> Result<Law, Failure> {
        if points.len() > POINTS_MAX {
            let what = format!("{} points; at most {POINTS_MAX} are taken", points.len());
            return Err(self.wrong(span, what));
        }
        let mut places: BTreeSet<(u32, u32, u32)> = BTreeSet::new();
        for written in points {
            let p = written.get_ref();
            let what = if p.cores == 0 && p.sms == 0 {
                "a point without cores and SMs measures nothing".to_owned()
            } else if !places.insert((p.cores, p.sms, p.batch)) {
                format!(
                    "two points at {} cores, {} SMs, batch {}; leave one of them out",
                    p.cores, p.sms, p.batch
                )
            } else {
                continue;
            };
            return Err(self.wrong(&written.span(), what));
        }
        let points: Vec<Point> = points.iter().map(|p| point(p.get_ref())).collect();
        let curve = Curve::fit(&points, &[], 1.0, 1);
        let curve = curve.ok_or_else(|| self.wrong(span, "no point does any work"))?;
        Ok(Law::Points(curve))
    }

    fn profile(&self, path: &Path) -> Result<Law, String> {
        let path = self.beside.join(path);
        let profiles = read_profiles(&path).map_err(|failure| failure.what)?;
        let [profile] = profiles.as_slice() else {
            return Err(format!(
                "{} has {} profiles; one is wanted",
                path.display(),
                profiles.len()
            ));
        };
        // As the daemon fits it: repeats count together, and points of pairs are on no curve.
        let profile = offline::profile(profile)
            .map_err(|bad| format!("{}: {}: {}", path.display(), bad.path, bad.why))?;
        let curve = Curve::fit(&profile.points, &[], 1.0, 1);
        let nothing = || format!("{}: no point does any work", path.display());
        curve.map(Law::Points).ok_or_else(nothing)
    }

    fn kappa(&self, entry: &JobEntry, names: &[&str]) -> Result<Vec<Vec<f64>>, Failure> {
        let mut kappa = vec![vec![0.0; names.len()]; names.len()];
        for (slowed, by) in &entry.interference {
            for (by, value) in by {
                let wrong = |what| self.wrong(&value.span(), what);
                let (i, j) = (
                    index(names, slowed).map_err(wrong)?,
                    index(names, by).map_err(wrong)?,
                );
                if i == j {
                    return Err(wrong(format!("{slowed} does not slow itself down")));
                }
                kappa[i][j] = value.get_ref().0;
            }
        }
        Ok(kappa)
    }
}

fn index(names: &[&str], name: &str) -> Result<usize, String> {
    names.iter().position(|n| *n == name).ok_or_else(|| {
        let meant = nearest(name, names.iter().copied());
        let hint = meant.map_or_else(
            || format!("its stages are {}", names.join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        format!("the job has no stage `{name}`; {hint}")
    })
}

fn crowd(file: &TruthFile, environments: u32, step_s: f64) -> Crowd {
    Crowd {
        environments,
        chunk_steps: file.chunk,
        step_s,
        spread: match file.distribution {
            Distribution::Constant => 0.0,
            Distribution::Lognormal | Distribution::Gamma => file.spread,
        },
        gamma: file.distribution == Distribution::Gamma,
        straggler_share: file.stragglers.share,
        straggler_times: file.stragglers.times,
        reset_probability: file.resets.probability,
        reset_s: file.resets.cost,
    }
}

fn point(p: &PointFile) -> Point {
    Point {
        cores: p.cores,
        sms: Sms(p.sms),
        batch: p.batch,
        replicas: 1,
        rate: Rate::clamped(p.units_per_s),
        memory: Bytes(0),
        weight: 1.0,
        ..Point::default()
    }
}

fn drift(file: &DriftFile, names: &[&str]) -> Result<Drift, String> {
    let shape = match (file.kind, file.over, file.period) {
        (DriftKind::Step, None, None) => Shape::Step,
        (DriftKind::Ramp, Some(over_s), None) => Shape::Ramp { over_s },
        (DriftKind::Swing, None, Some(period_s)) => Shape::Swing {
            period_s: period_s.min(SECONDS_MAX),
            square: file.square,
        },
        (DriftKind::Step, ..) => return Err("a step has neither `over` nor `period`".to_owned()),
        (DriftKind::Ramp, ..) => {
            return Err("a ramp says how long it takes: over = \"1h\"".to_owned());
        }
        (DriftKind::Swing, ..) => {
            return Err("a swing says how long a turn is: period = \"5m\"".to_owned());
        }
    };
    Ok(Drift {
        stage: index(names, &file.stage)?,
        at_s: file.at,
        factor: file.factor,
        shape,
    })
}

/// The fine simulation steps environments: there has to be one stage of them.
fn check_chunks(job: &Job) -> Result<(), String> {
    let crowds = job
        .stages
        .iter()
        .filter(|s| s.law.crowd().is_some())
        .count();
    let roles = |role| {
        job.spec
            .stages
            .iter()
            .filter(move |s| s.role == role)
            .count()
    };
    let (generations, trainings) = (roles(Role::Generation), roles(Role::Training));
    let one_each = roles(Role::Simulation) == 1 && generations == 1 && trainings == 1;
    if crowds == 1 && one_each && roles(Role::Inference) == 0 {
        return Ok(());
    }
    Err(format!(
        "job {}: fidelity = \"chunk\" needs one simulation with environments, one generation, one training and \
         no inference; \
         use fidelity = \"step\"",
        job.spec.name
    ))
}
