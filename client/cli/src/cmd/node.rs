//! `evenkeel node`: what the node has and what is leased.
use std::time::Duration;

use evenkeel_client::Node;

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::table::{right, table};
use crate::units::{show_bytes, show_duration};

pub(crate) async fn run(globals: &Globals) -> Result<(), Failure> {
    let node = globals.client()?.node().await.doing("show the node")?;
    if globals.json() {
        out::json(&node);
    } else {
        show(&node);
    }
    Ok(())
}

fn show(node: &Node) {
    out::text(format_args!(
        "{} ({}), evenkeeld {}, up {}: {} live leases, {} in the queue{}{}",
        node.name,
        node.kind,
        node.version,
        show_duration(Duration::from_millis(node.uptime_ms)),
        node.live_leases,
        node.queued,
        if node.draining { ", draining" } else { "" },
        if node.degraded {
            ", DEGRADED: no new grants"
        } else {
            ""
        },
    ));
    let list = |cores: &evenkeel_client::CpuList| {
        if cores.is_empty() {
            "none".to_owned()
        } else {
            format!("{} ({cores})", cores.len())
        }
    };
    out::text(format_args!(
        "cores {}; leased {}; for the system {}; unavailable {}",
        list(&node.cores),
        list(&node.used_cores),
        list(&node.reserved_cores),
        list(&node.unavailable_cores),
    ));
    if !node.gpus.is_empty() {
        let mut gpus = table([
            "GPU",
            "MODEL",
            "BACKEND",
            "MODE",
            "NUMA",
            "SMS",
            "LEASED",
            "UNAVAILABLE",
            "MEMORY",
            "LEASED",
        ]);
        for gpu in &node.gpus {
            gpus.add_row(vec![
                right(gpu.id),
                gpu.model.as_str().into(),
                gpu.backend.as_str().into(),
                gpu.mode.as_str().into(),
                right(gpu.numa),
                right(gpu.sms),
                right(gpu.used_sms),
                right(gpu.unavailable_sms),
                right(show_bytes(gpu.leasable_memory_bytes)),
                right(show_bytes(gpu.used_memory_bytes)),
            ]);
        }
        out::text(gpus);
    }
    for trouble in &node.troubles {
        out::text(format_args!("! {trouble}"));
    }
}
