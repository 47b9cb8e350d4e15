//! What the daemon's own words come to: versions, the ledger, what is enforced. Pure.
use std::time::Duration;

use evenkeel_client::{Gpu, Node};

use super::Finding;
use crate::units::{counted, show_duration};

/// Behind the newest event by more than this the wall clock was set back.
const SET_BACK_MS: u64 = 2_000;
/// The pool that exists in the ledger only.
const SYNTHETIC: &str = "synthetic";

pub(super) fn findings(node: &Node, own_version: &str) -> Vec<Finding> {
    let mut findings = vec![version(node, own_version), ledger(node), cores(node)];
    // Of a synthetic pool one word says it all: nobody expects that its GPUs are there.
    if node.kind != SYNTHETIC {
        findings.extend(node.gpus.iter().map(gpu));
    }
    if node.gpus.is_empty() {
        findings.push(Finding::warning(
            "gpus",
            "none: this node leases cores only",
            "If there should be some, see gpu.backend in the daemon's configuration, and its log.",
        ));
    }
    if node.draining {
        findings.push(Finding::warning(
            "drain",
            "the node is being drained: nothing new is granted",
            "`evenkeel drain --undo` grants again.",
        ));
    }
    let troubles = node.troubles.iter();
    findings.extend(troubles.map(|trouble| {
        Finding::warning(
            "trouble",
            trouble.clone(),
            "See the daemon's log for when it began.",
        )
    }));
    findings
}

/// Client and daemon may differ by one minor version.
fn version(node: &Node, own: &str) -> Finding {
    let found = format!(
        "evenkeeld {} on {}, up {}",
        node.version,
        node.name,
        show_duration(Duration::from_millis(node.uptime_ms))
    );
    let parts = |version: &str| -> Option<(u64, u64)> {
        let mut parts = version.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    };
    let advice = format!("This command is {own}; install the same release for both.");
    match (parts(&node.version), parts(own)) {
        _ if node.version == own => Finding::ok("daemon", found),
        (Some((major, minor)), Some((own_major, own_minor)))
            if major == own_major && minor.abs_diff(own_minor) <= 1 =>
        {
            Finding::warning("daemon", found, advice)
        }
        _ => Finding::bad("daemon", found, advice),
    }
}

fn ledger(node: &Node) -> Finding {
    let leases = counted(node.live_leases.into(), "live lease");
    if node.degraded {
        return Finding::bad(
            "ledger",
            format!("nothing new is granted ({leases})"),
            "The troubles below say why, and what to do. Renewals and releases go on.",
        );
    }
    Finding::ok("ledger", format!("in its place, with space: {leases}"))
}

fn cores(node: &Node) -> Finding {
    let leasable = node.cores.len().saturating_sub(node.reserved_cores.len());
    if node.kind == SYNTHETIC {
        return Finding::warning(
            "cores",
            format!(
                "{leasable}, and {}, SYNTHETIC: nothing is enforced",
                counted(node.gpus.len() as u64, "GPU")
            ),
            "Set node.pool = \"local\" to lease what this machine has.",
        );
    }
    if leasable == 0 {
        return Finding::bad(
            "cores",
            "none can be leased",
            "See node.cores and node.reserved_cores in the daemon's configuration.",
        );
    }
    let found = format!(
        "{leasable} to lease, {} for the system",
        node.reserved_cores.len()
    );
    // That none is reserved is among the daemon's troubles.
    Finding::ok("cores", found)
}

fn gpu(gpu: &Gpu) -> Finding {
    let found = format!(
        "gpu {}: {}, {} SMs, {} ({})",
        gpu.id, gpu.model, gpu.sms, gpu.backend, gpu.mode
    );
    match (gpu.backend.as_str(), gpu.mode.as_str()) {
        ("none", _) => Finding::bad(
            "gpu",
            found,
            "Nothing enforces shares of it: see gpu.backend in the daemon's configuration.",
        ),
        (_, "enforce") => Finding::ok("gpu", found),
        (_, mode) => Finding::warning(
            "gpu",
            found,
            format!("In the mode {mode} shares are not enforced; gpu.modes sets it."),
        ),
    }
}

/// The wall clock against the newest event. Leases do not depend on it; logs and people do.
pub(super) fn clock(newest_ms: Option<u64>, now_ms: u64) -> Finding {
    match newest_ms {
        Some(newest) if newest > now_ms.saturating_add(SET_BACK_MS) => {
            let back = Duration::from_millis(newest - now_ms);
            Finding::warning(
                "clock",
                format!(
                    "the wall clock is {} behind the newest event",
                    show_duration(back)
                ),
                "It was set back. Leases do not depend on it, but times in logs and in `evenkeel events` mislead; see \
                 whether the machine's time is synchronised (timedatectl).",
            )
        }
        _ => Finding::ok("clock", "not behind the newest event"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn well() -> Node {
        Node {
            name: "a-node".into(),
            kind: "local".into(),
            cores: "0-7".parse().unwrap(),
            reserved_cores: "0".parse().unwrap(),
            version: "0.3.1".into(),
            gpus: vec![Gpu {
                model: "H100".into(),
                backend: "emulated".into(),
                mode: "enforce".into(),
                sms: 132,
                ..Gpu::default()
            }],
            ..Node::default()
        }
    }

    /// What is not in order, and how.
    fn check(change: impl FnOnce(&mut Node), expect: &[(&str, State)]) {
        let mut node = well();
        change(&mut node);
        let found = findings(&node, "0.3.1");
        let wrong = found.iter().filter(|f| f.state != State::Ok);
        let wrong: Vec<(&str, State)> = wrong.map(|f| (f.about, f.state)).collect();
        assert_eq!(wrong, expect, "{found:#?}");
        let silent = |f: &&Finding| f.state != State::Ok && f.advice.is_none();
        assert_eq!(
            found.iter().find(silent),
            None,
            "what is wrong has a remedy"
        );
    }

    #[test]
    fn each_thing_that_is_wrong_is_told() {
        check(|_| (), &[]);
        check(
            |n| n.version = "0.2.9".into(),
            &[("daemon", State::Warning)],
        );
        check(|n| n.version = "0.1.0".into(), &[("daemon", State::Bad)]);
        check(|n| n.version = "1.3.1".into(), &[("daemon", State::Bad)]);
        check(|n| n.version = "what".into(), &[("daemon", State::Bad)]);
        check(|n| n.degraded = true, &[("ledger", State::Bad)]);
        check(
            |n| {
                n.kind = "synthetic".into();
                n.gpus[0].backend = "none".into();
            },
            &[("cores", State::Warning)],
        );
        check(
            |n| n.reserved_cores = "0-7".parse().unwrap(),
            &[("cores", State::Bad)],
        );
        check(|n| n.gpus.clear(), &[("gpus", State::Warning)]);
        check(
            |n| n.gpus[0].mode = "observe".into(),
            &[("gpu", State::Warning)],
        );
        check(
            |n| n.gpus[0].backend = "none".into(),
            &[("gpu", State::Bad)],
        );
        check(|n| n.draining = true, &[("drain", State::Warning)]);
        check(
            |n| n.troubles.push("a disk".into()),
            &[("trouble", State::Warning)],
        );
    }

    #[test]
    fn a_clock_that_was_set_back_is_noticed() {
        assert_eq!(clock(None, 5).state, State::Ok);
        assert_eq!(
            clock(Some(1_000), 900).state,
            State::Ok,
            "they are written at once"
        );
        let back = clock(Some(3_600_000), 0);
        assert_eq!(back.state, State::Warning);
        assert!(back.found.contains("1 h"), "{}", back.found);
    }
}
