//! The ledger's rows, as values: what one row of each table holds, and how it travels to SQLite.
//!
//! Not SQL and not I/O. `fold` makes rows, `tables` keeps them in memory, `write` sends them as JSON arrays
//! (one array per row, in the order of the columns in `sql`), `read` reads them back.
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::curve::{Point, ProfileKey};
use evenkeel_core::event::Event;
use evenkeel_core::grant::{Ask, GpuShare, Member, Resize};
use evenkeel_core::id::{BodyHash, Fence, Generation, GpuId, JobId, LeaseId, Name, RequestId};
use evenkeel_core::job::{JobPhase, JobSpec, Plan};
use evenkeel_core::lease::{Cause, End, Phase};
use evenkeel_core::node::{Core, Gpu, PoolKind};
use evenkeel_core::pool::Owner;
use evenkeel_core::state::Effect;
use evenkeel_core::unit::{Bytes, Millis, Sms};
use serde::ser::{Serialize, SerializeSeq, Serializer};

/// Tenant and request: the key of idempotence.
pub type RequestKey = (Name, RequestId);

/// Table `lease`: a live lease, the queue among them. Its vectors are in `core_owner` and `lease_gpu`.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRow {
    /// Key.
    pub id: LeaseId,
    /// Whose it is.
    pub tenant: Name,
    /// The request that made it.
    pub request: RequestId,
    /// Digest of that request.
    pub body: BodyHash,
    /// The fence of the grant's time, which a retry of the request is told. None: not remembered.
    pub granted_fence: Option<Fence>,
    /// What was asked.
    pub ask: Ask,
    /// Whether the daemon enforces it.
    pub enforced: bool,
    /// How its GPU share can change.
    pub resize: Resize,
    /// Processes that share its GPU memory.
    pub processes: u32,
    /// Life without a renewal.
    pub ttl: Millis,
    /// Place in the queue.
    pub priority: i32,
    /// Rises when the right changes hands.
    pub fence: Fence,
    /// Rises with each target.
    pub generation: Generation,
    /// Batch size that the worker is to run at.
    pub batch: u32,
    /// Where it is in its life; six columns.
    pub phase: Phase,
}

/// Table `core_owner`: one core that a lease or a slot counts. The key is the core: one owner each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreOwnerRow {
    /// Key.
    pub core: u32,
    /// Who counts it.
    pub owner: Owner,
    /// Among the cores that the lease has (slots: false).
    pub held: bool,
    /// Among the cores that the lease is to have (slots: true).
    pub target: bool,
}

/// Table `lease_gpu`: a lease's share of one GPU. The schema counts the larger of held and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGpuRow {
    /// Key.
    pub lease: LeaseId,
    /// Key.
    pub gpu: GpuId,
    /// What it has; none: the GPU is not in its held vector.
    pub held: Option<GpuShare>,
    /// What it is to have; none: the GPU is not in its target.
    pub target: Option<GpuShare>,
}

/// Table `slot`: a worker's place in an admitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRow {
    /// Key.
    pub member: Member,
    /// The live lease that fills it.
    pub lease: Option<LeaseId>,
}

/// Table `slot_gpu`: what is kept of one GPU for a slot that no lease fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGpuRow {
    /// Key.
    pub member: Member,
    /// Key.
    pub gpu: GpuId,
    /// The unclaimed share.
    pub share: GpuShare,
}

/// Table `job`: a job that has not ended. Its slots are in `slot`.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRow {
    /// Key.
    pub id: JobId,
    /// Whose it is.
    pub tenant: Name,
    /// The request that made it.
    pub request: RequestId,
    /// Digest of that request.
    pub body: BodyHash,
    /// The number that the next lease had when it was submitted.
    pub arrival: LeaseId,
    /// Whether a retry of the request is answered with this job.
    pub remembered: bool,
    /// As declared.
    pub spec: JobSpec,
    /// Where it is in its life.
    pub phase: JobPhase,
    /// The split in force.
    pub plan: Option<Plan>,
    /// Slots of each stage.
    pub shape: Vec<u32>,
    /// Factors measured/predicted, by stage.
    pub scale: Vec<f64>,
    /// Points measured live, by stage.
    pub learned: Vec<Vec<Point>>,
    /// What stages cost each other.
    pub kappa: Vec<Vec<f64>>,
    /// Moves of its shares.
    pub moves: u32,
}

/// Table `request`: an answer that is remembered although what it made has ended. (While a lease or a job
/// lives, its own row remembers: a grant writes one row less.)
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRow {
    /// Key.
    pub key: RequestKey,
    /// Digest of the body.
    pub body: BodyHash,
    /// What it made.
    pub effect: Effect,
}

/// Table `profile_point`: one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct PointRow {
    /// Key.
    pub key: ProfileKey,
    /// Key: its place in the profile.
    pub n: u32,
    /// The measurement.
    pub point: Point,
}

/// Table `node`: the one row of what is not a core or a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRow {
    /// Hardware or bookkeeping.
    pub kind: PoolKind,
    /// Cores kept for the system.
    pub reserved_cores: CpuSet,
    /// Cores that cannot be leased now.
    pub unavailable_cores: CpuSet,
    /// No grants.
    pub draining: bool,
}

/// Table `unavailable_gpu`: what of a GPU cannot be leased now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnavailableGpuRow {
    /// Key.
    pub gpu: GpuId,
    /// SMs.
    pub sms: Sms,
    /// Bytes.
    pub memory: Bytes,
}

/// Table `event`: one line of the audit trail.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRow {
    /// The lease concerned.
    pub lease: Option<LeaseId>,
    /// The job concerned.
    pub job: Option<JobId>,
    /// Whose it is. None on an event of a lease: look at the lease's row (it is about to go).
    pub tenant: Option<Name>,
    /// What happened.
    pub event: Event,
}

/// Statement `ended`: a lease that goes; its row remembers the request from here on in `request`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRow {
    /// The lease.
    pub lease: LeaseId,
    /// How.
    pub how: End,
    /// Its last fence.
    pub fence: Fence,
}

/// Writes a row as a JSON array.
macro_rules! columns {
    ($s:expr; $($column:expr),+ $(,)?) => {{
        let mut seq = $s.serialize_seq(None)?;
        $(seq.serialize_element(&$column)?;)+
        seq.end()
    }};
}

/// A digest has all 64 bits; SQLite's integers are signed.
pub(super) const fn signed(body: BodyHash) -> i64 {
    body.0.cast_signed()
}

impl Serialize for LeaseRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let holder = self.phase.holder();
        let verified = matches!(self.phase, Phase::Active { verified: true, .. });
        let cause: Option<Cause> = match self.phase {
            Phase::Quarantined { cause, .. } => Some(cause),
            _ => None,
        };
        columns!(s; self.id, self.tenant, self.request, signed(self.body), self.granted_fence, self.ask,
            self.enforced, self.resize, self.processes, self.ttl, self.priority, self.fence, self.generation,
            self.batch, self.phase.name().as_str(), holder.map(|h| h.pid), holder.map(|h| h.start_time),
            holder.map(|h| h.uid), verified, cause)
    }
}

impl Serialize for CoreOwnerRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.owner {
            Owner::Lease(id) => {
                columns!(s; self.core, self.held, self.target, id)
            }
            Owner::Slot(m) => {
                columns!(s; self.core, self.held, self.target, None::<LeaseId>, m.job, m.stage, m.worker)
            }
        }
    }
}

impl Serialize for LeaseGpuRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let (h, t) = (self.held, self.target);
        columns!(s; self.lease, self.gpu,
            h.map(|h| h.guarantee), h.map(|h| h.cap), h.map(|h| h.memory),
            t.map(|t| t.guarantee), t.map(|t| t.cap), t.map(|t| t.memory))
    }
}

impl Serialize for SlotRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let m = self.member;
        columns!(s; m.job, m.stage, m.worker, self.lease)
    }
}

impl Serialize for SlotGpuRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let (m, share) = (self.member, self.share);
        columns!(s; m.job, m.stage, m.worker, self.gpu, share.guarantee, share.cap, share.memory)
    }
}

impl Serialize for JobRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.id, self.tenant, self.request, signed(self.body), self.remembered, self.spec,
            self.phase, self.plan, self.shape, self.scale, self.learned, self.moves, self.arrival, self.kappa)
    }
}

impl Serialize for RequestRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let (tenant, request) = &self.key;
        let (lease, fence, end, job) = match self.effect {
            Effect::Lease { id, fence, end } => (Some(id), Some(fence), end, None),
            Effect::Job(id) => (None, None, None, Some(id)),
        };
        columns!(s; tenant, request, signed(self.body), lease, fence, end.map(|e| e.0), end.map(|e| e.1), job)
    }
}

impl Serialize for PointRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.key.tenant, self.key.stage, self.key.gpu, self.n, self.point)
    }
}

impl Serialize for NodeRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.kind, self.reserved_cores, self.unavailable_cores, self.draining)
    }
}

impl Serialize for UnavailableGpuRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.gpu, self.sms, self.memory)
    }
}

impl Serialize for EndedRow {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.lease, self.how, self.fence)
    }
}

/// A core's row: the core itself.
pub(super) struct CoreColumns<'a>(pub(super) &'a Core);
impl Serialize for CoreColumns<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.0.id, self.0.cpus, self.0.numa, self.0.package)
    }
}

/// A GPU's row: the GPU itself. What is used of it is kept by triggers.
pub(super) struct GpuColumns<'a>(pub(super) &'a Gpu);
impl Serialize for GpuColumns<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let g = self.0;
        columns!(s; g.id, g.uuid, g.model, g.sms, g.memory, g.reserved_memory, g.numa, g.backend, g.mode)
    }
}

/// A key of `slot`.
pub(super) struct MemberColumns(pub(super) Member);
impl Serialize for MemberColumns {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.0.job, self.0.stage, self.0.worker)
    }
}

/// A key of `profile`.
pub(super) struct ProfileColumns<'a>(pub(super) &'a ProfileKey);
impl Serialize for ProfileColumns<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        columns!(s; self.0.tenant, self.0.stage, self.0.gpu)
    }
}

/// A line of the audit trail with the numbers that the writer gives it.
pub(super) struct EventColumns<'a> {
    pub(super) seq: u64,
    pub(super) batch: u64,
    pub(super) unix_ms: u64,
    pub(super) row: &'a EventRow,
}
impl Serialize for EventColumns<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let row = self.row;
        columns!(s; self.seq, self.batch, self.unix_ms, row.event.kind(), row.lease, row.job, row.tenant,
            row.event)
    }
}
