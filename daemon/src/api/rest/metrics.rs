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
use evenkeel_core::command::Caller;
use evenkeel_core::job::{Job, JobPhase};
use evenkeel_core::step::State;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::Anybody;
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

/// What the daemon counts: name, and what it is. A test holds that nothing is counted that is not here.
const COUNTERS: [(&str, &str); 16] = [
    (
        "evenkeel_requests_total",
        "gRPC requests by service and method.",
    ),
    ("evenkeel_renewals_total", "Renewals through sessions."),
    ("evenkeel_refusals_total", "Refused requests by reason."),
    (
        "evenkeel_connections_refused_total",
        "Connections over the limits, by listener.",
    ),
    (
        "evenkeel_door_refusals_total",
        "Refusals because of who asked, by door and reason; each has a line in the audit file.",
    ),
    (
        "evenkeel_audit_lines_left_out_total",
        "Refusals that were not written down: too many at once, or the disk is full.",
    ),
    (
        "evenkeel_limits_met_total",
        "Requests, streams and connections that a limit has ended, by limit.",
    ),
    ("evenkeel_events_total", "Committed events by kind."),
    (
        "evenkeel_events_pruned_total",
        "Events that were older than the audit trail is kept, and were deleted.",
    ),
    (
        "evenkeel_commits_total",
        "Transactions of the ledger by result.",
    ),
    (
        "evenkeel_alarms_total",
        "What should never happen, by kind. Above 0: look into the log.",
    ),
    (
        "evenkeel_affinity_drifts_total",
        "Times that a process was found off its lease's cores and bound to them again.",
    ),
    (
        "evenkeel_signals_total",
        "Signals sent to processes that outstayed their lease.",
    ),
    (
        "evenkeel_gpu_contexts_ended_total",
        "GPU contexts that were ended because their lease was over.",
    ),
    (
        "evenkeel_gpu_device_starts_total",
        "Starts of the emulated device after it had ended by itself.",
    ),
    (
        "evenkeel_reconcile_failures_total",
        "Looks at the hardware that failed, by backend.",
    ),
];
/// What has a value now.
const GAUGES: [(&str, &str); 3] = [
    (
        "evenkeel_traces_waiting_events",
        "Events of the audit trail that traces have not come to yet; rises while the collector takes none.",
    ),
    ("evenkeel_connections", "Open connections."),
    (
        "evenkeel_ledger_degraded",
        "1 while nothing new is granted: the ledger's disk is full, or its file or lock is not in its place.",
    ),
];
/// What is counted in buckets, with its unit.
const HISTOGRAMS: [(&str, Unit, &str); 3] = [
    (
        "evenkeel_commit_seconds",
        Unit::Seconds,
        "Time of a transaction of the ledger.",
    ),
    (
        "evenkeel_commit_events",
        Unit::Count,
        "Events in one transaction of the ledger.",
    ),
    (
        "evenkeel_reconcile_seconds",
        Unit::Seconds,
        "Time of one look at processes and GPUs.",
    ),
];

fn describe() {
    for (name, what) in COUNTERS {
        describe_counter!(name, Unit::Count, what);
    }
    for (name, what) in GAUGES {
        describe_gauge!(name, Unit::Count, what);
    }
    for (name, unit, what) in HISTOGRAMS {
        describe_histogram!(name, unit, what);
    }
}

/// Metrics
///
/// In Prometheus' text format.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    tag = "daemon",
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(super) async fn show(
    Extract(ctx): Extract<Arc<Context>>,
    Anybody(caller): Anybody,
) -> Result<Response, Problem> {
    let Some(recorder) = RECORDER.get().and_then(Option::as_ref) else {
        let detail = "this process records its metrics elsewhere";
        return Err(Problem::new(StatusCode::NOT_FOUND, "NO_METRICS", detail));
    };
    let who = caller.clone();
    let now = ctx.read(&caller, move |state, _| snapshot(state, &who));
    let now = now.await?;
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    Ok((kind, with_units(&(recorder.render() + &now))).into_response())
}

/// Says the unit of each metric that has one: it is the end of its name (OpenMetrics, "Unit").
fn with_units(page: &str) -> String {
    let mut all = String::with_capacity(page.len() + 1_024);
    for line in page.split_inclusive('\n') {
        all.push_str(line);
        let named = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split(' ').next());
        let Some(name) = named else { continue };
        let base = name.strip_suffix("_total").unwrap_or(name);
        let unit = ["seconds", "bytes", "ratio"].into_iter().find(|unit| {
            base.strip_suffix(unit)
                .is_some_and(|rest| rest.ends_with('_') && !rest.ends_with("_per_"))
        });
        if let Some(unit) = unit {
            let _ = writeln!(all, "# UNIT {name} {unit}"); // a String takes all
        }
    }
    all
}

/// Gauges of what is now. Of jobs, the caller's; what has no name in it is everyone's.
fn snapshot(state: &State, caller: &Caller) -> String {
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
    jobs(&mut page, state, caller);
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
    // A family's lines stand together: strict readers take no other order.
    page.head("evenkeel_pool_sms", "SMs of each GPU by state.");
    for (uuid, state, sms, _) in gpus(state) {
        // Named as DCGM's exporter names it: both join without a rewrite.
        let labels = [("UUID", uuid), ("state", state)];
        page.line("evenkeel_pool_sms", &labels, sms.into());
    }
    page.head(
        "evenkeel_pool_gpu_memory_bytes",
        "Leasable memory of each GPU by state, in bytes.",
    );
    for (uuid, state, _, bytes) in gpus(state) {
        let labels = [("UUID", uuid), ("state", state)];
        page.line("evenkeel_pool_gpu_memory_bytes", &labels, bytes as f64);
    }
}

/// Of each GPU and each state of its share: UUID, state, SMs, bytes.
fn gpus(state: &State) -> impl Iterator<Item = (&str, &str, u32, u64)> {
    let d = &state.durable;
    d.node().gpus.iter().flat_map(move |gpu| {
        let used = d.pool().used(gpu.id);
        let free = d.pool().free_on(d.node(), d.unavailable(), gpu.id);
        let lost = d.unavailable().gpus.get(&gpu.id);
        let lost = lost.copied().unwrap_or_default();
        let uuid = gpu.uuid.as_str();
        [
            (uuid, "used", used.sms.0, used.memory.0),
            (uuid, "free", free.sms.0, free.memory.0),
            (uuid, "unavailable", lost.0.0, lost.1.0),
        ]
    })
}

fn jobs(page: &mut Page, state: &State, caller: &Caller) {
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
    let own = |j: &&Job| caller.sees(&j.tenant, Some(&j.spec.name));
    let seen: Vec<&Job> = d.jobs().values().filter(own).collect();
    page.head(
        "evenkeel_job_moves",
        "How many times a job's shares have moved.",
    );
    for job in &seen {
        page.line("evenkeel_job_moves", &named(job), job.moves.into());
    }
    page.head(
        "evenkeel_job_predicted_units_per_second",
        "Work units per second that a job's plan predicts, by side.",
    );
    for (job, plan) in seen
        .iter()
        .filter_map(|job| Some((job, job.plan.as_ref()?)))
    {
        let who = named(job);
        for (side, rate) in [("rollout", plan.t_r), ("training", plan.t_train)] {
            let labels = [who[0], who[1], ("side", side)];
            page.line(
                "evenkeel_job_predicted_units_per_second",
                &labels,
                rate.get(),
            );
        }
    }
    page.head(
        "evenkeel_job_streak_windows",
        "Consecutive windows with a gap above the threshold, the same side slower.",
    );
    for job in &seen {
        if let Some(watch) = state.volatile.watches.get(&job.id) {
            let streak = watch.view().alarm.streak;
            page.line("evenkeel_job_streak_windows", &named(job), streak.into());
        }
    }
    let mut measured = Vec::new();
    for job in seen {
        let watch = state.volatile.watches.get(&job.id);
        let rates = watch.and_then(|w| w.measured(evenkeel_core::balance::SMOOTH));
        measured.extend(rates.map(|m| (named(job), m)));
    }
    page.head(
        "evenkeel_job_gap_ratio",
        "1 - min/max of rollout and training throughput.",
    );
    for (who, m) in &measured {
        page.line("evenkeel_job_gap_ratio", who, m.gap());
    }
    page.head(
        "evenkeel_job_units_per_second",
        "Measured work units per busy second by side.",
    );
    for (who, m) in &measured {
        for (side, rate) in [("rollout", m.t_r), ("training", m.t_train)] {
            let labels = [who[0], who[1], ("side", side)];
            page.line("evenkeel_job_units_per_second", &labels, rate.get());
        }
    }
}

fn named(job: &Job) -> [(&'static str, &str); 2] {
    [
        ("tenant", job.tenant.as_str()),
        ("job", job.spec.name.as_str()),
    ]
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

    #[test]
    fn units_are_said() {
        let page = "# HELP a_seconds x\n# TYPE a_seconds histogram\na_seconds_sum 1\n# TYPE b_bytes_total counter\n\
                    # TYPE c_per_second gauge\nc_per_second 1\n# TYPE d gauge";
        let units = with_units(page);
        let said: Vec<&str> = units.lines().filter(|l| l.starts_with("# UNIT")).collect();
        assert_eq!(
            said,
            ["# UNIT a_seconds seconds", "# UNIT b_bytes_total bytes"]
        );
        assert_eq!(
            units
                .replace("# UNIT a_seconds seconds\n", "")
                .replace("# UNIT b_bytes_total bytes\n", ""),
            page
        );
    }

    /// The names that a file counts under.
    fn counted(text: &str) -> impl Iterator<Item = &str> {
        let kinds = ["counter!(", "gauge!(", "histogram!("];
        kinds.into_iter().flat_map(move |kind| {
            let start = ["metrics::", kind].concat();
            let uses = text.split(start.as_str()).skip(1);
            uses.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
                .collect::<Vec<_>>()
        })
    }

    #[test]
    fn everything_that_is_counted_is_described() {
        let described: Vec<&str> = COUNTERS
            .into_iter()
            .chain(GAUGES)
            .map(|(name, _)| name)
            .chain(HISTOGRAMS.map(|(name, ..)| name))
            .collect();
        let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut seen = std::collections::BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                for name in counted(&text) {
                    assert!(described.contains(&name), "{name} in {}", path.display());
                    seen.insert(name.to_owned());
                }
            }
        }
        assert_eq!(seen.len(), described.len(), "described, and never counted");
    }

    #[test]
    fn dashboard_and_alerts_ask_for_metrics_that_there_are() {
        let own = include_str!("metrics.rs");
        let files = [
            include_str!("../../../../config/dashboard.json"),
            include_str!("../../../../config/alerts.yml"),
        ];
        for file in files {
            let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
            let mut asked = 0;
            for (at, _) in file.match_indices("evenkeel_") {
                let rest = &file[at..];
                let name = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
                let name = name.trim_end_matches("_bucket");
                assert!(own.contains(&format!("\"{name}\"")), "{name}");
                asked += 1;
            }
            assert!(asked > 10, "nothing is asked for");
        }
    }
}
