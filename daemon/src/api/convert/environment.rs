//! The environment of a worker: what its processes have to find before they create a GPU context.
//!
//! Names and syntax of the CUDA variables are NVIDIA's (MPS documentation, "Environment variables").
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use evenkeel_core::grant::{Ask, GpuShare, percent};
use evenkeel_core::id::GpuId;
use evenkeel_core::lease::Lease;
use evenkeel_core::unit::Sms;

use super::vector::Around;

/// What a worker is told of the daemon.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct Daemon<'a> {
    /// Its socket.
    pub(in crate::api) socket: &'a Path,
}

/// The environment for the lease's target. Memory limits are per process and in whole MiB.
///
/// MPS knows one percentage for all devices. What the ledger counts is what it gives, since all GPUs of a lease have
/// the same: `ask` refuses others, `allocate::place` makes no others, and an enforceable count is one that a
/// percentage gives exactly. Only on a node with GPUs of different sizes could the percentages differ (no backend has
/// such a node); then it is the lowest, so that no cap is exceeded, and the rest of what is counted lies idle.
pub(in crate::api) fn environment(
    l: &Lease,
    around: &Around<'_>,
    daemon: &Daemon<'_>,
) -> HashMap<String, String> {
    let mut all = HashMap::new();
    let mut put = |name: &str, value: String| drop(all.insert(name.to_owned(), value));
    put("EVENKEEL_LEASE_ID", l.id.0.to_string());
    put("EVENKEEL_LEASE_FENCE", l.fence.0.to_string());
    put("EVENKEEL_SOCKET", daemon.socket.display().to_string());
    put("EVENKEEL_CORES", l.target.cores.to_string());
    if matches!(l.ask, Ask::Stage(_)) {
        put("EVENKEEL_BATCH", l.batch.to_string());
    }
    put(
        "EVENKEEL_CPUS",
        around.node.cpus_of(&l.target.cores).to_string(),
    );
    if around.node.gpus.is_empty() {
        return all;
    }
    let shares: Vec<(GpuId, &GpuShare)> = (l.target.gpus.iter())
        .filter(|(_, s)| s.cap > Sms(0) || s.memory.0 > 0)
        .map(|(id, s)| (*id, s))
        .collect();
    // Empty hides every GPU: a lease without a share has none.
    put("CUDA_VISIBLE_DEVICES", visible(&shares, around));
    let percents: BTreeSet<u32> = (shares.iter())
        .filter_map(|(id, s)| Some(percent(s.cap, around.node.gpu(*id)?.sms)))
        .filter(|p| *p > 0)
        .collect();
    if let Some(lowest) = percents.first() {
        put("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", lowest.to_string());
    }
    if !shares.is_empty() {
        put(
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            memory_limits(&shares, l.processes),
        );
    }
    if let Some(socket) = shares.iter().find_map(|(id, _)| around.socket(*id)) {
        put("EVENKEEL_GPU_SOCKET", socket.display().to_string());
    }
    all
}

fn visible(shares: &[(GpuId, &GpuShare)], around: &Around<'_>) -> String {
    let uuid = |(id, _): &(GpuId, &GpuShare)| Some(around.node.gpu(*id)?.uuid.to_string());
    shares.iter().filter_map(uuid).collect::<Vec<_>>().join(",")
}

/// `0=10240M,1=…`: by the ordinal among the visible devices.
fn memory_limits(shares: &[(GpuId, &GpuShare)], processes: u32) -> String {
    let limit = |(ordinal, (_, s)): (usize, &(GpuId, &GpuShare))| {
        let mib = (s.memory.0 / u64::from(processes.max(1))) >> 20;
        format!("{ordinal}={mib}M")
    };
    let limits: Vec<String> = shares.iter().enumerate().map(limit).collect();
    limits.join(",")
}
