//! What a run of worlds has to have reached, or it proves nothing.
use super::shell::Fate;
use super::trace::Counts;

/// Every kind of event.
pub const EVENTS: [&str; 26] = [
    "node_installed",
    "unavailable_changed",
    "node_drained",
    "lease_queued",
    "lease_granted",
    "lease_attached",
    "lease_activated",
    "lease_verified",
    "lease_unverified",
    "lease_retargeted",
    "lease_held",
    "lease_draining",
    "lease_quarantined",
    "lease_ended",
    "requests_forgotten",
    "job_submitted",
    "job_admitted",
    "job_replanned",
    "job_stayed",
    "job_refitted",
    "job_updated",
    "slot_reserved",
    "job_parked",
    "job_ended",
    "trial_reported",
    "profile_imported",
];

/// Every way to refuse that is no bug.
pub const REFUSALS: [&str; 14] = [
    "SHORT",
    "NEVER_FITS",
    "NOT_FOUND",
    "LEASE_LOST",
    "FENCED",
    "WRONG_PHASE",
    "OTHER_BODY",
    "DRAINING",
    "LIMIT",
    "INVALID",
    "SLOT_TAKEN",
    "NAME_TAKEN",
    "JOB_QUEUED",
    "NOT_ADMIN",
];

/// What was never reached.
pub fn missing(counts: &Counts) -> Vec<String> {
    let events = EVENTS.iter().map(|e| ("event", *e));
    let refusals = REFUSALS.iter().map(|r| ("answer", *r));
    let fates = Fate::ALL.iter().map(|f| ("commit", f.name()));
    let rest = [
        ("crash", "between steps"),
        ("crash", "with a restart of the machine"),
        ("handle", "renewed"),
        ("handle", "closing"),
        ("told", "target"),
        ("told", "restart"),
        ("told", "release"),
        ("told", "drain"),
        ("cancel", "given back"),
        ("cancel", "taken after the grace"),
        ("sharing", "promised"),
        ("fault", "stall"),
        ("fault", "a device hangs"),
    ];
    let all = events.chain(refusals).chain(fates).chain(rest);
    all.filter(|(kind, name)| counts.get(kind, name) == 0)
        .map(|(kind, name)| format!("{kind} {name}"))
        .collect()
}
