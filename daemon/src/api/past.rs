//! What is over and only the audit trail knows: jobs that have ended. Bounded: the newest events are searched.
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::command::Caller;
use evenkeel_core::event::Event;
use evenkeel_core::id::{JobId, Name};
use evenkeel_core::job::Job;
use tonic::{Code, Status};

use super::context::Context;
use super::error;
use super::limits::{ENDED_SEARCH_PAGES, PAGE_MAX};
use crate::handle::{EventRecord, Page};

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
    ctx.handle.history().page(page).await.map_err(|error| {
        tracing::warn!(%error, "the audit trail cannot be read");
        error::plain(
            Code::Unavailable,
            "HISTORY",
            "the audit trail cannot be read just now; leases are not affected",
        )
    })
}
