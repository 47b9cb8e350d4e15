//! Why a lease was over under its command, in words: from the daemon's record, else from what it said at the time.
use std::time::Duration;

use evenkeel_client::{Client, Error, EventFilter, JobPhase, Lease};
use serde_json::Value;

/// How long the daemon is asked: the command has ended, and somebody waits for the prompt.
const ASK_FOR: Duration = Duration::from_secs(2);
/// Events of the lease that are looked at: its end is among the newest.
const EVENTS: u32 = 20;

/// Why the lease was over; `told` is what was said when it came.
pub(super) async fn over(client: &Client, lease: &Lease, told: String) -> String {
    let client = client.with_deadline(ASK_FOR);
    if let Some(member) = &lease.member {
        // A job ends by being cancelled, and in no other way; an ended one is not found by its name any more.
        let ended = match client.job(&member.job).await {
            Ok(job) => job.phase == JobPhase::Ended,
            Err(error) => matches!(error, Error::NotFound { .. }),
        };
        if ended {
            return format!("job {} was cancelled", member.job);
        }
    }
    let filter = EventFilter {
        lease_id: Some(lease.id),
        limit: Some(EVENTS),
        newest: true,
        ..EventFilter::default()
    };
    let events = client.events(&filter).await;
    let recorded = events.ok().and_then(|(events, _)| {
        let mut newest_first = events.iter().rev();
        newest_first.find_map(|event| cause(&event.kind, &event.json))
    });
    let why = match recorded {
        Some(why) => why.to_owned(),
        None if told.is_empty() => "was asked back".to_owned(),
        None => return format!("lease {}: {told}", lease.id),
    };
    format!("lease {} {why}", lease.id)
}

/// What an event of the audit trail says of the end of the right to a lease.
fn cause(kind: &str, json: &str) -> Option<&'static str> {
    let field = match kind {
        "lease_quarantined" => "cause",
        "lease_ended" => "how",
        _ => return None,
    };
    let event: Value = serde_json::from_str(json).ok()?;
    match event.get(field)?.as_str()? {
        "revoked" => Some("was revoked, by its owner or an admin (`evenkeel leases revoke`)"),
        "expired" => Some("expired: it was not renewed in time"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_from_the_audit_trail() {
        let check = |kind: &str, json: &str, expect: Option<&str>| {
            let found = cause(kind, json);
            assert_eq!(found.is_some(), expect.is_some(), "{json}");
            assert!(found.unwrap_or("").contains(expect.unwrap_or("")), "{json}");
        };
        let quarantined = |cause: &str| {
            format!(r#"{{"kind":"lease_quarantined","id":7,"fence":3,"cause":"{cause}"}}"#)
        };
        check(
            "lease_quarantined",
            &quarantined("revoked"),
            Some("revoked"),
        );
        check(
            "lease_quarantined",
            &quarantined("expired"),
            Some("not renewed in time"),
        );
        check(
            "lease_ended",
            r#"{"kind":"lease_ended","id":7,"how":"released"}"#,
            None,
        );
        check("lease_granted", "{}", None);
        check("lease_ended", "no json", None);
    }
}
