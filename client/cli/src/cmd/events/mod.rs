//! `evenkeel events`: the audit trail. `happened` says each event in a sentence.

mod happened;

use std::time::Duration;

use clap::Args;
use evenkeel_client::{Event, EventFilter};
use serde::Serialize;
use serde_json::Value;

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;

/// How often a followed trail is asked for more.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

/// Show what happened
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  evenkeel events -n 50
  evenkeel events --follow --job reach
  evenkeel events --lease 7 -o json | jq .event

With --output json each event is one line:
  {\"seq\", \"unix_ms\", \"kind\", \"lease_id\", \"job_id\", \"tenant\", \"event\"}")]
pub(crate) struct EventsArgs {
    /// Go on as events happen
    #[arg(long, short)]
    follow: bool,
    /// Only those of this lease
    #[arg(long)]
    lease: Option<u64>,
    /// Only those of this job
    #[arg(long)]
    job: Option<String>,
    /// How many of the newest
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    lines: u32,
    /// All above this number, instead of the newest
    #[arg(long, conflicts_with = "lines")]
    after: Option<u64>,
}

/// An event as JSON, with its own JSON inside as an object.
#[derive(Serialize)]
struct EventLine<'a> {
    seq: u64,
    unix_ms: u64,
    kind: &'a str,
    lease_id: u64,
    job_id: u64,
    tenant: &'a str,
    event: Value,
}

pub(crate) async fn run(globals: &Globals, args: EventsArgs) -> Result<(), Failure> {
    let mut client = globals.client()?;
    let mut filter = EventFilter {
        after_seq: args.after.unwrap_or(0),
        limit: args.after.is_none().then_some(args.lines),
        lease_id: args.lease,
        job: args.job,
        newest: args.after.is_none(),
    };
    loop {
        let (events, next) = client.events(&filter).await.doing("show events")?;
        for event in &events {
            show(globals, event);
        }
        let more = !events.is_empty() && !filter.newest;
        filter.after_seq = filter.after_seq.max(next);
        filter.after_seq = events
            .last()
            .map_or(filter.after_seq, |e| e.seq.max(filter.after_seq));
        if !more && !args.follow {
            return Ok(());
        }
        if filter.newest {
            filter.newest = false;
            filter.limit = None;
            // A follower outlives a restart of the daemon.
            client = client.with_deadline(Duration::from_secs(3600));
        }
        if !more {
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }
}

fn show(globals: &Globals, event: &Event) {
    if globals.json() {
        out::json_line(&EventLine {
            seq: event.seq,
            unix_ms: event.unix_ms,
            kind: &event.kind,
            lease_id: event.lease_id,
            job_id: event.job_id,
            tenant: &event.tenant,
            event: serde_json::from_str(&event.json).unwrap_or_else(|_| event.json.as_str().into()),
        });
        return;
    }
    out::text(line(event));
}

/// An event in a line: number, time, whose it is, and what happened.
fn line(event: &Event) -> String {
    let whom = match (event.lease_id, event.job_id) {
        (0, 0) => String::new(),
        (0, job) => format!("job {job}"),
        (lease, _) => format!("lease {lease}"),
    };
    let tenant = &event.tenant;
    let whose = match (whom.as_str(), tenant.as_str()) {
        (whom, "") => whom.to_owned(),
        ("", tenant) => tenant.to_owned(),
        (whom, tenant) => format!("{whom} of {tenant}"),
    };
    format!(
        "{:>8}  {}  {}{}{}",
        event.seq,
        when(event.unix_ms),
        whose,
        if whose.is_empty() { "" } else { ": " },
        happened::sentence(&event.kind, &event.json)
    )
}

/// A wall-clock time in UTC, to the second.
pub(crate) fn when(unix_ms: u64) -> String {
    let seconds = unix_ms / 1_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        of_day / 3_600,
        of_day % 3_600 / 60,
        of_day % 60
    )
}

/// The Gregorian date of a day since 1970 (era arithmetic over 400 years of 146,097 days, March first).
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (ms, expect) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (1_767_225_599_999, "2025-12-31 23:59:59Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(when(ms), expect);
        }
    }
}
