//! Reading the ledger: each table once, by SELECT, into [`Tables`]. Start-up only; events are not read.
//!
//! A value that does not fit its type (a name with spaces, a negative amount) is an error that names the
//! table: somebody else wrote it.
use std::error::Error;
use std::str::FromStr;

use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::ProfileKey;
use evenkeel_core::grant::{GpuShare, Member};
use evenkeel_core::id::{
    BodyHash, Fence, Generation, GpuId, JobId, LeaseId, Name, RequestId, StageId, WorkerId,
};
use evenkeel_core::lease::{Cause, End, Holder, Phase};
use evenkeel_core::node::{Core, Gpu};
use evenkeel_core::pool::Owner;
use evenkeel_core::state::{Effect, Remembered};
use evenkeel_core::unit::{Bytes, Millis, Sms, Time};
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use super::OpenError;
use super::load::{Corrupt, numbered};
use super::rows::{CoreOwnerRow, JobRow, LeaseGpuRow, LeaseRow, NodeRow};
use super::tables::Tables;

/// Every table that start-up reads, for `quick_check`.
pub(super) const TABLES: [&str; 16] = [
    "counter",
    "meta",
    "node",
    "core",
    "gpu",
    "gpu_enforceable",
    "unavailable_gpu",
    "lease",
    "core_owner",
    "lease_gpu",
    "job",
    "slot",
    "slot_gpu",
    "request",
    "profile",
    "profile_point",
];

/// All that was read.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) tables: Tables,
    pub(super) next_event: u64,
    pub(super) boot_id: Option<String>,
    /// What the triggers count on each GPU.
    used: Vec<(GpuId, Sms, Bytes)>,
}

type Fault = Box<dyn Error + Send + Sync>;

/// One row, column by column.
struct Columns<'a> {
    row: &'a SqliteRow,
    next: usize,
}

impl Columns<'_> {
    fn get<T>(&mut self) -> Result<T, Fault>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Sqlite>,
    {
        self.next += 1;
        Ok(self.row.try_get_unchecked(self.next - 1)?)
    }
    fn int<T: TryFrom<i64>>(&mut self) -> Result<T, Fault> {
        let n = self.get::<i64>()?;
        T::try_from(n)
            .map_err(|_| format!("column {} is {n}, which is out of range", self.next).into())
    }
    fn maybe<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, Fault> {
        let Some(n) = self.get::<Option<i64>>()? else {
            return Ok(None);
        };
        T::try_from(n)
            .map(Some)
            .map_err(|_| format!("column {} is {n}, which is out of range", self.next).into())
    }
    fn text<T: FromStr<Err: Error + Send + Sync + 'static>>(&mut self) -> Result<T, Fault> {
        Ok(self.get::<String>()?.parse()?)
    }
    fn name(&mut self) -> Result<Name, Fault> {
        Ok(Name::new(&self.get::<String>()?)?)
    }
    fn json<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        Ok(serde_json::from_str(&self.get::<String>()?)?)
    }
    /// A word that serde knows, such as `restart`.
    fn word<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        Ok(serde_json::from_value(self.get::<String>()?.into())?)
    }
    fn maybe_word<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Fault> {
        let word = self.get::<Option<String>>()?;
        Ok(word.map(|w| serde_json::from_value(w.into())).transpose()?)
    }
    fn request(&mut self) -> Result<RequestId, Fault> {
        let blob: [u8; 16] = self
            .get::<Vec<u8>>()?
            .try_into()
            .map_err(|_| "a request id has not 16 bytes")?;
        Ok(RequestId(u128::from_be_bytes(blob)))
    }
    fn body(&mut self) -> Result<BodyHash, Fault> {
        Ok(BodyHash(self.get::<i64>()?.cast_unsigned()))
    }
    fn member(&mut self) -> Result<Member, Fault> {
        let (job, stage, worker) = (self.int()?, self.int()?, self.int()?);
        Ok(Member {
            job: JobId(job),
            stage: StageId(stage),
            worker: WorkerId(worker),
        })
    }
    fn share(&mut self) -> Result<Option<GpuShare>, Fault> {
        Ok(match (self.maybe()?, self.maybe()?, self.maybe()?) {
            (Some(guarantee), Some(cap), Some(memory)) => Some(GpuShare {
                guarantee: Sms(guarantee),
                cap: Sms(cap),
                memory: Bytes(memory),
            }),
            (None, None, None) => None,
            _ => return Err("a share is null in part".into()),
        })
    }
}

/// Reads `sql` (whose table is `table`) row by row.
async fn each(
    conn: &mut SqliteConnection,
    table: &'static str,
    sql: &'static str,
    mut take: impl FnMut(&mut Columns<'_>) -> Result<(), Fault>,
) -> Result<(), OpenError> {
    let failed = |source| OpenError::Read { table, source };
    let sql = format!("SELECT {sql} FROM {table}");
    let rows = sqlx::query(AssertSqlSafe(sql))
        .fetch_all(conn)
        .await
        .map_err(|e| failed(e.into()))?;
    rows.iter()
        .try_for_each(|row| take(&mut Columns { row, next: 0 }))
        .map_err(failed)
}

/// Reads everything that start-up needs.
pub(super) async fn read(conn: &mut SqliteConnection) -> Result<Rows, OpenError> {
    let mut rows = Rows {
        tables: Tables::default(),
        next_event: 1,
        boot_id: None,
        used: Vec::new(),
    };
    numbers(conn, &mut rows).await?;
    node(conn, &mut rows).await?;
    leases(conn, &mut rows.tables).await?;
    jobs(conn, &mut rows.tables).await?;
    memory(conn, &mut rows.tables).await?;
    Ok(rows)
}

async fn numbers(conn: &mut SqliteConnection, rows: &mut Rows) -> Result<(), OpenError> {
    each(
        conn,
        "counter",
        "batch, next_event, next_lease, next_job",
        |c| {
            (rows.tables.batch, rows.next_event) = (c.int()?, c.int()?);
            (rows.tables.next_lease, rows.tables.next_job) = (LeaseId(c.int()?), JobId(c.int()?));
            Ok(())
        },
    )
    .await?;
    each(conn, "meta", "key, value", |c| {
        match c.get::<String>()?.as_str() {
            "boot_id" => rows.boot_id = Some(c.get()?),
            "alive_ms" => rows.tables.alive = Some(Time(c.get::<String>()?.parse()?)),
            _ => {}
        }
        Ok(())
    })
    .await
}

async fn node(conn: &mut SqliteConnection, rows: &mut Rows) -> Result<(), OpenError> {
    let Rows { tables, used, .. } = rows;
    each(
        conn,
        "node",
        "kind, reserved_cores, unavailable_cores, draining",
        |c| {
            tables.node = NodeRow {
                kind: c.word()?,
                reserved_cores: c.text()?,
                unavailable_cores: c.text()?,
                draining: c.get()?,
            };
            Ok(())
        },
    )
    .await?;
    each(conn, "core", "core_id, cpus, numa, package", |c| {
        let core = Core {
            id: c.int()?,
            cpus: c.text::<CpuSet>()?,
            numa: c.int()?,
            package: c.int()?,
        };
        tables.cores.insert(core.id, core);
        Ok(())
    })
    .await?;
    let columns = "gpu_id, uuid, model, sms, bytes, reserved_bytes,
        (SELECT counts FROM gpu_enforceable AS e WHERE e.gpu_id = gpu.gpu_id), numa, backend, mode, used_sms,
        used_bytes";
    each(conn, "gpu", columns, |c| {
        let gpu = Gpu {
            id: GpuId(c.int()?),
            uuid: c.name()?,
            model: c.name()?,
            sms: Sms(c.int()?),
            memory: Bytes(c.int()?),
            reserved_memory: Bytes(c.int()?),
            enforceable: c.json()?,
            numa: c.int()?,
            backend: c.word()?,
            mode: c.word()?,
        };
        used.push((gpu.id, Sms(c.int()?), Bytes(c.int()?)));
        tables.gpus.insert(gpu.id, gpu);
        Ok(())
    })
    .await?;
    each(conn, "unavailable_gpu", "gpu_id, sms, bytes", |c| {
        tables
            .unavailable
            .insert(GpuId(c.int()?), (Sms(c.int()?), Bytes(c.int()?)));
        Ok(())
    })
    .await
}

async fn leases(conn: &mut SqliteConnection, tables: &mut Tables) -> Result<(), OpenError> {
    let columns = "lease_id, tenant, request_id, body, granted_fence, ask, enforced, resize, processes, ttl_ms,
        priority, fence, generation, batch, phase, pid, start_time, uid, verified, cause, unrenewed_since_ms";
    each(conn, "lease", columns, |c| {
        let row = LeaseRow {
            id: LeaseId(c.int()?),
            tenant: c.name()?,
            request: c.request()?,
            body: c.body()?,
            granted_fence: c.maybe()?.map(Fence),
            ask: c.json()?,
            enforced: c.get()?,
            resize: c.word()?,
            processes: c.int()?,
            ttl: Millis(c.int()?),
            priority: c.int()?,
            fence: Fence(c.int()?),
            generation: Generation(c.int()?),
            batch: c.int()?,
            phase: phase(c)?,
        };
        if let Some(since) = c.maybe()? {
            tables.unrenewed.insert(row.id, Time(since));
        }
        tables.leases.insert(row.id, row);
        Ok(())
    })
    .await?;
    let columns = "core_id, held, target, lease_id, job_id, stage, worker";
    each(conn, "core_owner", columns, |c| {
        let (core, held, target) = (c.int()?, c.get()?, c.get()?);
        let owner = match c.maybe()? {
            Some(id) => Owner::Lease(LeaseId(id)),
            None => Owner::Slot(c.member()?),
        };
        tables.core_owners.insert(
            core,
            CoreOwnerRow {
                core,
                owner,
                held,
                target,
            },
        );
        Ok(())
    })
    .await?;
    let columns =
        "lease_id, gpu_id, held_sms, held_cap, held_bytes, target_sms, target_cap, target_bytes";
    each(conn, "lease_gpu", columns, |c| {
        let (lease, gpu) = (LeaseId(c.int()?), GpuId(c.int()?));
        let row = LeaseGpuRow {
            lease,
            gpu,
            held: c.share()?,
            target: c.share()?,
        };
        tables.lease_gpus.insert((lease, gpu), row);
        Ok(())
    })
    .await
}

/// Six columns: phase, pid, start_time, uid, verified, cause.
fn phase(c: &mut Columns<'_>) -> Result<Phase, Fault> {
    let name = c.get::<String>()?;
    let holder = match (c.maybe()?, c.maybe()?, c.maybe()?) {
        (Some(pid), Some(start_time), Some(uid)) => Some(Holder {
            pid,
            start_time,
            uid,
        }),
        _ => None,
    };
    let verified = c.get::<bool>()?;
    let cause: Option<Cause> = c.maybe_word()?;
    Ok(match (name.as_str(), holder, cause) {
        ("queued", ..) => Phase::Queued,
        ("pending", ..) => Phase::Pending,
        ("attached", Some(holder), _) => Phase::Attached(holder),
        ("active", holder, _) => Phase::Active { holder, verified },
        ("draining", Some(holder), _) => Phase::Draining(holder),
        ("quarantined", Some(holder), Some(cause)) => Phase::Quarantined { holder, cause },
        _ => return Err(format!("a lease is {name} without what that takes").into()),
    })
}

async fn jobs(conn: &mut SqliteConnection, tables: &mut Tables) -> Result<(), OpenError> {
    let columns = "job_id, tenant, request_id, body, remembered, spec, phase, plan, shape, scale, learned, moves,
        arrival, kappa";
    each(conn, "job", columns, |c| {
        let row = JobRow {
            id: JobId(c.int()?),
            tenant: c.name()?,
            request: c.request()?,
            body: c.body()?,
            remembered: c.get()?,
            spec: c.json()?,
            phase: c.word()?,
            plan: match c.get::<Option<String>>()? {
                Some(text) => Some(serde_json::from_str(&text)?),
                None => None,
            },
            shape: c.json()?,
            scale: c.json()?,
            learned: c.json()?,
            moves: c.int()?,
            arrival: LeaseId(c.int()?),
            kappa: c.json()?,
        };
        tables.jobs.insert(row.id, row);
        Ok(())
    })
    .await?;
    each(conn, "slot", "job_id, stage, worker, lease_id", |c| {
        let member = c.member()?;
        tables.slots.insert(member, c.maybe()?.map(LeaseId));
        Ok(())
    })
    .await?;
    each(
        conn,
        "slot_gpu",
        "job_id, stage, worker, gpu_id, sms, cap, bytes",
        |c| {
            let key = (c.member()?, GpuId(c.int()?));
            let share = c.share()?.ok_or("a share is null")?;
            tables.slot_gpus.insert(key, share);
            Ok(())
        },
    )
    .await
}

/// Remembered answers and profiles.
async fn memory(conn: &mut SqliteConnection, tables: &mut Tables) -> Result<(), OpenError> {
    let columns = "tenant, request_id, body, lease_id, fence, how, end_fence, job_id";
    each(conn, "request", columns, |c| {
        let (key, body) = ((c.name()?, c.request()?), c.body()?);
        let (lease, fence) = (c.maybe()?.map(LeaseId), c.maybe()?.map(Fence));
        let end = (c.maybe_word::<End>()?, c.maybe()?.map(Fence));
        let effect = match (lease, fence, c.maybe()?.map(JobId)) {
            (Some(id), Some(fence), None) => Effect::Lease {
                id,
                fence,
                end: end.0.zip(end.1),
            },
            (None, None, Some(job)) => Effect::Job(job),
            _ => return Err("a request has not one effect".into()),
        };
        tables.requests.insert(key, Remembered { body, effect });
        Ok(())
    })
    .await?;
    let key = |c: &mut Columns<'_>| -> Result<ProfileKey, Fault> {
        Ok(ProfileKey {
            tenant: c.name()?,
            stage: c.name()?,
            gpu: c.name()?,
        })
    };
    each(conn, "profile", "tenant, stage, gpu", |c| {
        tables.profiles.entry(key(c)?).or_default();
        Ok(())
    })
    .await?;
    each(conn, "profile_point", "tenant, stage, gpu, n, point", |c| {
        let points = tables.profiles.entry(key(c)?).or_default();
        points.insert(c.int()?, c.json()?);
        Ok(())
    })
    .await
}

impl Rows {
    /// Compares what triggers count with what the rows say, and ids with the counters.
    pub(super) fn audit(&self) -> Result<(), Corrupt> {
        numbered(&self.tables)?;
        for &(gpu, sms, memory) in &self.used {
            let counted = self.tables.counted_on(gpu);
            if counted != (sms, memory) {
                let what = format!(
                    "{gpu} counts {sms} and {memory} as used, and its shares are {} and {}",
                    counted.0, counted.1
                );
                return Err(Corrupt { what });
            }
        }
        Ok(())
    }
}
