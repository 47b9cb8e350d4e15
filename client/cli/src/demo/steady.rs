//! The demo without a drift: managed and static runs in turn. Nothing should move, and the daemon should cost nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use evenkeel_client::JobSpec;

use super::closing;
use super::jobspec::{JOB, UNIT, leasable_cores};
use super::report::{Pair, SteadyFigures};
use super::rivals::execute;
use super::show::Screen;
use super::story::{Prepared, policy_name, prepare};
use super::talk::Observed;
use super::watch::Watch;
use super::{DemoArgs, DemoError};

/// Runs the pairs.
pub(crate) fn run(
    args: &DemoArgs,
    stop: &Arc<AtomicBool>,
    mut screen: Screen,
) -> Result<SteadyFigures, DemoError> {
    let started = Instant::now();
    let length = Duration::from_secs(args.seconds);
    let mut stage = prepare(args, stop, &mut screen)?;
    let cpus = leasable_cores(&stage.node);
    let (mut pairs, mut observer) = (Vec::new(), Observed::default());
    for number in 1..=args.pairs {
        if number > 1 {
            // The ledger is the same: the profiles are there.
            stage.client = stage.place.start_daemon()?;
        }
        screen.phase(&format!(
            "pair {number} of {}: under the daemon",
            args.pairs
        ));
        let (managed, found) = managed(&stage, length, &mut screen)?;
        observer.add(found);
        stage.place.end_daemon();
        screen.phase(&format!(
            "pair {number} of {}: the same split ({}) without a daemon",
            args.pairs, managed.split
        ));
        let fixed = execute(&stage.site, stage.load, managed.split, &cpus, length)?;
        let pair = Pair {
            static_units_per_s: fixed.units_per_s,
            ..managed
        };
        screen.note(&format!(
            "managed {:.0}, static {:.0} {UNIT}/s, {} moves",
            pair.managed_units_per_s, pair.static_units_per_s, pair.moves
        ));
        pairs.push(pair);
    }
    let mean = |f: fn(&Pair) -> f64| pairs.iter().map(f).sum::<f64>() / pairs.len().max(1) as f64;
    let managed_units_per_s = mean(|pair| pair.managed_units_per_s);
    let static_units_per_s = mean(|pair| pair.static_units_per_s);
    let figures = SteadyFigures {
        gpu_is_emulated: true,
        seed: args.seed,
        policy: policy_name(args.policy),
        unit: UNIT,
        phase_seconds: args.seconds,
        moves: pairs.iter().map(|pair| pair.moves).sum(),
        managed_units_per_s,
        static_units_per_s,
        ratio: managed_units_per_s / static_units_per_s,
        pairs,
        overcommit_seconds: observer.overcommit_seconds,
        observer,
        run_seconds: started.elapsed().as_secs_f64(),
    };
    screen.close(&closing::steady_summary(&figures));
    Ok(figures)
}

/// One run under the daemon, from the submission to the end of the job; and what the observer saw of it.
fn managed(
    stage: &Prepared,
    length: Duration,
    screen: &mut Screen,
) -> Result<(Pair, Observed), DemoError> {
    stage.client.submit(JobSpec::request_id(), &stage.spec)?;
    let mut fleet = stage.managed()?;
    let mut observer = stage.observe(&fleet)?;
    let mut watch = Watch::new(&stage.client, JOB)?;
    watch.settle(&mut fleet, screen)?;
    let measured = fleet.measure(length, |fleet| watch.look(fleet, screen))?;
    let found = observer.found()?;
    observer.end();
    fleet.end();
    stage.client.cancel_job(JOB)?;
    let pair = Pair {
        managed_units_per_s: measured.units_per_s,
        static_units_per_s: 0.0,
        split: watch.split(),
        gap: watch.gap(),
        moves: watch.job.moves,
    };
    Ok((pair, found))
}
