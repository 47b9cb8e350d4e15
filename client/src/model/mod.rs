//! What clients talk about: leases, jobs, profiles, plans, the node. Plain structs with units in their names.
//!
//! Their JSON (serde) is what `evenkeel --output json` prints; field names are the wire's. How they
//! become wire messages is `convert`'s business alone.

mod amount;
mod job;
mod lease;
mod node;
mod plan;
mod profile;
mod trial;
mod work;

pub use amount::{BadCpuList, CpuList, GpuShare, Vector};
pub use job::{
    Balance, Detector, Job, JobPhase, JobSpec, JobUpdate, Policy, RebalanceSpec, Role, SmMode,
    StageSpec,
};
pub use lease::{
    Ask, Attached, GpuAsk, Lease, LeaseEnd, LeasePhase, LeaseRef, LeaseRequest, Member, Renewal,
    RenewalStatus, ResizeMode, SmAsk,
};
pub use node::{Event, EventFilter, Gpu, Node};
pub use plan::{Decision, Explanation, Plan, PlanRequest, StagePlan};
pub use profile::{
    CoRun, CoRunCaps, Conditions, Curve, CurvePoint, FittedProfile, Profile, ProfileKey,
    ProfilePoint,
};
pub use trial::{Trial, TrialAnswer, TrialRequest};
pub use work::{BusyInterval, Directive, DirectiveKind, Step};
