//! The moments of a transition, as the daemon's audit trail has them. Its clock is this machine's: nothing is lost by
//! how often the demo looks.

use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_client::Event;

/// The number of the newest event.
pub(super) fn last_seq(events: &[Event]) -> u64 {
    events.last().map_or(0, |event| event.seq)
}

/// When an event of a kind was recorded first, in milliseconds since 1970.
pub(super) fn first_ms(events: &[Event], kind: &str) -> Option<u64> {
    let found = events.iter().find(|event| event.kind == kind);
    found.map(|event| event.unix_ms)
}

/// When the last share was confirmed that the first new plan after `known` brought, in milliseconds since 1970.
pub(super) fn confirmed_ms(events: &[Event], known: u64) -> Option<u64> {
    let is_plan = |event: &&Event| event.kind == "job_replanned";
    let mut plans = events.iter().filter(|e| e.seq > known).filter(is_plan);
    let from = plans.next()?.seq;
    let to = plans.next().map_or(u64::MAX, |next| next.seq);
    let within = events.iter().filter(|e| e.seq > from && e.seq < to);
    within
        .filter(|e| e.kind == "lease_held")
        .map(|e| e.unix_ms)
        .next_back()
}

/// Now, on the clock of the audit trail.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock before 1970 makes the figure absurd, and nothing else depends on it.
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(kinds: &[&str]) -> Vec<Event> {
        let event = |(at, kind): (usize, &&str)| Event {
            seq: 10 + at as u64,
            unix_ms: 100 * at as u64,
            kind: (*kind).to_owned(),
            ..Event::default()
        };
        kinds.iter().enumerate().map(event).collect()
    }

    #[test]
    fn a_plan_is_confirmed_by_the_last_share_before_the_next_plan() {
        let check = |kinds: &[&str], known, expect| {
            assert_eq!(confirmed_ms(&events(kinds), known), expect, "{kinds:?}");
        };
        let (plan, held) = ("job_replanned", "lease_held");
        check(&[plan, held, held, "job_stayed"], 0, Some(200));
        check(&[held, plan, "lease_retargeted", held], 0, Some(300));
        check(&[plan, held, plan, held], 0, Some(100));
        check(&[plan, held, plan, held], 10, Some(300));
        check(&[plan, held], 10, None);
        check(&[plan], 0, None);
        check(&[], 0, None);
    }

    #[test]
    fn moments_are_those_of_the_first_of_a_kind() {
        let events = events(&["job_submitted", "job_admitted", "job_admitted"]);
        assert_eq!(first_ms(&events, "job_admitted"), Some(100));
        assert_eq!(first_ms(&events, "job_ended"), None);
        assert_eq!(last_seq(&events), 12);
        assert_eq!(last_seq(&[]), 0);
    }
}
