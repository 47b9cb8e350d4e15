//! `/metrics` in Prometheus' text format: what the daemon counts as it goes (the `metrics` facade), and below it
//! what pool, leases and jobs look like at the scrape. The latter is written here by hand, so that the gauges of a
//! job end with the job.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::State as Extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use evenkeel_core::job::JobPhase;
use evenkeel_core::step::State;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::onlooker;
use super::problem::Problem;
use crate::api::context::Context;

/// Samples of histograms are folded in so often, whether or not anybody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// Upper ends of the buckets for times, in seconds: from a fast disk to a stuck one.
const SECONDS: [f64; 12] = [
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.5, 2.0,
];
/// Upper ends of the buckets for events of one commit.
const EVENTS: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0];

/// The process has one recorder.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder, once for the process, and keeps it small.
pub(super) fn install(tasks: &TaskTracker, stop: &CancellationToken) {
    let Some(recorder) = RECORDER.get_or_init(recorder).clone() else {
        return;
    };
    let stop = stop.clone();
    tasks.spawn(async move {
        let mut beat = tokio::time::interval(UPKEEP);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = beat.tick() => recorder.run_upkeep(),
            }
        }
    });
}

fn recorder() -> Option<PrometheusHandle> {
    let seconds = Matcher::Suffix("_seconds".into());
    let events = Matcher::Full("evenkeel_commit_events".into());
    let built = PrometheusBuilder::new()
        .set_buckets_for_metric(seconds, &SECONDS)
        .and_then(|b| b.set_buckets_for_metric(events, &EVENTS))
        .and_then(PrometheusBuilder::install_recorder);
    match built {
        Ok(recorder) => {
            describe();
            Some(recorder)
        }
        Err(error) => {
            tracing::warn!(%error, "no metrics: another recorder was installed before");
            None
        }
    }
}

fn describe() {
    let count = Unit::Count;
    describe_counter!(
        "evenkeel_requests_total",
        count,
        "gRPC requests by service and method."
    );
    describe_counter!(
        "evenkeel_renewals_total",
        count,
        "Renewals through sessions."
    );
    describe_counter!(
        "evenkeel_refusals_total",
        count,
        "Refused requests by reason."
    );
    describe_counter!(
        "evenkeel_connections_refused_total",
        count,
        "Connections over the limits."
    );
    describe_gauge!("evenkeel_connections", count, "Open connections.");
    describe_counter!("evenkeel_events_total", count, "Committed events by kind.");
    describe_counter!(
        "evenkeel_commits_total",
        count,
        "Transactions of the ledger by result."
    );
    describe_counter!(
        "evenkeel_alarms_total",
        count,
        "What should never happen, by kind. Above 0: a bug."
    );
    describe_gauge!(
        "evenkeel_ledger_degraded",
        "1 while the ledger's disk is full and nothing is granted."
    );
    describe_histogram!(
        "evenkeel_commit_seconds",
        Unit::Seconds,
        "Time of a transaction of the ledger."
    );
    describe_histogram!(
        "evenkeel_commit_events",
        count,
        "Events in one transaction of the ledger."
    );
}

/// The page.
pub(super) async fn show(Extract(ctx): Extract<Arc<Context>>) -> Result<Response, Problem> {
    let Some(recorder) = RECORDER.get().and_then(Option::as_ref) else {
        let detail = "this process records its metrics elsewhere";
        return Err(Problem::new(StatusCode::NOT_FOUND, "NO_METRICS", detail));
    };
    let now = ctx.read(&onlooker(), |state, _| snapshot(state)).await?;
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    Ok((kind, recorder.render() + &now).into_response())
}

/// Gauges of what is now.
fn snapshot(state: &State) -> String {
    let mut page = Page(String::new());
    pool(&mut page, state);
    let d = &state.durable;
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    d.leases()
        .values()
        .for_each(|l| *phases.entry(l.phase.name().as_str()).or_default() += 1);
    page.head("evenkeel_leases", "Leases by phase.");
    for (phase, n) in phases {
        page.line("evenkeel_leases", &[("phase", phase)], n as f64);
    }
    page.head("evenkeel_queue_length", "Requests that wait for room.");
    page.line("evenkeel_queue_length", &[], d.queue_len() as f64);
    jobs(&mut page, state);
    page.0
}

fn pool(page: &mut Page, state: &State) {
    let d = &state.durable;
    let free = d.pool().free_cores().len();
    let leasable = d.node().leasable_cores();
    let lost = leasable.intersection(&d.unavailable().cores).len();
    page.head("evenkeel_pool_cores", "Leasable cores by state.");
    let used = leasable.len().saturating_sub(free + lost);
    for (state, n) in [("used", used), ("free", free), ("unavailable", lost)] {
        page.line("evenkeel_pool_cores", &[("state", state)], n.into());
    }
    page.head("evenkeel_pool_sms", "SMs of each GPU by state.");
    page.head(
        "evenkeel_pool_gpu_memory_bytes",
        "Leasable memory of each GPU by state, in bytes.",
    );
    for gpu in &d.node().gpus {
        let used = d.pool().used(gpu.id);
        let free = d.pool().free_on(d.node(), d.unavailable(), gpu.id);
        let lost = d
            .unavailable()
            .gpus
            .get(&gpu.id)
            .copied()
            .unwrap_or_default();
        let amounts = [
            ("used", used.sms.0, used.memory.0),
            ("free", free.sms.0, free.memory.0),
            ("unavailable", lost.0.0, lost.1.0),
        ];
        for (state, sms, bytes) in amounts {
            let labels = [("gpu_uuid", gpu.uuid.as_str()), ("state", state)];
            page.line("evenkeel_pool_sms", &labels, sms.into());
            page.line("evenkeel_pool_gpu_memory_bytes", &labels, bytes as f64);
        }
    }
}

fn jobs(page: &mut Page, state: &State) {
    let d = &state.durable;
    page.head("evenkeel_jobs", "Live jobs by phase.");
    for (phase, name) in [
        (JobPhase::Queued, "queued"),
        (JobPhase::Admitted, "admitted"),
        (JobPhase::Parked, "parked"),
    ] {
        let n = d.jobs().values().filter(|j| j.phase == phase).count();
        page.line("evenkeel_jobs", &[("phase", name)], n as f64);
    }
    page.head(
        "evenkeel_job_gap_ratio",
        "1 - min/max of rollout and training throughput.",
    );
    page.head(
        "evenkeel_job_units_per_second",
        "Measured work units per busy second by side.",
    );
    page.head(
        "evenkeel_job_moves",
        "How many times a job's shares have moved.",
    );
    for job in d.jobs().values() {
        let who = [
            ("tenant", job.tenant.as_str()),
            ("job", job.spec.name.as_str()),
        ];
        page.line("evenkeel_job_moves", &who, job.moves.into());
        let watch = state.volatile.watches.get(&job.id);
        let Some(m) = watch.and_then(|w| w.measured(evenkeel_core::balance::SMOOTH)) else {
            continue;
        };
        page.line("evenkeel_job_gap_ratio", &who, m.gap());
        for (side, rate) in [("rollout", m.t_r), ("training", m.t_train)] {
            let labels = [who[0], who[1], ("side", side)];
            page.line("evenkeel_job_units_per_second", &labels, rate.get());
        }
    }
}

/// A page in Prometheus' text format.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge"); // a String takes all
    }
    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let open = if i == 0 { '{' } else { ',' };
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{open}{label}=\"{text}\"");
        }
        self.0.push_str(if labels.is_empty() { " " } else { "} " });
        let _ = writeln!(self.0, "{value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page(String::new());
        page.line("m", &[("job", "a\"b\\c"), ("side", "x")], 0.5);
        page.line("n", &[], 3.0);
        assert_eq!(page.0, "m{job=\"a\\\"b\\\\c\",side=\"x\"} 0.5\nn 3\n");
    }
}
