//! The node and its events.
use evenkeel_proto::v1 as pb;

use crate::model::{Event, EventFilter, Gpu, Node};

impl From<pb::Gpu> for Gpu {
    fn from(w: pb::Gpu) -> Self {
        Self {
            id: w.id,
            uuid: w.uuid,
            model: w.model,
            sms: w.sms,
            memory_bytes: w.memory_bytes,
            leasable_memory_bytes: w.leasable_memory_bytes,
            used_sms: w.used_sms,
            used_memory_bytes: w.used_memory_bytes,
            unavailable_sms: w.unavailable_sms,
            unavailable_memory_bytes: w.unavailable_memory_bytes,
            backend: w.backend,
            mode: w.mode,
            enforceable_sms: w.enforceable_sms,
            numa: w.numa,
            emulated_socket: w.emulated_socket,
        }
    }
}

impl From<pb::Node> for Node {
    fn from(w: pb::Node) -> Self {
        let list = |text: String| text.parse().unwrap_or_default();
        Self {
            name: w.name,
            kind: w.kind,
            cores: list(w.cores),
            reserved_cores: list(w.reserved_cores),
            used_cores: list(w.used_cores),
            unavailable_cores: list(w.unavailable_cores),
            gpus: w.gpus.into_iter().map(Into::into).collect(),
            draining: w.draining,
            version: w.version,
            live_leases: w.live_leases,
            queued: w.queued,
            uptime_ms: w.uptime_ms,
            troubles: w.troubles,
            degraded: w.degraded,
        }
    }
}

impl From<pb::Event> for Event {
    fn from(w: pb::Event) -> Self {
        Self {
            seq: w.seq,
            unix_ms: w.unix_ms,
            kind: w.kind,
            lease_id: w.lease_id,
            job_id: w.job_id,
            tenant: w.tenant,
            json: w.json,
        }
    }
}

/// Which events.
pub(crate) fn list_events_request(filter: &EventFilter) -> pb::ListEventsRequest {
    pb::ListEventsRequest {
        after_seq: filter.after_seq,
        page_size: filter.limit.unwrap_or(0),
        lease_id: filter.lease_id.unwrap_or(0),
        job: filter.job.clone().unwrap_or_default(),
        newest: filter.newest,
    }
}
