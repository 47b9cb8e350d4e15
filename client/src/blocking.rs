//! The same client for threads without an asynchronous runtime: workers, scripts, bindings.
//!
//! It runs a small runtime of its own; a [`crate::LeaseGuard`] needs none of this.
use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::guard::{GuardOptions, LeaseGuard};
use crate::model::{
    Attached, Event, EventFilter, Explanation, FittedProfile, Job, JobSpec, JobUpdate, Lease,
    LeaseRef, LeaseRequest, Node, Plan, PlanRequest, Profile, ProfileKey, ProfilePoint, Renewal,
    TrialAnswer, TrialRequest,
};
use crate::retry::ClientConfig;

/// Calls to one daemon that block until they have an answer. Cheap to clone; may be shared by threads.
#[derive(Clone, Debug)]
pub struct Client {
    // Before the runtime: fields are dropped in order, and the client's tasks live in the runtime.
    inner: crate::Client,
    runtime: Arc<Runtime>,
}

/// A lease that this process holds, and what its processes need.
#[derive(Debug)]
pub struct Worker {
    /// The lease as attached.
    pub attached: Attached,
    /// Keeps it.
    pub guard: LeaseGuard,
}

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $t:ty),*) -> $out:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// As the asynchronous call of this name.
        pub fn $name(&self, $($arg: $t),*) -> Result<$out> {
            self.block(self.inner.$name($($arg),*))
        }
    )*};
}

impl Client {
    /// A client that connects when it is first used.
    ///
    /// # Errors
    /// The address cannot be used, or no thread can be started.
    pub fn new(config: ClientConfig) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("evenkeel-call")
            .enable_all()
            .build()
            .map_err(|source| Error::Start {
                what: "a runtime for calls",
                source,
            })?;
        let inner = {
            let _inside = runtime.enter();
            crate::Client::new(config)?
        };
        Ok(Self {
            inner,
            runtime: Arc::new(runtime),
        })
    }

    /// A client for the daemon that `EVENKEEL_SOCKET` names, or the default one.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_env() -> Result<Self> {
        Self::new(ClientConfig::from_env()?)
    }

    /// The asynchronous client inside, for streams. It belongs to the runtime of this one.
    pub const fn inner(&self) -> &crate::Client {
        &self.inner
    }

    /// Runs anything on this client's runtime: [`inner`](Self::inner)'s streams, say.
    ///
    /// # Errors
    /// [`Error::InsideRuntime`] on a thread that already runs one.
    pub fn block<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        if Handle::try_current().is_ok() {
            return Err(Error::InsideRuntime);
        }
        self.runtime.block_on(call)
    }

    /// Acquires, attaches this process and keeps the lease: all that a worker does at its start.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) and [`attach`](Self::attach); a lease that cannot be attached is given back.
    pub fn hold(&self, request: &LeaseRequest, options: GuardOptions) -> Result<Worker> {
        self.block(self.inner.hold(request, options))
    }

    calls! {
        /// Asks for a lease, waiting in the queue as long as the request says.
        fn acquire(request: &LeaseRequest) -> Lease;
        /// Names this process's tree as the holder.
        fn attach(lease: LeaseRef) -> Attached;
        /// Names the tree of `pid`, a descendant of this process, as the holder.
        fn attach_pid(lease: LeaseRef, pid: u32) -> Attached;
        /// Moves deadlines.
        fn renew(leases: &[LeaseRef]) -> Vec<Renewal>;
        /// Gives a lease back.
        fn release(lease: LeaseRef) -> Lease;
        /// One lease.
        fn lease(lease_id: u64) -> Lease;
        /// The caller's leases, of one job or all.
        fn leases(job: Option<&str>) -> Vec<Lease>;
        /// Takes a lease back.
        fn revoke(lease_id: u64) -> Lease;
        /// An admin's word that a quarantined holder is gone.
        fn clear(lease_id: u64, reason: &str) -> Lease;
        /// Submits a job.
        fn submit(request_id: Uuid, spec: &JobSpec) -> Job;
        /// One job, by name.
        fn job(name: &str) -> Job;
        /// The caller's jobs.
        fn jobs(include_ended: bool) -> Vec<Job>;
        /// Changes how a job is rebalanced, or plans it anew.
        fn update_job(name: &str, update: JobUpdate) -> Job;
        /// Ends a job.
        fn cancel_job(name: &str) -> Job;
        /// The plan that a job would get.
        fn solve_plan(request: PlanRequest) -> Plan;
        /// Why a job's shares are as they are.
        fn explain(name: &str) -> Explanation;
        /// Stores one measurement.
        fn report_trial(key: ProfileKey, point: ProfilePoint) -> u32;
        /// One profile with its fitted curves.
        fn profile(key: ProfileKey) -> FittedProfile;
        /// The caller's profiles, without their points.
        fn profiles() -> Vec<Profile>;
        /// Replaces a profile.
        fn import_profile(profile: Profile) -> u32;
        /// A profile as it was measured.
        fn export_profile(key: ProfileKey) -> Profile;
        /// Has a running worker that offered itself run a trial, and waits for its end.
        fn run_trial(request: TrialRequest) -> TrialAnswer;
        /// What the node has and what is leased.
        fn node() -> Node;
        /// Grants nothing new, or grants again.
        fn drain(draining: bool) -> Node;
        /// One page of the audit trail, and the number to go on after.
        fn events(filter: &EventFilter) -> (Vec<Event>, u64);
    }
}
