//! Leases, as their owners and admins see them.
use evenkeel_proto::v1 as pb;
use serde::Serialize;
use utoipa::ToSchema;

use super::vector::ResourceVector;
use super::{LeaseEnd, LeasePhase, ResizeMode};

/// A lease as its owner (or an admin) sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct Lease {
    /// Its number; never reused.
    id: u64,
    /// Whose it is.
    tenant: String,
    /// The request that asked for it, a UUID.
    request_id: String,
    /// Rises when the right to use the lease changes hands or ends.
    fence: u64,
    /// Rises with each new target.
    generation: u64,
    /// Where it is in its life.
    #[schema(required = true)]
    phase: Option<LeasePhase>,
    /// How it ended, if it did.
    #[schema(required = true)]
    end: Option<LeaseEnd>,
    /// What its holder has, as observed.
    #[schema(required = true)]
    held: Option<ResourceVector>,
    /// What it is to have.
    #[schema(required = true)]
    target: Option<ResourceVector>,
    /// Time without a renewal after which the right to use it ends, in milliseconds.
    ttl_ms: u64,
    /// Time left until then, in milliseconds, counted from when this was sent.
    remaining_ms: u64,
    /// The job, stage and worker it is for; null for a lease outside any job.
    #[schema(required = true)]
    member: Option<Member>,
    /// Process id of the root of the worker's tree; 0 if nobody is attached.
    pid: u32,
    /// False on synthetic pools: the ledger counts it and nobody enforces it.
    enforced: bool,
    /// What the GPU share is: `reserved`, `capped`, `co-operative`, `unverified` or `none`.
    share_kind: String,
    /// How its GPU share can change.
    #[schema(required = true)]
    resize: Option<ResizeMode>,
    /// Past the deadline by less than the grace: a renewal still saves it.
    suspect: bool,
    /// Batch size that its worker is to run at; 1 where the stage has none, 0 outside any job.
    batch: u32,
}

/// A worker's place in a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Member {
    /// The job's name.
    job: String,
    /// The stage's name.
    stage: String,
    /// The worker's index in the stage, from 0.
    worker: u32,
}

impl From<pb::Member> for Member {
    fn from(m: pb::Member) -> Self {
        Self {
            job: m.job,
            stage: m.stage,
            worker: m.worker,
        }
    }
}

impl From<pb::Lease> for Lease {
    fn from(l: pb::Lease) -> Self {
        Self {
            id: l.id,
            phase: LeasePhase::of(l.phase()),
            end: LeaseEnd::of(l.end()),
            resize: ResizeMode::of(l.resize()),
            tenant: l.tenant,
            request_id: l.request_id,
            fence: l.fence,
            generation: l.generation,
            held: l.held.map(ResourceVector::from),
            target: l.target.map(ResourceVector::from),
            ttl_ms: l.ttl_ms,
            remaining_ms: l.remaining_ms,
            member: l.member.map(Member::from),
            pid: l.pid,
            enforced: l.enforced,
            share_kind: l.share_kind,
            suspect: l.suspect,
            batch: l.batch,
        }
    }
}

/// Leases, ascending by number.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::api::rest) struct LeasePage {
    /// The leases.
    pub(in crate::api::rest) leases: Vec<Lease>,
    /// The `after` of the next page; 0: there is none.
    pub(in crate::api::rest) next_after_id: u64,
}

impl From<pb::ListLeasesResponse> for LeasePage {
    fn from(page: pb::ListLeasesResponse) -> Self {
        Self {
            leases: page.leases.into_iter().map(Lease::from).collect(),
            next_after_id: page.next_after_id,
        }
    }
}
