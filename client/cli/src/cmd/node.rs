//! `evenkeel node`: what the node has, and what of it is leased or kept for jobs.
use std::time::Duration;

use evenkeel_client::Node;

use crate::args::Globals;
use crate::fail::{Doing as _, Failure};
use crate::out;
use crate::units::{counted, show_bytes, show_duration};

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
    lines(node).iter().for_each(|line| out::wrapped(line));
}

/// The node in sentences: a table of all this is wider than most terminals.
fn lines(node: &Node) -> Vec<String> {
    let list = |cores: &evenkeel_client::CpuList| match cores.is_empty() {
        true => "none".to_owned(),
        false => format!("{} ({cores})", cores.len()),
    };
    let mut lines = vec![
        format!(
            "{} ({}), evenkeeld {}, up {}: {}, {} in the queue{}{}",
            node.name,
            node.kind,
            node.version,
            show_duration(Duration::from_millis(node.uptime_ms)),
            counted(node.live_leases.into(), "live lease"),
            node.queued,
            if node.draining { ", draining" } else { "" },
            if node.degraded {
                ", DEGRADED: no new grants"
            } else {
                ""
            },
        ),
        format!(
            "cores: {}; leased or kept for jobs {}; for the system {}; unavailable {}",
            list(&node.cores),
            list(&node.used_cores),
            list(&node.reserved_cores),
            list(&node.unavailable_cores),
        ),
    ];
    for gpu in &node.gpus {
        lines.push(format!(
            "gpu {}: {} ({}, {}), NUMA node {}",
            gpu.id, gpu.model, gpu.backend, gpu.mode, gpu.numa
        ));
        lines.push(format!(
            "  {}; leased or kept for jobs {}; unavailable {}",
            counted(gpu.sms.into(), "SM"),
            gpu.used_sms,
            gpu.unavailable_sms
        ));
        lines.push(format!(
            "  {} of memory; leased or kept for jobs {}; unavailable {}",
            show_bytes(gpu.leasable_memory_bytes),
            show_bytes(gpu.used_memory_bytes),
            show_bytes(gpu.unavailable_memory_bytes)
        ));
    }
    lines.extend(node.troubles.iter().map(|trouble| format!("! {trouble}")));
    lines
}

#[cfg(test)]
mod tests {
    use evenkeel_client::Gpu;

    use super::*;
    use crate::text::hanging;

    #[test]
    fn no_word_is_broken_at_eighty_columns() {
        let node = Node {
            name: "a-node".into(),
            cores: "0-15".parse().unwrap(),
            used_cores: "1".parse().unwrap(),
            live_leases: 1,
            gpus: vec![Gpu {
                model: "NVIDIA-H100-80GB-HBM3".into(),
                backend: "emulated".into(),
                mode: "enforce".into(),
                sms: 132,
                leasable_memory_bytes: 79 << 30,
                ..Gpu::default()
            }],
            troubles: vec!["no core is reserved for the system: ".repeat(4)],
            ..Node::default()
        };
        let lines = lines(&node);
        let words = |lines: &[String]| {
            let words = lines.iter().flat_map(|l| l.split_whitespace());
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        let narrow: Vec<String> = lines.iter().flat_map(|l| hanging(l, 80)).collect();
        assert_eq!(words(&narrow), words(&lines));
        assert!(narrow.len() > lines.len());
        assert!(
            narrow.iter().all(|l| l.chars().count() <= 80),
            "{narrow:#?}"
        );
        let all = narrow.join("\n");
        for part in ["1 live lease,", "leased or kept for jobs 1 (1)", "132 SMs;"] {
            assert!(all.contains(part), "{part} is missing in {all}");
        }
    }
}
