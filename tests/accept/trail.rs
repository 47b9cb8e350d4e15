//! The audit trail of a daemon under test: what its ledger says has happened, by request and by lease. What clients
//! believe is judged by it.
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, ensure};
use evenkeel_proto::v1 as pb;
use evenkeel_proto::v1::node_service_client::NodeServiceClient;
use serde_json::Value;
use tonic::transport::Channel;

use crate::load::channel;

/// Events on one page: the daemon's own limit.
const PAGE: u32 = 1_000;

/// Events in order: kind, lease and the whole as JSON.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    events: Vec<(String, u64, Value)>,
}

async fn node(socket: &Path) -> anyhow::Result<NodeServiceClient<Channel>> {
    Ok(NodeServiceClient::new(channel(socket).await?))
}

/// The number of the newest event; 0 before the first.
pub(crate) async fn newest(socket: &Path) -> anyhow::Result<u64> {
    let last = pb::ListEventsRequest {
        newest: true,
        page_size: 1,
        ..Default::default()
    };
    let page = node(socket).await?.list_events(last).await?.into_inner();
    Ok(page.events.last().map_or(0, |e| e.seq))
}

impl Trail {
    /// All events after this number. The caller has to be an admin, or sees its own only.
    pub(crate) async fn read(socket: &Path, after_seq: u64) -> anyhow::Result<Self> {
        let mut node = node(socket).await?;
        let (mut events, mut seq) = (Vec::new(), after_seq);
        loop {
            let page = pb::ListEventsRequest {
                after_seq: seq,
                page_size: PAGE,
                ..Default::default()
            };
            let page = node.list_events(page).await?.into_inner();
            if page.events.is_empty() {
                return Ok(Self { events });
            }
            for e in page.events {
                ensure!(e.seq > seq, "event {} comes after event {seq}", e.seq);
                seq = e.seq;
                let json = serde_json::from_str(&e.json)
                    .with_context(|| format!("event {seq} is no JSON: {}", e.json))?;
                events.push((e.kind, e.lease_id, json));
            }
        }
    }

    /// How many events there are.
    pub(crate) const fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the first so many events are those of another trail.
    pub(crate) fn same_until(&self, other: &Self, events: usize) -> anyhow::Result<()> {
        ensure!(
            events <= self.len() && events <= other.len(),
            "{} and {} events, and {events} were to be equal",
            self.len(),
            other.len()
        );
        let both = self.events.iter().zip(&other.events).take(events);
        let differs = both.into_iter().position(|(a, b)| a != b);
        ensure!(
            differs.is_none(),
            "event {} differs",
            differs.map_or(0, |at| at + 1)
        );
        Ok(())
    }

    /// How many events of a kind fulfil a condition.
    pub(crate) fn count(&self, kind: &str, which: impl Fn(&Value) -> bool) -> usize {
        let of_kind = self.events.iter().filter(|(k, _, _)| k == kind);
        of_kind.filter(|(_, _, json)| which(json)).count()
    }

    /// How many events of a kind are about a lease.
    pub(crate) fn of_lease(&self, kind: &str, lease: u64) -> usize {
        let of_kind = self.events.iter().filter(|(k, _, _)| k == kind);
        of_kind.filter(|(_, id, _)| *id == lease).count()
    }

    /// The leases that were granted, by the request that asked for them. More than one is a grant too many.
    pub(crate) fn grants(&self) -> BTreeMap<String, Vec<u64>> {
        let mut grants: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (kind, lease, json) in &self.events {
            if kind == "lease_granted" {
                let request = json["lease"]["request"].as_str().unwrap_or_default();
                grants.entry(request.to_owned()).or_default().push(*lease);
            }
        }
        grants
    }

    /// How leases ended. More than once is an end too many.
    pub(crate) fn ends(&self) -> BTreeMap<u64, Vec<String>> {
        let mut ends: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (kind, lease, json) in &self.events {
            if kind == "lease_ended" {
                let how = json["how"].as_str().unwrap_or_default();
                ends.entry(*lease).or_default().push(how.to_owned());
            }
        }
        ends
    }

    #[cfg(test)]
    pub(crate) fn of(events: Vec<(&str, u64, Value)>) -> Self {
        let owned = |(kind, lease, json): (&str, u64, Value)| (kind.to_owned(), lease, json);
        Self {
            events: events.into_iter().map(owned).collect(),
        }
    }
}
