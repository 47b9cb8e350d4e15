//! From failures to canonical gRPC codes with `google.rpc.ErrorInfo`. What another tenant has is not told.
//!
//! `ErrorInfo.reason` is [`Rejection::reason`] or one of the reasons below; the domain is [`DOMAIN`]; metadata
//! name the field, the resource, by how much it is short, and who holds it.
use std::collections::HashMap;
use std::time::Duration;

use evenkeel_core::command::{Caller, Rejection, Resource};
use evenkeel_core::unit::Millis;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::convert::Bad;
use super::limits::COME_BACK;
use crate::handle::Failure;

/// The domain of all reasons.
pub(super) const DOMAIN: &str = "evenkeel.dev";
/// When a caller that met a limit on what lives should come back: something has to end first.
const SOMETHING_ENDS: Duration = Duration::from_secs(1);

/// A failure as the caller sees it.
pub(super) fn status(failure: Failure, caller: &Caller) -> Status {
    let message = match &failure {
        Failure::Rejected(_) => String::new(),
        other => other.to_string(),
    };
    match failure {
        Failure::Rejected(rejection) => rejected(rejection, caller),
        Failure::Busy { retry } => busy(&message, Duration::from_millis(retry.0)),
        Failure::DiskFull => plain(Code::Unavailable, "DISK_FULL", &message),
        Failure::Misplaced(_) => plain(Code::Unavailable, "LEDGER_MISPLACED", &message),
        Failure::Ledger(_) => plain(Code::Unavailable, "LEDGER", &message),
        Failure::InDoubt => plain(Code::Unavailable, "IN_DOUBT", &message),
        Failure::QueueTimeout { .. } => plain(Code::DeadlineExceeded, "QUEUE_TIMEOUT", &message),
        Failure::Stopping => stopping(),
    }
}

/// A renewal of which nobody can say what became: to be tried again, whatever the failure was.
pub(super) fn undecided(failure: Failure, caller: &Caller) -> Status {
    let told = status(failure, caller);
    if told.code() == Code::Unavailable {
        return told;
    }
    let message = format!(
        "whether the lease is renewed cannot be said now; renew it again ({})",
        told.message()
    );
    plain(Code::Unavailable, "UNDECIDED", &message)
}

fn rejected(rejection: Rejection, caller: &Caller) -> Status {
    let rejection = redacted(rejection, caller);
    let reason = rejection.reason();
    metrics::counter!("evenkeel_refusals_total", "reason" => reason).increment(1);
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata(&rejection));
    if let Rejection::Invalid { field, why } = &rejection {
        details.add_bad_request_violation(*field, why.clone());
    }
    if may_pass(&rejection) {
        details.set_retry_info(Some(SOMETHING_ENDS));
    }
    Status::with_error_details(code(&rejection), rejection.to_string(), details)
}

const fn code(rejection: &Rejection) -> Code {
    match rejection {
        Rejection::Short { .. } | Rejection::Limit { .. } => Code::ResourceExhausted,
        Rejection::Never { .. }
        | Rejection::Draining
        | Rejection::WrongPhase { .. }
        | Rejection::Fenced { .. }
        | Rejection::Lost { .. }
        | Rejection::JobQueued(_) => Code::FailedPrecondition,
        Rejection::NotFound(_) => Code::NotFound,
        Rejection::OtherBody(_) | Rejection::NameTaken(_) | Rejection::SlotTaken { .. } => {
            Code::AlreadyExists
        }
        Rejection::Invalid { .. } => Code::InvalidArgument,
        Rejection::NotAdmin => Code::PermissionDenied,
        Rejection::Invariant(_) => Code::Internal,
    }
}

/// A limit on what lives passes when something ends; one on what a request asks does not.
fn may_pass(rejection: &Rejection) -> bool {
    const LIVING: [&str; 3] = ["live leases", "requests in the queue", "live jobs"];
    matches!(rejection, Rejection::Limit { what, .. } if LIVING.contains(what))
}

fn metadata(rejection: &Rejection) -> HashMap<String, String> {
    let mut all = HashMap::new();
    let mut put = |key: &str, value: String| drop(all.insert(key.to_owned(), value));
    match rejection {
        Rejection::Short {
            resource,
            asked,
            free,
            short_by,
            holder,
        } => {
            put("resource", resource_name(*resource).into());
            put("short_by", short_by.to_string());
            put("asked", asked.to_string());
            put("free", free.to_string());
            if let Some(holder) = holder {
                put("holder", holder.clone());
            }
            if let Some(gpu) = gpu(*resource) {
                put("gpu", gpu.to_string());
            }
        }
        Rejection::Never {
            resource,
            asked,
            has,
        } => {
            put("resource", resource_name(*resource).into());
            put("short_by", asked.saturating_sub(*has).to_string());
            put("asked", asked.to_string());
            put("has", has.to_string());
        }
        Rejection::Invalid { field, .. } => put("field", (*field).into()),
        Rejection::Limit { what, limit } => {
            put("what", (*what).into());
            put("limit", limit.to_string());
        }
        Rejection::Fenced { id, given } => {
            put("lease_id", id.0.to_string());
            put("given", given.0.to_string());
        }
        Rejection::Lost { id, .. } => put("lease_id", id.0.to_string()),
        Rejection::WrongPhase { id, phase, .. } => {
            put("lease_id", id.0.to_string());
            put("phase", phase.as_str().into());
        }
        Rejection::SlotTaken { lease, .. } => put("lease_id", lease.0.to_string()),
        _ => {}
    }
    all
}

const fn resource_name(resource: Resource) -> &'static str {
    match resource {
        Resource::Cores => "cores",
        Resource::Sms(_) => "sms",
        Resource::Memory(_) => "memory_bytes",
        Resource::Gpus => "gpus",
    }
}

fn gpu(resource: Resource) -> Option<u16> {
    match resource {
        Resource::Sms(gpu) | Resource::Memory(gpu) => gpu.map(|g| g.0),
        Resource::Cores | Resource::Gpus => None,
    }
}

/// Takes out who else has what, unless the caller may know.
fn redacted(rejection: Rejection, caller: &Caller) -> Rejection {
    match rejection {
        Rejection::Short {
            resource,
            asked,
            free,
            short_by,
            holder: Some(holder),
        } if !caller.admin => Rejection::Short {
            resource,
            asked,
            free,
            short_by,
            holder: Some(redacted_holder(holder, caller)),
        },
        other => other,
    }
}

/// A refusal in words, without what the caller may not know.
pub(super) fn told(rejection: Rejection, caller: &Caller) -> String {
    redacted(rejection, caller).to_string()
}

/// `lease 7 of bob (4 cores)` becomes `another tenant (4 cores)`, and for who is limited to a job, `your tenant (4
/// cores)` where it is not that job. Tenants' names hold no spaces.
fn redacted_holder(holder: String, caller: &Caller) -> String {
    if holder.starts_with("your tenant's ") {
        return holder; // the caller's own
    }
    if holder.starts_with("the queue: ") {
        return "an earlier request in the queue".into();
    }
    let (who, amount) = match holder.rfind(" (") {
        Some(at) => holder.split_at(at),
        None => (holder.as_str(), ""),
    };
    let (what, tenant) = who.rsplit_once(" of ").unwrap_or_default();
    if tenant != caller.tenant.as_str() {
        return format!("another tenant{amount}");
    }
    match &caller.job {
        Some(job) if what.strip_prefix("job ") != Some(job.as_str()) => {
            format!("your tenant{amount}")
        }
        _ => holder,
    }
}

/// Something in the request makes no sense.
pub(super) fn invalid(field: &str, why: &str) -> Status {
    let mut metadata = HashMap::new();
    metadata.insert("field".to_owned(), field.to_owned());
    let mut details = ErrorDetails::with_error_info("INVALID", DOMAIN, metadata);
    details.add_bad_request_violation(field, why);
    Status::with_error_details(Code::InvalidArgument, format!("{field}: {why}"), details)
}

impl From<Bad> for Status {
    fn from(bad: Bad) -> Self {
        invalid(&bad.field, &bad.why)
    }
}

/// The same status with a message that says more.
pub(super) fn reworded(status: Status, message: &str) -> Status {
    Status::with_error_details(status.code(), message, status.get_error_details())
}

/// There is no such thing of the caller's.
pub(super) fn not_found(what: &str) -> Status {
    let message = format!("{what} does not exist, or is not yours");
    plain(Code::NotFound, "NOT_FOUND", &message)
}

/// The caller is limited to one job, and asks for something else.
pub(super) fn other_job(caller: &Caller) -> Status {
    let job = caller.job.as_ref().map_or("one job", |job| job.as_str());
    let message = format!(
        "this certificate or token is for job {job} and its workers only; for the rest, use one of the whole tenant"
    );
    plain(Code::PermissionDenied, "OTHER_JOB", &message)
}

/// Only a process of this machine can hold a lease.
pub(super) fn not_local() -> Status {
    let message = "only a process on the Unix socket can attach: the kernel says there who it is; over TCP, let the \
                   worker attach itself";
    plain(Code::FailedPrecondition, "NOT_LOCAL", message)
}

/// The daemon is stopping, or this connection is to be renewed.
pub(super) fn stopping() -> Status {
    plain(
        Code::Unavailable,
        "STOPPING",
        &Failure::Stopping.to_string(),
    )
}

/// This connection has reached its age.
pub(super) fn reconnect() -> Status {
    let message = "this connection is old or the daemon is stopping; connect again, leases stay";
    plain(Code::Unavailable, "RECONNECT", message)
}

/// How the decoder's complaints begin (prost).
const UNREADABLE: &str = "failed to decode";

/// What a client sent on a stream cannot be read: its fault, where tonic would say that it is ours.
pub(super) fn unreadable(status: Status) -> Status {
    if status.code() == Code::Internal && status.message().starts_with(UNREADABLE) {
        plain(Code::InvalidArgument, "MALFORMED", status.message())
    } else {
        status
    }
}

/// A budget is used up.
pub(super) fn overloaded() -> Status {
    let busy_for = Millis(u64::try_from(COME_BACK.as_millis()).unwrap_or(u64::MAX));
    busy(&Failure::Busy { retry: busy_for }.to_string(), COME_BACK)
}

/// A request that did not come in time.
pub(super) fn too_slow() -> Status {
    let message = "the request did not come whole in time; nothing was done";
    plain(Code::DeadlineExceeded, "TOO_SLOW", message)
}

/// The tenant calls more often than its cap says.
pub(super) fn too_often(retry: Duration) -> Status {
    let message = "your tenant makes more requests a second than its cap on this node (requests_per_s); renewals and \
                   releases do not count";
    busy(message, retry)
}

/// There is something in the way that passes.
pub(super) fn busy(message: &str, retry: Duration) -> Status {
    metrics::counter!("evenkeel_refusals_total", "reason" => "BUSY").increment(1);
    let mut details = ErrorDetails::with_error_info("BUSY", DOMAIN, HashMap::new());
    details.set_retry_info(Some(retry));
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

/// A refusal with a reason and nothing more.
pub(super) fn plain(code: Code, reason: &'static str, message: &str) -> Status {
    metrics::counter!("evenkeel_refusals_total", "reason" => reason).increment(1);
    let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    Status::with_error_details(code, message, details)
}

/// A refusal that says which resource is short, and by how much.
pub(super) fn short(
    code: Code,
    reason: &'static str,
    (resource, by): (&'static str, u64),
    message: &str,
) -> Status {
    metrics::counter!("evenkeel_refusals_total", "reason" => reason).increment(1);
    let short = [
        ("resource".to_owned(), resource.to_owned()),
        ("short_by".to_owned(), by.to_string()),
    ];
    let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::from(short));
    Status::with_error_details(code, message, details)
}

/// The reason of a status of ours; empty if it has none.
pub(super) fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|i| i.reason.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use evenkeel_core::id::Name;

    use super::*;

    /// `tenant`, or `tenant/job` for who is limited to one.
    fn caller(who: &str, admin: bool) -> Caller {
        let (tenant, job) = who
            .split_once('/')
            .map_or((who, None), |(t, j)| (t, Some(j)));
        Caller {
            tenant: Name::new(tenant).unwrap(),
            admin,
            job: job.map(|job| Name::new(job).unwrap()),
        }
    }

    fn short(holder: &str) -> Failure {
        Failure::Rejected(Rejection::Short {
            resource: Resource::Cores,
            asked: 6,
            free: 2,
            short_by: 4,
            holder: Some(holder.into()),
        })
    }

    #[test]
    fn a_holder_is_named_only_to_those_who_may_know() {
        let cases = [
            (
                "lease 7 of bob (4 cores)",
                "alice",
                false,
                "another tenant (4 cores)",
            ),
            (
                "lease 7 of bob (4 cores)",
                "bob",
                false,
                "lease 7 of bob (4 cores)",
            ),
            (
                "lease 7 of bob (4 cores)",
                "alice",
                true,
                "lease 7 of bob (4 cores)",
            ),
            (
                "job pick of bob (20 SMs)",
                "alice",
                false,
                "another tenant (20 SMs)",
            ),
            ("lease 7", "alice", false, "another tenant"),
            (
                "your tenant's cap of 8, of which it has 6",
                "alice",
                false,
                "your tenant's cap of 8, of which it has 6",
            ),
            (
                "the queue: lease 9 waits for them first",
                "alice",
                false,
                "an earlier request in the queue",
            ),
        ];
        for (holder, who, admin, expect) in cases {
            let status = status(short(holder), &caller(who, admin));
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!(info.metadata["holder"], expect, "{holder} for {who}");
            assert_eq!(
                (info.reason.as_str(), info.domain.as_str()),
                ("SHORT", DOMAIN)
            );
            assert_eq!(info.metadata["short_by"], "4");
            assert!(
                expect == holder || !status.message().contains("bob"),
                "{status:?}"
            );
        }
    }

    #[test]
    fn who_is_limited_to_a_job_is_told_of_that_job_only() {
        for (holder, expect) in [
            ("lease 7 of alice (4 cores)", "your tenant (4 cores)"),
            ("job place of alice (4 cores)", "your tenant (4 cores)"),
            ("job pick of alice (4 cores)", "job pick of alice (4 cores)"),
            ("job pick of bob (4 cores)", "another tenant (4 cores)"),
        ] {
            let status = status(short(holder), &caller("alice/pick", false));
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!(info.metadata["holder"], expect, "{holder}");
        }
    }

    #[test]
    fn codes_are_canonical_and_only_passing_states_ask_to_come_back() {
        let me = caller("me", false);
        let limit = |what| Failure::Rejected(Rejection::Limit { what, limit: 1 });
        let cases: [(Failure, Code, bool); 8] = [
            (limit("live leases"), Code::ResourceExhausted, true),
            (limit("GPUs of one lease"), Code::ResourceExhausted, false),
            (
                Failure::Busy { retry: Millis(50) },
                Code::ResourceExhausted,
                true,
            ),
            (Failure::DiskFull, Code::Unavailable, false),
            (Failure::InDoubt, Code::Unavailable, false),
            (Failure::Stopping, Code::Unavailable, false),
            (
                Failure::Rejected(Rejection::Draining),
                Code::FailedPrecondition,
                false,
            ),
            (
                Failure::Rejected(Rejection::Invariant("x")),
                Code::Internal,
                false,
            ),
        ];
        for (failure, code, again) in cases {
            let text = failure.to_string();
            let status = status(failure, &me);
            assert_eq!(status.code(), code, "{text}");
            assert_eq!(
                status.get_error_details().retry_info().is_some(),
                again,
                "{text}"
            );
        }
    }
}
