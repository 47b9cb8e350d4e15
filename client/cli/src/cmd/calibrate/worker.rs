//! One trial by a running worker that offers itself over its session: nothing is started here, and no lease is taken.
use std::time::{Duration, Instant};

use evenkeel_client::{Error, Rejection, Trial, TrialAnswer, TrialRequest};

use super::grid::Point;
use super::measure::{Run, Work};
use super::trial::{Outcome, WAIT, measured};
use crate::fail::{Doing as _, Failure, NOT_FOUND};
use crate::units::show_duration;

/// How often it is looked whether a worker offers itself by now.
const LOOK: Duration = Duration::from_millis(500);

/// Runs one trial. Dropping the future leaves the worker to finish for nobody.
pub(super) async fn run(run: &Run<'_>, work: &Work<'_>, point: Point) -> Result<Outcome, Failure> {
    let (bench, stage) = (work.bench, &work.key.stage);
    let request = TrialRequest {
        stage: stage.clone(),
        trial: Trial {
            id: 0,
            cores: point.cores,
            sms: point.sms,
            batch: point.batch,
            replicas: point.replicas,
            warmup: bench.warmup,
            measure: bench.seconds,
        },
        // The job file's limit is for the measurement, too.
        patience: bench.timeout.saturating_sub(bench.seconds).max(LOOK),
    };
    let zero = |why: String| Outcome::DoesNotFit(measured(point, 0.0, 0), why);
    let (mut began, mut gone) = (Instant::now(), false);
    loop {
        let answer = run.client.run_trial(request.clone()).await;
        return Ok(match answer {
            Ok(TrialAnswer::Measured {
                units_per_s,
                memory_bytes,
            }) => Outcome::Measured(measured(point, units_per_s, memory_bytes)),
            Ok(TrialAnswer::Failed { why }) => zero(why),
            Err(Error::NotFound { .. }) if began.elapsed() < WAIT => {
                run.say_once(&format!(
                    "waits for a worker that offers itself for trials of {stage}, for up to {}",
                    show_duration(WAIT)
                ));
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(Error::NotFound { .. }) => return Err(nobody(stage)),
            // A trial that is made twice does no harm.
            Err(Error::Unavailable { .. }) if began.elapsed() < WAIT => {
                run.say_once("the daemon does not answer; asks again for a while");
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(Error::Rejected(r)) => match r.reason.as_str() {
                // Somebody may have ended it for another reason: a crash is one that happens again.
                "WORKER_GONE" if !gone => {
                    run.say(format_args!(
                        "{stage}: {}; it is tried once more",
                        r.message
                    ));
                    (began, gone) = (Instant::now(), true);
                    continue;
                }
                "WORKER_GONE" => zero("its worker went away twice in the middle of it".to_owned()),
                "BEYOND_LEASE" => beyond(point, *r),
                "BUSY" if began.elapsed() < WAIT => {
                    run.say_once(&format!("waits: {}", r.message));
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                "BUSY" => Outcome::Skipped(r.message),
                _ => Err(Error::Rejected(r)).doing(format_args!("measure {stage}"))?,
            },
            Err(other) => Err(other).doing(format_args!("measure {stage}"))?,
        });
    }
}

/// Of what is short, so much less may be tried.
fn beyond(point: Point, r: Rejection) -> Outcome {
    let short_by = u32::try_from(r.short_by.unwrap_or(0)).unwrap_or(u32::MAX);
    let most = match r.resource.as_deref() {
        Some("sms") => Point {
            sms: point.sms.saturating_sub(short_by),
            cores: u32::MAX,
            ..point
        },
        Some("cores") => Point {
            cores: point.cores.saturating_sub(short_by),
            sms: u32::MAX,
            ..point
        },
        _ => return Outcome::Skipped(r.message),
    };
    Outcome::Beyond {
        most,
        reason: r.message,
    }
}

fn nobody(stage: &str) -> Failure {
    let what = format!("no worker offers itself for trials of {stage}");
    Failure::new(what).code(NOT_FOUND).hint(
        "Start one under a lease as large as what is to be tried (`evenkeel run --cores … --sm … -- …`). What was measured \
         is stored, and the same command goes on from here.",
    )
}
