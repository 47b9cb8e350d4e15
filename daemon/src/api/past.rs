//! What is over and only the audit trail knows: jobs that have ended. Bounded: the newest events are searched.
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::command::Caller;
use evenkeel_core::event::Event;
use evenkeel_core::id::{JobId, Name};
use evenkeel_core::job::Job;
use tonic::{Code, Status};

use super::context::Context;
use super::error;
use super::limits::{DECISIONS_STRETCH, ENDED_SEARCH_PAGES, PAGE_MAX};
use crate::handle::{DECISIONS, EventRecord, HistoryError, Page};

/// Jobs whose submission and end are among the newest events, ascending by number.
pub(super) async fn ended_jobs(ctx: &Context, caller: &Caller) -> Result<Vec<Job>, Status> {
    let mut submitted: BTreeMap<JobId, Job> = BTreeMap::new();
    let mut ended: BTreeSet<JobId> = BTreeSet::new();
    let mut page = Page {
        newest_first: true,
        tenant: (!caller.admin).then(|| caller.tenant.clone()),
        limit: PAGE_MAX,
        ..Page::default()
    };
    for _ in 0..ENDED_SEARCH_PAGES {
        let records = self::page(ctx, &page).await?;
        let Some(oldest) = records.last().map(|r| r.seq) else {
            break;
        };
        for record in &records {
            match (record.kind.as_str(), record.job) {
                ("job_ended", Some(id)) => drop(ended.insert(id)),
                ("job_submitted", Some(id)) => {
                    if let Ok(Event::JobSubmitted { job }) = serde_json::from_str(&record.json) {
                        submitted.insert(id, job);
                    }
                }
                _ => {}
            }
        }
        page.after = Some(oldest);
    }
    let seen = |job: &Job| caller.sees(&job.tenant, Some(&job.spec.name));
    submitted.retain(|id, job| ended.contains(id) && seen(job));
    Ok(submitted.into_values().collect())
}

/// The newest job of a name that has ended.
pub(super) async fn ended_job(
    ctx: &Context,
    caller: &Caller,
    name: &Name,
) -> Result<Option<JobId>, Status> {
    let ended = ended_jobs(ctx, caller).await?;
    let named = ended.iter().rev().find(|j| j.spec.name == *name);
    Ok(named.map(|j| j.id))
}

/// A page of the audit trail.
pub(super) async fn page(ctx: &Context, page: &Page) -> Result<Vec<EventRecord>, Status> {
    ctx.handle.history().page(page).await.map_err(unreadable)
}

/// How a job's shares were decided, newest first.
pub(super) async fn decisions_of(
    ctx: &Context,
    job: JobId,
    most: u32,
) -> Result<Vec<EventRecord>, Status> {
    let decisions = ctx.handle.history().decisions(job, most).await;
    decisions.map_err(unreadable)
}

/// The number of the newest event; 0: there is none.
pub(super) async fn newest(ctx: &Context) -> Result<u64, Status> {
    end_of_trail(ctx, true).await
}

/// The number of the event at one end of the trail; 0: there is none.
async fn end_of_trail(ctx: &Context, newest_first: bool) -> Result<u64, Status> {
    let one = Page {
        newest_first,
        limit: 1,
        ..Page::default()
    };
    let found = page(ctx, &one).await?;
    Ok(found.first().map_or(0, |r| r.seq))
}

/// Decisions about shares among the asked events, ascending, and where to go on if the trail is not at its end. Of
/// all jobs, a bounded stretch of the trail is searched: decisions are few in it.
pub(super) async fn decisions(
    ctx: &Context,
    asked: Page,
) -> Result<(Vec<EventRecord>, Option<u64>), Status> {
    let mut asked = Page {
        kinds: &DECISIONS,
        ..asked
    };
    let newest = newest(ctx).await?;
    let mut last = newest;
    if asked.job.is_none() {
        let (least, _) = asked.within.unwrap_or_default();
        let first = if asked.newest_first {
            least.max(newest.saturating_sub(DECISIONS_STRETCH))
        } else {
            let oldest = end_of_trail(ctx, false).await?;
            oldest.max(asked.after.unwrap_or(0).saturating_add(1))
        };
        last = newest.min(first.saturating_add(DECISIONS_STRETCH));
        asked.within = Some((first, last));
    }
    let mut found = page(ctx, &asked).await?;
    found.sort_by_key(|r| r.seq);
    if asked.newest_first {
        return Ok((found, None));
    }
    let is_full = found.len() >= asked.limit as usize;
    let next = match found.last() {
        Some(filled) if is_full => Some(filled.seq),
        _ => Some(last).filter(|seq| *seq < newest),
    };
    Ok((found, next))
}

fn unreadable(error: HistoryError) -> Status {
    tracing::warn!(%error, "the audit trail cannot be read");
    error::plain(
        Code::Unavailable,
        "HISTORY",
        "the audit trail cannot be read just now; leases are not affected",
    )
}
