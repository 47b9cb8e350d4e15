//! Reading the audit trail: one read-only connection, short transactions, pages. For the API and `explain`.
//!
//! It never sees the writing connection. A page is read in one statement and at once: a reader that stays keeps
//! SQLite from emptying its WAL.
use evenkeel_core::id::{JobId, LeaseId, Name};
use futures::{Stream, TryStreamExt as _};
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};
use tokio::sync::Mutex;

use super::{Config, HistoryError};

/// Most events on one page: some hundred kilobytes.
pub const PAGE_MAX: u32 = 1000;

/// A page with so many bytes of events takes no more of them: a declaration may be long, and a page is held in memory.
const PAGE_BYTES: usize = 2 << 20;

/// The kinds of events that say how a job's shares were decided.
pub const DECISIONS: [&str; 4] = [
    "job_admitted",
    "job_replanned",
    "job_stayed",
    "job_refitted",
];

/// The audit trail, for reading. Cheap to share behind an `Arc`.
#[derive(Debug)]
pub struct History {
    config: Config,
    conn: Mutex<Option<SqliteConnection>>,
}

/// Which events. All conditions hold at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Only events after this number (or before it, with `newest_first`); none: from the start (the end).
    pub after: Option<u64>,
    /// Only events with numbers from the first to the second, both included: how much is searched at most.
    pub within: Option<(u64, u64)>,
    /// From the newest backwards.
    pub newest_first: bool,
    /// Only events of this lease.
    pub lease: Option<LeaseId>,
    /// Only events of this job, its leases' among them.
    pub job: Option<JobId>,
    /// Only events of this tenant's leases, jobs and profiles. None: everything (for admins).
    pub tenant: Option<Name>,
    /// Only events of these kinds, such as [`DECISIONS`]; none: of every kind.
    pub kinds: &'static [&'static str],
    /// At most so many; [`PAGE_MAX`] at most.
    pub limit: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            after: None,
            within: None,
            newest_first: false,
            lease: None,
            job: None,
            tenant: None,
            kinds: &[],
            limit: 100,
        }
    }
}

/// One line of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Its number: rises, and is never used twice.
    pub seq: u64,
    /// The transaction that it was part of.
    pub batch: u64,
    /// Wall-clock time; milliseconds since 1970.
    pub unix_ms: u64,
    /// What happened, in snake case.
    pub kind: String,
    /// The lease concerned.
    pub lease: Option<LeaseId>,
    /// The job concerned.
    pub job: Option<JobId>,
    /// Whose it is; none: the node's.
    pub tenant: Option<Name>,
    /// The whole event, as `evenkeel_core::event::Event` in JSON.
    pub json: String,
}

const SELECT: &str = "SELECT seq, batch, unix_ms, kind, lease_id, job_id, tenant, json FROM event";

/// The statement of a page. A lease, a job and a tenant each have an index that ends with `seq`: no page reads what is
/// not on it.
fn query(page: &Page) -> sqlx::QueryBuilder<sqlx::Sqlite> {
    let mut sql = sqlx::QueryBuilder::new(SELECT);
    sql.push(" WHERE true");
    if let Some(seq) = page.after {
        sql.push(if page.newest_first {
            " AND seq < "
        } else {
            " AND seq > "
        });
        sql.push_bind(signed(seq));
    }
    if let Some((first, last)) = page.within {
        sql.push(" AND seq BETWEEN ").push_bind(signed(first));
        sql.push(" AND ").push_bind(signed(last));
    }
    if let Some(LeaseId(id)) = page.lease {
        sql.push(" AND lease_id = ").push_bind(signed(id));
    }
    if let Some(JobId(id)) = page.job {
        sql.push(" AND job_id = ").push_bind(signed(id));
    }
    if let Some(tenant) = &page.tenant {
        // With a lease or a job it is only checked: their events are fewer.
        let by_another = page.lease.is_some() || page.job.is_some();
        sql.push(if by_another {
            " AND +tenant = "
        } else {
            " AND tenant = "
        });
        sql.push_bind(tenant.as_str().to_owned());
    }
    if !page.kinds.is_empty() {
        sql.push(" AND kind IN (");
        let mut kinds = sql.separated(", ");
        for kind in page.kinds {
            kinds.push_bind(*kind);
        }
        sql.push(")");
    }
    sql.push(if page.newest_first {
        " ORDER BY seq DESC"
    } else {
        " ORDER BY seq"
    });
    sql.push(" LIMIT ").push_bind(page.limit.min(PAGE_MAX));
    sql
}

/// As many as fit on a page.
async fn some(
    mut rows: impl Stream<Item = Result<SqliteRow, sqlx::Error>> + Unpin,
) -> Result<Vec<EventRecord>, sqlx::Error> {
    let (mut records, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES
        && let Some(row) = rows.try_next().await?
    {
        let record = record(&row)?;
        bytes += record.json.len();
        records.push(record);
    }
    Ok(records)
}

impl History {
    /// The history of an open ledger. Connects when it is first asked.
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            conn: Mutex::new(None),
        }
    }

    /// Reads a page.
    pub async fn page(&self, page: &Page) -> Result<Vec<EventRecord>, HistoryError> {
        let mut sql = query(page);
        let mut slot = self.conn.lock().await;
        let mut conn = match slot.take() {
            Some(conn) => conn,
            None => self.connect().await?,
        };
        let records = some(sql.build().fetch(&mut conn));
        let records = records.await.map_err(HistoryError::Page)?;
        *slot = Some(conn); // after an error it is opened anew
        Ok(records)
    }

    /// How a job's shares were decided, newest first.
    pub async fn decisions(
        &self,
        job: JobId,
        limit: u32,
    ) -> Result<Vec<EventRecord>, HistoryError> {
        let page = Page {
            newest_first: true,
            job: Some(job),
            kinds: &DECISIONS,
            limit,
            ..Page::default()
        };
        self.page(&page).await
    }

    /// Closes the connection, if there is one; a later page opens it anew.
    pub async fn close(&self) {
        if let Some(conn) = self.conn.lock().await.take() {
            let _ = conn.close().await; // it has nothing to lose
        }
    }

    async fn connect(&self) -> Result<SqliteConnection, HistoryError> {
        let options = SqliteConnectOptions::new()
            .filename(&self.config.path)
            .read_only(true)
            .busy_timeout(self.config.busy_timeout)
            .pragma("query_only", "ON")
            .pragma("trusted_schema", "OFF")
            .pragma("cell_size_check", "ON")
            .pragma("mmap_size", "0")
            .thread_name(|_| "history".to_owned())
            .disable_statement_logging();
        let connected = SqliteConnection::connect_with(&options).await;
        connected.map_err(|source| HistoryError::Connect {
            path: self.config.path.clone(),
            source,
        })
    }
}

/// No id of ours is above what SQLite can hold; one from outside may be, and then nothing is found.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn record(row: &SqliteRow) -> Result<EventRecord, sqlx::Error> {
    let id = |i: usize| {
        row.try_get::<Option<i64>, _>(i)
            .map(|n| n.map(i64::cast_unsigned))
    };
    let number = |i: usize| row.try_get::<i64, _>(i).map(i64::cast_unsigned);
    let tenant: Option<String> = row.try_get(6)?;
    Ok(EventRecord {
        seq: number(0)?,
        batch: number(1)?,
        unix_ms: number(2)?,
        kind: row.try_get(3)?,
        lease: id(4)?.map(LeaseId),
        job: id(5)?.map(JobId),
        tenant: tenant.as_deref().and_then(|t| Name::new(t).ok()),
        json: row.try_get(7)?,
    })
}

#[cfg(test)]
mod tests {
    use sqlx::AssertSqlSafe;

    use super::*;
    use crate::ledger;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn no_page_scans_what_is_not_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(folder.path().join("ledger.db"));
        let opened = ledger::open(config.clone()).await.unwrap();
        let mut conn = History::new(&config).connect().await.unwrap();
        let all = Page::default();
        let tenants = Page {
            tenant: Name::new("alice").ok(),
            ..Page::default()
        };
        let (lease, job) = (Some(LeaseId(1)), Some(JobId(1)));
        let narrowed = |page: &Page| {
            let by_lease = Page {
                lease,
                ..page.clone()
            };
            let by_job = Page {
                job,
                ..page.clone()
            };
            [by_lease, by_job]
        };
        let [of_lease, of_job] = narrowed(&all);
        let [own_lease, own_job] = narrowed(&tenants);
        for (page, index) in [
            (all, "event"),
            (of_lease, "event_lease"),
            (of_job, "event_job"),
            (tenants, "event_tenant"),
            (own_lease, "event_lease"),
            (own_job, "event_job"),
        ] {
            for (after, newest_first) in [
                (None, false),
                (None, true),
                (Some(9), false),
                (Some(9), true),
            ] {
                let page = Page {
                    after,
                    newest_first,
                    ..page.clone()
                };
                let sql = format!("EXPLAIN QUERY PLAN {}", query(&page).sql().as_str());
                let plan = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut conn).await;
                let plan: Vec<String> = plan.unwrap().iter().map(|row| row.get(3)).collect();
                // Along the index, in the order of `seq`: nothing is sorted.
                let expect = match (index, after) {
                    ("event", None) => "SCAN event".to_owned(),
                    ("event", _) => "SEARCH event USING INTEGER PRIMARY KEY".to_owned(),
                    _ => format!("SEARCH event USING INDEX {index} ("),
                };
                assert!(
                    plan.len() == 1 && plan[0].starts_with(&expect),
                    "{page:?}: {plan:?}"
                );
            }
        }
        conn.close().await.unwrap();
        opened.ledger.close().await;
    }
}
