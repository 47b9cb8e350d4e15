//! What a trial waits for that has not begun after a while: somebody sits at the prompt and sees nothing happen.
use std::collections::BTreeSet;

use evenkeel_client::{Client, Lease, LeasePhase, Node};

use super::grid::Point;
use super::trial::WAIT;
use crate::units::{counted, show_bytes, show_duration};

/// Of so many holders the names are told.
const HOLDERS: usize = 3;

/// What it waits for; none if it does not wait, or the daemon does not say.
pub(super) async fn waits_for(client: &Client, point: Point, memory: u64) -> Option<String> {
    let leases = client.leases(None).await.ok()?;
    // Trials run one after another and outside of any job.
    let queued = |l: &Lease| l.phase == LeasePhase::Queued && l.member.is_none();
    if !leases.iter().any(queued) {
        return None;
    }
    let node = client.node().await.ok()?;
    Some(format!(
        "waits for {}{}, for up to {}; see `evenkeel leases`",
        missing(&node, point, memory),
        holders(&leases, point),
        show_duration(WAIT)
    ))
}

/// Who has some of what a trial needs, as far as one may see it.
fn holders(leases: &[Lease], point: Point) -> String {
    let has = |l: &&Lease| {
        let counted = [&l.held, &l.target];
        let cores = counted.iter().any(|v| !v.cores.is_empty());
        let gpus = counted.iter().any(|v| !v.gpus.is_empty());
        l.phase != LeasePhase::Queued && ((point.cores > 0 && cores) || (point.sms > 0 && gpus))
    };
    let name = |l: &Lease| match &l.member {
        Some(member) => format!("job {}", member.job),
        None => format!("lease {}", l.id),
    };
    let names: BTreeSet<String> = leases.iter().filter(has).map(name).collect();
    let shown: Vec<&str> = names.iter().take(HOLDERS).map(String::as_str).collect();
    let more = match names.len().saturating_sub(shown.len()) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    match shown.is_empty() {
        true => String::new(),
        false => format!(", of which {}{more} has some", shown.join(", ")),
    }
}

/// What is short of what a trial needs; where GPUs differ, on the one with most SMs free.
fn missing(node: &Node, point: Point, memory: u64) -> String {
    let taken = [
        &node.used_cores,
        &node.reserved_cores,
        &node.unavailable_cores,
    ];
    let taken: usize = taken.iter().map(|cores| cores.len()).sum();
    let cores = node.cores.len().saturating_sub(taken) as u64;
    let free = node.gpus.iter().map(|g| {
        let sms = g.sms.saturating_sub(g.used_sms + g.unavailable_sms);
        let bytes = g.used_memory_bytes + g.unavailable_memory_bytes;
        (sms, g.leasable_memory_bytes.saturating_sub(bytes))
    });
    let (sms, bytes) = free.max().unwrap_or_default();
    let mut short = Vec::new();
    if cores < point.cores.into() {
        let needs = counted(point.cores.into(), "core");
        short.push(format!("{needs} ({cores} free)"));
    }
    if sms < point.sms {
        short.push(format!("{} ({sms} free)", counted(point.sms.into(), "SM")));
    }
    if point.sms > 0 && bytes < memory {
        let (memory, bytes) = (show_bytes(memory), show_bytes(bytes));
        short.push(format!("{memory} of GPU memory ({bytes} free)"));
    }
    match short.is_empty() {
        true => "its turn in the queue".to_owned(),
        false => short.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_client::Gpu;

    use super::*;

    #[test]
    fn only_what_is_short_is_named() {
        let node = Node {
            cores: "0-3".parse().unwrap(),
            reserved_cores: "0".parse().unwrap(),
            used_cores: "1-2".parse().unwrap(),
            gpus: vec![Gpu {
                sms: 132,
                used_sms: 100,
                leasable_memory_bytes: 80 << 30,
                used_memory_bytes: 78 << 30,
                ..Gpu::default()
            }],
            ..Node::default()
        };
        for (cores, sms, gib, expect) in [
            (1, 32, 2, "its turn in the queue"),
            (2, 0, 0, "2 cores (1 free)"),
            (1, 34, 1, "34 SMs (32 free)"),
            (
                2,
                16,
                4,
                "2 cores (1 free), 4 GiB of GPU memory (2 GiB free)",
            ),
        ] {
            let point = Point {
                cores,
                sms,
                batch: 1,
                replicas: 1,
            };
            assert_eq!(missing(&node, point, gib << 30), expect);
        }
    }
}
