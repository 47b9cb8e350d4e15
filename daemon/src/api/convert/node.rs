//! The node and its audit trail for the wire.
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{JobId, LeaseId, Name};
use evenkeel_core::node::{Gpu, GpuBackend, GpuMode, PoolKind};
use evenkeel_core::step::State;
use evenkeel_core::unit::Millis;
use evenkeel_proto::v1 as pb;

use super::vector::Around;
use crate::api::limits::PAGE_MAX;
use crate::handle::{Degraded, EventRecord, Page};

/// What the state does not know about the node.
#[derive(Clone, Debug)]
pub(in crate::api) struct NodeFacts {
    /// Its name.
    pub(in crate::api) name: String,
    /// Time since the daemon started.
    pub(in crate::api) uptime: Millis,
    /// Why the ledger refuses grants, if it does.
    pub(in crate::api) degraded: Option<Degraded>,
    /// What is wrong, as others say.
    pub(in crate::api) troubles: Vec<String>,
}

/// The node as it is.
pub(in crate::api) fn node(state: &State, around: &Around<'_>, facts: NodeFacts) -> pb::Node {
    let d = &state.durable;
    let node = d.node();
    let queued = d.queue_len();
    pb::Node {
        kind: kind_word(node.kind).into(),
        cores: node
            .cores
            .iter()
            .map(|c| c.id)
            .collect::<CpuSet>()
            .to_string(),
        reserved_cores: node.reserved_cores.to_string(),
        used_cores: d
            .pool()
            .owned()
            .map(|(core, _)| core)
            .collect::<CpuSet>()
            .to_string(),
        unavailable_cores: d.unavailable().cores.to_string(),
        gpus: node.gpus.iter().map(|g| gpu(state, g, around)).collect(),
        draining: d.draining(),
        version: env!("CARGO_PKG_VERSION").into(),
        live_leases: count(d.leases().len().saturating_sub(queued)),
        queued: count(queued),
        uptime_ms: facts.uptime.0,
        troubles: troubles(state, &facts),
        degraded: facts.degraded.is_some(),
        name: facts.name,
    }
}

/// Whether shares are enforced.
pub(in crate::api) const fn kind_word(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::Local => "local",
        PoolKind::Synthetic => "synthetic",
    }
}

/// Who enforces a GPU's shares.
pub(in crate::api) const fn backend_word(backend: GpuBackend) -> &'static str {
    match backend {
        GpuBackend::Emulated => "emulated",
        GpuBackend::Mps => "mps",
        GpuBackend::Mig => "mig",
        GpuBackend::None => "none",
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn troubles(state: &State, facts: &NodeFacts) -> Vec<String> {
    let d = &state.durable;
    let mut all = facts.troubles.clone();
    match &facts.degraded {
        None => {}
        Some(Degraded::DiskFull) => all.push(
            "the disk of the ledger is full, or nearly so: nothing new is granted until there is space on it"
                .into(),
        ),
        Some(Degraded::Misplaced(what)) => all.push(what.to_string()),
    }
    if d.node().kind == PoolKind::Local && d.node().reserved_cores.is_empty() {
        all.push(
            "no core is reserved for the system: trees without leased cores run on all of them, which nobody enforces"
                .into(),
        );
    }
    let quarantined = state.volatile.quarantined.len();
    if quarantined > 0 {
        all.push(format!("{quarantined} leases are quarantined: their shares stay counted until their trees are gone"));
    }
    all
}

fn gpu(state: &State, g: &Gpu, around: &Around<'_>) -> pb::Gpu {
    let d = &state.durable;
    let used = d.pool().used(g.id);
    let lost = d.unavailable().gpus.get(&g.id).copied().unwrap_or_default();
    pb::Gpu {
        id: g.id.0.into(),
        uuid: g.uuid.to_string(),
        model: g.model.to_string(),
        sms: g.sms.0,
        memory_bytes: g.memory.0,
        leasable_memory_bytes: g.leasable_memory().0,
        used_sms: used.sms.0,
        used_memory_bytes: used.memory.0,
        unavailable_sms: lost.0.0,
        unavailable_memory_bytes: lost.1.0,
        backend: backend_word(g.backend).into(),
        mode: match g.mode {
            GpuMode::Observe => "observe",
            GpuMode::Advise => "advise",
            GpuMode::Enforce => "enforce",
        }
        .into(),
        enforceable_sms: g.enforceable.iter().map(|s| s.0).collect(),
        numa: g.numa.into(),
        emulated_socket: around.socket_text(g.id),
    }
}

/// The same node without what time alone changes: for watchers.
pub(in crate::api) fn without_uptime(node: &pb::Node) -> pb::Node {
    pb::Node {
        uptime_ms: 0,
        ..node.clone()
    }
}

/// Which events are asked for.
pub(in crate::api) fn page(
    w: &pb::ListEventsRequest,
    job: Option<JobId>,
    tenant: Option<Name>,
) -> Page {
    let limit = match w.page_size {
        0 => PAGE_MAX,
        n => n.min(PAGE_MAX),
    };
    let after = Some(w.after_seq).filter(|n| *n > 0);
    Page {
        after: after.filter(|_| !w.newest),
        // From the newest backwards, but not beyond what was asked.
        within: after
            .filter(|_| w.newest)
            .map(|n| (n.saturating_add(1), u64::MAX)),
        newest_first: w.newest,
        lease: Some(LeaseId(w.lease_id)).filter(|id| id.0 > 0),
        job,
        tenant,
        limit,
        ..Page::default()
    }
}

/// One line of the audit trail.
pub(in crate::api) fn event(record: EventRecord) -> pb::Event {
    pb::Event {
        seq: record.seq,
        unix_ms: record.unix_ms,
        kind: record.kind,
        lease_id: record.lease.map_or(0, |id| id.0),
        job_id: record.job.map_or(0, |id| id.0),
        tenant: record.tenant.map(|t| t.to_string()).unwrap_or_default(),
        json: record.json,
    }
}
