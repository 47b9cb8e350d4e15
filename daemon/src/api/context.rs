//! What every service shares: the handle, the configuration, the budgets, and the hardware as last seen.
use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use evenkeel_core::command::Caller;
use evenkeel_core::grant::{Ask, Vector};
use evenkeel_core::id::Name;
use evenkeel_core::lease::Lease;
use evenkeel_core::node::Node;
use evenkeel_core::step::State;
use evenkeel_core::unit::{Millis, Time};
use evenkeel_proto::v1 as pb;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use super::budget::{Budget, Held, Kind, Place};
use super::config::Config;
use super::convert::{self, Around, LeaseTimes};
use super::error;
use super::grpc::Recent;
use super::rate::Rates;
use super::trials::Trials;
use crate::clock;
use crate::handle::{Degraded, Failure, Handle};

/// See the module's text.
pub(super) struct Context {
    pub(super) handle: Handle,
    pub(super) config: Config,
    pub(super) budget: Arc<Budget>,
    /// How often each tenant has called of late.
    pub(super) rates: Arc<Rates>,
    /// The hardware as it was when somebody last looked: it changes rarely, and a look costs the controller.
    node: ArcSwap<Node>,
    /// What watchers of the node were shown a moment ago.
    pub(super) recent: Recent,
    /// Why new clients do not find the socket; none: they do.
    pub(super) astray: ArcSwapOption<String>,
    /// What is wrong with the certificates of the TCP door.
    pub(super) certificates: ArcSwap<Vec<String>>,
    /// What running workers measure for calibrations.
    pub(super) trials: Trials,
    pub(super) started: Instant,
    /// Set when the daemon stops.
    pub(super) stop: CancellationToken,
    /// Connections and streams.
    pub(super) tasks: TaskTracker,
}

impl Context {
    pub(super) async fn new(
        handle: Handle,
        config: Config,
        stop: CancellationToken,
    ) -> Result<Self, Failure> {
        let node = handle.read(|state, _| state.durable.node().clone()).await?;
        Ok(Self {
            handle,
            config,
            budget: Arc::default(),
            rates: Arc::default(),
            node: ArcSwap::from_pointee(node),
            recent: Recent::default(),
            astray: ArcSwapOption::empty(),
            certificates: ArcSwap::default(),
            trials: Trials::starting(clock::now()),
            started: Instant::now(),
            stop,
            tasks: TaskTracker::new(),
        })
    }

    /// A place of the caller's in a budget.
    pub(super) fn place(&self, kind: Kind, caller: &Caller) -> Result<Place, Status> {
        self.budget.take(kind, &caller.tenant)
    }

    /// Bytes for the caller, to be changed as they come and go.
    pub(super) fn hold(&self, kind: Kind, caller: &Caller, n: usize) -> Result<Held, Status> {
        self.budget.hold(kind, &caller.tenant, n)
    }

    /// Looks at the state.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        caller: &Caller,
        look: impl FnOnce(&State, Time) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.handle
            .read(look)
            .await
            .map_err(|f| error::status(f, caller))
    }

    /// A lease for the wire. Looks at the state only where the lease itself does not say enough.
    pub(super) async fn lease(&self, caller: &Caller, lease: Lease) -> Result<pb::Lease, Status> {
        let node = self.node.load_full();
        if matches!(lease.ask, Ask::Alone { .. })
            && knows(&node, &lease.held)
            && knows(&node, &lease.target)
        {
            let times = self.times(&lease);
            let around = Around::new(&node, &self.config.gpu_sockets);
            return Ok(convert::lease(&lease, &around, None, times));
        }
        let sockets = self.config.gpu_sockets.clone();
        let (wire, node) = self
            .read(caller, move |state, now| {
                let node = state.durable.node();
                let wire = convert::lease_in(state, now, &lease, &Around::new(node, &sockets));
                (wire, node.clone())
            })
            .await?;
        self.node.store(Arc::new(node));
        Ok(wire)
    }

    /// Time left to a lease, by its clock.
    fn times(&self, lease: &Lease) -> LeaseTimes {
        let deadline = self.handle.deadline(lease.id);
        LeaseTimes::new(lease, deadline, clock::now())
    }

    /// The names of a member's job and stage, resolved to numbers. None: there is no such job of this tenant.
    pub(super) async fn member(
        &self,
        caller: &Caller,
        job: Name,
        stage: Name,
        worker: u32,
    ) -> Result<Option<evenkeel_core::grant::Member>, Status> {
        let tenant = caller.tenant.clone();
        let found = self
            .read(caller, move |state, _| {
                let found = state.durable.job_named(&tenant, &job)?;
                let at = found.spec.stages.iter().position(|s| s.name == stage);
                let stages: Vec<String> = found
                    .spec
                    .stages
                    .iter()
                    .map(|s| s.name.to_string())
                    .collect();
                Some(
                    at.map(|at| convert::member(found.id, at, worker))
                        .ok_or(stages),
                )
            })
            .await?;
        match found {
            None => Ok(None),
            Some(Ok(member)) => Ok(Some(member)),
            Some(Err(stages)) => {
                let why = format!("the job has no such stage; it has {}", stages.join(", "));
                Err(error::invalid("member.stage", &why))
            }
        }
    }

    /// Time since the start.
    pub(super) fn uptime(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// What is wrong, as far as the state does not say it.
    pub(super) fn troubles(&self) -> Vec<String> {
        let mut all = (self.config.troubles)();
        all.extend(self.astray.load().as_deref().cloned());
        all.extend(self.certificates.load().iter().cloned());
        all.extend(self.config.audit.trouble());
        all
    }

    /// Why the ledger refuses grants; none: it does not.
    pub(super) fn degraded(&self) -> Option<Degraded> {
        self.handle.degraded().borrow().clone()
    }
}

/// Whether every core and GPU of a vector is on this node.
fn knows(node: &Node, vector: &Vector) -> bool {
    let has_core = |id: u32| node.cores.binary_search_by_key(&id, |c| c.id).is_ok();
    vector.cores.iter().all(has_core) && vector.gpus.keys().all(|id| node.gpu(*id).is_some())
}
