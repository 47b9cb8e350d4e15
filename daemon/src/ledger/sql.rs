//! The SQL of a batch: one set-based statement per table, composed of those that have rows.
//!
//! Each statement takes one parameter: a JSON array of rows, each an array in the order of `rows`.
//! `jsonb_each` hands a row out in binary, so that its columns are looked up without parsing it again.
//! All statements of a batch, BEGIN and COMMIT included, go to SQLite's thread as one text: one hop per batch.
use serde::Serialize;

use super::fold::Batch;
use super::rows::{CoreColumns, EventColumns, GpuColumns, MemberColumns, ProfileColumns};

/// A batch, ready to be executed.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    /// `BEGIN IMMEDIATE; …; COMMIT`.
    pub(super) sql: String,
    /// One for each statement in between.
    pub(super) args: Vec<String>,
    /// Lines of the audit trail.
    pub(super) events: u64,
}

impl Encoded {
    /// An open transaction.
    pub(super) fn new() -> Self {
        Self {
            sql: String::from("BEGIN IMMEDIATE;\n"),
            args: Vec::new(),
            events: 0,
        }
    }
    /// Adds a statement for `rows`, unless there are none.
    pub(super) fn add<T: Serialize>(
        &mut self,
        sql: &str,
        rows: impl ExactSizeIterator<Item = T>,
    ) -> Result<(), serde_json::Error> {
        if rows.len() > 0 {
            self.sql.push_str(sql);
            let mut json = Vec::with_capacity(64 * rows.len());
            serde::Serializer::collect_seq(&mut serde_json::Serializer::new(&mut json), rows)?;
            self.args.push(String::from_utf8_lossy(&json).into_owned());
        }
        Ok(())
    }
}

const EVENT: &str = "INSERT INTO event (seq, batch, unix_ms, kind, lease_id, job_id, tenant, json)
    SELECT value->>0, value->>1, value->>2, value->>3, value->>4,
        CASE WHEN value->>6 IS NULL AND value->>5 IS NULL
            THEN (SELECT ask->>'$.stage.job' FROM lease WHERE lease_id = value->>4) ELSE value->>5 END,
        coalesce(value->>6, (SELECT tenant FROM lease WHERE lease_id = value->>4),
            (SELECT tenant FROM job WHERE job_id = value->>5)),
        value->7
    FROM jsonb_each(?);\n";
const REMEMBER_LEASES: &str =
    "INSERT INTO request (tenant, request_id, body, lease_id, fence, how, end_fence)
    SELECT tenant, request_id, body, lease_id, granted_fence, value->>1, value->>2
    FROM jsonb_each(?) CROSS JOIN lease ON lease_id = value->>0 WHERE granted_fence IS NOT NULL
    ON CONFLICT DO UPDATE SET body = excluded.body, lease_id = excluded.lease_id, fence = excluded.fence,
        how = excluded.how, end_fence = excluded.end_fence, job_id = NULL;\n";
const END_LEASES: &str = "DELETE FROM lease WHERE lease_id IN (SELECT value FROM json_each(?));\n";
const REMEMBER_JOBS: &str = "INSERT INTO request (tenant, request_id, body, job_id)
    SELECT tenant, request_id, body, job_id
    FROM json_each(?) CROSS JOIN job ON job_id = value WHERE remembered
    ON CONFLICT DO UPDATE SET body = excluded.body, job_id = excluded.job_id,
        lease_id = NULL, fence = NULL, how = NULL, end_fence = NULL;\n";
const END_JOBS: &str = "DELETE FROM job WHERE job_id IN (SELECT value FROM json_each(?));\n";
const CLEAR_SLOTS: &str = "DELETE FROM slot WHERE job_id IN (SELECT value FROM json_each(?));\n";
const CLEAR_LEASE_CORES: &str =
    "DELETE FROM core_owner WHERE lease_id IN (SELECT value FROM json_each(?));\n";
const CLEAR_LEASE_GPUS: &str =
    "DELETE FROM lease_gpu WHERE lease_id IN (SELECT value FROM json_each(?));\n";
const CLEAR_SLOT_CORES: &str = "DELETE FROM core_owner WHERE (job_id, stage, worker) IN
    (SELECT value->>0, value->>1, value->>2 FROM jsonb_each(?));\n";
const CLEAR_SLOT_GPUS: &str = "DELETE FROM slot_gpu WHERE (job_id, stage, worker) IN
    (SELECT value->>0, value->>1, value->>2 FROM jsonb_each(?));\n";
const FORGET: &str = "DELETE FROM request WHERE (tenant, request_id) IN
    (SELECT value->>0, unhex(value->>1, '-') FROM jsonb_each(?));\n";
const CLEAR_PROFILES: &str = "DELETE FROM profile WHERE (tenant, stage, gpu) IN
    (SELECT value->>0, value->>1, value->>2 FROM jsonb_each(?));\n";

const NODE: &str = "UPDATE node SET (kind, reserved_cores, unavailable_cores, draining) =
    (SELECT value->>0, value->>1, value->>2, value->>3 FROM jsonb_each(?));\n";
const KEEP_CORES: &str =
    "DELETE FROM core WHERE core_id NOT IN (SELECT value FROM json_each(?));\n";
const CORES: &str = "INSERT INTO core (core_id, cpus, numa, package)
    SELECT value->>0, value->>1, value->>2, value->>3 FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET cpus = excluded.cpus, numa = excluded.numa, package = excluded.package;\n";
const KEEP_GPUS: &str = "DELETE FROM gpu WHERE gpu_id NOT IN (SELECT value FROM json_each(?));\n";
const GPUS: &str = "INSERT INTO gpu
        (gpu_id, uuid, model, sms, bytes, reserved_bytes, numa, backend, mode)
    SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8
    FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET uuid = excluded.uuid, model = excluded.model, sms = excluded.sms,
        bytes = excluded.bytes, reserved_bytes = excluded.reserved_bytes,
        numa = excluded.numa, backend = excluded.backend, mode = excluded.mode;\n";
const ENFORCEABLE: &str = "INSERT INTO gpu_enforceable (gpu_id, counts)
    SELECT value->>0, value->1 FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET counts = excluded.counts;\n";
const KEEP_UNAVAILABLE: &str =
    "DELETE FROM unavailable_gpu WHERE gpu_id NOT IN (SELECT value FROM json_each(?));\n";
const UNAVAILABLE: &str = "INSERT INTO unavailable_gpu (gpu_id, sms, bytes)
    SELECT value->>0, value->>1, value->>2 FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET sms = excluded.sms, bytes = excluded.bytes;\n";

const LEASES: &str = "INSERT INTO lease (lease_id, tenant, request_id, body, granted_fence, ask, enforced,
        resize, processes, ttl_ms, priority, fence, generation, batch, phase, pid, start_time, uid, verified,
        cause)
    SELECT value->>0, value->>1, unhex(value->>2, '-'), value->>3, value->>4, value->5, value->>6, value->>7,
        value->>8, value->>9, value->>10, value->>11, value->>12, value->>13, value->>14, value->>15,
        value->>16, value->>17, value->>18, value->>19
    FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET tenant = excluded.tenant, request_id = excluded.request_id,
        body = excluded.body, granted_fence = excluded.granted_fence, ask = excluded.ask,
        enforced = excluded.enforced, resize = excluded.resize, processes = excluded.processes,
        ttl_ms = excluded.ttl_ms, priority = excluded.priority, fence = excluded.fence,
        generation = excluded.generation, batch = excluded.batch, phase = excluded.phase, pid = excluded.pid,
        start_time = excluded.start_time, uid = excluded.uid, verified = excluded.verified,
        cause = excluded.cause;\n";
const JOBS: &str = "INSERT INTO job (job_id, tenant, request_id, body, remembered, spec, phase, plan, shape,
        scale, learned, moves, arrival, kappa)
    SELECT value->>0, value->>1, unhex(value->>2, '-'), value->>3, value->>4, value->5, value->>6,
        nullif(value->7, 'null'), value->8, value->9, value->10, value->>11, value->>12, value->13
    FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET tenant = excluded.tenant, request_id = excluded.request_id,
        body = excluded.body, remembered = excluded.remembered, spec = excluded.spec,
        phase = excluded.phase, plan = excluded.plan, shape = excluded.shape, scale = excluded.scale,
        learned = excluded.learned, moves = excluded.moves, arrival = excluded.arrival,
        kappa = excluded.kappa;\n";
const SLOTS: &str = "INSERT INTO slot (job_id, stage, worker, lease_id)
    SELECT value->>0, value->>1, value->>2, value->>3 FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET lease_id = excluded.lease_id;\n";
const CORE_OWNERS: &str =
    "INSERT INTO core_owner (core_id, held, target, lease_id, job_id, stage, worker)
    SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6
    FROM jsonb_each(?);\n";
const LEASE_GPUS: &str =
    "INSERT INTO lease_gpu (lease_id, gpu_id, held_sms, held_cap, held_bytes, target_sms,
        target_cap, target_bytes)
    SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7
    FROM jsonb_each(?);\n";
const SLOT_GPUS: &str = "INSERT INTO slot_gpu (job_id, stage, worker, gpu_id, sms, cap, bytes)
    SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6
    FROM jsonb_each(?);\n";
const REQUESTS: &str =
    "INSERT INTO request (tenant, request_id, body, lease_id, fence, how, end_fence, job_id)
    SELECT value->>0, unhex(value->>1, '-'), value->>2, value->>3, value->>4, value->>5, value->>6, value->>7
    FROM jsonb_each(?) WHERE true
    ON CONFLICT DO UPDATE SET body = excluded.body, lease_id = excluded.lease_id, fence = excluded.fence,
        how = excluded.how, end_fence = excluded.end_fence, job_id = excluded.job_id;\n";
const PROFILES: &str = "INSERT INTO profile (tenant, stage, gpu)
    SELECT value->>0, value->>1, value->>2 FROM jsonb_each(?) WHERE true ON CONFLICT DO NOTHING;\n";
const POINTS: &str = "INSERT INTO profile_point (tenant, stage, gpu, n, point)
    SELECT value->>0, value->>1, value->>2, value->>3, value->4 FROM jsonb_each(?);\n";
const COUNTER: &str = "UPDATE counter SET (batch, next_event, next_lease, next_job) =
    (SELECT value->>0, value->>1, value->>2, value->>3 FROM jsonb_each(?));\n";

impl Batch {
    /// How many statements its commit runs, BEGIN and COMMIT among them: one per table that it touches.
    pub fn statements(&self) -> usize {
        encode(self, 1, 1).map_or(0, |encoded| encoded.statements())
    }
}

/// The statements of a batch that becomes number `number`, its events numbered from `next_event`.
pub(super) fn encode(
    batch: &Batch,
    number: u64,
    next_event: u64,
) -> Result<Encoded, serde_json::Error> {
    let mut out = Encoded::new();
    out.events = batch.events.len() as u64;
    let events = batch
        .events
        .iter()
        .enumerate()
        .map(|(i, row)| EventColumns {
            seq: next_event + i as u64,
            batch: number,
            unix_ms: batch.unix_ms,
            row,
        });
    out.add(EVENT, events)?; // first: it asks the rows that are about to go whose they are
    what_goes(batch, &mut out)?;
    node(batch, &mut out)?;
    what_comes(batch, &mut out)?;
    let counter = (
        number,
        next_event + out.events,
        batch.next_lease,
        batch.next_job,
    );
    out.add(COUNTER, [counter].into_iter())?;
    out.sql.push_str("COMMIT");
    Ok(out)
}

fn what_goes(batch: &Batch, out: &mut Encoded) -> Result<(), serde_json::Error> {
    out.add(REMEMBER_LEASES, batch.ended.iter())?;
    out.add(END_LEASES, batch.ended.iter().map(|row| row.lease))?;
    out.add(REMEMBER_JOBS, batch.ended_jobs.iter())?;
    out.add(END_JOBS, batch.ended_jobs.iter())?;
    out.add(CLEAR_SLOTS, batch.reslotted.iter())?;
    out.add(CLEAR_LEASE_CORES, batch.revectored.iter())?;
    out.add(CLEAR_LEASE_GPUS, batch.revectored.iter())?;
    out.add(
        CLEAR_SLOT_CORES,
        batch.refilled.iter().map(|m| MemberColumns(*m)),
    )?;
    out.add(
        CLEAR_SLOT_GPUS,
        batch.refilled.iter().map(|m| MemberColumns(*m)),
    )?;
    out.add(FORGET, batch.forgotten.iter())?;
    out.add(CLEAR_PROFILES, batch.reprofiled.iter().map(ProfileColumns))
}

fn node(batch: &Batch, out: &mut Encoded) -> Result<(), serde_json::Error> {
    let Some(rows) = &batch.node else {
        return Ok(());
    };
    out.add(NODE, [&rows.node].into_iter())?;
    if let Some(cores) = &rows.cores {
        let ids: Vec<u32> = cores.iter().map(|c| c.id).collect();
        out.add_one(KEEP_CORES, &ids)?;
        out.add(CORES, cores.iter().map(CoreColumns))?;
    }
    if let Some(gpus) = &rows.gpus {
        let ids: Vec<_> = gpus.iter().map(|g| g.id).collect();
        out.add_one(KEEP_GPUS, &ids)?;
        out.add(GPUS, gpus.iter().map(GpuColumns))?;
        out.add(ENFORCEABLE, gpus.iter().map(|g| (g.id, &g.enforceable)))?;
    }
    let ids: Vec<_> = rows.unavailable.iter().map(|u| u.gpu).collect();
    out.add_one(KEEP_UNAVAILABLE, &ids)?;
    out.add(UNAVAILABLE, rows.unavailable.iter())
}

fn what_comes(batch: &Batch, out: &mut Encoded) -> Result<(), serde_json::Error> {
    out.add(LEASES, batch.leases.iter())?;
    out.add(JOBS, batch.jobs.iter())?;
    out.add(SLOTS, batch.slots.iter())?;
    out.add(CORE_OWNERS, batch.cores.iter())?;
    out.add(LEASE_GPUS, batch.lease_gpus.iter())?;
    out.add(SLOT_GPUS, batch.slot_gpus.iter())?;
    out.add(REQUESTS, batch.requests.iter())?;
    out.add(PROFILES, batch.profiles.iter().map(ProfileColumns))?;
    out.add(POINTS, batch.points.iter())
}

impl Encoded {
    /// How many statements the text has, BEGIN and COMMIT among them.
    pub(super) fn statements(&self) -> usize {
        self.sql.matches(';').count() + 1
    }
    /// Adds a statement whose parameter may be an empty array.
    fn add_one(&mut self, sql: &str, rows: &impl Serialize) -> Result<(), serde_json::Error> {
        self.sql.push_str(sql);
        self.args.push(serde_json::to_string(rows)?);
        Ok(())
    }
}
