//! The demo with a drift: calibrate, submit, run, drift, wait for the daemon to move the shares, run on, sum up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use evenkeel_client::{JobSpec, Node, blocking};
use evenkeel_rollout::affinity::boottime_ns;

use super::calibrate::{self, Trial};
use super::closing;
use super::fleet::{Fleet, Site};
use super::jobspec::{JOB, SIMULATOR_CORES_MAX, UNIT, job, leasable_cores};
use super::load::Load;
use super::report::Figures;
use super::rivals::{self, Field};
use super::seeds::{Script, Stage, script};
use super::show::Screen;
use super::site::Place;
use super::talk::{Down, Share, Watched};
use super::watch::Watch;
use super::{DemoArgs, DemoError, DemoPolicy};

/// How long the daemon may take from the drift to the move: 20 windows of up to a second, and the median's delay,
/// doubled for a loaded machine.
const MOVE_WITHIN: Duration = Duration::from_secs(45);
/// What was under way when the load changed is over after this time: it is not measured as the new load.
const DRIFT_REACHES_ALL: Duration = Duration::from_millis(1_500);
/// Training steps over which a success rate is counted: hundreds of episodes.
const SUCCESS_STEPS: usize = 20;
/// How long one look at the workers waits for them to say something.
const LISTEN: Duration = Duration::from_millis(50);

/// A calibrated job on a running daemon.
pub(crate) struct Prepared {
    pub(crate) place: Place,
    pub(crate) client: blocking::Client,
    pub(crate) node: Node,
    pub(crate) script: Script,
    pub(crate) load: Load,
    pub(crate) trials: Vec<Trial>,
    pub(crate) spec: JobSpec,
    pub(crate) site: Site,
}

/// Starts device and daemon, calibrates, and has everything ready to be submitted.
pub(crate) fn prepare(
    args: &DemoArgs,
    stop: &Arc<AtomicBool>,
    screen: &mut Screen,
) -> Result<Prepared, DemoError> {
    let script = script(args.seed);
    screen.phase("starting a daemon and an EMULATED H100 in a temporary directory");
    let mut place = Place::open(Arc::clone(stop))?;
    let client = place.start_daemon()?;
    let node = client.node()?;
    let (jobs, cores) = (usize::from(args.jobs), leasable_cores(&node));
    if jobs > 1 && cores.len() < jobs {
        let cores = cores.len();
        return Err(DemoError::FewCores { cores, jobs });
    }
    screen.phase("calibrating: pairs of shares on the EMULATED GPU");
    let gpu = place.gpu();
    let mut trials = calibrate::gpu(&gpu, Load::base(1), jobs, stop, |pair| screen.trial(pair))?;
    let cpus: Vec<u32> = cores.into_iter().take(SIMULATOR_CORES_MAX).collect();
    let first = *cpus.first().ok_or(DemoError::NoCores)?;
    let simulator = calibrate::balanced_rate(&trials) * script.simulator_headroom;
    let load = Load::base(calibrate::substeps_for(simulator, first, args.seed)?);
    screen.phase(&format!(
        "calibrating: the real physics ({} substeps a step) on up to {} of the cores",
        load.substeps,
        cpus.len()
    ));
    trials.extend(calibrate::simulation(load, &cpus, args.seed)?);
    let model = node.gpus.first().map_or("none", |gpu| &gpu.model);
    calibrate::report(&client, (JOB, jobs), model, &trials)?;
    let spec = job(&node, args.policy, jobs);
    let site = place.site(args.seed);
    Ok(Prepared {
        place,
        client,
        node,
        script,
        load,
        trials,
        spec,
        site,
    })
}

impl Prepared {
    /// Starts the three workers under the daemon's leases.
    pub(crate) fn managed(&self) -> Result<Fleet, DemoError> {
        let mut fleet = self.launch(&self.site, JOB)?;
        fleet.wait_until_ready()?;
        Ok(fleet)
    }

    /// Starts the three workers of a job; they come by their leases while somebody listens.
    pub(crate) fn launch(&self, site: &Site, job: &str) -> Result<Fleet, DemoError> {
        let daemon = self.place.socket();
        Fleet::launch(site, self.load, |_| Share::Leased {
            daemon: daemon.clone(),
            job: job.to_owned(),
        })
    }

    /// Starts the observer and points it at the workers.
    pub(crate) fn observe(&self, fleet: &Fleet) -> Result<Fleet, DemoError> {
        let observer = Fleet::observer(&self.site, self.load)?;
        observer.tell(&Down::Watch(self.watched(fleet)));
        Ok(observer)
    }

    /// What the observer has to know of the workers.
    pub(crate) fn watched(&self, fleet: &Fleet) -> Vec<Watched> {
        let owns = |stage: Stage| {
            let spec = self.spec.stages.iter().find(|s| s.name == stage.name());
            spec.is_some_and(|s| s.min_cores > 0)
        };
        let watched = Stage::ALL.map(|stage| Watched {
            pid: fleet.pid(stage),
            owns_cores: owns(stage),
        });
        watched.to_vec()
    }
}

/// The name of a policy.
pub(crate) fn policy_name(policy: DemoPolicy) -> String {
    match policy {
        DemoPolicy::Waterfill => "waterfill",
        DemoPolicy::Ebrl => "ebrl",
    }
    .to_owned()
}

/// What was measured under the daemon.
struct Managed {
    figures: Figures,
    drifted: Load,
}

/// Tells the whole story; the figures at its end.
pub(crate) fn run(
    args: &DemoArgs,
    stop: &Arc<AtomicBool>,
    mut screen: Screen,
) -> Result<Figures, DemoError> {
    let started = Instant::now();
    let mut stage = prepare(args, stop, &mut screen)?;
    let Managed {
        mut figures,
        drifted,
    } = managed(args, &stage, &mut screen)?;
    if args.full {
        stage.place.end_daemon();
        let field = Field {
            site: &stage.site,
            load: drifted,
            drift: stage.script.drift,
            trials: &stage.trials,
            cpus: leasable_cores(&stage.node),
            length: Duration::from_secs(args.seconds),
        };
        rivals::compare(&field, &mut figures, &mut screen)?;
    }
    figures.run_seconds = started.elapsed().as_secs_f64();
    screen.close(&closing::summary(&figures));
    Ok(figures)
}

/// The part under the daemon: before the drift, after it, and rebalanced.
fn managed(args: &DemoArgs, stage: &Prepared, screen: &mut Screen) -> Result<Managed, DemoError> {
    let length = Duration::from_secs(args.seconds);
    let drift = stage.script.drift;
    screen.phase("submitting the job; simulation, generation and training take their leases");
    stage.client.submit(JobSpec::request_id(), &stage.spec)?;
    let mut fleet = stage.managed()?;
    let mut observer = stage.observe(&fleet)?;
    let mut watch = Watch::new(&stage.client, JOB)?;
    watch.settle(&mut fleet, screen)?;

    screen.phase("before the drift");
    let before = fleet.measure(length, |fleet| watch.look(fleet, screen))?;
    let (before_gap, split_before) = (watch.gap(), watch.split());
    let success_rate_first = success_rate(&fleet, true);

    screen.phase(&format!(
        "SCRIPTED change of the task: {}; the shares stay until the gap has been above 15 % for 20 steps",
        drift.describe()
    ));
    let drifted = stage.load.drifted(drift);
    let noticed = wait_for_move(&mut fleet, &mut watch, screen, drifted)?;

    screen.phase("the daemon moves the shares, and refits once from what it measures then");
    watch.settle(&mut fleet, screen)?;
    screen.phase("rebalanced");
    let after = fleet.measure(length, |fleet| watch.look(fleet, screen))?;
    let found = observer.found()?;
    observer.end();
    let success_rate_last = success_rate(&fleet, false);
    fleet.end();
    stage.client.cancel_job(JOB)?;
    let figures = Figures {
        gpu_is_emulated: true,
        seed: args.seed,
        policy: policy_name(args.policy),
        drift,
        unit: UNIT,
        phase_seconds: args.seconds,
        before_drift_units_per_s: before.units_per_s,
        static_units_per_s: noticed.units_per_s,
        rebalanced_units_per_s: after.units_per_s,
        gain: after.units_per_s / noticed.units_per_s,
        predicted_gain: noticed.predicted_gain,
        before_gap,
        after_gap: watch.gap(),
        split_before,
        split_after: watch.split(),
        detection_seconds: noticed.seconds,
        rebalances: std::mem::take(&mut watch.moves),
        staleness_most: before.staleness.max(after.staleness),
        success_rate_first,
        success_rate_last,
        overcommit_seconds: found.overcommit_seconds,
        observer: found,
        physics_substeps: stage.load.substeps,
        run_seconds: 0.0,
        rivals: None,
    };
    Ok(Managed { figures, drifted })
}

/// What happened between the drift and the move.
struct Noticed {
    /// From the drift to the decision.
    seconds: f64,
    /// Throughput meanwhile: the old split under the new load.
    units_per_s: f64,
    /// What the new plan promises over what the sides' busy rates allowed before it.
    predicted_gain: f64,
}

/// Changes the load and waits until the daemon has moved the shares.
fn wait_for_move(
    fleet: &mut Fleet,
    watch: &mut Watch<'_>,
    screen: &mut Screen,
    drifted: Load,
) -> Result<Noticed, DemoError> {
    let moves = watch.moves.len();
    let drift_at = Instant::now();
    let from_ns = boottime_ns() + DRIFT_REACHES_ALL.as_nanos() as u64;
    fleet.tell(&Down::Load(drifted));
    while watch.moves.len() == moves {
        fleet.listen(LISTEN)?;
        fleet.check_stall()?;
        watch.look(fleet, screen)?;
        if drift_at.elapsed() > MOVE_WITHIN {
            return Err(DemoError::NoMove {
                seconds: MOVE_WITHIN.as_secs(),
                last: watch.last_word(),
            });
        }
    }
    let planned = watch.job.plan.as_ref().map_or(0.0, |plan| plan.units_per_s);
    Ok(Noticed {
        seconds: drift_at.elapsed().as_secs_f64(),
        units_per_s: fleet.measured(from_ns, boottime_ns()).units_per_s,
        predicted_gain: planned / watch.theta_before_move,
    })
}

/// Successes over ended episodes, in the first or the last steps.
fn success_rate(fleet: &Fleet, first: bool) -> f64 {
    let steps = &fleet.steps;
    let at = if first {
        0
    } else {
        steps.len().saturating_sub(SUCCESS_STEPS)
    };
    let some = steps.iter().skip(at).take(SUCCESS_STEPS);
    let (ends, successes) = some.fold((0, 0), |(ends, successes), step| {
        (ends + step.episodes, successes + step.successes)
    });
    f64::from(successes) / f64::from(ends.max(1))
}
