-- The ledger: what an Evenkeel daemon must not forget. Plain tables are the truth; `event` is the audit trail.
--
-- Written by daemon/src/ledger only, one transaction per batch. The schema refuses an over-committed pool by
-- itself: a core has one owner (primary key of core_owner), and what is counted on a GPU (triggers on the
-- share tables keep gpu.used_*) never exceeds what is installed less what is reserved (CHECK). Amounts are integers; JSON holds what
-- SQL never looks into. Never INSERT OR REPLACE: it is a delete without a thought.
--
-- What may not change once released: this file. A new schema is a new file, and user_version rises.

PRAGMA application_id = 0x45564b4c; -- "EVKL"
PRAGMA user_version = 1;

-- Numbers that only rise. One row.
CREATE TABLE counter (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    batch      INTEGER NOT NULL,               -- committed batches: tells whether one in doubt is there
    next_event INTEGER NOT NULL,
    next_lease INTEGER NOT NULL CHECK (next_lease > 0),
    next_job   INTEGER NOT NULL CHECK (next_job > 0),
    epoch      INTEGER NOT NULL                -- starts of a daemon on this ledger
) STRICT;
INSERT INTO counter VALUES (1, 0, 1, 1, 1, 0);
CREATE TRIGGER counter_rises BEFORE UPDATE ON counter
WHEN new.batch < old.batch OR new.next_event < old.next_event OR new.next_lease < old.next_lease
    OR new.next_job < old.next_job OR new.epoch < old.epoch
BEGIN
    SELECT raise(ABORT, 'a counter of the ledger never falls');
END;

-- Texts about the ledger as a whole: boot_id; alive_ms (BOOTTIME, when the daemon last noted that it lives).
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The node. One row.
CREATE TABLE node (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    kind              TEXT NOT NULL CHECK (kind IN ('local', 'synthetic')),
    reserved_cores    TEXT NOT NULL,            -- the kernel's list format: 0-3,8
    unavailable_cores TEXT NOT NULL,            -- offline, or taken by a neighbour
    draining          INTEGER NOT NULL CHECK (draining IN (0, 1))
) STRICT;
INSERT INTO node VALUES (1, 'local', '', '', 0);

CREATE TABLE core (
    core_id INTEGER PRIMARY KEY,
    cpus    TEXT NOT NULL,
    numa    INTEGER NOT NULL CHECK (numa >= 0),
    package INTEGER NOT NULL CHECK (package >= 0)
) STRICT;

CREATE TABLE gpu (
    gpu_id         INTEGER PRIMARY KEY,
    uuid           TEXT NOT NULL,
    model          TEXT NOT NULL,
    sms            INTEGER NOT NULL CHECK (sms >= 0),
    bytes          INTEGER NOT NULL CHECK (bytes >= 0),
    reserved_bytes INTEGER NOT NULL CHECK (reserved_bytes >= 0),
    enforceable    TEXT NOT NULL CHECK (json_valid(enforceable)),
    numa           INTEGER NOT NULL CHECK (numa >= 0),
    backend        TEXT NOT NULL CHECK (backend IN ('emulated', 'mps', 'mig', 'none')),
    mode           TEXT NOT NULL CHECK (mode IN ('observe', 'advise', 'enforce')),
    used_sms       INTEGER NOT NULL DEFAULT 0,  -- kept by triggers, never written otherwise
    used_bytes     INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT sms_overcommitted CHECK (used_sms BETWEEN 0 AND sms),
    CONSTRAINT bytes_overcommitted CHECK (used_bytes BETWEEN 0 AND bytes - reserved_bytes)
) STRICT;

-- What of a GPU cannot be leased now. No reference to gpu: a loss is always recorded.
CREATE TABLE unavailable_gpu (
    gpu_id INTEGER PRIMARY KEY,
    sms    INTEGER NOT NULL CHECK (sms >= 0),
    bytes  INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT;

-- Live leases, the queue among them. An ended lease leaves a row in `request` and lines in `event`.
CREATE TABLE lease (
    lease_id           INTEGER PRIMARY KEY,
    tenant             TEXT NOT NULL,
    request_id         BLOB NOT NULL CHECK (length(request_id) = 16),
    body               INTEGER NOT NULL,        -- digest of the request, bit for bit
    granted_fence      INTEGER,                 -- the answer to a retry; null: not remembered
    ask                TEXT NOT NULL CHECK (json_valid(ask)),
    enforced           INTEGER NOT NULL CHECK (enforced IN (0, 1)),
    resize             TEXT NOT NULL CHECK (resize IN ('live', 'restart', 'fixed')),
    processes          INTEGER NOT NULL CHECK (processes >= 0),
    ttl_ms             INTEGER NOT NULL CHECK (ttl_ms >= 0),
    priority           INTEGER NOT NULL,
    fence              INTEGER NOT NULL CHECK (fence >= 0),
    generation         INTEGER NOT NULL CHECK (generation >= 0),
    batch              INTEGER NOT NULL CHECK (batch >= 0),   -- size that the worker is to run at
    phase              TEXT NOT NULL
        CHECK (phase IN ('queued', 'pending', 'attached', 'active', 'draining', 'quarantined')),
    pid                INTEGER,
    start_time         INTEGER,                 -- of the process, in clock ticks since boot
    uid                INTEGER,
    verified           INTEGER NOT NULL CHECK (verified = 0 OR (verified = 1 AND phase = 'active')),
    cause              TEXT CHECK (cause IN ('expired', 'revoked')),
    unrenewed_since_ms INTEGER,                 -- BOOTTIME of the first start without a renewal since, downtimes taken off
    CONSTRAINT holder_is_whole CHECK ((pid IS NULL) = (start_time IS NULL) AND (pid IS NULL) = (uid IS NULL)),
    CONSTRAINT holder_fits_phase CHECK (CASE phase
        WHEN 'queued' THEN pid IS NULL
        WHEN 'pending' THEN pid IS NULL
        WHEN 'active' THEN TRUE
        ELSE pid IS NOT NULL END),
    CONSTRAINT cause_fits_phase CHECK ((cause IS NOT NULL) = (phase = 'quarantined'))
) STRICT;
CREATE TRIGGER fences_rise BEFORE UPDATE ON lease
WHEN new.fence < old.fence OR new.generation < old.generation
BEGIN
    SELECT raise(ABORT, 'a fence or a generation never falls');
END;

CREATE TABLE job (
    job_id     INTEGER PRIMARY KEY,
    tenant     TEXT NOT NULL,
    request_id BLOB NOT NULL CHECK (length(request_id) = 16),
    body       INTEGER NOT NULL,
    remembered INTEGER NOT NULL CHECK (remembered IN (0, 1)),
    spec       TEXT NOT NULL CHECK (json_valid(spec)),
    phase      TEXT NOT NULL CHECK (phase IN ('queued', 'admitted', 'parked')),
    plan       TEXT CHECK (json_valid(plan)),
    shape      TEXT NOT NULL CHECK (json_valid(shape)),   -- slots of each stage
    scale      TEXT NOT NULL CHECK (json_valid(scale)),
    learned    TEXT NOT NULL CHECK (json_valid(learned)),
    moves      INTEGER NOT NULL CHECK (moves >= 0),
    arrival    INTEGER NOT NULL CHECK (arrival > 0)   -- counter.next_lease when it was submitted: its place in the queue
) STRICT;

-- A worker's place in an admitted job. One lease fills one slot.
CREATE TABLE slot (
    job_id   INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
    stage    INTEGER NOT NULL,
    worker   INTEGER NOT NULL,
    lease_id INTEGER REFERENCES lease ON DELETE SET NULL,
    PRIMARY KEY (job_id, stage, worker)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX slot_lease ON slot (lease_id) WHERE lease_id IS NOT NULL;

-- One owner per core: a lease that has it or is to have it, or a slot that keeps it.
CREATE TABLE core_owner (
    core_id  INTEGER PRIMARY KEY REFERENCES core,
    held     INTEGER NOT NULL CHECK (held IN (0, 1)),
    target   INTEGER NOT NULL CHECK (target IN (0, 1)),
    lease_id INTEGER REFERENCES lease ON DELETE CASCADE,
    job_id   INTEGER,
    stage    INTEGER,
    worker   INTEGER,
    FOREIGN KEY (job_id, stage, worker) REFERENCES slot ON DELETE CASCADE,
    CONSTRAINT one_owner CHECK ((lease_id IS NULL) = (job_id IS NOT NULL)
        AND (job_id IS NULL) = (stage IS NULL) AND (job_id IS NULL) = (worker IS NULL)),
    CONSTRAINT held_or_target CHECK (held + target > 0)
) STRICT;
CREATE INDEX core_owner_lease ON core_owner (lease_id) WHERE lease_id IS NOT NULL;
CREATE INDEX core_owner_slot ON core_owner (job_id, stage, worker) WHERE job_id IS NOT NULL;

-- A lease's share of a GPU: held and target, and what is counted: the larger.
CREATE TABLE lease_gpu (
    lease_id     INTEGER NOT NULL REFERENCES lease ON DELETE CASCADE,
    gpu_id       INTEGER NOT NULL REFERENCES gpu,
    held_sms     INTEGER CHECK (held_sms >= 0),       -- null: not in the held vector
    held_cap     INTEGER CHECK (held_cap >= held_sms),
    held_bytes   INTEGER CHECK (held_bytes >= 0),
    target_sms   INTEGER CHECK (target_sms >= 0),     -- null: not in the target
    target_cap   INTEGER CHECK (target_cap >= target_sms),
    target_bytes INTEGER CHECK (target_bytes >= 0),
    sms   INTEGER NOT NULL AS (max(coalesce(held_sms, 0), coalesce(target_sms, 0))),
    bytes INTEGER NOT NULL AS (max(coalesce(held_bytes, 0), coalesce(target_bytes, 0))),
    PRIMARY KEY (lease_id, gpu_id)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER lease_gpu_comes AFTER INSERT ON lease_gpu BEGIN
    UPDATE gpu SET used_sms = used_sms + new.sms, used_bytes = used_bytes + new.bytes
    WHERE gpu_id = new.gpu_id;
END;
CREATE TRIGGER lease_gpu_goes AFTER DELETE ON lease_gpu BEGIN
    UPDATE gpu SET used_sms = used_sms - old.sms, used_bytes = used_bytes - old.bytes
    WHERE gpu_id = old.gpu_id;
END;
CREATE TRIGGER lease_gpu_stays BEFORE UPDATE ON lease_gpu BEGIN
    SELECT raise(ABORT, 'a share changes by going and coming');
END;

-- What is kept of a GPU for a slot that no lease fills.
CREATE TABLE slot_gpu (
    job_id INTEGER NOT NULL,
    stage  INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    gpu_id INTEGER NOT NULL REFERENCES gpu,
    sms    INTEGER NOT NULL CHECK (sms >= 0),
    cap    INTEGER NOT NULL CHECK (cap >= sms),
    bytes  INTEGER NOT NULL CHECK (bytes >= 0),
    PRIMARY KEY (job_id, stage, worker, gpu_id),
    FOREIGN KEY (job_id, stage, worker) REFERENCES slot ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE TRIGGER slot_gpu_comes AFTER INSERT ON slot_gpu BEGIN
    UPDATE gpu SET used_sms = used_sms + new.sms, used_bytes = used_bytes + new.bytes
    WHERE gpu_id = new.gpu_id;
END;
CREATE TRIGGER slot_gpu_goes AFTER DELETE ON slot_gpu BEGIN
    UPDATE gpu SET used_sms = used_sms - old.sms, used_bytes = used_bytes - old.bytes
    WHERE gpu_id = old.gpu_id;
END;
CREATE TRIGGER slot_gpu_stays BEFORE UPDATE ON slot_gpu BEGIN
    SELECT raise(ABORT, 'a share changes by going and coming');
END;

-- Answers that are remembered although what they made has ended. While a lease or a job lives, its own row
-- remembers. Ids are time-ordered (UUIDv7), so that new rows come in at the end of a tenant.
CREATE TABLE request (
    tenant     TEXT NOT NULL,
    request_id BLOB NOT NULL CHECK (length(request_id) = 16),
    body       INTEGER NOT NULL,
    lease_id   INTEGER,
    fence      INTEGER,                         -- of the grant's time
    how        TEXT CHECK (how IN ('released', 'expired', 'revoked', 'failed', 'abandoned')),
    end_fence  INTEGER,
    job_id     INTEGER,
    PRIMARY KEY (tenant, request_id),
    CONSTRAINT one_effect CHECK ((lease_id IS NULL) = (job_id IS NOT NULL) AND (lease_id IS NULL) = (fence IS NULL)
        AND (how IS NULL) = (end_fence IS NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE profile (
    tenant TEXT NOT NULL,
    stage  TEXT NOT NULL,
    gpu    TEXT NOT NULL,
    PRIMARY KEY (tenant, stage, gpu)
) STRICT, WITHOUT ROWID;

CREATE TABLE profile_point (
    tenant TEXT NOT NULL,
    stage  TEXT NOT NULL,
    gpu    TEXT NOT NULL,
    n      INTEGER NOT NULL CHECK (n >= 0),     -- in the order of measuring
    point  TEXT NOT NULL CHECK (json_valid(point)),
    PRIMARY KEY (tenant, stage, gpu, n),
    FOREIGN KEY (tenant, stage, gpu) REFERENCES profile ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- The audit trail: appended in the transaction that it describes, pruned by age, never read at start.
CREATE TABLE event (
    seq      INTEGER PRIMARY KEY,
    batch    INTEGER NOT NULL,
    unix_ms  INTEGER NOT NULL,                  -- wall clock, for people
    kind     TEXT NOT NULL,
    lease_id INTEGER,
    job_id   INTEGER,
    tenant   TEXT,
    json     TEXT NOT NULL
) STRICT;
CREATE INDEX event_lease ON event (lease_id) WHERE lease_id IS NOT NULL;
CREATE INDEX event_job ON event (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX event_tenant ON event (tenant) WHERE tenant IS NOT NULL; -- and by seq, which every index ends with
