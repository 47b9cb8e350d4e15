//! Trials of pairs with caps beyond their shares: half as much again, and the whole GPU. Only for jobs whose stages may
//! overlap (`sm_mode = "cap"`); whether that is worth anything is for the planner to see.
//!
//! A lease that goes beyond its guarantee would be in the way of others. So both run in one lease of the whole GPU, which
//! they wait for like everybody.
use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_client::{CoRunCaps, ProfilePoint};
use evenkeel_core::grant::percent;
use evenkeel_core::unit::Sms;

use super::corun::{Ground, Ran, Side, told};
use super::grid::Point;
use super::measure::Run;
use super::pair::{self, Both};
use super::trial::{self, Ended, Outcome};
use crate::fail::{Doing as _, Failure};
use crate::offline;

/// The caps that are tried.
pub(super) const CAPS: [CoRunCaps; 2] = [CoRunCaps::HalfMore, CoRunCaps::None];

/// How far a share reaches with such caps, in SMs that the GPU can enforce.
pub(super) fn reach(ground: &Ground<'_>, caps: CoRunCaps, point: Point) -> Option<Point> {
    let reached = offline::caps(caps).reach(Sms(point.sms), Sms(ground.gpu?.sms));
    let sms = ground.enforceable(reached.0)?.max(point.sms);
    Some(Point { sms, ..point })
}

/// One trial. `sides` have their shares, and what they do alone as far as the caps reach.
pub(super) async fn together(
    run: &mut Run<'_>,
    ground: &Ground<'_>,
    caps: CoRunCaps,
    sides: [(&Side<'_, '_>, Point); 2],
) -> Result<Vec<(usize, ProfilePoint)>, Failure> {
    let [(a, reach_a), (b, reach_b)] = sides;
    let pair = format!(
        "{} beside {}, up to {} and {} SMs",
        a.name(),
        b.name(),
        reach_a.sms,
        reach_b.sms
    );
    run.progress.set_message(pair.clone());
    let started = Instant::now();
    let whole = Point {
        cores: a.point.cores + b.point.cores,
        sms: ground.gpu.map_or(0, |gpu| gpu.sms),
        batch: 1,
        replicas: 1,
    };
    let memory = a.memory() + b.memory();
    let orders = sides.map(|(side, reach)| orders(run.job, ground, side, reach));
    let orders = serde_json::to_string(&orders).map_err(|error| {
        Failure::new(format!("cannot write down what a pair is to do: {error}"))
    })?;
    let limit = a.work.bench.limit().max(b.work.bench.limit());
    let mut command = trial::leased(run.globals, whole, memory, limit)?;
    let this = std::env::current_exe().doing("find this program")?;
    command
        .arg(this)
        .args(["calibrate", "pair"])
        .env(pair::VARIABLE, orders);
    let child = command.spawn().doing("start a trial")?;
    let ended = trial::ended(child, limit);
    let ended = run.waited(ended, (whole, memory), &pair).await?;
    run.count(started);
    let both = match ended {
        Ended::Well(said) => {
            let mut last = said.iter().rev();
            last.find_map(|line| serde_json::from_str::<Both>(line).ok())
        }
        Ended::Badly(why) | Ended::NotRun(why) | Ended::Broken(why) => {
            run.say(format_args!("{pair}: not measured: {why}"));
            return Ok(Vec::new());
        }
    };
    let Some(both) = both else {
        run.say(format_args!("{pair}: not measured: it printed no result"));
        return Ok(Vec::new());
    };
    let ran = |side: &Side<'_, '_>, of: pair::Told| {
        let outcome = trial::measured(side.point, of.units_per_s, of.memory_bytes);
        Ran::new(Outcome::Measured(outcome), of.ended, side.work.bench)
    };
    let [of_a, of_b] = both.sides;
    told(run, &pair, caps, [(a, ran(a, of_a)), (b, ran(b, of_b))]).await
}

/// What one side runs, and what it finds: its cap and its memory as MPS reads them.
fn orders(job: &str, ground: &Ground<'_>, side: &Side<'_, '_>, reach: Point) -> pair::Side {
    let work = side.work;
    let told = trial::variables(job, work.stage, work.bench, reach);
    let mut environment: BTreeMap<String, String> =
        told.map(|(name, value)| (name.to_owned(), value)).into();
    let all = Sms(ground.gpu.map_or(0, |gpu| gpu.sms));
    environment.insert(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(),
        percent(Sms(reach.sms), all).to_string(),
    );
    environment.insert(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(),
        format!("0={}M", side.memory() >> 20),
    );
    pair::Side {
        command: work.bench.command.clone(),
        environment,
        memory: side.memory(),
    }
}
