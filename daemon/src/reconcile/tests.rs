//! Tests of what a look is told as, on made-up sights. Real processes are in `tests/reconcile`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::command::Seen;
use evenkeel_core::converge::{Client, Want};
use evenkeel_core::cpuset::CpuSet;
use evenkeel_core::id::{Fence, Generation, GpuId, LeaseId};
use evenkeel_core::lease::Holder;
use evenkeel_core::node::{Core, PoolKind};

use super::look::observation;
use super::*;
use crate::backend::Sight;
use crate::proc_tree::Process;

const GPU: GpuId = GpuId(0);

/// Four cores with two threads each: 0-1, 2-3, 4-5, 6-7.
fn node(reserved: &str) -> Node {
    let core = |id| Core {
        id,
        cpus: CpuSet::range(id, id + 1),
        numa: 0,
        package: 0,
    };
    Node {
        kind: PoolKind::Local,
        cores: [0, 2, 4, 6].map(core).into(),
        reserved_cores: reserved.parse().unwrap(),
        gpus: vec![],
    }
}

fn target(want: Want) -> Target {
    Target {
        lease: LeaseId(7),
        fence: Fence(3),
        generation: Generation(2),
        holder: Holder {
            pid: 10,
            start_time: 1,
            uid: 0,
        },
        want,
        caps: BTreeMap::new(),
        gpus: BTreeSet::new(),
    }
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A live tree whose threads are all on `on`; or on either half of it, if `apart`.
fn tree(on: &str, apart: bool) -> Sight {
    Sight {
        processes: vec![Process {
            pid: 10,
            start_time: 1,
        }],
        thorough: true,
        cpus: (!apart).then(|| cpus(on)),
        spread: cpus(on),
        ..Sight::default()
    }
}

#[test]
fn cores_are_those_that_any_thread_may_run_on() {
    let check = |reserved: &str, want: Want, sight: Sight, others: &str, expect: &str| {
        let seen = observation(
            &node(reserved),
            &target(want.clone()),
            &sight,
            &cpus(others),
        );
        assert_eq!(seen.cores, Some(cpus(expect)), "{want:?} of {reserved:?}");
        assert!(!seen.gone);
    };
    let own = || Want::Bound(cpus("2-3"));
    check("0", own(), tree("2-3", false), "", "2");
    // Half of a core is that core.
    check("0", own(), tree("3", false), "", "2");
    // Still on its way.
    check("0", own(), tree("2-5", true), "", "2,4");
    // What the same tree has through another lease is told of that one.
    check("0", own(), tree("2-5", false), "4-5", "2");
    // The shared set is nobody's.
    check("0", Want::Shared, tree("0-1", false), "", "");
    check("0", Want::Shared, tree("2-3", false), "", "2");
    check("0", Want::Shared, tree("0-3", true), "", "0,2");
    check("0", Want::Bound(cpus("")), tree("0-1", false), "", "");
    // Without reserved cores the shared set is all of them; a lease of all of them has them all the same.
    check("", Want::Shared, tree("0-7", false), "", "");
    check("", Want::Shared, tree("2-3", false), "", "2");
    check("", Want::Shared, tree("0-7", true), "", "0,2,4,6");
    check(
        "",
        Want::Bound(cpus("0-7")),
        tree("0-7", false),
        "",
        "0,2,4,6",
    );
}

#[test]
fn gone_takes_a_proof() {
    let nobody = || Sight {
        thorough: true,
        ..Sight::default()
    };
    // Given back: nothing of it is a cap any more, and its share of the GPU is still counted.
    let mut share = target(Want::Shared);
    share.gpus.insert(GPU);
    let gone = |target: &Target, sight: &Sight| {
        let seen = observation(&node("0"), target, sight, &CpuSet::new());
        assert_eq!(seen.cores, None);
        seen.gone
    };
    assert!(gone(&target(Want::Shared), &nobody()));
    let mut hasty = nobody();
    hasty.thorough = false;
    assert!(
        !gone(&target(Want::Shared), &hasty),
        "not looked everywhere"
    );
    assert!(!gone(&share, &nobody()), "its GPU did not answer");
    let mut off = nobody();
    off.seen.insert(GPU, Seen::default());
    assert!(gone(&share, &off));
    let mut listed = off.clone();
    listed.clients.push(Client {
        gpu: GpuId(1),
        client: 1,
        pid: 10,
    });
    assert!(!gone(&share, &listed), "a context on any GPU counts");
}
