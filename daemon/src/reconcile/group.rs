//! One process tree may hold several leases: it runs on the cores of all of them, and each is told its own part.
//! Without this, two leases of one process would bind it to and fro. Called by `look`.

use std::collections::BTreeMap;

use evenkeel_core::converge::{Target, Want};
use evenkeel_core::cpuset::CpuSet;

/// The targets, with the CPUs of leases that have the same root put together.
pub(super) fn joined(targets: &[Target]) -> Vec<Target> {
    let mut cpus: BTreeMap<(u32, u64), CpuSet> = BTreeMap::new();
    for target in targets {
        if let Want::Bound(own) = &target.want {
            let all = cpus.entry(root(target)).or_default();
            *all = all.union(own);
        }
    }
    let join = |target: &Target| {
        let all = cpus.get(&root(target)).filter(|all| !all.is_empty());
        let want = match (&target.want, all) {
            // A lease that goes back, or has no cores, does not pull the tree off those of another.
            (Want::Bound(_) | Want::Shared, Some(all)) => Want::Bound(all.clone()),
            (want, _) => want.clone(),
        };
        Target {
            want,
            ..target.clone()
        }
    };
    targets.iter().map(join).collect()
}

/// The CPUs that the tree of `target` has through other leases.
pub(super) fn others(targets: &[Target], target: &Target) -> CpuSet {
    let same = |t: &&Target| t.lease != target.lease && root(t) == root(target);
    targets
        .iter()
        .filter(same)
        .filter_map(|t| match &t.want {
            Want::Bound(cpus) => Some(cpus),
            _ => None,
        })
        .fold(CpuSet::new(), |all, cpus| all.union(cpus))
}

fn root(target: &Target) -> (u32, u64) {
    (target.holder.pid, target.holder.start_time)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use evenkeel_core::id::{Fence, Generation, LeaseId};
    use evenkeel_core::lease::Holder;

    use super::*;

    fn target(lease: u64, pid: u32, want: Want) -> Target {
        Target {
            lease: LeaseId(lease),
            fence: Fence(1),
            generation: Generation(1),
            holder: Holder {
                pid,
                start_time: 7,
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

    #[test]
    fn leases_of_one_process_share_its_cpus() {
        let targets = [
            target(1, 10, Want::Bound(cpus("2"))),
            target(2, 10, Want::Bound(cpus("3"))),
            target(3, 10, Want::Bound(cpus(""))),
            target(4, 10, Want::Shared),
            target(5, 11, Want::Bound(cpus("4"))),
            target(6, 12, Want::Shared),
        ];
        let wants: Vec<Want> = joined(&targets).into_iter().map(|t| t.want).collect();
        let both = Want::Bound(cpus("2-3"));
        let expect = [
            both.clone(),
            both.clone(),
            both.clone(),
            both,
            Want::Bound(cpus("4")),
            Want::Shared,
        ];
        assert_eq!(wants, expect);
        assert_eq!(others(&targets, &targets[0]), cpus("3"));
        assert_eq!(others(&targets, &targets[3]), cpus("2-3"));
        assert_eq!(others(&targets, &targets[4]), cpus(""));
    }
}
